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

/* ---- values ---- */

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

/* What is checked of a value. */
typedef enum CheckKind
{
	CHECK_TIME,		/* infinite, or early enough for "active" to be added */
	CHECK_COUNT,	/* not negative */
	CHECK_FACTOR,	/* the same for a real, and not NaN */
	CHECK_INTERVAL, /* at least so many microseconds, as intervals are compared */
	CHECK_PARTS,	/* no part of an interval is negative */
	CHECK_WORD,		/* one of these words */
	CHECK_PRESENT,	/* not empty */
	CHECK_LENGTH	/* at most so many bytes: processes keep it in memory */
} CheckKind;

typedef struct Check
{
	TaskColumn column;
	CheckKind kind;
	const char *rule; /* NULL: that of a length */
	int limit;
	bool bound; /* protects other users.  The next row of a repeating task is not checked: a row
				 * that has bypassed this trigger must still be able to end and to repeat. */
	const char *words[5];
} Check;

#define ZERO_OR_MORE "zero or more"
#define POSITIVE "greater than zero"
#define IN_RANGE "before the year " CppAsString2(SCHEDULE_LAST_YEAR)

/*
 * All checks of single values that are not NULL.  "1 year -364 days" is positive by the comparison
 * of intervals, but added to a time such an interval may lead out of the range of times on the way,
 * and then the outcome of a run could not be written: so "active" has no negative part.
 */
static const Check checks[] = {
	{COLUMN_DT, CHECK_TIME, .rule = IN_RANGE},
	{COLUMN_PLANNED, CHECK_TIME, .rule = IN_RANGE},
	{COLUMN_ANCHOR, CHECK_TIME, .rule = IN_RANGE},
	{COLUMN_REQUEST, CHECK_PRESENT, .rule = "some SQL"},
	{COLUMN_FAILED, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_RETRY, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_BACKOFF, CHECK_FACTOR, .rule = ZERO_OR_MORE},
	{COLUMN_DELAY, CHECK_INTERVAL, .rule = ZERO_OR_MORE},
	{COLUMN_KEEP, CHECK_INTERVAL, .rule = ZERO_OR_MORE},
	{COLUMN_TIMEOUT, CHECK_INTERVAL, .rule = POSITIVE, .limit = 1},
	{COLUMN_ACTIVE, CHECK_INTERVAL, .rule = POSITIVE, .limit = 1},
	{COLUMN_ACTIVE, CHECK_PARTS, .rule = "without a negative part", .bound = true},
	{COLUMN_REPEAT, CHECK_INTERVAL, .rule = POSITIVE, .limit = 1},
	{COLUMN_REPEAT, CHECK_INTERVAL, .rule = "at least " CppAsString2(TASK_REPEAT_MIN_MS) " ms",
	 .limit = TASK_REPEAT_MIN_MS * 1000, .bound = true},
	{COLUMN_FORMAT, CHECK_WORD, .rule = "text, csv or json", .words = {"text", "csv", "json"}},
	{COLUMN_MISSED, CHECK_WORD, .rule = "one, none or all", .words = {"one", "none", "all"}},
	{COLUMN_RULE, CHECK_WORD, .rule = "done, ended, failed or any",
	 .words = {"done", "ended", "failed", "any"}},
	{COLUMN_FLOW, CHECK_PRESENT, .rule = "some name, not empty", .bound = true},
	{COLUMN_STEP, CHECK_PRESENT, .rule = "some name, not empty", .bound = true},
	{COLUMN_NOTIFY, CHECK_PRESENT, .rule = "some name, not empty", .bound = true},
	{COLUMN_QUEUE, CHECK_LENGTH, .limit = TASK_QUEUE_MAX, .bound = true},
	{COLUMN_KEY, CHECK_LENGTH, .limit = TASK_KEY_MAX, .bound = true},
	{COLUMN_TIMEZONE, CHECK_LENGTH, .limit = TASK_ZONE_MAX, .bound = true},
	{COLUMN_CRON, CHECK_LENGTH, .limit = TASK_KEY_MAX, .bound = true},
	{COLUMN_FLOW, CHECK_LENGTH, .limit = TASK_NAME_MAX, .bound = true},
	{COLUMN_STEP, CHECK_LENGTH, .limit = TASK_NAME_MAX, .bound = true},
	{COLUMN_NOTIFY, CHECK_LENGTH, .limit = TASK_CHANNEL_MAX, .bound = true},
};

static bool
is_one_of(Datum value, const char *const *words)
{
	for (; *words; words++)
		if (trigger_is_word(value, *words))
			return true;
	return false;
}

