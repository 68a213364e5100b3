/*
 * functions.c
 *		Functions that SQL calls and that return no task: those that a task calls about itself
 *		(pg_task_time, pg_task_input, pg_task_again), the defaults of columns (pg_task_id,
 *		pg_task_flow), the functions of the row security policies, when a cron expression or an
 *		interval runs a task (pg_task_next); and pg_task_release.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "session/pending.h"
#include "session/result_set.h"
#include "session/row_check.h"
#include "session/table_access.h"
#include "settings.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "task/home.h"
#include "task/owner_code.h"
#include "task/queue_table.h"
#include "task/roles.h"
#include "task/running.h"
#include "task/schedule.h"

/* Missing roles that an error names. */
#define MISSING_NAMED 10

COMPAT_FUNCTION(pg_task_own);
COMPAT_FUNCTION(pg_task_queue_own);
COMPAT_FUNCTION(pg_task_rule);
COMPAT_FUNCTION(pg_task_release);
COMPAT_FUNCTION(pg_task_time);
COMPAT_FUNCTION(pg_task_id);
COMPAT_FUNCTION(pg_task_flow);
COMPAT_FUNCTION(pg_task_input);
COMPAT_FUNCTION(pg_task_again);
COMPAT_FUNCTION(pg_task_next);
COMPAT_FUNCTION(pg_task_next_cron);

/* ---- row security ---- */

/*
 * pg_task_own(role, role_id, who): may the current user, or this one, act as the role of this row?
 * Used by the row security policy of the task table.
 */
Datum
pg_task_own(PG_FUNCTION_ARGS)
{
	Oid who = PG_NARGS() > 2 ? PG_GETARG_OID(2) : GetUserId();

	PG_RETURN_BOOL(roles_may_act(who, NameStr(*PG_GETARG_NAME(0)), PG_GETARG_INT64(1)));
}

/*
 * Does the caller see a task in state PLAN or WORK in a queue that matches so?  Not connected to
 * SPI.
 */
static bool
has_task(const TableAccess *access, const char *matches, Datum queue)
{
	char *rows;
	char *sql;
	bool own;

	rows = psprintf("SELECT FROM %s AS t"
					" WHERE t.queue OPERATOR(pg_catalog.%s) $1 COLLATE pg_catalog.\"C\" AND t.state"
					" OPERATOR(pg_catalog.=)",
					access->rows, matches);
	/* each condition on the state is that of an index */
	sql = psprintf("SELECT WHERE EXISTS (%s 'PLAN'::pg_catalog.text"
				   "                     AND t.waits IS NULL)"
				   " OR EXISTS (%s 'WORK'::pg_catalog.text)",
				   rows, rows);
	SPI_connect();
	own = table_access_execute(
			  access, sql,
			  (SPIExecuteOptions){.params = table_access_param(TEXTOID, queue), .read_only = true},
			  SPI_OK_SELECT) > 0;
	SPI_finish();
	return own;
}

/*
 * pg_task_queue_own(queue): has the current user, as far as tasks are visible, one in state PLAN or
 * WORK in a queue that this name or pattern is for?  Used by the row security policy of the queue
 * table.  The table of tasks is not part of the policy, or it could not be dropped.
 */
Datum
pg_task_queue_own(PG_FUNCTION_ARGS)
{
	const char *pattern = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Oid relid = table_access_known();
	TableAccess access;

	/* a pattern that LIKE would refuse, in one row, is no reason to show no row */
	if (!OidIsValid(relid) || get_rel_name(relid) == NULL ||
		pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK ||
		!queue_is_valid(pattern))
		PG_RETURN_BOOL(false);
	access = table_access_open(ACCESS_ROWS);
	PG_RETURN_BOOL(has_task(&access, queue_is_pattern(pattern) ? "~~" : "=", PG_GETARG_DATUM(0)));
}

/*
 * pg_task_rule(queue): each column that rows of the queue table say for this queue, its value, and
 * the row that it comes from.  For those who see all tasks, or one that waits or runs there.
 */
Datum
pg_task_rule(PG_FUNCTION_ARGS)
{
	Datum queue = PG_GETARG_DATUM(0);
	ReturnSetInfo *result = result_set_begin(fcinfo, 3);
	TableAccess access = table_access_open(ACCESS_FIGURES);
	uint64 count;
	uint64 i;

	if (!access.sees_all && !has_task(&access, "=", queue))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("permission denied for the rule of this queue"),
						errdetail("You see no task that waits or runs in it.")));
	SPI_connect();
	count = queue_rules_explain(access.relid, access.owner, TextDatumGetCString(queue));
	for (i = 0; i < count; i++)
		tuplestore_puttuple(result->setResult, SPI_tuptable->vals[i]);
	SPI_finish();
	PG_RETURN_NULL();
}

