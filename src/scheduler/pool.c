/*
 * pool.c
 *		The scheduler's side of its executors: assign tasks, reap what has ended, reclaim what
 *		has not begun.
 *
 * While tasks are long, an executor gets one at a time; while they are short, it gets several, so
 * that many tasks share one claim.  Tasks in a ring behind one that turns out to be long are
 * reclaimed.
 *
 * A task counts as running in its queue from its reservation until it is reaped or reclaimed, or
 * until dispatch.c does not assign it.
 *
 * This file writes no row and decides neither the order of tasks nor the number of executors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "scheduler/order.h"
#include "scheduler/pool.h"
#include "scheduler/work.h"
#include "shared/slots.h"
#include "shared/worker.h"

/* A process that an earlier scheduler registered attaches within this time, or never (ms). */
#define ARRIVAL_MS 60000

/*
 * One entry for each executor slot, at the same index.  Static, because the scheduler remembers
 * what runs from its start to its exit.
 */
static PoolExecutor *executors = NULL;

PoolListener pool_listener;

/* Return the executor after this one, the first one after NULL; NULL after the last one. */
PoolExecutor *
pool_next(const PoolExecutor *previous)
{
	PoolExecutor *executor = previous ? executors + (previous - executors) + 1 : executors;

	while (executor < executors + Shared->nexecutors && !executor->used)
		executor++;
	return executor < executors + Shared->nexecutors ? executor : NULL;
}

/*
 * Make an entry for a slot: of an executor that an earlier scheduler of this database left, or of
 * one that was just reserved.
 */
static void
adopt_executor(PoolExecutor *executor, SharedExecutor *slot)
{
	uint32 i;

	memset(executor, 0, sizeof(PoolExecutor));
	LWLockAcquire(slot->lock, LW_SHARED);
	executor->used = true;
	executor->slot = slot;
	executor->generation = slot->generation;
	executor->role = slot->role;
	executor->leaving = slot->state == EXECUTOR_LEAVING;
	executor->reaped = slot->done;
	executor->assigned = slot->assigned;
	executor->taken = slot->taken;
	executor->taken_at = slot->taken_at;
	for (i = slot->done; i != slot->assigned; i++)
	{
		executor->ring[i % SHARED_RING].relid = slot->ring[i % SHARED_RING].relid;
		executor->ring[i % SHARED_RING].run = slot->ring[i % SHARED_RING].run;
		executor->isolated |= slot->ring[i % SHARED_RING].isolated;
	}
	LWLockRelease(slot->lock);
}

/* Adopt the executors that an earlier scheduler of this database has left. */
void
pool_create(PoolListener listener)
{
	int i;

	pool_listener = listener;
	executors = MemoryContextAllocZero(TopMemoryContext, Shared->nexecutors * sizeof(PoolExecutor));
	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *slot = &Shared->executors[i];

		if (slot->state != EXECUTOR_FREE && slot->database == MyScheduler->slot->database)
			adopt_executor(&executors[i], slot);
	}
	LWLockRelease(Shared->directory);
}

/* The task does not count as running in its queue any more. */
static void
stop_counting(PoolTask *task)
{
	if (task->queue)
		order_task_ended(task->queue);
	task->queue = NULL;
}

/*
 * The task becomes an orphan.  If memory for it runs out, a scan of the rows in state WORK finds
 * later that no executor has it.
 */
static void
orphan_task(PoolTask *task, OrphanKind kind, const TaskFailure *failure)
{
	stop_counting(task);
	pool_listener.orphaned(task->run, kind, failure);
}

/* Reap the tasks that have ended: all before "done".  The slot tells how long, if it is its own. */
static void
reap_finished(PoolExecutor *executor, uint32 done, bool mine)
{
	for (; executor->reaped != done; executor->reaped++)
	{
		PoolTask *task = &executor->ring[executor->reaped % SHARED_RING];

		if (task->queue && mine)
			queue_learn(task->queue, executor->slot->ring[executor->reaped % SHARED_RING].elapsed);
		stop_counting(task);
		pool_listener.ended(task->run.id);
	}
	executor->isolated &= executor->reaped != executor->assigned;
}

/* Forget an executor: its slot is not this scheduler's any more. */
static void
forget_executor(PoolExecutor *executor)
{
	Assert(executor->reaped == executor->assigned);
	if (!executor->ready)
		role_connection_tried(executor->role, false, clock_mono());
	if (executor->handle)
		pfree(executor->handle);
	executor->used = false;
}

