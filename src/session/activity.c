/*
 * activity.c
 *		The functions that SQL calls to see what runs now, and to report how far a task has come:
 *		pg_task_activity, pg_task_progress.
 *
 * Neither takes a lock of a slot, reads a task row or writes one.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "session/result_set.h"
#include "shared/activity.h"
#include "shared/shared.h"

PGDLLEXPORT Datum pg_task_activity(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_progress(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_activity);
PG_FUNCTION_INFO_V1(pg_task_progress);

/* The columns of pg_task_activity; sql/ has them in this order. */
typedef enum ActivityColumn
{
	ACTIVITY_DATABASE,
	ACTIVITY_RELID,
	ACTIVITY_QUEUE,
	ACTIVITY_ID,
	ACTIVITY_ROLE,
	ACTIVITY_PID,
	ACTIVITY_ATTEMPT,
	ACTIVITY_START,
	ACTIVITY_TIMEOUT,
	ACTIVITY_DONE,
	ACTIVITY_TOTAL,
	ACTIVITY_TEXT,
	ACTIVITY_COLUMNS
} ActivityColumn;

static void
set_number(ResultRow *row, ActivityColumn column, int64 value)
{
	if (value != ACTIVITY_UNKNOWN)
		result_row_set(row, column, Int64GetDatum(value));
}

/* Columns that those may see who may see the request in pg_stat_activity. */
static void
set_private_columns(ResultRow *row, const Activity *activity)
{
	result_row_set(row, ACTIVITY_RELID, ObjectIdGetDatum(activity->relid));
	result_row_set(row, ACTIVITY_QUEUE,
				   PointerGetDatum(result_text(activity->queue, activity->encoding)));
	result_row_set(row, ACTIVITY_ID, Int64GetDatum(activity->run.id));
	result_row_set(row, ACTIVITY_ATTEMPT, Int32GetDatum(activity->run.attempt));
	result_row_set(row, ACTIVITY_START, TimestampTzGetDatum(activity->start));
	if (activity->timeout > 0)
	{
		Interval *timeout = palloc0(sizeof(Interval));

		timeout->time = activity->timeout;
		result_row_set(row, ACTIVITY_TIMEOUT, IntervalPGetDatum(timeout));
	}
	set_number(row, ACTIVITY_DONE, activity->progress.done);
	set_number(row, ACTIVITY_TOTAL, activity->progress.total);
	if (activity->progress.message[0] != '\0')
		result_row_set(
			row, ACTIVITY_TEXT,
			PointerGetDatum(result_text(activity->progress.message, activity->encoding)));
}

/* pg_task_activity(): the tasks that run now, in all databases; rights as in pg_stat_activity. */
Datum
pg_task_activity(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, ACTIVITY_COLUMNS);
	bool sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	int i;

	for (i = 0; Shared && i < Shared->nexecutors; i++)
	{
		Activity activity;
		ResultRow row;

		if (!activity_read(&Shared->executors[i].activity, &activity))
			continue;
		result_row_begin(&row);
		result_row_set_name(&row, ACTIVITY_DATABASE, get_database_name(activity.database));
		result_row_set_name(&row, ACTIVITY_ROLE, GetUserNameFromId(activity.role, true));
		result_row_set(&row, ACTIVITY_PID, Int32GetDatum(activity.pid));
		if (sees_all || has_privs_of_role(GetUserId(), activity.role))
			set_private_columns(&row, &activity);
		result_row_end(&row, result);
	}
	return (Datum) 0;
}

/*
 * pg_task_progress(done, total, message): the task that calls this has come so far.  Does nothing
 * outside of a task, so that a function that calls it can be called from anywhere.
 */
Datum
pg_task_progress(PG_FUNCTION_ARGS)
{
	int64 done = PG_ARGISNULL(0) ? ACTIVITY_UNKNOWN : PG_GETARG_INT64(0);
	int64 total = PG_ARGISNULL(1) ? ACTIVITY_UNKNOWN : PG_GETARG_INT64(1);
	const char *message = NULL;
	int length = 0;

	if (!activity_is_mine())
		PG_RETURN_VOID();
	if (!PG_ARGISNULL(2))
	{
		text *value = PG_GETARG_TEXT_PP(2);

		message = VARDATA_ANY(value);
		length = pg_mbcliplen(message, VARSIZE_ANY_EXHDR(value), ACTIVITY_MESSAGE);
	}
	activity_progress(done, total, message, length);
	PG_RETURN_VOID();
}
