/*
 * row_check.c
 *		What a user may write into a row of the task table: values, and rights.
 *
 * The checks are here and not in CHECK constraints: the server reads these from the catalog again
 * for every statement, which costs a fifth of the time of each task.  This file changes nothing.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "session/row_check.h"
#include "session/table_access.h"
#include "settings.h"
#include "shared/task.h"
#include "task/roles.h"
#include "task/schedule.h"

/* ---- values ---- */

/* What is checked of a value. */
typedef enum CheckKind
{
	CHECK_TIME,		/* infinite, or early enough for "active" to be added */
	CHECK_COUNT,	/* not negative */
	CHECK_POSITIVE, /* the same, and not zero */
	CHECK_FACTOR,	/* the same for a real, and not NaN */
	CHECK_INTERVAL, /* at least so many microseconds, as intervals are compared */
	CHECK_PARTS,	/* no part of an interval is negative */
	CHECK_WORD,		/* one of these words */
	CHECK_PRESENT,	/* not empty */
	CHECK_LENGTH,	/* at most so many bytes: processes keep it in memory */
	CHECK_JSON		/* the same, as text */
} CheckKind;

typedef struct Check
{
	TaskColumn column;
	CheckKind kind;
	const char *rule; /* NULL: that of a length */
	int limit;
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
	{COLUMN_RUNS_LEFT, CHECK_POSITIVE, .rule = POSITIVE},
	{COLUMN_REQUEST, CHECK_PRESENT, .rule = "some SQL"},
	{COLUMN_FAILED, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_LOST, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_HOLD_AFTER, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_STREAK, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_RETRY, CHECK_COUNT, .rule = ZERO_OR_MORE},
	{COLUMN_BACKOFF, CHECK_FACTOR, .rule = ZERO_OR_MORE},
	{COLUMN_DELAY, CHECK_INTERVAL, .rule = ZERO_OR_MORE},
	{COLUMN_KEEP, CHECK_INTERVAL, .rule = ZERO_OR_MORE},
	{COLUMN_TIMEOUT, CHECK_INTERVAL, .rule = POSITIVE, .limit = 1},
	{COLUMN_ACTIVE, CHECK_INTERVAL, .rule = POSITIVE, .limit = 1},
	{COLUMN_ACTIVE, CHECK_PARTS, .rule = "without a negative part"},
	{COLUMN_REPEAT, CHECK_INTERVAL, .rule = POSITIVE, .limit = 1},
	{COLUMN_REPEAT, CHECK_INTERVAL, .rule = "at least " CppAsString2(TASK_REPEAT_MIN_MS) " ms",
	 .limit = TASK_REPEAT_MIN_MS * 1000},
	{COLUMN_FORMAT, CHECK_WORD, .rule = "text, csv or json", .words = {"text", "csv", "json"}},
	{COLUMN_MISSED, CHECK_WORD, .rule = "one, none or all", .words = {"one", "none", "all"}},
	{COLUMN_RULE, CHECK_WORD, .rule = "done, ended, failed or any",
	 .words = {"done", "ended", "failed", "any"}},
	{COLUMN_FLOW, CHECK_PRESENT, .rule = "some name, not empty"},
	{COLUMN_STEP, CHECK_PRESENT, .rule = "some name, not empty"},
	{COLUMN_NOTIFY, CHECK_PRESENT, .rule = "some name, not empty"},
	{COLUMN_QUEUE, CHECK_LENGTH, .limit = TASK_QUEUE_MAX},
	{COLUMN_KEY, CHECK_LENGTH, .limit = TASK_KEY_MAX},
	{COLUMN_HOLD, CHECK_LENGTH, .limit = TASK_HOLD_MAX},
	{COLUMN_ON_FAILURE, CHECK_LENGTH, .limit = TASK_ON_FAILURE_MAX},
	{COLUMN_TIMEZONE, CHECK_LENGTH, .limit = TASK_ZONE_MAX},
	{COLUMN_CRON, CHECK_LENGTH, .limit = TASK_KEY_MAX},
	{COLUMN_FLOW, CHECK_LENGTH, .limit = TASK_NAME_MAX},
	{COLUMN_STEP, CHECK_LENGTH, .limit = TASK_NAME_MAX},
	{COLUMN_NOTIFY, CHECK_LENGTH, .limit = TASK_CHANNEL_MAX},
	{COLUMN_META, CHECK_JSON, .limit = TASK_META_MAX},
};

static bool
is_one_of(Datum value, const char *const *words)
{
	for (; *words; words++)
		if (value_is_word(value, *words))
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
	Jsonb *json;

	switch (check->kind)
	{
		case CHECK_TIME:
			time = DatumGetTimestampTz(value);
			return TIMESTAMP_NOT_FINITE(time) || schedule_in_range(time);
		case CHECK_COUNT:
			return DatumGetInt32(value) >= 0;
		case CHECK_POSITIVE:
			return DatumGetInt32(value) > 0;
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
		case CHECK_JSON:
			json = DatumGetJsonbP(value);
			return strlen(JsonbToCString(NULL, &json->root, VARSIZE(json))) <=
				   (size_t) check->limit;
	}
	pg_unreachable();
}

