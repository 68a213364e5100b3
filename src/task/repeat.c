/*
 * repeat.c
 *		The next run of a task that repeats: when it is due, and its row, made from the one before,
 *		which was written or locked before.
 *
 * This file starts nothing, and does not decide how a run has ended.
 */
#include "postgres.h"

#include "settings.h"
#include "task/repeat.h"
#include "task/roles.h"
#include "task/rows_sql.h"
#include "task/schedule.h"
#include "task/statement.h"

/* Minimum delay before the next run of a repeating task that has expired (ms). */
#define EXPIRED_PAUSE_MS 1000

/* How long a repeating task waits whose role may not run it, until it is tried again (ms). */
#define REFUSED_PAUSE_MS (60 * 1000)
#define REFUSED_PAUSE_MAX_MS (10 * 60 * 1000)

/* clang-format off */

/* A row that has ended and repeats.  In a partitioned table other rows may have its id and role. */
#define ENDED_CHAIN \
	"t.id = $id AND t.role = $role::name AND t.state IN ('DONE', 'FAIL', 'GONE') AND " REPEATS

#define READ_REPEAT(row) \
	"SELECT " PLANNED ", t.repeat, t.drift," \
	"       substr(t.timezone, 1, " CppAsString2(TASK_ZONE_MAX) " + 1)," \
	"       coalesce(t.role_id, 0)," \
	"       substr(t.cron, 1, " CppAsString2(TASK_KEY_MAX) " + 1), coalesce(t.anchor, " PLANNED ")," \
	"       substr(t.missed, 1, 8), coalesce(t.active < interval '100 years', false)," \
	"       coalesce(t.repeat_until, 'infinity'), coalesce(t.runs_left, 2147483647)" \
	"  FROM {rows} AS t" \
	" WHERE " row \
	" LIMIT 1"

static const Statement find_ended = {.sql = READ_REPEAT(ENDED_CHAIN)};

static const Statement find_waiting = {.sql =
	READ_REPEAT("t.id = $id AND t.role = $role::name AND t.dt = $dt AND t.state = $state"
				" AND " REPEATS)};

/* One that has failed so many times in a row is put on hold. */
static const Statement insert_next = {.sql =
	"INSERT INTO {table} (parent, dt, anchor, hold, runs_left{inherited})"
	" SELECT t.id, $dt, $anchor,"
	"        CASE WHEN t.state = 'FAIL' AND t.hold IS NULL"
	"                  AND t.streak >= nullif(coalesce(t.hold_after, $hold_after), 0)"
	"             THEN format('failed %s times in a row', t.streak)"
	"             ELSE coalesce(t.hold, $hold) END,"
	"        t.runs_left - 1{inherited}"
	"   FROM {rows} AS t WHERE " ENDED_CHAIN " LIMIT 1"
	" RETURNING id"};

/* Only one row is written, although another one may look the same: see above. */
static const Statement link_next = {.sql =
	"WITH c AS MATERIALIZED ("
	"SELECT t.tableoid AS oid, t.ctid AS tid FROM {rows} AS t WHERE " ENDED_CHAIN " LIMIT 1"
	") UPDATE {rows} AS t SET next = $next FROM c WHERE " IS_LOCKED_ROW};
/* clang-format on */

/*
 * Read how a task that has ended, or one that waits until then, repeats.  Returns false if it does
 * not, or if the row was deleted.
 */
