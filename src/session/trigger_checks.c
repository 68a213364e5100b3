/*
 * trigger_checks.c
 *		Checks what a user writes into a row of the task table: values, rights, the state.
 *
 * The checks are here and not in CHECK constraints: the server reads these from the catalog again
 * for every statement, which costs a fifth of the time of each task.
 *
 * This file raises errors and changes nothing.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "session/times.h"
#include "session/trigger_checks.h"
#include "shared/task.h"
#include "task/owner.h"
#include "task/roles.h"
#include "task/schedule.h"

/* Raise an error: the value of this column breaks the rule. */
static void
reject_value(const TriggerRow *row, TaskColumn which, const char *rule)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));

	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
					errmsg("\"%s\" of a task must be %s", task_columns[which].name, rule),
					errdetail("The row has id " INT64_FORMAT ".", id),
					errtablecol(row->rel, trigger_column(row->rel, which))));
}

/* The rule that an interval breaks: it must be greater than zero, or (if allowed) zero.  NULL:
 * none. */
const char *
trigger_interval_rule(Datum value, bool zero_allowed)
{
	Interval zero = {0};
	int comparison =
		DatumGetInt32(DirectFunctionCall2(interval_cmp, value, IntervalPGetDatum(&zero)));

	if (comparison > 0 || (comparison == 0 && zero_allowed))
		return NULL;
	return zero_allowed ? "zero or more" : "greater than zero";
}

/* Check that an interval is NULL, or keeps to that rule. */
static void
check_interval(const TriggerRow *row, TaskColumn which, bool zero_allowed)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);
	const char *rule = isnull ? NULL : trigger_interval_rule(value, zero_allowed);

	if (rule)
		reject_value(row, which, rule);
}

/*
 * Check that no part of an interval is negative.  "1 year -364 days" is positive by the comparison
 * of intervals, but added to a time such a one may lead out of the range of times on the way, and
 * then the outcome of a run could not be written.
 */
static void
check_parts(const TriggerRow *row, TaskColumn which)
{
	bool isnull;
	Interval *value = DatumGetIntervalP(trigger_value(row, which, &isnull));

	if (!isnull && (value->month < 0 || value->day < 0 || value->time < 0))
		reject_value(row, which, "without a negative part");
}

/* Check that a number is NULL, or zero or more. */
static void
check_count(const TriggerRow *row, TaskColumn which)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);

	if (!isnull && DatumGetInt32(value) < 0)
		reject_value(row, which, "zero or more");
}

/* Check that a column is not NULL, if the table allows it; else the server does. */
static void
check_present(const TriggerRow *row, TaskColumn which)
{
	if (trigger_is_null(row, which) &&
		!TupleDescAttr(RelationGetDescr(row->rel), trigger_column(row->rel, which) - 1)->attnotnull)
		reject_value(row, which, "something, not NULL");
}

/* Check that a time is NULL, infinite, or early enough for "active" to be added. */
static void
check_time(const TriggerRow *row, TaskColumn which)
{
	bool isnull;
	TimestampTz value = DatumGetTimestampTz(trigger_value(row, which, &isnull));

	if (!isnull && !TIMESTAMP_NOT_FINITE(value) && !schedule_in_range(value))
		reject_value(row, which, "before the year " CppAsString2(SCHEDULE_LAST_YEAR));
}

/* Check that a text is NULL, or one of these words. */
static void
check_word(const TriggerRow *row, TaskColumn which, const char *const *words, const char *rule)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);

	if (isnull)
		return;
	for (; *words; words++)
		if (trigger_is_word(value, *words))
			return;
	reject_value(row, which, rule);
}

/* Check that a text is NULL, or at most this many bytes long: processes keep it in memory. */
static void
check_length(const TriggerRow *row, TaskColumn which, int most)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);

	if (!isnull && toast_raw_datum_size(value) - VARHDRSZ > (Size) most)
		reject_value(row, which, psprintf("at most %d bytes long", most));
}

