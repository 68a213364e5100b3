/*
 * scan.c
 *		The scan that finds the first waiting row of every group.
 *
 * It finds rows that no hint has named.  It runs every period, and when it is requested.  There may
 * be very many groups: a scan is done in slices, so that tasks are claimed and hints are taken in
 * between.  It reads all rows of groups that have a few, and jumps from group to group where they
 * have many.  It takes a small part of the time, even if it is requested all the time.
 *
 * The caller opens the transaction.  This file claims nothing.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/binding.h"
#include "scheduler/figures.h"
#include "scheduler/groups.h"
#include "scheduler/scan.h"
#include "scheduler/scheduler.h"
#include "scheduler/strict.h"
#include "scheduler/surplus.h"
#include "scheduler/unstarted.h"
#include "task/rows.h"

/* A slice ends after the statement that exceeds this time (us). */
#define SLICE_US 2000

/*
 * Rows that one statement reads.  If they belong to fewer groups than a LIST_SHARE of them, the
 * next statement jumps from group to group: first over JUMP_MIN groups, then over twice as many
 * each time that rows were tried again, up to JUMP_MAX.
 */
#define LIST_ROWS 256
#define LIST_SHARE 16
#define JUMP_MIN 32
#define JUMP_MAX 256

StaticAssertDecl(JUMP_MAX <= STRICT_HEADS_MAX && LIST_ROWS <= STRICT_HEADS_MAX,
				 "a statement of the scan reads too many groups at once");

/* Rows of a group that are remembered when all were listed. */
#define LIST_PLACES 8

/* Groups and queues that are forgotten at once. */
#define FORGET_MAX 1000

/*
 * The next periodic scan waits at least this many times the duration of the last one: scans take at
 * most 1/50 of the time ...
 */
#define SCAN_SHARE 50

/*
 * ... but 1/500 if the last one has found many groups and no news: nothing that hints had not told.
 * That makes the next one wait for a minute at most (us).  A few rows are no sign that hints are
 * missing: their commits may have been seen before their hints.
 */
#define QUIET_SHARE 500
#define QUIET_MAX_US 60000000
#define QUIET_GROUPS 1000
#define NEWS_MIN 16

/* A requested scan waits this many times that duration: at most 1/5 of the time. */
#define WANTED_SHARE 4

/*
 * A scan for groups that were forgotten waits this many times that duration: there is no other way
 * to go on.
 */
#define FORGOTTEN_SHARE 1

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
	scan->not_before = scan->not_again = CLOCK_LONG_AGO;
}

/* Is a scan between two of its slices? */
bool
scan_going(void)
{
	return MyScheduler->scan.going;
}

/* Was a scan requested that has not begun? */
bool
scan_is_wanted(void)
{
	return MyScheduler->scan.wanted;
}

/* Return when the next slice is due. */
MonoTime
scan_until(void)
{
	TableScan *scan = &MyScheduler->scan;

	MonoTime due = scan->next;
	MonoTime again;

	if (scan->going)
		return CLOCK_LONG_AGO;
	if (scan->wanted)
		due = clock_min(due, scan->not_before);
	again = surplus_scan_at(clock_now());
	again.us -= scan->cost; /* it is to be complete by then */
	return clock_min(due, clock_max(again, scan->not_again));
}

bool
scan_due(MonoTime now)
{
	return !clock_is_before(now, scan_until());
}

/*
 * Process the first rows of a group, in order; "complete": there are no others.  The trigger limits
 * the length of a queue's name; a row that was written without the trigger and exceeds it is not
 * remembered, but fails.
 */
static void
remember_rows(const GroupHead *rows, int count, bool complete)
{
	TableScan *scan = &MyScheduler->scan;
	TaskPlace places[LIST_PLACES];
	int i;

	if (rows->too_long)
	{
		(void) unstarted_fail(
			rows->place, rows->group.role,
			"the name of the queue is longer than " CppAsString2(TASK_QUEUE_MAX) " bytes", NULL,
			ERRCODE_STRING_DATA_RIGHT_TRUNCATION, false);
		return;
	}
	/* what never starts does not wait */
	if (rows->group.max != 0)
		scan->oldest = Min(scan->oldest, rows->place.dt);
	for (i = 0; i < Min(count, LIST_PLACES); i++)
		places[i] = rows[i].place;
	scan->ngroups++;
	scan->news += groups_scan_found(&rows->group, places, i, complete && i == count);
}

/*
 * Hold strict queues of these groups, which are in order.  If there are more, the last queue may
 * have others, and is left to the check before the claim.
 */