/*
 * Parse a cron expression; one that is malformed or never matches is an error, with this hint, or,
 * for NULL, one that fits.
 */
Cron
row_check_cron(const char *text, const char *hint)
{
	CronError error;
	Cron cron;

	if (strlen(text) > TASK_KEY_MAX)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("a cron expression must be at most %d bytes long", TASK_KEY_MAX)));
	if (!cron_parse(text, &cron, &error))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid cron expression: \"%s\"", text), errdetail("%s", error.detail),
				 error.hint || hint ? errhint("%s", hint ? hint : error.hint) : 0));
	return cron;
}

/* Find a time zone; a name that is not known is an error. */
pg_tz *
row_check_zone(const char *name)
{
	pg_tz *zone = zone_find(name);

	if (zone == NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("time zone \"%s\" not recognized", name),
						errhint("The view pg_timezone_names has the names.")));
	return zone;
}

/* Does an UPDATE leave a column as it was?  "old" is NULL for an INSERT. */
static bool
keeps(const TriggerRow *old, const TriggerRow *new, TaskColumn which)
{
	return old && trigger_same_value(old, new, which);
}

/* Programs that know no defaults write NULL, or an empty text: the server's errors do not help. */
static void
reject_missing(const TriggerRow *row, TaskColumn which, bool isnull)
{
	ereport(ERROR,
			(errcode(isnull ? ERRCODE_NOT_NULL_VIOLATION : ERRCODE_CHECK_VIOLATION),
			 errmsg("\"%s\" of a task must not be %s", task_columns[which].name,
					isnull ? "NULL" : "empty"),
			 errhint("Leave the column out, as all that you do not set, and it has its default."),
			 errtablecol(row->rel, trigger_column(row->rel, which))));
}

/* Check "state", and whether there is a "role". */
static void
check_state(const TriggerRow *old, const TriggerRow *new)
{
	static const char *const states[] = {"PLAN", "WORK", "DONE", "FAIL", "STOP", "GONE", NULL};
	bool isnull;
	bool no_role;
	Datum role = trigger_value(new, COLUMN_ROLE, &no_role);
	Datum value = trigger_value(new, COLUMN_STATE, &isnull);

	if (isnull)
		reject_missing(new, COLUMN_STATE, true);
	if ((no_role || NameStr(*DatumGetName(role))[0] == '\0') && !keeps(old, new, COLUMN_ROLE))
		reject_missing(new, COLUMN_ROLE, no_role);
	if (!is_one_of(value, states) && !keeps(old, new, COLUMN_STATE))
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("\"%s\" is not a state of a task", TextDatumGetCString(value)),
						errhint("You may set PLAN, and the task runs when it is due, or STOP."),
						errtablecol(new->rel, trigger_column(new->rel, COLUMN_STATE))));
}

/* Check values that depend on each other. */
static void
check_combinations(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	Datum cron = trigger_value(new, COLUMN_CRON, &isnull);
	bool same = keeps(old, new, COLUMN_CRON);
	bool no_zone;
	Datum zone = trigger_value(new, COLUMN_TIMEZONE, &no_zone);

	if (!no_zone && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		!keeps(old, new, COLUMN_TIMEZONE))
		(void) row_check_zone(TextDatumGetCString(zone));
	if (!trigger_is_null(new, COLUMN_STEP) && trigger_is_null(new, COLUMN_FLOW) &&
		!(keeps(old, new, COLUMN_STEP) && keeps(old, new, COLUMN_FLOW)))
		trigger_reject(new, COLUMN_STEP, "be NULL without a \"flow\"");
	if (isnull)
		return;
	if (!trigger_is_null(new, COLUMN_REPEAT) && !(same && keeps(old, new, COLUMN_REPEAT)))
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("a task has \"repeat\" or \"cron\", not both"),
						errhint("Set one of them to NULL."),
						errtablecol(new->rel, trigger_column(new->rel, COLUMN_CRON))));
	if (!same)
		(void) row_check_cron(TextDatumGetCString(cron), NULL);
}

/*
 * A schedule whose first run would come after its end never runs, and a run that waits beyond an
 * end which is set now would run all the same: say so.  A run that is tried again may be late, and
 * one that is planned again by hand.
 */
