/*
 * outcome.c
 *		The row of one run: its request, and its outcome.  The task is done, retried, or failed, and
 *		it may repeat.  What is requested when it has failed for good: the column "on_failure", or
 *		else the setting of that name.
 *
 * Executors and the scheduler write outcomes, by the same rules.  The functions that write read the
 * row, the settings of its role, the clock and a random number; decide_retry depends on its
 * arguments only.
 *
 * Each statement on the row of a run has the fence: the id, the attempt and the time of the claim
 * must be those of the run, or nothing is read or written.  The next run of a task is planned from
 * its row, which was written or locked before.
 *
 * This file starts nothing, and knows neither processes nor slots.
 */
#include "postgres.h"

#include <math.h>

#include "common/pg_prng.h"
#include "utils/memutils.h"

#include "settings.h"
#include "task/events.h"
#include "task/outcome.h"
#include "task/repeat.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"
#include "task/subtransaction.h"

/* Longest wait for a retry (us), unless "delay" itself is longer. */
#define RETRY_MAX ((double) USECS_PER_HOUR)

/* Retries of tasks that failed together are spread by this part of the wait, up to so much (us). */
#define JITTER 0.1
#define JITTER_MAX (JITTER * USECS_PER_HOUR)

/* The first of these that is not negative, which the last one is not: row, queue, role. */
#define FIRST_OF(row, queue, role) ((row) >= 0 ? (row) : (queue) >= 0 ? (queue) : (role))

/* ---- the row of a run ---- */

/* clang-format off */

/* The fence of a run that an executor has claimed. */
#define IS_RUN "t.id = $id AND t.attempt = $attempt AND t.start = $claimed"

/* No run after this one has been planned meanwhile: see PLANNED_AGAIN. */
#define IS_LAST_RUN "t.dt <= $claimed"

/* The fence of a run of which the owner of the table may have set the time of the claim to NULL. */
#define IS_ANY_RUN "t.id = $id AND t.attempt = $attempt AND " CLAIMED("t") " = $claimed"

/* How many runs of a schedule have failed in a row, with this one. */
#define STREAK "CASE WHEN " REPEATS " THEN least(coalesce(t.streak, 0), 2147483646) + 1 END"

/*
 * The runs that have failed, with this one: the last ten.  The owner of the table may have written
 * anything into the column.
 */
#define FAILURES(failed) \
	"CASE WHEN " failed " THEN" \
	"  CASE WHEN jsonb_typeof(t.failures) IS DISTINCT FROM 'array' THEN '[]'" \
	"       WHEN jsonb_array_length(t.failures) >= 10 THEN t.failures - 0" \
	"       ELSE t.failures END" \
	"  || jsonb_build_array(jsonb_build_object('attempt', t.attempt, 'start', $start::timestamptz," \
	"       'stop', $stop::timestamptz, 'pid', t.pid, 'sqlstate', $sqlstate::text," \
	"       'error', left($error, 200)))" \
	" ELSE t.failures END"

/* With "keep" of 0 a row goes when it is DONE, unless other tasks of its flow have not ended. */
#define REMOVES "(t.keep <= interval '0' AND t.flow IS NULL)"

static const Statement read_request = {.sql =
	"SELECT t.request, t.input, t.meta"
	"  FROM {rows} AS t"
	" WHERE " IS_RUN " AND t.state = 'WORK'"};

/* Set a run to DONE. */
static const Statement write_done = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'DONE', start = $start, stop = $stop, response = $response, notice = $notice,"
	"       error = NULL, sqlstate = NULL, streak = NULL"
	" WHERE " IS_RUN " AND t.state = 'WORK' AND " IS_LAST_RUN
	" RETURNING " REPEATS ", coalesce(" REMOVES ", false), " NOTIFY_END("t.state")};

