/*
 * rows_dependents.c
 *		Statements of the scheduler on dependent rows: they wait until other tasks have ended.
 *
 * A dependent row is in state PLAN, and its column "waits" has one of the tasks in "after": the one
 * that it watches.  When that has ended, the row is judged: it is free, watches another one, or is
 * given up.
 *
 * None of these waits for a row that somebody has locked.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"

#include "task/failure.h"
#include "task/removed_table.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* Rows are judged for this long at once (us), and the first of them in any case. */
#define JUDGE_US (10 * INT64CONST(1000))

/* clang-format off */

/* The index on the watched tasks has the second condition alone. */
#define DEPENDENT "t.state = 'PLAN' AND t.waits IS NOT NULL"

/* A task that has not ended. */
#define UNENDED "coalesce(r.state <> 'DONE' AND r.state IN ('PLAN', 'WORK'), false)"

/* The state of a task in "after", or NULL: it is not in the table. */
#define JOIN_STATE \
	" LEFT JOIN LATERAL (SELECT r.state FROM {rows} AS r WHERE r.id = p.id OFFSET 0) AS r ON true"

/*
 * Judge the rows that a query locks, "w": in the snapshot of this statement.  A row that was changed
 * after that snapshot is left out: the lock returns its new version, which may name tasks that the
 * snapshot does not have.  Tasks that are not in the table are returned.
 *
 * If the watched task has not ended, or another of an eighth of them, "f", only that is known of the
 * row: it watches that one next.  To step by a prime number through the array soon finds one while
 * many are left, in whatever order they end.  Otherwise, and if that is asked for ("whole"), all
 * tasks are read, and one that has not ended is chosen by chance.  So a row changes its watch about
 * log(n) times, and all that reads about 4 n tasks.  A NULL, which the trigger refuses, is no task.
 */
#define JUDGE(locked, whole) \
	"WITH w AS MATERIALIZED (" locked ")" \
	" SELECT w.id, w.role::text, w.oid, w.tid, coalesce(w.rule, 'done'), " \
	"        coalesce(f.next = w.waits, false), f.next IS NOT NULL OR v.next IS NOT NULL, v.done," \
	"        coalesce(f.next, v.next), v.culprit," \
	"        (SELECT r.state FROM {rows} AS r WHERE r.id = v.culprit LIMIT 1), w.keep," \
	"        (SELECT count(*) FROM w), v.missing" \
	"  FROM (SELECT w.*, row_number() OVER () AS number FROM w) AS w" \
	" CROSS JOIN LATERAL (" \
	"       SELECT w.after || ARRAY[]::int8[] AS ids, cardinality(w.after) AS n," \
	"              array_lower(w.after, 1) AS lower, floor(random() * 1000000)::int8 AS start" \
	"       OFFSET 0) AS a" \
	" CROSS JOIN LATERAL (" \
	"       SELECT (SELECT p.id" \
	"                 FROM (SELECT w.waits AS id" \
	"                        UNION ALL" \
	"                       SELECT a.ids[a.lower + (a.start + i.i * 2147483647) % a.n]" \
	"                         FROM (SELECT generate_series(1::int8, a.n / 8) AS i) AS i) AS p" \
	                JOIN_STATE \
	"                WHERE " UNENDED " LIMIT 1) AS next" \
	"       OFFSET 0) AS f" \
	" CROSS JOIN LATERAL (" \
	"       SELECT (array_agg(p.id) FILTER (WHERE " UNENDED "))" \
	"                  [1 + floor(random() * count(*) FILTER (WHERE " UNENDED "))::int4]" \
	"                  AS next," \
	"              count(*) FILTER (WHERE r.state = 'DONE') AS done," \
	"              array_agg(p.id) FILTER (WHERE r.state IS NULL) AS missing," \
	"              min(p.id) FILTER (WHERE r.state <> 'DONE' AND NOT " UNENDED ") AS culprit" \
	"         FROM (SELECT unnest(CASE WHEN f.next IS NULL OR " whole " THEN a.ids" \
	"                                  ELSE ARRAY[w.waits] END) AS id) AS p" \
	        JOIN_STATE \
	"        WHERE p.id IS NOT NULL) AS v" \
	" WHERE (w.number = 1 OR clock_timestamp() < $until)" \
	"   AND (SELECT true FROM {rows} AS s WHERE s.tableoid = w.oid AND s.ctid = w.tid)"