/* The tasks in these places have not begun: they do not count, and are no starts. */
static void
undo_starts(PoolExecutor *executor, uint32 from, uint32 end)
{
	while (end != from)
	{
		PoolTask *task = &executor->ring[--end % SHARED_RING];

		if (task->queue)
			order_undo_start(task->queue, task->start);
		task->queue = NULL;
	}
}

/*
 * Reap an executor that has exited with tasks in its ring, or whose process never attached.  No
 * process writes the slot any more, so it is read without its lock.
 */
static void
reap_dead(PoolExecutor *executor)
{
	SharedExecutor *slot = executor->slot;
	int32 taken = (int32) (slot->taken - executor->reaped);

	undo_starts(executor, executor->reaped + Max(taken, 0), executor->assigned);
	for (; executor->reaped != executor->assigned; executor->reaped++)
	{
		PoolTask *task = &executor->ring[executor->reaped % SHARED_RING];

		if ((int32) (slot->taken - executor->reaped) <= 0)
			orphan_task(task, ORPHAN_NOT_STARTED, NULL);
		else if (slot->failure.sqlstate[0] == '\0' || executor->reaped + 1 != slot->taken)
			orphan_task(task, ORPHAN_INTERRUPTED, NULL); /* or it ran before, in the same batch */
		else if (slot->failure.left == TASK_LEFT_YIELDED)
			orphan_task(task, ORPHAN_YIELDED, NULL);
		else
			orphan_task(task, ORPHAN_FAILED, &slot->failure);
	}
	executor_slot_forget(slot, executor->generation);
	forget_executor(executor);
}

/*
 * Has the process of this executor connected?  It may have exited since, and another one may use
 * the slot; after two of them nobody knows, and the answer is yes.  The caller holds the directory
 * lock.
 */
static bool
has_connected(const PoolExecutor *executor)
{
	const SharedExecutor *slot = executor->slot;

	if (slot->generation == executor->generation)
		return slot->pid != 0;
	return slot->generation != executor->generation + 1 || slot->had_pid;
}

/* Read the slot of an executor, and copy from it what is asked for during the iteration. */
static void
reap_executor(PoolExecutor *executor)
{
	SharedExecutor *slot = executor->slot;
	bool mine; /* the slot is still this executor's */
	bool connected;
	bool gone = false;	   /* it has exited with tasks in its ring */
	bool attached = false; /* its process has attached */
	uint32 done = executor->assigned;
	pid_t pid;

	LWLockAcquire(Shared->directory, LW_SHARED);
	mine = slot->state != EXECUTOR_FREE && slot->generation == executor->generation;
	connected = has_connected(executor);
	if (mine)
	{
		LWLockAcquire(slot->lock, LW_SHARED);
		Assert(slot->assigned == executor->assigned);
		Assert((int32) (slot->assigned - slot->taken) >= 0);
		Assert((int32) (slot->taken - slot->done) >= 0);
		Assert((int32) (slot->done - executor->reaped) >= 0);
		gone = slot->state == EXECUTOR_GONE;
		attached = slot->proc != SHARED_NO_PROC;
		done = slot->done;
		executor->pid = slot->pid;
		executor->leaving |= slot->state == EXECUTOR_LEAVING;
		executor->taken = slot->taken;
		executor->taken_at = slot->taken_at;
		LWLockRelease(slot->lock);
	}
	LWLockRelease(Shared->directory);

	if (!executor->ready && connected)
	{
		executor->ready = true;
		role_connection_tried(executor->role, true, clock_mono());
	}
	/* if the slot is another's, it has exited with an empty ring: all has ended */
	reap_finished(executor, done, mine);
	if (!mine)
		forget_executor(executor);
	else if (gone)
		reap_dead(executor);
	/* has the registered process ended, or is it late, without having attached? */
	else if (!attached &&
			 (executor->handle ? GetBackgroundWorkerPid(executor->handle, &pid) == BGWH_STOPPED
							   : clock_exceeds(slot->started, clock_mono(), ARRIVAL_MS)))
		reap_dead(executor);
}

/* Reap what the executors have done since the last call. */
void
pool_reap(void)
{
	pool_foreach(executor)
		reap_executor(executor);
}

/* Reclaim the tasks that an executor has not begun. */
static void
reclaim_tasks(PoolExecutor *executor)
{
	SharedExecutor *slot = executor->slot;
	uint32 end = executor->assigned;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	if (slot->generation == executor->generation)
		executor->assigned = slot->assigned = slot->taken;
	LWLockRelease(slot->lock);
	/* before anything can fail, because tasks behind "assigned" are never reaped */
	undo_starts(executor, executor->assigned, end);
	while (end != executor->assigned)
		orphan_task(&executor->ring[--end % SHARED_RING], ORPHAN_NOT_STARTED, NULL);
}