/* The outcome of a run that is not DONE. */
static const Statement write_end = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = $state, start = $start, stop = $stop, response = $response, error = $error,"
	"       sqlstate = $sqlstate, notice = $notice,"
	"       failed = least(coalesce(t.failed, 0), 2147483646) + $failed,"
	"       crashed = coalesce(t.crashed, 0) + $crashed,"
	"       streak = CASE WHEN $state = 'FAIL' THEN " STREAK " ELSE t.streak END,"
	"       failures = " FAILURES("$state <> 'STOP'") ","
	"       lost = CASE WHEN $lost THEN least(coalesce(t.lost, 0), 2147483646) + 1 ELSE t.lost END,"
	"       planned = CASE WHEN $again IS NULL OR " PLANNED_AGAIN " THEN t.planned"
	"                      ELSE " PLANNED " END,"
	"       dt = CASE WHEN NOT " PLANNED_AGAIN " THEN coalesce($again, t.dt)"
	"                 ELSE " AGAIN_TIME " END"
	" WHERE " IS_ANY_RUN " AND t.state = $old_state"
	" RETURNING CASE WHEN t.state = 'FAIL' THEN " NOTIFY_END("t.state") " END"};

/* The run has ended, DONE or failed for good, and its row was planned again meanwhile. */
static const Statement write_again = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'PLAN', start = $start, stop = $stop, response = $response, error = $error,"
	"       sqlstate = $sqlstate, notice = $notice, failed = 0, planned = NULL,"
	"       streak = CASE WHEN $error IS NOT NULL THEN " STREAK " END,"
	"       failures = " FAILURES("$error IS NOT NULL") ","
	"       dt = " AGAIN_TIME
	" WHERE " IS_RUN " AND t.state = 'WORK'"};

/*
 * The next run is due after the end of this one, and goes behind what waits then.  If a user has
 * planned the row again as well, the earlier time counts.  A task that repeats keeps the time from
 * which its repeats are counted.
 */
static const Statement write_go_on = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'PLAN', start = $start, stop = $stop, response = $response, error = NULL,"
	"       sqlstate = NULL, notice = $notice, failed = 0, crashed = 0, lost = NULL,"
	"       input = coalesce($input, t.input),"
	"       planned = CASE WHEN " REPEATS " THEN " PLANNED " END,"
	"       dt = greatest($stop, least($next, CASE WHEN " PLANNED_AGAIN " THEN t.dt END))"
	" WHERE " IS_RUN " AND t.state = 'WORK'"};

/*
 * Delete the row of a run that is DONE: its time of the claim is that of its beginning.  It stays
 * if somebody has locked it: an open transaction may have inserted a row that waits for it.
 */
static const Statement delete_row = {.sql =
	"WITH c AS MATERIALIZED ("
	"SELECT t.tableoid AS oid, t.ctid AS tid"
	"  FROM {rows} AS t"
	" WHERE " IS_RUN " AND t.state = 'DONE'"
	"   FOR UPDATE OF t SKIP LOCKED"
	") DELETE FROM {rows} AS t USING c WHERE " IS_LOCKED_ROW};

/* What decides whether a run is retried. */
#define RETRY \
	"SELECT coalesce(t.failed, 0), coalesce(t.crashed, 0), coalesce(t.retry, -1)," \
	"       " BACKOFF ", " DELAY "," \
	"       " PLANNED "," \
	"       ((" PLANNED " AT TIME ZONE 'UTC')" \
	"        + CASE WHEN t.active < interval '100 years' THEN t.active END) AT TIME ZONE 'UTC'," \
	"       " REPEATS ", coalesce(t.role::text, ''), coalesce(t.role_id, 0), " PLANNED_AGAIN "," \
	"       substr(t.format, 1, 8), " QUEUE_NAME ", coalesce(t.lost, 0), " ON_FAILURE \
	"  FROM {rows} AS t" \
	" WHERE " IS_ANY_RUN " AND t.state = 'WORK'" \
	"   FOR NO KEY UPDATE OF t"

static const Statement lock_run = {.sql = RETRY};
static const Statement lock_unlocked = {.sql = RETRY " SKIP LOCKED"};

/* What follows a failure: see outcome_on_failure. */
/* Texts that are longer are cut: the row has them. */
#define CUT(column) "left(" column ", 8000)"