static void
note_waits(const TaskTable *table, const GroupHead *heads, int count, bool more)
{
	const char *last = more && count > 0 ? heads[count - 1].group.queue : NULL;

	while (last && count > 0 && strcmp(heads[count - 1].group.queue, last) == 0)
		count--;
	strict_note_waits(table, heads, count, clock_now());
}

/* Read the first rows of the next groups.  Returns the last group; NULL if there are no more. */
static const TaskGroup *
jump_over_groups(const TaskTable *table)
{
	TableScan *scan = &MyScheduler->scan;
	GroupHead *heads;
	int count = rows_scan(table, &scan->after, scan->jump, &heads);
	int i;

	for (i = 0; i < count; i++)
		remember_rows(&heads[i], 1, false);
	binding_add_unbound(heads, count);
	note_waits(table, heads, count, count == scan->jump);
	scan->jumping = false;
	return count == scan->jump ? &heads[count - 1].group : NULL;
}

/* Read all rows of the next groups.  Returns the last group; NULL if there are no more. */
static const TaskGroup *
list_groups(const TaskTable *table)
{
	TableScan *scan = &MyScheduler->scan;
	GroupHead *rows;
	int count = rows_list(table, &scan->after, LIST_ROWS, &rows);
	bool more = count == LIST_ROWS;
	int ngroups = 0;
	int first = 0;
	int i;

	for (i = 1; i <= count; i++)
	{
		if (i < count && task_same_group(&rows[first].group, &rows[i].group))
			continue;
		remember_rows(&rows[first], i - first, i < count || !more);
		rows[ngroups++] = rows[first];
		first = i;
	}
	binding_add_unbound(rows, ngroups);
	note_waits(table, rows, ngroups, more);
	scan->jumping = ngroups < LIST_ROWS / LIST_SHARE;
	scan->jump = scan->jumping ? Min(scan->jump * 2, JUMP_MAX) : JUMP_MIN / 2;
	return more ? &rows[count - 1].group : NULL;
}

/* The scan is complete. */
static void
end_scan(MonoTime now, int period_ms)
{
	TableScan *scan = &MyScheduler->scan;
	int64 pause = scan->cost * SCAN_SHARE;

	if (scan->ngroups > QUIET_GROUPS && scan->news < NEWS_MIN)
		pause = Max(pause, Min(scan->cost * QUIET_SHARE, QUIET_MAX_US));
	scan->going = scan->tidying = false;
	figures_set(FIGURE_OLDEST, scan->oldest);
	scan->next.us = now.us + Max((int64) period_ms * 1000, pause);
	scan->not_before.us = now.us + scan->cost * WANTED_SHARE;
	scan->not_again.us = now.us + scan->cost * FORGOTTEN_SHARE;
}

static void
begin_scan(void)
{
	TableScan *scan = &MyScheduler->scan;
	static const TaskGroup before_all = {.queue = "",
										 .max = PG_INT32_MIN,
										 .priority = PG_INT32_MIN,
										 .role = "",
										 .role_id = PG_INT64_MIN};

	groups_scan_begin();
	set_position(&before_all);
	scan->cost = 0;
	scan->ngroups = scan->news = 0;
	scan->oldest = DT_NOEND;
	scan->wanted = scan->tidying = scan->jumping = false;
	scan->jump = JUMP_MIN / 2;
	scan->going = true;
}

/*
 * Read the next groups, or forget some of those that were not found.  Returns true when the scan is
 * complete.
 */
static bool
advance_scan(const TaskTable *table)
{
	TableScan *scan = &MyScheduler->scan;
	const TaskGroup *last;

	if (scan->tidying)
		return groups_forget_unseen(clock_mono(), FORGET_MAX);
	last = scan->jumping ? jump_over_groups(table) : list_groups(table);
	set_position(last);
	if (last == NULL)
	{
		groups_scan_end();
		scan->tidying = true;
	}
	return false;
}

/*
 * Read the next slice, or the first one of the next scan.  A scan that is requested while one is
 * running begins after it.
 */
void
scan_slice(const TaskTable *table, int period_ms)
{
	TableScan *scan = &MyScheduler->scan;
	MonoTime begun = clock_mono();
	bool complete;

	if (!scan->going)
		begin_scan();
	do
		complete = advance_scan(table);
	while (!complete && clock_mono().us - begun.us < SLICE_US);
	scan->cost += clock_mono().us - begun.us;
	if (complete)
		end_scan(clock_mono(), period_ms);
}
