/*
 * rows_work.c
 *		Statements of the scheduler on rows in state WORK, or in state STOP with a "start" and no
 *		"stop": it compares them with the runs that its executors hold, plans orphans again, and
 *		writes the end of those that were stopped.
 *
 * A row in state STOP without a "start" had no run that could end, as one that was inserted so.
 *
 * None of these waits for a row that somebody has locked.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* clang-format off */

#define WORKING_ROW \
	"t.id, t.attempt, " CLAIMED("t") ", " QUEUE_NAME "," \
	" coalesce(t.sqlstate = '57P01', false), t.state = 'STOP'"

static const Statement find_working = {.sql =
	"SELECT " WORKING_ROW
	"  FROM {rows} AS t"
	" WHERE (t.state = 'WORK' OR (t.state = 'STOP' AND t.stop IS NULL AND t.start IS NOT NULL))"
	"   AND t.id IS NOT NULL AND t.attempt IS NOT NULL"
	" LIMIT $limit"};

/* clang-format on */

static int
compare_working(const void *a, const void *b)
{
	return task_compare_runs(((const WorkingRow *) a)->run, ((const WorkingRow *) b)->run);
}

/* Read the rows that the last statement returned, and sort them by run. */
static int
returned_working(MemoryContext where, uint64 count, WorkingRow **rows)
{
	uint64 i;

	*rows = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(WorkingRow));
	for (i = 0; i < count; i++)
	{
		WorkingRow *row = &(*rows)[i];

		row->run.id = statement_int64(i, 1);
		row->run.attempt = statement_int32(i, 2);
		row->run.claimed = statement_time(i, 3);
		row->queue = statement_text(where, i, 4);
		row->interrupted = statement_bool(i, 5);
		row->stopped = statement_bool(i, 6);
	}
	qsort(*rows, count, sizeof(WorkingRow), compare_working);
	return (int) count;
}

/* Read up to "limit" such rows, in no particular order. */
int
rows_working(const TaskTable *table, int limit, WorkingRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;

	statement_begin(&args);
	arg_int64(&args, "limit", limit);
	count = returned_working(caller, statement_execute(&find_working, table, &args), rows);
	statement_end();
	return count;
}

/* clang-format off */
/* The state is an argument, so that the planner does not use the index on running rows. */
static const Statement find_runs = {.sql =
	"SELECT n.*"
	"  FROM ROWS FROM (unnest($ids), unnest($attempts), unnest($claims))"
	"       AS a (id, attempt, claimed)"
	" CROSS JOIN LATERAL ("
	"       SELECT " WORKING_ROW
	"         FROM {rows} AS t"
	"        WHERE t.id = a.id AND t.attempt = a.attempt"
	"          AND " CLAIMED("t") " = a.claimed"
	"          AND (t.state = $state OR (t.state = $stopped AND t.stop IS NULL))"
	"       OFFSET 0) AS n"};
/* clang-format on */

/* Add runs that must be in this state: parallel arrays of their ids, attempts and claim times. */
static void
arg_runs(StatementArgs *args, const TaskRun *runs, int count, const char *state)
{
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	Datum *attempts = arg_array(args, "attempts", INT4OID, count);
	Datum *claims = arg_array(args, "claims", TIMESTAMPTZOID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(runs[i].id);
		attempts[i] = Int32GetDatum(runs[i].attempt);
		claims[i] = TimestampTzGetDatum(runs[i].claimed);
	}
	arg_text(args, "state", state);
}

/*
 * Find those of these runs that still have their row in state WORK, or in state STOP without an
 * end, sorted by run.
 */
int
rows_of_runs(const TaskTable *table, const TaskRun *runs, int count, WorkingRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;

	statement_begin(&args);
	arg_runs(&args, runs, count, "WORK");
	arg_text(&args, "stopped", "STOP");
	count = returned_working(caller, statement_execute(&find_runs, table, &args), rows);
	statement_end();
	return count;
}

/*
 * Find the row of this run among the rows that rows_working or rows_of_runs returned; or NULL.
 * Without rows the pointer may be NULL, which bsearch does not allow.
 */
