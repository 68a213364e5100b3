/*
 * order.c
 *		The order in which the groups start tasks.
 *
 * The order is: larger max first, lower priority, dt, id.  In place of dt stands the time of the
 * last start of the queue, if that takes turns and the time is later: so the queue that was served
 * least recently is the next.  With aging, priority and dt are one sum, which does not change while
 * a task waits: that is why it can be kept in heaps.  The order outlives the turn of the scheduler.
 * The groups of one queue and one role that have a due row are a lane, a heap; the lanes of a role
 * are a heap, by their first groups, and so are the roles.  So a role without a free executor is
 * set aside at once, whatever it has waiting, and a queue that may not start a task parks its
 * lanes: they come back when a task of the queue ends, or at a time.  The other groups wait in
 * heaps by their times.
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

#include "common/int.h"
#include "utils/memutils.h"

#include "scheduler/group_roles.h"
#include "scheduler/order.h"

/* The wall clock was set if it differs by this (us) from what the monotonic clock makes of it. */
#define CLOCK_STEP_US 100000

/* Static, because the order is remembered from iteration to iteration. */
static struct
{
	MemoryContext lanes;	   /* of GroupLane alone */
	pairingheap roles;		   /* those that are ready */
	pairingheap future;		   /* groups whose next row is not due, by its dt */
	pairingheap paused;		   /* groups that are paused, by the end of the pause */
	pairingheap parked;		   /* parked lanes, by the time at which they come back ... */
	int nparked;			   /* ... and their number */
	dlist_head skipped_groups; /* until the next round */
	dlist_head skipped_roles;  /* until the next round */
	ClockNow now;			   /* of this iteration, or of its round */
	int64 aging;			   /* time that is worth one priority (us); 0: none is */
	int64 offset;			   /* of the wall clock when lanes were brought back for it (us) */
} order;

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

	if (order.aging == 0)
		return position;
	position.priority = 0;
	if (pg_mul_s64_overflow(order.aging, key->priority, &worth) ||
		pg_add_s64_overflow(position.time, worth, &position.time))
		position.time = key->priority < 0 ? PG_INT64_MIN : PG_INT64_MAX;
	return position;
}

/* Return the position of a group in the order. */
OrderKey
order_key(const QueueGroup *group)
{
	return order_key_at(&group->key, group->queue->turn, group_next_place(group));
}

/* Compare two groups: positive if the first task of "a" starts first. */
static int
compare_groups(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key(a);
	OrderKey right = order_key(b);

	return order_compare_keys(&left, &right);
}

static int
compare_in_lane(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	return compare_groups(pairingheap_const_container(QueueGroup, order, a),
						  pairingheap_const_container(QueueGroup, order, b));
}

static int
compare_lanes(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return compare_groups(order_first_group(pairingheap_const_container(GroupLane, order, a)),
						  order_first_group(pairingheap_const_container(GroupLane, order, b)));
}

static int
compare_roles(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return compare_groups(
		order_first_group(order_first_lane(pairingheap_const_container(GroupRole, order, a))),
		order_first_group(order_first_lane(pairingheap_const_container(GroupRole, order, b))));
}

/* For the heaps by time: positive if the time of "a" comes first. */
static int
compare_times(int64 a, int64 b)
{
	return a < b ? 1 : (a > b ? -1 : 0);
}

static int
compare_future(const pairingheap_node *a, const pairingheap_node *b,
			   void *arg pg_attribute_unused())
{
	return compare_times(group_next_place(pairingheap_const_container(QueueGroup, order, a)).dt,
						 group_next_place(pairingheap_const_container(QueueGroup, order, b)).dt);
}

static int
compare_paused(const pairingheap_node *a, const pairingheap_node *b,
			   void *arg pg_attribute_unused())
{
	return compare_times(pairingheap_const_container(QueueGroup, order, a)->paused_until.us,
						 pairingheap_const_container(QueueGroup, order, b)->paused_until.us);
}

static int
compare_parked(const pairingheap_node *a, const pairingheap_node *b,
			   void *arg pg_attribute_unused())
{
	return compare_times(pairingheap_const_container(GroupLane, order, a)->parked_until.us,
						 pairingheap_const_container(GroupLane, order, b)->parked_until.us);
}

void
order_create(MemoryContext context, int64 aging)
{
	memset(&order, 0, sizeof(order));
	order.aging = aging;
	order.lanes =
		SlabContextCreate(context, "pg_task lanes", SLAB_DEFAULT_BLOCK_SIZE, sizeof(GroupLane));
	group_roles_create(context, compare_lanes);
	order.roles.ph_compare = compare_roles;
	order.future.ph_compare = compare_future;
	order.paused.ph_compare = compare_paused;
	order.parked.ph_compare = compare_parked;
	dlist_init(&order.skipped_groups);
	dlist_init(&order.skipped_roles);
	order.now.wall = PG_INT64_MIN;
}

