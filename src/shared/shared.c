/*
 * shared.c
 *		Shared memory of pg_task: its layout, and what belongs to no slot.
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
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/restore.h"
#include "shared/serving.h"
#include "shared/shared.h"
#include "shared/statistics.h"
#include "shared/waiters.h"

SharedState *Shared = NULL;

static Size
schedulers_size(void)
{
	return mul_size(max_worker_processes, sizeof(SharedScheduler));
}

static Size
executors_size(void)
{
	return mul_size(Settings.max_executors, sizeof(SharedExecutor));
}

static int
count_procs(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static Size
shared_size(void)
{
	Size size = MAXALIGN(sizeof(SharedState));

	size = add_size(size, MAXALIGN(schedulers_size()));
	size = add_size(size, MAXALIGN(executors_size()));
	size = add_size(size, MAXALIGN(mul_size(count_procs() + SHARED_HOLDS, sizeof(SharedHold))));
	return add_size(size, statistics_size());
}

void
shared_request_memory(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("pg_task", 2 + max_worker_processes + Settings.max_executors);
}

static void
initialize_memory(void)
{
	LWLockPadded *locks = GetNamedLWLockTranche("pg_task");
	char *memory = (char *) Shared;
	SchedulerFigure figure;
	int i;

	memset(Shared, 0, shared_size());
	Shared->directory = &locks++->lock;
	Shared->supervisor = SHARED_NO_PROC;
	for (i = 0; i < SHARED_SETTINGS; i++)
		pg_atomic_init_u32(&Shared->settings[i], 0);
	pg_atomic_init_u32(&Shared->settings_changes, 0);
	pg_atomic_init_u32(&Shared->databases_changes, 0);
	ConditionVariableInit(&Shared->vacated);
	waiters_init();
	if (!pg_strong_random(&Shared->seed, sizeof(Shared->seed)))
		Shared->seed = (uint64) GetCurrentTimestamp();
	Shared->restore = restore_number();
	serving_init();
	Shared->nprocs = count_procs();
	Shared->nschedulers = max_worker_processes;
	Shared->nexecutors = Settings.max_executors;
	memory += MAXALIGN(sizeof(SharedState));
	Shared->schedulers = (SharedScheduler *) memory;
	memory += MAXALIGN(schedulers_size());
	Shared->executors = (SharedExecutor *) memory;
	memory += MAXALIGN(executors_size());
	Shared->holds = (SharedHold *) memory;
	memory += MAXALIGN((count_procs() + SHARED_HOLDS) * sizeof(SharedHold));
	statistics_create(memory, &locks++->lock);
	for (i = 0; i < Shared->nschedulers; i++)
	{
		Shared->schedulers[i].lock = &locks++->lock;
		Shared->schedulers[i].proc = SHARED_NO_PROC;
		pg_atomic_init_u64(&Shared->schedulers[i].renewed, 0);
		pg_atomic_init_u64(&Shared->schedulers[i].idle_since, 0);
		for (figure = 0; figure < SCHEDULER_FIGURES; figure++)
			pg_atomic_init_u64(&Shared->schedulers[i].figures[figure], 0);
	}
	for (i = 0; i < Shared->nexecutors; i++)
	{
		Shared->executors[i].lock = &locks++->lock;
		Shared->executors[i].proc = SHARED_NO_PROC;
		pg_atomic_init_u32(&Shared->executors[i].workers, 0);
		activity_init(&Shared->executors[i].activity);
	}
}

/*
 * The postmaster, or a server in single-user mode, calls this when it exits, and the postmaster
 * when it is about to start all processes again.
 */
static void
leave_memory(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	serving_keep();
}

void
shared_attach_memory(void)
{
	bool found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	Shared = ShmemInitStruct("pg_task", shared_size(), &found);
	if (!found)
		initialize_memory();
	LWLockRelease(AddinShmemInitLock);
	if (!IsUnderPostmaster)
		on_shmem_exit(leave_memory, 0);
}

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
