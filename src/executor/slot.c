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

/* The running task: the last one that was taken. */
static SharedTask *
running_task(void)
{
	return &MyExecutor->ring[(MyExecutor->taken - 1) % SHARED_RING];
}

/*
 * Record how the running task has ended, because this process exits: the scheduler writes that
 * into the row.
 */
void
slot_set_failure(int sqlstate, const char *error, TaskLeft left)
{
	Assert(MyExecutor->taken != MyExecutor->done);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	strlcpy(MyExecutor->failure.sqlstate, unpack_sql_state(sqlstate),
			sizeof(MyExecutor->failure.sqlstate));
	strlcpy(MyExecutor->failure.error, error,
			pg_mbcliplen(error, (int) strlen(error), sizeof(MyExecutor->failure.error) - 1) + 1);
	MyExecutor->failure.left = left;
	LWLockRelease(MyExecutor->lock);
}

/*
 * Has the scheduler cancelled the running task?  "cancelled" is read without the lock, because the
 * SIGINT handler calls this.  It is never reset while the task is in the ring.
 */
bool
slot_is_cancelled(void)
{
	return running_task()->cancelled;
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

/* Copy the request of a task and its input from the ring, where they are. */
RowRequest
slot_copy_request(const SharedTask *task)
{
	RowRequest request = {pnstrdup(task->request, task->request_len), NULL};

	if (task->input_len > 0)
		request.input =
			memcpy(palloc(task->input_len), task->request + task->request_len, task->input_len);
	return request;
}

/* How many tasks wait in the ring?  The scheduler may add some, and reclaim them. */
int
slot_count_waiting(void)
{
	int count;

	LWLockAcquire(MyExecutor->lock, LW_SHARED);
	count = (int) (MyExecutor->assigned - MyExecutor->taken);
	LWLockRelease(MyExecutor->lock);
	return count;
}

/*
 * Take the next task from the ring if it is "wanted", beside those that were taken and have not
 * been reported.  NULL: there is none, or it is not wanted.  The entry in the ring is not copied:
 * until it is reported nobody changes it, but for "cancelled".
 */
const SharedTask *
slot_take_member(bool (*wanted)(const SharedTask *task))
{
	SharedTask *task = NULL;

	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	if (MyExecutor->taken != MyExecutor->assigned)
		task = &MyExecutor->ring[MyExecutor->taken % SHARED_RING];
	if (task && !wanted(task))
		task = NULL;
	if (task)
	{
		MyExecutor->taken++;
		MyExecutor->taken_at = clock_mono();
	}
	LWLockRelease(MyExecutor->lock);
	return task;
}

/*
 * The first task that was taken and not reported has ended.  The caller holds the lock.  Returns
 * whether the scheduler waits for that.
 */
static bool
report_end(int64 elapsed)
{
	SharedTask *task = &MyExecutor->ring[MyExecutor->done % SHARED_RING];

	task->elapsed = (uint32) Min(elapsed, PG_UINT32_MAX);
	MyExecutor->done++;
	return task->notify || MyExecutor->done == MyExecutor->notify_at ||
		   MyExecutor->done == MyExecutor->assigned;
}

/*
 * All tasks of a batch have ended, with the outcome DONE: report them.  "elapsed" is how long each
 * of them took (us).  Wake the scheduler if it waits for one.
 */
void
slot_report_batch(const int64 *elapsed, int count)
{
	MonoTime now = clock_mono();
	bool notify = false;
	int i;

	Assert(MyExecutor->taken == MyExecutor->done + count);
	activity_end();
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	for (i = 0; i < count; i++)
		notify |= report_end(elapsed[i]);
	MyExecutor->idle_since = now;
	LWLockRelease(MyExecutor->lock);
	if (notify)
		shared_scheduler_wake(MyExecutor->database, 0);
}

/*
 * The running task has ended, with the outcome DONE or another one: report it.  Wake the scheduler
 * if it waits for that.
 */
void
slot_report(MonoTime started)
{
	MonoTime now = clock_mono();
	bool notify;
	bool isolated;

	Assert(MyExecutor->taken == MyExecutor->done + 1);
	activity_end();
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	isolated = running_task()->isolated;
	notify = report_end(now.us - started.us);
	MyExecutor->idle_since = now;
	LWLockRelease(MyExecutor->lock);
	if (notify)
		shared_scheduler_wake(MyExecutor->database, 0);
	if (isolated)
		arbiter_isolated_ended();
}

/* Return the last tasks that were taken to the ring: of their requests nothing is left. */
void
slot_untake(int count)
{
	Assert(MyExecutor->taken - MyExecutor->done >= (uint32) count);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	MyExecutor->taken -= count;
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
