/*
 * rows_finish.c
 *		Statements on the row of one run: its request, its outcome, the next run of its task.
 *
 * Each has the fence: the id, the attempt and the time of the claim must be those of the run, or
 * nothing is read or written.  The next run of a task is planned from its row, which the caller has
 * written or locked before.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"

#include "task/direct.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* clang-format off */

/* The fence of a run that an executor has claimed. */
#define IS_RUN "t.id = $id AND t.attempt = $attempt AND t.start = $claimed"

/* No run after this one has been planned meanwhile: see PLANNED_AGAIN. */
#define IS_LAST_RUN "t.dt <= $claimed"

/* The fence of a run of which the owner of the table may have set the time of the claim to NULL. */
#define IS_ANY_RUN "t.id = $id AND t.attempt = $attempt AND " CLAIMED("t") " = $claimed"

static const Statement read_request = {.sql =
	"SELECT t.request, t.input"
	"  FROM {rows} AS t"
	" WHERE " IS_RUN " AND t.state = 'WORK'"};

/* clang-format on */

/* Add what the fence compares. */
static void
arg_run(StatementArgs *args, TaskRun run)
{
	arg_int64(args, "id", run.id);
	arg_int32(args, "attempt", run.attempt);
	arg_timestamp(args, "claimed", run.claimed);
}

/* Add what each run leaves in its row. */
static void
arg_result(StatementArgs *args, const TaskResult *result)
{
	arg_timestamp(args, "start", result->start);
	arg_timestamp(args, "stop", result->stop);
	arg_text(args, "response", result->response);
	arg_text(args, "notice", result->notice);
}

/* Add why a run has failed, if it has. */
static void
arg_error(StatementArgs *args, const TaskResult *result)
{
	arg_text(args, "error", result->error);
	arg_text(args, "sqlstate", result->sqlstate);
}

/* Read the request of a run.  Returns false if the row no longer belongs to that run. */
bool
row_request(const TaskTable *table, TaskRun run, RowRequest *request)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	bool found;

	statement_begin(&args);
	arg_run(&args, run);
	found = statement_execute(&read_request, table, &args) > 0;
	if (found)
	{
		request->text = statement_text(caller, 0, 1);
		request->input = statement_json_or_null(caller, 0, 2);
	}
	statement_end();
	return found;
}

/* clang-format off */

/* With "keep" of 0 a row goes when it is DONE, unless other tasks of its flow have not ended. */
#define REMOVES "(t.keep <= interval '0' AND t.flow IS NULL)"

static const Statement finish_run = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'DONE', start = $start, stop = $stop, response = $response, notice = $notice,"
	"       error = NULL, sqlstate = NULL"
	" WHERE " IS_RUN " AND t.state = 'WORK' AND " IS_LAST_RUN
	" RETURNING " REPEATS ", coalesce(" REMOVES ", false), " NOTIFY_END("t.state")};

/* clang-format on */

/*
 * Set a run to DONE, and say what follows.  Returns false if the row no longer belongs to that run,
 * or if it was planned again meanwhile.
 */
bool
row_finish(const TaskTable *table, RowFinish *finish)
{
	StatementArgs args;

	direct_finish(table, finish, 1);
	if (finish->finished)
		return true;
	statement_begin(&args);
	arg_run(&args, finish->run);
	arg_result(&args, finish->result);
	finish->finished = statement_execute(&finish_run, table, &args) > 0;
	if (finish->finished)
	{
		finish->repeats = statement_bool(0, 1);
		finish->removes = statement_bool(0, 2);
	}
	statement_end();
	return finish->finished;
}

