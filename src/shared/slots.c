/*
 * slots.c
 *		The life of a slot: from its reservation to its release.
 *
 * This file alone changes the state of a slot.  Each edge is a function, which asserts the locks
 * that are held and the state that it leaves.
 *
 * A scheduler's slot changes its state under the directory lock in exclusive mode.
 *
 *   from                 to        edge                       by
 *   FREE                 STARTING  scheduler_slot_reserve     supervisor
 *   STARTING             RUNNING   scheduler_slot_attach      the scheduler
 *   STARTING, RUNNING    LEAVING   scheduler_slot_leave       supervisor, scheduler, backend (hold)
 *   LEAVING, no process  FREE      scheduler_slot_attach      the scheduler, which exits
 *   RUNNING, LEAVING     FREE      scheduler_slot_release     the scheduler, when it exits
 *   STARTING, LEAVING    FREE      scheduler_slot_withdraw    supervisor; no process has attached
 *
 * An executor's slot changes its state under the directory lock and its own lock, both in exclusive
 * mode.  So the state may be read under either.
 *
 *   from                 to        edge                       by
 *   FREE                 STARTING  executor_slot_reserve      scheduler
 *   GONE                 STARTING  executor_slot_reserve      scheduler of another database
 *   STARTING             READY     executor_slot_connected    the executor
 *   STARTING, READY      LEAVING   executor_slot_leave        scheduler
 *   STARTING, READY      LEAVING   executor_slots_leave       scheduler, supervisor, backend (hold)
 *   READY                LEAVING   executor_slot_retire       the executor, when it is idle
 *   any with a process   FREE      executor_slot_release      the executor, when it exits
 *   any with a process   GONE      executor_slot_release      the same, with tasks in its ring
 *   GONE                 FREE      executor_slot_forget       scheduler, after it has reaped
 *   STARTING, LEAVING    FREE      executor_slot_forget       scheduler; no process has attached
 *   GONE                 FREE      executor_slots_leave       scheduler, supervisor
 *
 * A request to exit, or to forget, that finds another state comes too late and changes nothing.
 *
 * Facts beside the state: "proc" is set from executor_slot_attach or scheduler_slot_attach until
 * the process exits, and "pid" of an executor from executor_slot_connected on.  Whether an executor
 * runs a task is in its ring.
 *
 * While a database is held, because a command needs it for itself, no process of pg_task connects
 * to it, and those that are connected exit as soon as they can.  A hold ends with its transaction.
 *
 * This file starts and terminates no process.  It only wakes them.
 */
#include "postgres.h"

#include <signal.h>

#include "compat.h"
#include "shared/slots.h"

/* How long a command waits for the scheduler and the idle executors of a database to exit (ms). */
#define VACATE_MS 5000

SharedExecutor *MyExecutor = NULL;

/*
 * A process has left a database, or an isolated task has ended: wake those that wait for a free
 * executor, for such an end, or for the database to be empty.  The caller holds the directory lock.
 */
void
slots_notify_vacated(void)
{
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	ConditionVariableBroadcast(&Shared->vacated);
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		if (scheduler->state != SCHEDULER_FREE &&
			(scheduler->wants || scheduler->wants_isolated || OidIsValid(scheduler->wants_role)))
			shared_wake(scheduler->proc);
	}
}

static void
set_scheduler_state(SharedScheduler *slot, SchedulerState state)
{
	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	slot->state = state;
}

/* Return the slot of a database's scheduler, or NULL.  The caller holds the directory lock. */
SharedScheduler *
scheduler_slot_find(Oid database)
{
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *slot = &Shared->schedulers[i];

		if (slot->state != SCHEDULER_FREE && slot->database == database)
			return slot;
	}
	return NULL;
}

/* Is this database held?  The caller holds the directory lock. */
bool
shared_database_is_held(Oid database)
{
	bool held = false;
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; Shared->nholds > 0 && i < Shared->nprocs && !held; i++)
		held = Shared->holds[i] == database;
	return held;
}

/*
 * Reserve a slot for the scheduler of a database.  NULL if the database has one already or is held,
 * or if no slot is free.  Only the supervisor calls this.
 */
