/*
 * figures.c
 *		The functions that SQL calls for what runs now and has run: pg_task_activity with
 *		pg_task_progress, pg_stat_task, pg_stat_task_scheduler.
 *
 * They read shared memory, and the catalogs of databases and roles.  What a scheduler or an
 * executor publishes is read without a lock, and each number is exact for itself.  Who is a member
 * of the owner of a database sees its figures, and a member of pg_read_all_stats those of all.
 *
 * This file reads no task row and writes none.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "session/result_set.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/statistics.h"
#include "shared/takers.h"

COMPAT_FUNCTION(pg_task_activity);
COMPAT_FUNCTION(pg_task_progress);
COMPAT_FUNCTION(pg_stat_task);
COMPAT_FUNCTION(pg_stat_task_reset);
COMPAT_FUNCTION(pg_stat_task_scheduler);

/* ---- values of rows ---- */

/* A name of a database or a role; NULL: it is gone by now. */
static void
set_name(ResultRow *row, const char *column, const char *name)
{
	if (name)
		result_row_set(row, column, DirectFunctionCall1(namein, CStringGetDatum(name)));
}

/* What the catalog says of a database. */
typedef struct DatabaseInfo
{
	NameData name;
	int encoding;
	bool is_open; /* the caller is a member of its owner, or of pg_read_all_stats */
} DatabaseInfo;

/* False: it was dropped. */
static bool
find_database(Oid oid, DatabaseInfo *database)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(oid));
	Form_pg_database form;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_database) GETSTRUCT(tuple);
	database->name = form->datname;
	database->encoding = form->encoding;
	database->is_open = has_privs_of_role(GetUserId(), form->datdba) ||
						has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	ReleaseSysCache(tuple);
	return true;
}

/* A text of a database; of what is in another encoding than ours only ASCII is shown. */
static void
set_text(ResultRow *row, const char *column, const char *string, int encoding)
{
	text *result = cstring_to_text(string);
	char *byte = VARDATA(result);

	for (; encoding != GetDatabaseEncoding() && byte < VARDATA(result) + strlen(string); byte++)
		if (IS_HIGHBIT_SET(*byte))
			*byte = '?';
	result_row_set(row, column, PointerGetDatum(result));
}

static void
end_row(ResultRow *row, const ReturnSetInfo *result)
{
	tuplestore_putvalues(result->setResult, result->setDesc, row->values, row->nulls);
}

/* ---- what runs now ---- */

static void
set_number(ResultRow *row, const char *column, int64 value)
{
	if (value != ACTIVITY_UNKNOWN)
		result_row_set(row, column, Int64GetDatum(value));
}

static void
set_progress(ResultRow *row, const Progress *progress, int encoding)
{
	set_number(row, "done", progress->done);
	set_number(row, "total", progress->total);
	if (progress->message[0] != '\0')
		set_text(row, "message", progress->message, encoding);
}

/* Add the tasks that were taken, for those who may take them, too. */
static void
add_taken(const ReturnSetInfo *result, bool sees_all)
{
	SharedTaken taken;
	int i;

	for (i = 0; taken_look(InvalidOid, &i, &taken); i++)
	{
		DatabaseInfo database;
		ResultRow row;

		if (!find_database(taken.database, &database))
			continue;
		result_row_begin(&row, result->setDesc);
		set_name(&row, "database", NameStr(database.name));
		set_name(&row, "role", GetUserNameFromId(taken.role, true));
		result_row_set(&row, "pid", Int32GetDatum(taken.pid));
		if (sees_all || has_privs_of_role(GetUserId(), taken.role) ||
			has_privs_of_role(GetUserId(), taken.taker))
		{
			result_row_set(&row, "relid", ObjectIdGetDatum(taken.relid));
			set_text(&row, "queue", taken.queue, database.encoding);
			result_row_set(&row, "id", Int64GetDatum(taken.run.id));
			result_row_set(&row, "attempt", Int32GetDatum(taken.run.attempt));
			result_row_set(&row, "start", TimestampTzGetDatum(taken.run.claimed));
			set_progress(&row, &taken.progress, database.encoding);
		}
		end_row(&row, result);
	}
}