/* clang-format off */
/* The outcome of a run that is not DONE. */
static const Statement end_run = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = $state, start = $start, stop = $stop, response = $response, error = $error,"
	"       sqlstate = $sqlstate, notice = $notice,"
	"       failed = least(coalesce(t.failed, 0), 2147483646) + $failed,"
	"       crashed = coalesce(t.crashed, 0) + $crashed,"
	"       planned = CASE WHEN $again IS NULL OR " PLANNED_AGAIN " THEN t.planned"
	"                      ELSE " PLANNED " END,"
	"       dt = CASE WHEN NOT " PLANNED_AGAIN " THEN coalesce($again, t.dt)"
	"                 ELSE " AGAIN_TIME " END"
	" WHERE " IS_ANY_RUN " AND t.state = $old_state"
	" RETURNING CASE WHEN t.state = 'FAIL' THEN " NOTIFY_END("t.state") " END"};
/* clang-format on */

/*
 * Write the outcome of a run that did not end with DONE.  A task that was stopped keeps state
 * STOP, and its row records how the run ended.  If the row was planned again meanwhile, it keeps
 * that time.  Returns false if the row no longer belongs to that run.
 */
bool
row_end(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	static const char *const states[] = {
		[TASK_DONE] = "DONE", [TASK_FAIL] = "FAIL", [TASK_AGAIN] = "PLAN", [TASK_STOPPED] = "STOP"};
	StatementArgs args;
	bool ended;

	statement_begin(&args);
	arg_run(&args, run);
	arg_text(&args, "old_state", result->outcome == TASK_STOPPED ? "STOP" : "WORK");
	arg_text(&args, "state", states[result->outcome]);
	arg_result(&args, result);
	arg_error(&args, result);
	arg_int32(&args, "failed", result->failed ? 1 : 0);
	arg_int32(&args, "crashed", result->crashed ? 1 : 0);
	if (result->again != 0)
		arg_timestamp(&args, "again", result->again);
	else
		arg_null(&args, "again", TIMESTAMPTZOID);
	ended = statement_execute(&end_run, table, &args) > 0;
	statement_end();
	return ended;
}

/* clang-format off */
static const Statement plan_again = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'PLAN', start = $start, stop = $stop, response = $response, error = $error,"
	"       sqlstate = $sqlstate, notice = $notice, failed = 0, planned = NULL,"
	"       dt = " AGAIN_TIME
	" WHERE " IS_RUN " AND t.state = 'WORK'"};
/* clang-format on */

/*
 * The run has ended, DONE or failed for good, and its row was planned again meanwhile: the task
 * waits for its next run, which has all retries.  Returns false if the row no longer belongs to
 * that run.
 */
bool
row_plan_again(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	StatementArgs args;
	bool planned;

	statement_begin(&args);
	arg_run(&args, run);
	arg_result(&args, result);
	arg_error(&args, result);
	planned = statement_execute(&plan_again, table, &args) > 0;
	statement_end();
	return planned;
}

/* clang-format off */

/*
 * The next run is due after the end of this one, and goes behind what waits then.  If a user has
 * planned the row again as well, the earlier time counts.  A task that repeats keeps the time from
 * which its repeats are counted.
 */
static const Statement go_on = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'PLAN', start = $start, stop = $stop, response = $response, error = NULL,"
	"       sqlstate = NULL, notice = $notice, failed = 0, crashed = 0,"
	"       input = coalesce($input, t.input),"
	"       planned = CASE WHEN " REPEATS " THEN " PLANNED " END,"
	"       dt = greatest($stop, least($next, CASE WHEN " PLANNED_AGAIN " THEN t.dt END))"
	" WHERE " IS_RUN " AND t.state = 'WORK'"};
/* clang-format on */

/*
 * The run is done, and the task has asked to be run again: its row waits.  Returns false if the row
 * no longer belongs to that run.
 */
bool
row_go_on(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	StatementArgs args;
	bool planned;

	statement_begin(&args);
	arg_run(&args, run);
	arg_result(&args, result);
	arg_timestamp(&args, "next", result->next);
	arg_json(&args, "input", result->input);
	planned = statement_execute(&go_on, table, &args) > 0;
	statement_end();
	return planned;
}

/* clang-format off */