SharedScheduler *
scheduler_slot_reserve(Oid database, Oid user)
{
	SharedScheduler *slot = NULL;
	SharedDatabase *entry;
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(Shared->supervisor == COMPAT_MY_PROC);
	if (scheduler_slot_find(database) == NULL && !shared_database_is_held(database))
		for (i = 0; i < Shared->nschedulers && slot == NULL; i++)
			if (Shared->schedulers[i].state == SCHEDULER_FREE)
				slot = &Shared->schedulers[i];
	if (slot)
	{
		Assert(slot->proc == SHARED_NO_PROC);
		slot->generation++;
		slot->database = database;
		slot->user = user;
		slot->asked = slot->wants = slot->told = false;
		slot->isolated = slot->wants_isolated = slot->innocent = false;
		slot->wants_role = InvalidOid;
		slot->granted = CLOCK_LONG_AGO;
		pg_atomic_write_u64(&slot->renewed, 0);
		pg_atomic_write_u64(&slot->idle_since, 0);
		slot->relid = slot->queue_relid = InvalidOid;
		slot->events = 0; /* it begins with a scan */
		slot->nhints = 0;
		slot->watched.count = 0;
		slot->looks = DT_NOEND;
		set_scheduler_state(slot, SCHEDULER_STARTING);
		entry = shared_database_find(database);
		if (entry)
		{
			entry->marked = CLOCK_LONG_AGO;
			entry->found.disabled = false; /* it looks again */
			entry->found.due = 0;		   /* long ago, if it does not say */
		}
	}
	LWLockRelease(Shared->directory);
	return slot;
}

/*
 * Free the slot of a scheduler, and keep what its successor and the supervisor need.  The caller
 * holds the directory lock in exclusive mode.
 *
 * Executors that have exited with tasks in their rings since the last reap are forgotten: the next
 * scheduler finds these tasks in the table, in state WORK.  The other executors are asked to exit
 * when their rings are empty, because the database may have no scheduler any more, or get none
 * soon.
 */
static void
free_scheduler(SharedScheduler *slot)
{
	bool forgotten = executor_slots_leave(slot->database, true);

	Assert(slot->state != SCHEDULER_FREE);
	slot->asked = slot->state == SCHEDULER_LEAVING;
	set_scheduler_state(slot, SCHEDULER_FREE);
	slot->proc = SHARED_NO_PROC;
	/* what the scheduler has not taken */
	if (forgotten || slot->events != 0 || slot->nhints > 0 || slot->watched.count > 0)
		shared_database_mark(slot->database);
	slots_notify_vacated();
	shared_wake(Shared->supervisor);
}

/*
 * Attach this process to the scheduler slot that was reserved for it.  NULL if it came too late, or
 * if it was asked to exit before it came; in the second case it frees the slot itself, because the
 * supervisor may have exited in the meantime.
 */
SharedScheduler *
scheduler_slot_attach(int number, uint32 generation)
{
	SharedScheduler *slot = &Shared->schedulers[number];
	SharedScheduler *me = NULL;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (slot->generation == generation && slot->proc == SHARED_NO_PROC)
	{
		if (slot->state == SCHEDULER_STARTING)
		{
			set_scheduler_state(slot, SCHEDULER_RUNNING);
			slot->proc = COMPAT_MY_PROC;
			me = slot;
		}
		else if (slot->state == SCHEDULER_LEAVING)
			free_scheduler(slot);
	}
	LWLockRelease(Shared->directory);
	return me;
}

/* Ask a scheduler to exit.  The caller holds the directory lock in exclusive mode. */
static void
leave_scheduler(SharedScheduler *slot)
{
	if (slot->state == SCHEDULER_STARTING || slot->state == SCHEDULER_RUNNING)
		set_scheduler_state(slot, SCHEDULER_LEAVING);
	shared_wake(slot->proc);
}

/*
 * Ask a scheduler to exit.  The scheduler calls this, too, when it exits for another reason: then
 * its exit is in order, and the supervisor starts the next one without delay.
 */
void
scheduler_slot_leave(SharedScheduler *slot)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	leave_scheduler(slot);
	LWLockRelease(Shared->directory);
}

/* This scheduler exits: release its slot. */
void
scheduler_slot_release(SharedScheduler *me)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(me->state == SCHEDULER_RUNNING || me->state == SCHEDULER_LEAVING);
	Assert(me->proc == COMPAT_MY_PROC);
	free_scheduler(me);
	LWLockRelease(Shared->directory);
}

