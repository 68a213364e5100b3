/*
 * reports.c
 *		Functions that answer a user's questions on tasks by one query each: pg_task_queues,
 *		pg_task_stats, pg_task_failures, pg_task_recent, pg_task_repeating, pg_task_status.
 *
 * Each is a statement on the task table of this database, which is found as for pg_task_cancel,
 * because its name may be set.  In SQL the functions have a fixed search_path, so the statements
 * need no schema for operators.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "session/numbering.h"
#include "session/result_set.h"
#include "session/table_access.h"
#include "settings.h"

PGDLLEXPORT Datum pg_task_queues(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_stats(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_failures(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_recent(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_repeating(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_status(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_queues);
PG_FUNCTION_INFO_V1(pg_task_stats);
PG_FUNCTION_INFO_V1(pg_task_failures);
PG_FUNCTION_INFO_V1(pg_task_recent);
PG_FUNCTION_INFO_V1(pg_task_repeating);
PG_FUNCTION_INFO_V1(pg_task_status);

/* Return the text with each "name" replaced. */
static char *
replace_name(const char *sql, const char *name, const char *value)
{
	Datum result = DirectFunctionCall3Coll(replace_text, C_COLLATION_OID, CStringGetTextDatum(sql),
										   CStringGetTextDatum(name), CStringGetTextDatum(value));

	return TextDatumGetCString(result);
}

/* So many of the last ids, and of the first rows, are looked at. */
#define LAST_ROWS 1000

/*
 * A condition that few rows n fulfil, the last ones: a role to which row security shows few of many
 * rows would pass over all others to find as many of its own.  The ids may count down.
 */
static char *
recent_condition(Oid relid)
{
	int64 low;
	int64 high;

	if (!numbering_recent(relid, LAST_ROWS, &low, &high))
		return "true"; /* the table has no sequence of its own */
	return psprintf("n.id BETWEEN '" INT64_FORMAT "' AND '" INT64_FORMAT "'", low, high);
}

/* Replace the names of the task table, of its last rows and the like in a statement. */
static char *
fill_names(const TableAccess *access, const char *sql)
{
	char *result = replace_name(sql, "{rows}", access->rows);

	result = replace_name(result, "{recent}", recent_condition(access->relid));
	result = replace_name(result, "{relid}", psprintf("%u", access->relid));
	result = replace_name(result, "{sees_all}", access->sees_all ? "true" : "false");
	return replace_name(result, "{executors}", psprintf("%d", Settings.max_executors));
}

/*
 * Execute a statement on the task table, {rows}, and return its rows as those of the function.  $1
 * is the first argument of the function, if it has one.
 */
static Datum
return_rows(FunctionCallInfo fcinfo, AccessKind kind, const char *sql, Oid type)
{
	ReturnSetInfo *result = result_set_begin(fcinfo);
	TableAccess access = table_access_open(kind);
	AccessStatement read = {.sql = fill_names(&access, sql),
							.count = OidIsValid(type) ? 1 : 0,
							.types = &type,
							.values = &fcinfo->args[0].value};

	SPI_connect();
	table_access_fill(&access, &read, result->setResult, result->setDesc);
	SPI_finish();
	return (Datum) 0;
}

/* clang-format off */

/*
 * Is the task of this row due?  What never starts is not.
 */
#define DUE "t.dt <= clock_timestamp() AND coalesce(t.max, 2147483647) <> 0"

/*
 * What waits and runs is found by the indexes of waiting and running rows, so it takes as long as
 * there are such rows, however long the history.  No index has the failures: they are those among
 * the rows with the last ids.
 */

