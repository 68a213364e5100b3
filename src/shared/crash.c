/*
 * crash.c
 *		Which tasks, and which schedulers, may have caused a crash of the server?
 *
 * When a process crashes, the postmaster ends all others with SIGQUIT and restarts the server.
 * SIGQUIT means that another process has crashed: the handler of an executor sets slot->quit.
 * Before the postmaster releases shared memory it reads the slots: a task that was running in an
 * executor without that flag is a suspect, and also one of which a parallel worker has crashed.
 * The result is the crash report.  The postmaster copies it into the new shared memory; or, if it
 * exits itself, it writes it to a file for the next postmaster.  Without such a file nothing is
 * known: the postmaster itself was killed, or the machine lost power.  Then every task that was
 * running is a suspect.  If the server then starts as a standby, these are the suspects when it is
 * promoted, and not those that other servers start later.
 *
 * The report also counts the crashes in a row that the scheduler of a database has caused: it got
 * no SIGQUIT, and was not asleep.  If they are pg_task.max_crashes, the database is held back: it
 * gets no scheduler until it is released, or the server is stopped in order.
 *
 * The code that runs in the postmaster reads plain memory only, takes no lock, and validates what
 * it reads.
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "access/parallel.h"
#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "executor/executor.h"
#include "libpq/pqsignal.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/crash.h"
#include "shared/slots.h"

/* Suspects of one crash; more are not blamed.  Without batches, an executor runs one task. */
#define BLAMED_MAX 4096

/* The crash report file, from one postmaster to the next. */
#define CRASH_REPORT_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/pg_task.end"
#define CRASH_REPORT_MAGIC 0x50475434

/* Databases of which crashes are counted; those of more at the same time are not. */
#define CRASHED_MAX 64

/* When a server has run tasks for so long, the next crash is not in a row with earlier ones (us).
 */
#define HEALTHY_US (10 * USECS_PER_MINUTE)

typedef struct BlamedRun
{
	Oid database;
	TaskRun run;
} BlamedRun;

/* A database, and how often in a row its scheduler has crashed the server. */
typedef struct CrashedDatabase
{
	Oid database;
	int32 crashes;
} CrashedDatabase;

typedef struct CrashReport
{
	uint32 magic;
	uint32 count;
	TimestampTz unknown_before; /* nothing is known of runs claimed before: they are suspects */
	uint32 ndatabases;
	CrashedDatabase databases[CRASHED_MAX];
	BlamedRun blamed[BLAMED_MAX];
} CrashReport;

/* A clock that is this much behind a claim was set back (us); less is the age of what was read. */
#define SET_BACK_US INT64CONST(1000000)

/*
 * In shared memory.  The postmaster writes it before any process of pg_task starts.  Later only
 * the atomics (each a TimestampTz) and, without a lock, the numbers of crashes of databases (set to
 * 0) change.
 */
typedef struct Evidence
{
	pg_atomic_uint64 used;	/* when the first scheduler used the report; 0: none has */
	pg_atomic_uint64 claim; /* the one that was made last, or when this memory was made */
	pg_atomic_uint64 first; /* the earliest of these by the wall clock, which may be set back */
	pg_atomic_uint64 last;	/* and the latest */
	CrashReport report;		/* about the shared memory before this one */
} Evidence;

static struct
{
	Evidence *evidence; /* in shared memory */

	/*
	 * The postmaster's: it outlives the shared memory that it is about.  "slots" and "schedulers"
	 * are copies of pointers in Shared, which the process that crashed may have overwritten.
	 */
	CrashReport last_report;
	SharedExecutor *slots; /* NULL before there was shared memory */
	SharedScheduler *schedulers;

	/* For the SIGQUIT handler of this process. */
	bool *quit;				/* in an executor or a scheduler: where it is noted */
	SharedExecutor *leader; /* in a parallel worker of an executor: that one's slot */
	bool leader_known;		/* a parallel worker has looked for it */
} crash;

/* The postmaster exits: write the report for the next one. */
static void
write_report(void)
{
	FILE *file = AllocateFile(CRASH_REPORT_FILE, PG_BINARY_W);

	if (file == NULL || fwrite(&crash.last_report, sizeof(CrashReport), 1, file) != 1 ||
		fflush(file) != 0)
		ereport(LOG, (errcode_for_file_access(),
					  errmsg("could not write file \"%s\": %m", CRASH_REPORT_FILE)));
	if (file)
		FreeFile(file);
}

/* Read the report of the last postmaster, and remove it.  False if it has left none. */
static bool
read_report(void)
{
	CrashReport *report = &crash.last_report;
	FILE *file = AllocateFile(CRASH_REPORT_FILE, PG_BINARY_R);
	bool valid;

	if (file == NULL)
		return false;
	valid = fread(report, sizeof(CrashReport), 1, file) == 1 &&
			report->magic == CRASH_REPORT_MAGIC && report->count <= BLAMED_MAX &&
			report->ndatabases <= CRASHED_MAX;
	FreeFile(file);
	(void) durable_unlink(CRASH_REPORT_FILE, LOG);
	return valid;
}

