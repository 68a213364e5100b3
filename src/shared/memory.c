/*
 * memory.c
 *		The layout of shared memory, and what is done with it when the server starts and ends.
 *
 * This file only calls what the others have to initialize, load and save.
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/restore.h"
#include "shared/shared.h"
#include "shared/statistics.h"
#include "shared/waiters.h"

/*
 * The postmaster's copy of what outlives the shared memory: a crash does not change since when the
 * server runs tasks.
 */
static struct
{
	bool looked;
	bool recovers; /* when it was started */
	TimestampTz since;
} kept;

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
	if (!kept.looked)
		kept.recovers = restore_is_recovery();
	kept.looked = true;
	Shared->recovers = kept.recovers;
	pg_atomic_init_u64(&Shared->serving_since, (uint64) kept.since);
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
	kept.since = shared_serving_since();
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

/*
 * The supervisor calls this before there are schedulers.  Recovery has ended, in the second in
 * which the server was ready to write WAL.  That time is later if a whole segment has been written
 * since. The time of this call would not do, because a session may have planned a task before it.
 */
void
shared_begin_serving(void)
{
	XLogRecPtr lsn;
	TimestampTz since =
		Shared->recovers ? time_t_to_timestamptz(GetLastSegSwitchData(&lsn)) : PgStartTime;

	if (shared_serving_since() == 0)
		pg_atomic_write_u64(&Shared->serving_since, (uint64) since);
}
