/*
 * groups_table.h
 *		For the unit tests of the scheduler's groups: src/scheduler/groups.c, order.c,
 *		queues.c and their like themselves, and a table in memory from which the groups are read.
 *
 * Macros replace what these files call to allocate memory and to move groups, so that allocations
 * can fail and moves are counted.
 */
#ifndef GROUPS_TABLE_H
#define GROUPS_TABLE_H

#include "postgres.h"

#include "common/hashfn.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Countdown to an allocation that fails; 0: none fails. */
static int failing_allocation = 0;

/* Insertions into heaps and removals from them, and comparisons of positions. */
static int moves = 0;
static int64 comparisons = 0;

static void
allocate(void)
{
	if (failing_allocation > 0 && --failing_allocation == 0)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
}

#define MemoryContextAlloc(context, size) (allocate(), MemoryContextAlloc(context, size))
#define MemoryContextAllocZero(context, size) (allocate(), MemoryContextAllocZero(context, size))
#define MemoryContextAllocExtended(context, size, flags) \
	(allocate(), MemoryContextAllocExtended(context, size, flags))
#define MemoryContextStrdup(context, string) (allocate(), MemoryContextStrdup(context, string))
#define pairingheap_add(heap, node) (moves++, pairingheap_add(heap, node))
#define pairingheap_remove(heap, node) (moves++, pairingheap_remove(heap, node))

#include "scheduler/order.h"
#define order_compare_keys(a, b) (comparisons++, order_compare_keys(a, b))

#include "task/queue_rules.c"
#include "scheduler/rates.c"
#include "scheduler/queues.c"
#include "scheduler/order.c"
#include "scheduler/groups.c"

/* Fail the check unless this holds. */
#define CHECK(condition)                                                      \
	do                                                                        \
	{                                                                         \
		if (!(condition))                                                     \
			return psprintf("%s:%d: not %s", __FILE__, __LINE__, #condition); \
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

#define GROUPS_MAX 128
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
	int list_limit; /* rows of a group that a scan lists, up to 4 */
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

/* As a commit does that inserts this row alone. */
static void
insert_singly(int group, TimestampTz dt, int64 id)
{
	add_row(group, dt, id);
	groups_hint(&table.keys[group], place_of(dt, id), false);
}

/* As a commit does that inserts a row, and perhaps others behind it. */
static void
insert_with_hint(int group, TimestampTz dt, int64 id)
{
	add_row(group, dt, id);
	groups_hint(&table.keys[group], place_of(dt, id), true);
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

		if (row->group == group && !row->gone && order_compare_places(&row->place, &position) > 0 &&
			(first == NULL || order_compare_places(&row->place, &first->place) < 0))
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

/* As rows_peek does: read up to "limit" rows of a group behind a position. */
static int
read_rows(int group, TaskPlace position, TaskPlace *places, int limit)
{
	int count = 0;
	Row *row;

	while (count < limit && (row = first_behind(group, position)) != NULL)
		position = places[count++] = row->place;
	return count;
}

/* Read the next rows of the first groups. */
static void
read_groups(ClockNow now)
{
	TaskPlace places[ROWS_MAX];
	QueueGroup *batch[4];
	int count = groups_read_ahead(batch, lengthof(batch), now);
	int i;

	for (i = 0; i < count; i++)
		groups_read(batch[i], places,
					read_rows(find_key(batch[i]), batch[i]->read_position, places,
							  table.read_limit),
					table.read_limit);
	table.reads += count;
}

/* As the end of a scan does. */
static void
end_scan(ClockNow now)
{
	while (!groups_forget_unseen(now.mono, 2))
		;
}

/* As a scan does, which lists up to four rows of each group. */
static void
scan_groups(ClockNow now)
{
	int i;

	(void) groups_advance(now);
	groups_scan_begin();
	for (i = 0; i < table.ngroups; i++)
	{
		TaskPlace places[5];
		int count = read_rows(i, place_of(PG_INT64_MIN, PG_INT64_MIN), places, 5);

		if (count > 0)
			groups_scan_found(&table.keys[i], places, Min(count, table.list_limit),
							  count <= table.list_limit);
	}
	end_scan(now);
}

/* Return the next group whose first row is known; NULL if there is none. */
static QueueGroup *
next_known(ClockNow now)
{
	QueueGroup *group;

	while ((group = order_next(now)) != NULL && !group_knows_row(group))
		read_groups(now);
	return group;
}

static void
begin_round(ClockNow now)
{
	(void) groups_advance(now);
}

/* Choose the next task of a round; false if there is none. */
static bool
choose_next(ClockNow now, TaskPlace *place, QueueState **queue)
{
	QueueGroup *group = next_known(now);

	if (group == NULL)
		return false;
	*queue = group->queue;
	queue_count(group->queue, 0, 1);
	*place = groups_take(group, now);
	(void) rates_add(&(*queue)->claims, now.mono);
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

/* Nobody has inserted other rows: no group has to be read after its known rows. */
static void
end_all_groups(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &groups.all)
		dlist_container(QueueGroup, node, iter.cur)->exhausted = true;
}

#endif /* GROUPS_TABLE_H */
