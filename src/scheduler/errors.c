/*
 * errors.c
 *		Errors that end an iteration of the scheduler: whether a row is at fault, and
 *		whether they are in the log already.
 *
 * This file is plain memory of the scheduler.  It catches no error.
 */
#include "postgres.h"

#include "scheduler/errors.h"
#include "scheduler/scheduler.h"
#include "task/table.h"

/* Maximum number of different messages that are logged. */
#define REPORTED_MAX 16

/* Interval after which the same message is logged again (ms). */
#define REPORT_AGAIN_MS (10 * 60 * 1000)

/* The causes are gone: the next error is logged, even if its message was logged before. */
void
errors_forget(void)
{
	report_end_all(&MyScheduler->errors.messages);
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
bool
errors_reported(const char *database, const char *message, MonoTime now)
{
	ErrorLog *log = &MyScheduler->errors;

	if (clock_exceeds(log->since, now, REPORT_AGAIN_MS))
	{
		errors_forget();
		log->since = now;
	}
	if (log->messages.count > REPORTED_MAX || !report_due(&log->messages, message, 0))
		return true;
	if (log->messages.count <= REPORTED_MAX)
		return false;
	ereport(LOG, (errmsg("pg_task has more errors in database \"%s\" than are logged", database),
				  errdetail("Different ones are logged again in ten minutes.")));
	return true;
}
