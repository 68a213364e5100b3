/*
 * top.c
 *		pg_task_top: what runs, is late, failed and waits in this database, on one screen.
 *
 * It reads shared memory, one row by id for each task that runs, the first rows of some groups in
 * the index of waiting rows, and the rows with the last ids.  So it takes the same time however
 * long the history is.  In SQL the function has a fixed search_path and settings of the planner.
 */
#include "postgres.h"

#include "catalog/objectaddress.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "session/numbering.h"
#include "session/result_set.h"
#include "session/table_access.h"

PGDLLEXPORT Datum pg_task_top(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_top);

/* clang-format off */

/* The columns of the index on waiting rows that make a group, as in task/rows_scan.c. */
#define GROUP_COLUMNS \
	"t.queue COLLATE \"C\", coalesce(t.max, 2147483647), t.priority, t.role::text, t.role_id"

/* The condition of that index: a row that waits for another task is in one of its own. */
#define WAITING "t.state = 'PLAN' AND t.waits IS NULL"

/* At most this many groups are read, and this many rows of a group are counted. */
#define GROUPS_MAX "200"
#define COUNT_MAX "1000"

/* The start of a request, on one line. */
#define SHORT(text) "left(regexp_replace(left(" text ", 200), '[[:space:]]+', ' ', 'g'), 60)"

/*
 * The first waiting row of each group: one descent of the index for each.  $1: lines of each kind,
 * $2: what runs, $3 and $4: the ids that are searched for tasks that failed.
 */
static const char statement[] =
	"WITH RECURSIVE g (queue, max, priority, role, role_id, dt, id, request, error, failed) AS ("
	"(SELECT " GROUP_COLUMNS ", t.dt, t.id, t.request, t.error, t.failed"
	"   FROM %1$s AS t"
	"  WHERE " WAITING
	"  ORDER BY " GROUP_COLUMNS ", t.dt, t.id"
	"  LIMIT 1)"
	" UNION ALL"
	" SELECT n.*"
	"   FROM g CROSS JOIN LATERAL ("
	"        SELECT " GROUP_COLUMNS ", t.dt, t.id, t.request, t.error, t.failed"
	"          FROM %1$s AS t"
	"         WHERE " WAITING
	"           AND (" GROUP_COLUMNS ") > (g.queue, g.max, g.priority, g.role, g.role_id)"
	"         ORDER BY " GROUP_COLUMNS ", t.dt, t.id"
	"         LIMIT 1) AS n"
	"), groups AS MATERIALIZED (SELECT g.*, dt < statement_timestamp() - interval '1 s' AS late"
	"                             FROM g LIMIT " GROUPS_MAX "),"
	" runs AS ("
	"SELECT 1 AS kind, 'runs', a.queue, a.id, a.role, a.start, NULL::bigint,"
	"       concat_ws(': ', CASE WHEN a.total IS NULL THEN a.done::text"
	"                            ELSE format('%%s of %%s', a.done, a.total) END, a.message,"
	"                 " SHORT("t.request") ")"
	"  FROM jsonb_to_recordset($2) AS a (queue text, id bigint, role name, start timestamptz,"
	"                                    attempt int, done bigint, total bigint, message text)"
	"  LEFT JOIN %1$s AS t ON t.id = a.id AND t.state = 'WORK' AND t.attempt = a.attempt"
	" ORDER BY a.start LIMIT $1),"
	" waiting AS ("
	"SELECT * FROM (SELECT * FROM groups WHERE late ORDER BY dt LIMIT $1) AS late"
	" UNION ALL"
	" SELECT * FROM (SELECT * FROM groups WHERE NOT late ORDER BY dt LIMIT $1) AS later),"
	" waits AS ("
	"SELECT CASE WHEN late THEN 2 ELSE 4 END, CASE WHEN late THEN 'late' ELSE 'waits' END, queue,"
	"       id, role::name, dt,"
	"       (SELECT count(*)"
	"          FROM (SELECT FROM %1$s AS t"
	"                 WHERE " WAITING
	"                   AND t.queue COLLATE \"C\" = w.queue"
	"                   AND coalesce(t.max, 2147483647) = w.max AND t.priority = w.priority"
	"                   AND t.role::text = w.role AND t.role_id = w.role_id"
	"                   AND (NOT w.late OR t.dt < statement_timestamp() - interval '1 s')"
	"                 LIMIT " COUNT_MAX ") AS c),"
	"       CASE WHEN failed > 0 THEN format('failed %%s times: %%s', failed, " SHORT("error") ")"
	"            ELSE " SHORT("request") " END"
	"  FROM waiting AS w),"
	" failed AS ("
	"SELECT 3, 'failed', t.queue, t.id, t.role, t.stop, NULL::bigint,"
	"       concat_ws(' ', t.sqlstate, " SHORT("t.error") ")"
	"  FROM %1$s AS t"
	" WHERE t.id BETWEEN $3 AND $4 AND t.state = 'FAIL'"
	" ORDER BY t.stop DESC NULLS LAST, t.id DESC LIMIT $1),"
	" after AS ("
	"SELECT 4, 'after', NULL, NULL::bigint, NULL, NULL::timestamptz, count(*),"
	"       'wait for other tasks'"
	"  FROM (SELECT FROM %1$s AS t WHERE t.state = 'PLAN' AND t.waits IS NOT NULL"
	"         LIMIT " COUNT_MAX ") AS c HAVING count(*) > 0)"
	" SELECT l.what, l.queue, l.id, l.role, l.at,"
	"        CASE WHEN isfinite(l.at) THEN date_trunc('second', statement_timestamp() - l.at) END,"
	"        l.tasks, l.text"
	"   FROM (SELECT * FROM runs UNION ALL SELECT * FROM waits UNION ALL SELECT * FROM failed"
	"          UNION ALL SELECT * FROM after UNION ALL SELECT 5, 'note', NULL, NULL, NULL, NULL, NULL,"
	"                'more than " GROUPS_MAX " groups wait: of others nothing is shown'"
	"           WHERE (SELECT count(*) FROM groups) = " GROUPS_MAX ")"
	"     AS l (kind, what, queue, id, role, at, tasks, text)"
	"  ORDER BY kind, CASE WHEN kind = 3 THEN - extract(epoch FROM at) ELSE extract(epoch FROM at)"
	"           END, id";

