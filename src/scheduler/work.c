/*
 * work.c
 *		The transactions of the scheduler: as the owner of the task table, under fixed
 *		settings, and for a limited time; errors that end them; and refused rows: rows that
 *		a trigger or a constraint does not let it write.
 *
 * The process is connected as the bootstrap superuser, because the owner of a table need not be
 * able to log in.  Between work_begin and work_end it acts as the owner.
 *
 * An error aborts the transaction, and is reported, unless that is in the log already.
 *
 * The scheduler writes many rows in one transaction, a batch.  When one of them is refused, the
 * transaction fails, and the next batch has a quarter of the rows, until it is the refused row
 * alone.  That row is skipped for a while; batches grow again.  All that writes rows does it so.
 *
 * This file reads and writes no row, and repairs nothing after an error: the loop and its jobs do.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "scheduler/work.h"
#include "shared/statistics.h"
#include "task/events.h"
#include "task/owner.h"

/* Longest transaction that writes rows; its owner's triggers run in it (ms). */
#define WRITE_MS 10000

/* A transaction that goes on after it was cancelled ends the process after this time (ms). */
#define END_MS 5000

/* Longest wait for the lock of a row in work_begin_writing. */
#define ROW_LOCK_TIMEOUT "20ms"

/* A limit beyond this is none. */
#define LIMIT_MAX 4096

/* A refused row is skipped for this time (ms) ... */
#define REFUSED_RETRY_MS 60000

/* ... or for this time, if a trigger of the owner's took too long. */
#define REFUSED_SLOW_RETRY_MS 600000

/* An error's message and detail are compared and published up to this length (bytes). */
#define CAUSE_LENGTH 512

/* Maximum number of different errors that are logged. */
#define REPORTED_MAX 16

/* Interval after which the same error is logged again (ms). */
#define REPORT_AGAIN_MS (10 * 60 * 1000)

typedef struct RefusedRow
{
	/* key of the hash table: in a partitioned table the id alone may not be unique */
	TaskPlace place;
	MonoTime until;
} RefusedRow;

typedef struct Batch
{
	TaskPlace first;
	int count; /* rows that are being written */
	int limit; /* after a failure: the next batch has at most this many rows; 0: no limit */
} Batch;

/*
 * Static, because later iterations skip the rows, an error may interrupt a batch, and is compared
 * with those of earlier iterations.
 */
static struct
{
	HTAB *rows; /* of RefusedRow; NULL: none */
	Batch batches[REFUSED_BATCHES];
	Reports reported;	   /* errors that were logged */
	MonoTime report_again; /* all are logged again after this */
} refused;

SchedulerProcess *MyScheduler = NULL;

/* Static, because these are of the one transaction that the process may have open. */
static OwnerScope scope;	  /* while the process acts as the table's owner */
static TimeoutId end_timeout; /* of a transaction that cannot be cancelled */

/* The transaction takes too long, and the cancel had no effect: end the process. */
static void
end_process(void)
{
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

/* End the limits of the transaction. */
static void
end_limit(void)
{
	disable_timeout(STATEMENT_TIMEOUT, false);
	disable_timeout(end_timeout, false);
	QueryCancelPending = false;
}

/* Limit the rest of this transaction to this time (ms). */
void
work_limit(int limit_ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), limit_ms);

	end_limit();
	enable_timeout_at(STATEMENT_TIMEOUT, end);
	enable_timeout_at(end_timeout, TimestampTzPlusMilliseconds(end, END_MS));
}

/* Open a transaction; with a table, as its owner. */
void
work_begin(const char *activity)
{
	Assert(MyScheduler != NULL && !MyScheduler->in_transaction);
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, activity);
	MyScheduler->in_transaction = true;
	MyScheduler->lazy = false;
	events_forget();
	StartTransactionCommand();
	if (MyScheduler->table)
	{
		work_limit(WRITE_MS);
		/* with the lock the name stays; without, another table may have taken it */
		table_lock(MyScheduler->table, AccessShareLock);
		if (watch_changed())
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		owner_become(MyScheduler->table->owner, &scope);
		owner_pin_path(); /* for the commit, too */
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(MyScheduler->context);
}

