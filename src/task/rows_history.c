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
#include "catalog/pg_statistic.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "task/columns.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* A table of at most this many pages is read to find out whether rows have the column "keep". */
#define SMALL_PAGES 10000

/* At most this many rows of a flow are read to find out whether it has ended. */
#define FLOW_ROWS_MAX 100000

/* clang-format off */

/*
 * From when on a row in a final state is kept.  One that was inserted in such a state may have no
 * "stop": it is kept from its planned time on.
 */
#define ENDED "coalesce(t.stop, greatest(t.start, t.dt), 'infinity')"

static const Statement read_history = {STATEMENT_HISTORY,
	"SELECT t.id,"
	"       CASE WHEN t.state IN ('DONE', 'STOP', 'FAIL', 'GONE') THEN t.state END,"
	"       " ENDED ", " KEEP ", coalesce(t.role::text, ''), coalesce(t.role_id, 0),"
	"       coalesce(substr(t.queue, 1, " CppAsString2(TASK_QUEUE_MAX) "), ''),"
	"       t.flow"
	"  FROM {rows} AS t"
	" WHERE t.id > $after AND t.id <= $upto"
	" ORDER BY t.id"
	" LIMIT $limit"};

/* clang-format on */

/* Read up to "limit" rows with ids in this range, in the order of their ids. */
int
rows_history(const TaskTable *table, int64 after, int64 upto, int limit, HistoryRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	uint64 count;
	uint64 i;

	statement_begin(&args);
	arg_int64(&args, "after", after);
	arg_int64(&args, "upto", upto);
	arg_int64(&args, "limit", limit);
	count = statement_execute(&read_history, table, &args);
	*rows = MemoryContextAlloc(caller, Max(count, 1) * sizeof(HistoryRow));
	for (i = 0; i < count; i++)
	{
		HistoryRow *row = &(*rows)[i];

		row->id = statement_int64(i, 1);
		row->state = statement_text_or_null(caller, i, 2);
		row->ended = statement_time(i, 3);
		row->keep = statement_float8(i, 4);
		row->role = statement_text(caller, i, 5);
		row->role_id = statement_int64(i, 6);
		row->queue = statement_text(caller, i, 7);
		row->flow = statement_text_or_null(caller, i, 8);
	}
	statement_end();
	return (int) count;
}

/* clang-format off */
static const Statement remove_rows = {STATEMENT_REMOVE,
	"WITH c AS MATERIALIZED ("
	"SELECT n.oid, n.tid"
	"  FROM ROWS FROM (unnest($ids), unnest($states), unnest($ends), unnest($keeps),"
	"                  unnest($roles), unnest($role_ids))"
	"       AS a (id, state, ended, keep, role, role_id)"
	" CROSS JOIN LATERAL ("
	"       SELECT t.tableoid AS oid, t.ctid AS tid"
	"         FROM {rows} AS t"
	"        WHERE t.id = a.id AND t.state = a.state AND " ENDED " = a.ended"
	"          AND " KEEP " = a.keep"
	"          AND coalesce(t.role::text, '') = a.role AND coalesce(t.role_id, 0) = a.role_id"
	"          FOR UPDATE OF t SKIP LOCKED) AS n"
	") DELETE FROM {rows} AS t"
	"   USING c"
	"  WHERE " IS_LOCKED_ROW};
/* clang-format on */

/*
 * Delete those of these rows that are as they were read and that nobody has locked.  Returns their
 * number.
 */
int
rows_remove(const TaskTable *table, const HistoryRow *rows, int count)
{
	StatementArgs args;
	Datum *ids;
	Datum *states;
	Datum *ends;
	Datum *keeps;
	Datum *roles;
	Datum *role_ids;
	int i;

	statement_begin(&args);
	ids = arg_array(&args, "ids", INT8OID, count);
	states = arg_array(&args, "states", TEXTOID, count);
	ends = arg_array(&args, "ends", TIMESTAMPTZOID, count);
	keeps = arg_array(&args, "keeps", FLOAT8OID, count);
	roles = arg_array(&args, "roles", TEXTOID, count);
	role_ids = arg_array(&args, "role_ids", INT8OID, count);
	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(rows[i].id);
		states[i] = CStringGetTextDatum(rows[i].state);
		ends[i] = TimestampTzGetDatum(rows[i].ended);
		keeps[i] = Float8GetDatum(rows[i].keep);
		roles[i] = CStringGetTextDatum(rows[i].role);
		role_ids[i] = Int64GetDatum(rows[i].role_id);
	}
	count = (int) statement_execute(&remove_rows, table, &args);
	statement_end();
	return count;
}

/* clang-format off */
static const Statement flow_open = {STATEMENT_FLOW_OPEN,
	"SELECT"
	"  FROM (SELECT t.state, t.repeat, t.cron"
	"          FROM {rows} AS t"
	"         WHERE t.flow = $flow"
	"         LIMIT " CppAsString2(FLOW_ROWS_MAX) ") AS f"
	" WHERE f.state IN ('PLAN', 'WORK') AND f.repeat IS NULL AND f.cron IS NULL"
	" LIMIT 1"};
/* clang-format on */

/*
 * Has a task of this flow not ended yet?  The next run of a repeating task does not count: there is
 * always one.
 */
bool
rows_flow_open(const TaskTable *table, const char *flow)
{
	StatementArgs args;
	bool open;

	statement_begin(&args);
	arg_text(&args, "flow", flow);
	open = statement_execute(&flow_open, table, &args) > 0;
	statement_end();
	return open;
}

/*
 * May there be rows with the column "keep"?  The statistics of the table say so, or, if nothing is
 * known of its rows, it is small enough to be read.
 */
bool
rows_history_likely(const TaskTable *table, bool unknown)
{
	AttrNumber number = get_attnum(table->relid, task_columns[COLUMN_KEEP].name);
	HeapTuple tuple;
	Relation rel;
	bool likely;

	tuple = SearchSysCache3(STATRELATTINH, ObjectIdGetDatum(table->relid), Int16GetDatum(number),
							BoolGetDatum(false));
	likely = HeapTupleIsValid(tuple) && ((Form_pg_statistic) GETSTRUCT(tuple))->stanullfrac < 1;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	if (likely || !unknown)
		return likely;
	rel = table_open(table->relid, NoLock);
	likely = RelationGetNumberOfBlocks(rel) <= SMALL_PAGES;
	table_close(rel, NoLock);
	return likely;
}
