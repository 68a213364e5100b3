/*
 * activity.c
 *		The functions that SQL calls to see what runs now, and to report how far a task has come:
 *		pg_task_activity, pg_task_progress.
 *
 * Neither takes a lock that an executor takes, reads a task row or writes one.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "session/encoding.h"
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

/* A row of pg_task_activity. */
typedef struct ActivityRow
{
	Datum values[ACTIVITY_COLUMNS];
	bool nulls[ACTIVITY_COLUMNS];
} ActivityRow;

static void
set_column(ActivityRow *row, ActivityColumn column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

static void
set_number(ActivityRow *row, ActivityColumn column, int64 value)
{
	if (value != ACTIVITY_UNKNOWN)
		set_column(row, column, Int64GetDatum(value));
}

/* Columns that those may see who may see the request in pg_stat_activity. */
static void
set_private_columns(ActivityRow *row, const Activity *activity)
{
	set_column(row, ACTIVITY_RELID, ObjectIdGetDatum(activity->relid));
	set_column(row, ACTIVITY_QUEUE,
			   PointerGetDatum(encoding_text(activity->queue, activity->encoding)));
	set_column(row, ACTIVITY_ID, Int64GetDatum(activity->run.id));
	set_column(row, ACTIVITY_ATTEMPT, Int32GetDatum(activity->run.attempt));
	set_column(row, ACTIVITY_START, TimestampTzGetDatum(activity->start));
	if (activity->timeout > 0)
	{
		Interval *timeout = palloc0(sizeof(Interval));

		timeout->time = activity->timeout;
		set_column(row, ACTIVITY_TIMEOUT, IntervalPGetDatum(timeout));
	}
	set_number(row, ACTIVITY_DONE, activity->progress.done);
	set_number(row, ACTIVITY_TOTAL, activity->progress.total);
	if (activity->progress.message[0] != '\0')
		set_column(row, ACTIVITY_TEXT,
				   PointerGetDatum(encoding_text(activity->progress.message, activity->encoding)));
}

/* A name of a database or a role, which may be gone by now. */
static void
set_name(ActivityRow *row, ActivityColumn column, const char *name)
{
	if (name)
		set_column(row, column, DirectFunctionCall1(namein, CStringGetDatum(name)));
}

/* The rights are those of pg_stat_activity. */
static ActivityRow
make_row(const Activity *activity)
{
	ActivityRow row;

	memset(row.nulls, true, sizeof(row.nulls));
	set_name(&row, ACTIVITY_DATABASE, get_database_name(activity->database));
	set_name(&row, ACTIVITY_ROLE, GetUserNameFromId(activity->role, true));
	set_column(&row, ACTIVITY_PID, Int32GetDatum(activity->pid));
	if (has_privs_of_role(GetUserId(), activity->role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS))
		set_private_columns(&row, activity);
	return row;
}

/* pg_task_activity(): the tasks that run now, in all databases. */
Datum
pg_task_activity(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *set = result_set_begin(fcinfo);
	int i;

	result_set_check(set, ACTIVITY_COLUMNS);
	for (i = 0; Shared && i < Shared->nexecutors; i++)
	{
		Activity activity;
		ActivityRow row;

		if (!activity_read(&Shared->executors[i].activity, &activity))
			continue;
		row = make_row(&activity);
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
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
