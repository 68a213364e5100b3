/*
 * shared.c
 *		Shared memory of pg_task: which processes exist, and the tasks that are
 *		assigned to them.
 *
 * This file knows slots and locks.  It reads no catalog and no task row.  It does not start or
 * terminate processes; it only wakes them.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "compat.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/slots.h"

SharedState *Shared = NULL;

static shmem_request_hook_type next_request_hook = NULL;
static shmem_startup_hook_type next_startup_hook = NULL;

static Size
schedulers_size(void)
{
	return mul_size(max_worker_processes, sizeof(SharedScheduler));
}

static Size
executors_size(void)
{
	return mul_size(Settings.max_executors, sizeof(SharedExecutor));
}

/*
 * Twice the possible number: a transaction may be prepared before the entry of one that has just
 * ended is removed.
 */
static int
count_prepared(void)
{
	return 2 * max_prepared_xacts;
}

static Size
prepared_size(void)
{
	return mul_size(count_prepared(), sizeof(SharedPrepared));
}

static int
count_procs(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static Size
shared_size(void)
{
	Size size = MAXALIGN(sizeof(SharedState));

	size = add_size(size, MAXALIGN(schedulers_size()));
	size = add_size(size, MAXALIGN(executors_size()));
	size = add_size(size, MAXALIGN(prepared_size()));
	return add_size(size, mul_size(count_procs() + SHARED_HOLDS, sizeof(SharedHold)));
}

static void
request_memory(void)
{
	if (next_request_hook)
		next_request_hook();
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("pg_task", 1 + max_worker_processes + Settings.max_executors);
}

static void
initialize_memory(void)
{
	LWLockPadded *locks = GetNamedLWLockTranche("pg_task");
	char *memory = (char *) Shared;
	int i;

	memset(Shared, 0, shared_size());
	Shared->directory = &locks++->lock;
	Shared->supervisor = SHARED_NO_PROC;
	for (i = 0; i < SHARED_SETTINGS; i++)
		pg_atomic_init_u32(&Shared->settings[i], 0);
	ConditionVariableInit(&Shared->vacated);
	if (!pg_strong_random(&Shared->seed, sizeof(Shared->seed)))
		Shared->seed = (uint64) GetCurrentTimestamp();
	Shared->nprepared = count_prepared();
	Shared->nprocs = count_procs();
	Shared->nschedulers = max_worker_processes;
	Shared->nexecutors = Settings.max_executors;
	memory += MAXALIGN(sizeof(SharedState));
	Shared->schedulers = (SharedScheduler *) memory;
	memory += MAXALIGN(schedulers_size());
	Shared->executors = (SharedExecutor *) memory;
	memory += MAXALIGN(executors_size());
	Shared->prepared = (SharedPrepared *) memory;
	memory += MAXALIGN(prepared_size());
	Shared->holds = (SharedHold *) memory;
	for (i = 0; i < Shared->nschedulers; i++)
	{
		Shared->schedulers[i].lock = &locks++->lock;
		Shared->schedulers[i].proc = SHARED_NO_PROC;
		pg_atomic_init_u64(&Shared->schedulers[i].renewed, 0);
		pg_atomic_init_u64(&Shared->schedulers[i].idle_since, 0);
	}
	for (i = 0; i < Shared->nexecutors; i++)
	{
		Shared->executors[i].lock = &locks++->lock;
		Shared->executors[i].proc = SHARED_NO_PROC;
		pg_atomic_init_u32(&Shared->executors[i].workers, 0);
	}
}

static void
attach_memory(void)
{
	bool found;

	if (next_startup_hook)
		next_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	Shared = ShmemInitStruct("pg_task", shared_size(), &found);
	if (!found)
		initialize_memory();
	LWLockRelease(AddinShmemInitLock);
}

void
shared_define(void)
{
	next_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	next_startup_hook = shmem_startup_hook;
	shmem_startup_hook = attach_memory;
}

/*
 * Wake a process.  The number may be stale: then an unrelated process finds its latch set without a
 * reason, which every process must tolerate.
 */
void
shared_wake(int proc)
{
	if (proc != SHARED_NO_PROC)
		SetLatch(&GetPGProcByNumber(proc)->procLatch);
}

void
shared_wake_supervisor(void)
{
	int proc;

	LWLockAcquire(Shared->directory, LW_SHARED);
	proc = Shared->supervisor;
	LWLockRelease(Shared->directory);
	shared_wake(proc);
}

/*
 * Return the entry of a database, or NULL.  InvalidOid finds a free entry.  The caller holds the
 * directory lock.
 */
SharedDatabase *
shared_database_find(Oid database)
{
	int i;

	for (i = 0; i < SHARED_DATABASES; i++)
		if (Shared->databases[i].database == database)
			return &Shared->databases[i];
	return NULL;
}

/* Add a database that is to have a scheduler, unless it is there already or no entry is free. */
void
shared_database_add(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry == NULL && (entry = shared_database_find(InvalidOid)) != NULL)
	{
		memset(entry, 0, sizeof(SharedDatabase));
		entry->database = database;
	}
	LWLockRelease(Shared->directory);
}

