/*
 * statistics.c
 *		The functions that SQL calls for the figures of tasks: pg_stat_task, pg_stat_task_reset.
 *
 * They read and reset shared memory only.  Who is a member of the owner of a database sees its
 * figures, and a member of pg_read_all_stats those of all.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "session/result_set.h"
#include "shared/statistics.h"

PGDLLEXPORT Datum pg_stat_task(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_stat_task_reset(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_stat_task);
PG_FUNCTION_INFO_V1(pg_stat_task_reset);

/* The columns of pg_stat_task, in order.  The counters are those of StatCounter. */
typedef enum ResultColumn
{
	RESULT_DATNAME,
	RESULT_QUEUE,
	RESULT_COUNTERS,
	RESULT_WAIT = RESULT_COUNTERS + STAT_COUNTERS,
	RESULT_RUN = RESULT_WAIT + 2,
	RESULT_SINCE = RESULT_RUN + 2,
	RESULT_COLUMNS
} ResultColumn;

/* Two columns: the sum in milliseconds, and the histogram. */
static void
set_times(ResultRow *row, int first, const StatTimes *times)
{
	Datum buckets[STAT_BUCKETS];
	int i;

	for (i = 0; i < STAT_BUCKETS; i++)
		buckets[i] = Int64GetDatum(times->buckets[i]);
	result_row_set(row, first, Float8GetDatum((double) times->total / 1000));
	result_row_set(row, first + 1,
				   PointerGetDatum(construct_array(buckets, STAT_BUCKETS, INT8OID, sizeof(int64),
												   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)));
}

/* The database and the name of the queue.  False if it was dropped, or the caller may not see it.
 */
static bool
set_queue(ResultRow *row, const StatRecord *record)
{
	ResultDatabase database;

	if (!OidIsValid(record->database))
		return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	if (!result_database_find(record->database, &database) || !database.is_open)
		return false;
	result_row_set_name(row, RESULT_DATNAME, NameStr(database.name));
	result_row_set(row, RESULT_QUEUE,
				   PointerGetDatum(result_text(record->queue, database.encoding)));
	return true;
}

/* pg_stat_task(): a row for each database and queue, and one for the queues without a row. */
Datum
pg_stat_task(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, RESULT_COLUMNS);
	StatRecord record;
	int i;
	int j;

	for (i = 0; Statistics && statistics_read(i, &record); i++)
	{
		ResultRow row;

		CHECK_FOR_INTERRUPTS();
		result_row_begin(&row);
		if (record.since == 0 || !set_queue(&row, &record))
			continue;
		for (j = 0; j < STAT_COUNTERS; j++)
			result_row_set(&row, RESULT_COUNTERS + j, Int64GetDatum(record.counts.counters[j]));
		set_times(&row, RESULT_WAIT, &record.counts.wait);
		set_times(&row, RESULT_RUN, &record.counts.run);
		result_row_set(&row, RESULT_SINCE, TimestampTzGetDatum(record.since));
		result_row_end(&row, result);
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
	if (Statistics)
		statistics_reset(PG_ARGISNULL(0) ? NULL : &database,
						 PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)));
	PG_RETURN_VOID();
}
