/*
 * outcome.c
 *		The outcome of a run: the task is done, retried, or failed, and it may repeat.
 *
 * Executors and the scheduler write outcomes, by the same rules.  The functions that write read the
 * row, the settings of its role, the clock and a random number; decide_retry depends on its
 * arguments only.
 *
 * This file starts nothing, and knows neither processes nor slots.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "task/events.h"
#include "task/failure.h"
#include "task/outcome.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/schedule.h"

/* Minimum delay before the next run of a repeating task that has expired (ms). */
#define EXPIRED_PAUSE_MS 1000

/* How long a repeating task waits whose role may not run it, until it is tried again (ms). */
#define REFUSED_PAUSE_MS (60 * 1000)
#define REFUSED_PAUSE_MAX_MS (10 * 60 * 1000)

/* When a task ran that is to repeat, or was found not to run. */
typedef struct Ended
{
	bool ran;
	TimestampTz start; /* not set if it did not run */
	TimestampTz end;   /* of the run; or the time before which it is not to repeat */
} Ended;

/*
 * The next run of a repeating task is planned later than this: for each missed time, for the first
 * that the run has missed, or for none of them.  What a task has missed that expired or was refused
 * is over, too.
 */
static TimestampTz
latest_covered(const RowRepeat *repeat, SettingsMissed missed, const Ended *ended)
{
	if (!ended->ran || missed == MISSED_NONE)
		return Max(ended->end, repeat->dt);
	if (missed == MISSED_ALL)
		return repeat->dt;
	return Max(ended->start, repeat->dt);
}

/*
 * When a task that has ended runs next, and the anchor from which that is counted, if there is one.
 * Returns false if there is no such time in range, or the cron expression is invalid: while the
 * trigger is disabled, nothing is checked.
 */
static bool
find_next(const RowRepeat *repeat, SettingsMissed missed, const Ended *ended, pg_tz *zone,
		  RowNext *next)
{
	TimestampTz after = latest_covered(repeat, missed, ended);
	CronError error;
	Cron cron;

	next->has_anchor = repeat->cron == NULL && repeat->drift;
	if (repeat->cron)
	{
		if (!cron_parse(repeat->cron, &cron, &error))
			return false;
		if (!cron.at_start)
			return schedule_next_cron(&cron, after, zone, &next->dt);
		/* it waits for the next start of the server: see scheduler/unstarted.c */
		next->has_anchor = true;
		next->anchor = PgStartTime;
		next->dt = DT_NOEND;
		return true;
	}
	next->anchor = schedule_anchor(repeat->anchor, repeat->dt, &repeat->repeat, zone);
	return schedule_next(next->anchor, repeat->dt, &repeat->repeat, repeat->drift, ended->end,
						 repeat->drift ? after : ended->end, zone, &next->dt) &&
		   schedule_in_range(next->dt);
}

/*
 * Find the next run of the task in this row, which has ended or cannot be started.  Returns false,
 * with a WARNING, if there is none.
 */
static bool
find_next_of_row(RowKey row, const RowRepeat *repeat, const Ended *ended, RowNext *next)
{
	SettingsTask settings;
	SettingsMissed missed;
	pg_tz *zone;

	/*
	 * not the session's TimeZone: this may run in the scheduler, or in an executor whose task has
	 * changed the setting
	 */
	settings = roles_settings(roles_bound(row.role, repeat->role_id));
	if (repeat->timezone)
		zone = zone_find(repeat->timezone);
	else
		zone = settings.task_timezone ? settings.task_timezone : settings.timezone;
	missed = settings.missed;
	if (repeat->missed)
		missed = settings_missed(repeat->missed, missed);
	if (zone == NULL)
		ereport(WARNING, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						  errmsg("task " INT64_FORMAT " does not repeat", row.id),
						  errdetail("The time zone \"%s\" is not recognized.", repeat->timezone)));
	else if (find_next(repeat, missed, ended, zone, next))
		return true;
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
outcome_expired(const TaskTable *table, RowKey row, TimestampTz now)
{
	Ended ended = {.end = TimestampTzPlusMilliseconds(now, EXPIRED_PAUSE_MS)};
	RowRepeat repeat;
	RowNext next;

	if (row_repeat(table, row, &repeat) && find_next_of_row(row, &repeat, &ended, &next))
		row_insert_next(table, row, &next);
}

/*
 * When a task that could not be started for its role is tried next: after as long as it has waited
 * so far, but within bounds.  So it is written a few times and then seldom.
 */
static TimestampTz
next_try(TimestampTz planned, TimestampTz now)
{
	int64 waited = REFUSED_PAUSE_MAX_MS;

	if (!TIMESTAMP_NOT_FINITE(planned))
		waited = (now - planned) / 1000;
	waited = Min(Max(waited, REFUSED_PAUSE_MS), REFUSED_PAUSE_MAX_MS);
	return TimestampTzPlusMilliseconds(now, waited);
}

/*
 * A waiting task cannot be started, because its role may not run it: its state becomes FAIL.  But a
 * task that repeats waits, with the error in its row, until the role may run it: it is tried again
 * after a while, or, if it must not start so late, at its next time.  So it makes no rows that
 * failed, and nobody has to plan it again.  Sets *keep to the "keep" of a row that is FAIL.
 */