#define DEPENDENT_COLUMNS \
	"t.id, t.role, t.tableoid AS oid, t.ctid AS tid, t.rule, t.after, t.waits, " KEEP " AS keep"

/*
 * Rows that watch one of these tasks, if it has ended.  The planner would make joins of EXISTS, and
 * read all dependent rows.
 */
static const Statement judge_rows = {STATEMENT_JUDGE,
	JUDGE("SELECT n.*"
		  "  FROM unnest($ids) AS a (id)"
		  " CROSS JOIN LATERAL ("
		  "       SELECT " DEPENDENT_COLUMNS
		  "         FROM {rows} AS t"
		  "        WHERE t.state = 'PLAN' AND t.waits = a.id AND t.id <> ALL ($without)"
		  "        LIMIT $limit"
		  "          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"
		  " WHERE (SELECT true FROM {rows} AS t WHERE t.state = 'PLAN' AND t.waits = a.id LIMIT 1)"
		  "   AND (SELECT true FROM {rows} AS r WHERE r.id = a.id AND " UNENDED " LIMIT 1)"
		  "       IS NULL"
		  " LIMIT $limit", "false")};

/* Rows that wait for any of several tasks. */
static const Statement judge_any = {STATEMENT_JUDGE_ANY,
	JUDGE("SELECT " DEPENDENT_COLUMNS
		  "  FROM {rows} AS t"
		  " WHERE " DEPENDENT " AND t.rule = 'any' AND t.id >= $from"
		  "   AND t.id <> ALL ($without)"
		  " ORDER BY t.id"
		  " LIMIT $limit"
		  "   FOR NO KEY UPDATE OF t SKIP LOCKED", "true")};

/* clang-format on */

/* How the tasks in "after" that were read have ended. */
typedef struct Ends
{
	bool watched; /* the watched task has not ended */
	bool unended; /* at least one has not ended */
	int64 done;
	bool others; /* some have ended and are not DONE */
} Ends;

/* A row that was read, before it is judged. */
typedef struct ReadRow
{
	char *rule;
	Ends ends;
	int nmissing;
	int64 *missing; /* tasks that are not in the table */
} ReadRow;

/* Judge a row by its rule.  One that the trigger has not checked counts as "done". */
static DependentVerdict
judge(const char *rule, const Ends *ends)
{
	DependentVerdict waits = ends->watched ? DEPENDENT_WAITS : DEPENDENT_WATCHES;

	if (strcmp(rule, "any") == 0)
	{
		if (ends->done > 0)
			return DEPENDENT_FREE;
		return ends->unended ? waits : DEPENDENT_GONE;
	}
	if (strcmp(rule, "ended") == 0)
		return ends->unended ? waits : DEPENDENT_FREE;
	if (strcmp(rule, "failed") == 0)
	{
		if (ends->unended)
			return waits;
		return ends->others ? DEPENDENT_FREE : DEPENDENT_NOT_NEEDED;
	}
	if (ends->others)
		return DEPENDENT_GONE;
	return ends->unended ? waits : DEPENDENT_FREE;
}

/* Read an array of ids, which may be NULL; none of the ids is. */
static int
returned_ids(MemoryContext where, uint64 i, int column, int64 **ids)
{
	ArrayType *array;
	int count;

	if (statement_is_null(i, column))
		return 0;
	array = DatumGetArrayTypeP(statement_value(i, column, INT8ARRAYOID));
	Assert(!ARR_HASNULL(array));
	count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	*ids = MemoryContextAlloc(where, Max(count, 1) * sizeof(int64));
	memcpy(*ids, ARR_DATA_PTR(array), count * sizeof(int64));
	return count;
}

/* Read a row that the last statement returned. */
static void
returned_dependent(MemoryContext where, uint64 i, DependentRow *row, ReadRow *read)
{
	read->ends = (Ends){.watched = statement_bool(i, 6),
						.unended = statement_bool(i, 7),
						.done = statement_int64(i, 8),
						.others = !statement_is_null(i, 10)};
	read->rule = statement_text(where, i, 5);
	read->nmissing = returned_ids(where, i, 14, &read->missing);
	row->row.id = statement_int64(i, 1);
	row->row.role = statement_text(where, i, 2);
	row->oid = statement_oid(i, 3);
	row->tid = statement_tid(i, 4);
	if (!statement_is_null(i, 9))
		row->watches = statement_int64(i, 9);
	if (read->ends.others)
		row->culprit = statement_int64(i, 10);
	row->culprit_state = statement_text_or_null(where, i, 11);
	row->keep = statement_float8(i, 12);
}

