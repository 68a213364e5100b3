/*
 * order_key.c
 *		The position of a group in the order.
 *
 * Within a queue the order is: larger max first, lower priority, dt, id.  The queues are in the
 * order of their first tasks: lower priority, dt, id.  In place of dt stands the time of the last
 * start of the queue, if that takes turns and the time is later: so the queue that was served least
 * recently is the next.  With aging, priority and dt are one sum, which does not change while a
 * task waits: that is why it can be kept in heaps.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "common/int.h"

#include "scheduler/order_key.h"

/* Time that is worth one priority (us); 0: none is.  Static, because every comparison needs it. */
static int64 aging_of_priority;

void
order_key_create(int64 aging)
{
	aging_of_priority = aging;
}

#ifdef USE_ASSERT_CHECKING
/*
 * Are these positions in ascending order, and behind the read position?  In a partitioned table two
 * rows may have the same position.
 */
bool
order_places_ascend(TaskPlace read_position, const TaskPlace *places, int count)
{
	int i;

	for (i = 1; i < count; i++)
		if (order_compare_places(&places[i - 1], &places[i]) > 0)
			return false;
	return count == 0 || order_compare_places(&read_position, &places[0]) < 0;
}
#endif

/*
 * Return the position in the order of a task at this place of a group, whose queue had its last
 * turn then (DT_NOBEGIN: it takes none).  With aging, a priority is worth so much time.
 */
OrderKey
order_key_at(const TaskGroup *key, TimestampTz turn, TaskPlace place)
{
	OrderKey position = {key->max, key->priority, Max(place.dt, turn), place};
	int64 worth;

	if (aging_of_priority == 0)
		return position;
	position.priority = 0;
	if (pg_mul_s64_overflow(aging_of_priority, key->priority, &worth) ||
		pg_add_s64_overflow(position.time, worth, &position.time))
		position.time = key->priority < 0 ? PG_INT64_MIN : PG_INT64_MAX;
	return position;
}

/*
 * Return the position of a group among those of other queues.  One that has to be read comes first:
 * if it turns out to be empty, the group behind it in its queue may have any priority.
 */
OrderKey
order_key(const QueueGroup *group)
{
	TaskPlace place = group_next_place(group);

	if (!group_knows_row(group))
		return (OrderKey){group->key.max, PG_INT32_MIN, PG_INT64_MIN, place};
	return order_key_at(&group->key, group->queue->turn, place);
}

/* Compare two groups: positive if the first task of "a" starts first. */
int
order_compare_groups(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key(a);
	OrderKey right = order_key(b);

	return order_compare_keys(&left, &right);
}

/* Compare two positions in one queue: positive if "a" comes first. */
int
order_compare_keys_in_queue(const OrderKey *a, const OrderKey *b)
{
	if (a->max != b->max)
		return a->max > b->max ? 1 : -1;
	return order_compare_keys(a, b);
}

/* The same for two groups; turns of the queue do not count. */
int
order_compare_in_queue(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key_at(&a->key, DT_NOBEGIN, group_next_place(a));
	OrderKey right = order_key_at(&b->key, DT_NOBEGIN, group_next_place(b));

	Assert(a->queue == b->queue);
	return order_compare_keys_in_queue(&left, &right);
}
