/*
 * shared.c
 *		Shared memory of pg_task: which processes there are, and what they are
 *		handed.
 *
 * This room knows slots and locks.  It reads no catalog and no task row, and
 * it starts and ends no process: it only wakes them.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared.h"

/*
 * A database that has an executor for so long gives one up when another one
 * has work and none.
 */
#define SLICE_MS 100

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

static Size
shared_size(void)
{
	return add_size(MAXALIGN(sizeof(SharedState)),
					add_size(MAXALIGN(schedulers_size()), executors_size()));
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
	pg_atomic_init_u32(&Shared->settings, 0);
	ConditionVariableInit(&Shared->vacated);
	Shared->nschedulers = max_worker_processes;
	Shared->nexecutors = settings_max_executors;
	memory += MAXALIGN(sizeof(SharedState));
	Shared->schedulers = (SharedScheduler *) memory;
	memory += MAXALIGN(schedulers_size());
	Shared->executors = (SharedExecutor *) memory;
	for (i = 0; i < Shared->nschedulers; i++)
		Shared->schedulers[i].lock = &locks++->lock;
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

/* How many executors a database has and keeps.  The directory lock must be held. */
static int
count_executors(Oid database)
{
	int count = 0;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (executor->in_use && !executor->leave && executor->database == database)
			count++;
	}
	return count;
}

/*
 * A process has left: tell all who wait for a free executor, or for an empty
 * database.  The directory lock must be held.
 */
static void
tell_vacated(void)
{
	int i;

	ConditionVariableBroadcast(&Shared->vacated);
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		if (scheduler->in_use && (scheduler->wants || scheduler->wants_apart))
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
		scheduler->apart = scheduler->wants_apart = false;
		scheduler->granted = 0;
		scheduler->relid = InvalidOid;
		scheduler->news = SHARED_LOOK;
		scheduler->nnotes = 0;
		result = scheduler;
	}
	LWLockRelease(Shared->directory);
	return result;
}

/* This process is the scheduler that the slot was reserved for; NULL: too late. */
SharedScheduler *
shared_scheduler_attach(int slot, uint32 generation)
{
	SharedScheduler *me = &Shared->schedulers[slot];

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (me->in_use && !me->attached && me->generation == generation && !me->leave)
	{
		me->attached = true;
		me->proc = COMPAT_MY_PROC;
	}
	else
		me = NULL;
	LWLockRelease(Shared->directory);
	return me;
}

/*
 * Give the slot back.  Executors that went with tasks in their rings need no
 * more accounting: the next scheduler finds these tasks in the table.
 */
void
shared_scheduler_release(SharedScheduler *me)
{
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->in_use = false;
	me->proc = SHARED_NO_PROC;
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (executor->gone && executor->database == me->database)
			executor->in_use = executor->gone = false;
	}
	tell_vacated();
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

/* Wake the scheduler of a database, if there is one. */
void
shared_scheduler_wake(Oid database)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = shared_scheduler_find(database);
	if (scheduler)
		shared_wake(scheduler->proc);
	LWLockRelease(Shared->directory);
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

/* From now on triggers on this table are listened to. */
void
shared_scheduler_publish(SharedScheduler *me, Oid relid)
{
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	me->relid = relid;
	LWLockRelease(me->lock);
}

static bool
same_group(const SharedNote *a, const SharedNote *b)
{
	return a->max == b->max && a->priority == b->priority && strcmp(a->queue, b->queue) == 0 &&
		   strcmp(NameStr(a->role), NameStr(b->role)) == 0;
}

static bool
is_before(const TaskPlace *a, const TaskPlace *b)
{
	return a->dt < b->dt || (a->dt == b->dt && a->id < b->id);
}

/*
 * Merge a note into SHARED_NOTES others: of one group, the first place counts.
 * False: there is no room.
 */
bool
shared_note_merge(SharedNote *notes, int *count, const SharedNote *note)
{
	int i;

	for (i = 0; i < *count; i++)
	{
		if (!same_group(&notes[i], note))
			continue;
		if (is_before(&note->place, &notes[i].place))
			notes[i].place = note->place;
		return true;
	}
	if (*count == SHARED_NOTES)
		return false;
	notes[(*count)++] = *note;
	return true;
}

/*
 * Tell the scheduler of a database where rows of its table wait that it may
 * not know of, and what else happened there, and wake it.  The table may be
 * InvalidOid: then it is not known which.  Called after a commit, so this must not fail.
 */
