/*
 * order.c
 *		The order in which the groups start tasks.
 *
 * The groups that have a due row are in lanes (lanes.c).  The other groups wait in heaps by their
 * times.  The order outlives the turn of the scheduler, so a round costs what it looks at.
 *
 * A group whose next row is not known has the position up to which it was read: it has to be read
 * when it is the first.
 *
 * The heaps are pairing heaps: nothing is allocated when a group moves, so nothing can fail.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  It does not change
 * what is known of the rows of a group.
 */
#include "postgres.h"

#include "scheduler/order.h"

/* The wall clock was set if it differs by this (us) from what the monotonic clock makes of it. */
#define CLOCK_STEP_US 100000

/* Static, because the order is remembered from iteration to iteration. */
static struct
{
	pairingheap future;		   /* groups whose next row is not due, by its dt */
	dlist_head skipped_groups; /* until the next round */
	ClockNow now;			   /* of this iteration, or of its round */
	int64 offset;			   /* of the wall clock when queues were opened for it (us) */
} order;

/* Positive if the next row of "a" is due first. */
static int
compare_future(const pairingheap_node *a, const pairingheap_node *b,
			   void *arg pg_attribute_unused())
{
	TimestampTz left = group_next_place(pairingheap_const_container(QueueGroup, order, a)).dt;
	TimestampTz right = group_next_place(pairingheap_const_container(QueueGroup, order, b)).dt;

	return left < right ? 1 : (left > right ? -1 : 0);
}

void
order_create(MemoryContext context, int64 aging)
{
	memset(&order, 0, sizeof(order));
	lanes_create(context, aging);
	order.future.ph_compare = compare_future;
	dlist_init(&order.skipped_groups);
	order.now.wall = PG_INT64_MIN;
}

/* Put a group where it belongs, by what is known of its rows and by the time of the last round. */
void
order_attach(QueueGroup *group)
{
	Assert(group->state == GROUP_AT_REST);
	if (!group_knows_row(group) && group->exhausted)
		return;
	if (group_next_place(group).dt > order.now.wall)
	{
		group->state = GROUP_FUTURE;
		pairingheap_add(&order.future, &group->order);
	}
	else
	{
		group->state = GROUP_READY;
		lane_add_group(group);
	}
}

/* Remove a group from where it is, before what is known of its rows changes. */
void
order_detach(QueueGroup *group)
{
	switch (group->state)
	{
		case GROUP_READY:
			lane_remove_group(group);
			break;
		case GROUP_FUTURE:
			pairingheap_remove(&order.future, &group->order);
			break;
		case GROUP_SKIPPED:
			dlist_delete(&group->skipped);
			break;
		case GROUP_AT_REST:
			break;
	}
	group->state = GROUP_AT_REST;
}

/* Skip a group until the next round. */
void
order_skip(QueueGroup *group)
{
	order_detach(group);
	group->state = GROUP_SKIPPED;
	dlist_push_tail(&order.skipped_groups, &group->skipped);
}

/* Bring back what the last round has skipped. */
static void
end_skipping(void)
{
	lanes_end_skipping();
	while (!dlist_is_empty(&order.skipped_groups))
	{
		QueueGroup *group = dlist_head_element(QueueGroup, skipped, &order.skipped_groups);

		order_detach(group);
		order_attach(group);
	}
}

/* The wall clock has gone back: set the turn of a queue, and move its groups that are not due. */
static void
follow_back(QueueState *queue, TimestampTz turn)
{
	dlist_iter iter;

	lanes_set_turn(queue, turn);
	dlist_foreach(iter, &queue->lanes)
	{
		GroupLane *lane = dlist_container(GroupLane, queue_node, iter.cur);
		QueueGroup *group;

		while (!pairingheap_is_empty(&lane->groups) &&
			   group_next_place(group = order_first_group(lane)).dt > order.now.wall)
		{
			order_detach(group);
			order_attach(group);
		}
	}
}

/*
 * Queues may be closed until a time of the wall clock, and turns are such times.  If the clock was
 * set, or has drifted, open all of them.  If it was set back, the turns since it was ahead go back
 * as well: otherwise the queues that were served would wait for the clock.
 */
static void
follow_wall_clock(ClockNow now)
{
	int64 offset = now.wall - now.mono.us;
	int64 back = order.offset - offset;

	if (-back <= CLOCK_STEP_US && back <= CLOCK_STEP_US)
		return;
	order.offset = offset;
	lanes_open_all();
	if (back > 0)
		queues_turn_back(now.wall, back, follow_back);
}

/*
 * A round begins: bring back what the last one has skipped, and all whose time has come.  Bounded
 * by what the last round has looked at, and by the groups that have become due since.
 */
void
order_begin_round(ClockNow now)
{
	QueueGroup *group;

	order.now = now;
	end_skipping();
	follow_wall_clock(now);
	while (!pairingheap_is_empty(&order.future))
	{
		group = pairingheap_container(QueueGroup, order, pairingheap_first(&order.future));
		if (group_next_place(group).dt > now.wall)
			break;
		order_detach(group);
		order_attach(group);
	}
	lanes_open_due(now.mono);
}

/* An iteration begins: groups are put where they belong by this time. */
void
order_set_now(ClockNow now)
{
	order.now = now;
}

/* Return that time. */
ClockNow
order_now(void)
{
	return order.now;
}

/*
 * Return the first group of a role, which has a lane that is ready, if it may start a task; or a
 * group that has to be read before that is known.  Otherwise move it, or its lane, to where it
 * belongs, and return NULL.
 */
static QueueGroup *
try_first_of_role(GroupRole *role, ClockNow now)
{
	GroupLane *lane = order_first_lane(role);
	QueueGroup *group = order_first_group(lane);
	MonoTime until = queue_blocked_until(lane->queue, &group->key, now);
	GroupLane *first;

	Assert(group->state == GROUP_READY && lane->state == LANE_READY);
	if (clock_is_before(now.mono, until))
	{
		lane_park(lane, until);
		return NULL;
	}
	first = lane_first_of_queue(lane);
	group = order_first_group(first);
	if (group_next_place(group).dt > now.wall)
	{
		/* the wall clock has gone back since the group was put there */
		order_detach(group);
		order_attach(group);
		return NULL;
	}
	return first == lane ? group : NULL;
}

/*
 * Return the first of all groups whose next row is due, or has to be read, and whose queue may
 * start one more; NULL if there is none.  "now" is that of the round.
 */
QueueGroup *
order_first(ClockNow now)
{
	QueueGroup *group = NULL;
	GroupRole *role;

	Assert(order.now.wall == now.wall);
	while (group == NULL && (role = lanes_first_role()) != NULL)
		group = try_first_of_role(role, now);
	return group;
}

/* Return the first group of this role; NULL if there is none. */
QueueGroup *
order_first_of_role(GroupRole *role, ClockNow now)
{
	QueueGroup *group = NULL;

	Assert(order.now.wall == now.wall);
	while (group == NULL && !role->skipped && !pairingheap_is_empty(&role->lanes))
		group = try_first_of_role(role, now);
	return group;
}

/*
 * Return the moment at which the next group comes back or queue opens by its time, assuming that
 * the wall clock is not set until then.  CLOCK_NEVER if there is none.
 */
MonoTime
order_due_at(ClockNow now)
{
	MonoTime until = lanes_closed_until();

	if (!pairingheap_is_empty(&order.future))
		until = clock_min(
			until, clock_of_wall(now, group_next_place(
										  pairingheap_container(QueueGroup, order,
																pairingheap_first(&order.future)))
										  .dt));
	return until;
}
