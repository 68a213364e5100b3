/*
 * crash_scheduler.c
 *		The scheduler of each database whose name begins with the setting crash_scheduler.database
 *		crashes the server, when it executes a statement.
 */
#include "postgres.h"

#include <signal.h>

#include "commands/dbcommands.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static ExecutorStart_hook_type next_start = NULL;
static char *crashing = NULL;

static void
crash_scheduler(QueryDesc *query, int flags)
{
	if (MyBgworkerEntry && strcmp(MyBgworkerEntry->bgw_type, "pg_task scheduler") == 0 &&
		crashing[0] != '\0' &&
		strncmp(get_database_name(MyDatabaseId), crashing, strlen(crashing)) == 0)
		raise(SIGSEGV);
	if (next_start)
		next_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

void
_PG_init(void)
{
	DefineCustomStringVariable("crash_scheduler.database", "Databases whose scheduler crashes.",
							   NULL, &crashing, "", PGC_SIGHUP, 0, NULL, NULL, NULL);
	next_start = ExecutorStart_hook;
	ExecutorStart_hook = crash_scheduler;
}
