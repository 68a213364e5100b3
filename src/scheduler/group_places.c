/*
 * group_places.c
 *		The positions of a group's next rows, as far as they were read: the memory of them.
 *
 * Most groups know one row, which needs no memory of its own.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  It does not change
 * the position of a group in the order while the group is in it.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/group_places.h"
#include "scheduler/order_key.h"

/* Free the memory of the positions, except for one. */
void
group_places_free(QueueGroup *group)
{
	TaskPlace *old = group->places;

	Assert(!group_knows_row(group));
	group->places = &group->one;
	group->size = 1;
	group->next = group->count = 0;
	if (old != &group->one)
		pfree(old);
}

/* Make room for "more" rows besides those that are known.  The order does not change. */
void
group_places_reserve(MemoryContext context, QueueGroup *group, int more)
{
	int known = group->count - group->next;
	TaskPlace *old = group->places;
	TaskPlace *places;

	if (known + more <= group->size)
	{
		memmove(old, old + group->next, known * sizeof(TaskPlace));
		places = old;
	}
	else
	{
		places = MemoryContextAlloc(context, (known + more) * sizeof(TaskPlace));
		memcpy(places, old + group->next, known * sizeof(TaskPlace));
		group->size = known + more;
	}
	group->places = places;
	group->next = 0;
	group->count = known;
	if (places != old && old != &group->one)
		pfree(old);
}

/* Add rows behind those that are known; there is room for them. */
void
group_places_append(QueueGroup *group, const TaskPlace *places, int count)
{
	Assert(group->state == GROUP_AT_REST);
	Assert(group->count + count <= group->size);
	if (count == 0)
		return;
	memcpy(group->places + group->count, places, count * sizeof(TaskPlace));
	group->count += count;
	group->read_position = places[count - 1];
}

/* Add a row in its place among those that are known, unless it is; there is room for it. */
void
group_places_insert(QueueGroup *group, TaskPlace place)
{
	int i = group->count;

	Assert(group->state == GROUP_AT_REST);
	Assert(group->count < group->size);
	while (i > group->next && order_compare_places(&place, &group->places[i - 1]) < 0)
		i--;
	if (i > group->next && order_compare_places(&place, &group->places[i - 1]) == 0)
		return;
	memmove(&group->places[i + 1], &group->places[i], (group->count - i) * sizeof(TaskPlace));
	group->places[i] = place;
	group->count++;
	if (order_compare_places(&group->read_position, &group->places[group->count - 1]) < 0)
		group->read_position = group->places[group->count - 1];
}