static int
compare_ids(const void *a, const void *b)
{
	int64 left = *(const int64 *) a;
	int64 right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/*
 * A task that is missing was removed before it was DONE, if the table of removed tasks has it.
 * Otherwise it counts as DONE.
 */
static void
add_missing(DependentRow *row, ReadRow *read, const int64 *removed, int nremoved)
{
	int i;

	for (i = 0; i < read->nmissing; i++)
	{
		if (nremoved == 0 ||
			bsearch(&read->missing[i], removed, nremoved, sizeof(int64), compare_ids) == NULL)
			read->ends.done++;
		else if (!read->ends.others)
		{
			read->ends.others = true;
			row->culprit = read->missing[i];
			row->culprit_state = NULL;
		}
	}
}

/*
 * Find out which of the tasks that are missing for these rows were removed before they were DONE.
 * It is a statement of its own: what is missing in the snapshot of the other one is recorded by
 * then.
 */
static int
find_removed(const TaskTable *removed, const ReadRow *reads, int count, int64 **found)
{
	int64 *ids;
	int total = 0;
	int i;

	for (i = 0; i < count; i++)
		total += reads[i].nmissing;
	if (total == 0 || removed == NULL)
		return 0;
	ids = palloc(total * sizeof(int64));
	total = 0;
	for (i = 0; i < count; i++)
	{
		memcpy(ids + total, reads[i].missing, reads[i].nmissing * sizeof(int64));
		total += reads[i].nmissing;
	}
	total = removed_rows_find(removed, ids, total, found);
	qsort(*found, total, sizeof(int64), compare_ids);
	return total;
}

/*
 * Execute a statement that reads dependent rows, and end it; judge them.  Sets *more if it has not
 * read all rows that it looked for.
 */
static int
judge_read(MemoryContext where, const Statement *statement, const TaskTable *table,
		   const TaskTable *removed, StatementArgs *args, int limit, DependentRow **rows,
		   bool *more)
{
	int count = (int) statement_execute(statement, table, args);
	int64 locked = count > 0 ? statement_int64(0, 13) : 0;
	ReadRow *reads = MemoryContextAllocZero(where, Max(count, 1) * sizeof(ReadRow));
	int64 *found = NULL;
	int nfound;
	int i;

	*more = locked == limit || locked > count;
	*rows = MemoryContextAllocZero(where, Max(count, 1) * sizeof(DependentRow));
	for (i = 0; i < count; i++)
		returned_dependent(where, i, &(*rows)[i], &reads[i]);
	statement_end();
	nfound = find_removed(removed, reads, count, &found);
	for (i = 0; i < count; i++)
	{
		add_missing(&(*rows)[i], &reads[i], found, nfound);
		(*rows)[i].verdict = judge(reads[i].rule, &reads[i].ends);
	}
	return count;
}

/*
 * Judge and lock up to "limit" rows that watch one of these tasks, if that has ended, but for the
 * rows in "without".  Sets *more if there may be more of them.  A row that somebody has locked is
 * left out.  "removed" is the table of removed tasks, locked as the other one; NULL: there is none.
 */
int
rows_judge(const TaskTable *table, const TaskTable *removed, const int64 *ids, int count,
		   const int64 *without, int nwithout, int limit, DependentRow **rows, bool *more)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;

	statement_begin(&args);
	arg_ids(&args, "ids", ids, count);
	arg_ids(&args, "without", without, nwithout);
	arg_int64(&args, "limit", limit);
	arg_timestamp(&args, "until", GetCurrentTimestamp() + JUDGE_US);
	return judge_read(caller, &judge_rows, table, removed, &args, limit, rows, more);
}