/*
 * The process of a reservation was never started, or has ended.  If it has not released its slot,
 * then it has not attached either.  Only the supervisor calls this.
 */
void
scheduler_slot_withdraw(SharedScheduler *slot, uint32 generation)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(Shared->supervisor == COMPAT_MY_PROC);
	if (slot->state != SCHEDULER_FREE && slot->generation == generation)
	{
		Assert(slot->proc == SHARED_NO_PROC && slot->state != SCHEDULER_RUNNING);
		free_scheduler(slot);
	}
	LWLockRelease(Shared->directory);
}

static void
set_executor_state(SharedExecutor *slot, ExecutorState state)
{
	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	Assert(LWLockHeldByMeInMode(slot->lock, LW_EXCLUSIVE));
	slot->state = state;
}

/*
 * Reserve a slot for an executor of this role in this database: a free one, or one with tasks of an
 * executor that has exited, if its database has no scheduler now: the next one finds these tasks in
 * the table.  NULL if there is none.  Only the scheduler of the database calls this; it holds the
 * directory lock in exclusive mode.
 *
 * The slot's lock keeps out a scheduler that still believes in the former use: it compares the
 * generation under that lock alone.  The state is set last, because the postmaster reads the slot
 * without a lock if this process crashes here.
 */
SharedExecutor *
executor_slot_reserve(Oid database, Oid role, MonoTime now)
{
	SharedExecutor *slot = NULL;
	int i;

	for (i = 0; i < Shared->nexecutors && (slot == NULL || slot->state != EXECUTOR_FREE); i++)
	{
		SharedExecutor *other = &Shared->executors[i];

		if (other->state == EXECUTOR_FREE || (slot == NULL && other->state == EXECUTOR_GONE &&
											  scheduler_slot_find(other->database) == NULL))
			slot = other;
	}
	if (slot == NULL)
		return NULL;
	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	Assert(slot->proc == SHARED_NO_PROC);
	slot->generation++;
	slot->database = database;
	slot->role = role;
	slot->had_pid = slot->pid != 0;
	slot->pid = 0;
	slot->reserved = slot->batches = slot->cancel_sent = slot->quit = false;
	slot->started = slot->idle_since = now;
	slot->failure.sqlstate[0] = '\0';
	slot->failure.left = TASK_LEFT_ERROR;
	pg_atomic_write_u32(&slot->workers, 0);
	slot->assigned = slot->taken = slot->done = slot->notify_at = 0;
	set_executor_state(slot, EXECUTOR_STARTING);
	LWLockRelease(slot->lock);
	return slot;
}

/* An edge begins: acquire both locks. */
static void
lock_executor(SharedExecutor *slot)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
}

/* An edge that wakes no process ends. */
static void
unlock_executor(SharedExecutor *slot)
{
	LWLockRelease(slot->lock);
	LWLockRelease(Shared->directory);
}

/* Attach this process to the executor slot that was reserved for it.  NULL if it came too late. */
SharedExecutor *
executor_slot_attach(int number, uint32 generation)
{
	SharedExecutor *slot = &Shared->executors[number];
	bool mine;

	lock_executor(slot);
	mine = (slot->state == EXECUTOR_STARTING || slot->state == EXECUTOR_LEAVING) &&
		   slot->proc == SHARED_NO_PROC && slot->generation == generation;
	if (mine)
		slot->proc = COMPAT_MY_PROC;
	unlock_executor(slot);
	return mine ? slot : NULL;
}

/* This executor is connected: tasks may be assigned to it, unless it was asked to exit. */
void
executor_slot_connected(SharedExecutor *me)
{
	lock_executor(me);
	Assert(me->state == EXECUTOR_STARTING || me->state == EXECUTOR_LEAVING);
	Assert(me->proc == COMPAT_MY_PROC);
	me->pid = MyProcPid;
	me->idle_since = clock_mono();
	if (me->state == EXECUTOR_STARTING)
		set_executor_state(me, EXECUTOR_READY);
	unlock_executor(me);
}

