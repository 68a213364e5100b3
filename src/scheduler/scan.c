/*
 * scan.c
 *		The scan that finds the first waiting row of every group.
 *
 * It finds rows that no hint has named.  It runs every period, and when it is requested.  There may
 * be very many groups: a scan is done in slices, so that tasks are claimed and hints are taken in
 * between.  It reads all rows of groups that have a few, and jumps from group to group where they
 * have many.  It takes a small part of the time, even if it is requested all the time.
 *
 * If there are more groups than are remembered, it pauses when it has replaced half of them, and
 * then goes on from there: each gets its turn.
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
#include "scheduler/unstarted.h"
#include "task/rows.h"

/* A slice ends after the statement that exceeds this time (us). */
#define SLICE_US 2000

/*
 * Rows that one statement reads.  If they belong to fewer groups than a LIST_SHARE of them, the
 * next statement jumps from group to group.
 */
#define LIST_ROWS 256
#define LIST_SHARE 16
#define JUMP_GROUPS 64

StaticAssertDecl(JUMP_GROUPS <= STRICT_HEADS_MAX && LIST_ROWS <= STRICT_HEADS_MAX,
				 "a statement of the scan reads too many groups at once");

/* Rows of a group that are remembered when all were listed. */
#define LIST_PLACES 8

/* Groups and queues that are forgotten at once. */
#define FORGET_MAX 1000

/* Groups that were forgotten for others when the scan pauses. */
#define WINDOW_GROUPS (GROUPS_LIMIT / 2)

/*
 * The next scan waits for this many times the duration of the last one: scans take at most 1/50 of
 * the time; at most 1/5 if they are requested, or if groups were forgotten for others.
 */
#define SCAN_SHARE 50
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

	set_position(NULL);
	scan->going = scan->tidying = false;
	scan->wanted = true;
	scan->not_before = CLOCK_LONG_AGO;
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
	groups_scan_found(&rows->group, places, i, complete && i == count);
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
	int count = rows_scan(table, &scan->after, JUMP_GROUPS, &heads);
	int i;

	for (i = 0; i < count; i++)
		remember_rows(&heads[i], 1, false);
	binding_add_unbound(heads, count);
	note_waits(table, heads, count, count == JUMP_GROUPS);
	scan->jumping = false;
	return count == JUMP_GROUPS ? &heads[count - 1].group : NULL;
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
	return more ? &rows[count - 1].group : NULL;
}

/* Count the groups that were forgotten for others since the scan began, or went on. */
static uint64
count_displaced(void)
{
	return groups_displaced() - MyScheduler->scan.displaced;
}

/* The scan is complete, or pauses. */
static void
pause_scan(MonoTime now, int period_ms)
{
	TableScan *scan = &MyScheduler->scan;
	int64 pause = Max(scan->cost * SCAN_SHARE, (int64) period_ms * 1000);

	scan->not_before.us = now.us + scan->cost * WANTED_SHARE;
	scan->next.us = now.us + pause;
	if (count_displaced() > 0)
		scan->next = scan->not_before;
	scan->going = scan->tidying = false;
}

/* A scan begins, or goes on after a pause. */
static void
begin_scan(void)
{
	TableScan *scan = &MyScheduler->scan;
	static const TaskGroup before_all = {.queue = "",
										 .max = PG_INT32_MIN,
										 .priority = PG_INT32_MIN,
										 .role = "",
										 .role_id = PG_INT64_MIN};

	scan->cost = 0;
	scan->displaced = groups_displaced();
	scan->going = true;
	if (scan->after.queue)
		return;
	groups_scan_begin();
	set_position(&before_all);
	scan->oldest = DT_NOEND;
	scan->wanted = scan->jumping = false;
}

/*
 * Read the next groups, or forget some of those that were not found.  Returns true when the scan is
 * complete, or is to pause.
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
	if (last)
		return count_displaced() >= WINDOW_GROUPS;
	groups_scan_end();
	figures_set(FIGURE_OLDEST, scan->oldest);
	scan->tidying = true;
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
	bool pauses;

	if (!scan->going)
		begin_scan();
	do
		pauses = advance_scan(table);
	while (!pauses && clock_mono().us - begun.us < SLICE_US);
	scan->cost += clock_mono().us - begun.us;
	if (pauses)
		pause_scan(clock_mono(), period_ms);
}
