/*
 * rows_dependents.c
 *		Statements of the scheduler on dependent rows: they wait until other tasks have ended.
 *
 * A dependent row is in state PLAN, and its column "waits" has one of the tasks in "after": the one
 * that it watches.  When that has ended, the row is judged: it is free, watches another one, or is
 * given up.  One with the rule "any" is judged when any of its tasks is DONE.
 *
 * A NULL in "after" is a task that was removed before it was DONE (session/after.c).  Any other
 * task that is not in the table counts as DONE.
 *
 * None of these waits for a row that somebody has locked.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "task/events.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* Rows that wait for several tasks are read for this long at once (us), one of them in any case. */
#define JUDGE_US (10 * INT64CONST(1000))

/* clang-format off */

/* Has a task ended?  0: it is DONE, or not in the table; 1: it has ended otherwise; 2: it has not. */
#define OUTCOME(id) \
	"coalesce((SELECT max(CASE WHEN r.state = 'DONE' THEN 0" \
	"                          WHEN r.state IN ('PLAN', 'WORK') THEN 2 ELSE 1 END)" \
	"            FROM {rows} AS r WHERE r.id = " id "), 0)"

/*
 * Lock the rows to be judged, now that some tasks may have ended.  Those with the rule "any" are
 * found by the index on "after", which has rows that wait for several tasks.
 */
#define LOCKED_ROW \
	"SELECT t.id, t.tableoid AS oid, t.ctid AS tid, coalesce(t.rule, 'done') AS rule, t.after, t.waits" \
	"  FROM {rows} AS t" \
	" WHERE t.state = 'PLAN' AND t.id <> ALL ($without) AND "
#define LOCKED_ROWS \
	"SELECT l.*" \
	"  FROM (SELECT a.id AS ended, " OUTCOME("a.id") " AS outcome" \
	"          FROM unnest($ids) AS a (id) OFFSET 0) AS a" \
	" CROSS JOIN LATERAL (" \
	"       SELECT n.*, a.ended, a.outcome" \
	"         FROM (" LOCKED_ROW "t.waits = a.ended AND a.outcome < 2" \
	"                LIMIT $limit FOR NO KEY UPDATE OF t SKIP LOCKED) AS n" \
	"        UNION ALL" \
	"       SELECT n.*, a.ended, a.outcome" \
	"         FROM (" LOCKED_ROW "(t.waits IS NOT NULL) IS TRUE AND cardinality(t.after) > 1" \
	"                  AND t.after @> ARRAY[a.ended] AND t.rule = 'any' AND a.outcome = 0" \
	"                LIMIT $limit FOR NO KEY UPDATE OF t SKIP LOCKED) AS n) AS l" \
	" LIMIT $limit"

/* The row that would be judged first. */
static const Statement first_row = {.sql =
	"SELECT w.id FROM (" LOCKED_ROWS ") AS w",
	.bitmaps = true};

/*
 * Judge rows, and write what changes.  The other tasks of a row are not read if the one that has
 * ended decides ("c"), or if some of many that are picked by chance have one that has not ended
 * ("s").  Of those that have not ended, one is watched next that is chosen by chance: so a row
 * changes its watch about log(n) times, in whatever order its n tasks end.
 *
 * A row that was changed after the snapshot of the statement is left out: the lock returns the
 * place of its new version, where an UPDATE finds no row.
 */
