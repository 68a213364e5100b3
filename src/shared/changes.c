/*
 * changes.c
 *		Change counters of the settings of databases and roles, and what the configuration says
 *		of tasks, in shared memory.
 *
 * A process that connected before its role's or its database's settings were changed finds another
 * number than it saw then.  A change is counted when it is committed.  The end of a prepared
 * transaction that has changed settings, databases or roles counts as a change of everything; so
 * does that of one that was prepared before the server was started or promoted.  This file reads no
 * catalog.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
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

/* Count a change of all settings, databases and roles. */
static void
count_all(void)
{
	int i;

	for (i = 0; i < SHARED_SETTINGS; i++)
		increment_counter(i);
	shared_databases_changed();
}

/* Remove the transactions that have ended from the list.  Returns whether there were any. */
static bool
remove_ended(void)
{
	int left = 0;
	bool any;
	int i;

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	for (i = 0; i < Shared->nprepared; i++)
		if (TransactionIdIsInProgress(Shared->prepared[i]))
			Shared->prepared[left++] = Shared->prepared[i];
	any = left < Shared->nprepared;
	Shared->nprepared = left;
	return any;
}

/* The caller holds the directory lock.  The list has room for all that can be prepared. */
static void
add_prepared(TransactionId xid)
{
	if (Shared->nprepared < max_prepared_xacts)
		Shared->prepared[Shared->nprepared++] = xid;
}

/* This transaction has changed settings, databases or roles, and is prepared. */
void
shared_prepared_add(void)
{
	bool ended;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	ended = remove_ended();
	add_prepared(GetTopTransactionIdIfAny());
	LWLockRelease(Shared->directory);
	if (ended)
		count_all();
}

/*
 * Take those for such transactions that were prepared before the start or the promotion.  The
 * supervisor calls this when it starts, before processes are started that read settings.
 */
void
shared_prepared_recovered(void)
{
	int i;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	for (i = 0; i < max_prepared_xacts && !Shared->prepared_known; i++)
		if (TransactionIdIsValid(PreparedXactProcs[i].xid))
			add_prepared(PreparedXactProcs[i].xid);
	Shared->prepared_known = true;
	LWLockRelease(Shared->directory);
}

/*
 * A prepared transaction was committed or rolled back.  If the list was empty at its end, it was
 * not one of these.
 */
void
shared_prepared_ended(void)
{
	bool ended;

	if (Shared->nprepared == 0)
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	ended = remove_ended();
	LWLockRelease(Shared->directory);
	if (ended)
		count_all();
}
