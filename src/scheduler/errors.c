/*
 * errors.c
 *		Errors that end an iteration of the scheduler: abort the transaction, judge whether a row is
 *		at fault, and report the error, unless that is in the log already.
 *
 * This file repairs nothing: the loop and its jobs do.
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/errors.h"
#include "scheduler/work.h"
#include "shared/report.h"
#include "task/table.h"

/* A refused row is skipped for this time (ms) ... */
#define REFUSED_RETRY_MS 60000

/* ... or for this time, if a trigger of the owner's took too long (see work.c). */
#define REFUSED_SLOW_RETRY_MS 600000

/* Maximum number of different messages that are logged. */
#define REPORTED_MAX 16

/* Interval after which the same message is logged again (ms). */
#define REPORT_AGAIN_MS (10 * 60 * 1000)

/* What was logged.  Static, because an error is compared with those of earlier iterations. */
static struct
{
	Reports messages;
	MonoTime since; /* start of the interval after which all are logged again */
} reported;

/* The causes are gone: the next error is logged, even if its message was logged before. */
void
errors_forget(void)
{
	report_end_all(&reported.messages);
}

/*
 * Is a row at fault?  True if the error may come from the data of a row, or from a trigger,
 * constraint or index of the owner's; false if it comes from locks, resources or an interrupt.
 */
bool
errors_of_row(int sqlstate)
{
	int category = ERRCODE_TO_CATEGORY(sqlstate);

	return sqlstate != ERRCODE_TABLE_CHANGED && sqlstate != ERRCODE_LOCK_NOT_AVAILABLE &&
		   category != ERRCODE_INSUFFICIENT_RESOURCES && category != ERRCODE_SYSTEM_ERROR &&
		   (category != ERRCODE_OPERATOR_INTERVENTION || sqlstate == ERRCODE_QUERY_CANCELED);
}

/*
 * Has this message been logged already?  If not, the caller logs it now, and it counts as logged
 * until errors_forget.  After too many different messages this function logs that there are more,
 * and the caller logs none of them.
 */
static bool
was_reported(const char *message, MonoTime now)
{
	if (clock_exceeds(reported.since, now, REPORT_AGAIN_MS))
	{
		errors_forget();
		reported.since = now;
	}
	if (reported.messages.count > REPORTED_MAX || !report_due(&reported.messages, message, 0))
		return true;
	if (reported.messages.count <= REPORTED_MAX)
		return false;
	ereport(LOG, (errmsg("pg_task has more errors in database \"%s\" than are logged",
						 MyScheduler->database),
				  errdetail("Different ones are logged again in ten minutes.")));
	return true;
}

/* Does the cause lie in one of these rows, so that the next tries tell in which? */
static bool
is_to_be_found(int sqlstate, int rows)
{
	return rows > 1 && errors_of_row(sqlstate) && sqlstate != ERRCODE_QUERY_CANCELED;
}

/*
 * Log an error, unless its message was logged before while the cause lasts.  If a row is at fault,
 * it is logged once that row is known.
 */
static void
report_error(const ErrorData *error, MonoTime now)
{
	int64 id = 0;
	int rows = refused_batch_rows(&id);

	if (rows == 1)
		errcontext("pg_task " INT64_FORMAT " in database \"%s\"", id, MyScheduler->database);
	if (error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		SetLatch(MyLatch);
	else if (!is_to_be_found(error->sqlerrcode, rows) &&
			 !was_reported(error->message ? error->message : "", now))
		EmitErrorReport();
	FlushErrorState();
}

/* Return what follows from an error for the rows that were being written. */
static BatchFailure
judge_error(int sqlstate, MonoTime now)
{
	bool waited = MyScheduler->writing && sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
	int pause_ms = sqlstate == ERRCODE_QUERY_CANCELED ? REFUSED_SLOW_RETRY_MS : REFUSED_RETRY_MS;
	bool row_at_fault = waited || errors_of_row(sqlstate);

	return (BatchFailure){.sqlstate = sqlstate,
						  .waited = waited,
						  .row_at_fault = row_at_fault,
						  .forget = !row_at_fault || !MyScheduler->writing,
						  .retry_at = clock_plus_ms(now, pause_ms)};
}

/* Publish the error for pg_stat_task_scheduler. */
static void
publish_error(const ErrorData *error)
{
	const char *message = error->message ? error->message : "";
	SharedFindings found = shared_database_found(MyDatabaseId);
	int length = pg_mbcliplen(message, (int) strlen(message), SHARED_ERROR - 1);

	found.error = (SharedError){.at = GetCurrentTimestamp()};
	memcpy(found.error.message, message, length);
	shared_database_publish(MyDatabaseId, &found);
	figure_add(FIGURE_ERRORS, 1);
}

/* Abort the transaction and report the error.  Called with interrupts held. */
BatchFailure
errors_end_iteration(MonoTime now)
{
	ErrorData *error;
	BatchFailure failure;

	MemoryContextSwitchTo(MyScheduler->context);
	error = CopyErrorData();
	failure = judge_error(error->sqlerrcode, now);
	work_end_limit();
	report_error(error, now);
	AbortCurrentTransaction();
	if (error->sqlerrcode != ERRCODE_TABLE_CHANGED)
		publish_error(error);
	work_abandon();
	MemoryContextSwitchTo(MyScheduler->context);
	return failure;
}