/*
 * Add what the executors had begun when they exited, to the report.  Of tasks that ran as a batch
 * each is a suspect: the commit that they had in common may have done it.
 */
static void
blame_executors(CrashReport *report)
{
	int i;

	for (i = 0; i < Settings.max_executors; i++)
	{
		SharedExecutor *slot = &crash.slots[i];
		uint32 n;

		if (!executor_slot_has_process(slot) ||
			(slot->quit && pg_atomic_read_u32(&slot->workers) == 0))
			continue;
		for (n = slot->done; n != slot->taken && report->count < BLAMED_MAX; n++)
			report->blamed[report->count++] =
				(BlamedRun){slot->database, slot->ring[n % SHARED_RING].run};
	}
}

/* Return the entry of a database in a report; NULL: it has none. */
static CrashedDatabase *
find_database(CrashReport *report, Oid database)
{
	uint32 i;

	for (i = 0; i < Min(report->ndatabases, CRASHED_MAX); i++)
		if (report->databases[i].database == database)
			return &report->databases[i];
	return NULL;
}

/*
 * Count the crashes of schedulers: of those that were doing something when the server went down,
 * and got no SIGQUIT.  Crashes before the server was healthy count no more, but what is held back
 * stays so, unless somebody has stopped the server.
 */
static void
blame_schedulers(CrashReport *report, bool stopped)
{
	TimestampTz used = (TimestampTz) pg_atomic_read_u64(&crash.evidence->used);
	bool healthy = used != 0 && GetCurrentTimestamp() - used > HEALTHY_US;
	CrashReport *old = &crash.evidence->report;
	uint32 known = stopped ? 0 : Min(old->ndatabases, CRASHED_MAX);
	uint32 i;

	report->ndatabases = 0;
	for (i = 0; i < known; i++)
		if (old->databases[i].crashes >= (healthy ? Settings.max_crashes : 1))
			report->databases[report->ndatabases++] = old->databases[i];
	for (i = 0; i < (uint32) max_worker_processes; i++)
	{
		const SharedScheduler *slot = &crash.schedulers[i];
		CrashedDatabase *counted = find_database(report, slot->database);

		if (slot->state == SCHEDULER_FREE || slot->proc == SHARED_NO_PROC || slot->innocent)
			continue;
		if (counted)
			counted->crashes++;
		else if (report->ndatabases < CRASHED_MAX)
			report->databases[report->ndatabases++] = (CrashedDatabase){slot->database, 1};
	}
}

/*
 * Collect the crash report.  Runs in the postmaster when it is about to release shared memory and
 * all other processes have exited.
 */
static void
collect_report(int code, Datum arg pg_attribute_unused())
{
	CrashReport *report = &crash.last_report;

	Assert(!IsUnderPostmaster);
	/* if no scheduler has used the old report, it is still valid */
	if (pg_atomic_read_u64(&crash.evidence->used) != 0)
	{
		report->unknown_before = DT_NOBEGIN;
		report->count = 0;
	}
	report->magic = CRASH_REPORT_MAGIC;
	blame_executors(report);
	blame_schedulers(report, code == 0);
	if (proc_exit_inprogress)
		write_report();
}

/*
 * There is no report.  Did this server crash?  Only if it was in production when it ended: a
 * standby, or a copy of another server, has run no tasks itself.
 */
static bool
has_crashed(void)
{
	bool is_valid;
	ControlFileData *control = get_controlfile(DataDir, &is_valid);
	bool crashed = is_valid &&
				   (control->state == DB_IN_PRODUCTION || control->state == DB_IN_CRASH_RECOVERY) &&
				   access(BACKUP_LABEL_FILE, F_OK) != 0;

	pfree(control);
	return crashed;
}

Size
crash_size(void)
{
	return sizeof(Evidence);
}

/*
 * Take the evidence of the last crash into this memory, which is zero.  The postmaster calls this
 * when the rest of the shared memory is initialized.
 */
void
crash_create(void *memory)
{
	TimestampTz now = GetCurrentTimestamp();

	crash.evidence = memory;
	if (crash.slots == NULL && !read_report())
	{
		crash.last_report.unknown_before = has_crashed() ? DT_NOEND : DT_NOBEGIN;
		crash.last_report.count = crash.last_report.ndatabases = 0;
	}
	/* what is claimed from now on runs on another server, until this one is promoted */
	if (Shared->recovers)
		crash.last_report.unknown_before = Min(crash.last_report.unknown_before, now);
	pg_atomic_init_u64(&crash.evidence->claim, (uint64) now);
	pg_atomic_init_u64(&crash.evidence->first, (uint64) now);
	pg_atomic_init_u64(&crash.evidence->last, (uint64) now);
	pg_atomic_init_u64(&crash.evidence->used, 0);
	crash.evidence->report = crash.last_report;
	crash.slots = Shared->executors;
	crash.schedulers = Shared->schedulers;
	if (!IsUnderPostmaster && IsPostmasterEnvironment)
		on_shmem_exit(collect_report, 0);
}

