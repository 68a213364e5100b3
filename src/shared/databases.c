/*
 * databases.c
 *		The databases that are to have a scheduler, and what is remembered of each.
 *
 * The supervisor adds and removes them.  Schedulers leave here what the supervisor and their
 * successors need, and commits mark a database that has no scheduler.
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