static bool
read_repeat(const TaskTable *table, RowKey row, const TimestampTz *waits, RowRepeat *repeat)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	bool repeats;

	statement_begin(&args);
	arg_int64(&args, "id", row.id);
	arg_text(&args, "role", row.role);
	if (waits)
	{
		arg_timestamp(&args, "dt", *waits);
		arg_text(&args, "state", "PLAN");
	}
	repeats = statement_execute(waits ? &find_waiting : &find_ended, table, &args) > 0;
	if (repeats)
	{
		repeat->dt = statement_time(0, 1);
		memset(&repeat->repeat, 0, sizeof(Interval));
		if (!statement_is_null(0, 2))
			repeat->repeat = *DatumGetIntervalP(statement_value(0, 2, INTERVALOID));
		repeat->drift = statement_bool(0, 3);
		repeat->timezone = statement_text_or_null(caller, 0, 4);
		repeat->role_id = statement_int64(0, 5);
		repeat->cron = statement_text_or_null(caller, 0, 6);
		repeat->anchor = statement_time(0, 7);
		repeat->missed = statement_text_or_null(caller, 0, 8);
		repeat->expires = statement_bool(0, 9);
		repeat->until = statement_time(0, 10);
		repeat->runs = statement_int32(0, 11);
	}
	statement_end();
	return repeats;
}

/*
 * Plan the next run of a repeating task that has ended: insert a new row, made from this one, and
 * remember in this one that it is done, unless a trigger of the owner's has kept the new row.
 */
static void
insert_next_run(const TaskTable *table, RowKey row, const RowNext *next)
{
	StatementArgs args;
	int64 id = 0;
	bool inserted;

	statement_begin(&args);
	arg_int64(&args, "id", row.id);
	arg_text(&args, "role", row.role);
	arg_timestamp(&args, "dt", next->dt);
	if (next->has_anchor)
		arg_timestamp(&args, "anchor", next->anchor);
	else
		arg_null(&args, "anchor", TIMESTAMPTZOID);
	arg_text(&args, "hold", next->hold);
	arg_int32(&args, "hold_after", next->hold_after);
	inserted = statement_execute(&insert_next, table, &args) > 0;
	if (inserted)
		id = statement_int64(0, 1);
	statement_end();
	if (!inserted)
		return;
	statement_begin(&args);
	arg_int64(&args, "id", row.id);
	arg_text(&args, "role", row.role);
	arg_int64(&args, "next", id);
	statement_execute(&link_next, table, &args);
	statement_end();
}

/*
 * When a task runs next, and the anchor from which that is counted, if there is one.  It has ended
 * at "end"; or, without "run", it did not run, and is not to repeat before that.  Returns false if
 * there is no such time in range, or the cron expression is invalid: while the trigger is disabled,
 * nothing is checked.
 */
static bool
find_next(const RowRepeat *repeat, SettingsMissed missed, const TaskResult *run, TimestampTz end,
		  pg_tz *zone, RowNext *next)
{
	TimestampTz after = Max(end, repeat->dt);
	CronError error;
	Cron cron;

	/*
	 * The next run is planned later than this: for each missed time, for the first that the run has
	 * missed, or for none of them.  What a task has missed that did not run is over, too.
	 */
	if (run && missed == MISSED_ALL)
		after = repeat->dt;
	else if (run && missed == MISSED_ONE)
		after = Max(run->start, repeat->dt);
	next->has_anchor = repeat->cron == NULL && repeat->drift;
	next->hold = NULL;
	if (repeat->cron)
	{
		if (!cron_parse(repeat->cron, &cron, &error))
			return false;
		if (!cron.at_start)
			return schedule_next_cron(&cron, after, zone, &next->dt);
		/* it waits for the next start of the server: see scheduler/unstarted.c */
		next->has_anchor = true;
		next->anchor = PgStartTime;
		next->dt = PgStartTime;
		next->hold = REPEAT_AT_START;
		return true;
	}
	next->anchor = repeat->anchor;
	return schedule_next(&next->anchor, repeat->dt, &repeat->repeat, repeat->drift, end,
						 repeat->drift ? after : end, zone, &next->dt) &&
		   schedule_in_range(next->dt);
}

/*
 * The time zone in which a task repeats whose row has this "timezone", or NULL, and whose role has
 * these settings.  Not the session's TimeZone: this may run in the scheduler, or in an executor
 * whose task has changed the setting.  NULL: there is no such zone.
 */