/* Check that a text is NULL, or a name: not empty, and at most this many bytes long. */
static void
check_name(const TriggerRow *row, TaskColumn which, int most)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);

	if (!isnull && toast_raw_datum_size(value) <= VARHDRSZ)
		reject_value(row, which, "some name, not empty");
	check_length(row, which, most);
}

/*
 * Check the names of a workflow and of its step: processes keep the first in memory, and both are
 * in an index.
 */
static void
check_flow(const TriggerRow *row)
{
	check_name(row, COLUMN_FLOW, TASK_NAME_MAX);
	check_name(row, COLUMN_STEP, TASK_NAME_MAX);
	if (!trigger_is_null(row, COLUMN_STEP) && trigger_is_null(row, COLUMN_FLOW))
		reject_value(row, COLUMN_STEP, "NULL without a \"flow\"");
}

/* Check that the cron expression is NULL, or valid and the only thing that repeats the task. */
static void
check_cron(const TriggerRow *row)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_CRON, &isnull);

	if (isnull)
		return;
	if (!trigger_is_null(row, COLUMN_REPEAT))
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("a task has \"repeat\" or \"cron\", not both"),
						errhint("Set one of them to NULL."),
						errtablecol(row->rel, trigger_column(row->rel, COLUMN_CRON))));
	(void) times_parse(TextDatumGetCString(value));
}

/*
 * Check the bounds that protect other users.  The next row of a repeating task is not checked: a
 * row that has bypassed this trigger must still be able to end and to repeat.
 */
static void
check_bounds(const TriggerRow *row)
{
	Interval least = {.time = TASK_REPEAT_MIN_MS * INT64CONST(1000)};
	bool isnull;
	Datum repeat = trigger_value(row, COLUMN_REPEAT, &isnull);

	if (!isnull &&
		DatumGetBool(DirectFunctionCall2(interval_lt, repeat, IntervalPGetDatum(&least))))
		reject_value(row, COLUMN_REPEAT, "at least " CppAsString2(TASK_REPEAT_MIN_MS) " ms");
	check_parts(row, COLUMN_ACTIVE);
	check_length(row, COLUMN_KEY, TASK_KEY_MAX);
	check_length(row, COLUMN_TIMEZONE, TASK_ZONE_MAX);
	check_length(row, COLUMN_CRON, TASK_KEY_MAX);
	check_flow(row);
	check_cron(row);
}

/* Reject a value other than NULL in a column that has no effect yet. */
static void
reject_unsupported(const TriggerRow *row, TaskColumn which, const char *what)
{
	if (!trigger_is_null(row, which))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("%s are not supported yet", what),
				 errhint("Leave the column \"%s\" empty.", task_columns[which].name)));
}

/* Check that the state is one. */
static void
check_state_exists(const TriggerRow *row)
{
	static const char *const states[] = {"PLAN", "WORK", "DONE", "FAIL", "STOP", "GONE"};
	bool isnull;
	Datum value = trigger_value(row, COLUMN_STATE, &isnull);
	int i;

	if (isnull || trigger_is_word(value, "PLAN"))
		return;
	for (i = 0; i < (int) lengthof(states); i++)
		if (trigger_is_word(value, states[i]))
			return;
	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
					errmsg("\"%s\" is not a state of a task", TextDatumGetCString(value)),
					errhint("You may set PLAN, and the task runs when it is due, or STOP."),
					errtablecol(row->rel, trigger_column(row->rel, COLUMN_STATE))));
}

/*
 * The columns that are NULL in nearly all rows, and whose values check_rare_values checks; what it
 * checks is to be in this list.
 */
static const TaskColumn rare[] = {COLUMN_PLANNED, COLUMN_ANCHOR,  COLUMN_FORMAT,   COLUMN_MISSED,
								  COLUMN_RETRY,	  COLUMN_BACKOFF, COLUMN_DELAY,	   COLUMN_TIMEOUT,
								  COLUMN_ACTIVE,  COLUMN_REPEAT,  COLUMN_KEEP,	   COLUMN_REMOTE,
								  COLUMN_KEY,	  COLUMN_CRON,	  COLUMN_TIMEZONE, COLUMN_AFTER,
								  COLUMN_NOTIFY,  COLUMN_FLOW,	  COLUMN_STEP,	   COLUMN_RULE};

