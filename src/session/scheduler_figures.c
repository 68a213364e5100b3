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

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "session/result_set.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/survey.h"

PGDLLEXPORT Datum pg_stat_task_scheduler(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_stat_task_scheduler);

/* The columns of the result, in order. */
typedef enum ResultColumn
{
	RESULT_DATID,
	RESULT_DATNAME,
	RESULT_RELID,
	RESULT_PID,
	RESULT_STATE,
	RESULT_BEGUN,
	RESULT_ITERATIONS,
	RESULT_CLAIMS,
	RESULT_CLAIMED,
	RESULT_MISSED,
	RESULT_SCANS,
	RESULT_ERRORS,
	RESULT_GROUPS,
	RESULT_PARKED,
	RESULT_REFUSED,
	RESULT_SUSPECTS,
	RESULT_ORPHANS,
	RESULT_LOCKED,
	RESULT_OLDEST,
	RESULT_EXECUTORS,
	RESULT_BUSY,
	RESULT_WANTED,
	RESULT_WANTS_SINCE,
	RESULT_ERROR,
	RESULT_SQLSTATE,
	RESULT_ERROR_AT,
	RESULT_COLUMNS
} ResultColumn;

/* A row of the result. */
typedef struct ResultRow
{
	Datum values[RESULT_COLUMNS];
	bool nulls[RESULT_COLUMNS];
} ResultRow;

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
	for (i = 0; i < SHARED_DATABASES; i++)
	{
		SharedDatabase *entry = &Shared->databases[i];
		DatabaseFigures *figures = &all[count];
		SharedScheduler *slot;

		if (!OidIsValid(entry->database))
			continue;
		memset(figures, 0, sizeof(DatabaseFigures));
		figures->database = *entry;
		figures->relid = entry->relid;
		slot = scheduler_slot_find(entry->database);
		if (slot)
			copy_slot(slot, figures);
		survey_count_executors(entry->database, &figures->executors, &figures->busy);
		count++;
	}
	LWLockRelease(Shared->directory);
	return count;
}

static void
set_value(ResultRow *row, ResultColumn which, Datum value)
{
	row->values[which] = value;
	row->nulls[which] = false;
}

static void
set_int32(ResultRow *row, ResultColumn which, int64 value)
{
	set_value(row, which, Int32GetDatum((int32) value));
}

/* The state of a database without a scheduler, as users see it. */
static const char *
state_without_scheduler(const SharedDatabase *database, MonoTime now)
{
	if (crash_holds(database->database))
		return "held back";
	if (database->disabled)
		return "disabled";
	if (database->absent)
		return "no table";
	if (database->away)
		return "held back";
	if (database->marked.us == 0 && clock_is_before(now, database->due))
		return "asleep";
	return "waiting";
}

/* The state of a database's scheduler, as users see it. */
static const char *
state_text(const DatabaseFigures *figures, MonoTime now)
{
	if (!figures->has_slot)
		return state_without_scheduler(&figures->database, now);
	if (figures->state == SCHEDULER_LEAVING)
		return "leaving";
	if (figures->state == SCHEDULER_STARTING || !OidIsValid(figures->relid))
		return "starting";
	return figures->database.away ? "held back" : "running";
}

/* What the process has published. */
static void
fill_figures(ResultRow *row, const int64 *figures)
{
	static const struct
	{
		ResultColumn column;
		SchedulerFigure figure;
		bool counter;
	} map[] = {
		{RESULT_ITERATIONS, FIGURE_ITERATIONS, true}, {RESULT_CLAIMS, FIGURE_CLAIMS, true},
		{RESULT_CLAIMED, FIGURE_CLAIMED, true},		  {RESULT_MISSED, FIGURE_MISSED, true},
		{RESULT_SCANS, FIGURE_SCANS, true},			  {RESULT_ERRORS, FIGURE_ERRORS, true},
		{RESULT_GROUPS, FIGURE_GROUPS, false},		  {RESULT_PARKED, FIGURE_PARKED, false},
		{RESULT_REFUSED, FIGURE_REFUSED, false},	  {RESULT_SUSPECTS, FIGURE_SUSPECTS, false},
		{RESULT_ORPHANS, FIGURE_ORPHANS, false},	  {RESULT_LOCKED, FIGURE_LOCKED, false},
		{RESULT_WANTED, FIGURE_WANTED, false},
	};
	TimestampTz oldest = figures[FIGURE_OLDEST];
	int i;

	set_value(row, RESULT_BEGUN, TimestampTzGetDatum(figures[FIGURE_BEGUN]));
	for (i = 0; i < (int) lengthof(map); i++)
		if (map[i].counter)
			set_value(row, map[i].column, Int64GetDatum(figures[map[i].figure]));
		else
			set_int32(row, map[i].column, figures[map[i].figure]);
	/* what is planned for later is not due */
	if (figures[FIGURE_SCANS] > 0 && oldest <= GetCurrentTimestamp())
		set_value(row, RESULT_OLDEST, TimestampTzGetDatum(oldest));
}