/* What decides whether a run is retried. */
#define RETRY \
	"SELECT coalesce(t.failed, 0), coalesce(t.crashed, 0), coalesce(t.retry, -1)," \
	"       " BACKOFF ", " DELAY "," \
	"       " PLANNED "," \
	"       ((" PLANNED " AT TIME ZONE 'UTC')" \
	"        + CASE WHEN t.active < interval '100 years' THEN t.active END) AT TIME ZONE 'UTC'," \
	"       " REPEATS ", coalesce(t.role::text, ''), coalesce(t.role_id, 0), " PLANNED_AGAIN "," \
	"       substr(t.format, 1, 8), " QUEUE_NAME \
	"  FROM {rows} AS t" \
	" WHERE " IS_ANY_RUN " AND t.state = 'WORK'" \
	"   FOR NO KEY UPDATE OF t"

static const Statement read_retry = {.sql = RETRY};
static const Statement read_retry_unlocked = {.sql = RETRY " SKIP LOCKED"};

/* clang-format on */

/*
 * Lock the row of a run, and read what decides whether it is retried.  Returns false if the row no
 * longer belongs to that run, or if somebody has locked it and "wait" is false.
 */
bool
row_retry(const TaskTable *table, TaskRun run, bool wait, RowRetry *retry)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	bool found;

	statement_begin(&args);
	arg_run(&args, run);
	found = statement_execute(wait ? &read_retry : &read_retry_unlocked, table, &args) > 0;
	if (found)
	{
		retry->failed = statement_int32(0, 1);
		retry->crashed = statement_int32(0, 2);
		retry->retry = statement_int32(0, 3);
		retry->backoff = statement_float8(0, 4);
		retry->delay = statement_int64(0, 5);
		retry->planned = statement_time(0, 6);
		retry->expires = statement_is_null(0, 7) ? DT_NOEND : statement_time(0, 7);
		retry->repeats = statement_bool(0, 8);
		retry->role = statement_text(caller, 0, 9);
		retry->role_id = statement_int64(0, 10);
		retry->planned_again = statement_bool(0, 11);
		retry->format = statement_text_or_null(caller, 0, 12);
		retry->queue = statement_text(caller, 0, 13);
	}
	statement_end();
	return found;
}

/* clang-format off */
static const Statement delete_row = {.sql =
	"WITH c AS MATERIALIZED ("
	"SELECT t.tableoid AS oid, t.ctid AS tid"
	"  FROM {rows} AS t"
	" WHERE " IS_RUN " AND t.state = 'DONE'"
	"   FOR UPDATE OF t SKIP LOCKED"
	") DELETE FROM {rows} AS t USING c WHERE " IS_LOCKED_ROW};
/* clang-format on */

/*
 * Delete the row of a run that is DONE: its time of the claim is that of its beginning.  It stays
 * if somebody has locked it: an open transaction may have inserted a row that waits for it.
 */
void
row_delete(const TaskTable *table, TaskRun run)
{
	StatementArgs args;

	statement_begin(&args);
	arg_run(&args, run);
	statement_execute(&delete_row, table, &args);
	statement_end();
}

/* clang-format off */

/* A row that has ended and repeats.  In a partitioned table other rows may have its id and role. */
#define ENDED_CHAIN \
	"t.id = $id AND t.role = $role::name AND t.state IN ('DONE', 'FAIL', 'GONE') AND " REPEATS

#define READ_REPEAT(row) \
	"SELECT " PLANNED ", t.repeat, t.drift," \
	"       substr(t.timezone, 1, " CppAsString2(TASK_ZONE_MAX) " + 1)," \
	"       coalesce(t.role_id, 0)," \
	"       substr(t.cron, 1, " CppAsString2(TASK_KEY_MAX) " + 1), coalesce(t.anchor, " PLANNED ")," \
	"       substr(t.missed, 1, 8), coalesce(t.active < interval '100 years', false)" \
	"  FROM {rows} AS t" \
	" WHERE " row \
	" LIMIT 1"

static const Statement read_repeat = {.sql = READ_REPEAT(ENDED_CHAIN)};

static const Statement read_repeat_waiting = {.sql =
	READ_REPEAT("t.id = $id AND t.role = $role::name AND t.dt = $dt AND t.state = $state"
				" AND " REPEATS)};