void
outcome_refused(const TaskTable *table, const RowRefusal *refusal, TimestampTz now, double *keep)
{
	Ended ended = {.end = TimestampTzPlusMilliseconds(now, REFUSED_PAUSE_MS)};
	RowRepeat repeat;
	RowNext next = {0};

	*keep = -1;
	if (!row_repeat_waiting(table, refusal, &repeat))
		row_fail(table, refusal, keep);
	else if (!repeat.expires)
	{
		next.dt = next_try(repeat.dt, now);
		row_refuse(table, refusal, &next, true);
	}
	else if (find_next_of_row(refusal->row, &repeat, &ended, &next))
		row_refuse(table, refusal, &next, false);
	else
		row_fail(table, refusal, keep);
}

/* Find the next run of a task after a run.  Returns false, with a WARNING, if there is none. */
bool
outcome_find_next(RowKey row, const RowRepeat *repeat, const TaskResult *result, RowNext *next)
{
	Ended ended = {.ran = true, .start = result->start, .end = result->stop};

	return find_next_of_row(row, repeat, &ended, next);
}

/* Plan the next run of a task after a run, if it repeats. */
static void
plan_after_run(const TaskTable *table, RowKey row, const TaskResult *result)
{
	RowRepeat repeat;
	RowNext next;

	if (row_repeat(table, row, &repeat) && outcome_find_next(row, &repeat, result, &next))
		row_insert_next(table, row, &next);
}

/*
 * Write that the run is DONE, unless that is "finished" already, and what follows.  If the task has
 * asked to be run again, or the row was planned again meanwhile, it is PLAN and not DONE, and it is
 * neither removed nor does it repeat before the last run has ended.  A row that is locked is not
 * removed, but DONE.  Returns false if the row no
 * longer belongs to that run.
 */
bool
outcome_done(const TaskTable *table, RowFinish *finish)
{
	const TaskResult *result = finish->result;
	TaskRun run = finish->run;

	if (result->goes_on)
		return row_go_on(table, run, result);
	if (!finish->finished && !row_finish(table, finish))
		return row_plan_again(table, run, result);
	if (finish->repeats)
		plan_after_run(table, (RowKey){run.id, finish->role}, result);
	if (finish->removes)
		row_delete(table, (TaskRun){run.id, run.attempt, result->start});
	return true;
}

/* The first of these that is not negative, which the last one is not: row, queue, role. */
#define FIRST_OF(row, queue, role) ((row) >= 0 ? (row) : (queue) >= 0 ? (queue) : (role))

/*
 * How long does the n-th retry wait (us)?  What the row leaves open is taken from the defaults of
 * its queue, then from the settings of its role.  "random" is between 0 and 1.
 */
static int64
retry_wait(const RowRetry *retry, const TaskDefaults *queue, const SettingsTask *role, int n,
		   double random)
{
	int64 delay = FIRST_OF(retry->delay, queue->delay, (int64) role->delay * 1000);
	double backoff = FIRST_OF(retry->backoff, queue->backoff, role->backoff);

	return schedule_retry(delay, backoff, n, random);
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
	if (retry->failed >= limit)
		return;
	if (expires == DT_NOEND && active > 0)
		expires = TimestampTzPlusMilliseconds(retry->planned, active);
	result->again = result->stop + retry_wait(retry, queue, role, retry->failed + 1, random);
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

	if (!row_retry(table, run, wait, &retry))
		return false;
	result->failed = true;
	role = roles_settings(roles_bound(retry.role, retry.role_id));
	set_response(result, &retry, &role);
	decide_retry(result, &retry, queue, &role, pg_prng_double(&pg_global_prng_state));
	plans_again = result->outcome == TASK_FAIL && retry.planned_again;
	if (plans_again ? !row_plan_again(table, run, result) : !row_end(table, run, result))
		return false;
	note_end(run, result, &retry);
	if (result->outcome == TASK_FAIL && retry.repeats && !plans_again)
	{
		RowKey row = {run.id, retry.role};

		plan_after_run(table, row, result);
	}
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

	if (!row_retry(table, run, false, &row))
		return false;
	finish.role = row.role;
	if (!outcome_done(table, &finish))
		return false;
	note_end(run, &result, &row);
	return true;
}

/*
 * Write that the server has crashed, perhaps because of this run.  The task is retried until it
 * has crashed pg_task.max_crashes times; then its state becomes FAIL, and it does not repeat.
 * Returns false if the row no longer belongs to that run, or if somebody has locked it.
 */
bool
outcome_crashed(const TaskTable *table, TaskRun run, const TaskFailure *failure)
{
	TaskResult result = {.start = run.claimed, .crashed = true, .sqlstate = failure->sqlstate};
	Failure why = {.severity = "FATAL", .sqlstate = failure->sqlstate};
	RowRetry retry;
	SettingsTask role;
	int crashes;

	if (!row_retry(table, run, false, &retry))
		return false;
	crashes = retry.crashed + 1;
	result.outcome = crashes < Settings.max_crashes ? TASK_AGAIN : TASK_FAIL;
	result.stop = GetCurrentTimestamp();
	result.error = failure->error;
	if (result.outcome == TASK_FAIL)
		result.error = psprintf("%s (%d times)", failure->error, crashes);
	role = roles_settings(roles_bound(retry.role, retry.role_id));
	why.error = result.error;
	result.failure = &why;
	set_response(&result, &retry, &role);
	if (!row_end(table, run, &result))
		return false;
	note_end(run, &result, &retry);
	return true;
}