void
shared_scheduler_note(Oid database, Oid relid, const SharedNote *notes, int count, int news)
{
	SharedScheduler *scheduler;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = shared_scheduler_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_EXCLUSIVE);
		if (scheduler->relid == relid || !OidIsValid(relid))
			scheduler->news |= news;
		for (i = 0; i < count && scheduler->relid == relid; i++)
			if (!shared_note_merge(scheduler->notes, &scheduler->nnotes, &notes[i]))
				scheduler->news |= SHARED_LOOK;
		LWLockRelease(scheduler->lock);
		shared_wake(scheduler->proc);
	}
	LWLockRelease(Shared->directory);
}

/* Take what was noted since the last call: up to SHARED_NOTES, and what else happened. */
int
shared_scheduler_notes(SharedScheduler *me, SharedNote *notes, int *news)
{
	int count;

	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	count = me->nnotes;
	memcpy(notes, me->notes, count * sizeof(SharedNote));
	*news = me->news;
	me->nnotes = 0;
	me->news = 0;
	LWLockRelease(me->lock);
	return count;
}

/* Is a task at work, in any database, that has to run apart?  The directory lock must be held. */
static bool
apart_at_work(SharedScheduler *me)
{
	bool at_work = false;
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
		at_work |= &Shared->schedulers[i] != me && Shared->schedulers[i].in_use &&
				   Shared->schedulers[i].apart;
	for (i = 0; i < Shared->nexecutors && !at_work; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];
		uint32 n;

		if (!executor->in_use)
			continue;
		LWLockAcquire(executor->lock, LW_SHARED);
		for (n = executor->done; n != executor->assigned; n++)
			at_work |= executor->ring[n % SHARED_RING].apart;
		LWLockRelease(executor->lock);
	}
	return at_work;
}

/*
 * A task that may crash the server is about to be started: one at a time on the whole
 * server.  False: another one is at work; when it ends, this scheduler is woken.
 */
bool
shared_apart_take(SharedScheduler *me)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->apart = !apart_at_work(me);
	me->wants_apart = !me->apart;
	LWLockRelease(Shared->directory);
	return me->apart;
}

/* It was handed out, and counts from there, or it was not started after all. */
void
shared_apart_give(SharedScheduler *me)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->apart = false;
	LWLockRelease(Shared->directory);
}

/* Could one be started now? */
bool
shared_apart_free(SharedScheduler *me)
{
	bool free;

	LWLockAcquire(Shared->directory, LW_SHARED);
	free = !apart_at_work(me);
	LWLockRelease(Shared->directory);
	return free;
}

/* One has ended: tell those who wait to start theirs. */
void
shared_apart_ended(void)
{
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nschedulers; i++)
		if (Shared->schedulers[i].in_use && Shared->schedulers[i].wants_apart)
			shared_wake(Shared->schedulers[i].proc);
	LWLockRelease(Shared->directory);
}

/*
 * Say whether there is work for which no executor could be had.  The other
 * schedulers are woken: one of them may have to give one up.
 */
void
shared_scheduler_want(SharedScheduler *me, bool wants)
{
	int i;

	if (me->wants == wants) /* only this process writes it */
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->wants = wants;
	me->wants_since = GetCurrentTimestamp();
	for (i = 0; i < Shared->nschedulers && wants; i++)
		if (Shared->schedulers[i].in_use && &Shared->schedulers[i] != me)
			shared_wake(Shared->schedulers[i].proc);
	LWLockRelease(Shared->directory);
}

/* Does another database want an executor and have fewer?  The directory lock must be held. */
static bool
others_first(SharedScheduler *me, int mine)
{
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *other = &Shared->schedulers[i];

		if (other != me && other->in_use && other->wants && count_executors(other->database) < mine)
			return true;
	}
	return false;
}

/*
 * Is this executor on its way out?  Not if it has been busy with one task for
 * a while, for that may take long.
 */
static bool
is_leaving(const SharedExecutor *executor)
{
	return executor->in_use && executor->leave &&
		   (executor->assigned == executor->done ||
			!TimestampDifferenceExceeds(executor->taken_at, GetCurrentTimestamp(), SLICE_MS));
}

/*
 * Ask the executor that has been idle for longest to make room, unless one is
 * on its way out already.  The directory lock must be held.
 */