/* pg_task_activity(): the tasks that run now, in all databases; rights as in pg_stat_activity. */
Datum
pg_task_activity(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, 12);
	bool sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	int i;

	for (i = 0; Shared && i < Shared->nexecutors; i++)
	{
		Activity activity;
		ResultRow row;

		if (!activity_read(&Shared->executors[i].activity, &activity))
			continue;
		result_row_begin(&row, result->setDesc);
		set_name(&row, "database", get_database_name(activity.database));
		set_name(&row, "role", GetUserNameFromId(activity.role, true));
		result_row_set(&row, "pid", Int32GetDatum(activity.pid));
		if (!sees_all && !has_privs_of_role(GetUserId(), activity.role))
		{
			end_row(&row, result);
			continue;
		}
		/* the rest is for those who may see the request in pg_stat_activity */
		result_row_set(&row, "relid", ObjectIdGetDatum(activity.relid));
		set_text(&row, "queue", activity.queue, activity.encoding);
		result_row_set(&row, "id", Int64GetDatum(activity.run.id));
		result_row_set(&row, "attempt", Int32GetDatum(activity.run.attempt));
		result_row_set(&row, "start", TimestampTzGetDatum(activity.start));
		if (activity.timeout > 0)
		{
			Interval *timeout = palloc0(sizeof(Interval));

			timeout->time = activity.timeout;
			result_row_set(&row, "timeout", IntervalPGetDatum(timeout));
		}
		set_progress(&row, &activity.progress, activity.encoding);
		end_row(&row, result);
	}
	if (Shared)
		add_taken(result, sees_all);
	return (Datum) 0;
}

/*
 * pg_task_progress(done, total, message): the task that calls this has come so far.  Does nothing
 * outside of a task, so that a function that calls it can be called from anywhere.
 */
Datum
pg_task_progress(PG_FUNCTION_ARGS)
{
	/* parallel workers of the task have none */
	if (MyExecutor)
	{
		ProgressReport report = progress_of_arguments(fcinfo, 0);

		activity_progress(&MyExecutor->activity, &report);
	}
	PG_RETURN_VOID();
}

/* ---- what has run ---- */

/* Two columns: the sum in milliseconds, and the histogram. */
static void
set_times(ResultRow *row, const char *sum, const char *histogram, const StatTimes *times)
{
	Datum buckets[STAT_BUCKETS];
	int i;

	for (i = 0; i < STAT_BUCKETS; i++)
		buckets[i] = Int64GetDatum(times->buckets[i]);
	result_row_set(row, sum, Float8GetDatum((double) times->total / 1000));
	result_row_set(row, histogram,
				   PointerGetDatum(construct_array(buckets, STAT_BUCKETS, INT8OID, sizeof(int64),
												   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)));
}

/* The database and the name of the queue.  False if it was dropped, or the caller may not see it.
 */
static bool
set_queue(ResultRow *row, const StatRecord *record)
{
	DatabaseInfo database;

	if (!OidIsValid(record->database))
		return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	if (!find_database(record->database, &database) || !database.is_open)
		return false;
	set_name(row, "datname", NameStr(database.name));
	set_text(row, "queue", record->queue, database.encoding);
	return true;
}

