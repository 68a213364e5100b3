/*
 * rows_history.c
 *		Statements of the scheduler on rows in a final state: reads how long they are kept, and
 *		removes them.
 *
 * None of these waits for a row that somebody has locked.  Which rows are removed is decided in
 * scheduler/history.c.
 */
#include "postgres.h"

#include "access/table.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* At most this many rows of a flow are read to find out whether it has ended. */
#define FLOW_ROWS_MAX 100000

/* clang-format off */

/*
 * From when on a row in a final state is kept.  One that was inserted in such a state may have no
 * "stop": it is kept from its planned time on.
 */
#define ENDED "coalesce(t.stop, greatest(t.start, t.dt), 'infinity')"

/* The rows on some pages: what this costs does not depend on the ids, or on rows that are dead. */
static const Statement read_history = {.sql =
	"SELECT t.id, t.ctid,"
	"       CASE WHEN t.state IN ('DONE', 'STOP', 'FAIL', 'GONE') THEN t.state END,"
	"       " ENDED ", " KEEP ", coalesce(t.role::text, ''), coalesce(t.role_id, 0),"
	"       coalesce(substr(t.queue, 1, " CppAsString2(TASK_QUEUE_MAX) "), ''),"
	"       coalesce('=' || t.flow, '')"
	"  FROM {rows} AS t"
	" WHERE t.ctid > ('(' || $page || ',' || $row || ')')::tid"
	"   AND t.ctid < ('(' || $page + $pages || ',0)')::tid"};

/* clang-format on */

/*
 * Read the rows on these pages of the table, but not those up to "row" on the first one.  Returns
 * their number; -1 if the table ends before them.
 */
int
rows_history(const TaskTable *table, int64 page, int row, int pages, HistoryRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	Relation rel = table_open(table->relid, NoLock);
	bool ends = RelationGetNumberOfBlocks(rel) <= page;
	StatementArgs args;
	uint64 count;
	uint64 i;

	table_close(rel, NoLock);
	if (ends)
		return -1;
	statement_begin(&args);
	arg_int64(&args, "page", page);
	arg_int64(&args, "row", row);
	arg_int64(&args, "pages", pages);
	count = statement_execute(&read_history, table, &args);
	*rows = MemoryContextAlloc(caller, Max(count, 1) * sizeof(HistoryRow));
	for (i = 0; i < count; i++)
	{
		HistoryRow *read = &(*rows)[i];

		read->id = statement_int64(i, 1);
		read->tid = *(ItemPointer) DatumGetPointer(statement_value(i, 2, TIDOID));
		read->state = statement_text_or_null(caller, i, 3);
		read->ended = statement_time(i, 4);
		read->keep = statement_float8(i, 5);
		read->role = statement_text(caller, i, 6);
		read->role_id = statement_int64(i, 7);
		read->queue = statement_text(caller, i, 8);
		read->flow = statement_text(caller, i, 9);
	}
	statement_end();
	return (int) count;
}

/* clang-format off */
/*
 * "o" are the flows, each asked once, in which a task has not ended.  The next run of a repeating
 * task does not count: there is always one.  What was changed since it was read has another place.
 */
static const Statement remove_rows = {.sql =
	"WITH o AS MATERIALIZED ("
	"SELECT f.flow"
	"  FROM (SELECT DISTINCT u.flow FROM unnest($flows) AS u (flow) WHERE u.flow <> '') AS f"
	" WHERE EXISTS ("
	"       SELECT"
	"         FROM (SELECT t.state, t.repeat, t.cron"
	"                 FROM {rows} AS t"
	"                WHERE t.flow = substr(f.flow, 2)"
	"                LIMIT " CppAsString2(FLOW_ROWS_MAX) ") AS r"
	"        WHERE r.state IN ('PLAN', 'WORK') AND r.repeat IS NULL AND r.cron IS NULL)"
	"), c AS MATERIALIZED ("
	"SELECT n.oid, n.tid"
	"  FROM ROWS FROM (unnest($tids), unnest($flows)) AS a (tid, flow)"
	" CROSS JOIN LATERAL ("
	"       SELECT t.tableoid AS oid, t.ctid AS tid"
	"         FROM {rows} AS t"
	"        WHERE t.ctid = a.tid"
	"          FOR UPDATE OF t SKIP LOCKED) AS n"
	" WHERE a.flow = '' OR NOT EXISTS (SELECT FROM o WHERE o.flow = a.flow)"
	") DELETE FROM {rows} AS t"
	"   USING c"
	"  WHERE " IS_LOCKED_ROW};
/* clang-format on */

/*
 * Delete those of these rows, read in the same transaction, that were not changed, that nobody has
 * locked, and whose flow has ended.  Returns their number.
 */
int
rows_remove(const TaskTable *table, const HistoryRow *rows, int count)
{
	StatementArgs args;
	Datum *tids;
	Datum *flows;
	int i;

	statement_begin(&args);
	tids = arg_array(&args, "tids", TIDOID, count);
	flows = arg_array(&args, "flows", TEXTOID, count);
	for (i = 0; i < count; i++)
	{
		tids[i] = PointerGetDatum(&rows[i].tid);
		flows[i] = CStringGetTextDatum(rows[i].flow);
	}
	count = (int) statement_execute(&remove_rows, table, &args);
	statement_end();
	return count;
}