static const Statement insert_on_failure = {.sql =
	"INSERT INTO {table} (parent, queue, role, role_id, request, on_failure, meta, input{own})"
	" SELECT t.id, '" TASK_ON_FAILURE_QUEUE "',"
	"        CASE WHEN t.on_failure IS NULL THEN coalesce($as_role::name, t.role) ELSE t.role END,"
	"        CASE WHEN t.on_failure IS NULL THEN coalesce($as_role_id, t.role_id)"
	"             ELSE t.role_id END,"
	"        coalesce(t.on_failure, $request), '', t.meta,"
	"        jsonb_build_object('id', t.id, 'queue', t.queue, 'key', t.key, 'role', t.role,"
	"               'flow', t.flow, 'step', t.step, 'dt', " PLANNED ", 'attempt', t.attempt,"
	"               'state', t.state, 'sqlstate', t.sqlstate, 'error', " CUT("t.error") ","
	"               'request', " CUT("t.request") ", 'next', t.next,"
	"               'hold', (SELECT n.hold FROM {rows} AS n"
	"                         WHERE n.id = t.next AND n.parent = t.id LIMIT 1)){own}"
	"   FROM {rows} AS t"
	"  WHERE t.id = $id AND t.role = $role::name AND t.sqlstate IS NOT NULL"
	"  LIMIT 1"};

/* clang-format on */

/* Begin a statement that writes what a run leaves in its row. */
static void
begin_result(StatementArgs *args, TaskRun run, const TaskResult *result)
{
	statement_begin(args);
	arg_run(args, run);
	arg_timestamp(args, "start", result->start);
	arg_timestamp(args, "stop", result->stop);
	arg_text(args, "response", result->response);
	arg_text(args, "notice", result->notice);
	arg_text(args, "error", result->error);
	arg_text(args, "sqlstate", result->sqlstate);
}

/* Execute a statement and end it.  Returns false if the row no longer belongs to the run. */
static bool
execute_and_end(const Statement *statement, const TaskTable *table, StatementArgs *args)
{
	bool found = statement_execute(statement, table, args) > 0;

	statement_end();
	return found;
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
		request->meta = statement_json_or_null(caller, 0, 3);
	}
	statement_end();
	return found;
}

/*
 * Set a run to DONE, and say what follows.  Returns false if the row no longer belongs to that run,
 * or if it was planned again meanwhile.
 */
static bool
finish_run(const TaskTable *table, RowFinish *finish)
{
	StatementArgs args;

	begin_result(&args, finish->run, finish->result);
	finish->finished = statement_execute(&write_done, table, &args) > 0;
	if (finish->finished)
	{
		finish->repeats = statement_bool(0, 1);
		finish->removes = statement_bool(0, 2);
	}
	statement_end();
	return finish->finished;
}

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

	begin_result(&args, run, result);
	arg_text(&args, "old_state", result->outcome == TASK_STOPPED ? "STOP" : "WORK");
	arg_text(&args, "state", states[result->outcome]);
	arg_int32(&args, "failed", result->failed ? 1 : 0);
	arg_int32(&args, "crashed", result->crashed ? 1 : 0);
	arg_bool(&args, "lost", result->lost);
	if (result->again != 0)
		arg_timestamp(&args, "again", result->again);
	else
		arg_null(&args, "again", TIMESTAMPTZOID);
	return execute_and_end(&write_end, table, &args);
}

/* The row waits for its next run, which has all retries. */
static bool
plan_again(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	StatementArgs args;

	begin_result(&args, run, result);
	return execute_and_end(&write_again, table, &args);
}

/*
 * Lock the row of a run, and read what decides whether it is retried.  Returns false if the row no
 * longer belongs to that run, or if somebody has locked it and "wait" is false.
 */
static bool
read_retry(const TaskTable *table, TaskRun run, bool wait, RowRetry *retry)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	bool found;

	statement_begin(&args);
	arg_run(&args, run);
	found = statement_execute(wait ? &lock_run : &lock_unlocked, table, &args) > 0;
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
		retry->lost = statement_int32(0, 14);
		retry->on_failure = statement_int32(0, 15);
	}
	statement_end();
	return found;
}

/*
 * Add why tasks have failed: for FAILURE_RESPONSE, and as $error and $sqlstate.  Their column
 * "format" may be NULL; then the settings of the role count, or those of the database if there is
 * none.
 */
void
arg_failure(StatementArgs *args, const Failure *failure, Oid role)
{
	bool json = roles_settings(role).format == RESULT_JSON;

	arg_text(args, "error", failure->error);
	arg_text(args, "sqlstate", failure->sqlstate);
	arg_text(args, "text", failure_text(failure));
	arg_text(args, "json", failure_json(failure));
	arg_text(args, "format", json ? "json" : "text");
}

