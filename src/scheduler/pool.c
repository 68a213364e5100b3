/*
 * pool.c
 *		The scheduler's side of its executors: start them, choose among them,
 *		assign tasks, and reap what has ended.
 *
 * While tasks are long, an executor gets one at a time; while they are short, it gets several, so
 * that many tasks share one claim.  Tasks in a ring behind one that turns out to be long are
 * reclaimed.
 *
 * This file writes no row and decides no order.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "scheduler/isolation.h"
#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/scheduler.h"
#include "shared/arbiter.h"
#include "shared/slots.h"
#include "shared/worker.h"

/* Maximum expected duration of all tasks in a ring, if there is more than one (us). */
#define RUN_US 4000

/* The tasks behind one that has been running for this time are reclaimed (ms). */
#define TAKE_BACK_MS 10

/* Minimum time before an executor is retired in favour of another role (ms). */
#define SLICE_MS 100

/*
 * Delay of the next start for a role, after an executor of it could not connect (ms): doubled each
 * time, up to the second.
 */
#define START_RETRY_MS 1000
#define START_RETRY_MAX_MS 30000

/*
 * The tasks of a role are checked for locks before they are claimed, after this number of tasks in
 * a row that could not be claimed.
 */
#define MISSES_MAX 16

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define WORKER_RETRY_MS 100

/*
 * That failure is logged if it lasts for this time (ms).  The worker slot of a process that has
 * ended becomes free a little later.
 */
#define NO_WORKER_MS 1000

/* A process that an earlier scheduler registered attaches within this time, or never (ms). */
#define ARRIVAL_MS 60000

/* What the scheduler remembers of a task in an executor's ring. */
typedef struct PoolTask
{
	Oid relid; /* the task table */
	TaskRun run;
	QueueState *queue; /* NULL: not known, so it does not count as running there */
} PoolTask;

struct PoolExecutor
{
	bool used;
	SharedExecutor *slot;
	uint32 generation;
	BackgroundWorkerHandle *handle; /* NULL: started by an earlier scheduler */
	Oid role;
	bool leaving;
	bool spared;   /* to be retired when the round ends */
	bool touched;  /* tasks were assigned, and it was not woken yet */
	double load;   /* expected duration of its tasks (us) */
	int reserved;  /* tasks chosen for it and not yet assigned */
	bool isolated; /* its task is isolated: it gets no other */
	PoolTask ring[SHARED_RING];
	uint32 reaped;	 /* tasks before this position are reaped ... */
	uint32 assigned; /* ... tasks before this one are assigned */

	/* copies from the slot, made by reap_executor */
	bool ready;
	int pid;
	uint32 taken;
	MonoTime taken_at;
};

/* What the scheduler remembers of a role. */
typedef struct PoolRole
{
	Oid role;		   /* key of the hash table */
	MonoTime retry_at; /* no start before this, because a process could not connect */
	int retry_ms;	   /* the last delay; 0: the last executor could connect */
	MonoTime granted;  /* when it last got an executor */
	int misses;		   /* tasks of it in a row that could not be claimed */
} PoolRole;

static PoolExecutor *executors;
static HTAB *roles;
static MonoTime no_worker_until = {0};
static MonoTime no_worker_since = {0}; /* since when no worker slot was free; 0: one was */
static bool no_worker_reported = false;

#define foreach_executor(e)                                                    \
	for (PoolExecutor *e = executors; e < executors + Shared->nexecutors; e++) \
		if (e->used)

static int
outstanding(const PoolExecutor *executor)
{
	return (int) (executor->assigned - executor->reaped) + executor->reserved;
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
pool_create(void)
{
	HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(PoolRole)};
	int i;

	executors = MemoryContextAllocZero(TopMemoryContext, Shared->nexecutors * sizeof(PoolExecutor));
	roles = hash_create("pg_task roles", 16, &ctl, HASH_ELEM | HASH_BLOBS);
	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *slot = &Shared->executors[i];

		if (slot->state != EXECUTOR_FREE && slot->database == MyScheduler->slot->database)
			adopt_executor(&executors[i], slot);
	}
	LWLockRelease(Shared->directory);
}

