/*
 * changes.c
 *		Whose settings have changed: counters in shared memory.
 *
 * A process that was connected before a change of its role's or its database's settings
 * finds another number than it saw then.  Changes count when they are committed; those of
 * prepared transactions are kept until then.  What is here reads no catalog.
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "shared/shared.h"

/*
 * The counter of a database or a role; the first one is for all.  Two may share one by
 * chance, but nobody can aim at another's: the seed is secret.
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

/* A number that is another when settings may have changed of this role or in this database. */
uint32
shared_settings(Oid database, Oid role)
{
	return read_counter(InvalidOid) + read_counter(database) + read_counter(role);
}

/* Settings of a database or a role, or of all of them, have changed. */
void
shared_settings_changed(Oid object)
{
	pg_atomic_fetch_add_u32(&Shared->settings[counter_of(object)], 1);
}

/* The entry of a prepared transaction, or a free one, or NULL.  The directory lock must be held. */
static SharedPrepared *
find_prepared(const char *gid, bool or_free)
{
	SharedPrepared *result = NULL;
	int i;

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
 * A transaction is prepared that changed settings of these.  Were there no free entry, the
 * commit of any transaction that is not known would count for all.
 */
void
shared_prepared_add(const char *gid, const Oid *objects, int count)
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
		memset(entry->counters, 0, sizeof(entry->counters));
		for (i = 0; i < count; i++)
			entry->counters[counter_of(objects[i]) / 8] |= 1 << (counter_of(objects[i]) % 8);
	}
	LWLockRelease(Shared->directory);
}

/* What the commit of this prepared transaction is to count; an empty gid: nothing. */
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
		prepared->counters[0] = 1;
	LWLockRelease(Shared->directory);
}

/* It is committed or rolled back: count, and forget it. */
void
shared_prepared_remove(const SharedPrepared *prepared, bool committed)
{
	SharedPrepared *entry;
	int i;

	for (i = 0; i < SHARED_SETTINGS && committed; i++)
		if (prepared->counters[i / 8] & (1 << (i % 8)))
			pg_atomic_fetch_add_u32(&Shared->settings[i], 1);
	if (prepared->gid[0] == '\0')
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	entry = find_prepared(prepared->gid, false);
	if (entry && entry->generation == prepared->generation)
		entry->gid[0] = '\0';
	LWLockRelease(Shared->directory);
}