/* Does a value, which is not NULL, pass this check? */
static bool
passes(const Check *check, Datum value)
{
	Interval least = {.time = check->limit};
	const Interval *parts;
	TimestampTz time;

	switch (check->kind)
	{
		case CHECK_TIME:
			time = DatumGetTimestampTz(value);
			return TIMESTAMP_NOT_FINITE(time) || schedule_in_range(time);
		case CHECK_COUNT:
			return DatumGetInt32(value) >= 0;
		case CHECK_FACTOR:
			return DatumGetFloat4(value) >= 0;
		case CHECK_INTERVAL:
			return DatumGetBool(DirectFunctionCall2(interval_ge, value, IntervalPGetDatum(&least)));
		case CHECK_PARTS:
			parts = DatumGetIntervalP(value);
			return parts->month >= 0 && parts->day >= 0 && parts->time >= 0;
		case CHECK_WORD:
			return is_one_of(value, check->words);
		case CHECK_PRESENT:
			return toast_raw_datum_size(value) > VARHDRSZ;
		case CHECK_LENGTH:
			return toast_raw_datum_size(value) - VARHDRSZ <= (Size) check->limit;
	}
	pg_unreachable();
}

/* Check that the state is one. */
static void
check_state_exists(const TriggerRow *row)
{
	static const char *const states[] = {"PLAN", "WORK", "DONE", "FAIL", "STOP", "GONE", NULL};
	bool isnull;
	Datum value = trigger_value(row, COLUMN_STATE, &isnull);

	if (!isnull && !is_one_of(value, states))
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("\"%s\" is not a state of a task", TextDatumGetCString(value)),
						errhint("You may set PLAN, and the task runs when it is due, or STOP."),
						errtablecol(row->rel, trigger_column(row->rel, COLUMN_STATE))));
}

/* Check values that depend on each other, of a row that a user has written. */
static void
check_combinations(const TriggerRow *row)
{
	bool isnull;
	Datum cron = trigger_value(row, COLUMN_CRON, &isnull);

	if (!trigger_is_null(row, COLUMN_STEP) && trigger_is_null(row, COLUMN_FLOW))
		reject_value(row, COLUMN_STEP, "NULL without a \"flow\"");
	if (isnull)
		return;
	if (!trigger_is_null(row, COLUMN_REPEAT))
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("a task has \"repeat\" or \"cron\", not both"),
						errhint("Set one of them to NULL."),
						errtablecol(row->rel, trigger_column(row->rel, COLUMN_CRON))));
	(void) times_parse(TextDatumGetCString(cron), NULL);
}

/* Check the values of a new or changed row. */
void
trigger_check_values(const TriggerRow *row)
{
	static const TaskColumn present[] = {COLUMN_QUEUE, COLUMN_PRIORITY, COLUMN_DT};
	TupleDesc desc = RelationGetDescr(row->rel);
	bool mine = owner_acts();
	int i;

	slot_getallattrs(row->slot);
	for (i = 0; i < (int) lengthof(present); i++)
		/* else the server checks that */
		if (trigger_is_null(row, present[i]) &&
			!TupleDescAttr(desc, trigger_column(row->rel, present[i]) - 1)->attnotnull)
			reject_value(row, present[i], "something, not NULL");
	check_state_exists(row);
	for (i = 0; i < (int) lengthof(checks); i++)
	{
		const Check *check = &checks[i];
		int number = trigger_column(row->rel, check->column) - 1;

		if (!row->slot->tts_isnull[number] && !(check->bound && mine) &&
			!passes(check, row->slot->tts_values[number]))
			reject_value(row, check->column,
						 check->rule ? check->rule
									 : psprintf("at most %d bytes long", check->limit));
	}
	if (!trigger_is_null(row, COLUMN_REMOTE))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("tasks on other servers are not supported yet"),
						errhint("Leave the column \"remote\" empty.")));
	if (!mine)
		check_combinations(row);
}

/* ---- rights ---- */

/* Raise an error: the current user does not have the rights of the table's owner. */
void
trigger_forbid(TaskColumn which, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("only the owner of the task table may set \"%s\"", task_columns[which].name),
			 hint ? errhint("%s", hint) : 0));
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
		!(old && trigger_same_value(old, new, COLUMN_STATE)))
		trigger_forbid(COLUMN_STATE, "You may set it to PLAN or STOP.");
	for (i = 0; i < nfixed; i++)
		if (!trigger_same_value(old, new, fixed[i]) &&
			!(fixed[i] == COLUMN_STOP && stop_is_written(old, new)))
			trigger_forbid(fixed[i], fixed[i] == COLUMN_ROLE
										 ? "Stop this task, and insert another one."
										 : "The server writes it.");
	trigger_check_role(new, trigger_role_id(new));
}
