/*
 * statistics.c
 *		The functions that SQL calls for the figures of tasks: pg_stat_task, pg_stat_task_info,
 *		pg_stat_task_reset.
 *
 * They read and reset shared memory only.  A role sees the figures of roles whose privileges it
 * has, as in pg_stat_activity.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "session/encoding.h"
#include "session/result_set.h"
#include "shared/statistics.h"

PGDLLEXPORT Datum pg_stat_task(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_stat_task_info(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_stat_task_reset(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_stat_task);
PG_FUNCTION_INFO_V1(pg_stat_task_info);
PG_FUNCTION_INFO_V1(pg_stat_task_reset);

/* The columns of pg_stat_task, in order.  The counters are those of StatCounter. */
typedef enum ResultColumn
{
	RESULT_DATID,
	RESULT_DATNAME,
	RESULT_QUEUE,
	RESULT_ROLE,
	RESULT_COUNTERS,
	RESULT_WAIT = RESULT_COUNTERS + STAT_COUNTERS,
	RESULT_RUN = RESULT_WAIT + 3,
	RESULT_SINCE = RESULT_RUN + 3,
	RESULT_COLUMNS
} ResultColumn;

/* Three columns: total and maximum in milliseconds, and the histogram. */
static void
set_times(ResultRow *row, int first, const StatTimes *times)
{
	Datum buckets[STAT_BUCKETS];
	int i;

	for (i = 0; i < STAT_BUCKETS; i++)
		buckets[i] = Int64GetDatum(times->buckets[i]);
	result_row_set(row, first, Float8GetDatum((double) times->total / 1000));
	result_row_set(row, first + 1, Float8GetDatum((double) times->max / 1000));
	result_row_set(row, first + 2,
				   PointerGetDatum(construct_array(buckets, STAT_BUCKETS, INT8OID, sizeof(int64),
												   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)));
}

/*
 * The database and the name of the queue, which is text of that database.  Of a database that is
 * gone, only what is ASCII in it is shown.
 */
static void
set_queue(ResultRow *row, const StatKey *key)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(key->database));
	int encoding = PG_SQL_ASCII;

	result_row_set(row, RESULT_DATID, ObjectIdGetDatum(key->database));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		NameData *name = palloc(sizeof(NameData));

		*name = database->datname;
		encoding = database->encoding;
		result_row_set(row, RESULT_DATNAME, NameGetDatum(name));
		ReleaseSysCache(tuple);
	}
	result_row_set(row, RESULT_QUEUE, PointerGetDatum(encoding_text(key->queue, encoding)));
}

static ResultRow
make_row(const StatRecord *record)
{
	const char *role = GetUserNameFromId(record->key.role, true);
	ResultRow row;
	int i;

	result_row_begin(&row);
	set_queue(&row, &record->key);
	if (role)
		result_row_set(&row, RESULT_ROLE, DirectFunctionCall1(namein, CStringGetDatum(role)));
	for (i = 0; i < STAT_COUNTERS; i++)
		result_row_set(&row, RESULT_COUNTERS + i, Int64GetDatum(record->counts.counters[i]));
	set_times(&row, RESULT_WAIT, &record->counts.wait);
	set_times(&row, RESULT_RUN, &record->counts.run);
	result_row_set(&row, RESULT_SINCE, TimestampTzGetDatum(record->since));
	return row;
}

/* pg_stat_task(): a row for each database, queue and role that the caller may see. */
Datum
pg_stat_task(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo);
	bool all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	StatRecord *records;
	int count;
	int i;

	result_set_check(result, RESULT_COLUMNS);
	if (Statistics == NULL)
		return (Datum) 0;
	records = statistics_read(&count);
	for (i = 0; i < count; i++)
	{
		ResultRow row;

		if (!all && !has_privs_of_role(GetUserId(), records[i].key.role))
			continue;
		row = make_row(&records[i]);
		result_row_end(&row, result);
	}
	return (Datum) 0;
}

/* pg_stat_task_info(): how many entries were dropped to make room, and since when that counts. */
Datum
pg_stat_task_info(PG_FUNCTION_ARGS)
{
	Datum values[2] = {0};
	bool nulls[2] = {true, true};
	TupleDesc desc = result_row_desc(fcinfo, lengthof(values));

	if (Statistics)
	{
		TimestampTz reset;
		int64 evicted;

		statistics_totals(&evicted, &reset);
		values[0] = Int64GetDatum(evicted);
		values[1] = TimestampTzGetDatum(reset);
		nulls[0] = nulls[1] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * pg_stat_task_reset(database, queue, role): forget these figures; NULL is any of them.  EXECUTE is
 * granted to nobody.
 */
Datum
pg_stat_task_reset(PG_FUNCTION_ARGS)
{
	Oid database = InvalidOid;
	Oid role = InvalidOid;

	if (!PG_ARGISNULL(0))
		database = get_database_oid(NameStr(*PG_GETARG_NAME(0)), false);
	if (!PG_ARGISNULL(2))
		role = get_role_oid(NameStr(*PG_GETARG_NAME(2)), false);
	if (Statistics)
		statistics_reset(PG_ARGISNULL(0) ? NULL : &database, PG_ARGISNULL(2) ? NULL : &role,
						 PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)));
	PG_RETURN_VOID();
}