/*
 * Note for a row of the last result, which begins with the columns UNSTARTED, that the task has
 * ended without a run.  "error" and "sqlstate" may be NULL.
 */
void
note_unstarted_row(uint64 i, EventKind kind, const char *error, const char *sqlstate)
{
	TaskEvent event = {
		.kind = kind,
		.id = statement_int64(i, 1),
		.attempt = statement_int32(i, 4),
		.queue = statement_text(CurrentMemoryContext, i, 3),
		.role_name = statement_text(CurrentMemoryContext, i, 2),
		.elapsed = -1,
		.sqlstate = sqlstate,
		.error = error,
	};

	event_note(&event);
}

/* ---- what follows a failure ---- */

/* What is inserted. */
typedef struct Inserting
{
	const TaskTable *table;
	RowKey row;
	RoleOnFailure role;
	bool inserted; /* the result; false: a trigger of the owner's has kept it */
} Inserting;

static void
insert_task(void *arg)
{
	Inserting *inserting = arg;
	const RoleOnFailure *role = &inserting->role;
	StatementArgs args;

	statement_begin(&args);
	arg_int64(&args, "id", inserting->row.id);
	arg_text(&args, "role", inserting->row.role);
	arg_text(&args, "request", role->request);
	arg_text(&args, "as_role", role->as_name);
	if (role->as_name)
		arg_int64(&args, "as_role_id", role->as_id);
	else
		arg_null(&args, "as_role_id", INT8OID);
	inserting->inserted = statement_execute(&insert_on_failure, inserting->table, &args) > 0;
	statement_end();
}

/*
 * Is this an error of the transaction, which may succeed when it is tried again?  Others are those
 * of the new row, such as a constraint of the owner's that it breaks, or a trigger.
 */
static bool
is_of_transaction(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
		case ERRCODE_INTERNAL_ERROR:
			return true;
		default:
			return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE || sqlstate == ERRCODE_TABLE_CHANGED;
	}
}

/*
 * The task of this row has failed for good: plan what its column "on_failure" "says", which the
 * caller has read, or else the setting of its role.  The failure is written in any case: if the new
 * row is refused, a WARNING says so.
 *
 * It is inserted in the transaction that writes the failure.  Nobody's text runs as somebody else:
 * that of a row and that of a role run as the role of the row, that of the database or of the
 * configuration as the owner of the table (roles_on_failure).  Its own column "on_failure" is
 * empty, so none follows when it fails itself, nor when what it inserts fails (set_labels).
 */
void
outcome_on_failure(const TaskTable *table, RowKey row, int64 role_id, OnFailure says)
{
	Inserting inserting = {.table = table, .row = row};
	ErrorData *error;

	if (says == ON_FAILURE_NOTHING)
		return;
	if (says == ON_FAILURE_DEFAULT &&
		!roles_on_failure(table->owner, roles_bound(row.role, role_id), &inserting.role))
		return;
	error = subtransaction_try(insert_task, &inserting, true);
	if (error && is_of_transaction(error->sqlerrcode))
		ReThrowError(error);
	if (!inserting.inserted)
		ereport(WARNING, (errcode(error ? error->sqlerrcode : ERRCODE_TRIGGERED_ACTION_EXCEPTION),
						  errmsg("nobody is told that task " INT64_FORMAT " has failed", row.id),
						  errdetail_log("Its \"on_failure\" could not be planned: %s.",
										error ? error->message : "a trigger has kept the row")));
}

/* ---- outcomes ---- */

/*
 * Write that the run is DONE, unless that is "finished" already (direct.c), and what follows.  If
 * the task has asked to be run again, or the row was planned again meanwhile, it is PLAN and not
 * DONE, and it is neither removed nor does it repeat before the last run has ended.  A row that is
 * locked is not removed, but DONE.  Returns false if the row no longer belongs to that run.
 */