/* Ask an executor to exit when its ring is empty.  The caller holds both locks. */
void
executor_slot_leave_locked(SharedExecutor *slot)
{
	if (slot->state == EXECUTOR_STARTING || slot->state == EXECUTOR_READY)
		set_executor_state(slot, EXECUTOR_LEAVING);
	shared_wake(slot->proc);
}

/* Ask the executor of a reservation to exit when its ring is empty. */
void
executor_slot_leave(SharedExecutor *slot, uint32 generation)
{
	lock_executor(slot);
	if (slot->generation == generation)
		executor_slot_leave_locked(slot);
	unlock_executor(slot);
}

/*
 * Ask the executors of a database to exit when their rings are empty.  "forget": no scheduler of
 * the database will reap those that have exited with tasks in their rings, so free their slots.
 * Returns whether there were any.  The caller holds the directory lock in exclusive mode.
 */
bool
executor_slots_leave(Oid database, bool forget)
{
	bool forgotten = false;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *slot = &Shared->executors[i];

		if (slot->state == EXECUTOR_FREE || slot->database != database)
			continue;
		LWLockAcquire(slot->lock, LW_EXCLUSIVE);
		executor_slot_leave_locked(slot);
		if (forget && slot->state == EXECUTOR_GONE)
		{
			set_executor_state(slot, EXECUTOR_FREE);
			forgotten = true;
		}
		LWLockRelease(slot->lock);
	}
	return forgotten;
}

/*
 * This executor wants to exit, because it has been idle for long enough or was asked to: from now
 * on nothing is assigned to it.  False if there is a task in its ring.
 */
bool
executor_slot_retire(SharedExecutor *me)
{
	bool idle;

	lock_executor(me);
	Assert(me->state == EXECUTOR_READY || me->state == EXECUTOR_LEAVING);
	Assert(me->proc == COMPAT_MY_PROC);
	idle = me->taken == me->assigned;
	if (idle)
		set_executor_state(me, EXECUTOR_LEAVING);
	unlock_executor(me);
	return idle;
}

/*
 * This executor exits: release its slot.  If tasks are left in its ring, the slot stays reserved
 * (GONE) until a scheduler has reaped them.  None does if the database is to have no scheduler, nor
 * one that has not attached yet, for it finds the tasks in the table.
 */
void
executor_slot_release(SharedExecutor *me)
{
	SharedScheduler *scheduler;
	bool gone;

	lock_executor(me);
	Assert(executor_slot_has_process(me) && me->proc == COMPAT_MY_PROC);
	scheduler = scheduler_slot_find(me->database);
	gone = me->done != me->assigned && (scheduler ? scheduler->proc != SHARED_NO_PROC
												  : shared_database_find(me->database) != NULL);
	me->proc = SHARED_NO_PROC;
	set_executor_state(me, gone ? EXECUTOR_GONE : EXECUTOR_FREE);
	LWLockRelease(me->lock);
	if (scheduler)
		shared_wake(scheduler->proc);
	else if (gone)
		shared_database_mark(me->database);
	slots_notify_vacated();
	LWLockRelease(Shared->directory);
}

/*
 * Free the slot of an executor that its scheduler has reaped, or whose process never attached.  The
 * generation is that of the scheduler's reservation: the process may have released the slot since
 * the scheduler looked, and another scheduler may have reserved it.
 */
void
executor_slot_forget(SharedExecutor *slot, uint32 generation)
{
	lock_executor(slot);
	if (slot->generation == generation && slot->state != EXECUTOR_FREE &&
		slot->proc == SHARED_NO_PROC)
		set_executor_state(slot, EXECUTOR_FREE);
	LWLockRelease(slot->lock);
	slots_notify_vacated();
	LWLockRelease(Shared->directory);
}

/* Return the slot of the executor of which this process is a parallel worker; NULL: of none. */
SharedExecutor *
executor_slot_of_leader(void)
{
	const PGPROC *leader = MyProc->lockGroupLeader;
	SharedExecutor *result = NULL;
	int i;

	if (leader == NULL)
		return NULL;
	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors && result == NULL; i++)
		if (Shared->executors[i].state != EXECUTOR_FREE &&
			Shared->executors[i].proc == leader - ProcGlobal->allProcs)
			result = &Shared->executors[i];
	LWLockRelease(Shared->directory);
	return result;
}

