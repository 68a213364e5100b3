/*
 * ignore_signals.c
 *		A function that has its process ignore signals, as code in plperl can.
 */
#include "postgres.h"

#include <signal.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(ignore_signals);
extern PGDLLEXPORT Datum ignore_signals(PG_FUNCTION_ARGS);

Datum
ignore_signals(PG_FUNCTION_ARGS)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGURG};
	struct sigaction action = {.sa_handler = SIG_IGN};
	int i;

	for (i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], &action, NULL);
	PG_RETURN_VOID();
}