/*
 * Return the runs of this table that are in rings, running or not.  The result is their number; the
 * array is in the current memory context.
 */
int
pool_held(Oid relid, TaskRun **runs)
{
	int count = 0;

	*runs = palloc((Shared->nexecutors * SHARED_RING + 1) * sizeof(TaskRun));
	foreach_executor(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
			if (executor->ring[i % SHARED_RING].relid == relid)
				(*runs)[count++] = executor->ring[i % SHARED_RING].run;
	}
	return count;
}

/*
 * The row of a run was changed: cancel the run.  An executor does not begin a task with
 * "cancelled"; if it is running already, it gets SIGINT.  The flag tells the executor that the
 * signal is for this task and no other.  The release of a slot changes "proc" under the slot's
 * lock, too, so the signal cannot reach another process.
 */
static void
cancel_run(PoolExecutor *executor, TaskRun run)
{
	SharedExecutor *slot = executor->slot;
	uint32 i;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	for (i = slot->done; slot->generation == executor->generation && i != slot->assigned; i++)
	{
		SharedTask *task = &slot->ring[i % SHARED_RING];

		if (!task_same_run(task->run, run))
			continue;
		task->cancelled = true;
		if (i == slot->done && slot->taken != slot->done && slot->proc != SHARED_NO_PROC)
		{
			slot->cancel_sent = true;
			(void) kill(slot->pid, SIGINT);
		}
	}
	LWLockRelease(slot->lock);
}

/*
 * Reconcile the rings with the table.  "rows" are those of the runs of pool_held that are still in
 * state WORK: from now on they count as running in their queues, if they did not before.  The other
 * runs are cancelled.  Runs of another table, which had this name before, continue.
 */
void
pool_reconcile(Oid relid, const WorkingRow *rows, int count)
{
	foreach_executor(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
		{
			PoolTask *task = &executor->ring[i % SHARED_RING];
			const WorkingRow *row;

			if (task->relid != relid)
				continue;
			row = rows_contain(rows, count, task->run);
			if (row == NULL)
				cancel_run(executor, task->run);
			else if (task->queue == NULL)
			{
				task->queue = groups_queue(row->queue);
				groups_task_started(task->queue);
			}
		}
	}
}

/* The task does not count as running in its queue any more. */
static void
stop_counting(PoolTask *task)
{
	if (task->queue)
		groups_task_ended(task->queue);
	task->queue = NULL;
}

/*
 * The task becomes an orphan.  If memory for it runs out, a scan of the rows in state WORK finds
 * later that no executor has it.
 */
static void
lose_task(PoolTask *task, OrphanKind kind, const TaskFailure *failure)
{
	stop_counting(task);
	orphans_add(task->run, kind, failure);
}

/* Reap the tasks that have ended: all before "done". */
static void
reap_finished(PoolExecutor *executor, uint32 done)
{
	for (; executor->reaped != done; executor->reaped++)
	{
		PoolTask *task = &executor->ring[executor->reaped % SHARED_RING];

		if (task->queue)
		{
			groups_learn(task->queue, executor->slot->ring[executor->reaped % SHARED_RING].elapsed);
		}
		stop_counting(task);
	}
	executor->isolated &= executor->reaped != executor->assigned;
}

static PoolRole *
find_role(Oid role)
{
	bool found;
	PoolRole *entry = hash_search(roles, &role, HASH_ENTER, &found);

	if (!found)
		memset((char *) entry + sizeof(Oid), 0, sizeof(PoolRole) - sizeof(Oid));
	return entry;
}

