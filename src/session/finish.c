/*
 * finish.c
 *		The runs that programs hold, and how they end: pg_task_finish, pg_task_fail,
 *		pg_task_give_back and pg_task_alive, in a user's session and in its transaction.
 *
 * Two things are told apart.  Who lives is known in shared memory: it is told when the transaction
 * has committed.  Whether this is still the run, the row says: each write has the fence of
 * outcome.c, whichever session has the handle.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "compat.h"
#include "session/pending.h"
#include "session/table_access.h"
#include "session/take.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/waiters.h"
#include "task/outcome.h"
#include "task/queue_table.h"
#include "task/rows_sql.h"

COMPAT_FUNCTION(pg_task_finish);
COMPAT_FUNCTION(pg_task_finish_all);
COMPAT_FUNCTION(pg_task_fail);
COMPAT_FUNCTION(pg_task_give_back);
COMPAT_FUNCTION(pg_task_alive);

/* Handles that one call takes. */
#define HANDLES_MAX 10000

/* ---- a run and its row ---- */

/* A run that a handle names. */
typedef struct HeldRun
{
	TakenRef ref;
	Oid user;	/* who ends it */
	int number; /* of the handle among those of the call */
	bool known; /* it is in shared memory: this is its entry */
	SharedTaken entry;
	Oid relid;

	/* as its row says */
	bool found;
	bool works;	  /* it is in state WORK */
	bool is_done; /* this run is DONE */
	char *queue;
	char *role;
} HeldRun;

/*
 * Raise an error if the user may not end this run: "taker" is the role whose members may.  That is
 * told only of a run that is in shared memory: other handles may be made up.
 */
static void
check_rights(const HeldRun *held, int64 taker)
{
	const char *role;

	if (taker > 0 && has_privs_of_role(held->user, (Oid) taker))
		return;
	role = held->known && taker > RULE_NO_ROLE ? GetUserNameFromId((Oid) taker, true) : NULL;
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("you may not end task " INT64_FORMAT, held->ref.run.id),
					role ? errdetail("Members of role \"%s\" may.", role) : 0));
}

/*
 * Read a handle, and check that the current user may end its run.  If that is not in shared memory,
 * because it has ended or the server was restarted, its row says whether there is such a run, and
 * the rule of its queue decides.
 */
static HeldRun
find_run(const text *handle)
{
	HeldRun held = {.user = GetUserId()};
	TaskRun *run = &held.ref.run;
	char *string = text_to_cstring(handle);
	int length = 0;

	if (sscanf(string, HELD_HANDLE "%n", &held.ref.number, &run->id, &run->attempt, &run->claimed,
			   &length) != 4 ||
		string[length] != '\0')
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("invalid handle of a task: \"%s\"", string),
						errhint("A handle is what pg_task_take has returned.")));
	held.known = taken_find(&held.ref, &held.entry);
	held.relid = held.known ? held.entry.relid : table_access_find();
	if (held.known)
		check_rights(&held, held.entry.taker);
	return held;
}

/* clang-format off */
static const Statement read_row = {.sql =
	"SELECT coalesce(t.state = 'WORK', false), coalesce(t.state = 'DONE', false), " QUEUE_NAME ","
	"       coalesce(t.role::text, '')"
	"  FROM {rows} AS t"
	" WHERE t.id = $id AND t.attempt = $attempt AND t.start = $claimed"
	"   AND (t.state <> 'WORK' OR t.lease IS NOT NULL)"
	" LIMIT 1"};

static const Statement give_back_row = {.sql =
	"UPDATE {rows} AS t"
	"   SET state = 'PLAN', stop = $stop, planned = " PLANNED ","
	"       input = coalesce($input, t.input),"
	"       dt = CASE WHEN " PLANNED_AGAIN " THEN least(t.dt, $at) ELSE $at END"
	" WHERE t.id = $id AND t.attempt = $attempt AND t.start = $claimed AND t.state = 'WORK'"};
/* clang-format on */

/* Read the row of a run, unless an executor has it.  Acts as the owner. */
static void
look_at_row(const TaskTable *table, HeldRun *held)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;

	statement_begin(&args);
	arg_run(&args, held->ref.run);
	held->found = statement_execute(&read_row, table, &args) > 0;
	if (held->found)
	{
		held->works = statement_bool(0, 1);
		held->is_done = statement_bool(0, 2);
		held->queue = statement_text(caller, 0, 3);
		held->role = statement_text(caller, 0, 4);
	}
	statement_end();
}

/*
 * Prepare to write the outcome of a run: its queue, the role of its row and the defaults of its
 * queue are known then, and that the user may end it.  Returns false if no row belongs to the run.
 */