/* The signals whose handlers are restored after code of the owner's. */
static const int signals[] = {SIGHUP,  SIGINT,	SIGQUIT, SIGTERM, SIGALRM,
							  SIGPIPE, SIGUSR1, SIGUSR2, SIGURG,  SIGCHLD};

/* Their handlers in this process.  Static, because they are those of the process. */
static struct sigaction handlers[lengthof(signals)];

/*
 * Undo what code of the owner's has done to the process: release the locks that it has taken for
 * the session, advisory ones; and restore the handlers of signals, which some languages, such as
 * plperl, let it change.  In the context in which it runs, it cannot leave anything else in the
 * session but settings, which have a level of their own.
 */
static void
clean_session(void)
{
	int i;

	Assert(!IsTransactionState());
	LockReleaseAll(USER_LOCKMETHOD, true);
	for (i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], &handlers[i], NULL);
}

/*
 * Commit, still as the owner.  Reset the settings before: what a trigger of the owner's has set
 * would stay after the commit.
 */
void
work_end(void)
{
	Assert(MyScheduler->in_transaction);
	PopActiveSnapshot();
	if (MyScheduler->table)
		AtEOXact_GUC(false, scope.nest_level);
	scope.nest_level = 0;
	if (MyScheduler->lazy)
		(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
	CommitTransactionCommand();
	clean_session();
	end_limit();
	if (MyScheduler->table)
		owner_return(&scope);
	MyScheduler->in_transaction = false;
	MyScheduler->writing = false;
	MemoryContextSwitchTo(MyScheduler->context);
	events_committed();
	statistics_flush();
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * As work_begin, to write rows other than claims.  The lock of a row or of an index entry may be
 * held by another session: the transaction waits ROW_LOCK_TIMEOUT for it, and then a row is at
 * fault.  For the lock of the table it waits as usual; or, unless "wait", not at all: it returns
 * false, without a transaction, if that is not free.
 */
bool
work_begin_writing(const char *activity, bool wait)
{
	Oid relid = MyScheduler->table->relid;

	work_begin(activity);
	if (wait)
		relation_lock(relid, RowExclusiveLock);
	else if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
	{
		work_end();
		return false;
	}
	(void) set_config_option("lock_timeout", ROW_LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	MyScheduler->writing = true;
	return true;
}

/* Fix the settings on which our statements depend: those of the database do not count. */
static void
fix_settings(void)
{
	static const char *const fixed[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"synchronous_commit", "local"}, /* a claim never waits for a standby */
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"lock_timeout", "1s"},
		{"statement_timeout", "0"},
		{"row_security", "on"},
		{"session_replication_role", "origin"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"DateStyle", "ISO"},
		{"IntervalStyle", "postgres"},
		{"default_table_access_method", "heap"}, /* others may not support UPDATE */
		{"exit_on_error", "off"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"transaction_timeout", "0"}, /* from 17 on */
		/* the table and its functions stay on this server */
		{"citus.enable_ddl_propagation", "off"},
		{"citus.use_citus_managed_tables", "off"},
	};
	int i;

	for (i = 0; i < (int) lengthof(fixed); i++)
		if (GetConfigOption(fixed[i][0], true, false))
			SetConfigOption(fixed[i][0], fixed[i][1], PGC_SUSET, PGC_S_SESSION);
}

/* Prepare the process for transactions, once, when it is connected. */
void
work_define(void)
{
	int i;

	for (i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], NULL, &handlers[i]);
	end_timeout = RegisterTimeout(USER_TIMEOUT, end_process);
	fix_settings();
	MyScheduler->context =
		AllocSetContextCreate(TopMemoryContext, "pg_task iteration", ALLOCSET_DEFAULT_SIZES);
}

/* ---- errors, and refused rows ---- */