/* ---- the task that calls ---- */

/*
 * pg_task_time(): the time for which the task was planned that calls this; retries and late starts
 * do not change it.  NULL: no task calls this.
 */
Datum
pg_task_time(PG_FUNCTION_ARGS)
{
	int64 id;
	TimestampTz planned;

	if (!executor_slot_own_task(&id, &planned))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(planned);
}

/*
 * pg_task_id(): what pg_task.id shows: the task that calls this, also from its parallel workers.
 * NULL: no task calls this.
 */
Datum
pg_task_id(PG_FUNCTION_ARGS)
{
	int64 id = settings_task_id();

	if (id == SETTINGS_NO_TASK)
		PG_RETURN_NULL();
	PG_RETURN_INT64(id);
}

/*
 * pg_task_flow(): the setting pg_task.flow: the label of the workflow that the task belongs to that
 * calls this, unless it was set otherwise.  NULL: none.
 */
Datum
pg_task_flow(PG_FUNCTION_ARGS)
{
	const char *flow = settings_label(Settings.flow, "pg_task.flow");

	if (flow == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(flow));
}

/*
 * pg_task_input(): the arguments of the request that calls this.  NULL: it has none, or no task
 * calls this.
 */
Datum
pg_task_input(PG_FUNCTION_ARGS)
{
	const Jsonb *input = running_input();

	if (input == NULL)
		PG_RETURN_NULL();
	PG_RETURN_JSONB_P(input);
}

/*
 * pg_task_again(at, input): when the task that calls this is done, it waits to be run again at this
 * time, with this input; NULL: with the one that it has.
 */
Datum
pg_task_again(PG_FUNCTION_ARGS)
{
	TimestampTz at;

	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the time of pg_task_again must not be null")));
	at = PG_GETARG_TIMESTAMPTZ(0);
	if (!TIMESTAMP_NOT_FINITE(at) && !schedule_in_range(at))
		ereport(ERROR, (errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
						errmsg("the time of pg_task_again must be before the year " CppAsString2(
							SCHEDULE_LAST_YEAR))));
	if (!running_ask_again(at, PG_ARGISNULL(1) ? NULL : PG_GETARG_JSONB_P(1)))
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("pg_task_again can only be called by a task")));
	PG_RETURN_VOID();
}

/* ---- when a task runs next ---- */

/* A literal without a type is taken for an expression, even if it is meant as an interval. */
#define INTERVAL_HINT \
	"If it is an interval, cast it, as in pg_task_schedule(interval '1 day', ...)."

/*
 * pg_task_next(planned, repeat, drift, ended, timezone): when a repeating task with these times
 * runs next; NULL: never.
 */
Datum
pg_task_next(PG_FUNCTION_ARGS)
{
	TimestampTz planned = PG_GETARG_TIMESTAMPTZ(0);
	TimestampTz ended = PG_GETARG_TIMESTAMPTZ(3);
	pg_tz *zone = row_check_zone(text_to_cstring(PG_GETARG_TEXT_PP(4)));
	TimestampTz anchor = planned;
	TimestampTz next;

	if (!schedule_next(&anchor, planned, PG_GETARG_INTERVAL_P(1), PG_GETARG_BOOL(2), ended, ended,
					   zone, &next))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(next);
}

/*
 * pg_task_next(cron, after, timezone): the first moment later than "after" that the expression
 * names; NULL: there is none.
 */
Datum
pg_task_next_cron(PG_FUNCTION_ARGS)
{
	char *expression = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Cron cron = row_check_cron(expression, strchr(expression, '*') ? NULL : INTERVAL_HINT);
	TimestampTz after = PG_GETARG_TIMESTAMPTZ(1);
	TimestampTz next;

	if (!schedule_next_cron(&cron, after, row_check_zone(text_to_cstring(PG_GETARG_TEXT_PP(2))),
							&next))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(next);
}

/* ---- the task table ---- */

/*
 * Rows that were copied into the table are on hold no longer, but for those that somebody has
 * locked.  Returns whether there were any.
 */