/* pg_stat_task(): a row for each database and queue, and one for the queues without a row. */
Datum
pg_stat_task(PG_FUNCTION_ARGS)
{
	static const char *const counters[STAT_COUNTERS] = {"planned", "started",	"done",
														"failed",  "retried",	"stopped",
														"gone",	   "timed_out", "crashed"};
	ReturnSetInfo *result = result_set_begin(fcinfo, 17);
	StatRecord record;
	int i;
	int j;

	for (i = 0; Shared && statistics_read(i, &record); i++)
	{
		ResultRow row;

		CHECK_FOR_INTERRUPTS();
		result_row_begin(&row, result->setDesc);
		if (record.since == 0 || !set_queue(&row, &record))
			continue;
		for (j = 0; j < STAT_COUNTERS; j++)
			result_row_set(&row, counters[j], Int64GetDatum(record.counts.counters[j]));
		set_times(&row, "wait_time", "wait_histogram", &record.counts.wait);
		set_times(&row, "run_time", "run_histogram", &record.counts.run);
		if (record.counts.last_start != 0)
			result_row_set(&row, "last_start", TimestampTzGetDatum(record.counts.last_start));
		result_row_set(&row, "stats_since", TimestampTzGetDatum(record.since));
		end_row(&row, result);
	}
	return (Datum) 0;
}

/*
 * pg_stat_task_reset(database, queue): forget these figures; NULL is any of them.  EXECUTE is
 * granted to nobody.
 */
Datum
pg_stat_task_reset(PG_FUNCTION_ARGS)
{
	Oid database = InvalidOid;

	if (!PG_ARGISNULL(0))
		database = get_database_oid(NameStr(*PG_GETARG_NAME(0)), false);
	if (Shared)
		statistics_reset(PG_ARGISNULL(0) ? NULL : &database,
						 PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)));
	PG_RETURN_VOID();
}

/* ---- schedulers ---- */

/* A database and its scheduler, as they were at one moment. */
typedef struct DatabaseFigures
{
	SharedDatabase database;
	bool has_slot;
	SchedulerState state;
	int proc;
	Oid relid;
	bool prepared; /* its scheduler has prepared the table */
	int64 figures[SCHEDULER_FIGURES];
	int executors;
	int busy;
} DatabaseFigures;

/* Copy what the slot of a scheduler says.  The caller holds the directory lock. */
static void
copy_slot(SharedScheduler *slot, DatabaseFigures *figures)
{
	SchedulerFigure which;

	figures->has_slot = true;
	figures->state = slot->state;
	figures->proc = slot->proc;
	LWLockAcquire(slot->lock, LW_SHARED);
	figures->prepared = OidIsValid(slot->relid);
	if (figures->prepared)
		figures->relid = slot->relid;
	LWLockRelease(slot->lock);
	/* before it has attached, they are of an earlier process */
	for (which = 0; which < SCHEDULER_FIGURES && slot->proc != SHARED_NO_PROC; which++)
		figures->figures[which] = (int64) pg_atomic_read_u64(&slot->figures[which]);
}

/* Count the executors of a database.  The caller holds the directory lock. */
static void
count_executors(DatabaseFigures *figures)
{
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *slot = &Shared->executors[i];

		if (slot->state == EXECUTOR_FREE || slot->database != figures->database.database)
			continue;
		LWLockAcquire(slot->lock, LW_SHARED);
		figures->executors++;
		figures->busy += slot->reserved || slot->assigned != slot->done;
		LWLockRelease(slot->lock);
	}
}

/*
 * Copy what is known of all databases that are served.  Returns their number.  Bounded by
 * SHARED_DATABASES and the number of slots.
 */
static int
copy_databases(DatabaseFigures *all)
{
	int count = 0;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->ndatabases; i++)
	{
		SharedDatabase *entry = &Shared->databases[i];
		DatabaseFigures *figures = &all[count];
		SharedScheduler *slot;

		if (!OidIsValid(entry->database))
			continue;
		memset(figures, 0, sizeof(DatabaseFigures));
		figures->database = *entry;
		figures->relid = entry->found.relid;
		slot = scheduler_slot_find(entry->database);
		if (slot)
			copy_slot(slot, figures);
		count_executors(figures);
		count++;
	}
	LWLockRelease(Shared->directory);
	return count;
}

