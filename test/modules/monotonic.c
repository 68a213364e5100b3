/*
 * monotonic.c
 *		uptime() and nap(seconds), by a clock that nobody sets.
 */
#include "postgres.h"

#include <math.h>
#include <time.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(uptime);
PG_FUNCTION_INFO_V1(nap);

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

Datum
uptime(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(now());
}

/* pg_sleep goes by the wall clock. */
Datum
nap(PG_FUNCTION_ARGS)
{
	double until = now() + PG_GETARG_FLOAT8(0);
	double left;

	while ((left = until - now()) > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) ceil(left * 1000), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_VOID();
}