/*
 * Find the lane of this queue and role among those of the queue, or of the role, whichever has
 * fewer: no more than the square root of the number of lanes.  NULL if there is none.
 */
static GroupLane *
find_lane(QueueState *queue, GroupRole *role)
{
	GroupLane *lane;
	dlist_iter iter;

	if (role->nlanes < queue->nlanes)
		dlist_foreach(iter, &role->all_lanes)
		{
			lane = dlist_container(GroupLane, role_node, iter.cur);
			if (lane->queue == queue)
				return lane;
		}
	else
		dlist_foreach(iter, &queue->lanes)
		{
			lane = dlist_container(GroupLane, queue_node, iter.cur);
			if (lane->role == role)
				return lane;
		}
	return NULL;
}

/*
 * Return the lane of this queue and role.  If memory runs out, a role without lanes may remain,
 * which its next lane uses.
 */
GroupLane *
order_find_or_add_lane(QueueState *queue, const char *name)
{
	GroupRole *role = group_role_find_or_add(name);
	GroupLane *lane = find_lane(queue, role);

	if (lane)
		return lane;
	lane = MemoryContextAllocZero(order.lanes, sizeof(GroupLane));
	lane->queue = queue;
	lane->role = role;
	lane->groups.ph_compare = compare_in_lane;
	role->nlanes++;
	queue->nlanes++;
	dlist_push_tail(&queue->lanes, &lane->queue_node);
	dlist_push_tail(&role->all_lanes, &lane->role_node);
	return lane;
}

/* Free a lane, and its role, if no group is left in it. */
void
order_release_lane(GroupLane *lane)
{
	GroupRole *role = lane->role;

	if (lane->ngroups > 0)
		return;
	Assert(lane->state == LANE_AT_REST);
	lane->queue->nlanes--;
	dlist_delete(&lane->queue_node);
	dlist_delete(&lane->role_node);
	pfree(lane);
	if (--role->nlanes == 0)
	{
		if (role->skipped)
			dlist_delete(&role->skipped_node);
		group_role_free(role);
	}
}

/* Remove a role from the heap of roles: its lanes are about to change. */
static void
unlink_role(GroupRole *role)
{
	if (role->ready)
		pairingheap_remove(&order.roles, &role->order);
	role->ready = false;
}

/* Put a role into the heap of roles, if it has a lane that is ready. */
static void
link_role(GroupRole *role)
{
	Assert(!role->ready);
	role->ready = !role->skipped && !pairingheap_is_empty(&role->lanes);
	if (role->ready)
		pairingheap_add(&order.roles, &role->order);
}

/* Remove a lane from where it is: its first group is about to change. */
static void
unlink_lane(GroupLane *lane)
{
	GroupRole *role = lane->role;

	if (lane->state == LANE_READY)
	{
		bool first = order_first_lane(role) == lane;

		if (first)
			unlink_role(role);
		pairingheap_remove(&role->lanes, &lane->order);
		if (first)
			link_role(role);
	}
	else if (lane->state == LANE_PARKED)
	{
		dlist_delete(&lane->parked_node);
		pairingheap_remove(&order.parked, &lane->order);
		order.nparked--;
	}
	lane->state = LANE_AT_REST;
}

/* Put a lane into the heap of its role, if a group of it is ready. */
static void
link_lane(GroupLane *lane)
{
	GroupRole *role = lane->role;
	bool first;

	Assert(lane->state == LANE_AT_REST);
	if (pairingheap_is_empty(&lane->groups))
		return;
	lane->state = LANE_READY;
	first = pairingheap_is_empty(&role->lanes) ||
			compare_groups(order_first_group(lane), order_first_group(order_first_lane(role))) > 0;
	if (first)
		unlink_role(role);
	pairingheap_add(&role->lanes, &lane->order);
	if (first)
		link_role(role);
}

/* The queue of this lane may not start a task before "until": park the lane. */
static void
park_lane(GroupLane *lane, MonoTime until)
{
	unlink_lane(lane);
	lane->state = LANE_PARKED;
	lane->parked_until = until;
	dlist_push_tail(&lane->queue->parked, &lane->parked_node);
	pairingheap_add(&order.parked, &lane->order);
	order.nparked++;
}

/* Count the lanes that are parked: those of queues that may start no task now. */
int
order_count_parked(void)
{
	return order.nparked;
}

