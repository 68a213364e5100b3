/*
 * scan.c
 *		The scan that finds the first waiting row of every group.
 *
 * It finds what no hint told of, every period and when somebody asks for it.  There may be
 * very many groups: it goes a slice at a time, so that claims and hints have their turn in
 * between, and takes a small part of the time, however often it is asked for.
 *
 * Within a transaction of the caller's; this room claims nothing.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/binding.h"
#include "scheduler/groups.h"
#include "scheduler/scan.h"
#include "scheduler/unstarted.h"
#include "task/rows.h"

/* So many groups are a slice. */
#define SLICE_GROUPS 2000

/* A scan that takes long is spaced out: it takes at most 1/50 of the time ... */
#define SCAN_SHARE 50

/* ... and 1/5 when it is asked for again and again. */
#define WANTED_SHARE 4

static struct
{
	bool wanted;
	bool going;
	TaskGroup after;	 /* while it is going: how far it has got; strings of its own */
	int64 cost;			 /* microseconds that its slices took so far */
	MonoTime next;		 /* of its own accord */
	MonoTime not_before; /* when it is asked for */
} scan;

/* Rows wait that no hint tells of. */
void
scan_want(void)
{
	scan.wanted = true;
}

/* The next scan begins at this time at the latest, if that leaves enough to others. */
void
scan_no_later(MonoTime moment)
{
	scan.next = clock_min(scan.next, clock_max(moment, scan.not_before));
}

/* The slices so far have got to here; NULL: nowhere. */
static void
set_position(const TaskGroup *after)
{
	TaskGroup old = scan.after;

	memset(&scan.after, 0, sizeof(TaskGroup));
	if (old.queue)
		pfree((char *) old.queue);
	if (old.role)
		pfree((char *) old.role);
	if (after == NULL)
		return;
	scan.after.queue = MemoryContextStrdup(TopMemoryContext, after->queue);
	scan.after.role = MemoryContextStrdup(TopMemoryContext, after->role);
	scan.after.max = after->max;
	scan.after.priority = after->priority;
	scan.after.role_id = after->role_id;
}

/* Nothing is known of the groups any more: one is due now, from the beginning. */
void
scan_forget(void)
{
	scan.going = false;
	scan.wanted = true;
	scan.not_before = CLOCK_LONG_AGO;
}

/* Is it under way? */
bool
scan_going(void)
{
	return scan.going;
}

/* When the next slice is due. */
MonoTime
scan_until(void)
{
	if (scan.going)
		return CLOCK_LONG_AGO;
	return scan.wanted ? clock_min(scan.next, scan.not_before) : scan.next;
}

bool
scan_due(MonoTime now)
{
	return !clock_is_before(now, scan_until());
}

/*
 * The first row of a group.  The trigger bounds the name of a queue; a row that came past it
 * is not remembered, and fails.
 */
static void
take_head(const GroupHead *head)
{
	if (!head->too_long)
		groups_scan_found(&head->group, head->place);
	else
		(void) unstarted_refuse(
			head->place, head->group.role,
			"the name of the queue is longer than " CppAsString2(TASK_QUEUE_MAX) " bytes",
			ERRCODE_STRING_DATA_RIGHT_TRUNCATION, false);
}

/* All groups were found. */
static void
finish(MonoTime now, int period_ms)
{
	groups_scan_end(now);
	scan.going = false;
	set_position(NULL);
	scan.next.us = now.us + Max((int64) period_ms * 1000, scan.cost * SCAN_SHARE);
	scan.not_before.us = now.us + scan.cost * WANTED_SHARE;
}

/*
 * The next slice, or the first one of the next scan.  What is asked for while it is under
 * way is for the scan after it.
 */
void
scan_slice(const TaskTable *table, int period_ms)
{
	static const TaskGroup before_all = {.queue = "",
										 .max = PG_INT32_MIN,
										 .priority = PG_INT32_MIN,
										 .role = "",
										 .role_id = PG_INT64_MIN};
	MonoTime begun = clock_mono();
	GroupHead *heads;
	int count;
	int i;

	if (!scan.going)
	{
		groups_scan_begin();
		set_position(&before_all);
		scan.cost = 0;
		scan.wanted = false;
		scan.going = true;
	}
	count = rows_scan(table, &scan.after, SLICE_GROUPS, &heads);
	for (i = 0; i < count; i++)
		take_head(&heads[i]);
	binding_look(heads, count);
	scan.cost += clock_mono().us - begun.us;
	if (count < SLICE_GROUPS)
		finish(clock_mono(), period_ms);
	else
		set_position(&heads[count - 1].group);
}