static void
release_entry(PoolExecutor *executor)
{
	if (!executor->ready)
	{
		PoolRole *entry = find_role(executor->role);

		entry->retry_ms = Min(Max(entry->retry_ms * 2, START_RETRY_MS), START_RETRY_MAX_MS);
		entry->retry_at = clock_plus_ms(clock_mono(), entry->retry_ms);
	}
	if (executor->handle)
		pfree(executor->handle);
	executor->used = false;
}

/*
 * Reap an executor that has exited with tasks in its ring, or whose process never attached.  No
 * process writes the slot any more, so it is read without its lock.
 */
static void
reap_dead(PoolExecutor *executor)
{
	SharedExecutor *slot = executor->slot;

	for (; executor->reaped != executor->assigned; executor->reaped++)
	{
		PoolTask *task = &executor->ring[executor->reaped % SHARED_RING];

		if ((int32) (slot->taken - executor->reaped) <= 0)
			lose_task(task, ORPHAN_NOT_STARTED, NULL);
		else if (slot->failure.sqlstate[0] == '\0')
			lose_task(task, ORPHAN_INTERRUPTED, NULL);
		else
			lose_task(task, ORPHAN_FAILED, &slot->failure);
	}
	executor_slot_forget(slot, executor->generation);
	release_entry(executor);
}

/* Has the registered process failed to attach, for want of memory or of a role's privileges? */
static bool
never_arrives(const PoolExecutor *executor)
{
	pid_t pid;

	if (executor->handle)
		return GetBackgroundWorkerPid(executor->handle, &pid) == BGWH_STOPPED;
	return clock_exceeds(executor->slot->started, clock_mono(), ARRIVAL_MS);
}

static void
reap_executor(PoolExecutor *executor)
{
	SharedExecutor *slot = executor->slot;
	bool mine;
	bool gone;
	bool arrived;
	bool connected = false;
	uint32 done = executor->assigned;

	LWLockAcquire(Shared->directory, LW_SHARED);
	mine = slot->state != EXECUTOR_FREE && slot->generation == executor->generation;
	gone = mine && slot->state == EXECUTOR_GONE;
	arrived = mine && slot->proc != SHARED_NO_PROC;
	if (mine)
	{
		LWLockAcquire(slot->lock, LW_SHARED);
		done = slot->done;
		connected = slot->pid != 0 && !executor->ready;
		executor->ready |= connected;
		executor->pid = slot->pid;
		executor->leaving |= slot->state == EXECUTOR_LEAVING;
		executor->taken = slot->taken;
		executor->taken_at = slot->taken_at;
		LWLockRelease(slot->lock);
	}
	LWLockRelease(Shared->directory);

	if (connected)
		find_role(executor->role)->retry_ms = 0;
	if (mine)
		reap_finished(executor, done);
	if (gone)
		reap_dead(executor);
	else if (!mine)
	{
		/* it exited with an empty ring */
		while (executor->reaped != executor->assigned)
		{
			stop_counting(&executor->ring[executor->reaped++ % SHARED_RING]);
		}
		release_entry(executor);
	}
	else if (!arrived && never_arrives(executor))
		reap_dead(executor);
}

/* Reap what the executors have done since the last call. */
void
pool_reap(void)
{
	foreach_executor(executor) reap_executor(executor);
}

/* Reclaim the tasks that an executor has not begun. */
static void
reclaim(PoolExecutor *executor)
{
	SharedExecutor *slot = executor->slot;
	uint32 end = executor->assigned;
	uint32 i;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	if (slot->generation == executor->generation)
		executor->assigned = slot->assigned = slot->taken;
	LWLockRelease(slot->lock);
	/* stop counting all of them before anything can fail: nobody reaps what is behind "assigned" */
	for (i = executor->assigned; i != end; i++)
		stop_counting(&executor->ring[i % SHARED_RING]);
	while (end != executor->assigned)
		lose_task(&executor->ring[--end % SHARED_RING], ORPHAN_NOT_STARTED, NULL);
}