/* An error has ended the transaction, and the caller has aborted it. */
static void
abandon(void)
{
	MyScheduler->in_transaction = MyScheduler->writing = false;
	clean_session();
	owner_abandon();
}

/* Is this row refused, and to be skipped for now? */
bool
refused_has(TaskPlace place, MonoTime now)
{
	RefusedRow *entry = refused.rows ? hash_search(refused.rows, &place, HASH_FIND, NULL) : NULL;

	return entry && clock_is_before(now, entry->until);
}

int
refused_count(void)
{
	return refused.rows ? (int) hash_get_num_entries(refused.rows) : 0;
}

/* The ids of the rows that are to be skipped for now. */
int
refused_ids(MonoTime now, int64 **ids)
{
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;
	int count = 0;

	*ids = palloc((refused_count() + 1) * sizeof(int64));
	if (refused.rows == NULL)
		return 0;
	hash_seq_init(&scan, refused.rows);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (clock_is_before(now, entry->until))
			(*ids)[count++] = entry->place.id;
	return count;
}

/*
 * Forget the rows that are skipped until this time, or a time before.  CLOCK_NEVER: all; they may
 * be accepted now, because the table has changed.
 */
void
refused_forget(MonoTime until)
{
	HTAB *rows = refused.rows;
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;

	if (rows == NULL)
		return;
	hash_seq_init(&scan, rows);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!clock_is_before(until, entry->until))
			(void) hash_search(rows, &entry->place, HASH_REMOVE, NULL);
	if (hash_get_num_entries(rows) > 0)
		return;
	refused.rows = NULL;
	hash_destroy(rows);
}

/* How many rows may the next batch have, of at most "most"? */
int
refused_limit(RefusedBatch which, int most)
{
	int limit = refused.batches[which].limit;

	return limit > 0 ? Min(limit, most) : most;
}

/* Add rows to the batch, of which this is the first. */
void
refused_batch_add(RefusedBatch which, TaskPlace place, int rows)
{
	Batch *batch = &refused.batches[which];

	if (batch->count == 0)
		batch->first = place;
	batch->count += rows;
}

/* Commit the batch. */
void
work_end_batch(RefusedBatch which)
{
	Batch *batch = &refused.batches[which];

	work_end();
	if (batch->count > 0)
		batch->limit = batch->limit > LIMIT_MAX ? 0 : batch->limit * 2;
	batch->count = 0;
}

/*
 * The transaction failed, perhaps with batches in it: the next ones are smaller.  A single row is
 * refused.
 */
static void
end_batches(const BatchFailure *failure)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(RefusedRow)};
	RefusedRow *row;
	int i;

	for (i = 0; i < REFUSED_BATCHES; i++)
	{
		Batch *batch = &refused.batches[i];
		int count = batch->count;

		/* before anything can fail */
		batch->count = 0;
		if (count == 0 || !failure->row_at_fault)
			continue;
		if (count > 1)
			batch->limit = Max(count / 4, 1);
		if (count > 1 || i == REFUSED_ORPHANS)
			continue;
		if (refused.rows == NULL)
			refused.rows = hash_create("pg_task refused rows", 64, &ctl, HASH_ELEM | HASH_BLOBS);
		row = hash_search(refused.rows, &batch->first, HASH_ENTER, NULL);
		row->until = failure->retry_at;
	}
}

/* The causes are gone: the next error is logged, even if it was logged before. */
void
refused_end_reports(void)
{
	report_end(&refused.reported, false);
	figure_set(FIGURE_FAILING, 0);
}

/*
 * Is a row at fault?  True if the error may come from the data of a row, or from a trigger,
 * constraint or index of the owner's; false if it comes from locks, resources or an interrupt.
 */
static bool
may_be_of_row(int sqlstate)
{
	int category = ERRCODE_TO_CATEGORY(sqlstate);

	return sqlstate != ERRCODE_TABLE_CHANGED && sqlstate != ERRCODE_LOCK_NOT_AVAILABLE &&
		   category != ERRCODE_INSUFFICIENT_RESOURCES && category != ERRCODE_SYSTEM_ERROR &&
		   (category != ERRCODE_OPERATOR_INTERVENTION || sqlstate == ERRCODE_QUERY_CANCELED);
}

