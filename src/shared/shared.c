/*
 * shared.c
 *		Shared memory of pg_task: which processes there are, and what they are
 *		handed.
 *
 * This file knows slots and locks.  It reads no catalog and no task row, and
 * it starts and ends no process: it only wakes them.
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
	return mul_size(settings_max_executors, sizeof(SharedExecutor));
}

/* Twice as many as there can be: one may be prepared before another's entry is removed. */
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
	RequestNamedLWLockTranche("pg_task", 1 + max_worker_processes + settings_max_executors);
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
	Shared->nexecutors = settings_max_executors;
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
		pg_atomic_init_u64(&Shared->schedulers[i].renewed, 0);
		pg_atomic_init_u64(&Shared->schedulers[i].idle_since, 0);
	}
	for (i = 0; i < Shared->nexecutors; i++)
	{
		Shared->executors[i].lock = &locks++->lock;
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
 * Wake a process.  The number may be stale: then an unrelated process sees
 * its latch set for nothing, which every process must bear.
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

/* The scheduler of a database, or NULL.  The directory lock must be held. */
SharedScheduler *
shared_scheduler_find(Oid database)
{
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		if (scheduler->in_use && scheduler->database == database)
			return scheduler;
	}
	return NULL;
}

/* What is known of a database, or NULL.  InvalidOid: a free entry.  The directory lock must be
 * held. */
SharedDatabase *
shared_database_find(Oid database)
{
	int i;

	for (i = 0; i < SHARED_DATABASES; i++)
		if (Shared->databases[i].database == database)
			return &Shared->databases[i];
	return NULL;
}

/* This database is to have a scheduler, if it is not known already. */
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

/* It is to have none: nobody accounts for executors that went with tasks in their rings. */
static void
forget_gone(Oid database)
{
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (executor->gone && executor->database == database)
			executor->in_use = executor->gone = false;
	}
}

void
shared_database_remove(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
		entry->database = InvalidOid;
	forget_gone(database);
	LWLockRelease(Shared->directory);
}

/* From now on databases wait for schedulers, or not: these are to say whether they are idle. */
void
shared_crowd(bool crowded)
{
	int i;

	if (Shared->crowded == crowded) /* only the supervisor writes it */
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->crowded = crowded;
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		pg_atomic_write_u64(&scheduler->idle_since, 0);
		if (scheduler->in_use)
			shared_wake(scheduler->proc);
	}
	LWLockRelease(Shared->directory);
}

/*
 * Something waits in a database that has no scheduler: the supervisor is to give it one.
 * The directory lock must be held.
 */
static void
mark_database(Oid database)
{
	SharedDatabase *entry = shared_database_find(database);

	if (entry == NULL || entry->marked.us != 0)
		return;
	entry->marked = clock_mono();
	shared_wake(Shared->supervisor);
}

/* The same, when there was no scheduler just now: one that was started since is to look. */
static void
mark_or_wake(Oid database)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	scheduler = shared_scheduler_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_EXCLUSIVE);
		scheduler->events |= SHARED_SCAN | SHARED_RECONCILE | SHARED_EXPIRY;
		LWLockRelease(scheduler->lock);
		shared_wake(scheduler->proc);
	}
	else
		mark_database(database);
	LWLockRelease(Shared->directory);
}

/*
 * A process has left: tell all who wait for a free executor, or for an empty
 * database.  The directory lock must be held.
 */
static void
notify_vacated(void)
{
	int i;

	ConditionVariableBroadcast(&Shared->vacated);
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		if (scheduler->in_use && (scheduler->wants || scheduler->wants_isolated))
			shared_wake(scheduler->proc);
	}
}

/*
 * Take a slot for the scheduler of a database that has none.  NULL when it
 * has one, or when no slot is free.
 */
