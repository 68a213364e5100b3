/*
 * hold.c
 *		Databases that a command needs for itself.
 *
 * While a database is held, no process of pg_task connects to it, and those that are connected exit
 * as soon as they can.  A hold ends with its transaction.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "shared/hold.h"
#include "shared/shared.h"
#include "shared/slots.h"

/*
 * Ask all processes of pg_task in a database to exit as soon as they can.  The caller holds the
 * directory lock in exclusive mode.
 */
static void
clear_database(Oid database)
{
	SharedScheduler *scheduler = scheduler_slot_find(database);

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	if (scheduler)
		scheduler_slot_leave_locked(scheduler);
	executor_slots_leave(database);
}

/*
 * Copy a hold of this process to one of the additional entries, if one is free.  The caller holds
 * the directory lock in exclusive mode.
 */
static void
move_hold(const SharedHold *mine)
{
	SharedHold *vacant = NULL;
	int i;

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	for (i = Shared->nprocs; i < Shared->nprocs + SHARED_HOLDS; i++)
	{
		SharedHold *hold = &Shared->holds[i];

		if (hold->database == mine->database && hold->proc == mine->proc)
			return;
		if (vacant == NULL && !OidIsValid(hold->database))
			vacant = hold;
	}
	if (vacant == NULL)
		return;
	*vacant = *mine;
	Shared->nholds++;
}

/*
 * Keep the processes of pg_task out of a database, until hold_release or until this process exits.
 *
 * Every process has an entry of its own, so that no user can occupy all entries.  A transaction
 * that renames many databases may lose its earlier holds; its own locks still keep others out.
 */
void
hold_take(Oid database)
{
	SharedHold *hold = &Shared->holds[COMPAT_MY_PROC];

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (OidIsValid(hold->database) && hold->database != database)
		move_hold(hold);
	Shared->nholds += !OidIsValid(hold->database);
	hold->database = database;
	hold->proc = COMPAT_MY_PROC;
	clear_database(database);
	LWLockRelease(Shared->directory);
}

bool
hold_exists(Oid database)
{
	bool held;

	LWLockAcquire(Shared->directory, LW_SHARED);
	held = shared_database_is_held(database);
	LWLockRelease(Shared->directory);
	return held;
}

/* Is a process of pg_task that runs no task connected to this database? */
static bool
is_occupied(Oid database)
{
	bool occupied;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	occupied = scheduler_slot_find(database) != NULL;
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		occupied |= executor->database == database && executor_slot_has_process(executor) &&
					executor->taken == executor->done;
	}
	LWLockRelease(Shared->directory);
	return occupied;
}

/* Wait until no such process is connected, but at most "timeout" milliseconds. */
void
hold_wait(Oid database, int timeout)
{
	MonoTime end = clock_plus_ms(clock_mono(), timeout);
	uint32 wait_event = COMPAT_WAIT_EVENT("PgTaskDatabaseRelease");

	ConditionVariablePrepareToSleep(&Shared->vacated);
	while (is_occupied(database))
	{
		long left = clock_ms_until(clock_mono(), end);

		if (left <= 0)
			break;
		/* ask again: a process may have attached since the last time */
		LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
		clear_database(database);
		LWLockRelease(Shared->directory);
		(void) ConditionVariableTimedSleep(&Shared->vacated, left, wait_event);
	}
	ConditionVariableCancelSleep();
}

/* Release all holds of this process. */
void
hold_release(void)
{
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	for (i = 0; i < Shared->nprocs + SHARED_HOLDS; i++)
	{
		SharedHold *hold = &Shared->holds[i];

		if (!OidIsValid(hold->database) || hold->proc != COMPAT_MY_PROC)
			continue;
		hold->database = InvalidOid;
		Shared->nholds--;
	}
	LWLockRelease(Shared->directory);
	shared_databases_changed();
}