bool
outcome_done(const TaskTable *table, RowFinish *finish)
{
	const TaskResult *result = finish->result;
	TaskRun run = finish->run;
	StatementArgs args;

	if (result->goes_on)
	{
		begin_result(&args, run, result);
		arg_timestamp(&args, "next", result->next);
		arg_json(&args, "input", result->input);
		return execute_and_end(&write_go_on, table, &args);
	}
	if (!finish->finished && !finish_run(table, finish))
		return plan_again(table, run, result);
	if (finish->repeats)
		repeat_after_run(table, (RowKey){run.id, finish->role}, result);
	if (finish->removes)
	{
		statement_begin(&args);
		arg_run(&args, (TaskRun){run.id, run.attempt, result->start});
		(void) execute_and_end(&delete_row, table, &args);
	}
	return true;
}

/*
 * How long does the n-th retry wait (us)?  delay * backoff^(n - 1), at most the greater of one hour
 * and "delay", and then a little longer.  What the row leaves open is taken from the defaults of
 * its queue, then from the settings of its role.  "random" is between 0 and 1.
 */
static int64
retry_wait(const RowRetry *retry, const TaskDefaults *queue, const SettingsTask *role, int n,
		   double random)
{
	int64 delay = FIRST_OF(retry->delay, queue->delay, (int64) role->delay * 1000);
	double backoff = FIRST_OF(retry->backoff, queue->backoff, role->backoff);
	double longest = Max((double) delay, RETRY_MAX);
	double wait = (double) delay * pow(backoff, n - 1);

	if (delay == 0)
		return 0;
	if (!(wait < longest)) /* also true for infinity and NaN */
		wait = longest;
	return (int64) (wait + Min(JITTER * wait, JITTER_MAX) * random);
}

/*
 * When may a task of a strict queue run that waits, has failed, and ended at "stop"?  Its dt does
 * not say that.  Of "retry" the number of failed runs, "delay" and "backoff" count.
 */
TimestampTz
outcome_retry_at(const RowRetry *retry, TimestampTz stop, const TaskDefaults *queue,
				 const SettingsTask *role)
{
	if (TIMESTAMP_NOT_FINITE(stop))
		return stop;
	return stop + retry_wait(retry, queue, role, retry->failed, 0);
}

/*
 * The task has failed at result->stop: decide whether it is retried, and when.  What the row leaves
 * open is taken from the defaults of its queue, then from the settings of its role.  "random" is
 * between 0 and 1.
 */
static void
decide_retry(TaskResult *result, const RowRetry *retry, const TaskDefaults *queue,
			 const SettingsTask *role, double random)
{
	int limit = FIRST_OF(retry->retry, queue->retry, role->retry);
	int64 active = queue->active >= 0 ? queue->active : role->active;
	TimestampTz expires = retry->expires;

	result->outcome = TASK_FAIL;
	if (retry->failed >= limit || result->final)
		return;
	if (expires == DT_NOEND && active > 0)
		expires = TimestampTzPlusMilliseconds(retry->planned, active);
	result->again = result->stop +
					(result->wait > 0 ? result->wait
									  : retry_wait(retry, queue, role, retry->failed + 1, random));
	if (result->again <= expires)
		result->outcome = TASK_AGAIN;
	/* in a strict queue it keeps its place, and the scheduler makes it wait (strict.c) */
	if (result->outcome != TASK_AGAIN || queue->strict)
		result->again = 0;
}

/* Make the response of a run whose process could not. */
static void
set_response(TaskResult *result, const RowRetry *retry, const SettingsTask *role)
{
	bool json = retry->format ? strcmp(retry->format, "json") == 0 : role->format == RESULT_JSON;

	if (result->response == NULL)
		result->response = json ? failure_json(result->failure) : failure_text(result->failure);
}

/* Note how a run has ended: the row has "result" from now on. */
static void
note_end(TaskRun run, const TaskResult *result, const RowRetry *retry)
{
	static const EventKind kinds[] = {
		[TASK_DONE] = EVENT_DONE, [TASK_FAIL] = EVENT_FAILED, [TASK_AGAIN] = EVENT_RETRIED};
	TaskEvent event = {
		.kind = kinds[result->outcome],
		.id = run.id,
		.attempt = run.attempt,
		.queue = retry->queue,
		.role_name = retry->role,
		.elapsed = Max(result->stop - result->start, 0),
		.sqlstate = result->sqlstate,
		.error = result->error,
		.crashed = result->crashed,
	};

	event_note(&event);
}