static const char queues_sql[] =
	"SELECT q.queue, sum(q.waits)::int8, sum(q.due)::int8, sum(q.runs)::int8,"
	"       sum(q.failed)::int8, min(q.oldest)"
	"  FROM (SELECT t.queue COLLATE \"C\" AS queue, count(*) AS waits,"
	"               count(*) FILTER (WHERE " DUE ") AS due, 0 AS runs, 0 AS failed,"
	"               min(t.dt) FILTER (WHERE " DUE ") AS oldest"
	"          FROM {rows} AS t WHERE t.state = 'PLAN' AND t.waits IS NULL GROUP BY 1"
	"         UNION ALL"
	"        SELECT t.queue COLLATE \"C\", count(*), 0, 0, 0, NULL"
	"          FROM {rows} AS t WHERE t.state = 'PLAN' AND t.waits IS NOT NULL GROUP BY 1"
	"         UNION ALL"
	"        SELECT t.queue COLLATE \"C\", 0, 0, count(*), 0, NULL"
	"          FROM {rows} AS t WHERE t.state = 'WORK' GROUP BY 1"
	"         UNION ALL"
	"        SELECT t.queue COLLATE \"C\", 0, 0, 0, count(*), NULL"
	"          FROM (SELECT n.queue, n.state FROM {rows} AS n WHERE {recent}"
	"                 ORDER BY n.id DESC LIMIT " CppAsString2(LAST_ROWS) ") AS t"
	"         WHERE t.state IN ('FAIL', 'GONE') GROUP BY 1) AS q"
	" GROUP BY q.queue ORDER BY min(q.oldest), q.queue";

/*
 * A task that was retried has waited since the time of its last retry.  Who may UPDATE a row may
 * write infinity into it, and no version before 17 subtracts that.
 */
static const char stats_sql[] =
	"SELECT t.queue, count(*), count(*) FILTER (WHERE t.state = 'FAIL'),"
	"       count(*) FILTER (WHERE t.state = 'GONE'),"
	"       percentile_cont(0.5) WITHIN GROUP (ORDER BY t.waited),"
	"       percentile_cont(0.95) WITHIN GROUP (ORDER BY t.waited),"
	"       percentile_cont(0.5) WITHIN GROUP (ORDER BY t.ran),"
	"       percentile_cont(0.95) WITHIN GROUP (ORDER BY t.ran),"
	"       (count(*) / (extract(epoch FROM $1) / 60))::float8"
	"  FROM (SELECT s.queue COLLATE \"C\" AS queue, s.state,"
	"               CASE WHEN s.state <> 'GONE' AND isfinite(s.start) AND isfinite(s.dt)"
	"                    THEN greatest(s.start - s.dt, '0') END AS waited,"
	"               CASE WHEN s.state <> 'GONE' AND isfinite(s.start) AND isfinite(s.stop)"
	"                    THEN s.stop - s.start END AS ran"
	"          FROM {rows} AS s"
	"         WHERE s.state IN ('DONE', 'FAIL', 'GONE')"
	"           AND s.stop >= clock_timestamp() - $1) AS t"
	" GROUP BY t.queue ORDER BY t.queue";

static const char failures_sql[] =
	"SELECT t.queue COLLATE \"C\", t.sqlstate, t.error, count(*), min(t.stop), max(t.stop),"
	"       (array_agg(t.id ORDER BY t.stop DESC, t.id DESC))[1:5]"
	"  FROM {rows} AS t"
	" WHERE t.state IN ('FAIL', 'GONE') AND t.stop >= clock_timestamp() - $1"
	" GROUP BY 1, 2, 3 ORDER BY 4 DESC, 6 DESC";

static const char recent_sql[] =
	"SELECT t.id, t.queue, t.role, t.state, t.pid, t.dt, t.start, t.stop, t.sqlstate, t.error"
	"  FROM {rows} AS t ORDER BY t.id DESC LIMIT $1";