/* The same for rows with the rule "any", in the order of their ids, from this id on. */
int
rows_judge_any(const TaskTable *table, const TaskTable *removed, int64 from, const int64 *without,
			   int nwithout, int limit, DependentRow **rows, bool *more)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;

	statement_begin(&args);
	arg_ids(&args, "without", without, nwithout);
	arg_int64(&args, "from", from);
	arg_int64(&args, "limit", limit);
	arg_timestamp(&args, "until", GetCurrentTimestamp() + JUDGE_US);
	return judge_read(caller, &judge_any, table, removed, &args, limit, rows, more);
}

/* clang-format off */

/*
 * The task is planned for now, unless for later: "active" and repeats count from now on, and the
 * row takes its place behind those that were due before.
 */
static const Statement free_rows = {STATEMENT_FREE,
	"UPDATE {rows} AS t"
	"   SET waits = NULL, dt = greatest(t.dt, $now), planned = NULL"
	"  FROM ROWS FROM (unnest($oids), unnest($tids)) AS c (oid, tid)"
	" WHERE " IS_LOCKED_ROW};

/* It waits for one task alone.  The size is known without reading a long array. */
#define IS_SINGLE(row) "pg_column_size(" row ".after) < 64 AND " row ".after = ARRAY[a.id]"

/*
 * The rows that wait for one of these tasks alone, which is DONE: nothing is to be judged.  A row
 * that was changed after the snapshot of the statement is left out, as by judge_rows: the lock
 * returns the place of its new version, where the snapshot finds no row.
 */
static const Statement free_single = {STATEMENT_FREE_SINGLE,
	"WITH c AS MATERIALIZED ("
	"SELECT n.oid, n.tid"
	"  FROM unnest($ids) AS a (id)"
	" CROSS JOIN LATERAL ("
	"       SELECT t.tableoid AS oid, t.ctid AS tid"
	"         FROM {rows} AS t"
	"        WHERE t.state = 'PLAN' AND t.waits = a.id AND " IS_SINGLE("t")
	"          AND coalesce(t.rule, 'done') IN ('done', 'ended', 'any')"
	"          AND t.id <> ALL ($without)"
	"        LIMIT $limit"
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"
	" WHERE (SELECT true FROM {rows} AS t WHERE t.state = 'PLAN' AND t.waits = a.id LIMIT 1)"
	"   AND (SELECT bool_and(r.state = 'DONE') FROM {rows} AS r WHERE r.id = a.id)"
	" LIMIT $limit"
	") UPDATE {rows} AS t"
	"   SET waits = NULL, dt = greatest(t.dt, $now), planned = NULL"
	"  FROM c"
	" WHERE " IS_LOCKED_ROW};

static const Statement wait_on = {STATEMENT_WAIT_ON,
	"UPDATE {rows} AS t"
	"   SET waits = c.id"
	"  FROM ROWS FROM (unnest($oids), unnest($tids), unnest($ids)) AS c (oid, tid, id)"
	" WHERE " IS_LOCKED_ROW};

static const Statement give_up = {STATEMENT_GIVE_UP,
	"UPDATE {rows} AS t"
	"   SET state = 'GONE', stop = clock_timestamp(), waits = NULL, error = $error,"
	"       sqlstate = $sqlstate, response = " FAILURE_RESPONSE
	"  FROM ROWS FROM (unnest($oids), unnest($tids)) AS c (oid, tid)"
	" WHERE " IS_LOCKED_ROW
	" RETURNING " UNSTARTED ", " NOTIFY_END("t.state")};

/* clang-format on */

/* Add what identifies locked rows. */
static void
arg_locked(StatementArgs *args, const DependentRow *rows, int count)
{
	Datum *oids = arg_array(args, "oids", OIDOID, count);
	Datum *tids = arg_array(args, "tids", TIDOID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		oids[i] = ObjectIdGetDatum(rows[i].oid);
		tids[i] = PointerGetDatum(&rows[i].tid);
	}
}

/* These locked rows wait for no other task any more.  Their trigger leaves hints. */
void
rows_free(const TaskTable *table, const DependentRow *rows, int count, TimestampTz now)
{
	StatementArgs args;

	statement_begin(&args);
	arg_locked(&args, rows, count);
	arg_timestamp(&args, "now", now);
	statement_execute(&free_rows, table, &args);
	statement_end();
}

/*
 * Free up to "limit" rows, but for those in "without", that wait for one of these tasks alone, if
 * it is DONE.  This is what rows_judge and rows_free would do, in a third of the time.  Returns the
 * number of rows; one that somebody has locked is left out.
 */