/* Has the row a value in one of these columns? */
static bool
has_rare_values(const TriggerRow *row)
{
	const bool *isnull = row->slot->tts_isnull;
	int i;

	slot_getallattrs(row->slot);
	for (i = 0; i < (int) lengthof(rare); i++)
		if (!isnull[trigger_column(row->rel, rare[i]) - 1])
			return true;
	return false;
}

/* Check the values of these columns. */
static void
check_rare_values(const TriggerRow *old, const TriggerRow *row)
{
	static const char *const formats[] = {"text", "csv", "json", NULL};
	static const char *const missed[] = {"one", "none", "all", NULL};
	static const char *const rules[] = {"done", "ended", "failed", "any", NULL};
	bool isnull;
	Datum value;

	check_time(row, COLUMN_PLANNED);
	check_time(row, COLUMN_ANCHOR);
	check_word(row, COLUMN_FORMAT, formats, "text, csv or json");
	check_word(row, COLUMN_MISSED, missed, "one, none or all");
	check_word(row, COLUMN_RULE, rules, "done, ended, failed or any");
	check_count(row, COLUMN_RETRY);
	value = trigger_value(row, COLUMN_BACKOFF, &isnull);
	if (!isnull && !(DatumGetFloat4(value) >= 0))
		reject_value(row, COLUMN_BACKOFF, "zero or more");
	check_interval(row, COLUMN_DELAY, true);
	check_interval(row, COLUMN_TIMEOUT, false);
	check_interval(row, COLUMN_ACTIVE, false);
	check_interval(row, COLUMN_REPEAT, false);
	check_interval(row, COLUMN_KEEP, true);
	reject_unsupported(row, COLUMN_REMOTE, "tasks on other servers");
	if (owner_acts())
		return;
	check_bounds(row);
	if (old == NULL || !trigger_same_value(old, row, COLUMN_NOTIFY))
		check_name(row, COLUMN_NOTIFY, TASK_CHANNEL_MAX);
}

/* Check the values of a new or changed row.  "old" is NULL for an INSERT. */
void
trigger_check_values(const TriggerRow *old, const TriggerRow *row)
{
	bool isnull;
	Datum value;

	check_present(row, COLUMN_QUEUE);
	check_present(row, COLUMN_PRIORITY);
	check_present(row, COLUMN_DT);
	check_time(row, COLUMN_DT);
	check_state_exists(row);
	value = trigger_value(row, COLUMN_REQUEST, &isnull);
	if (!isnull && toast_raw_datum_size(value) <= VARHDRSZ)
		reject_value(row, COLUMN_REQUEST, "some SQL");
	check_count(row, COLUMN_FAILED);
	if (!owner_acts())
		check_length(row, COLUMN_QUEUE, TASK_QUEUE_MAX);
	if (has_rare_values(row))
		check_rare_values(old, row);
}

/* Raise an error: the current user does not have the rights of the table's owner. */
void
trigger_forbid(TaskColumn which, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("only the owner of the task table may set \"%s\"", task_columns[which].name),
			 hint ? errhint("%s", hint) : 0));
}

/* Does an UPDATE leave the state as it was? */
static bool
keeps_state(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	Datum value = trigger_value(old, COLUMN_STATE, &isnull);

	return !isnull && trigger_has_state(new, TextDatumGetCString(value));
}

/*
 * Only the server may set a task to WORK.  A restored or replicated row may be in state WORK,
 * because it was running elsewhere.
 */
void
trigger_check_state(const TriggerRow *old, const TriggerRow *new)
{
	if (old && trigger_has_state(new, "WORK") && !trigger_has_state(old, "WORK") &&
		SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("\"state\" of a task becomes WORK when it starts, not before"),
						errhint("Set it to PLAN, and it starts.")));
}

/* Has the trigger written "stop", whatever the user has set? */
static bool
stop_is_written(const TriggerRow *old, const TriggerRow *new)
{
	return old && ((trigger_has_state(old, "PLAN") && trigger_has_state(new, "STOP")) ||
				   (trigger_has_state(old, "STOP") && trigger_has_state(new, "PLAN")));
}

