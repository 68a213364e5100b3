/*
 * reboot.c
 *		Plans the tasks that run when the server starts (cron "@reboot").
 *
 * Such a row waits with dt = infinity, and its anchor says under which start of the server it was
 * planned.  Those planned under an earlier start are due.  No index finds them, because every task
 * would pay for it: once per start of the server the scheduler reads the index of all waiting rows.
 *
 * A row is planned at most once per start, whoever is interrupted: the anchor is written together
 * with dt, and the next run of the task gets the anchor of the start under which it is planned.
 * That there are no more is remembered in shared memory, and only saves another search.
 *
 * This file writes no other row.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "scheduler/job.h"
#include "scheduler/work.h"
#include "shared/shared.h"
#include "task/rows.h"

/* Maximum number of rows that are planned in one transaction. */
#define BATCH_MAX 10000

/* Rows that could not be written are tried again after this many periods, or this time (ms). */
#define RETRY_PERIODS 60
#define RETRY_MAX_MS 60000

/* When the next rows are to be planned; static, because there may be several transactions. */
static MonoTime next;

static void
forget_table(bool another)
{
	if (another)
		next = shared_database_found(MyDatabaseId).rebooted == MyScheduler->table->relid
				   ? CLOCK_NEVER
				   : CLOCK_LONG_AGO;
}

static MonoTime
reboot_due(ClockNow now pg_attribute_unused())
{
	return next;
}

/* Plan the rows that are due. */
static void
plan_rows(ClockNow now)
{
	int limit = refused_limit(REFUSED_REBOOT, BATCH_MAX);
	int64 pause_ms = Min((int64) MyScheduler->settings.period * RETRY_PERIODS, RETRY_MAX_MS);
	SharedFindings findings;
	TaskPlace *places;
	int found;
	int count = 0;
	int i;

	work_begin_writing("planning the tasks that run when the server starts");
	work_limit(WORK_SCAN_MS);
	found = rows_reboot(MyScheduler->table, PgStartTime, BATCH_MAX + refused_count(), &places);
	for (i = 0; i < found && count < limit; i++)
	{
		if (refused_has(places[i], now.mono))
			continue;
		refused_batch_add(REFUSED_REBOOT, places[i], 1);
		places[count++] = places[i];
	}
	if (count > 0)
		count = rows_plan_reboot(MyScheduler->table, places, count, now.wall, PgStartTime);
	work_end();
	refused_batch_written(REFUSED_REBOOT);
	next = count > 0 ? CLOCK_LONG_AGO : clock_plus_ms(clock_mono(), pause_ms);
	if (found > 0)
		return;
	next = CLOCK_NEVER;
	findings = shared_database_found(MyDatabaseId);
	findings.rebooted = MyScheduler->table->relid;
	shared_database_publish(MyDatabaseId, &findings);
}

const SchedulerJob reboot_job = {.due = reboot_due,
								 .needed = reboot_due,
								 .run = plan_rows,
								 .forget_table = forget_table,
								 .writes = true};