/*
 * The row says that a run has failed.  If that is for good, plan the next run of the task, if it
 * "repeats", and what follows the failure.
 */
static void
end_failed(const TaskTable *table, TaskRun run, const TaskResult *result, const RowRetry *retry,
		   bool repeats)
{
	RowKey row = {run.id, retry->role};

	note_end(run, result, retry);
	if (result->outcome != TASK_FAIL)
		return;
	if (repeats)
		repeat_after_run(table, row, result);
	outcome_on_failure(table, row, retry->role_id, retry->on_failure);
}

/*
 * Write that the run has failed: the task is retried later, or its state becomes FAIL; or it is
 * planned again, if a user has done that meanwhile.  "queue" are the defaults of its queue.
 * Returns false if the row no longer belongs to that run, or if somebody has locked it and "wait"
 * is false.
 */
bool
outcome_failed(const TaskTable *table, TaskRun run, TaskResult *result, const TaskDefaults *queue,
			   bool wait)
{
	RowRetry retry;
	SettingsTask role;
	bool plans_again;

	if (!read_retry(table, run, wait, &retry))
		return false;
	result->failed = true;
	role = roles_settings(roles_bound(retry.role, retry.role_id));
	set_response(result, &retry, &role);
	decide_retry(result, &retry, queue, &role, pg_prng_double(&pg_global_prng_state));
	plans_again = result->outcome == TASK_FAIL && retry.planned_again;
	result->planned_again = plans_again;
	if (plans_again ? !plan_again(table, run, result) : !row_end(table, run, result))
		return false;
	end_failed(table, run, result, &retry, retry.repeats && !plans_again);
	return true;
}

/*
 * Write that the run is DONE: it has committed all by itself, and its process could not write that.
 * Returns false if the row no longer belongs to that run, or if somebody has locked it.
 */
bool
outcome_done_later(const TaskTable *table, TaskRun run, const char *response)
{
	TaskResult result = {.outcome = TASK_DONE,
						 .start = run.claimed,
						 .stop = GetCurrentTimestamp(),
						 .response = response,
						 .notice = "INFO:  the request has committed by itself, and the scheduler"
								   " has written this: other notices are lost"};
	RowFinish finish = {.run = run, .result = &result};
	RowRetry row;

	if (!read_retry(table, run, false, &row))
		return false;
	finish.role = row.role;
	if (!outcome_done(table, &finish))
		return false;
	note_end(run, &result, &row);
	return true;
}

/*
 * Write that the run has lost who was to end it.  The server has crashed, perhaps because of it:
 * the task is retried until it has crashed pg_task.max_crashes times; then its state becomes FAIL,
 * and it does not repeat.  Or, without a "crash", who had taken it is gone: it is handed out again
 * at once, until that has happened pg_task.max_lost times; then its state becomes FAIL.  Returns
 * false if the row no longer belongs to that run, or if somebody has locked it.
 */
bool
outcome_lost(const TaskTable *table, TaskRun run, const TaskFailure *crash)
{
	TaskResult result = {
		.start = run.claimed,
		.crashed = crash != NULL,
		.lost = crash == NULL,
		.sqlstate = crash ? crash->sqlstate : TASK_ERROR_LOST,
		.error = crash ? crash->error : "who had taken the task is gone",
	};
	Failure why = {.severity = crash ? "FATAL" : "ERROR", .sqlstate = result.sqlstate};
	RowRetry retry;
	SettingsTask role;
	int times;

	if (!read_retry(table, run, false, &retry))
		return false;
	times = Min(crash ? retry.crashed : retry.lost, PG_INT32_MAX - 1) + 1;
	result.outcome =
		times < (crash ? Settings.max_crashes : Settings.max_lost) ? TASK_AGAIN : TASK_FAIL;
	result.stop = GetCurrentTimestamp();
	if (result.outcome == TASK_FAIL)
		result.error = psprintf("%s (%d times)", result.error, times);
	why.error = result.error;
	result.failure = &why;
	role = roles_settings(roles_bound(retry.role, retry.role_id));
	set_response(&result, &retry, &role);
	if (!row_end(table, run, &result))
		return false;
	end_failed(table, run, &result, &retry, retry.repeats && !crash);
	return true;
}
