/*
 * why.c
 *		pg_task_why: why does this task not run?
 *
 * The answer is the first reason that applies, in the order of the list "reasons".  It is derived
 * from the row as the caller sees it, from the queue table and the rate table, the catalogs of
 * roles and the slots in shared memory.  What a scheduler alone remembers (a row that a trigger
 * refuses) is not asked for.  Of tasks that the caller does not see, it tells numbers and pids.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "session/table_access.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/hold.h"
#include "shared/survey.h"
#include "task/home.h"
#include "task/outcome.h"
#include "task/queue_table.h"
#include "task/rate_table.h"
#include "task/roles.h"
#include "task/table.h"

PGDLLEXPORT Datum pg_task_why(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_why);

/* What is read of the row, by these names. */
#define COLUMNS_SQL                                                                                        \
	"t.state::text, t.dt::timestamptz, t.start::timestamptz, t.stop::timestamptz, t.queue::text,"          \
	" t.max::int4, t.role::name, t.role_id::int8, t.attempt::int4,"                                        \
	" coalesce(t.failed, 0)::int4 AS failed, coalesce(t.crashed, 0)::int4 AS crashed,"                     \
	" coalesce(', after: ' || t.error || ' (' || coalesce(t.sqlstate, '') || ')', '') AS ended,"           \
	" CASE WHEN t.delay IS NULL THEN -1"                                                                   \
	"      ELSE least(extract(epoch FROM t.delay), " CppAsString2(                                         \
		TASK_DELAY_MAX) ") * 1000000"                                                                      \
						"      END::int8 AS delay,"                                                        \
						" coalesce(t.backoff, -1)::float8 AS backoff, coalesce(t.cron, '')::text AS cron," \
						" t.waits::int8, t.tableoid::oid, t.xmin::xid, t.xmax::xid"

/* A task, and what is known that may keep it from running. */
typedef struct WhyTask
{
	TableAccess access;
	HeapTuple tuple;
	TupleDesc desc;
	TimestampTz now;
	int64 id;
	const char *state;
	TimestampTz dt;
	const char *queue;
	int max; /* TASK_UNLIMITED: none */
	Role role;
	Survey survey;
	bool has_rule;
	QueueRule rule;
} WhyTask;

/* ---- the values of the row ---- */

static bool
is_null(const WhyTask *task, const char *column)
{
	bool isnull;

	(void) SPI_getbinval(task->tuple, task->desc, SPI_fnumber(task->desc, column), &isnull);
	return isnull;
}

/* The value of a column, which is not NULL. */
static Datum
value_of(const WhyTask *task, const char *column)
{
	bool isnull;

	return SPI_getbinval(task->tuple, task->desc, SPI_fnumber(task->desc, column), &isnull);
}

/* The value of a column as text; "" for NULL. */
static const char *
text_of(const WhyTask *task, const char *column)
{
	char *text = SPI_getvalue(task->tuple, task->desc, SPI_fnumber(task->desc, column));

	return text ? text : "";
}

/* A time as the session shows it. */
static const char *
time_text(TimestampTz time)
{
	return DatumGetCString(DirectFunctionCall1(timestamptz_out, TimestampTzGetDatum(time)));
}

/* ---- the reasons: each function returns NULL if it does not apply ---- */

/* The database is a copy of another one, or was restored. */
static const char *
explain_home(const WhyTask *task)
{
	if (strcmp(task->state, "PLAN") != 0 && strcmp(task->state, "WORK") != 0)
		return NULL;
	if (task->survey.has_run || home_find(task->access.relid) != HOME_AWAY)
		return NULL;
	return "it is held back, because its table comes from another database or server: see"
		   " pg_task_release";
}

