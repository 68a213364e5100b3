/*
 * groups_table.h
 *		For the unit tests of the scheduler's groups: src/scheduler/groups.c itself, and a table
 *		in memory from which its groups are read.
 *
 * Macros replace what groups.c calls to allocate memory and to create its heap, so that allocations
 * can fail and comparisons are counted.
 */
#ifndef GROUPS_TABLE_H
#define GROUPS_TABLE_H

#include "postgres.h"

#include "common/hashfn.h"
#include "lib/binaryheap.h"
#include "lib/ilist.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Countdown to an allocation that fails; 0: none fails. */
static int failing_allocation = 0;

static int comparisons = 0;

static void
allocate(void)
{
	if (failing_allocation > 0 && --failing_allocation == 0)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
}

static int compare_groups(Datum a, Datum b, void *arg);

static int
compare_and_count(Datum a, Datum b, void *arg)
{
	comparisons++;
	return compare_groups(a, b, arg);
}

#define MemoryContextAlloc(context, size) (allocate(), MemoryContextAlloc(context, size))
#define MemoryContextAllocZero(context, size) (allocate(), MemoryContextAllocZero(context, size))
#define MemoryContextAllocExtended(context, size, flags) \
	(allocate(), MemoryContextAllocExtended(context, size, flags))
#define MemoryContextStrdup(context, string) (allocate(), MemoryContextStrdup(context, string))
#define binaryheap_allocate(capacity, compare, arg) \
	(allocate(), binaryheap_allocate(capacity, compare_and_count, arg))

#include "scheduler/groups.c"
#include "shared/clock.c"

/* Fail the check unless this holds. */
#define CHECK(condition)                                              \
	do                                                                \
	{                                                                 \
		if (!(condition))                                             \
			return psprintf("line %d: not %s", __LINE__, #condition); \
	} while (0)

#define SECOND INT64CONST(1000000)
#define HOUR (3600 * SECOND)

/* The moment at which the checks begin. */
static const ClockNow start = {{1000000 * SECOND}, 800000000 * SECOND};

/* A row of the table that the checks imagine. */
typedef struct Row
{
	int group; /* index into "keys" */
	TaskPlace place;
	bool gone; /* not in the table any more */
} Row;

#define GROUPS_MAX 64
#define ROWS_MAX 4096

/* That table. */
static struct
{
	TaskGroup keys[GROUPS_MAX];
	int ngroups;
	Row rows[ROWS_MAX];
	int nrows;
	int read_limit; /* rows that one statement reads */
	int reads;
} table;

static ClockNow
after(ClockNow now, int64 us)
{
	return (ClockNow){{now.mono.us + us}, now.wall + us};
}

static TaskPlace
place_of(TimestampTz dt, int64 id)
{
	return (TaskPlace){dt, id};
}

static int
add_key(const char *queue, int32 max, int32 priority, const char *role)
{
	table.keys[table.ngroups] = (TaskGroup){queue, max, priority, role, 1};
	return table.ngroups++;
}

static void
add_row(int group, TimestampTz dt, int64 id)
{
	table.rows[table.nrows++] = (Row){group, {dt, id}, false};
}

/* As a commit does that inserts a row. */
static void
insert_with_hint(int group, TimestampTz dt, int64 id)
{
	add_row(group, dt, id);
	groups_hint(&table.keys[group], place_of(dt, id));
}

/* Return the first row of a group behind a position; NULL if there is none. */
static Row *
first_behind(int group, TaskPlace position)
{
	Row *first = NULL;
	int i;

	for (i = 0; i < table.nrows; i++)
	{
		Row *row = &table.rows[i];

		if (row->group == group && !row->gone && compare_places(&row->place, &position) > 0 &&
			(first == NULL || compare_places(&row->place, &first->place) < 0))
			first = row;
	}
	return first;
}

static int
find_key(const QueueGroup *group)
{
	int i;

	for (i = 0; i < table.ngroups; i++)
		if (task_same_group(&table.keys[i], &group->key))
			return i;
	elog(ERROR, "a group that was never added");
}

/* As rows_peek does. */
static void
read_group(QueueGroup *group)
{
	TaskPlace places[ROWS_MAX];
	TaskPlace position = group->read_position;
	int count = 0;
	Row *row;

	while (count < table.read_limit && (row = first_behind(find_key(group), position)) != NULL)
		position = places[count++] = row->place;
	groups_read(group, places, count, table.read_limit);
	table.reads++;
}

/* As a scan does. */
static void
scan_groups(ClockNow now)
{
	int i;

	groups_scan_begin();
	for (i = 0; i < table.ngroups; i++)
	{
		Row *row = first_behind(i, place_of(PG_INT64_MIN, PG_INT64_MIN));

		if (row)
			groups_scan_found(&table.keys[i], row->place);
	}
	groups_scan_end(now.mono);
}

static void
begin_round(ClockNow now)
{
	QueueGroup *group;

	while ((group = groups_unread(now)) != NULL)
		read_group(group);
	groups_order(now);
}

/* Choose the next task of a round; false if there is none. */
static bool
choose_next(ClockNow now, TaskPlace *place, QueueState **queue)
{
	QueueGroup *group = groups_next(now);

	if (group == NULL)
		return false;
	*queue = group->queue;
	groups_task_started(group->queue);
	*place = groups_choose_first(now);
	return true;
}

/* Choose the next task, in a round of its own, and remove its row; 0 if there is none. */
static int64
start_next(ClockNow now, QueueState **queue)
{
	TaskPlace place;
	QueueState *ignored;
	int i;

	begin_round(now);
	if (!choose_next(now, &place, queue ? queue : &ignored))
		return 0;
	for (i = 0; i < table.nrows; i++)
		if (table.rows[i].place.id == place.id)
			table.rows[i].gone = true;
	return place.id;
}

#endif /* GROUPS_TABLE_H */