/* Has a task been running for so long that others should not wait behind it? */
static bool
is_stuck(const PoolExecutor *executor, MonoTime now)
{
	return executor->taken != executor->reaped &&
		   clock_exceeds(executor->taken_at, now, TAKE_BACK_MS);
}

void
pool_reclaim(MonoTime now)
{
	foreach_executor(executor) if (executor->taken != executor->assigned &&
								   (executor->leaving || is_stuck(executor, now)))
		reclaim(executor);
}

/* Does any executor have a task, or one that is being claimed? */
bool
pool_is_busy(void)
{
	foreach_executor(executor) if (outstanding(executor) > 0) return true;
	return false;
}

/* The scheduler exits: reap, and reclaim all tasks that were not begun. */
void
pool_dismiss(void)
{
	pool_reap();
	foreach_executor(executor) reclaim(executor);
}

static void
retire(PoolExecutor *executor)
{
	executor->leaving = true;
	executor_slot_leave(executor->slot, executor->generation);
}

/*
 * Retire an executor: now, or, if tasks were chosen for it in this round, when the round ends.  A
 * role with many short tasks has some chosen for each of its executors in every round.
 */
static void
leave_to_scheduler(PoolExecutor *executor)
{
	if (executor->reserved == 0)
		retire(executor);
	else
		executor->spared = true;
}

static int
count_role(Oid role)
{
	int count = 0;

	foreach_executor(executor) count += executor->role == role && !executor->leaving;
	return count;
}

/*
 * Pick an executor to retire in favour of a role that has "has" executors: one of a role that has
 * at least two more, or of any role if it has none.  Among these, one of the role with the most
 * executors, then the one with the fewest tasks.  NULL if there is none, or if one is exiting
 * already.
 */
static PoolExecutor *
pick_victim(Oid role, int has, MonoTime now)
{
	PoolExecutor *result = NULL;

	foreach_executor(executor)
	{
		if (executor->spared || (executor->leaving && !is_stuck(executor, now)))
			return NULL; /* retire one at a time */
		if (executor->leaving || executor->role == role || !executor->ready ||
			!clock_exceeds(executor->slot->started, now, SLICE_MS) ||
			(has > 0 && count_role(executor->role) < has + 2))
			continue;
		if (result == NULL || count_role(executor->role) > count_role(result->role) ||
			(count_role(executor->role) == count_role(result->role) &&
			 outstanding(executor) < outstanding(result)))
			result = executor;
	}
	return result;
}

/* Retire an executor if a database that has fewer wants one. */
void
pool_yield(void)
{
	PoolExecutor *victim;

	if (!arbiter_yield(MyScheduler->slot))
		return;
	victim = pick_victim(InvalidOid, 0, clock_mono());
	if (victim)
		retire(victim);
}

/* A round begins: compute the load of each executor. */
void
pool_begin_round(void)
{
	foreach_executor(executor)
	{
		uint32 i;

		executor->load = 0;
		for (i = executor->reaped; i != executor->assigned; i++)
		{
			QueueState *queue = executor->ring[i % SHARED_RING].queue;

			executor->load += queue && queue->average >= 0 ? queue->average : RUN_US;
		}
	}
}

/*
 * Find an executor of this role for a task of this average duration (us): an idle one, or the one
 * with the least load if the task still fits.  NULL if there is none.
 */
PoolExecutor *
pool_find(Oid role, double average, MonoTime now)
{
	PoolExecutor *best = NULL;

	foreach_executor(executor)
	{
		if (executor->role != role || !executor->ready || executor->leaving || executor->isolated)
			continue;
		if (outstanding(executor) == 0)
			return executor;
		if (average < 0 || executor->load + average > RUN_US ||
			outstanding(executor) >= SHARED_RING || is_stuck(executor, now))
			continue;
		if (best == NULL || executor->load < best->load)
			best = executor;
	}
	return best;
}

