/*
 * order_key.c
 *		The position of a group in the order.
 *
 * The order is: larger max first, lower priority, dt, id.  In place of dt stands the time of the
 * last start of the queue, if that takes turns and the time is later: so the queue that was served
 * least recently is the next.  With aging, priority and dt are one sum, which does not change while
 * a task waits: that is why it can be kept in heaps.
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
 * Return the position of a group in the order.  With aging, the turn of the queue does not count
 * for a group that has to be read: what is behind it in its lane may have a better priority, and is
 * the first if it turns out that this one is later.
 */
OrderKey
order_key(const QueueGroup *group)
{
	bool turns = aging_of_priority == 0 || group_knows_row(group);

	return order_key_at(&group->key, turns ? group->queue->turn : DT_NOBEGIN,
						group_next_place(group));
}

/* Compare two groups: positive if the first task of "a" starts first. */
int
order_compare_groups(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key(a);
	OrderKey right = order_key(b);

	return order_compare_keys(&left, &right);
}

/*
 * The same for two groups of one queue: its turns do not count, so this order stays as it is when
 * the queue has had one.  Only with aging is it another one than the above.
 */
int
order_compare_in_queue(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key_at(&a->key, DT_NOBEGIN, group_next_place(a));
	OrderKey right = order_key_at(&b->key, DT_NOBEGIN, group_next_place(b));

	Assert(a->queue == b->queue);
	return order_compare_keys(&left, &right);
}