/* clang-format on */

/* How many of the last ids are searched for tasks that failed. */
#define LAST_IDS 10000

/*
 * What runs of this table, as the caller may see it: read before the statement, which may be
 * executed with other rights.
 */
static Datum
read_activity(Oid relid)
{
	Oid types[] = {OIDOID};
	Datum values[] = {ObjectIdGetDatum(relid)};
	bool isnull;

	if (SPI_execute_with_args("SELECT coalesce(jsonb_agg(to_jsonb(a)), '[]')"
							  "  FROM pg_task_activity() AS a"
							  " WHERE a.relid = $1 AND a.database = current_database()",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read what runs");
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
}

/* The server's own error would come with a statement of ours as its context. */
static void
check_select(const TableAccess *access)
{
	if (access->user != access->owner &&
		pg_class_aclcheck(access->relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(access->relid));
}

/* pg_task_top(lines): with at most this many lines of each kind. */
Datum
pg_task_top(PG_FUNCTION_ARGS)
{
	TableAccess access = table_access_open(ACCESS_ROWS);
	AccessStatement read = {.sql = psprintf(statement, access.rows),
							.read_only = true,
							.count = 4,
							.types = (const Oid[]){INT4OID, JSONBOID, INT8OID, INT8OID}};
	ReturnSetInfo *set;
	Datum values[4];
	int64 low;
	int64 high;

	check_select(&access);
	if (PG_GETARG_INT32(0) < 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_ROW_COUNT_IN_LIMIT_CLAUSE),
						errmsg("\"lines\" must not be negative")));
	set = result_set_begin(fcinfo);
	(void) numbering_recent(access.relid, LAST_IDS, &low, &high);
	SPI_connect();
	values[0] = PG_GETARG_DATUM(0);
	values[1] = read_activity(access.relid);
	values[2] = Int64GetDatum(low);
	values[3] = Int64GetDatum(high);
	read.values = values;
	table_access_fill(&access, &read, set->setResult, set->setDesc);
	SPI_finish();
	return (Datum) 0;
}