/*
 * An executor is to end a run, as a flag of the task in its ring says: if that is the running one,
 * send SIGINT.  The flag tells the executor that the signal is for this task and no other.  The
 * release of a slot changes "proc" under the slot's lock, too, so the signal cannot reach another
 * process.
 */
void
executor_slot_signal(SharedExecutor *slot, uint32 position)
{
	Assert(LWLockHeldByMeInMode(slot->lock, LW_EXCLUSIVE));
	if (position + 1 != slot->taken || slot->proc == SHARED_NO_PROC)
		return;
	slot->cancel_sent = true;
	(void) kill(slot->pid, SIGINT);
}

/*
 * For which role does this executor run the task of this table in this attempt, or (-1) in any?
 * InvalidOid: it does not.  If it is "role", interrupt the run.
 */
Oid
executor_slot_interrupt(SharedExecutor *slot, Oid relid, int64 id, int attempt, Oid role)
{
	SharedTask *task;
	Oid found = InvalidOid;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	task = &slot->ring[(slot->taken - 1) % SHARED_RING];
	if (slot->database == MyDatabaseId && slot->proc != SHARED_NO_PROC &&
		slot->taken != slot->done && task->relid == relid && task->run.id == id &&
		(attempt < 0 || task->run.attempt == attempt))
		found = task->role;
	if (OidIsValid(found) && found == role)
	{
		task->interrupted = true;
		executor_slot_signal(slot, slot->taken - 1);
	}
	LWLockRelease(slot->lock);
	return found;
}

/*
 * Find the task that this process runs, or whose parallel worker it is: its id, and the time that
 * it was first planned for.  Returns false if there is none.
 */
bool
executor_slot_own_task(int64 *id, TimestampTz *planned)
{
	SharedExecutor *executor = MyExecutor;
	bool found;

	if (executor == NULL && Shared)
		executor = executor_slot_of_leader();
	if (executor == NULL)
		return false;
	LWLockAcquire(executor->lock, LW_SHARED);
	found = executor->taken != executor->done;
	if (found)
	{
		const SharedTask *task = &executor->ring[(executor->taken - 1) % SHARED_RING];

		*id = task->run.id;
		*planned = task->planned;
	}
	LWLockRelease(executor->lock);
	return found;
}

/* ---- holds ---- */

/*
 * Ask all processes of pg_task in a database to exit as soon as they can.  Returns whether there is
 * one that runs no task.  The caller holds the directory lock in exclusive mode.
 */
static bool
clear_database(Oid database)
{
	SharedScheduler *scheduler = scheduler_slot_find(database);
	bool occupied = scheduler != NULL;
	int i;

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	if (scheduler)
		leave_scheduler(scheduler);
	(void) executor_slots_leave(database, false);
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		occupied |= executor->database == database && executor_slot_has_process(executor) &&
					executor->taken == executor->done;
	}
	return occupied;
}

/*
 * Keep the processes of pg_task out of a database, until hold_release or until this process exits.
 * Wait until none that runs no task is connected to it, but not for ever.
 *
 * Every process has one entry, so that no user can occupy all entries.  A transaction that renames
 * several databases holds the last one; its locks keep others out of the rest.
 */
void
hold_take(Oid database)
{
	MonoTime end = clock_plus_ms(clock_mono(), VACATE_MS);
	uint32 wait_event = COMPAT_WAIT_EVENT("PgTaskDatabaseRelease");
	Oid *hold = &Shared->holds[COMPAT_MY_PROC];

	ConditionVariablePrepareToSleep(&Shared->vacated);
	for (;;)
	{
		long left = clock_ms_until(clock_mono(), end);
		bool occupied;

		LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
		Shared->nholds += !OidIsValid(*hold);
		*hold = database;
		/* each time: a process may have attached since the last one */
		occupied = clear_database(database);
		LWLockRelease(Shared->directory);
		if (!occupied || left <= 0)
			break;
		(void) ConditionVariableTimedSleep(&Shared->vacated, left, wait_event);
	}
	ConditionVariableCancelSleep();
}

void
hold_release(void)
{
	Oid *hold = &Shared->holds[COMPAT_MY_PROC];

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->nholds -= OidIsValid(*hold);
	*hold = InvalidOid;
	LWLockRelease(Shared->directory);
	shared_databases_changed();
}
