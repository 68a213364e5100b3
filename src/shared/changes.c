/*
 * changes.c
 *		Change counters of the settings of databases and roles, and what the configuration says
 *		of tasks, in shared memory.
 *
 * A process that connected before its role's or its database's settings were changed finds another
 * number than it saw then.  A change is counted when it is committed; the changes of a prepared
 * transaction, also of databases and roles, are kept until COMMIT PREPARED.  What a transaction has
 * changed that was prepared before the server was started or promoted is not known: its end counts
 * as a change of everything.  This file reads no catalog.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "common/hashfn.h"
#include "storage/proc.h"
#include "storage/procarray.h"

#include "shared/shared.h"

/*
 * Return the counter of a database or a role; the first counter (InvalidOid) is for all of them.
 * Two objects may share a counter by chance, but no user can choose an object that shares
 * another's: the seed is secret.
 */
static uint32
counter_of(Oid object)
{
	if (!OidIsValid(object))
		return 0;
	return 1 + (uint32) (hash_bytes_uint32_extended(object, Shared->seed) % (SHARED_SETTINGS - 1));
}

static uint32
read_counter(Oid object)
{
	return pg_atomic_read_u32(&Shared->settings[counter_of(object)]);
}

/*
 * Change counter; differs after ALTER ROLE/DATABASE SET that may affect this role in this database.
 */
uint32
shared_settings(Oid database, Oid role)
{
	return read_counter(InvalidOid) + read_counter(database) + read_counter(role);
}

/* Change counter; differs after ALTER DATABASE SET of this database. */
uint32
shared_settings_of_database(Oid database)
{
	return read_counter(database);
}

/* Change counter; differs after any ALTER ROLE/DATABASE SET. */
uint32
shared_settings_changes(void)
{
	return pg_atomic_read_u32(&Shared->settings_changes);
}

static void
increment_counter(int number)
{
	pg_atomic_fetch_add_u32(&Shared->settings[number], 1);
	pg_atomic_fetch_add_u32(&Shared->settings_changes, 1);
}

/* Count a change of the settings of a database or a role; InvalidOid: of all of them. */
void
shared_settings_changed(Oid object)
{
	increment_counter((int) counter_of(object));
}

/*
 * The supervisor publishes what the configuration says.  A session does not know that if it has set
 * something else.
 */
void
shared_publish_configured(const SharedConfigured *configured)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->configured = *configured;
	LWLockRelease(Shared->directory);
}

/* Return what the configuration says; zones are empty before the supervisor has started. */
SharedConfigured
shared_configured(void)
{
	SharedConfigured configured;

	LWLockAcquire(Shared->directory, LW_SHARED);
	configured = Shared->configured;
	LWLockRelease(Shared->directory);
	return configured;
}

/*
 * Find the entry of a prepared transaction; with "or_free", otherwise a free one; otherwise NULL.
 * The caller holds the directory lock.
 */
static SharedPrepared *
find_prepared(const char *gid, bool or_free)
{
	SharedPrepared *result = NULL;
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; i < Shared->nprepared; i++)
	{
		SharedPrepared *entry = &Shared->prepared[i];

		if (strcmp(entry->gid, gid) == 0)
			return entry;
		if (or_free && result == NULL && entry->gid[0] == '\0')
			result = entry;
	}
	return result;
}

/*
 * Add a prepared transaction that changed the settings of these objects; "databases": it changed
 * databases or roles.  If no entry is free, prepared_lost is set: from then on COMMIT PREPARED of a
 * transaction without an entry counts as a change of all settings, databases and roles.
 */
void
shared_prepared_add(const char *gid, const Oid *objects, int count, bool databases)
{
	SharedPrepared *entry;
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = find_prepared(gid, true);
	if (entry == NULL || gid[0] == '\0')
		Shared->prepared_lost = true;
	else
	{
		entry->generation++;
		strlcpy(entry->gid, gid, GIDSIZE);
		entry->databases = databases;
		memset(entry->counters, 0, sizeof(entry->counters));
		for (i = 0; i < count; i++)
			entry->counters[counter_of(objects[i]) / 8] |= 1 << (counter_of(objects[i]) % 8);
	}
	LWLockRelease(Shared->directory);
}

/* It counts as a change of all settings, databases and roles. */
static void
set_all(SharedPrepared *prepared)
{
	prepared->databases = true;
	memset(prepared->counters, 0xff, sizeof(prepared->counters));
}

/*
 * Copy the entry of a prepared transaction: the counters that its commit is to increment.  An empty
 * gid means that there is no entry.
 */
void
shared_prepared_find(const char *gid, SharedPrepared *prepared)
{
	SharedPrepared *entry;

	memset(prepared, 0, sizeof(*prepared));
	if (gid[0] == '\0')
		return;
	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = find_prepared(gid, false);
	if (entry)
		*prepared = *entry;
	else if (Shared->prepared_lost)
		set_all(prepared);
	LWLockRelease(Shared->directory);
}

/* Count the changes of a prepared transaction. */
static void
increment_counters(const SharedPrepared *prepared)
{
	bool any = false;
	int i;

	for (i = 0; i < SHARED_SETTINGS; i++)
		if (prepared->counters[i / 8] & (1 << (i % 8)))
		{
			increment_counter(i);
			any = true;
		}
	if (prepared->databases)
		shared_databases_changed();
	else if (any)
		shared_wake_supervisor();
}

/*
 * The prepared transaction was committed or rolled back: increment its counters if it was
 * committed, and remove its entry.
 */
void
shared_prepared_remove(const SharedPrepared *prepared, bool committed)
{
	SharedPrepared *entry;

	if (committed)
		increment_counters(prepared);
	if (prepared->gid[0] == '\0')
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = find_prepared(prepared->gid, false);
	if (entry && entry->generation == prepared->generation)
		entry->gid[0] = '\0';
	LWLockRelease(Shared->directory);
}

/*
 * Remember which transactions are prepared: those from before the start or the promotion have no
 * entry.  The first supervisor calls this after recovery, before processes are started that read
 * settings.
 */
void
shared_prepared_recovered(void)
{
	int count = 0;
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	for (i = 0; i < max_prepared_xacts && Shared->nrecovered < 0; i++)
		if (TransactionIdIsValid(PreparedXactProcs[i].xid))
			Shared->recovered[count++] = PreparedXactProcs[i].xid;
	if (Shared->nrecovered < 0)
		Shared->nrecovered = count;
	LWLockRelease(Shared->directory);
}

/* Remove those from the list that have ended.  Returns whether there are any. */
static bool
remove_recovered(void)
{
	int left = 0;
	bool any;
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	for (i = 0; i < Shared->nrecovered; i++)
		if (TransactionIdIsInProgress(Shared->recovered[i]))
			Shared->recovered[left++] = Shared->recovered[i];
	any = left < Shared->nrecovered;
	Shared->nrecovered = Min(Shared->nrecovered, left);
	LWLockRelease(Shared->directory);
	return any;
}

/*
 * A prepared transaction was committed or rolled back.  The end of one that has no entry, because
 * it was prepared before the start or the promotion, counts as a change of all settings, databases
 * and roles.
 */
void
shared_prepared_check(void)
{
	SharedPrepared all;

	if (Shared->nrecovered <= 0 || !remove_recovered())
		return;
	set_all(&all);
	increment_counters(&all);
}