/*
 * Raise an error unless the current user may plan tasks for the role of a row.  Called before the
 * policy of the table is checked as well, whose error would not say what is wrong.
 */
void
trigger_check_role(const TriggerRow *row, int64 role_id)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_ROLE, &isnull);
	const char *role = isnull ? "" : NameStr(*DatumGetName(value));

	if (!isnull && (roles_bound(role, role_id) == GetUserId() ||
					has_privs_of_role(GetUserId(), trigger_table_owner(row->rel)) ||
					roles_may_act(GetUserId(), role, role_id)))
		return;
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("you may not plan tasks of role \"%s\"", role),
					errdetail("You are not a member of that role, or it does not exist."),
					errhint("Leave out \"role\", and the task is yours.")));
}

/*
 * Users other than the owner may plan tasks for roles that they may become, and may not change
 * what the server has written about a run.  "old" is NULL for an INSERT.
 */
void
trigger_check_rights(const TriggerRow *old, const TriggerRow *new)
{
	static const TaskColumn fixed[] = {COLUMN_PID,	 COLUMN_ATTEMPT, COLUMN_CRASHED,
									   COLUMN_START, COLUMN_STOP,	 COLUMN_NEXT,
									   COLUMN_ID,	 COLUMN_ROLE,	 COLUMN_ROLE_ID};
	int nfixed = old ? (int) lengthof(fixed) : 6; /* new rows: the first six */
	int i;

	if (has_privs_of_role(GetUserId(), trigger_table_owner(new->rel)))
		return;
	/* first: what pg_task_timed writes because of the state is no mistake of the user's */
	check_state_exists(new);
	if (!trigger_has_state(new, "PLAN") && !trigger_has_state(new, "STOP") &&
		!(old && keeps_state(old, new)))
		trigger_forbid(COLUMN_STATE, "You may set it to PLAN or STOP.");
	for (i = 0; i < nfixed; i++)
		if (!trigger_same_value(old, new, fixed[i]) &&
			!(fixed[i] == COLUMN_STOP && stop_is_written(old, new)))
			trigger_forbid(fixed[i], fixed[i] == COLUMN_ROLE
										 ? "Stop this task, and insert another one."
										 : "The server writes it.");
	trigger_check_role(new, trigger_role_id(new));
}

/* Most roles of which one statement warns. */
#define WARNED_MAX 16

/*
 * The statement in which a user was last warned, and of which roles: one warning is enough for all
 * rows of a role.  Static, because each row is a call of the trigger.
 */
static struct
{
	TimestampTz statement;
	int count;
	int64 role_ids[WARNED_MAX];
} warned;

/* Has this statement warned of the role, or of so many others that it warns no more? */
static bool
has_warned(int64 role_id)
{
	int i;

	if (warned.statement != GetCurrentStatementStartTimestamp())
		return false;
	for (i = 0; i < warned.count; i++)
		if (warned.role_ids[i] == role_id)
			return true;
	return warned.count == WARNED_MAX;
}

static void
remember_warning(int64 role_id)
{
	if (warned.statement != GetCurrentStatementStartTimestamp())
		warned.count = 0;
	Assert(warned.count < WARNED_MAX);
	warned.statement = GetCurrentStatementStartTimestamp();
	warned.role_ids[warned.count++] = role_id;
}

/*
 * Warn whoever plans a task that its role cannot run now: the insert would succeed, and nothing
 * else would tell.
 */
void
trigger_warn_of_role(const TriggerRow *row)
{
	int64 role_id = trigger_role_id(row);
	bool isnull;
	Datum name = trigger_value(row, COLUMN_ROLE, &isnull);
	Role role;

	if (isnull || SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ||
		has_warned(role_id) ||
		roles_startable(trigger_table_owner(row->rel), NameStr(*DatumGetName(name)), role_id,
						&role))
		return;
	remember_warning(role_id);
	ereport(WARNING, (errcode(role.sqlstate), errmsg("this task will not start: %s", role.error),
					  role.hint ? errhint("%s.", role.hint) : 0));
}