void
shared_database_remove(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
		entry->database = InvalidOid;
	executor_slots_forget(database);
	LWLockRelease(Shared->directory);
}

/*
 * Set whether more databases need a scheduler than there are places.  If so, schedulers report from
 * now on whether they are idle.
 */
void
shared_crowd(bool crowded)
{
	int i;

	if (Shared->crowded == crowded) /* read without the lock: only the supervisor writes it */
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->crowded = crowded;
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		pg_atomic_write_u64(&scheduler->idle_since, 0);
		if (scheduler->state != SCHEDULER_FREE)
			shared_wake(scheduler->proc);
	}
	LWLockRelease(Shared->directory);
}

/*
 * Record that something waits in a database that has no scheduler, and wake the supervisor, which
 * is to start one.  The caller holds the directory lock in exclusive mode.
 */
void
shared_database_mark(Oid database)
{
	SharedDatabase *entry = shared_database_find(database);

	if (entry == NULL || entry->marked.us != 0)
		return;
	entry->marked = clock_mono();
	shared_wake(Shared->supervisor);
}

/*
 * The same, for a caller that found no scheduler and has released the directory lock since.  If the
 * supervisor has reserved a slot in the meantime, request a scan and a reconciliation from that
 * scheduler instead.
 */
static void
mark_or_wake(Oid database)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	scheduler = scheduler_slot_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_EXCLUSIVE);
		scheduler->events |= SHARED_SCAN | SHARED_RECONCILE | SHARED_EXPIRY;
		LWLockRelease(scheduler->lock);
		shared_wake(scheduler->proc);
	}
	else
		shared_database_mark(database);
	LWLockRelease(Shared->directory);
}

/* Wake the scheduler of a database.  If there is none, the supervisor is to start one. */
void
shared_scheduler_wake(Oid database)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = scheduler_slot_find(database);
	if (scheduler)
		shared_wake(scheduler->proc);
	LWLockRelease(Shared->directory);
	if (scheduler == NULL)
		mark_or_wake(database);
}

/* Return the task table of a database whose scheduler has found it, or InvalidOid. */
Oid
shared_scheduler_relid(Oid database)
{
	SharedScheduler *scheduler;
	Oid relid = InvalidOid;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = scheduler_slot_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_SHARED);
		relid = scheduler->relid;
		LWLockRelease(scheduler->lock);
	}
	LWLockRelease(Shared->directory);
	return relid;
}

/* Return the task table of a database, even while it waits for a place for its scheduler. */
Oid
shared_database_relid(Oid database)
{
	Oid relid = shared_scheduler_relid(database);
	SharedDatabase *entry;

	if (OidIsValid(relid))
		return relid;
	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(database);
	if (entry)
		relid = entry->relid;
	LWLockRelease(Shared->directory);
	return relid;
}