static bool
prepare_run(const TaskTable *table, HeldRun *held)
{
	const QueueRule *rule;

	if (held->known)
	{
		held->queue = held->entry.queue;
		held->role = held->entry.role_name;
		return true;
	}
	look_at_row(table, held);
	if (!held->found)
		return false;
	rule = queue_rules_find(queue_rules_load(table->relid, table->owner), held->queue);
	check_rights(held, rule->taker);
	held->entry.defaults = rule->defaults;
	return true;
}

/*
 * The run has ended, with this result; NULL: it was given back.  Those who are concerned are told
 * when the transaction commits.
 */
static void
note_ended(const TaskTable *table, HeldRun *held, const TaskResult *result)
{
	TaskEvent event = {.id = held->ref.run.id,
					   .attempt = held->ref.run.attempt,
					   .queue = held->queue,
					   .role_name = held->role};

	if (result)
	{
		event.kind = result->outcome == TASK_DONE	? EVENT_DONE
					 : result->outcome == TASK_FAIL ? EVENT_FAILED
													: EVENT_RETRIED;
		event.elapsed = Max(result->stop - held->ref.run.claimed, 0);
		event.sqlstate = result->sqlstate;
		event.error = result->error;
	}
	/* what outcome.c has noted is not reported in a session */
	events_forget();
	held_ended(held->ref, result ? &event : NULL);
	waiters_end(held->ref.run.id);
	if (held->known)
		taken_set_ending(held->ref, true);
	else /* no scheduler learns of it otherwise */
		pending_add_events(table->relid, SHARED_RECONCILE | SHARED_DEPENDENTS);
}

/*
 * No row belongs to the run any more: its holder has said not to work on it, which
 * ends it here, whatever becomes of the transaction.  Not if this transaction has ended the run
 * itself, or may have a snapshot from before the claim.
 */
static void
leave_run(const HeldRun *held)
{
	if (held->known && !IsolationUsesXactSnapshot() && !held_has_ended(held->ref.run))
		taken_end(held->ref, TAKEN_LEFT);
}

/* The run is not held any more, or never was: raise an error. */
static void
reject_run(const TaskTable *table, HeldRun *held)
{
	int64 id = held->ref.run.id;

	leave_run(held);
	look_at_row(table, held);
	if (held->is_done)
		ereport(ERROR, (errcode(ERRCODE_TASK_ENDED),
						errmsg("task " INT64_FORMAT " is DONE by this handle already", id)));
	if (IsolationUsesXactSnapshot() && held->known && !held->found && !held->entry.cancelled)
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("task " INT64_FORMAT " was taken after this transaction began", id),
						errhint("Try the transaction again.")));
	ereport(ERROR,
			(errcode(ERRCODE_TASK_NOT_HELD),
			 errmsg("task " INT64_FORMAT " is not held by this handle any more", id),
			 errdetail("Its lease has expired, its session has gone, it took too long, or somebody"
					   " has stopped, changed or removed it.")));
}

/* ---- pg_task_finish ---- */

static int
compare_runs(const void *a, const void *b)
{
	return task_compare_runs(((const HeldRun *) a)->ref.run, ((const HeldRun *) b)->ref.run);
}

/* Runs that are DONE, all of one table, in the order of their ids. */
typedef struct Finishing
{
	HeldRun *helds;
	const char **responses;
	int count;
} Finishing;

/* Write that these runs are DONE. */
static void
finish_runs(const TaskTable *table, void *arg)
{
	const Finishing *finishing = arg;
	HeldRun *helds = finishing->helds;
	int count = finishing->count;
	TimestampTz stop = GetCurrentTimestamp();
	RowFinish *finishes = palloc0(count * sizeof(RowFinish));
	TaskResult *results = palloc0(count * sizeof(TaskResult));
	int i;

	for (i = 0; i < count; i++)
	{
		HeldRun *held = &helds[i];

		if (!prepare_run(table, held))
			reject_run(table, held);
		results[i] = (TaskResult){.outcome = TASK_DONE,
								  .start = held->ref.run.claimed,
								  .stop = Max(stop, held->ref.run.claimed),
								  .response = finishing->responses[i]};
		finishes[i] = (RowFinish){.run = held->ref.run, .role = held->role, .result = &results[i]};
	}
	direct_finish(table, finishes, count);
	for (i = 0; i < count; i++)
	{
		RowFinish *finish = &finishes[i];

		if ((!finish->finished || finish->repeats || finish->removes) &&
			!outcome_done(table, finish))
			reject_run(table, &helds[i]);
		note_ended(table, &helds[i], &results[i]);
	}
}