/*
 * Has this cause been logged already?  If not, the caller logs it now, and it counts as logged
 * until the causes are gone.  After too many different ones this function logs that there are more,
 * and the caller logs none of them.
 */
static bool
was_reported(const char *cause, MonoTime now)
{
	if (!clock_is_before(now, refused.report_again))
	{
		refused_end_reports();
		refused.report_again = clock_plus_ms(now, REPORT_AGAIN_MS);
	}
	if (refused.reported.count > REPORTED_MAX || !report_due(&refused.reported, cause, 0))
		return true;
	if (refused.reported.count <= REPORTED_MAX)
		return false;
	ereport(LOG, (errmsg("pg_task has more errors in database \"%s\" than are logged",
						 MyScheduler->database),
				  errdetail("Different ones are logged again in ten minutes.")));
	return true;
}

/*
 * Log an error, unless its cause was logged before and lasts.  If one of several rows is at fault,
 * it is logged once that row is known; the next tries tell.
 */
static void
report_error(const ErrorData *error, const BatchFailure *failure, const char *cause, MonoTime now)
{
	bool unknown = failure->rows > 1 && may_be_of_row(error->sqlerrcode) &&
				   error->sqlerrcode != ERRCODE_QUERY_CANCELED;
	int i;

	for (i = 0; i < REFUSED_BATCHES && failure->rows == 1; i++)
		if (refused.batches[i].count == 1)
			errcontext("pg_task " INT64_FORMAT " in database \"%s\"", refused.batches[i].first.id,
					   MyScheduler->database);
	if (error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		SetLatch(MyLatch);
	else if (!unknown && !was_reported(cause, now))
		EmitErrorReport();
	FlushErrorState();
}

/* Return what follows from an error for the rows that were being written. */
static BatchFailure
judge_error(int sqlstate, MonoTime now)
{
	bool waited = MyScheduler->writing && sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
	int pause_ms = sqlstate == ERRCODE_QUERY_CANCELED ? REFUSED_SLOW_RETRY_MS : REFUSED_RETRY_MS;
	BatchFailure failure = {.sqlstate = sqlstate,
							.waited = waited,
							.row_at_fault = waited || may_be_of_row(sqlstate),
							.retry_at = clock_plus_ms(now, pause_ms)};
	int i;

	failure.forget = !failure.row_at_fault || !MyScheduler->writing;
	for (i = 0; i < REFUSED_BATCHES; i++)
		failure.rows += refused.batches[i].count;
	return failure;
}

/*
 * An error has ended the iteration: abort the transaction, log the error, and publish it for
 * pg_stat_task_scheduler and pg_task_why.  Interrupts are held.
 */
BatchFailure
refused_end_iteration(MonoTime now)
{
	ErrorData *error;
	BatchFailure failure;
	char cause[CAUSE_LENGTH];
	bool detailed;

	MemoryContextSwitchTo(MyScheduler->context);
	error = CopyErrorData();
	failure = judge_error(error->sqlerrcode, now);
	end_limit();
	/* the detail alone says why a table is unusable; that of a constraint quotes the row */
	detailed = error->detail && error->table_name == NULL;
	snprintf(cause, sizeof(cause), "%s%s%s", error->message ? error->message : "",
			 detailed ? ": " : "", detailed ? error->detail : "");
	report_error(error, &failure, cause, now);
	AbortCurrentTransaction();
	if (error->sqlerrcode != ERRCODE_TABLE_CHANGED)
	{
		shared_database_report(MyDatabaseId, cause);
		figure_add(FIGURE_ERRORS, 1);
		figure_set(FIGURE_FAILING, 1);
	}
	abandon();
	MemoryContextSwitchTo(MyScheduler->context);
	end_batches(&failure);
	return failure;
}
