/*
 * scan.c
 *		The scan that finds the first waiting row of every group.
 *
 * It finds rows that no hint has named.  It runs every period, and when it is requested.  There may
 * be very many groups: a scan is done in slices, so that tasks are claimed and hints are taken in
 * between.  It takes a small part of the time, even if it is requested all the time.
 *
 * The caller opens the transaction.  This file claims nothing.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/binding.h"
#include "scheduler/groups.h"
#include "scheduler/scan.h"
#include "scheduler/scheduler.h"
#include "scheduler/unstarted.h"
#include "task/rows.h"

/* Groups in a slice. */
#define SLICE_GROUPS 2000

/*
 * The next periodic scan waits at least this many times the duration of the last one: scans take at
 * most 1/50 of the time ...
 */
#define SCAN_SHARE 50

/* ... and a requested scan waits this many times that duration: at most 1/5 of the time. */
#define WANTED_SHARE 4

/* Request a scan: rows wait that no hint has named. */
void
scan_want(void)
{
	MyScheduler->scan.wanted = true;
}

/* Begin the next scan at this time at the latest, but not before a requested scan may begin. */
void
scan_no_later(MonoTime moment)
{
	TableScan *scan = &MyScheduler->scan;

	scan->next = clock_min(scan->next, clock_max(moment, scan->not_before));
}

/* Set the position of the scan; NULL: none. */
static void
set_position(const TaskGroup *after)
{
	TableScan *scan = &MyScheduler->scan;
	TaskGroup old = scan->after;

	memset(&scan->after, 0, sizeof(TaskGroup));
	if (old.queue)
		pfree((char *) old.queue);
	if (old.role)
		pfree((char *) old.role);
	if (after == NULL)
		return;
	scan->after.queue = MemoryContextStrdup(TopMemoryContext, after->queue);
	scan->after.role = MemoryContextStrdup(TopMemoryContext, after->role);
	scan->after.max = after->max;
	scan->after.priority = after->priority;
	scan->after.role_id = after->role_id;
}

/* The groups were forgotten: a complete scan is due now. */
void
scan_forget(void)
{
	TableScan *scan = &MyScheduler->scan;

	scan->going = false;
	scan->wanted = true;
	scan->not_before = CLOCK_LONG_AGO;
}

/* Is a scan between two of its slices? */
bool
scan_going(void)
{
	return MyScheduler->scan.going;
}

/* Return when the next slice is due. */
MonoTime
scan_until(void)
{
	TableScan *scan = &MyScheduler->scan;

	if (scan->going)
		return CLOCK_LONG_AGO;
	return scan->wanted ? clock_min(scan->next, scan->not_before) : scan->next;
}

bool
scan_due(MonoTime now)
{
	return !clock_is_before(now, scan_until());
}

/*
 * Process the first row of a group.  The trigger limits the length of a queue's name; a row that
 * was written without the trigger and exceeds it is not remembered, but fails.
 */
static void
remember_head(const GroupHead *head)
{
	if (!head->too_long)
		groups_scan_found(&head->group, head->place);
	else
		(void) unstarted_fail(
			head->place, head->group.role,
			"the name of the queue is longer than " CppAsString2(TASK_QUEUE_MAX) " bytes", NULL,
			ERRCODE_STRING_DATA_RIGHT_TRUNCATION, false);
}

/* The scan is complete. */
static void
end_scan(MonoTime now, int period_ms)
{
	TableScan *scan = &MyScheduler->scan;

	groups_scan_end(now);
	scan->going = false;
	set_position(NULL);
	scan->next.us = now.us + Max((int64) period_ms * 1000, scan->cost * SCAN_SHARE);
	scan->not_before.us = now.us + scan->cost * WANTED_SHARE;
}

/*
 * Read the next slice, or the first one of the next scan.  A scan that is requested while one is
 * running begins after it.
 */
void
scan_slice(const TaskTable *table, int period_ms)
{
	TableScan *scan = &MyScheduler->scan;
	static const TaskGroup before_all = {.queue = "",
										 .max = PG_INT32_MIN,
										 .priority = PG_INT32_MIN,
										 .role = "",
										 .role_id = PG_INT64_MIN};
	MonoTime begun = clock_mono();
	GroupHead *heads;
	int count;
	int i;

	if (!scan->going)
	{
		groups_scan_begin();
		set_position(&before_all);
		scan->cost = 0;
		scan->wanted = false;
		scan->going = true;
	}
	count = rows_scan(table, &scan->after, SLICE_GROUPS, &heads);
	for (i = 0; i < count; i++)
		remember_head(&heads[i]);
	binding_add_unbound(heads, count);
	scan->cost += clock_mono().us - begun.us;
	if (count < SLICE_GROUPS)
		end_scan(clock_mono(), period_ms);
	else
		set_position(&heads[count - 1].group);
}
