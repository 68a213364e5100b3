/*
 * deadline.c
 *		The timeout of the running task.
 *
 * The server's own timeouts use the wall clock.  If that is set back by an hour, the task may run
 * for an hour longer; if it is set forward, the task times out at once.  Therefore the task
 * timeout has its own timer on CLOCK_MONOTONIC, and uses SIGUSR2, which background workers ignore
 * by default.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "compat.h"
#include "executor/deadline.h"

/* Re-fire interval of the task timeout, for requests that catch query_canceled (ms). */
#define AGAIN_MS 100

static timer_t timer;
static MonoTime deadline = {0}; /* CLOCK_NEVER: none */
static volatile sig_atomic_t passed = false;

static void
time_is_over(SIGNAL_ARGS)
{
	int save_errno = errno;

	COMPAT_SIGNAL_UNUSED;
	passed = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/* Called once per executor. */
void
deadline_define(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};

	pqsignal(SIGUSR2, time_is_over);
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
		ereport(FATAL, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not create a timer: %m")));
}

/* A new task: set its timeout, "limit" microseconds after "started"; 0: no limit. */
void
deadline_set(MonoTime started, int64 limit)
{
	passed = false;
	deadline = CLOCK_NEVER;
	if (limit > 0 && limit < PG_INT64_MAX - started.us)
		deadline.us = started.us + Max(limit, 1000);
}

/* Fire after "us" microseconds, and then every AGAIN_MS; 0: stop the timer. */
static void
set_timer(int64 us)
{
	struct itimerspec times = {.it_value = {us / 1000000, us % 1000000 * 1000},
							   .it_interval = {0, AGAIN_MS * 1000000}};

	if (timer_settime(timer, 0, &times, NULL) != 0)
		ereport(ERROR, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not set a timer: %m")));
}

/* Arm the timer: from now on the timeout raises an interrupt, as a user's cancel does. */
void
deadline_start(void)
{
	if (clock_is_before(deadline, CLOCK_NEVER))
		set_timer(Max(deadline.us - clock_mono().us, 1));
}

void
deadline_stop(void)
{
	if (clock_is_before(deadline, CLOCK_NEVER))
		set_timer(0);
}

/* Has the timeout of the current task fired? */
bool
deadline_passed(void)
{
	return passed;
}
