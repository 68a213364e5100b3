/*
 * shared.c
 *		Shared memory of pg_task: what belongs to no slot.
 *
 * Slots are in slots.c, hints in hints.c, the databases in databases.c.  None of these files reads
 * a catalog or a task row, or starts or terminates a process.  They only wake processes.
 */
#include "postgres.h"

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