/* clang-format on */

/* Read the result of one of these statements.  Returns false if there is no row. */
static bool
execute_repeat(const Statement *statement, const TaskTable *table, StatementArgs *args,
			   MemoryContext where, RowRepeat *repeat)
{
	if (statement_execute(statement, table, args) == 0)
		return false;
	repeat->dt = statement_time(0, 1);
	memset(&repeat->repeat, 0, sizeof(Interval));
	if (!statement_is_null(0, 2))
		repeat->repeat = *DatumGetIntervalP(statement_value(0, 2, INTERVALOID));
	repeat->drift = statement_bool(0, 3);
	repeat->timezone = statement_text_or_null(where, 0, 4);
	repeat->role_id = statement_int64(0, 5);
	repeat->cron = statement_text_or_null(where, 0, 6);
	repeat->anchor = statement_time(0, 7);
	repeat->missed = statement_text_or_null(where, 0, 8);
	repeat->expires = statement_bool(0, 9);
	return true;
}

/*
 * Read how a task that has ended repeats.  Returns false if it does not, or if the row was deleted.
 */
bool
row_repeat(const TaskTable *table, RowKey row, RowRepeat *repeat)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	bool repeats;

	statement_begin(&args);
	arg_int64(&args, "id", row.id);
	arg_text(&args, "role", row.role);
	repeats = execute_repeat(&read_repeat, table, &args, caller, repeat);
	statement_end();
	return repeats;
}

/* The same for a task that waits and cannot be started. */
bool
row_repeat_waiting(const TaskTable *table, const RowRefusal *refusal, RowRepeat *repeat)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	bool repeats;

	statement_begin(&args);
	arg_int64(&args, "id", refusal->row.id);
	arg_text(&args, "role", refusal->row.role);
	arg_timestamp(&args, "dt", refusal->dt);
	arg_text(&args, "state", "PLAN");
	repeats = execute_repeat(&read_repeat_waiting, table, &args, caller, repeat);
	statement_end();
	return repeats;
}

/* clang-format off */
static const Statement insert_next = {.sql =
	"INSERT INTO {table} (parent, dt, anchor, {inherited})"
	" SELECT t.id, $dt, $anchor, {inherited}"
	"   FROM {rows} AS t WHERE " ENDED_CHAIN " LIMIT 1"
	" RETURNING id"};

/* Only one row is written, although another one may look the same: see above. */
static const Statement link_next = {.sql =
	"WITH c AS MATERIALIZED ("
	"SELECT t.tableoid AS oid, t.ctid AS tid FROM {rows} AS t WHERE " ENDED_CHAIN " LIMIT 1"
	") UPDATE {rows} AS t SET next = $next FROM c WHERE " IS_LOCKED_ROW};
/* clang-format on */

/* Insert a new row, made from this one.  Returns false if a trigger of the owner's has kept it. */
static bool
insert_row(const TaskTable *table, RowKey row, const RowNext *next, int64 *id)
{
	StatementArgs args;
	bool inserted;

	statement_begin(&args);
	arg_int64(&args, "id", row.id);
	arg_timestamp(&args, "dt", next->dt);
	arg_text(&args, "role", row.role);
	if (next->has_anchor)
		arg_timestamp(&args, "anchor", next->anchor);
	else
		arg_null(&args, "anchor", TIMESTAMPTZOID);
	inserted = statement_execute(&insert_next, table, &args) > 0;
	if (inserted)
		*id = statement_int64(0, 1);
	statement_end();
	return inserted;
}

/* Plan the next run of a repeating task that has ended, and remember in its row that this is done.
 */
void
row_insert_next(const TaskTable *table, RowKey row, const RowNext *next)
{
	StatementArgs args;
	int64 id;

	if (!insert_row(table, row, next, &id))
		return;
	statement_begin(&args);
	arg_int64(&args, "id", row.id);
	arg_text(&args, "role", row.role);
	arg_int64(&args, "next", id);
	statement_execute(&link_next, table, &args);
	statement_end();
}