SharedScheduler *
shared_scheduler_reserve(Oid database, Oid user)
{
	SharedScheduler *result = NULL;
	SharedDatabase *entry;
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	for (i = 0; i < Shared->nschedulers && shared_scheduler_find(database) == NULL; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		if (scheduler->in_use)
			continue;
		scheduler->in_use = true;
		scheduler->attached = false;
		scheduler->generation++;
		scheduler->database = database;
		scheduler->user = user;
		scheduler->proc = SHARED_NO_PROC;
		scheduler->leave = false;
		scheduler->wants = false;
		scheduler->isolated = scheduler->wants_isolated = false;
		scheduler->granted = CLOCK_LONG_AGO;
		scheduler->due = CLOCK_LONG_AGO;
		pg_atomic_write_u64(&scheduler->renewed, 0);
		pg_atomic_write_u64(&scheduler->idle_since, 0);
		scheduler->relid = InvalidOid;
		scheduler->events = 0; /* it begins with a scan */
		scheduler->nhints = 0;
		result = scheduler;
	}
	entry = shared_database_find(database);
	if (entry && result)
		entry->marked = CLOCK_LONG_AGO;
	LWLockRelease(Shared->directory);
	return result;
}

/*
 * This process is the scheduler that the slot was reserved for; NULL: too late.  One that was asked
 * to go before it came gives the slot back: if the supervisor has ended meanwhile, nobody else
 * does.
 */
SharedScheduler *
shared_scheduler_attach(int slot, uint32 generation)
{
	SharedScheduler *me = &Shared->schedulers[slot];
	bool mine;
	bool stays;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	mine = me->in_use && !me->attached && me->generation == generation;
	stays = mine && !me->leave;
	if (stays)
	{
		me->attached = true;
		me->proc = COMPAT_MY_PROC;
	}
	LWLockRelease(Shared->directory);
	if (mine && !stays)
		shared_scheduler_release(me);
	return stays ? me : NULL;
}

/*
 * The executors of a database are to go when what they have in their rings is finished.
 * The directory lock must be held.
 */
static void
dismiss_executors(Oid database)
{
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (!executor->in_use || executor->database != database)
			continue;
		LWLockAcquire(executor->lock, LW_EXCLUSIVE);
		executor->leave = true;
		LWLockRelease(executor->lock);
		shared_wake(executor->proc);
	}
}

/*
 * Give the slot back, and leave what the next one of this database, and the supervisor, have
 * to know.  Executors that went with tasks in their rings since the last account need
 * no more: the next scheduler finds these tasks in the table.  The others go as soon as
 * they have nothing to do: the database may be served no more, or close.
 */
void
shared_scheduler_release(SharedScheduler *me)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->in_use = false;
	me->proc = SHARED_NO_PROC;
	entry = shared_database_find(me->database);
	if (entry)
	{
		entry->due = me->due;
		if (OidIsValid(me->relid))
			entry->relid = me->relid;
		/* what came too late for this one */
		if (me->events != 0 || me->nhints > 0)
			mark_database(me->database);
	}
	forget_gone(me->database);
	dismiss_executors(me->database);
	notify_vacated();
	LWLockRelease(Shared->directory);
	shared_wake_supervisor();
}

/* Ask a scheduler to go. */
void
shared_scheduler_leave(SharedScheduler *scheduler)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	scheduler->leave = true;
	shared_wake(scheduler->proc);
	LWLockRelease(Shared->directory);
}

bool
shared_scheduler_leaves(SharedScheduler *me)
{
	bool leave;

	LWLockAcquire(Shared->directory, LW_SHARED);
	leave = me->leave;
	LWLockRelease(Shared->directory);
	return leave;
}

/* Wake the scheduler of a database; it gets one if there is none. */
void
shared_scheduler_wake(Oid database)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = shared_scheduler_find(database);
	if (scheduler)
		shared_wake(scheduler->proc);
	LWLockRelease(Shared->directory);
	if (scheduler == NULL)
		mark_or_wake(database);
}

/* The task table of a database whose scheduler is up, or InvalidOid. */
Oid
shared_scheduler_relid(Oid database)
{
	SharedScheduler *scheduler;
	Oid relid = InvalidOid;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = shared_scheduler_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_SHARED);
		relid = scheduler->relid;
		LWLockRelease(scheduler->lock);
	}
	LWLockRelease(Shared->directory);
	return relid;
}