/* A result as it is written into the row. */
static char *
response_of(Jsonb *result)
{
	char *response = JsonbToCString(NULL, &result->root, VARSIZE(result));

	if (strlen(response) > (size_t) Settings.response_limit)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("the result of a task is too long"),
						errdetail("It has %zu bytes, \"pg_task.response_limit\" allows %d.",
								  strlen(response), Settings.response_limit)));
	return response;
}

/* pg_task_finish(handle, result): the task is DONE, if the transaction commits. */
Datum
pg_task_finish(PG_FUNCTION_ARGS)
{
	const char *response = NULL;
	HeldRun held;

	held_check_session("pg_task_finish");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the handle must not be null")));
	held = find_run(PG_GETARG_TEXT_PP(0));
	if (!PG_ARGISNULL(1))
		response = response_of(PG_GETARG_JSONB_P(1));
	held_call_as_owner(held.relid, finish_runs, &(Finishing){&held, &response, 1});
	PG_RETURN_VOID();
}

/* Read an array of handles. */
static HeldRun *
read_handles(ArrayType *array, int *count)
{
	HeldRun *helds;
	Datum *handles;
	bool *nulls;
	int i;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &handles, &nulls, count);
	if (*count > HANDLES_MAX)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("too many handles: %d of at most %d", *count, HANDLES_MAX)));
	helds = palloc(Max(*count, 1) * sizeof(HeldRun));
	for (i = 0; i < *count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nulls[i])
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
							errmsg("the handles must not be null")));
		helds[i] = find_run(DatumGetTextPP(handles[i]));
		helds[i].number = i;
	}
	return helds;
}

/* The i-th element of a list of results; NULL for null. */
static char *
response_at(Jsonb *results, int i)
{
	JsonbValue *value = getIthJsonbValueFromContainer(&results->root, i);

	if (value == NULL || value->type == jbvNull)
		return NULL;
	return response_of(JsonbValueToJsonb(value));
}

/* pg_task_finish_all(handles, results): all of these tasks are DONE, or none is. */
Datum
pg_task_finish_all(PG_FUNCTION_ARGS)
{
	Jsonb *results = PG_ARGISNULL(1) ? NULL : PG_GETARG_JSONB_P(1);
	const char **responses;
	HeldRun *helds;
	int count;
	int i;

	held_check_session("pg_task_finish_all");
	if (PG_ARGISNULL(0))
		PG_RETURN_VOID();
	helds = read_handles(PG_GETARG_ARRAYTYPE_P(0), &count);
	if (results && (!JB_ROOT_IS_ARRAY(results) || JB_ROOT_IS_SCALAR(results) ||
					JB_ROOT_COUNT(results) != (uint32) count))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the results must be a list, with one for each handle")));
	/* in the order of ids, so that two calls do not wait for each other */
	responses = palloc(Max(count, 1) * sizeof(char *));
	qsort(helds, count, sizeof(HeldRun), compare_runs);
	for (i = 0; i < count; i++)
	{
		if (i > 0 &&
			(compare_runs(&helds[i - 1], &helds[i]) == 0 || helds[i].relid != helds[0].relid))
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("the handles must be different ones")));
		responses[i] = results ? response_at(results, helds[i].number) : NULL;
	}
	if (count > 0)
		held_call_as_owner(helds[0].relid, finish_runs, &(Finishing){helds, responses, count});
	PG_RETURN_VOID();
}

/* ---- pg_task_fail ---- */

/* The SQLSTATE of a failure. */
static char *
read_sqlstate(const text *value)
{
	char *code = text_to_cstring(value);

	if (strlen(code) != 5 || strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("invalid SQLSTATE: \"%s\"", code),
				 errhint("It has five characters: digits and upper-case letters.")));
	return code;
}

/* A run that has failed. */
typedef struct Failing
{
	HeldRun held;
	TaskResult result;
	const char *state; /* of the task then; NULL: the run is not held any more */
} Failing;

/* Write that the run has failed. */
static void
fail_run(const TaskTable *table, void *arg)
{
	Failing *failing = arg;
	HeldRun *held = &failing->held;
	TaskResult *result = &failing->result;

	if (prepare_run(table, held) &&
		outcome_failed(table, held->ref.run, result, &held->entry.defaults, true))
	{
		failing->state = result->outcome == TASK_FAIL && !result->planned_again ? "FAIL" : "PLAN";
		note_ended(table, held, result);
	}
	else
		leave_run(held);
}

/*
 * pg_task_fail(handle, error, detail, sqlstate, final, again): the run has failed, if the
 * transaction commits.  Returns the state that the task has then; NULL: it is not held any more.
 */