/* One more task of the queue may be able to start: bring its parked lanes back, one for a role. */
void
order_unpark(QueueState *queue)
{
	while (!dlist_is_empty(&queue->parked))
	{
		GroupLane *lane = dlist_head_element(GroupLane, parked_node, &queue->parked);

		unlink_lane(lane);
		link_lane(lane);
	}
}

/* The rules of queues have changed: bring all parked lanes back, as many as there are. */
void
order_unpark_all(void)
{
	while (!pairingheap_is_empty(&order.parked))
	{
		GroupLane *lane = pairingheap_container(GroupLane, order, pairingheap_first(&order.parked));

		unlink_lane(lane);
		link_lane(lane);
	}
}

/*
 * The queue has had its turn, at this time.  Within a lane that changes nothing, since all groups
 * of a queue have the same turn, but the lanes move: as many as there are roles in the queue.
 */
void
order_set_turn(QueueState *queue, TimestampTz turn)
{
	dlist_iter iter;

	if (queue->turn == turn)
		return;
	dlist_foreach(iter, &queue->lanes)
	{
		GroupLane *lane = dlist_container(GroupLane, queue_node, iter.cur);

		if (lane->state == LANE_READY)
			unlink_lane(lane);
	}
	queue->turn = turn;
	dlist_foreach(iter, &queue->lanes)
	{
		GroupLane *lane = dlist_container(GroupLane, queue_node, iter.cur);

		if (lane->state == LANE_AT_REST)
			link_lane(lane);
	}
}

static void
add_to_lane(QueueGroup *group)
{
	GroupLane *lane = group->lane;
	bool first =
		pairingheap_is_empty(&lane->groups) || compare_groups(group, order_first_group(lane)) > 0;

	if (first)
		unlink_lane(lane);
	pairingheap_add(&lane->groups, &group->order);
	if (first)
		link_lane(lane);
}

static void
remove_from_lane(QueueGroup *group)
{
	GroupLane *lane = group->lane;
	bool first = order_first_group(lane) == group;

	if (first)
		unlink_lane(lane);
	pairingheap_remove(&lane->groups, &group->order);
	if (first)
		link_lane(lane);
}

/* Put a group where it belongs, by what is known of its rows and by the time of the last round. */
void
order_attach(QueueGroup *group)
{
	Assert(group->state == GROUP_AT_REST);
	if (!group_knows_row(group) && group->exhausted)
		return;
	if (clock_is_before(order.now.mono, group->paused_until))
	{
		group->state = GROUP_PAUSED;
		pairingheap_add(&order.paused, &group->order);
	}
	else if (group_next_place(group).dt > order.now.wall)
	{
		group->state = GROUP_FUTURE;
		pairingheap_add(&order.future, &group->order);
	}
	else
	{
		group->state = GROUP_READY;
		add_to_lane(group);
	}
}

/* Remove a group from where it is, before what is known of its rows changes. */
void
order_detach(QueueGroup *group)
{
	switch (group->state)
	{
		case GROUP_READY:
			remove_from_lane(group);
			break;
		case GROUP_FUTURE:
			pairingheap_remove(&order.future, &group->order);
			break;
		case GROUP_PAUSED:
			pairingheap_remove(&order.paused, &group->order);
			break;
		case GROUP_SKIPPED:
			dlist_delete(&group->skipped);
			break;
		case GROUP_AT_REST:
			break;
	}
	group->state = GROUP_AT_REST;
}

/*
 * Is this group, the first of its lane, before all others of its queue that have a due row, also
 * those that this round has skipped?  The loop is over the lanes of the queue, which are as many as
 * the roles that have waiting rows in it.
 */
bool
order_is_first_of_queue(const QueueGroup *group)
{
	QueueState *queue = group->queue;
	dlist_iter iter;

	if (queue->skipped_at.us == order.now.mono.us &&
		compare_groups(queue->first_skipped, group) > 0)
		return false;
	dlist_foreach(iter, &queue->lanes)
	{
		GroupLane *lane = dlist_container(GroupLane, queue_node, iter.cur);

		if (lane != group->lane && !pairingheap_is_empty(&lane->groups) &&
			compare_groups(order_first_group(lane), group) > 0)
			return false;
	}
	return true;
}

/* Skip a group until the next round. */
void
order_skip(QueueGroup *group)
{
	QueueState *queue = group->queue;

	if (queue->skipped_at.us != order.now.mono.us ||
		compare_groups(group, queue->first_skipped) > 0)
		queue->first_skipped = group;
	queue->skipped_at = order.now.mono;
	order_detach(group);
	group->state = GROUP_SKIPPED;
	dlist_push_tail(&order.skipped_groups, &group->skipped);
}

