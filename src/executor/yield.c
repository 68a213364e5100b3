/*
 * yield.c
 *		An executor that was asked to exit does not wait for locks when it reads or writes a row.
 *
 * Such a wait has no limit while nobody else needs the executor.  When another database or role
 * does, a scheduler asks the executor to exit.  Then the wait is cancelled here, and what has run
 * in the transaction is rolled back: see run.c.  A request that waits for a lock is not cancelled.
 *
 * A wait that begins and one that goes on are found by a timer, which looks at them.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "executor/slot.h"
#include "executor/yield.h"

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
yield_define(void)
{
	yield.timer = RegisterTimeout(USER_TIMEOUT, look_at_wait);
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