static const Statement judge_rows = {.sql =
	"WITH w AS MATERIALIZED (" LOCKED_ROWS "),"
	"     c AS (SELECT w.*, row_number() OVER () AS number,"
	"                  CASE WHEN w.after = ARRAY[w.ended] OR cardinality(w.after) = 0 THEN true"
	"                       WHEN w.outcome = 0"
	"                       THEN (w.rule = 'any' AND w.ended = ANY (w.after)) IS TRUE"
	"                       ELSE w.rule NOT IN ('ended', 'failed', 'any') END AS decided"
	"             FROM w),"
	"     e AS (SELECT c.*, coalesce(s.next, o.next) AS next,"
	"                  c.decided OR s.next IS NOT NULL OR o.done IS NOT NULL OR c.after IS NULL"
	"                      AS known,"
	"                  coalesce(o.done, c.outcome = 0) AS done,"
	"                  coalesce(o.others, c.outcome = 1) AS others,"
	"                  coalesce(o.culprit, CASE WHEN c.outcome = 1 THEN c.ended END) AS culprit"
	"             FROM c CROSS JOIN LATERAL ("
	"                  SELECT CASE WHEN NOT c.decided AND c.rule <> 'any' AND cardinality(c.after) > 100"
	"                                   AND array_position(c.after, NULL) IS NULL"
	"                              THEN (SELECT u.id"
	"                                      FROM (SELECT c.after[array_lower(c.after, 1)"
	"                                                   + floor(random() * cardinality(c.after))::int4]"
	"                                                   AS id"
	"                                              FROM generate_series(1, 10)) AS u"
	"                                     WHERE " OUTCOME("u.id") " = 2 LIMIT 1) END AS next"
	"                  OFFSET 0) AS s"
	"            CROSS JOIN LATERAL ("
	"                  SELECT bool_or(p.outcome = 0) AS done, bool_or(p.outcome = 1) AS others,"
	"                         min(p.id) FILTER (WHERE p.outcome = 1) AS culprit,"
	"                         (array_agg(p.id) FILTER (WHERE p.outcome = 2))"
	"                             [1 + floor(random() * count(*) FILTER (WHERE p.outcome = 2))::int4]"
	"                             AS next"
	"                    FROM (SELECT u.id, CASE WHEN u.id IS NULL THEN 1 ELSE " OUTCOME("u.id")
	"                                       END AS outcome"
	"                            FROM unnest(CASE WHEN c.number = 1 OR clock_timestamp() < $until"
	"                                             THEN c.after END) AS u (id)"
	"                           WHERE NOT c.decided AND s.next IS NULL OFFSET 0) AS p"
	"                  OFFSET 0) AS o),"
	"     v AS MATERIALIZED (SELECT e.*,"
	"                  CASE e.rule WHEN 'any' THEN e.done"
	"                              WHEN 'ended' THEN e.next IS NULL"
	"                              WHEN 'failed' THEN e.next IS NULL AND e.others"
	"                              ELSE e.next IS NULL AND NOT e.others END AS free,"
	"                  CASE e.rule WHEN 'any' THEN e.next IS NULL AND NOT e.done"
	"                              WHEN 'ended' THEN false"
	"                              WHEN 'failed' THEN e.next IS NULL AND NOT e.others"
	"                              ELSE e.others END AS gone"
	"             FROM e),"
	"     f AS (UPDATE {rows} AS t"
	"              SET waits = CASE WHEN NOT c.free THEN c.next END,"
	"                  dt = CASE WHEN c.free THEN greatest(t.dt, $now) ELSE t.dt END,"
	"                  planned = CASE WHEN NOT c.free THEN t.planned END"
	"             FROM v AS c"
	"            WHERE c.known AND NOT c.gone AND " IS_LOCKED_ROW
	"        RETURNING t.waits),"
	"     g (id, role, queue, attempt, error, keep, notified) AS ("
	"           UPDATE {rows} AS t"
	"              SET state = 'GONE', stop = clock_timestamp(), waits = NULL, error = c.message,"
	"                  sqlstate = CASE WHEN c.message IS NOT NULL THEN $sqlstate END,"
	"                  response = replace(" FAILURE_RESPONSE ", $error, c.message)"
	"             FROM (SELECT v.oid, v.tid,"
	"                          CASE WHEN v.rule = 'failed' THEN NULL"
	"                               WHEN v.culprit IS NOT NULL"
	"                               THEN format('task %s, for which this one waited, is %s', v.culprit,"
	"                                      (SELECT min(r.state) FROM {rows} AS r WHERE r.id = v.culprit"
	"                                          AND r.state NOT IN ('PLAN', 'WORK', 'DONE')))"
	"                               WHEN v.waits = $removed OR v.waits = ANY (v.after)"
	"                               THEN 'a task for which this one waited was removed'"
	"                               ELSE format('task %s, for which this one waited, was removed',"
	"                                           v.waits) END AS message"
	"                     FROM v WHERE v.known AND v.gone OFFSET 0) AS c"
	"            WHERE " IS_LOCKED_ROW
	"        RETURNING " UNSTARTED ", t.error, " KEEP ", " NOTIFY_END("t.state") ")"
	"SELECT g.id, g.role, g.queue, g.attempt, g.error, g.keep, NULL::int8, 0::int8 FROM g"
	" UNION ALL "
	"SELECT 0, NULL, NULL, 0, NULL, 0, f.waits, 0 FROM f WHERE f.waits IS NOT NULL"
	" UNION ALL "
	"SELECT count(*), NULL, NULL, 0, NULL, 0, NULL, count(*) FILTER (WHERE v.known) FROM v",
	.bitmaps = true};

/* clang-format on */