/* Find an idle executor of this role, for an isolated task.  NULL if there is none. */
PoolExecutor *
pool_find_isolated(Oid role)
{
	foreach_executor(executor) if (executor->role == role && executor->ready &&
								   !executor->leaving &&
								   outstanding(executor) == 0) return executor;
	return NULL;
}

int
pool_pid(const PoolExecutor *executor)
{
	return executor->pid;
}

static void
set_reserved(PoolExecutor *executor, bool reserved)
{
	LWLockAcquire(executor->slot->lock, LW_EXCLUSIVE);
	if (executor->slot->generation == executor->generation)
		executor->slot->reserved = reserved;
	LWLockRelease(executor->slot->lock);
}

/*
 * Reserve an executor for a chosen task, which counts as running in its queue from now on.  The
 * caller either assigns it or calls pool_release.  Returns the generation of the executor's slot:
 * by the time the task is claimed, another process may have the slot.
 */
uint32
pool_reserve(PoolExecutor *executor, QueueState *queue, bool isolated)
{
	groups_task_started(queue);
	if (executor->reserved == 0)
		set_reserved(executor, true);
	executor->reserved++;
	executor->isolated = isolated;
	executor->load += queue->average >= 0 ? queue->average : RUN_US;
	return executor->generation;
}

/*
 * A chosen task is not started: it does not count any more.  The executor stays reserved until the
 * round ends.
 */
void
pool_release(QueueState *queue)
{
	groups_task_ended(queue);
}

/*
 * Assign a claimed task: put it into the executor's ring.  If the executor has exited or was asked
 * to, or another isolated task was started in the meantime, the task becomes an orphan that was not
 * started.
 */
void
pool_assign(PoolExecutor *executor, uint32 generation, QueueState *queue, const SharedTask *task)
{
	SharedExecutor *slot = executor->slot;
	PoolTask mine = {task->relid, task->run, queue};
	bool late = task->isolated && !isolation_keep();
	bool assigned = false;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	if (!late && slot->generation == generation && executor->generation == generation &&
		slot->state == EXECUTOR_READY)
	{
		slot->ring[slot->assigned++ % SHARED_RING] = *task;
		slot->notify_at = slot->done + (slot->assigned - slot->done + 1) / 2;
		assigned = true;
	}
	LWLockRelease(slot->lock);
	if (!assigned)
	{
		lose_task(&mine, ORPHAN_NOT_STARTED, NULL);
		return;
	}
	executor->ring[executor->assigned++ % SHARED_RING] = mine;
	executor->touched = true;
}

/*
 * The round has ended, perhaps with an error: end all reservations, wake the executors that were
 * assigned tasks, and retire those that the round has kept.
 */
void
pool_end_round(void)
{
	isolation_release();
	foreach_executor(executor)
	{
		if (executor->reserved > 0)
			set_reserved(executor, false);
		executor->reserved = 0;
		executor->isolated &= executor->assigned != executor->reaped;
		if (executor->touched)
			shared_wake(executor->slot->proc);
		executor->touched = false;
		if (executor->spared)
			retire(executor);
		executor->spared = false;
	}
}

/* A task of this role was claimed. */
void
pool_claimed(Oid role)
{
	find_role(role)->misses = 0;
}

/* A task of this role could not be claimed, most likely because its row is locked. */
void
pool_missed(Oid role)
{
	PoolRole *entry = find_role(role);

	entry->misses = Min(entry->misses + 1, MISSES_MAX);
}

/*
 * Were so many tasks of this role in a row locked that the next ones most likely are, too?  Then
 * its tasks are checked first, other roles get the executors that it would use for nothing, and no
 * process is started for it.
 */
bool
pool_expects_locks(Oid role)
{
	return find_role(role)->misses >= MISSES_MAX;
}