/* The state of a database's scheduler, as users see it. */
static const char *
state_text(const DatabaseFigures *figures, TimestampTz now)
{
	const SharedDatabase *database = &figures->database;

	if (figures->has_slot)
	{
		if (figures->state == SCHEDULER_LEAVING)
			return "leaving";
		if (figures->state == SCHEDULER_STARTING || !figures->prepared)
			return "starting";
		if (database->found.away)
			return "held back";
		return shared_lacks_standby() ? "no standby" : "running";
	}
	if (crash_holds(database->database))
		return "held back";
	if (database->found.unserved || (database->found.absent && !OidIsValid(database->found.user)))
		return "not served";
	if (database->found.disabled)
		return "disabled";
	if (database->found.absent)
		return "no table";
	if (database->found.away)
		return "held back";
	if (shared_lacks_standby())
		return "no standby";
	if (database->marked.us == 0 && now < database->found.due)
		return "asleep";
	return "waiting";
}

/* Fill the row of a database.  False if it was dropped meanwhile. */
static bool
fill_row(ResultRow *row, TupleDesc desc, const DatabaseFigures *figures, ClockNow now)
{
	const SharedError *error = &figures->database.found.error;
	const int64 *published = figures->figures;
	TimestampTz next = figures->database.found.due; /* as its last scheduler has left it */
	MonoTime wants_since = figures->database.wants_since;
	const char *state = state_text(figures, now.wall);
	DatabaseInfo database;

	if (!find_database(figures->database.database, &database))
		return false;
	result_row_begin(row, desc);
	set_name(row, "datname", NameStr(database.name));
	if (OidIsValid(figures->relid))
		result_row_set(row, "relid", ObjectIdGetDatum(figures->relid));
	result_row_set(row, "state", CStringGetTextDatum(state));
	if (figures->has_slot && figures->proc != SHARED_NO_PROC)
	{
		result_row_set(row, "pid", Int32GetDatum(GetPGProcByNumber(figures->proc)->pid));
		result_row_set(row, "begun", TimestampTzGetDatum(published[FIGURE_BEGUN]));
		result_row_set(row, "iterations", Int64GetDatum(published[FIGURE_ITERATIONS]));
		result_row_set(row, "claimed", Int64GetDatum(published[FIGURE_CLAIMED]));
		result_row_set(row, "missed", Int64GetDatum(published[FIGURE_MISSED]));
		result_row_set(row, "errors", Int64GetDatum(published[FIGURE_ERRORS]));
		result_row_set(row, "held", Int32GetDatum((int32) published[FIGURE_HELD]));
		result_row_set(row, "wanted", Int32GetDatum((int32) published[FIGURE_WANTED]));
		next = published[FIGURE_OLDEST];
		/* what is planned for later is not due */
		if (next <= now.wall)
			result_row_set(row, "oldest_due", TimestampTzGetDatum(next));
	}
	if (next > now.wall && !TIMESTAMP_NOT_FINITE(next))
		result_row_set(row, "next_due", TimestampTzGetDatum(next));
	result_row_set(row, "executors", Int32GetDatum(figures->executors));
	result_row_set(row, "busy", Int32GetDatum(figures->busy));
	/* a database that is not served any more may have left one */
	if (wants_since.us != 0 && (figures->has_slot || strcmp(state, "waiting") == 0))
		result_row_set(row, "wants_since",
					   TimestampTzGetDatum(now.wall - (now.mono.us - wants_since.us)));
	/* it may quote what is in rows */
	if (error->at != 0 && database.is_open)
	{
		set_text(row, "error", error->message, database.encoding);
		result_row_set(row, "error_at", TimestampTzGetDatum(error->at));
	}
	return true;
}

/* pg_stat_task_scheduler(): a row for each database that is served. */
Datum
pg_stat_task_scheduler(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, 18);
	DatabaseFigures *all;
	ResultRow row;
	int count;
	int i;

	if (Shared == NULL)
		return (Datum) 0;
	all = palloc_array(DatabaseFigures, SHARED_DATABASES);
	count = copy_databases(all);
	for (i = 0; i < count; i++)
		if (fill_row(&row, result->setDesc, &all[i], clock_now()))
			end_row(&row, result);
	return (Datum) 0;
}