pg_tz *
repeat_zone(const SettingsTask *settings, const char *timezone)
{
	if (timezone)
		return zone_find(timezone);
	return settings->task_timezone ? settings->task_timezone : settings->timezone;
}

/*
 * When does a task run first after this time, if each run before takes no time?  False: never, or
 * when the server starts.
 */
bool
repeat_following(const RowRepeat *repeat, TimestampTz after, pg_tz *zone, RowNext *next)
{
	return find_next(repeat, MISSED_NONE, NULL, after, zone, next) && !next->hold;
}

/*
 * Find the next run of the task in this row, which has ended or cannot be started: see find_next.
 * Returns false if there is none: after the last one that the row allows, or with a WARNING.
 */
bool
repeat_find_next(RowKey row, const RowRepeat *repeat, const TaskResult *run, TimestampTz end,
				 RowNext *next)
{
	SettingsTask settings;
	SettingsMissed missed;
	pg_tz *zone;

	if (repeat->runs <= 1)
		return false;
	settings = roles_settings(roles_bound(row.role, repeat->role_id));
	zone = repeat_zone(&settings, repeat->timezone);
	next->hold_after = settings.hold_after;
	missed = settings_missed(repeat->missed, settings.missed);
	if (zone == NULL)
		ereport(WARNING, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						  errmsg("task " INT64_FORMAT " does not repeat", row.id),
						  errdetail("The time zone \"%s\" is not recognized.", repeat->timezone)));
	else if (find_next(repeat, missed, run, end, zone, next))
		return (next->hold ? end : next->dt) <= repeat->until;
	else
		ereport(WARNING, (errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
						  errmsg("task " INT64_FORMAT " does not repeat", row.id),
						  errdetail("There is no next time in range.")));
	return false;
}

/*
 * A task has expired, and its row says so: plan the next run, if it repeats.  The pause prevents an
 * endless fast series of rows.
 */
void
repeat_expired(const TaskTable *table, RowKey row, TimestampTz now)
{
	TimestampTz end = TimestampTzPlusMilliseconds(now, EXPIRED_PAUSE_MS);
	RowRepeat repeat;
	RowNext next;

	if (read_repeat(table, row, NULL, &repeat) && repeat_find_next(row, &repeat, NULL, end, &next))
		insert_next_run(table, row, &next);
}

/*
 * A waiting task cannot be started, because its role may not run it: its state becomes FAIL, and
 * this returns false.  But a task that repeats waits, with the error in its row, until the role may
 * run it.  It is tried again after as long as it has waited so far, but within bounds, so it is
 * written a few times and then seldom; or, if it must not start so late ("waits" is false), at its
 * next time.  So it makes no rows that failed, and nobody has to plan it again.
 */
bool
repeat_refused(const TaskTable *table, RowKey row, TimestampTz dt, TimestampTz now, RowNext *next,
			   bool *waits)
{
	TimestampTz end = TimestampTzPlusMilliseconds(now, REFUSED_PAUSE_MS);
	int64 waited = REFUSED_PAUSE_MAX_MS;
	RowRepeat repeat;

	if (!read_repeat(table, row, &dt, &repeat))
		return false;
	*waits = !repeat.expires;
	if (repeat.expires)
		return repeat_find_next(row, &repeat, NULL, end, next);
	if (!TIMESTAMP_NOT_FINITE(repeat.dt))
		waited = Min(Max((now - repeat.dt) / 1000, REFUSED_PAUSE_MS), waited);
	*next = (RowNext){.dt = TimestampTzPlusMilliseconds(now, waited)};
	return true;
}

/* Plan the next run of a task after a run, if it repeats. */
void
repeat_after_run(const TaskTable *table, RowKey row, const TaskResult *result)
{
	RowRepeat repeat;
	RowNext next;

	if (read_repeat(table, row, NULL, &repeat) &&
		repeat_find_next(row, &repeat, result, result->stop, &next))
		insert_next_run(table, row, &next);
}