static void
report_no_worker(MonoTime now)
{
	if (no_worker_since.us == 0)
		no_worker_since = now;
	if (!clock_exceeds(no_worker_since, now, NO_WORKER_MS))
		return;
	if (!no_worker_reported)
		ereport(
			LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no background worker slot is free for an executor of database \"%s\"",
					MyScheduler->database),
			 errdetail("Its tasks wait."),
			 errhint("Increase \"max_worker_processes\", or lower \"pg_task.max_executors\".")));
	no_worker_reported = true;
}

/* Start one more executor.  False if that is not possible now. */
static bool
start_executor(Oid role, const char *name, MonoTime now)
{
	SharedExecutor *slot = arbiter_reserve(MyScheduler->slot, role);
	MemoryContext old;
	PoolExecutor *executor;

	if (slot == NULL)
		return false;
	executor = &executors[slot - Shared->executors];
	if (executor->used)
		reap_executor(executor); /* the process that had the slot has exited since the last reap */
	adopt_executor(executor, slot);
	old = MemoryContextSwitchTo(TopMemoryContext);
	executor->handle = worker_start_executor(slot, MyScheduler->database, name);
	MemoryContextSwitchTo(old);
	if (executor->handle == NULL)
	{
		executor->used = false;
		executor_slot_forget(slot, slot->generation);
		arbiter_evict(MyScheduler->slot->database, role);
		no_worker_until = clock_plus_ms(now, WORKER_RETRY_MS);
		report_no_worker(now);
		return false;
	}
	no_worker_reported = false;
	no_worker_since = CLOCK_LONG_AGO;
	find_role(role)->granted = now;
	return true;
}

/*
 * Compare the needs of two roles for an executor.  Negative if the first role is the next to get
 * one: it has fewer, or it has as many and has not got one for a longer time.
 */
int
pool_compare_need(Oid left, Oid right)
{
	int difference = count_role(left) - count_role(right);

	if (difference != 0)
		return difference;
	return clock_is_before(find_role(left)->granted, find_role(right)->granted) ? -1 : 1;
}

/*
 * "tasks" tasks of a role find no executor: start some, or retire one of another role.  Returns
 * true if an executor should come from another database.
 */
bool
pool_demand(const Role *role, const char *name, int tasks, double average, MonoTime now)
{
	int wanted = average < 0 ? tasks : (int) Min(tasks * average / RUN_US + 1, tasks);
	int has = count_role(role->oid);
	int starting = 0;

	foreach_executor(executor) starting +=
		executor->role == role->oid && !executor->leaving && !executor->ready;
	for (; starting < wanted; starting++, has++)
	{
		bool full = role->database_limit >= 0 &&
					arbiter_count_database(MyScheduler->slot->database) >= role->database_limit;
		PoolExecutor *victim;

		if (clock_is_before(now, find_role(role->oid)->retry_at) ||
			(role->limit >= 0 && arbiter_count_role(role->oid) >= role->limit))
			return false;
		if (clock_is_before(now, no_worker_until))
			return true;
		if (!full && start_executor(role->oid, name, now))
			continue;
		/* if the limit is the one of this database, an executor of another database is of no use */
		victim = full && role->database_limit == 0 ? NULL : pick_victim(role->oid, has, now);
		if (victim)
			leave_to_scheduler(victim);
		return !full;
	}
	return false;
}

/* Return the next moment after "now" at which this file has something to do. */
MonoTime
pool_until(MonoTime now)
{
	MonoTime until = CLOCK_NEVER;
	HASH_SEQ_STATUS scan;
	PoolRole *entry;

	foreach_executor(executor) if (executor->taken != executor->assigned) until =
		clock_min(until, clock_plus_ms(executor->taken_at, TAKE_BACK_MS + 1));
	if (clock_is_before(now, no_worker_until))
		until = clock_min(until, no_worker_until);
	if (MyScheduler->slot->wants)
		until = clock_min(until, clock_plus_ms(now, SLICE_MS));
	hash_seq_init(&scan, roles);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (clock_is_before(now, entry->retry_at))
			until = clock_min(until, entry->retry_at);
	return clock_max(until, clock_plus_ms(now, 1));
}