/* Publish the task table: from now on the scheduler accepts hints about this table. */
void
shared_scheduler_publish(SharedScheduler *me, Oid relid)
{
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	me->relid = relid;
	LWLockRelease(me->lock);
}

static bool
same_group(const SharedHint *a, const SharedHint *b)
{
	return a->max == b->max && a->priority == b->priority && strcmp(a->queue, b->queue) == 0 &&
		   a->role_id == b->role_id && strcmp(NameStr(a->role), NameStr(b->role)) == 0;
}

static bool
is_before(const TaskPlace *a, const TaskPlace *b)
{
	return a->dt < b->dt || (a->dt == b->dt && a->id < b->id);
}

/*
 * Merge a hint into an array of "size" entries, of which *count are used.  For one group, the first
 * position is kept.  False if the array is full.
 */
bool
shared_hint_merge(SharedHint *hints, int *count, int size, const SharedHint *hint)
{
	int i;

	for (i = 0; i < *count; i++)
	{
		if (!same_group(&hints[i], hint))
			continue;
		if (is_before(&hint->place, &hints[i].place))
			hints[i].place = hint->place;
		return true;
	}
	if (*count == size)
		return false;
	hints[(*count)++] = *hint;
	return true;
}

/*
 * May this hint take one more entry of the scheduler's array?  The hints of one role may use at
 * most half of the entries that other roles leave: a role whose commits name very many groups then
 * loses only its own hints.  The caller holds the scheduler's lock.
 */
static bool
leaves_room(const SharedScheduler *scheduler, const SharedHint *hint)
{
	int free = SHARED_ALL_HINTS - scheduler->nhints;
	int mine = 0;
	int i;

	/* usually few entries are used: no need to count */
	if (scheduler->nhints < free)
		return true;
	for (i = 0; i < scheduler->nhints; i++)
		mine += strcmp(NameStr(scheduler->hints[i].role), NameStr(hint->role)) == 0;
	return mine < free;
}

/*
 * Add hints and events for the scheduler of a database, and wake it.  Without a scheduler, the
 * supervisor is to start one.  "relid" is the task table; InvalidOid means that the caller does not
 * know it, and then only the events count.  Called after a commit, so this must not fail.
 */
void
shared_scheduler_hint(Oid database, Oid relid, const SharedHint *hints, int count, int events)
{
	SharedScheduler *scheduler;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = scheduler_slot_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_EXCLUSIVE);
		if (scheduler->relid == relid || !OidIsValid(relid))
			scheduler->events |= events;
		for (i = 0; i < count && scheduler->relid == relid; i++)
		{
			int size = scheduler->nhints + leaves_room(scheduler, &hints[i]);

			if (!shared_hint_merge(scheduler->hints, &scheduler->nhints, size, &hints[i]))
				scheduler->events |= SHARED_SCAN;
		}
		LWLockRelease(scheduler->lock);
		shared_wake(scheduler->proc);
	}
	LWLockRelease(Shared->directory);
	if (scheduler == NULL)
		mark_or_wake(database);
}

/* Take the hints (at most SHARED_ALL_HINTS) and the events that were added since the last call. */
int
shared_scheduler_take_hints(SharedScheduler *me, SharedHint *hints, int *events)
{
	int count;

	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	count = me->nhints;
	memcpy(hints, me->hints, count * sizeof(SharedHint));
	*events = me->events;
	me->nhints = 0;
	me->events = 0;
	LWLockRelease(me->lock);
	return count;
}

/*
 * Return the id of the task that a process runs; SETTINGS_NO_TASK if it is not an executor or runs
 * none.
 */
int64
shared_task_of(int proc)
{
	SharedExecutor *executor = executor_slot_of(proc);
	int64 id = SETTINGS_NO_TASK;

	if (executor == NULL)
		return SETTINGS_NO_TASK;
	LWLockAcquire(executor->lock, LW_SHARED);
	if (executor->taken != executor->done)
		id = executor->ring[executor->done % SHARED_RING].run.id;
	LWLockRelease(executor->lock);
	return id;
}
