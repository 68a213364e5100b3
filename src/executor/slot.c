/*
 * slot.c
 *		The executor's own slot: take tasks from the ring, report runs that have ended.
 *
 * This process changes its slot under the slot's lock.  It reads without the lock the fields that
 * no other process writes ("taken", "done").
 *
 * The state of the slot is changed in shared/slots.c.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/elog.h"

#include "executor/slot.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/slots.h"

SharedExecutor *MyExecutor = NULL;

/*
 * Record how the running task has failed, because this process exits: the scheduler writes that
 * into the row.  "unwritten" means that this process has tried to write the failure and could not.
 */
void
slot_set_failure(int sqlstate, const char *error, bool unwritten)
{
	Assert(MyExecutor->taken != MyExecutor->done);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	strlcpy(MyExecutor->failure.sqlstate, unpack_sql_state(sqlstate),
			sizeof(MyExecutor->failure.sqlstate));
	strlcpy(MyExecutor->failure.error, error,
			pg_mbcliplen(error, (int) strlen(error), sizeof(MyExecutor->failure.error) - 1) + 1);
	MyExecutor->failure.unwritten = unwritten;
	LWLockRelease(MyExecutor->lock);
}

/*
 * Has the scheduler cancelled the running task?  "cancelled" is read without the lock, because the
 * SIGINT handler calls this.  It is never reset while the task is in the ring.
 */
bool
slot_is_cancelled(void)
{
	return MyExecutor->ring[MyExecutor->done % SHARED_RING].cancelled;
}

/* Take the next task from the ring.  False if there is none. */
bool
slot_take(SharedTask *task)
{
	bool taken = false;

	Assert(MyExecutor->taken == MyExecutor->done);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	if (MyExecutor->taken != MyExecutor->assigned)
	{
		*task = MyExecutor->ring[MyExecutor->taken % SHARED_RING];
		MyExecutor->taken++;
		MyExecutor->taken_at = clock_mono();
		taken = true;
	}
	LWLockRelease(MyExecutor->lock);
	return taken;
}

/*
 * The first statement of the running task begins now: record that if the rate of its queue counts
 * it.  The clock is read as late as possible, because the statement may read it, too.
 */
void
slot_begin(void)
{
	SharedTask *task = &MyExecutor->ring[MyExecutor->done % SHARED_RING];

	Assert(MyExecutor->taken == MyExecutor->done + 1);
	if (!task->rated)
		return;
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	task->begins++;
	task->ended = CLOCK_NEVER;
	task->began = clock_mono();
	LWLockRelease(MyExecutor->lock);
}

/* That statement has ended: from now on it does not matter what the task does. */
void
slot_begun(void)
{
	SharedTask *task = &MyExecutor->ring[MyExecutor->done % SHARED_RING];

	if (!task->rated)
		return;
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	task->ended = clock_mono();
	LWLockRelease(MyExecutor->lock);
}

/* The running task has ended, with the outcome DONE or another one: report it.  Wake the scheduler
 * if it waits for that. */
void
slot_report(MonoTime started, bool done)
{
	MonoTime now = clock_mono();
	SharedTask *task;
	bool notify;
	bool isolated;

	Assert(MyExecutor->taken == MyExecutor->done + 1);
	activity_end();
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	task = &MyExecutor->ring[MyExecutor->done % SHARED_RING];
	isolated = task->isolated;
	task->elapsed = (uint32) Min(now.us - started.us, PG_UINT32_MAX);
	task->done = done;
	task->ended = clock_min(task->ended, now);
	MyExecutor->done++;
	MyExecutor->idle_since = now;
	notify = task->notify || MyExecutor->done == MyExecutor->notify_at ||
			 MyExecutor->done == MyExecutor->assigned;
	LWLockRelease(MyExecutor->lock);
	if (notify)
		shared_scheduler_wake(MyExecutor->database);
	if (isolated)
		arbiter_isolated_ended();
}

/* Return the task that was taken to the ring: its request has not begun. */
void
slot_untake(void)
{
	Assert(MyExecutor->taken == MyExecutor->done + 1);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	MyExecutor->taken--;
	LWLockRelease(MyExecutor->lock);
}

/*
 * May this process exit now?  Only if its ring is empty, and it was asked to exit or has been idle
 * for too long.  If so, nothing is assigned to it any more.
 */
bool
slot_may_exit(bool idle_too_long)
{
	bool empty;
	bool leaving;

	LWLockAcquire(MyExecutor->lock, LW_SHARED);
	empty = MyExecutor->taken == MyExecutor->assigned;
	leaving = MyExecutor->state == EXECUTOR_LEAVING;
	LWLockRelease(MyExecutor->lock);
	if (leaving || !idle_too_long)
		return empty && leaving;
	return empty && executor_slot_retire(MyExecutor);
}
