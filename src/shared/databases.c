/*
 * databases.c
 *		The databases that are to have a scheduler, what is remembered of each, and those that a
 *		command needs for itself.
 *
 * The supervisor adds and removes them.  Schedulers leave here what the supervisor and their
 * successors need, and commits mark a database that has no scheduler.
 *
 * While a database is held, no process of pg_task connects to it, and those that are connected exit
 * as soon as they can.  A hold ends with its transaction.
 *
 * This file reads no catalog, and starts no process.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"

/* How long a command waits for the scheduler and the idle executors of a database to exit (ms). */
#define VACATE_MS 5000

/*
 * Return the entry of a database, or NULL; with InvalidOid, a free one.  The caller holds the
 * directory lock.
 */
SharedDatabase *
shared_database_find(Oid database)
{
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; i < Shared->ndatabases; i++)
		if (Shared->databases[i].database == database)
			return &Shared->databases[i];
	return NULL;
}

/*
 * Add a database that is to have a scheduler, unless it is there already.  NULL if no entry is
 * free.  Only the supervisor calls this.
 */
SharedDatabase *
shared_database_add(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(Shared->supervisor == COMPAT_MY_PROC);
	entry = shared_database_find(database);
	if (entry == NULL)
	{
		entry = shared_database_find(InvalidOid);
		if (entry == NULL && Shared->ndatabases < SHARED_DATABASES)
			entry = &Shared->databases[Shared->ndatabases++];
		if (entry)
		{
			memset(entry, 0, sizeof(SharedDatabase));
			entry->database = database;
		}
	}
	if (entry && entry->found.unserved)
		entry->found.error = (SharedError){0};
	if (entry)
		entry->found.unserved = false;
	LWLockRelease(Shared->directory);
	return entry;
}

/* Remove a database that is to have no scheduler.  Only the supervisor calls this. */
void
shared_database_remove(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(Shared->supervisor == COMPAT_MY_PROC);
	entry = shared_database_find(database);
	if (entry)
		entry->database = InvalidOid;
	(void) executor_slots_leave(database, true);
	LWLockRelease(Shared->directory);
}

/* Return what the schedulers of a database have found; zeroes if nothing is remembered. */
SharedFindings
shared_database_found(Oid database)
{
	SharedFindings found = {0};
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(database);
	if (entry)
		found = entry->found;
	LWLockRelease(Shared->directory);
	return found;
}

/*
 * Remember what the scheduler of a database has found.  Only that process calls this, and the
 * supervisor while there is none.
 */
void
shared_database_publish(Oid database, const SharedFindings *found)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
		entry->found = *found;
	LWLockRelease(Shared->directory);
}

/* Keep an error for pg_stat_task_scheduler.  Who may publish calls this. */
void
shared_database_report(Oid database, const char *error)
{
	int length = pg_mbcliplen(error, (int) strlen(error), SHARED_ERROR - 1);
	SharedFindings found = shared_database_found(database);

	found.error = (SharedError){.at = GetCurrentTimestamp()};
	memcpy(found.error.message, error, length);
	shared_database_publish(database, &found);
}

/*
 * Is this database to have no scheduler until its settings or pg_task.database have changed or it
 * is released?
 */
bool
shared_database_is_disabled(Oid database, const SharedFindings *found)
{
	return found->unserved ||
		   (found->disabled && found->settings == shared_settings_of_database(database)) ||
		   crash_holds(database) > 0;
}

/*
 * Record that something waits in a database that has no scheduler, and wake the supervisor, which
 * is to start one.  The caller holds the directory lock in exclusive mode.
 */
void
shared_database_mark(Oid database)
{
	SharedDatabase *entry = shared_database_find(database);

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	if (entry == NULL || entry->marked.us != 0)
		return;
	entry->marked = clock_mono();
	shared_wake(Shared->supervisor);
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
		scheduler_slot_leave_locked(scheduler);
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