Datum
pg_task_fail(PG_FUNCTION_ARGS)
{
	Failure why = {.severity = "ERROR", .sqlstate = "P0001"};
	Failing failing = {.result.failure = &why};
	TaskResult *result = &failing.result;

	held_check_session("pg_task_fail");
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	failing.held = find_run(PG_GETARG_TEXT_PP(0));
	why.error = PG_ARGISNULL(1) ? "missing error text" : text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (!PG_ARGISNULL(2))
		why.detail = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (!PG_ARGISNULL(3))
		why.sqlstate = read_sqlstate(PG_GETARG_TEXT_PP(3));
	result->final = !PG_ARGISNULL(4) && PG_GETARG_BOOL(4);
	if (!PG_ARGISNULL(5) && PG_GETARG_INT32(5) < 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("\"again\" must not be negative")));
	if (!PG_ARGISNULL(5))
		result->wait = Max((int64) PG_GETARG_INT32(5) * 1000, 1);
	result->start = failing.held.ref.run.claimed;
	result->stop = GetCurrentTimestamp();
	result->stop = Max(result->stop, result->start);
	result->error = why.error;
	result->sqlstate = why.sqlstate;
	held_call_as_owner(failing.held.relid, fail_run, &failing);
	if (failing.state == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(failing.state));
}

/* ---- pg_task_give_back ---- */

/* A run that is given back. */
typedef struct GivingBack
{
	HeldRun held;
	TimestampTz at;
	struct varlena *input; /* NULL: as it is */
	bool given;
} GivingBack;

/* Write that the task of the run waits again. */
static void
give_back_run(const TaskTable *table, void *arg)
{
	GivingBack *giving = arg;
	HeldRun *held = &giving->held;
	StatementArgs args;

	if (prepare_run(table, held))
	{
		statement_begin(&args);
		arg_run(&args, held->ref.run);
		arg_timestamp(&args, "stop", GetCurrentTimestamp());
		arg_timestamp(&args, "at", giving->at);
		arg_json(&args, "input", giving->input);
		giving->given = statement_execute(&give_back_row, table, &args) > 0;
		statement_end();
	}
	if (giving->given)
		note_ended(table, held, NULL);
	else
		leave_run(held);
}

/*
 * pg_task_give_back(handle, at, input): the task waits again, until this time.  Returns false if it
 * is not held any more.
 */
Datum
pg_task_give_back(PG_FUNCTION_ARGS)
{
	GivingBack giving = {0};

	held_check_session("pg_task_give_back");
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	giving.held = find_run(PG_GETARG_TEXT_PP(0));
	giving.at = PG_ARGISNULL(1) ? GetCurrentTimestamp() : PG_GETARG_TIMESTAMPTZ(1);
	if (!PG_ARGISNULL(2))
		giving.input = (struct varlena *) PG_GETARG_JSONB_P(2);
	held_call_as_owner(giving.held.relid, give_back_run, &giving);
	PG_RETURN_BOOL(giving.given);
}

/* ---- pg_task_alive ---- */

/* Look whether the row of a run, which is not in shared memory, says that it is held. */
static void
look_if_held(const TaskTable *table, void *arg)
{
	HeldRun *held = arg;

	if (!prepare_run(table, held))
		held->works = false;
}

/* Is a run that is not in shared memory still held, since before the server was restarted? */
static bool
is_held_by_row(HeldRun *held)
{
	if (held->ref.run.claimed >= Shared->takers->since)
		return false;
	held_call_as_owner(held->relid, look_if_held, held);
	return held->works;
}

/*
 * pg_task_alive(handles, lease, done, total, message): who holds these tasks lives: their leases
 * begin anew, and they have come so far.  Returns the handles of those that go on; work on the
 * others is to stop.
 */
Datum
pg_task_alive(PG_FUNCTION_ARGS)
{
	int lease = PG_ARGISNULL(1) ? -1 : PG_GETARG_INT32(1);
	ProgressReport report = progress_of_arguments(fcinfo, 2);
	ArrayType *array;
	Datum *handles;
	Datum *mine;
	HeldRun *helds;
	int count;
	int kept = 0;
	int i;

	held_check_session("pg_task_alive");
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	if (!PG_ARGISNULL(1) && lease <= 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the lease must be greater than zero")));
	array = PG_GETARG_ARRAYTYPE_P(0);
	helds = read_handles(array, &count);
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &handles, NULL, &count);
	mine = palloc(Max(count, 1) * sizeof(Datum));
	for (i = 0; i < count; i++)
		if (helds[i].known ? taken_renew(helds[i].ref, lease, &report) : is_held_by_row(&helds[i]))
			mine[kept++] = handles[i];
	PG_RETURN_ARRAYTYPE_P(construct_array(mine, kept, TEXTOID, -1, false, TYPALIGN_INT));
}
