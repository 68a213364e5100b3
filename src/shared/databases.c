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

#include "common/hashfn.h"
#include "storage/lwlock.h"

#include "compat.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"

/*
 * Return the place of a database in the index, or the empty place where it would be.  Half of the
 * index is empty, so the loop is short.
 */
static int
find_place(Oid database)
{
	int place = murmurhash32(database) % SHARED_INDEX;

	while (Shared->index[place] != 0 &&
		   Shared->databases[Shared->index[place] - 1].database != database)
		place = (place + 1) % SHARED_INDEX;
	return place;
}

/* Return the entry of a database, or NULL.  The caller holds the directory lock. */
SharedDatabase *
shared_database_find(Oid database)
{
	int number;

	Assert(LWLockHeldByMe(Shared->directory));
	number = Shared->index[find_place(database)];
	return number == 0 ? NULL : &Shared->databases[number - 1];
}

/*
 * Return a free entry, or NULL.  Bounded by SHARED_DATABASES: once for each new database.
 */
static SharedDatabase *
find_free_entry(void)
{
	int i;

	for (i = 0; i < SHARED_DATABASES; i++)
		if (!OidIsValid(Shared->databases[i].database))
			return &Shared->databases[i];
	return NULL;
}

/* Make the index again, once for each database that is removed.  Bounded as find_free_entry. */
static void
rebuild_index(void)
{
	int i;

	memset(Shared->index, 0, sizeof(Shared->index));
	for (i = 0; i < SHARED_DATABASES; i++)
		if (OidIsValid(Shared->databases[i].database))
			Shared->index[find_place(Shared->databases[i].database)] = i + 1;
}

/*
 * Add a database that is to have a scheduler, unless it is there already.  Returns false if no
 * entry is free.  Only the supervisor calls this.
 */
bool
shared_database_add(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(Shared->supervisor == COMPAT_MY_PROC);
	entry = shared_database_find(database);
	if (entry == NULL && (entry = find_free_entry()) != NULL)
	{
		memset(entry, 0, sizeof(SharedDatabase));
		entry->database = database;
		Shared->index[find_place(database)] = entry - Shared->databases + 1;
	}
	LWLockRelease(Shared->directory);
	return entry != NULL;
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
	{
		entry->database = InvalidOid;
		rebuild_index();
	}
	(void) executor_slots_forget(database);
	LWLockRelease(Shared->directory);
}

/*
 * The scheduler of this database has found that pg_task.enabled is off there: it gets none until
 * its settings change again.
 */
void
shared_database_disable(Oid database, uint32 settings)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
	{
		entry->disabled = true;
		entry->settings = settings;
	}
	LWLockRelease(Shared->directory);
}

/*
 * The scheduler of this database has found no task table, and is not to create one.  Returns true
 * if that is news.
 */
bool
shared_database_set_absent(Oid database)
{
	SharedDatabase *entry;
	bool news = false;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
	{
		news = !entry->absent;
		entry->absent = true;
		entry->relid = InvalidOid;
	}
	LWLockRelease(Shared->directory);
	return news;
}

/* Return what makes this database need a scheduler, as far as is known. */
SharedNeeds
shared_database_needs(Oid database)
{
	SharedNeeds needs = {.due = CLOCK_NEVER, .marked = CLOCK_LONG_AGO};
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(database);
	if (entry)
	{
		needs.known = true;
		needs.due = entry->due;
		needs.marked = entry->marked;
		needs.disabled =
			entry->disabled && entry->settings == shared_settings_of_database(database);
		needs.absent = entry->absent;
		needs.released = entry->barred && entry->barred_changes != shared_databases_changes();
	}
	LWLockRelease(Shared->directory);
	needs.disabled |= crash_holds(database) > 0;
	return needs;
}

/* Record whether the tasks of this database are held back.  Returns what was recorded before. */
bool
shared_database_set_away(Oid database, bool away)
{
	SharedDatabase *entry;
	bool before = false;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
	{
		before = entry->away;
		entry->away = away;
	}
	LWLockRelease(Shared->directory);
	return before;
}

/* Record the setting pg_task.owner_code of this database, as its scheduler has it. */
void
shared_database_set_owner_code(Oid database, bool allowed)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
		entry->owner_code = allowed;
	LWLockRelease(Shared->directory);
}

/* Return what was recorded; false if nothing was. */
bool
shared_database_owner_code(Oid database)
{
	SharedDatabase *entry;
	bool allowed;

	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(database);
	allowed = entry && entry->owner_code;
	LWLockRelease(Shared->directory);
	return allowed;
}

/* Record the last error of the scheduler of this database. */
void
shared_database_set_error(Oid database, const SharedError *error)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
		entry->error = *error;
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

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	if (entry == NULL || entry->marked.us != 0)
		return;
	entry->marked = clock_mono();
	if (Shared->nmarks < SHARED_DATABASES)
		Shared->marks[Shared->nmarks++] = database;
	else
		Shared->marks_lost = true;
	shared_wake(Shared->supervisor);
}

/*
 * Take the databases that were marked since the last call: at most SHARED_DATABASES.  *lost: there
 * were more, and any may be marked.  Only the supervisor calls this.
 */
int
shared_databases_take_marks(Oid *databases, bool *lost)
{
	int count;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Assert(Shared->supervisor == COMPAT_MY_PROC);
	count = Shared->nmarks;
	memcpy(databases, Shared->marks, count * sizeof(Oid));
	*lost = Shared->marks_lost;
	Shared->nmarks = 0;
	Shared->marks_lost = false;
	LWLockRelease(Shared->directory);
	return count;
}

/*
 * Return the table of a database of which the tasks that run at this start of the server are
 * planned; InvalidOid: none is known.
 */
Oid
shared_database_rebooted(Oid database)
{
	SharedDatabase *entry;
	Oid relid = InvalidOid;

	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(database);
	if (entry)
		relid = entry->rebooted;
	LWLockRelease(Shared->directory);
	return relid;
}

/* Record that they are. */
void
shared_database_set_rebooted(Oid database, Oid relid)
{
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
		entry->rebooted = relid;
	LWLockRelease(Shared->directory);
}

/*
 * The scheduler of a database has found this task table: it is known from now on.  Returns true if
 * that is news, or would be of a database that has no entry.
 */
bool
shared_database_set_relid(Oid database, Oid relid, Oid owner)
{
	SharedDatabase *entry;
	bool news = true;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = shared_database_find(database);
	if (entry)
	{
		news = entry->relid != relid;
		entry->relid = relid;
		entry->owner = owner;
	}
	LWLockRelease(Shared->directory);
	return news;
}

/*
 * Return the task table of a database, even while it waits for a place for its scheduler, or that
 * prepares the table again.  Then "owner" is set to the owner that the table had when it was found,
 * for the caller to compare; else to InvalidOid.
 */
Oid
shared_database_relid(Oid database, Oid *owner)
{
	Oid relid = shared_scheduler_relid(database);
	SharedDatabase *entry;

	*owner = InvalidOid;
	if (OidIsValid(relid))
		return relid;
	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(database);
	if (entry)
	{
		relid = entry->relid;
		*owner = entry->owner;
	}
	LWLockRelease(Shared->directory);
	return relid;
}