/* May the caller see the error of this database?  It may quote what is in rows. */
static bool
may_see_error(Oid database)
{
	HeapTuple tuple;
	Oid owner;

	if (has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS))
		return true;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	owner = HeapTupleIsValid(tuple) ? ((Form_pg_database) GETSTRUCT(tuple))->datdba : InvalidOid;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return OidIsValid(owner) && has_privs_of_role(GetUserId(), owner);
}

/* A text of a database with this encoding: what cannot be converted is a question mark. */
static char *
text_from(const char *text, int encoding)
{
	char *copy = pstrdup(text);
	char *next;

	if (encoding != GetDatabaseEncoding())
		for (next = copy; *next; next++)
			if (IS_HIGHBIT_SET(*next))
				*next = '?';
	return copy;
}

static void
fill_error(ResultRow *row, const SharedError *error, int encoding)
{
	set_value(row, RESULT_ERROR, CStringGetTextDatum(text_from(error->message, encoding)));
	set_value(row, RESULT_SQLSTATE, CStringGetTextDatum(error->sqlstate));
	set_value(row, RESULT_ERROR_AT, TimestampTzGetDatum(error->at));
}

/* Fill the row of a database.  False if it was dropped meanwhile. */
static bool
fill_row(ResultRow *row, const DatabaseFigures *figures, ClockNow now)
{
	const SharedDatabase *database = &figures->database;
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database->database));
	int encoding;

	if (!HeapTupleIsValid(tuple))
		return false;
	memset(row->nulls, true, sizeof(row->nulls));
	set_value(row, RESULT_DATID, ObjectIdGetDatum(database->database));
	set_value(row, RESULT_DATNAME,
			  DirectFunctionCall1(namein, CStringGetDatum(NameStr(
											  ((Form_pg_database) GETSTRUCT(tuple))->datname))));
	encoding = ((Form_pg_database) GETSTRUCT(tuple))->encoding;
	ReleaseSysCache(tuple);
	if (OidIsValid(figures->relid))
		set_value(row, RESULT_RELID, ObjectIdGetDatum(figures->relid));
	set_value(row, RESULT_STATE, CStringGetTextDatum(state_text(figures, now.mono)));
	if (figures->has_slot && figures->proc != SHARED_NO_PROC)
	{
		set_int32(row, RESULT_PID, GetPGProcByNumber(figures->proc)->pid);
		fill_figures(row, figures->figures);
	}
	set_int32(row, RESULT_EXECUTORS, figures->executors);
	set_int32(row, RESULT_BUSY, figures->busy);
	if (figures->has_slot && figures->wants)
		set_value(row, RESULT_WANTS_SINCE,
				  TimestampTzGetDatum(now.wall - (now.mono.us - figures->wants_since.us)));
	if (database->error.at != 0 && may_see_error(database->database))
		fill_error(row, &database->error, encoding);
	return true;
}

/* pg_stat_task_scheduler(): a row for each database that is served. */
Datum
pg_stat_task_scheduler(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo);
	DatabaseFigures *all;
	ResultRow row;
	int count;
	int i;

	result_set_check(result, RESULT_COLUMNS);
	if (Shared == NULL)
		return (Datum) 0;
	all = palloc_array(DatabaseFigures, SHARED_DATABASES);
	count = copy_databases(all);
	for (i = 0; i < count; i++)
		if (fill_row(&row, &all[i], clock_now()))
			tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
	return (Datum) 0;
}