/*
 * Reclaim the tasks behind long ones, and those of executors that were asked to exit; or all that
 * were not begun.
 */
void
pool_reclaim(MonoTime now, bool all)
{
	pool_foreach(executor)
		if (executor->taken != executor->assigned &&
			(all || executor->leaving || pool_runs_long_task(executor, now)))
			reclaim_tasks(executor);
}

/* Ask an executor to exit when its ring is empty. */
void
pool_retire(PoolExecutor *executor)
{
	executor->leaving = true;
	executor_slot_leave(executor->slot, executor->generation);
}

/*
 * Start the executor of a slot that was just reserved.  If the entry is in use, its executor has
 * exited since the last reap.  Returns false, and frees the slot, if no process can be registered.
 */
bool
pool_start_executor(SharedExecutor *slot, const char *role)
{
	PoolExecutor *executor = &executors[slot - Shared->executors];

	if (executor->used)
		reap_executor(executor);
	adopt_executor(executor, slot);
	executor->handle = worker_start("executor", MyScheduler->database, role,
									(int) (slot - Shared->executors), slot->generation);
	if (executor->handle)
		return true;
	executor->used = false;
	executor_slot_forget(slot, slot->generation);
	return false;
}

/* How long will a task of this queue probably take (us)? */
static double
expected_duration(const QueueState *queue)
{
	double average = queue_average(queue);

	return average >= 0 ? average : POOL_LOAD_MAX_US;
}

/* A round begins: compute the load of each executor. */
void
pool_begin_round(void)
{
	pool_foreach(executor)
	{
		uint32 i;

		executor->load = 0;
		for (i = executor->reaped; i != executor->assigned; i++)
		{
			QueueState *queue = executor->ring[i % SHARED_RING].queue;

			executor->load += queue ? expected_duration(queue) : POOL_LOAD_MAX_US;
		}
	}
}

/* Tell the arbiter whether the executor is needed, even if its ring is empty. */
static void
set_slot_reserved(PoolExecutor *executor, bool reserved)
{
	LWLockAcquire(executor->slot->lock, LW_EXCLUSIVE);
	if (executor->slot->generation == executor->generation)
		executor->slot->reserved = reserved;
	LWLockRelease(executor->slot->lock);
}

/*
 * Reserve an executor for a chosen task, which counts as running in its queue from now on.  The
 * caller either assigns it or stops counting it; the executor stays reserved until the round ends.
 */
void
pool_reserve(PoolExecutor *executor, QueueState *queue, bool isolated)
{
	Assert(executor->ready && !executor->leaving);
	Assert(pool_count_tasks(executor) < SHARED_RING);
	queue_count(queue, 0, 1);
	if (executor->reserved == 0)
		set_slot_reserved(executor, true);
	executor->reserved++;
	executor->isolated = isolated;
	executor->load += expected_duration(queue);
}

/*
 * Assign a claimed task: put it into the executor's ring.  If the executor has exited or was asked
 * to, the task becomes an orphan that was not started.
 */
void
pool_assign(PoolExecutor *executor, uint32 generation, QueueState *queue, QueueStart start,
			const SharedTask *task)
{
	SharedExecutor *slot = executor->slot;
	PoolTask mine = {task->relid, task->run, queue, start};
	bool assigned = false;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	if (slot->generation == generation && executor->generation == generation &&
		slot->state == EXECUTOR_READY)
	{
		Assert(slot->assigned == executor->assigned);
		Assert(slot->assigned - slot->done < SHARED_RING);
		slot->ring[slot->assigned++ % SHARED_RING] = *task;
		slot->batches |= task->defaults.batch > 1;
		slot->notify_at = slot->done + (slot->assigned - slot->done + 1) / 2;
		assigned = true;
	}
	LWLockRelease(slot->lock);
	if (!assigned)
	{
		order_undo_start(queue, start);
		pool_listener.orphaned(task->run, ORPHAN_NOT_STARTED, NULL);
		return;
	}
	executor->ring[executor->assigned++ % SHARED_RING] = mine;
	executor->wake = true;
}

/*
 * The round has ended, perhaps with an error: end all reservations, wake the executors that were
 * assigned tasks, and retire those that the round has kept.
 */
void
pool_end_round(void)
{
	pool_foreach(executor)
	{
		if (executor->reserved > 0)
			set_slot_reserved(executor, false);
		executor->reserved = 0;
		executor->isolated &= executor->assigned != executor->reaped;
		if (executor->wake)
			shared_wake(executor->slot->proc);
		executor->wake = false;
		if (executor->retire_then)
			pool_retire(executor);
		executor->retire_then = false;
	}
}
