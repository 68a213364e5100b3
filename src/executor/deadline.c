/*
 * deadline.c
 *		When the time of the task in hand is over.
 *
 * The server's own timeouts end at a time of the wall clock: set back by an hour, it would let
 * a task run for an hour more, and set ahead, it would end one at once.  So the timeout of
 * tasks has a timer of its own, and SIGUSR2, which background workers ignore otherwise.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "compat.h"
#include "executor/deadline.h"

/* A request that takes the end of its time for an ordinary error is told again so often. */
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

/* Once, in a process that runs tasks. */
void
deadline_define(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};

	pqsignal(SIGUSR2, time_is_over);
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
		ereport(FATAL, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not create a timer: %m")));
}

/* A new task: it may take so many microseconds since then; 0: no limit. */
void
deadline_set(MonoTime started, int64 limit)
{
	passed = false;
	deadline = CLOCK_NEVER;
	if (limit > 0 && limit < PG_INT64_MAX - started.us)
		deadline.us = started.us + Max(limit, 1000);
}

/* In so many microseconds, and from then on again and again; 0: never. */
static void
set_timer(int64 us)
{
	struct itimerspec times = {.it_value = {us / 1000000, us % 1000000 * 1000},
							   .it_interval = {0, AGAIN_MS * 1000000}};

	if (timer_settime(timer, 0, &times, NULL) != 0)
		ereport(ERROR, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not set a timer: %m")));
}

/* From now on the end of the time is an interrupt, as when a user cancels. */
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

/* Was there such an interrupt? */
bool
deadline_passed(void)
{
	return passed;
}