/* It is not PLAN. */
static const char *
explain_state(const WhyTask *task)
{
	const Survey *survey = &task->survey;

	if (strcmp(task->state, "PLAN") == 0)
		return NULL;
	if (strcmp(task->state, "WORK") != 0)
	{
		if (survey->has_run)
			return psprintf("%s, but its run in pid %d has not ended yet", task->state,
							survey->executor_pid);
		return psprintf("it has ended: %s at %s%s", task->state, text_of(task, "stop"),
						text_of(task, "ended"));
	}
	if (!survey->has_run && RecoveryInProgress())
		return psprintf("it runs since %s on the primary", text_of(task, "start"));
	if (!survey->has_run)
		return "its run was interrupted; it is planned again at once";
	if (!survey->has_begun)
		return psprintf("it runs next in pid %d, which runs another task", survey->executor_pid);
	return psprintf("it runs since %s in pid %d", text_of(task, "start"), survey->executor_pid);
}

/* Is the database one of those that pg_task.database names? */
static bool
is_named(void)
{
	const Target *target = targets_find(settings_targets(), get_database_name(MyDatabaseId));
	HeapTuple tuple;
	bool named;

	if (target == NULL || target->excluded)
		return false;
	if (target->database)
		return true;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	named = HeapTupleIsValid(tuple) && !((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return named;
}

/* Nothing runs in this database. */
static const char *
explain_service(const WhyTask *task pg_attribute_unused())
{
	SharedFindings found = shared_database_found(MyDatabaseId);

	if (RecoveryInProgress())
		return "the server is a standby: tasks run on the primary";
	if (crash_holds(MyDatabaseId))
		return "it is held back, because the scheduler of this database has crashed the server:"
			   " see pg_task_release";
	if (!Settings.enabled || shared_database_is_disabled(MyDatabaseId, &found))
		return "pg_task.enabled is off";
	if (!is_named())
		return "no scheduler serves this database: pg_task.database does not name it";
	return NULL;
}

/* It waits for another task, which the one who planned it has named. */
static const char *
explain_dependency(const WhyTask *task)
{
	if (is_null(task, "waits"))
		return NULL;
	return psprintf("it waits for task %s", text_of(task, "waits"));
}

/* The queue starts nothing at this time, whatever runs, as far as its rule says so now. */
static const char *
explain_pause_at(const WhyTask *task, TimestampTz when)
{
	const QueueRule *rule = &task->rule;

	if (task->max == 0)
		return "its max is 0";
	if (!task->has_rule)
		return NULL;
	if (rule->paused)
		return "its queue is paused";
	if (rule->max == 0 || rule->rate == 0)
		return psprintf("the %s of its queue is 0", rule->max == 0 ? "max" : "rate");
	if (rule->until > when)
		return psprintf("its queue starts no task until %s", time_text(rule->until));
	return NULL;
}

/* It is not due; and then its queue may still start nothing. */
static const char *
explain_time(const WhyTask *task)
{
	const char *pause;

	if (task->dt <= task->now)
		return NULL;
	if (!TIMESTAMP_IS_NOEND(task->dt))
	{
		pause = explain_pause_at(task, task->dt);
		return psprintf("planned for %s%s%s%s", time_text(task->dt), pause ? ", and " : "",
						pause ? pause : "", text_of(task, "ended"));
	}
	if (strcmp(text_of(task, "cron"), "@reboot") == 0)
		return "it waits for the next start of the server";
	return "planned for infinity: not before it is planned anew";
}

/* Its role may not run it. */
static const char *
explain_role(const WhyTask *task)
{
	const Role *role = &task->role;

	if (role->error == NULL)
		return NULL;
	return role->hint ? psprintf("%s: %s", role->error, role->hint) : role->error;
}

/* The database has no scheduler at the moment. */
static const char *
explain_scheduler(const WhyTask *task)
{
	const Survey *survey = &task->survey;

	if (survey->state == SCHEDULER_RUNNING && survey->prepared)
		return NULL;
	if (hold_exists(MyDatabaseId))
		return "a command needs this database for itself";
	if (!survey->supervised)
		return "the supervisor of pg_task does not run";
	if (survey->state == SCHEDULER_FREE && survey->crowded)
		return "no scheduler serves this database at the moment: databases take turns, see"
			   " pg_task.max_schedulers";
	if (survey->state == SCHEDULER_RUNNING)
		return "the scheduler prepares the task table; if that lasts, the log says why";
	return "no scheduler serves this database yet: one is about to start";
}

/* A write-back could run code of the table's owner. */
static const char *
explain_code(const WhyTask *task)
{
	Oid role = task->role.oid;
	Oid owner = task->access.owner;
	char *code;

	if (role == owner || superuser_arg(role) || shared_database_found(MyDatabaseId).owner_code)
		return NULL;
	code = table_find_code(task->access.relid, owner);
	if (code == NULL)
		return NULL;
	return psprintf("code of the owner of the table may run with every write: %s; drop it, or set"
					" pg_task.owner_code for the database",
					code);
}

/*
 * The row is locked or not committed yet, or the table is locked.  If several have locked the row,
 * nothing is known; while the table is locked exclusively, this function itself waits.
 */
static const char *
explain_lock(const WhyTask *task)
{
	Oid types[] = {XIDOID, OIDOID, OIDOID, INT4OID};
	Datum values[] = {value_of(task, "xmax"), ObjectIdGetDatum(MyDatabaseId),
					  value_of(task, "tableoid"), Int32GetDatum(task->survey.scheduler_pid)};
	const char *sql =
		"SELECT format('the %s is locked by %s',"
		"              CASE l.locktype WHEN 'relation' THEN 'table' ELSE 'row' END,"
		"              coalesce('pid ' || l.pid, 'a prepared transaction'))"
		"  FROM pg_locks AS l WHERE l.granted AND l.pid IS DISTINCT FROM $4"
		"   AND (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.transactionid = $1"
		"        OR l.locktype = 'relation' AND l.database = $2 AND l.relation = $3"
		"           AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))"
		" ORDER BY l.locktype DESC";

	if (TransactionIdIsCurrentTransactionId(DatumGetTransactionId(value_of(task, "xmin"))))
		return "this transaction has written it, and has not committed yet";
	if (SPI_execute_with_args(sql, lengthof(types), types, values, NULL, false, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read the locks");
	if (SPI_processed == 0)
		return NULL;
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

/* It is due, but the queue starts nothing now. */
static const char *
explain_pause(const WhyTask *task)
{
	return explain_pause_at(task, task->now);
}

/* As many tasks of its queue run as may. */
static const char *
explain_limit(const WhyTask *task)
{
	int limit = task->max < 0 ? 1 : task->max;

	if (task->has_rule && task->rule.max >= 0)
		limit = Min(limit, task->rule.max);
	if (task->survey.of_queue < limit)
		return NULL;
	return psprintf("its queue is full: %d of %d run", task->survey.of_queue, limit);
}

/* When is a task of a strict queue tried again that has failed?  Its dt does not say that. */
static TimestampTz
retry_time(const WhyTask *task)
{
	RowRetry retry = {.failed = DatumGetInt32(value_of(task, "failed")),
					  .delay = DatumGetInt64(value_of(task, "delay")),
					  .backoff = DatumGetFloat8(value_of(task, "backoff"))};

	if (is_null(task, "stop") || retry.failed <= 0)
		return DT_NOBEGIN;
	return outcome_retry_at(&retry, DatumGetTimestampTz(value_of(task, "stop")),
							&task->rule.defaults, &task->role.settings);
}

/* Find the first due task of the queue that the caller sees. */
static int64
first_of_queue(const WhyTask *task)
{
	const char *sql = "SELECT t.id::int8 FROM %s AS t"
					  " WHERE t.state = 'PLAN' AND t.waits IS NULL AND t.queue COLLATE \"C\" = $1"
					  "   AND t.dt <= clock_timestamp() AND t.max IS DISTINCT FROM 0"
					  " ORDER BY coalesce(t.max, 2147483647) DESC, t.priority, t.dt, t.id LIMIT 1";
	bool isnull;

	if (table_access_read(&task->access, psprintf(sql, task->access.rows),
						  table_access_param(TEXTOID, CStringGetTextDatum(task->queue)),
						  false) == 0)
		return task->id;
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

/* Another task of its strict queue is before it, or it waits for a retry there. */
static const char *
explain_strict(const WhyTask *task)
{
	TimestampTz again;
	int64 first;

	if (!task->has_rule || !task->rule.strict)
		return NULL;
	first = first_of_queue(task);
	if (first != task->id)
		return psprintf("its queue is strict: task " INT64_FORMAT " is first", first);
	again = retry_time(task);
	if (again <= task->now)
		return NULL;
	return psprintf("its queue is strict: it is tried again at %s%s", time_text(again),
					text_of(task, "ended"));
}

/* An interval as the session shows it. */
static const char *
interval_text(int64 us)
{
	Interval interval = {.time = us};

	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(&interval)));
}

static const char *
rate_text(const QueueRule *rule)
{
	return psprintf("the rate of its queue: at most %d starts in %s", rule->rate,
					interval_text(rule->per));
}

/*
 * When may a task of its queue start, if "rate" may in any time of the length "per", by what the
 * scheduler has written down?  NULL: now, or nothing is written.
 */
static const char *
next_start(const WhyTask *task, int rate, int64 per)
{
	ClockNow now = clock_now();
	MonoTime next;
	RateRow row;

	if (!rate_row_find(task->access.relid, task->access.owner, task->queue, now, &row))
		return NULL;
	next = rate_free_at(row.claims, row.count, rate, per);
	if (!clock_is_before(now.mono, next))
		return NULL;
	return time_text(now.wall + (next.us - now.mono.us));
}

/* As many tasks of its queue have started as may. */
static const char *
explain_rate(const WhyTask *task)
{
	const QueueRule *rule = &task->rule;
	const char *next = NULL;

	if (task->has_rule && rule->rate > 0)
		next = next_start(task, rule->rate, rule->per);
	return next ? psprintf("%s; its queue may start its next task at %s", rate_text(rule), next)
				: NULL;
}

static const char *
pause_text(const WhyTask *task)
{
	return psprintf("the pause of its queue: %s between two starts",
					interval_text(-(int64) task->max * 1000));
}

/* The last start of its queue is too near, likewise. */
static const char *
explain_start(const WhyTask *task)
{
	const char *next = task->max < 0 ? next_start(task, 1, -(int64) task->max * 1000) : NULL;

	return next ? psprintf("%s; it may start at %s", pause_text(task), next) : NULL;
}

/* It may have crashed the server, and another such task runs. */
static const char *
explain_isolation(const WhyTask *task)
{
	if (DatumGetInt32(value_of(task, "crashed")) <= 0)
		return NULL;
	if (task->survey.isolated)
		return "it may have crashed the server, and runs isolated: another such task runs now";
	return task->survey.has_idle ? NULL
								 : "it may have crashed the server, and waits for an executor of"
								   " its own";
}

/* No executor can take it. */
static const char *
explain_executors(const WhyTask *task)
{
	const Survey *survey = &task->survey;
	const Role *role = &task->role;

	if (survey->has_idle)
		return NULL;
	if (role->limit >= 0 && survey->of_role >= role->limit)
		return psprintf("role \"%s\" has %d of %d executors, all busy", role->name, survey->of_role,
						role->limit);
	if (role->database_limit >= 0 && survey->of_database >= role->database_limit)
		return psprintf("this database has %d of %d executors, and none is free",
						survey->of_database, role->database_limit);
	if (survey->busy >= Shared->nexecutors)
		return psprintf("no executor is free: %d of %d busy", survey->busy, Shared->nexecutors);
	if (!arbiter_slot_is_free())
		return "no executor can be started: no worker slot is free, see max_worker_processes";
	return psprintf("an executor for role \"%s\" is about to start; if that lasts, the log says"
					" why",
					role->name);
}

/* Starts are spread in time.  If it is known when the next one may be, that was said before. */
static const char *
explain_spacing(const WhyTask *task)
{
	if (task->has_rule && task->rule.rate > 0)
		return rate_text(&task->rule);
	if (task->max < 0)
		return pause_text(task);
	return NULL;
}

/* All reasons, in the order in which they are looked at. */
static const char *(*const reasons[])(const WhyTask *) = {
	explain_home,	   explain_state,	  explain_service, explain_dependency, explain_time,
	explain_role,	   explain_scheduler, explain_code,	   explain_lock,	   explain_pause,
	explain_limit,	   explain_strict,	  explain_rate,	   explain_start,	   explain_isolation,
	explain_executors, explain_spacing,
};

/* ---- the function ---- */

/* Read the row, as far as the caller sees it. */
static bool
read_row(WhyTask *task, FunctionCallInfo fcinfo)
{
	/* in a partitioned table others may have the same id */
	const char *sql = "SELECT " COLUMNS_SQL " FROM %s AS t WHERE t.id = $1"
					  " ORDER BY t.state IN ('PLAN', 'WORK') DESC LIMIT 1";

	if (table_access_read(&task->access, psprintf(sql, task->access.rows),
						  table_access_arguments(fcinfo), false) == 0)
		return false;
	task->tuple = SPI_tuptable->vals[0];
	task->desc = SPI_tuptable->tupdesc;
	task->id = PG_GETARG_INT64(0);
	task->state = text_of(task, "state");
	task->dt = DatumGetTimestampTz(value_of(task, "dt"));
	task->queue = text_of(task, "queue");
	task->max = is_null(task, "max") ? TASK_UNLIMITED : DatumGetInt32(value_of(task, "max"));
	return true;
}

/* Collect what the reasons look at, besides the row. */
static void
collect_facts(WhyTask *task)
{
	SurveySubject subject = {.database = MyDatabaseId, .queue = task->queue};

	task->role = roles_check_in_session(task->access.owner, text_of(task, "role"),
										DatumGetInt64(value_of(task, "role_id")));
	subject.role = task->role.oid;
	subject.run.id = task->id;
	subject.run.attempt = DatumGetInt32(value_of(task, "attempt"));
	if (!is_null(task, "start"))
		subject.run.claimed = DatumGetTimestampTz(value_of(task, "start"));
	task->survey = survey_take(&subject);
	task->has_rule = queue_table_find(shared_scheduler_relid(MyDatabaseId, true),
									  task->access.owner, task->queue, &task->rule);
	task->now = GetCurrentTimestamp();
}

/* Find the first reason that applies. */
static const char *
find_reason(WhyTask *task)
{
	const char *reason = NULL;
	int i;

	/* rules and locks as they are now: the caller's snapshot may be old */
	PushActiveSnapshot(GetLatestSnapshot());
	collect_facts(task);
	for (i = 0; i < (int) lengthof(reasons) && reason == NULL; i++)
		reason = reasons[i](task);
	PopActiveSnapshot();
	return reason ? reason : "nothing keeps it: it is about to start";
}

/*
 * pg_task_why(id): why does this task not run?  NULL if there is no such task that the caller may
 * see.
 */
Datum
pg_task_why(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	WhyTask task = {0};
	text *result = NULL;

	task.access = table_access_open(ACCESS_ROWS);
	SPI_connect();
	if (read_row(&task, fcinfo))
	{
		const char *reason = find_reason(&task);

		MemoryContextSwitchTo(caller);
		result = cstring_to_text(reason);
	}
	SPI_finish();
	if (result == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(result);
}