/* The last result has a row that is GONE: note that it has ended. */
static void
note_gone(MemoryContext where, uint64 i, JudgedRows *judged)
{
	const char *error = statement_text_or_null(where, i, 5);

	note_unstarted_row(i, EVENT_GONE, error, error ? TASK_ERROR_PREDECESSOR : NULL);
	judged->gone[judged->ngone].id = statement_int64(i, 1);
	judged->gone[judged->ngone++].keep = statement_float8(i, 6);
}

/* Add what both statements need. */
static void
arg_ended(StatementArgs *args, const JudgeRequest *request)
{
	arg_ids(args, "ids", request->ids, request->count);
	arg_ids(args, "without", request->without, request->nwithout);
	arg_int64(args, "limit", request->limit);
}

/*
 * Judge rows, and write the verdicts.  A row that somebody has locked is left out.  What is
 * returned is allocated in the current context.
 */
void
rows_judge(const TaskTable *table, const JudgeRequest *request, JudgedRows *judged)
{
	Failure failure = {"ERROR", "@", NULL, NULL, TASK_ERROR_PREDECESSOR};
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	uint64 count;
	uint64 i;

	statement_begin(&args);
	arg_ended(&args, request);
	arg_timestamp(&args, "now", request->now);
	arg_timestamp(&args, "until", GetCurrentTimestamp() + JUDGE_US);
	arg_int64(&args, "removed", WAITS_REMOVED);
	arg_failure(&args, &failure, InvalidOid);
	count = statement_execute(&judge_rows, table, &args) - 1;
	judged->count = (int) statement_int64(count, 1);
	judged->more = judged->count == request->limit || judged->count > statement_int64(count, 8);
	judged->ngone = judged->nwatched = 0;
	judged->gone = MemoryContextAlloc(caller, Max(count, 1) * sizeof(GoneRow));
	judged->watched = MemoryContextAlloc(caller, Max(count, 1) * sizeof(int64));
	for (i = 0; i < count; i++)
		if (statement_is_null(i, 7))
			note_gone(caller, i, judged);
		else
			judged->watched[judged->nwatched++] = statement_int64(i, 7);
	statement_end();
}

/* Lock the row that rows_judge would judge first.  Returns false if there is none. */
bool
rows_first_dependent(const TaskTable *table, const JudgeRequest *request, int64 *id)
{
	StatementArgs args;
	bool found;

	statement_begin(&args);
	arg_ended(&args, request);
	found = statement_execute(&first_row, table, &args) > 0;
	if (found)
		*id = statement_int64(0, 1);
	statement_end();
	return found;
}

/* clang-format off */

/*
 * The tasks for which the next rows wait, in the order of the index on what they watch.  To descend
 * it for each task would cost more, unless very many rows watch each.
 */
static const Statement read_watched = {.sql =
	"WITH n AS MATERIALIZED ("
	"SELECT t.waits, t.after, t.rule"
	"  FROM {rows} AS t"
	" WHERE t.state = 'PLAN' AND t.waits >= $from"
	" ORDER BY t.waits LIMIT $limit"
	") SELECT p.id, " OUTCOME("p.id") " < 2, (SELECT count(*) FROM n), (SELECT max(n.waits) FROM n)"
	"    FROM (SELECT DISTINCT u.id"
	"            FROM n CROSS JOIN LATERAL"
	"                 unnest(CASE WHEN n.rule = 'any' THEN n.waits || n.after ELSE ARRAY[n.waits] END)"
	"                     AS u (id)"
	"           WHERE u.id IS NOT NULL) AS p"};

/* clang-format on */

/*
 * Read the tasks for which rows wait that watch this one or one with a greater id, in the order of
 * what they watch, up to "limit" rows.  Sets *last to what the last row watches, and *more if there
 * may be others.
 */
int
rows_watched(const TaskTable *table, int64 from, int limit, WatchedTask **tasks, int64 *last,
			 bool *more)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;
	int i;

	statement_begin(&args);
	arg_int64(&args, "from", from);
	arg_int64(&args, "limit", limit);
	count = (int) statement_execute(&read_watched, table, &args);
	*more = count > 0 && statement_int64(0, 3) == limit;
	*last = count > 0 ? statement_int64(0, 4) : PG_INT64_MAX;
	*tasks = MemoryContextAlloc(caller, Max(count, 1) * sizeof(WatchedTask));
	for (i = 0; i < count; i++)
		(*tasks)[i] = (WatchedTask){statement_int64(i, 1), statement_bool(i, 2)};
	statement_end();
	return count;
}
