/*
 * scheduler_figures.c
 *		pg_stat_task_scheduler: what the scheduler of each database does, and what it waits for.
 *
 * Everything is read from shared memory; the databases and roles, from the catalogs.  The figures
 * of a scheduler are read without a lock, and each of them is exact for itself.
 *
 * This file changes nothing, and knows no task.
 */
#include "postgres.h"

#include "fmgr.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "session/result_set.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"

PGDLLEXPORT Datum pg_stat_task_scheduler(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_stat_task_scheduler);

/* The columns of the result, in order. */
typedef enum ResultColumn
{
	RESULT_DATNAME,
	RESULT_RELID,
	RESULT_PID,
	RESULT_STATE,
	RESULT_BEGUN,
	RESULT_ITERATIONS,
	RESULT_CLAIMED,
	RESULT_MISSED,
	RESULT_ERRORS,
	RESULT_HELD,
	RESULT_OLDEST,
	RESULT_EXECUTORS,
	RESULT_BUSY,
	RESULT_WANTED,
	RESULT_WANTS_SINCE,
	RESULT_ERROR,
	RESULT_ERROR_AT,
	RESULT_COLUMNS
} ResultColumn;

/* A database and its scheduler, as they were at one moment. */
typedef struct DatabaseFigures
{
	SharedDatabase database;
	bool has_slot;
	SchedulerState state;
	int proc;
	Oid relid;
	bool wants;
	MonoTime wants_since;
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
	figures->wants = slot->wants;
	figures->wants_since = slot->wants_since;
	LWLockAcquire(slot->lock, LW_SHARED);
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

/* The state of a database without a scheduler, as users see it. */
static const char *
state_without_scheduler(const SharedDatabase *database)
{
	if (crash_holds(database->database))
		return "held back";
	if (database->found.disabled)
		return "disabled";
	if (database->found.absent)
		return "no table";
	if (database->found.away)
		return "held back";
	if (database->marked.us == 0 && GetCurrentTimestamp() < database->found.due)
		return "asleep";
	return "waiting";
}

/* The state of a database's scheduler, as users see it. */
static const char *
state_text(const DatabaseFigures *figures)
{
	if (!figures->has_slot)
		return state_without_scheduler(&figures->database);
	if (figures->state == SCHEDULER_LEAVING)
		return "leaving";
	if (figures->state == SCHEDULER_STARTING || !OidIsValid(figures->relid))
		return "starting";
	return figures->database.found.away ? "held back" : "running";
}

/* What the process has published. */
static void
fill_figures(ResultRow *row, const int64 *figures)
{
	TimestampTz oldest = figures[FIGURE_OLDEST];

	result_row_set(row, RESULT_BEGUN, TimestampTzGetDatum(figures[FIGURE_BEGUN]));
	result_row_set(row, RESULT_ITERATIONS, Int64GetDatum(figures[FIGURE_ITERATIONS]));
	result_row_set(row, RESULT_CLAIMED, Int64GetDatum(figures[FIGURE_CLAIMED]));
	result_row_set(row, RESULT_MISSED, Int64GetDatum(figures[FIGURE_MISSED]));
	result_row_set(row, RESULT_ERRORS, Int64GetDatum(figures[FIGURE_ERRORS]));
	result_row_set(row, RESULT_HELD, Int32GetDatum((int32) figures[FIGURE_HELD]));
	result_row_set(row, RESULT_WANTED, Int32GetDatum((int32) figures[FIGURE_WANTED]));
	/* what is planned for later is not due */
	if (oldest <= GetCurrentTimestamp())
		result_row_set(row, RESULT_OLDEST, TimestampTzGetDatum(oldest));
}

/* Fill the row of a database.  False if it was dropped meanwhile. */
static bool
fill_row(ResultRow *row, const DatabaseFigures *figures, ClockNow now)
{
	const SharedError *error = &figures->database.found.error;
	ResultDatabase database;

	if (!result_database_find(figures->database.database, &database))
		return false;
	result_row_begin(row);
	result_row_set_name(row, RESULT_DATNAME, NameStr(database.name));
	if (OidIsValid(figures->relid))
		result_row_set(row, RESULT_RELID, ObjectIdGetDatum(figures->relid));
	result_row_set(row, RESULT_STATE, CStringGetTextDatum(state_text(figures)));
	if (figures->has_slot && figures->proc != SHARED_NO_PROC)
	{
		result_row_set(row, RESULT_PID, Int32GetDatum(GetPGProcByNumber(figures->proc)->pid));
		fill_figures(row, figures->figures);
	}
	result_row_set(row, RESULT_EXECUTORS, Int32GetDatum(figures->executors));
	result_row_set(row, RESULT_BUSY, Int32GetDatum(figures->busy));
	if (figures->has_slot && figures->wants)
		result_row_set(row, RESULT_WANTS_SINCE,
					   TimestampTzGetDatum(now.wall - (now.mono.us - figures->wants_since.us)));
	/* it may quote what is in rows */
	if (error->at != 0 && database.is_open)
	{
		result_row_set(row, RESULT_ERROR,
					   PointerGetDatum(result_text(error->message, database.encoding)));
		result_row_set(row, RESULT_ERROR_AT, TimestampTzGetDatum(error->at));
	}
	return true;
}

/* pg_stat_task_scheduler(): a row for each database that is served. */
Datum
pg_stat_task_scheduler(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, RESULT_COLUMNS);
	DatabaseFigures *all;
	ResultRow row;
	int count;
	int i;

	if (Shared == NULL)
		return (Datum) 0;
	all = palloc_array(DatabaseFigures, SHARED_DATABASES);
	count = copy_databases(all);
	for (i = 0; i < count; i++)
		if (fill_row(&row, &all[i], clock_now()))
			result_row_end(&row, result);
	return (Datum) 0;
}
