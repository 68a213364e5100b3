/*
 * shared.c
 *		Shared memory of pg_task: its layout.
 *
 * Slots are in slots.c, hints in hints.c, the databases in databases.c.  None of these files reads
 * a catalog or a task row, or starts or terminates a process.  They only wake processes.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "compat.h"
#include "settings.h"
#include "shared/restore.h"
#include "shared/serving.h"
#include "shared/shared.h"
#include "shared/slots.h"
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

static Size
prepared_size(void)
{
	return mul_size(max_prepared_xacts, sizeof(TransactionId));
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
	size = add_size(size, MAXALIGN(prepared_size()));
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
	Shared->prepared = (TransactionId *) memory;
	memory += MAXALIGN(prepared_size());
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

/*
 * Find the task that a process runs: its id, and the time that it was first planned for.  Returns
 * false if the process is not an executor or runs none.
 */
bool
shared_task_of(int proc, int64 *id, TimestampTz *planned)
{
	SharedExecutor *executor = executor_slot_of(proc);
	bool found;

	if (executor == NULL)
		return false;
	LWLockAcquire(executor->lock, LW_SHARED);
	found = executor->taken != executor->done;
	if (found)
	{
		const SharedTask *task = &executor->ring[(executor->taken - 1) % SHARED_RING];

		*id = task->run.id;
		*planned = task->planned;
	}
	LWLockRelease(executor->lock);
	return found;
}
