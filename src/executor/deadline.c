/*
 * deadline.c
 *		The timers of an executor: the timeout of the running task, and the look at its own waits.
 *
 * The server's own timeouts use the wall clock.  If that is set back by an hour, the task may run
 * for an hour longer; if it is set forward, the task times out at once.  Therefore the task
 * timeout has its own timer on CLOCK_MONOTONIC, and uses SIGUSR2, which background workers ignore
 * by default.
 *
 * An executor that was asked to exit does not wait for locks when it reads or writes a row.  Such a
 * wait has no limit while nobody else needs the executor.  When another database or role does, a
 * scheduler asks the executor to exit.  Then the wait is cancelled here, and what has run in the
 * transaction is rolled back: see run.c.  A request that waits for a lock is not cancelled.  A wait
 * that begins and one that goes on are found by a timer, which looks at them.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "executor/deadline.h"
#include "executor/slot.h"

/* Re-fire interval of the task timeout, for requests that catch query_canceled (ms). */
#define REFIRE_MS 100

/* Static, because a signal handler has no argument.  deadline_set sets both for each task. */
static struct
{
	timer_t timer;				  /* for the life of the process */
	MonoTime end;				  /* of the running task; CLOCK_NEVER: none */
	volatile sig_atomic_t passed; /* set by the handler */
} deadline;

/* SIGUSR2: the running task has timed out. */
static void
handle_timeout(SIGNAL_ARGS)
{
	int save_errno = errno;

	COMPAT_SIGNAL_UNUSED;
	deadline.passed = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/* How often the timer looks (ms). */
#define LOOK_MS 100

/* Static, because the handler of a timer has no argument. */
static struct
{
	TimeoutId timer;
	volatile sig_atomic_t cancelled; /* the wait was cancelled here */
} yield;

/* The timer's handler.  It reads the state of the slot without the lock, which it cannot take. */
static void
look_at_wait(void)
{
	if (MyExecutor->state != EXECUTOR_LEAVING || MyProc->waitStatus != PROC_WAIT_STATUS_WAITING)
		return;
	yield.cancelled = true;
	InterruptPending = true;
	QueryCancelPending = true;
}

/* Called once per executor. */
void
deadline_define(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};

	pqsignal(SIGUSR2, handle_timeout);
	if (timer_create(CLOCK_MONOTONIC, &event, &deadline.timer) != 0)
		ereport(FATAL, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not create a timer: %m")));
	yield.timer = RegisterTimeout(USER_TIMEOUT, look_at_wait);
}

/* Set the timeout of a task: "limit" microseconds after "started"; 0: no limit. */
void
deadline_set(MonoTime started, int64 limit)
{
	deadline.passed = false;
	deadline.end = CLOCK_NEVER;
	if (limit > 0 && limit < PG_INT64_MAX - started.us)
		deadline.end.us = started.us + Max(limit, 1000);
}

/* Fire after "us" microseconds, and then every REFIRE_MS; 0: stop the timer. */
static void
arm_timer(int64 us)
{
	struct itimerspec times = {.it_value = {us / 1000000, us % 1000000 * 1000},
							   .it_interval = {0, REFIRE_MS * 1000000}};

	if (timer_settime(deadline.timer, 0, &times, NULL) != 0)
		ereport(ERROR, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not set a timer: %m")));
}

/* Start the timer: from now on the timeout raises an interrupt, as a user's cancel does. */
void
deadline_start(void)
{
	if (clock_is_before(deadline.end, CLOCK_NEVER))
		arm_timer(Max(deadline.end.us - clock_mono().us, 1));
}

/* Stop the timer.  deadline_passed still returns whether it has fired. */
void
deadline_stop(void)
{
	if (clock_is_before(deadline.end, CLOCK_NEVER))
		arm_timer(0);
}

/* Has the timeout of the current task fired? */
bool
deadline_passed(void)
{
	return deadline.passed;
}

/* What waits for a lock from now on is pg_task's own: a read or write of the task's row. */
void
yield_begin(void)
{
	yield.cancelled = false;
	enable_timeout_every(yield.timer, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_MS),
						 LOOK_MS);
}

/*
 * That has ended.  An error may have ended it, and the timer, too.  The timer may have cancelled a
 * wait just when it was over: that cancels nothing that comes.
 */
void
yield_end(void)
{
	if (get_timeout_active(yield.timer))
		disable_timeout(yield.timer, false);
	if (yield.cancelled)
		QueryCancelPending = false;
	yield.cancelled = false;
}

/* An error with this code has ended what was begun last: because the executor was asked to exit? */
bool
yield_is_cause(int sqlerrcode)
{
	return yield.cancelled && sqlerrcode == ERRCODE_QUERY_CANCELED;
}