static bool
resume_copied(const TableAccess *access)
{
	SPIExecuteOptions options = {0};
	const char *copied = "hold = '" HOME_COPIED "' AND state IN ('PLAN', 'WORK')";
	uint64 count;

	SPI_connect();
	/* a trigger of the owner's may refuse an UPDATE, which need not be */
	count = table_access_execute(
		access, psprintf("SELECT FROM %s AS t WHERE %s LIMIT 1", access->rows, copied), options,
		SPI_OK_SELECT);
	if (count > 0)
		count = table_access_execute(
			access,
			psprintf("UPDATE %s AS t SET hold = NULL"
					 "  FROM (SELECT c.ctid AS tid, c.tableoid AS oid FROM %s AS c"
					 "         WHERE %s FOR NO KEY UPDATE SKIP LOCKED) AS n"
					 " WHERE t.ctid = n.tid AND t.tableoid = n.oid%s",
					 access->table, access->table, copied, access->condition),
			options, SPI_OK_UPDATE);
	SPI_finish();
	return count > 0;
}

/*
 * What waits for a role that does not exist is FAIL as soon as it may run, due or not, and its
 * schedule ends: rather nothing is released.  With FORCE ROW LEVEL SECURITY the owner need not see
 * all rows; the check does, unless a policy runs code of the owner's.
 */
static void
check_released_roles(TableAccess access)
{
	const char *last = "";
	StringInfoData names;
	int missing = 0;
	uint64 count;
	uint64 i;

	if (!access.sees_all && owner_code_find(access.relid, false) == NULL)
	{
		access.user = access.owner;
		access.rows = access.table;
	}
	initStringInfo(&names);
	SPI_connect();
	count =
		table_access_execute(&access,
							 psprintf("SELECT DISTINCT t.role::text, t.role_id::bigint FROM %s AS t"
									  " WHERE t.state IN ('PLAN', 'WORK') ORDER BY 1",
									  access.rows),
							 (SPIExecuteOptions){0}, SPI_OK_SELECT);
	for (i = 0; i < count; i++)
	{
		bool isnull;
		const char *name = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		Datum id = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull);

		if (roles_find(name, DatumGetInt64(id)).error == NULL || strcmp(name, last) == 0)
			continue;
		if (missing++ < MISSING_NAMED)
			appendStringInfo(&names, "%s%s", missing > 1 ? ", " : "", quote_identifier(name));
		last = name;
	}
	if (missing > MISSING_NAMED)
		appendStringInfo(&names, " and %d more", missing - MISSING_NAMED);
	if (missing > 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tasks wait for roles that do not exist: %s", names.data),
				 errdetail("They would be FAIL at once, and schedules end."),
				 errhint("Create these roles and grant them to the owner of the table; and if they"
						 " were dropped in this database, give the tasks to them by UPDATE of"
						 " \"role\", with \"role_id\" = 0. Or stop or delete the tasks.")));
	SPI_finish();
}

/*
 * pg_task_release(): the task table is at home in this database from now on, so its tasks are no
 * longer held back, and rows that were copied into it are on hold no longer.  Returns whether there
 * was any of that.  If they are held back because of crashes, that alone ends, whatever the table
 * looks like: the database may have a scheduler again, at once.
 */
Datum
pg_task_release(PG_FUNCTION_ARGS)
{
	TableAccess access;
	bool away;

	PreventCommandIfReadOnly("pg_task_release()");
	shared_require();
	if (crash_holds(MyDatabaseId))
	{
		if (!superuser())
			ereport(
				ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only a superuser may release a database that has crashed the server")));
		crash_release(MyDatabaseId);
		shared_databases_changed();
		PG_RETURN_BOOL(true);
	}
	/* only a scheduler finds a restored table that does not belong to the owner of the database */
	if (superuser() && get_rel_name(table_access_known()) == NULL)
	{
		LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
		shared_database_mark(MyDatabaseId);
		LWLockRelease(Shared->directory);
	}
	access = table_access_open(ACCESS_FIGURES);
	if (!has_privs_of_role(GetUserId(), access.owner))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(access.relid));
	/* the scheduler may not have looked at it yet */
	away = home_release(access.relid);
	if (away)
		(void) pending_add_events(access.relid, SHARED_SCAN);
	/* one that has not been completed has no such rows */
	if (get_attnum(access.relid, task_columns[COLUMN_HOLD].name) == InvalidAttrNumber)
		PG_RETURN_BOOL(away);
	access = table_access_open(ACCESS_ROWS);
	away |= resume_copied(&access);
	if (away)
		check_released_roles(access);
	PG_RETURN_BOOL(away);
}
