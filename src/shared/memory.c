/*
 * memory.c
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

#include <unistd.h>

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/syncrep.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/statistics.h"
#include "shared/takers.h"

/* The number of the last restore. */
#define RESTORE_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/pg_task.restored"

SharedState *Shared = NULL;

/*
 * The postmaster's copy of what outlives the shared memory: a crash does not change since when the
 * server runs tasks.
 */
static struct
{
	bool recovers; /* when it was started */
	TimestampTz since;
} kept;

static bool
file_exists(const char *name)
{
	return access(name, F_OK) == 0;
}

/*
 * Does this server start as a standby, or to recover from an archive?  Only the postmaster can
 * tell, before it recovers.
 */
static bool
is_recovery(void)
{
	return file_exists(STANDBY_SIGNAL_FILE) || file_exists(RECOVERY_SIGNAL_FILE);
}

/* Read the number of the last restore; 0: there was none. */
static uint64
read_number(void)
{
	FILE *file = AllocateFile(RESTORE_FILE, "r");
	uint64 number = 0;

	if (file == NULL)
		return 0;
	if (fscanf(file, UINT64_FORMAT, &number) != 1)
		number = 0;
	FreeFile(file);
	return number;
}

static bool
write_number(const char *name, uint64 number)
{
	FILE *file = AllocateFile(name, "w");
	bool written;

	if (file == NULL)
		return false;
	written = fprintf(file, UINT64_FORMAT "\n", number) > 0;
	return FreeFile(file) == 0 && written;
}

/*
 * Return which restore of a backup this server is: the time at which it was first started from it;
 * 0: it never was restored, or was a standby without a recovery target since.  Called at the start
 * and after each crash, by the postmaster (or a server in single-user mode) before recovery.  A
 * backup then has a file "backup_label" and, for recovery to a point in time, "recovery.signal".  A
 * file keeps the number, because both files are gone when recovery has ended.
 *
 * A standby is no restore: it goes on as the same server.  It forgets the number that it may have,
 * from the backup that it was made of or from its own time as a primary: its primary is another
 * server, and sets marks with another number.  But one with a recovery target is a restore: it is
 * not to take over from its primary, but to leave it at that point.  pg_createsubscriber starts
 * one, which is then a primary beside its own for some seconds.
 *
 * A copy of a data directory that was made without the server's knowledge (a snapshot) is not seen.
 */
static uint64
find_restore(void)
{
	static const char temporary[] = RESTORE_FILE ".tmp";
	uint64 number;

	if (file_exists(STANDBY_SIGNAL_FILE) && recoveryTarget == RECOVERY_TARGET_UNSET)
	{
		if (file_exists(RESTORE_FILE))
			(void) durable_unlink(RESTORE_FILE, LOG);
		return 0;
	}
	if (!file_exists(BACKUP_LABEL_FILE) && !is_recovery())
		return read_number();
	number = (uint64) GetCurrentTimestamp();
	if (write_number(temporary, number))
		(void) durable_rename(temporary, RESTORE_FILE, LOG);
	else
		ereport(LOG,
				(errcode_for_file_access(), errmsg("could not write file \"%s\": %m", temporary)));
	return number;
}

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
	size = add_size(size, MAXALIGN(mul_size(count_procs(), sizeof(Oid))));
	size = add_size(size, MAXALIGN(statistics_size()));
	size = add_size(size, MAXALIGN(takers_size()));
	return add_size(size, crash_size());
}

/* Called once, when the server is started. */
void
shared_request_memory(void)
{
	kept.recovers = is_recovery();
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("pg_task", 3 + max_worker_processes + Settings.max_executors);
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
	Shared->enabled = Settings.enabled;
	for (i = 0; i < SHARED_SETTINGS; i++)
		pg_atomic_init_u32(&Shared->settings[i], 0);
	pg_atomic_init_u32(&Shared->settings_changes, 0);
	pg_atomic_init_u32(&Shared->databases_changes, 0);
	ConditionVariableInit(&Shared->vacated);
	for (i = 0; i < SHARED_WAITERS; i++)
	{
		ConditionVariableInit(&Shared->waiters[i]);
		pg_atomic_init_u32(&Shared->ends[i], 0);
	}
	if (!pg_strong_random(&Shared->seed, sizeof(Shared->seed)))
		Shared->seed = (uint64) GetCurrentTimestamp();
	Shared->restore = find_restore();
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
	Shared->holds = (Oid *) memory;
	memory += MAXALIGN(count_procs() * sizeof(Oid));
	statistics_create(memory, &locks++->lock);
	memory += MAXALIGN(statistics_size());
	takers_create(memory, &locks++->lock);
	memory += MAXALIGN(takers_size());
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
		SpinLockInit(&Shared->executors[i].activity.mutex);
	}
	crash_create(memory);
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
 * Does pg_task.require_standby keep tasks from starting?  A standby counts as connected until its
 * walsender ends: that of one which is cut off, after wal_sender_timeout.  Takes the spinlocks of
 * all walsenders, one after the other.
 */
bool
shared_lacks_standby(void)
{
	SyncRepStandbyData *standbys;
	int count;

	if (!Settings.require_standby)
		return false;
	if (SyncRepConfig == NULL) /* no synchronous standby is named */
		return true;
	count = SyncRepGetCandidateStandbys(&standbys);
	pfree(standbys);
	return count < SyncRepConfig->num_sync;
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
 * Return the counter of a database or a role; the first counter (InvalidOid) is for all of them.
 * Two objects may share a counter by chance, but no user can choose an object that shares
 * another's: the seed is secret.
 */
static pg_atomic_uint32 *
counter_of(Oid object)
{
	uint64 hash;

	if (!OidIsValid(object))
		return &Shared->settings[0];
	hash = hash_bytes_uint32_extended(object, Shared->seed);
	return &Shared->settings[1 + hash % (SHARED_SETTINGS - 1)];
}

/* Change counter; differs after ALTER DATABASE SET of this database. */
uint32
shared_settings_of_database(Oid database)
{
	return pg_atomic_read_u32(counter_of(database));
}

/*
 * Change counter; differs after ALTER ROLE/DATABASE SET that may affect this role in this database.
 */
uint32
shared_settings(Oid database, Oid role)
{
	return pg_atomic_read_u32(&Shared->settings[0]) + pg_atomic_read_u32(counter_of(database)) +
		   pg_atomic_read_u32(counter_of(role));
}

/* Count a change of the settings of a database or a role; InvalidOid: of all of them. */
void
shared_settings_changed(Oid object)
{
	pg_atomic_fetch_add_u32(counter_of(object), 1);
	pg_atomic_fetch_add_u32(&Shared->settings_changes, 1);
}
