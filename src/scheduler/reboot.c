/*
 * reboot.c
 *		Plans the tasks that run when the server starts (cron "@reboot").
 *
 * Such a row waits with dt = infinity, and its anchor says under which start of the server it was
 * planned.  Those planned under an earlier start are due.  No index finds them, because every task
 * would pay for it: once per start of the server the scheduler goes from group to group and reads
 * the rows that are planned for infinity, which are the last ones of each group.  It does so in
 * slices, one per iteration, for at most half of the time.
 *
 * A row is planned at most once per start, whoever is interrupted: the anchor is written together
 * with dt, and the next run of the task gets the anchor of the start under which it is planned.
 * That the search is complete is remembered in shared memory, and only saves another one.
 *
 * This file writes no other row.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/reboot.h"
#include "scheduler/work.h"
#include "shared/shared.h"
#include "task/rows.h"

/* Maximum number of groups and of rows in a slice. */
#define SLICE_GROUPS 64
#define SLICE_ROWS 256

/* Rows that could not be written are tried again after this many periods, or this time (ms). */
#define RETRY_PERIODS 60
#define RETRY_MAX_MS 60000

static const TaskGroup before_all = {.queue = "",
									 .max = PG_INT32_MIN,
									 .priority = PG_INT32_MIN,
									 .role = "",
									 .role_id = PG_INT64_MIN};

/* How far the search has got: before this group, and in it up to this id. */
typedef struct RebootPosition
{
	TaskGroup group; /* strings in TopMemoryContext, or NULL: before all groups */
	int64 id;
} RebootPosition;

/* Static, because the slices of a search are in different iterations. */
static struct
{
	bool going;				 /* not all rows have been searched since the server was started */
	bool again;				 /* a row could not be written: search once more */
	RebootPosition position; /* what is committed */
	RebootPosition reached;	 /* what the slice that is being written has reached */
	int limit;				 /* rows that a slice reads at most */
	bool writing;			 /* a slice is being written: an error may interrupt it */
	MonoTime next;			 /* the next slice */
} search;

/* Set a position; group NULL: before all groups. */
static void
set_position(RebootPosition *position, const TaskGroup *group, int64 id)
{
	TaskGroup old = position->group;
	TaskGroup copy = {0};

	if (group)
	{
		copy = *group;
		copy.queue = MemoryContextStrdup(TopMemoryContext, group->queue);
		copy.role = MemoryContextStrdup(TopMemoryContext, group->role);
	}
	position->group = copy;
	position->id = id;
	if (old.queue)
	{
		pfree((char *) old.queue);
		pfree((char *) old.role);
	}
}

static const TaskGroup *
group_of(const RebootPosition *position)
{
	return position->group.queue ? &position->group : NULL;
}

/* What is reached is committed, or is to be passed over. */
static void
go_on_from_reached(void)
{
	set_position(&search.position, group_of(&search.reached), search.reached.id);
}

static void
begin_search(MonoTime next)
{
	set_position(&search.position, NULL, PG_INT64_MIN);
	search.going = true;
	search.again = false;
	search.limit = SLICE_ROWS;
	search.next = next;
}

static void
forget_table(bool another)
{
	if (!another)
		return;
	begin_search(CLOCK_LONG_AGO);
	if (shared_database_found(MyDatabaseId).rebooted == MyScheduler->table->relid)
		search.going = false;
}

static MonoTime
reboot_due(ClockNow now pg_attribute_unused())
{
	return search.going ? search.next : CLOCK_NEVER;
}

/*
 * Plan the next rows of a group that wait for a start of the server.  Returns the number of rows
 * that were read; if it is "limit", there may be more.
 */
static int
plan_group(const TaskGroup *group, int64 after, int limit, TimestampTz now)
{
	TaskPlace from = {DT_NOEND, after};
	TaskPlace *places;
	int count = rows_peek(MyScheduler->table, group, from, limit, &places);

	/* noted before a row can refuse: it is passed over when it is the only one */
	set_position(&search.reached, group, count > 0 ? places[count - 1].id : after);
	if (count > 0)
		rows_plan_reboot(MyScheduler->table, places, count, now, PgStartTime);
	return count;
}

/* Plan the rows of a slice.  Returns false if there are no more. */
static bool
plan_slice(TimestampTz now)
{
	const TaskGroup *group = group_of(&search.position);
	int left = search.limit;
	GroupHead *heads;
	int count;
	int i;

	if (group)
		left -= plan_group(group, search.position.id, left, now);
	else
		group = &before_all;
	if (left == 0)
		return true;
	count = rows_scan(MyScheduler->table, group, SLICE_GROUPS, &heads);
	for (i = 0; i < count && left > 0; i++)
		left -= plan_group(&heads[i].group, PG_INT64_MIN, left, now);
	/* of a queue whose name was cut, the same group would be found again and again */
	return left == 0 || (count == SLICE_GROUPS && !task_same_group(group, &heads[i - 1].group));
}

/* All rows have been searched. */
static void
end_search(MonoTime now)
{
	if (search.again)
	{
		int64 pause_ms = (int64) MyScheduler->settings.period * RETRY_PERIODS;

		begin_search(clock_plus_ms(now, Min(pause_ms, RETRY_MAX_MS)));
	}
	else
	{
		SharedFindings found = shared_database_found(MyDatabaseId);

		found.rebooted = MyScheduler->table->relid;
		shared_database_publish(MyDatabaseId, &found);
		search.going = false;
	}
}

/* Search one slice. */
static void
reboot_run(ClockNow now)
{
	MonoTime begun = clock_mono();
	bool more;

	/* if the transaction fails */
	search.next = clock_plus_ms(begun, MyScheduler->settings.period);
	work_begin_writing("planning the tasks that run when the server starts");
	search.writing = true;
	set_position(&search.reached, group_of(&search.position), search.position.id);
	more = plan_slice(now.wall);
	work_end();
	search.writing = false;
	go_on_from_reached();
	search.limit = Min(search.limit * 2, SLICE_ROWS);
	search.next = clock_mono();
	search.next.us += search.next.us - begun.us;
	if (!more)
		end_search(clock_mono());
}

/*
 * The transaction has failed; if it was a slice and a row is at fault, try fewer rows, and in the
 * end go on after the row that refuses to be written.  Returns true if the scheduler goes on at
 * once.
 */
static bool
reboot_failed(const BatchFailure *failure)
{
	if (!search.writing)
		return false;
	search.writing = false;
	if (!failure->row_at_fault)
		return false;
	if (search.limit == 1)
	{
		go_on_from_reached();
		search.again = true;
	}
	search.limit = Max(search.limit / 4, 1);
	search.next = clock_mono();
	return true;
}

const SchedulerJob reboot_job = {.due = reboot_due,
								 .needed = reboot_due,
								 .run = reboot_run,
								 .forget_table = forget_table,
								 .failed = reboot_failed,
								 .writes = true};