int
rows_free_single(const TaskTable *table, const int64 *ids, int count, const int64 *without,
				 int nwithout, int limit, TimestampTz now)
{
	StatementArgs args;
	int freed;

	statement_begin(&args);
	arg_ids(&args, "ids", ids, count);
	arg_ids(&args, "without", without, nwithout);
	arg_int64(&args, "limit", limit);
	arg_timestamp(&args, "now", now);
	freed = (int) statement_execute(&free_single, table, &args);
	statement_end();
	return freed;
}

/* Each of these locked rows watches another task from now on. */
void
rows_watch(const TaskTable *table, const DependentRow *rows, int count)
{
	StatementArgs args;
	Datum *ids;
	int i;

	statement_begin(&args);
	arg_locked(&args, rows, count);
	ids = arg_array(&args, "ids", INT8OID, count);
	for (i = 0; i < count; i++)
		ids[i] = Int64GetDatum(rows[i].watches);
	statement_execute(&wait_on, table, &args);
	statement_end();
}

/*
 * Add why rows are given up that have the verdict and the culprit of this one.  Returns the message
 * and sets *sqlstate; both are NULL if they are not needed.
 */
static const char *
arg_culprit(StatementArgs *args, const DependentRow *row, const char **sqlstate)
{
	Failure failure = {"ERROR", NULL, NULL, NULL, TASK_ERROR_PREDECESSOR};

	if (row->verdict == DEPENDENT_NOT_NEEDED)
	{
		arg_text(args, "error", NULL);
		arg_text(args, "sqlstate", NULL);
		arg_text(args, "text", NULL);
		arg_text(args, "json", NULL);
		arg_text(args, "format", "text");
		*sqlstate = NULL;
		return NULL;
	}
	failure.error = psprintf("task " INT64_FORMAT ", for which this one waited, %s%s", row->culprit,
							 row->culprit_state ? "is " : "was removed",
							 row->culprit_state ? row->culprit_state : "");
	arg_failure(args, &failure, InvalidOid);
	*sqlstate = failure.sqlstate;
	return failure.error;
}

/* Set these locked rows to GONE.  They have the same verdict, and the same culprit. */
void
rows_give_up(const TaskTable *table, const DependentRow *rows, int count)
{
	StatementArgs args;
	const char *sqlstate;
	const char *error;

	statement_begin(&args);
	arg_locked(&args, rows, count);
	error = arg_culprit(&args, &rows[0], &sqlstate);
	note_unstarted(statement_execute(&give_up, table, &args), EVENT_GONE, error, sqlstate);
	statement_end();
}

/* clang-format off */

/*
 * The tasks that the next rows watch, in the order of the index.  To descend it for each task would
 * cost more, unless very many rows watch each: to find one entry, the server reads a page of them.
 */
static const Statement read_watched = {STATEMENT_WATCHED,
	"SELECT w.waits, w.nrows,"
	"       (SELECT true FROM {rows} AS r WHERE r.id = w.waits AND " UNENDED " LIMIT 1) IS NULL"
	"  FROM (SELECT n.waits, count(*) AS nrows"
	"          FROM (SELECT t.waits"
	"                  FROM {rows} AS t"
	"                 WHERE t.state = 'PLAN' AND t.waits >= $from"
	"                 ORDER BY t.waits LIMIT $limit) AS n"
	"         GROUP BY n.waits) AS w"
	" ORDER BY w.waits"};

/* clang-format on */

/*
 * Read the next tasks that rows watch, in the order of their ids, from this id on: those of up to
 * "limit" rows.  Sets *more if there may be others.
 */
int
rows_watched(const TaskTable *table, int64 from, int limit, WatchedTask **tasks, bool *more)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int64 nrows = 0;
	int count;
	int i;

	statement_begin(&args);
	arg_int64(&args, "from", from);
	arg_int64(&args, "limit", limit);
	count = (int) statement_execute(&read_watched, table, &args);
	*tasks = MemoryContextAlloc(caller, Max(count, 1) * sizeof(WatchedTask));
	for (i = 0; i < count; i++)
	{
		(*tasks)[i].id = statement_int64(i, 1);
		nrows += statement_int64(i, 2);
		(*tasks)[i].ended = statement_bool(i, 3);
	}
	statement_end();
	*more = nrows == limit;
	return count;
}
