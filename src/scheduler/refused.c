/*
 * refused.c
 *		Errors that end an iteration of the scheduler, and refused rows: rows that a trigger or a
 *		constraint does not let it write.
 *
 * An error aborts the transaction, and is reported, unless that is in the log already.
 *
 * The scheduler writes many rows in one transaction, a batch.  When one of them is refused, the
 * transaction fails, and the next batch has a quarter of the rows, until it is the refused row
 * alone.  That row is skipped for a while; batches grow again.  All that writes rows does it so.
 *
 * This file repairs nothing: the loop and its jobs do.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/refused.h"
#include "scheduler/work.h"

/* A limit beyond this is none. */
#define LIMIT_MAX 4096

/* A refused row is skipped for this time (ms) ... */
#define REFUSED_RETRY_MS 60000

/* ... or for this time, if a trigger of the owner's took too long (see work.c). */
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
 * Forget all refused rows: they may be accepted now, because the table has changed or time has
 * passed.
 */
void
refused_forget(void)
{
	HTAB *rows = refused.rows;

	refused.rows = NULL;
	if (rows)
		hash_destroy(rows);
}

void
refused_tidy(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;

	if (refused.rows == NULL)
		return;
	hash_seq_init(&scan, refused.rows);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!clock_is_before(now, entry->until))
			(void) hash_search(refused.rows, &entry->place, HASH_REMOVE, NULL);
	if (hash_get_num_entries(refused.rows) == 0)
		refused_forget();
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

/*
 * Add to the batch those of these rows that are not refused, up to "limit", and move them to the
 * front.  Returns their number.
 */
int
refused_batch_take(RefusedBatch which, TaskPlace *places, int count, int limit, MonoTime now)
{
	int taken = 0;
	int i;

	for (i = 0; i < count && taken < limit; i++)
	{
		if (refused_has(places[i], now))
			continue;
		refused_batch_add(which, places[i], 1);
		places[taken++] = places[i];
	}
	return taken;
}

/* The batch is committed. */
void
refused_batch_written(RefusedBatch which)
{
	Batch *batch = &refused.batches[which];

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
	work_end_limit();
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
	work_abandon();
	MemoryContextSwitchTo(MyScheduler->context);
	end_batches(&failure);
	return failure;
}