/* The task table of a database, also while that waits for its turn to have a scheduler. */
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

/* From now on triggers on this table are listened to. */
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
 * Merge a hint into others, with room for "size": of one group, the first place counts.
 * False: there is no room.
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
 * Is there room for a hint in this scheduler's, beside those of the same role?  A role leaves as
 * many places as it takes, so that those who tell of very many groups lose their own hints only.
 * The scheduler's lock must be held.
 */
static bool
leaves_room(const SharedScheduler *scheduler, const SharedHint *hint)
{
	int free = SHARED_ALL_HINTS - scheduler->nhints;
	int mine = 0;
	int i;

	/* rarely more than a few: no need to count */
	if (scheduler->nhints < free)
		return true;
	for (i = 0; i < scheduler->nhints; i++)
		mine += strcmp(NameStr(scheduler->hints[i].role), NameStr(hint->role)) == 0;
	return mine < free;
}

/*
 * Tell the scheduler of a database where rows of its table wait that it may
 * not know of, and what else happened there, and wake it.  The table may be
 * InvalidOid: then it is not known which.  Called after a commit, so this must not fail.
 */
void
shared_scheduler_hint(Oid database, Oid relid, const SharedHint *hints, int count, int events)
{
	SharedScheduler *scheduler;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = shared_scheduler_find(database);
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

/* Take what was noted since the last call: up to SHARED_ALL_HINTS, and what else happened. */
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

/* This process is the executor that the slot was reserved for; NULL: too late. */
SharedExecutor *
shared_executor_attach(int slot, uint32 generation)
{
	SharedExecutor *me = &Shared->executors[slot];

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (me->in_use && me->proc == SHARED_NO_PROC && me->generation == generation)
		me->proc = COMPAT_MY_PROC;
	else
		me = NULL;
	LWLockRelease(Shared->directory);
	return me;
}

/*
 * This executor goes.  With tasks in its ring the slot stays until the
 * scheduler has accounted for them, if there is one.
 */
void
shared_executor_release(SharedExecutor *me)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	scheduler = shared_scheduler_find(me->database);
	me->proc = SHARED_NO_PROC;
	me->ready = false;
	me->leave = false;
	me->gone = me->done != me->assigned &&
			   (scheduler ? scheduler->attached : shared_database_find(me->database) != NULL);
	me->in_use = me->gone;
	LWLockRelease(me->lock);
	if (scheduler)
		shared_wake(scheduler->proc);
	else if (me->gone)
		mark_database(me->database);
	notify_vacated();
	LWLockRelease(Shared->directory);
}

/* The scheduler has accounted for an executor that went, or that never came. */
void
shared_executor_forget(SharedExecutor *executor)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	executor->in_use = executor->gone = executor->leave = false;
	notify_vacated();
	LWLockRelease(Shared->directory);
}

/* Ask an executor to go when the task in hand is finished. */
void
shared_executor_leave(SharedExecutor *executor)
{
	LWLockAcquire(executor->lock, LW_EXCLUSIVE);
	executor->leave = true;
	LWLockRelease(executor->lock);
	shared_wake(executor->proc);
}

/* The slot of the executor that a process is, or NULL. */
SharedExecutor *
shared_executor_of(int proc)
{
	SharedExecutor *result = NULL;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors && result == NULL; i++)
		if (Shared->executors[i].in_use && Shared->executors[i].proc == proc)
			result = &Shared->executors[i];
	LWLockRelease(Shared->directory);
	return result;
}

/* The task that a process runs, SETTINGS_NO_TASK if it is no executor or runs none. */
int64
shared_task_of(int proc)
{
	SharedExecutor *executor = shared_executor_of(proc);
	int64 id = SETTINGS_NO_TASK;

	if (executor == NULL)
		return SETTINGS_NO_TASK;
	LWLockAcquire(executor->lock, LW_SHARED);
	if (executor->taken != executor->done)
		id = executor->ring[executor->done % SHARED_RING].run.id;
	LWLockRelease(executor->lock);
	return id;
}