static void
evict_idle(Oid database, Oid role)
{
	TimestampTz now = GetCurrentTimestamp();
	SharedExecutor *victim = NULL;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (is_leaving(executor))
			return;
		if (executor->leave || !executor->in_use || !executor->ready || executor->gone)
			continue;
		if (executor->database == database && executor->role == role)
			continue;
		if (executor->assigned == executor->done && !executor->promised &&
			(executor->done > 0 || TimestampDifferenceExceeds(executor->started, now, SLICE_MS)) &&
			(victim == NULL || executor->idle_since < victim->idle_since))
			victim = executor;
	}
	if (victim == NULL)
		return;
	LWLockAcquire(victim->lock, LW_EXCLUSIVE);
	victim->leave = (victim->assigned == victim->done && !victim->promised);
	LWLockRelease(victim->lock);
	shared_wake(victim->proc);
}

/*
 * No worker slot is free: let an idle executor of another database or role
 * make room.
 */
void
shared_executor_evict(Oid database, Oid role)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	evict_idle(database, role);
	LWLockRelease(Shared->directory);
}

static void
reset_executor(SharedExecutor *executor, Oid database, Oid role, TimestampTz now)
{
	executor->in_use = true;
	executor->gone = false;
	executor->generation++;
	executor->database = database;
	executor->role = role;
	executor->proc = SHARED_NO_PROC;
	executor->ready = false;
	executor->leave = false;
	executor->promised = false;
	executor->pid = 0;
	executor->relid = InvalidOid;
	executor->started = executor->idle_since = now;
	executor->failure.sqlstate[0] = '\0';
	executor->cancel_sent = false;
	executor->quit = false;
	pg_atomic_write_u32(&executor->workers, 0);
	executor->assigned = executor->taken = executor->done = executor->tell_at = 0;
}

/*
 * Take a slot for an executor.  NULL when none is free, or when the free one
 * is another database's turn; an idle executor is then asked to make room.
 */
SharedExecutor *
shared_executor_reserve(SharedScheduler *me, Oid role)
{
	TimestampTz now = GetCurrentTimestamp();
	SharedExecutor *result = NULL;
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (!others_first(me, count_executors(me->database)))
	{
		for (i = 0; i < Shared->nexecutors && result == NULL; i++)
			if (!Shared->executors[i].in_use)
				result = &Shared->executors[i];
		if (result)
		{
			reset_executor(result, me->database, role, now);
			me->granted = now;
		}
		else
			evict_idle(me->database, role);
	}
	LWLockRelease(Shared->directory);
	return result;
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
	me->gone = scheduler && scheduler->attached && me->done != me->assigned;
	me->in_use = me->gone;
	LWLockRelease(me->lock);
	if (scheduler)
		shared_wake(scheduler->proc);
	tell_vacated();
	LWLockRelease(Shared->directory);
}

/* The scheduler has accounted for an executor that went, or that never came. */
void
shared_executor_forget(SharedExecutor *executor)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	executor->in_use = executor->gone = executor->leave = false;
	tell_vacated();
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

/*
 * Should this database give up an executor for one that has fewer?  At once
 * when the difference is two or more; otherwise, when there are more databases
 * with work than executors, the one that has held its own for longest, after
 * a slice of time.
 */
bool
shared_executor_yields(SharedScheduler *me)
{
	TimestampTz now = GetCurrentTimestamp();
	bool yields = false;
	int mine;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	mine = count_executors(me->database);
	for (i = 0; i < Shared->nschedulers && mine > 0; i++)
	{
		SharedScheduler *other = &Shared->schedulers[i];
		int theirs;

		if (other == me || !other->in_use || !other->wants)
			continue;
		theirs = count_executors(other->database);
		if (mine > theirs + 1 ||
			(theirs == 0 && TimestampDifferenceExceeds(other->wants_since, now, SLICE_MS) &&
			 TimestampDifferenceExceeds(me->granted, now, SLICE_MS)))
			yields = true;
	}
	for (i = 0; i < Shared->nexecutors && yields; i++)
		if (is_leaving(&Shared->executors[i]))
			yields = false;
	LWLockRelease(Shared->directory);
	return yields;
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

/* The task that a process runs, 0 if it is no executor or runs none. */
int64
shared_task_of(int proc)
{
	SharedExecutor *executor = shared_executor_of(proc);
	int64 id = 0;

	if (executor == NULL)
		return 0;
	LWLockAcquire(executor->lock, LW_SHARED);
	if (executor->taken != executor->done)
		id = executor->ring[executor->done % SHARED_RING].run.id;
	LWLockRelease(executor->lock);
	return id;
}

/* How many executors a role has, in all databases. */
int
shared_role_executors(Oid role)
{
	int count = 0;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors; i++)
		count += Shared->executors[i].in_use && Shared->executors[i].role == role;
	LWLockRelease(Shared->directory);
	return count;
}