/* Skip all groups of a role until the next round. */
void
order_skip_role(GroupRole *role)
{
	unlink_role(role);
	if (role->skipped)
		return;
	role->skipped = true;
	dlist_push_tail(&order.skipped_roles, &role->skipped_node);
}

/* Bring back what the last round has skipped. */
static void
end_skipping(void)
{
	while (!dlist_is_empty(&order.skipped_roles))
	{
		GroupRole *role = dlist_head_element(GroupRole, skipped_node, &order.skipped_roles);

		dlist_delete(&role->skipped_node);
		role->skipped = false;
		link_role(role);
	}
	while (!dlist_is_empty(&order.skipped_groups))
	{
		QueueGroup *group = dlist_head_element(QueueGroup, skipped, &order.skipped_groups);

		order_detach(group);
		order_attach(group);
	}
}

/*
 * Lanes may be parked until a time of the wall clock, and turns are such times.  If the clock was
 * set, or has drifted, bring all parked lanes back.  If it was set back, the turns since it was
 * ahead go back as well: otherwise the queues that were served would wait for the clock.
 */
static void
follow_wall_clock(ClockNow now)
{
	int64 offset = now.wall - now.mono.us;
	int64 back = order.offset - offset;

	if (-back <= CLOCK_STEP_US && back <= CLOCK_STEP_US)
		return;
	order.offset = offset;
	order_unpark_all();
	if (back > 0)
		queues_turn_back(now.wall, back, order_set_turn);
}

/*
 * A round begins: bring back what the last one has skipped, and all whose time has come.  Bounded
 * by what the last round has looked at, and by the groups that have become due since.
 */
void
order_begin_round(ClockNow now)
{
	QueueGroup *group;
	GroupLane *lane;

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
	while (!pairingheap_is_empty(&order.paused))
	{
		group = pairingheap_container(QueueGroup, order, pairingheap_first(&order.paused));
		if (clock_is_before(now.mono, group->paused_until))
			break;
		order_detach(group);
		order_attach(group);
	}
	while (!pairingheap_is_empty(&order.parked))
	{
		lane = pairingheap_container(GroupLane, order, pairingheap_first(&order.parked));
		if (clock_is_before(now.mono, lane->parked_until))
			break;
		unlink_lane(lane);
		link_lane(lane);
	}
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
 * Return the first group of a role, which has a lane that is ready, if it may start a task or has
 * to be read.  Otherwise move it, or its lane, to where it belongs, or skip the role, and return
 * NULL.
 */
static QueueGroup *
try_first_of_role(GroupRole *role, ClockNow now)
{
	GroupLane *lane = order_first_lane(role);
	QueueGroup *group = order_first_group(lane);
	OrderKey key = order_key(group);
	MonoTime until = queue_blocked_until(lane->queue, &group->key, now);

	Assert(group->state == GROUP_READY && lane->state == LANE_READY);
	if (clock_is_before(now.mono, until))
		park_lane(lane, until);
	else if (group_role_is_behind(role, &key))
		order_skip_role(role);
	else if (key.place.dt <= now.wall)
		return group;
	else
	{
		/* the wall clock has gone back since the group was put there */
		order_detach(group);
		order_attach(group);
	}
	return NULL;
}

/*
 * Return the first of all groups whose next row is due, or has to be read, and whose queue may
 * start one more; NULL if there is none.  "now" is that of the round.
 */
QueueGroup *
order_first(ClockNow now)
{
	QueueGroup *group = NULL;

	Assert(order.now.wall == now.wall);
	while (group == NULL && !pairingheap_is_empty(&order.roles))
		group = try_first_of_role(
			pairingheap_container(GroupRole, order, pairingheap_first(&order.roles)), now);
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
 * Return the moment at which the next group or lane comes back by its time, assuming that the wall
 * clock is not set until then.  CLOCK_NEVER if there is none.
 */
MonoTime
order_due_at(ClockNow now)
{
	MonoTime until = CLOCK_NEVER;

	if (!pairingheap_is_empty(&order.future))
		until = clock_of_wall(
			now, group_next_place(
					 pairingheap_container(QueueGroup, order, pairingheap_first(&order.future)))
					 .dt);
	if (!pairingheap_is_empty(&order.paused))
		until = clock_min(until,
						  pairingheap_container(QueueGroup, order, pairingheap_first(&order.paused))
							  ->paused_until);
	if (!pairingheap_is_empty(&order.parked))
		until = clock_min(until,
						  pairingheap_container(GroupLane, order, pairingheap_first(&order.parked))
							  ->parked_until);
	return until;
}