/* Of each chain one row waits or runs.  Its "parent" is the run before, if that names it. */
static const char repeating_sql[] =
	"SELECT t.id, t.queue, t.key, t.role, coalesce(t.cron, t.repeat::text), t.state,"
	"       t.dt, l.id, l.state, l.start, l.stop - l.start, l.error, t.request"
	"  FROM (SELECT * FROM {rows} AS w WHERE w.state = 'PLAN' AND w.waits IS NULL"
	"         UNION ALL"
	"        SELECT * FROM {rows} AS w WHERE w.state = 'PLAN' AND w.waits IS NOT NULL"
	"         UNION ALL"
	"        SELECT * FROM {rows} AS w WHERE w.state = 'WORK') AS t"
	"  LEFT JOIN LATERAL (SELECT p.* FROM {rows} AS p"
	"                      WHERE p.id = t.parent AND p.next = t.id LIMIT 1) AS l ON true"
	" WHERE t.repeat IS NOT NULL OR t.cron IS NOT NULL"
	" ORDER BY t.dt, t.id";

/*
 * The age of the history is that of the first row of those with the lowest ids.  Row security would
 * make a role pass over the rows of all others.
 */
static const char status_sql[] =
	"SELECT (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pg_task'),"
	"       '{relid}'::regclass::text, s.databases, s.schedulers, s.executors, s.busy,"
	"       {executors}, s.state, s.oldest_due, h.rows, h.size,"
	"       CASE WHEN {sees_all} THEN"
	"            (SELECT min(f.stop) FROM (SELECT t.stop FROM {rows} AS t ORDER BY t.id"
	"                                       LIMIT " CppAsString2(LAST_ROWS) ") AS f) END"
	"  FROM (SELECT count(*)::int4 AS databases, count(d.pid)::int4 AS schedulers,"
	"               coalesce(sum(d.executors), 0)::int4 AS executors,"
	"               coalesce(sum(d.busy), 0)::int4 AS busy,"
	"               max(d.state) FILTER (WHERE d.datname = current_database()) AS state,"
	"               max(d.oldest_due) FILTER (WHERE d.datname = current_database()) AS oldest_due"
	"          FROM pg_stat_task_scheduler() AS d) AS s,"
	"       (SELECT sum(greatest(c.reltuples, 0))::int8 AS rows,"
	"               sum(pg_total_relation_size(c.oid))::int8 AS size"
	"          FROM pg_class AS c"
	"         WHERE c.relkind = 'r'"
	"           AND (c.oid = {relid} OR c.oid IN (SELECT p.relid"
	"                                               FROM pg_partition_tree({relid}) AS p))) AS h";

/* clang-format on */

/* pg_task_queues(): what waits, is due, runs and has failed lately, per queue. */
Datum
pg_task_queues(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, ACCESS_FIGURES, queues_sql, InvalidOid);
}

/* Check the length of the time that is looked at. */
static void
check_since(const Interval *since)
{
	const Interval zero = {0};

	if (!DatumGetBool(
			DirectFunctionCall2(interval_gt, IntervalPGetDatum(since), IntervalPGetDatum(&zero))))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the time that is looked at must be greater than zero")));
}

/* pg_task_stats(since): how many tasks have ended within this time, and how long they took. */
Datum
pg_task_stats(PG_FUNCTION_ARGS)
{
	check_since(PG_GETARG_INTERVAL_P(0));
	return return_rows(fcinfo, ACCESS_FIGURES, stats_sql, INTERVALOID);
}

/* pg_task_failures(since): the failures within this time, grouped by their errors. */
Datum
pg_task_failures(PG_FUNCTION_ARGS)
{
	check_since(PG_GETARG_INTERVAL_P(0));
	return return_rows(fcinfo, ACCESS_ROWS, failures_sql, INTERVALOID);
}

/* pg_task_recent(rows): the outcomes of the tasks with so many of the highest ids. */
Datum
pg_task_recent(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, ACCESS_ROWS, recent_sql, INT4OID);
}

/* pg_task_repeating(): each chain, when it runs next, and how it ended last. */
Datum
pg_task_repeating(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, ACCESS_ROWS, repeating_sql, InvalidOid);
}

/* pg_task_status(): one row on pg_task in this database and on this server. */
Datum
pg_task_status(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, ACCESS_FIGURES, status_sql, InvalidOid);
}