void
row_check_until(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull[2];
	TimestampTz until = DatumGetTimestampTz(trigger_value(new, COLUMN_REPEAT_UNTIL, &isnull[0]));
	TimestampTz dt = DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull[1]));

	if (TIMESTAMP_IS_NOEND(dt))
		dt = GetCurrentTimestamp();
	if (isnull[0] || isnull[1] || dt <= until || !trigger_has_state(new, "PLAN") ||
		(old && !trigger_has_state(old, "PLAN")) || !trigger_repeats(new) ||
		!trigger_is_null(new, COLUMN_PLANNED) ||
		(keeps(old, new, COLUMN_REPEAT_UNTIL) && keeps(old, new, COLUMN_DT)) ||
		SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return;
	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
					errmsg("\"repeat_until\" of a schedule must not be before its next run"),
					errdetail("That is planned for %s.", timestamptz_to_str(dt)),
					errhint("To end the schedule now, set its \"state\" to STOP."),
					errtablecol(new->rel, trigger_column(new->rel, COLUMN_REPEAT_UNTIL))));
}

/*
 * Check what a user has written.  What an UPDATE leaves as it was, it does not check: whoever may
 * change a row that has bypassed this trigger may at least stop the task.
 */
static void
check_values(const TriggerRow *old, const TriggerRow *new)
{
	int i;

	slot_getallattrs(new->slot);
	for (i = 0; i < (int) lengthof(checks); i++)
	{
		const Check *check = &checks[i];
		int number = trigger_column(new->rel, check->column) - 1;

		if (!new->slot->tts_isnull[number] && !passes(check, new->slot->tts_values[number]) &&
			!keeps(old, new, check->column))
			trigger_reject(new, check->column,
						   check->rule ? psprintf("be %s", check->rule)
									   : psprintf("be at most %d bytes long", check->limit));
	}
	check_combinations(old, new);
}

/* ---- rights ---- */

/* Raise an error: the current user does not have the rights of the table's owner. */
void
row_check_forbid(TaskColumn which, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("only the owner of the task table may set \"%s\"", task_columns[which].name),
			 hint ? errhint("%s", hint) : 0));
}

/*
 * Raise an error unless this user, who has not the rights of the owner, may plan tasks for the role
 * of a row.  The policy of the table is checked as well, later: its error would not say what is
 * wrong.
 */
static void
check_role(const TriggerRow *row, Oid user)
{
	int64 role_id = trigger_role_id(row);
	bool isnull;
	Datum value = trigger_value(row, COLUMN_ROLE, &isnull);
	const char *role = isnull ? "" : NameStr(*DatumGetName(value));

	if (!isnull && (roles_bound(role, role_id) == user || roles_may_act(user, role, role_id)))
		return;
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("you may not plan tasks of role \"%s\"", role),
					errdetail("You are not a member of that role, or it does not exist."),
					errhint("Leave out \"role\", and the task is yours.")));
}

/*
 * Users other than the owner may plan tasks for roles that they may become, and may not change
 * what the server has written about a run.  "old" is NULL for an INSERT; a function executes that
 * as the owner for its caller.
 */
static void
check_rights(const TriggerRow *old, const TriggerRow *new)
{
	const TableAccess *access = table_access_current();
	static const TaskColumn fixed[] = {
		COLUMN_PID,	 COLUMN_ATTEMPT,  COLUMN_CRASHED, COLUMN_LEASE, COLUMN_START,  COLUMN_STOP,
		COLUMN_NEXT, COLUMN_FAILURES, COLUMN_ID,	  COLUMN_ROLE,	COLUMN_ROLE_ID};
	int nfixed = old ? (int) lengthof(fixed) : 8; /* new rows: the first eight */
	bool stop_is_ours = /* pg_task_timed writes it, whatever the user has set */
		old && ((trigger_has_state(old, "PLAN") && trigger_has_state(new, "STOP")) ||
				(trigger_has_state(old, "STOP") && trigger_has_state(new, "PLAN")));
	int i;

	if (row_check_owner(new->rel))
	{
		if (access && access->inserts && !has_privs_of_role(access->caller, access->owner))
			check_role(new, access->caller);
		return;
	}
	if (!trigger_has_state(new, "PLAN") && !trigger_has_state(new, "STOP") &&
		!keeps(old, new, COLUMN_STATE))
		row_check_forbid(COLUMN_STATE, "You may set it to PLAN or STOP.");
	for (i = 0; i < nfixed; i++)
		if (!trigger_same_value(old, new, fixed[i]) && !(fixed[i] == COLUMN_STOP && stop_is_ours))
			row_check_forbid(fixed[i], fixed[i] == COLUMN_ROLE
										   ? "Stop this task, and insert another one."
										   : "The server writes it.");
	check_role(new, GetUserId());
}

/* Check a row that is not written by pg_task itself.  "old" is NULL for an INSERT. */
void
row_check(const TriggerRow *old, const TriggerRow *new)
{
	/* first: what pg_task_timed writes because of the state is no mistake of the user's */
	check_state(old, new);
	check_rights(old, new);
	/*
	 * Only the server may set a task to WORK.  A restored or replicated row may be in state WORK,
	 * because it was running elsewhere.
	 */
	if (old && trigger_has_state(new, "WORK") && !trigger_has_state(old, "WORK") &&
		SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("\"state\" of a task becomes WORK when it starts, not before"),
						errhint("Set it to PLAN, and it starts.")));
	check_values(old, new);
}