const WorkingRow *
rows_contain(const WorkingRow *rows, int count, TaskRun run)
{
	WorkingRow key = {.run = run};

	if (count == 0)
		return NULL;
	return bsearch(&key, rows, count, sizeof(WorkingRow), compare_working);
}

/* clang-format off */

/*
 * Select and lock those of the runs in three arrays whose rows are still these runs and are not
 * locked by anybody.  LATERAL keeps the planner from starting with all rows of the table, as it
 * would for a table that was empty when the plan was made.
 */
#define RUNS_NOT_LOCKED \
	"SELECT n.*" \
	"  FROM ROWS FROM (unnest($ids), unnest($attempts), unnest($claims))" \
	"       AS a (id, attempt, claimed)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT r.id, r.attempt, " CLAIMED("r") " AS claimed, r.tableoid AS oid, r.ctid AS tid" \
	"         FROM {rows} AS r" \
	"        WHERE r.id = a.id AND r.attempt = a.attempt" \
	"          AND " CLAIMED("r") " = a.claimed AND r.state = $state" \
	"          FOR NO KEY UPDATE OF r SKIP LOCKED) AS n"

/* Undo the claim of runs that never began. */
static const Statement release_runs = {.sql =
	"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
	" UPDATE {rows} AS t"
	"    SET state = 'PLAN', attempt = t.attempt - 1, start = NULL, pid = NULL"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW
	" RETURNING c.id, c.attempt, c.claimed"};

/* Plan again, due at once, the runs of a process that has exited, and record the reason. */
static const Statement replan_runs = {.sql =
	"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
	" UPDATE {rows} AS t"
	"    SET state = 'PLAN', stop = clock_timestamp(), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE ", notice = NULL"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW
	" RETURNING c.id, c.attempt, c.claimed"};

/* Write how runs have ended that a user has stopped, and whose process could not. */
static const Statement stop_runs = {.sql =
	"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
	" UPDATE {rows} AS t"
	"    SET stop = clock_timestamp(), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE ", notice = NULL"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW " AND t.stop IS NULL"
	" RETURNING c.id, c.attempt, c.claimed, t.start IS NOT NULL, coalesce(t.stop, c.claimed),"
	"           " QUEUE_NAME ", coalesce(t.role::text, '')"};
/* clang-format on */

/* Note, for the rows of the last result, that their runs were stopped. */
static void
note_stopped(uint64 count)
{
	uint64 i;

	for (i = 0; i < count; i++)
	{
		TaskEvent event = {.kind = EVENT_STOPPED,
						   .id = statement_int64(i, 1),
						   .attempt = statement_int32(i, 2),
						   .queue = statement_text(CurrentMemoryContext, i, 6),
						   .role_name = statement_text(CurrentMemoryContext, i, 7)};

		if (!statement_bool(i, 4))
			continue;
		event.elapsed = Max(statement_time(i, 5) - statement_time(i, 3), 0);
		event_note(&event);
	}
}

/*
 * End runs whose process did not: "why" is in their rows, unless they never began.  Returns the
 * runs for which that was done: the rows of the others no longer belong to these runs, or somebody
 * has locked them.
 */
int
rows_end_runs(const TaskTable *table, RunsEnd end, const TaskRun *runs, int count,
			  const Failure *why, TaskRun **done)
{
	static const Statement *const statements[] = {
		[RUNS_RELEASE] = &release_runs, [RUNS_REPLAN] = &replan_runs, [RUNS_STOP] = &stop_runs};
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int i;

	statement_begin(&args);
	arg_runs(&args, runs, count, end == RUNS_STOP ? "STOP" : "WORK");
	if (end != RUNS_RELEASE)
		arg_failure(&args, why, InvalidOid);
	count = (int) statement_execute(statements[end], table, &args);
	*done = MemoryContextAllocHuge(caller, Max(count, 1) * sizeof(TaskRun));
	for (i = 0; i < count; i++)
		(*done)[i] = (TaskRun){statement_int64(i, 1), statement_int32(i, 2), statement_time(i, 3)};
	if (end == RUNS_STOP)
		note_stopped(count);
	statement_end();
	return count;
}
