/*
 * outcome.c
 *		What becomes of a task when a run of it has ended: it is done, tried
 *		again, or given up, and it may repeat.
 *
 * Executors and the scheduler write outcomes, by the same rules.  This file
 * starts nothing, and knows neither processes nor shared memory.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "task/outcome.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/schedule.h"

/*
 * Plan the next run of the task in this row, if it repeats.  The row must still be there.
 * What did not run waits for some milliseconds at least, lest rows be made without end.
 */
void
outcome_plan_next(const TaskTable *table, RowKey row, TimestampTz ended, int pause_ms)
{
	TimestampTz after = TimestampTzPlusMilliseconds(ended, pause_ms);
	RowRepeat repeat;
	pg_tz *zone = NULL;
	TimestampTz next;

	if (!row_repeat(table, row, &repeat))
		return;
	/* whoever writes this: the scheduler, or an executor, in which the task may have set another */
	if (repeat.timezone)
		zone = pg_tzset(repeat.timezone);
	else
		zone = roles_settings(roles_bound(row.role, repeat.role_id)).timezone;
	if (zone == NULL)
		ereport(WARNING, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						  errmsg("task " INT64_FORMAT " does not repeat", row.id),
						  errdetail("The time zone \"%s\" is not recognized.", repeat.timezone)));
	else if (schedule_next(repeat.dt, repeat.repeat, repeat.drift, ended, after, zone, &next) &&
			 schedule_in_range(next))
		row_insert_next(table, row, next);
	else
		ereport(WARNING, (errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
						  errmsg("task " INT64_FORMAT " does not repeat", row.id),
						  errdetail("There is no next time in range.")));
}

/* The run is DONE.  False: the row is no longer that run. */
bool
outcome_done(const TaskTable *table, TaskRun run, const char *role, const TaskResult *result,
			 bool repeats, bool deletes)
{
	TaskRun finished = {run.id, run.attempt, result->start};
	RowKey row = {run.id, role};

	if (deletes && !repeats)
		return row_delete(table, run, "WORK");
	if (!row_finish(table, run, result))
		return false;
	if (repeats)
		outcome_plan_next(table, row, result->stop, 0);
	if (deletes)
		row_delete(table, finished, "DONE");
	return true;
}

/* A task that failed once more: is it tried again, and when? */
static void
decide_retry(TaskResult *result, const RowRetry *retry)
{
	SettingsTask role = roles_settings(roles_bound(retry->role, retry->role_id));
	int limit = retry->retry >= 0 ? retry->retry : role.retry;
	int64 delay = retry->delay >= 0 ? retry->delay : (int64) role.delay * 1000;
	double backoff = retry->backoff >= 0 ? retry->backoff : role.backoff;
	TimestampTz expires = retry->expires;

	result->outcome = TASK_FAIL;
	if (retry->failed >= limit)
		return;
	if (expires == DT_NOEND && role.active > 0)
		expires = TimestampTzPlusMilliseconds(retry->planned, role.active);
	result->again = result->stop + schedule_retry(delay, backoff, retry->failed + 1,
												  pg_prng_double(&pg_global_prng_state));
	if (result->again <= expires)
		result->outcome = TASK_AGAIN;
	else
		result->again = 0;
}

/*
 * The run has failed: the task is tried again later, or it is FAIL.  False: the row is
 * no longer that run, or somebody locks it and "wait" is false.
 */
bool
outcome_failed(const TaskTable *table, TaskRun run, TaskResult *result, bool wait)
{
	RowRetry retry;

	if (!row_retry(table, run, wait, &retry))
		return false;
	result->failed = true;
	decide_retry(result, &retry);
	if (!row_end(table, run, result))
		return false;
	if (result->outcome == TASK_FAIL && retry.repeats)
	{
		RowKey row = {run.id, retry.role};

		outcome_plan_next(table, row, result->stop, 0);
	}
	return true;
}

/*
 * The server has crashed, perhaps because of this run: the task is tried again,
 * but not for ever.  What has crashed the server too often does not repeat.  False:
 * the row is no longer that run, or somebody locks it.
 */
bool
outcome_crashed(const TaskTable *table, TaskRun run, const TaskFailure *failure)
{
	TaskResult result = {.start = run.claimed, .crashed = true, .sqlstate = failure->sqlstate};
	RowRetry retry;
	int crashes;

	if (!row_retry(table, run, false, &retry))
		return false;
	crashes = retry.crashed + 1;
	result.outcome = crashes < settings_max_crashes ? TASK_AGAIN : TASK_FAIL;
	result.stop = GetCurrentTimestamp();
	result.error = failure->error;
	if (result.outcome == TASK_FAIL)
		result.error = psprintf("%s (%d times)", failure->error, crashes);
	result.response = psprintf("FATAL:  %s", result.error);
	return row_end(table, run, &result);
}
