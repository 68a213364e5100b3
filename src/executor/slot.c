/*
 * slot.c
 *		The executor's own slot: takes tasks from the ring and reports what became of them.
 *
 * Every change is made under the lock of the slot.  What this process alone writes ("taken",
 * "done") it reads without.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/elog.h"

#include "executor/slot.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/slots.h"

SharedExecutor *MyExecutor = NULL;

/* Record how the running task ended, for the scheduler to write. */
void
slot_leave_failure(int sqlstate, const char *error, bool unwritten)
{
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	strlcpy(MyExecutor->failure.sqlstate, unpack_sql_state(sqlstate),
			sizeof(MyExecutor->failure.sqlstate));
	strlcpy(MyExecutor->failure.error, error,
			pg_mbcliplen(error, (int) strlen(error), sizeof(MyExecutor->failure.error) - 1) + 1);
	MyExecutor->failure.unwritten = unwritten;
	LWLockRelease(MyExecutor->lock);
}

/*
 * Has the scheduler cancelled the running task?  Read without the lock, in the signal handler,
 * too: it is set once.
 */
bool
slot_is_cancelled(void)
{
	return MyExecutor->ring[MyExecutor->done % SHARED_RING].cancelled;
}

/* Take the next task from the slot.  False: there is none. */
bool
slot_take(SharedTask *task)
{
	bool taken = false;

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

/* The task in hand is accounted for; wake the scheduler when it asked for that. */
void
slot_report(MonoTime started)
{
	MonoTime now = clock_mono();
	SharedTask *task;
	bool notify;
	bool isolated;

	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	task = &MyExecutor->ring[MyExecutor->done % SHARED_RING];
	isolated = task->isolated;
	task->elapsed = (uint32) Min(now.us - started.us, PG_UINT32_MAX);
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

/* The task that was taken has not begun: it is as if it had not been taken. */
void
slot_untake(void)
{
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	MyExecutor->taken--;
	LWLockRelease(MyExecutor->lock);
}

/*
 * May this process exit now?  If its ring is empty, and it was asked to exit or has been idle for
 * too long.  After that nothing is assigned to it.
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
