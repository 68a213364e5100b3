/*
 * shared.c
 *		Shared memory of pg_task: what belongs to no slot.
 *
 * Slots are in slots.c, hints in hints.c, the databases in databases.c.  None of these files reads
 * a catalog or a task row, or starts or terminates a process.  They only wake processes.
 *
 * There are change counters of the settings of databases and roles.  A process that connected
 * before its role's or its database's settings were changed finds another number than it saw then.
 * A change is counted when it is committed, but for what a prepared transaction has changed.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "compat.h"
#include "shared/shared.h"

SharedState *Shared = NULL;

/* For functions that SQL calls and that need shared memory: raise an error if there is none. */
void
shared_require(void)
{
	if (Shared == NULL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("pg_task is not running on this server"),
						errhint("Add pg_task to \"shared_preload_libraries\" in postgresql.conf,"
								" and restart the server.")));
}

/*
 * Wake a process.  The number may be stale: then an unrelated process finds its latch set without a
 * reason, which every process must tolerate.
 */
void
shared_wake(int proc)
{
	if (proc != SHARED_NO_PROC)
		SetLatch(&GetPGProcByNumber(proc)->procLatch);
}

/*
 * Databases, roles or holds have changed: the supervisor is to read again which databases there
 * are.  The caller must not hold the directory lock.
 */
void
shared_databases_changed(void)
{
	pg_atomic_fetch_add_u32(&Shared->databases_changes, 1);
	shared_wake_supervisor();
}

/* Return the counter of such changes. */
uint32
shared_databases_changes(void)
{
	return pg_atomic_read_u32(&Shared->databases_changes);
}

/* Wake the supervisor.  The caller must not hold the directory lock. */
void
shared_wake_supervisor(void)
{
	int proc;

	Assert(!LWLockHeldByMe(Shared->directory));
	LWLockAcquire(Shared->directory, LW_SHARED);
	proc = Shared->supervisor;
	LWLockRelease(Shared->directory);
	shared_wake(proc);
}

/*
 * Set whether more databases need a scheduler than there are places.  If so, schedulers report from
 * now on whether they are idle.  Only the supervisor calls this.
 */
void
shared_crowd(bool crowded)
{
	int i;

	Assert(Shared->supervisor == COMPAT_MY_PROC);
	if (Shared->crowded == crowded) /* read without the lock: only the supervisor writes it */
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->crowded = crowded;
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		pg_atomic_write_u64(&scheduler->idle_since, 0);
		if (scheduler->state != SCHEDULER_FREE)
			shared_wake(scheduler->proc);
	}
	LWLockRelease(Shared->directory);
}

/* Is this database held?  The caller holds the directory lock. */
bool
shared_database_is_held(Oid database)
{
	bool held = false;
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; Shared->nholds > 0 && i < Shared->nprocs + SHARED_HOLDS && !held; i++)
		held = Shared->holds[i].database == database;
	return held;
}

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

/* Count a change of the settings of a database or a role; InvalidOid: of all of them. */
void
shared_settings_changed(Oid object)
{
	pg_atomic_fetch_add_u32(&Shared->settings[counter_of(object)], 1);
	pg_atomic_fetch_add_u32(&Shared->settings_changes, 1);
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