/*
 * A scheduler is about to compare all running tasks with the report: the report is used up, and the
 * next crash makes a new one.
 */
void
crash_report_used(void)
{
	uint64 unused = 0;

	(void) pg_atomic_compare_exchange_u64(&crash.evidence->used, &unused,
										  (uint64) GetCurrentTimestamp());
}

/* Set the first or the last time of a claim to this time, if "earlier" or later than it. */
static void
note_claim(pg_atomic_uint64 *bound, TimestampTz claimed, bool earlier)
{
	uint64 old = pg_atomic_read_u64(bound);

	while (earlier ? claimed < (TimestampTz) old : claimed > (TimestampTz) old)
		if (pg_atomic_compare_exchange_u64(bound, &old, (uint64) claimed))
			break;
}

/*
 * Return the time of a claim that is written into its row, for this time of the wall clock.  No two
 * claims have the same time; when the clock is set back, claims follow it, and only an unlikely
 * chance could repeat one.  They must not stay ahead of the clock: a time in the future that a user
 * sets in a running task's row would look as if it were over (PLANNED_AGAIN in task/rows_sql.h).
 */
TimestampTz
crash_claim_time(TimestampTz now)
{
	uint64 latest = pg_atomic_read_u64(&crash.evidence->claim);
	TimestampTz next;

	do
		next = now < (TimestampTz) latest - SET_BACK_US ? now : Max(now, (TimestampTz) latest + 1);
	while (!pg_atomic_compare_exchange_u64(&crash.evidence->claim, &latest, (uint64) next));
	note_claim(&crash.evidence->first, next, true);
	note_claim(&crash.evidence->last, next, false);
	return next;
}

/*
 * May this run, which no process has reported since the server started, have crashed the server?
 * Where nothing else is known, not if it may have been claimed since.  If the clock was set back
 * meanwhile, that spares also what had been claimed in between before.
 */
bool
crash_blames(Oid database, TaskRun run)
{
	uint32 i;

	for (i = 0; i < crash.evidence->report.count; i++)
		if (crash.evidence->report.blamed[i].database == database &&
			task_same_run(crash.evidence->report.blamed[i].run, run))
			return true;
	return run.claimed < crash.evidence->report.unknown_before &&
		   (run.claimed < (TimestampTz) pg_atomic_read_u64(&crash.evidence->first) ||
			run.claimed > (TimestampTz) pg_atomic_read_u64(&crash.evidence->last));
}

/* How often has the scheduler of this database crashed the server?  0 unless it is held back. */
int
crash_holds(Oid database)
{
	const CrashedDatabase *counted = find_database(&crash.evidence->report, database);

	return counted && counted->crashes >= Settings.max_crashes ? counted->crashes : 0;
}

/* Forget the crashes of this database's scheduler. */
void
crash_release(Oid database)
{
	CrashedDatabase *counted = find_database(&crash.evidence->report, database);

	if (counted)
		counted->crashes = 0;
}

/*
 * A parallel worker of an executor ends in order.  The crash of one is a crash of its leader's
 * task, and leaves slot->workers above zero.
 */
static void
sign_off(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	if (crash.leader)
		pg_atomic_fetch_sub_u32(&crash.leader->workers, 1);
	crash.leader = NULL;
}

/* SIGQUIT: another process has crashed, not this one. */
static void
handle_quit(SIGNAL_ARGS)
{
	if (crash.quit)
		*crash.quit = true;
	sign_off(0, (Datum) 0);
	SignalHandlerForCrashExit(COMPAT_SIGNAL_PASS);
}

/*
 * Watch this process, an executor or a scheduler, for SIGQUIT, which is noted in its slot, in
 * "quit" or "innocent".
 */
void
crash_watch(bool *quit)
{
	crash.quit = quit;
	pqsignal(SIGQUIT, handle_quit);
}

/*
 * A plan is about to be executed: count a parallel worker in the slot of its leader, if that is an
 * executor.
 */
void
crash_note_parallel_worker(void)
{
	if (!IsParallelWorker() || crash.leader_known)
		return;
	crash.leader_known = true;
	crash.leader = executor_slot_of_leader();
	if (crash.leader == NULL)
		return;
	pg_atomic_fetch_add_u32(&crash.leader->workers, 1);
	before_shmem_exit(sign_off, 0);
	pqsignal(SIGQUIT, handle_quit);
}
