/*
 * order.c
 *		The order in which the groups start tasks.
 *
 * Within a queue the order is: larger max first, lower priority, dt, id.  The queues are in the
 * order of their first tasks: lower priority, dt, id.  In place of dt stands the time of the last
 * start of the queue, if that takes turns and the time is later: so the queue that was served least
 * recently is the next.  With aging, priority and dt are one sum, which does not change while a
 * task waits: that is why it can be kept in heaps.
 *
 * The groups of one queue and one role that have a due row are a lane, a heap.  Of the lanes of a
 * queue the first one is ready, and the others wait in a heap behind it.  The ready lanes of a role
 * are a heap, by their first groups, and so are the roles: so a role without a free executor is
 * skipped in one step, however many of its tasks wait.  Then lanes of other roles come first in the
 * queues in which some wait.
 *
 * A queue that may not start a task is closed: all of its lanes wait, until its time has come, one
 * of its tasks ends, or another group becomes its first.
 *
 * The groups whose next row is not due are a heap by their times.  The order outlives the turn of
 * the scheduler, so a round costs what it looks at.  A group whose next row is not known has the
 * position up to which it was read: it has to be read when it is the first.
 *
 * The heaps are pairing heaps: nothing is allocated when a group moves, so nothing can fail.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  It does not change
 * what is known of the rows of a group.
 */
#include "postgres.h"

#include "common/int.h"
#include "utils/memutils.h"

#include "scheduler/order.h"

/* The wall clock was set if it differs by this (us) from what the monotonic clock makes of it. */
#define CLOCK_STEP_US 100000

typedef struct RoleEntry
{
	char *name;
	uint32 hash;
	char status;
	GroupRole *role;
} RoleEntry;

#define SH_PREFIX roletable
#define SH_ELEMENT_TYPE RoleEntry
#define SH_KEY name
#include "scheduler/name_hash.h"

/* Static, because the order is remembered from iteration to iteration. */
static struct
{
	MemoryContext context;	   /* of roles */
	MemoryContext lanes;	   /* of GroupLane alone */
	int64 aging;			   /* time that is worth one priority (us); 0: none is */
	roletable_hash *table;	   /* all roles that have groups */
	pairingheap roles;		   /* those that have a ready lane, and are not skipped */
	dlist_head skipped_roles;  /* until the next round, or set aside: see role_line.c */
	pairingheap closed;		   /* closed queues, by the time when they are opened */
	pairingheap future;		   /* groups whose next row is not due, by its dt */
	dlist_head skipped_groups; /* until the next round */
	ClockNow now;			   /* of this iteration, or of its round */
	int64 offset;			   /* of the wall clock when queues were opened for it (us) */
} order;

DEFINE_HASH_INSERT(insert_role, roletable, RoleEntry, char *)

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

/* The first group of a lane that has one that is ready. */
static inline QueueGroup *
order_first_group(const GroupLane *lane)
{
	return pairingheap_container(QueueGroup, order, lane->groups.ph_root);
}

/* The first lane of a role that has one that is ready. */
static inline GroupLane *
order_first_lane(const GroupRole *role)
{
	return pairingheap_container(GroupLane, order, role->lanes.ph_root);
}

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

/*
 * Return the position of a group among those of other queues.  One that has to be read comes first:
 * if it turns out to be empty, the group behind it in its queue may have any priority.
 */
static OrderKey
order_key(const QueueGroup *group)
{
	TaskPlace place = group_next_place(group);

	if (!group_knows_row(group))
		return (OrderKey){group->key.max, PG_INT32_MIN, PG_INT64_MIN, place};
	return order_key_at(&group->key, group->queue->turn, place);
}

/* Compare the first groups of two lanes: positive if the first task of "a" starts first. */
static int
compare_lanes_of_queues(const GroupLane *a, const GroupLane *b)
{
	OrderKey left = order_key(order_first_group(a));
	OrderKey right = order_key(order_first_group(b));

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
static int
order_compare_in_queue(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key_at(&a->key, DT_NOBEGIN, group_next_place(a));
	OrderKey right = order_key_at(&b->key, DT_NOBEGIN, group_next_place(b));

	Assert(a->queue == b->queue);
	return order_compare_keys_in_queue(&left, &right);
}

static int
compare_in_lane(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	return order_compare_in_queue(pairingheap_const_container(QueueGroup, order, a),
								  pairingheap_const_container(QueueGroup, order, b));
}

/* Compare the first groups of two lanes of one queue: positive if "a" comes first. */
static int
compare_lanes_in_queue(const pairingheap_node *a, const pairingheap_node *b,
					   void *arg pg_attribute_unused())
{
	return order_compare_in_queue(
		order_first_group(pairingheap_const_container(GroupLane, order, a)),
		order_first_group(pairingheap_const_container(GroupLane, order, b)));
}

static int
compare_lanes(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return compare_lanes_of_queues(pairingheap_const_container(GroupLane, order, a),
								   pairingheap_const_container(GroupLane, order, b));
}

static int
compare_roles(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return compare_lanes_of_queues(
		order_first_lane(pairingheap_const_container(GroupRole, order, a)),
		order_first_lane(pairingheap_const_container(GroupRole, order, b)));
}

/* Positive if "a" is opened first. */
static int
compare_closed(const pairingheap_node *a, const pairingheap_node *b,
			   void *arg pg_attribute_unused())
{
	const QueueState *left = pairingheap_const_container(QueueState, closed_node, a);
	const QueueState *right = pairingheap_const_container(QueueState, closed_node, b);

	return clock_is_before(left->closed_until, right->closed_until)	  ? 1
		   : clock_is_before(right->closed_until, left->closed_until) ? -1
																	  : 0;
}

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
	order.context = context;
	order.lanes =
		SlabContextCreate(context, "pg_task lanes", SLAB_DEFAULT_BLOCK_SIZE, sizeof(GroupLane));
	order.aging = aging;
	order.table = roletable_create(context, 16, NULL);
	order.roles.ph_compare = compare_roles;
	order.closed.ph_compare = compare_closed;
	order.future.ph_compare = compare_future;
	dlist_init(&order.skipped_roles);
	dlist_init(&order.skipped_groups);
	order.now.wall = PG_INT64_MIN;
}

/* ---- roles and lanes ---- */

/* Return the role with this name.  It is added if it is not known. */
static GroupRole *
find_or_add_role(const char *name)
{
	RoleEntry *entry = roletable_lookup(order.table, unconstify(char *, name));
	GroupRole *role;

	if (entry)
		return entry->role;
	name = MemoryContextStrdup(order.context, name);
	role = MemoryContextAllocZero(order.context, sizeof(GroupRole));
	role->name = (char *) name;
	role->lanes.ph_compare = compare_lanes;
	dlist_init(&role->with_behind);
	dlist_init(&role->skipped_lanes);
	entry = insert_role(order.table, role->name);
	entry->role = role;
	return role;
}

/* Return the role with this OID, if that is known; otherwise NULL.  A loop over all. */
GroupRole *
order_find_role(Oid oid)
{
	roletable_iterator iter;
	RoleEntry *entry;

	roletable_start_iterate(order.table, &iter);
	while ((entry = roletable_iterate(order.table, &iter)) != NULL)
		if (entry->role->oid == oid)
			return entry->role;
	return NULL;
}

/*
 * Return the lane of this queue and role.  A loop over the lanes of the queue.  If memory runs out,
 * a role without lanes may remain, which its next lane uses.
 */
GroupLane *
lane_find_or_add(QueueState *queue, const char *name)
{
	GroupRole *role = find_or_add_role(name);
	GroupLane *lane;
	dlist_iter iter;

	dlist_foreach(iter, &queue->lanes)
	{
		lane = dlist_container(GroupLane, queue_node, iter.cur);
		if (lane->role == role)
			return lane;
	}
	lane = MemoryContextAllocZero(order.lanes, sizeof(GroupLane));
	lane->queue = queue;
	lane->role = role;
	lane->groups.ph_compare = compare_in_lane;
	queue->waiting.ph_compare = compare_lanes_in_queue;
	role->nlanes++;
	dlist_push_tail(&queue->lanes, &lane->queue_node);
	return lane;
}

/* Free a lane, and its role, if no group is left in it. */
void
lane_release(GroupLane *lane)
{
	GroupRole *role = lane->role;

	if (lane->ngroups > 0)
		return;
	Assert(lane->state == LANE_AT_REST);
	dlist_delete(&lane->queue_node);
	pfree(lane);
	if (--role->nlanes == 0)
	{
		if (role->skipped)
			dlist_delete(&role->skipped_node);
		Assert(!role->ready);
		roletable_delete(order.table, role->name);
		pfree(role->name);
		pfree(role);
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

/* A lane with a group that is ready is the first one of its queue: put it into its role's heap. */
static void
begin_ready(GroupLane *lane)
{
	GroupRole *role = lane->role;
	bool first = pairingheap_is_empty(&role->lanes) ||
				 compare_lanes_of_queues(lane, order_first_lane(role)) > 0;

	Assert(lane->state == LANE_AT_REST && lane->queue->first == NULL);
	lane->state = LANE_READY;
	lane->queue->first = lane;
	if (first)
		unlink_role(role);
	pairingheap_add(&role->lanes, &lane->order);
	if (first)
		link_role(role);
}

/* Remove a lane from where it is. */
static void
remove_lane(GroupLane *lane)
{
	GroupRole *role = lane->role;
	bool first = !pairingheap_is_empty(&role->lanes) && order_first_lane(role) == lane;

	switch (lane->state)
	{
		case LANE_READY:
			lane->queue->first = NULL;
			if (lane->has_behind)
				dlist_delete(&lane->role_node);
			lane->has_behind = false;
			if (first)
				unlink_role(role);
			pairingheap_remove(&role->lanes, &lane->order);
			if (first)
				link_role(role);
			break;
		case LANE_WAITING:
			pairingheap_remove(&lane->queue->waiting, &lane->order);
			break;
		case LANE_SKIPPED:
			dlist_delete(&lane->role_node);
			break;
		case LANE_AT_REST:
			break;
	}
	lane->state = LANE_AT_REST;
}

/* Have a lane wait behind the first one of its queue. */
static void
begin_waiting(GroupLane *lane)
{
	Assert(lane->state == LANE_AT_REST);
	lane->state = LANE_WAITING;
	pairingheap_add(&lane->queue->waiting, &lane->order);
}

/* Put a lane aside until its role is not skipped any more. */
static void
begin_skipped(GroupLane *lane)
{
	Assert(lane->state == LANE_AT_REST && lane->role->skipped);
	lane->state = LANE_SKIPPED;
	dlist_push_tail(&lane->role->skipped_lanes, &lane->role_node);
}

/*
 * The first of the lanes of an open queue becomes ready; those of skipped roles make way.  A lane
 * of such a role stays only where no other one waits.
 */
static void
choose_first(QueueState *queue)
{
	GroupLane *first = queue->first;

	Assert(!queue->closed);
	if (first && first->role->skipped && !pairingheap_is_empty(&queue->waiting))
	{
		remove_lane(first);
		begin_skipped(first);
	}
	while (!pairingheap_is_empty(&queue->waiting))
	{
		GroupLane *lane = pairingheap_container(GroupLane, order, queue->waiting.ph_root);

		first = queue->first;
		if (first && order_compare_in_queue(order_first_group(lane), order_first_group(first)) <= 0)
			break;
		remove_lane(lane);
		if (lane->role->skipped)
		{
			begin_skipped(lane);
			continue;
		}
		if (first)
		{
			remove_lane(first);
			begin_waiting(first);
		}
		begin_ready(lane);
	}
	first = queue->first;
	if (first == NULL || first->has_behind == !pairingheap_is_empty(&queue->waiting))
		return;
	first->has_behind = !first->has_behind;
	if (first->has_behind)
		dlist_push_tail(&first->role->with_behind, &first->role_node);
	else
		dlist_delete(&first->role_node);
}

/* The queue may start no task before "until": all of its lanes wait. */
static void
close_queue(QueueState *queue, MonoTime until)
{
	GroupLane *lane = queue->first;

	Assert(!queue->closed);
	remove_lane(lane);
	begin_waiting(lane);
	queue->closed = true;
	queue->closed_until = until;
	pairingheap_add(&order.closed, &queue->closed_node);
}

/* One more task of the queue may be able to start. */
void
order_open(QueueState *queue)
{
	if (!queue->closed)
		return;
	queue->closed = false;
	pairingheap_remove(&order.closed, &queue->closed_node);
	choose_first(queue);
}

/* The rules of queues have changed: open all that are closed, as many as there are. */
void
order_open_all(void)
{
	while (!pairingheap_is_empty(&order.closed))
		order_open(pairingheap_container(QueueState, closed_node, order.closed.ph_root));
}

/* Is this lane the first one that waits in its queue? */
static bool
waits_first(const GroupLane *lane)
{
	return lane->queue->waiting.ph_root == &lane->order;
}

/* Remove a lane from where it is: its first group is about to change. */
static void
unlink_lane(GroupLane *lane)
{
	QueueState *queue = lane->queue;

	/* those behind it are looked at again */
	if (lane->state == LANE_WAITING && queue->closed && waits_first(lane))
		order_open(queue);
	remove_lane(lane);
}

/* The first group of a lane has changed: put it where it belongs. */
static void
link_lane(GroupLane *lane)
{
	QueueState *queue = lane->queue;

	if (!pairingheap_is_empty(&lane->groups))
	{
		/* most often it is the first one again */
		if (!queue->closed && queue->first == NULL && !lane->role->skipped &&
			(pairingheap_is_empty(&queue->waiting) ||
			 compare_lanes_in_queue(&lane->order, queue->waiting.ph_root, NULL) > 0))
			begin_ready(lane);
		else
			begin_waiting(lane);
	}
	if (!queue->closed)
		choose_first(queue);
	else if (lane->state == LANE_WAITING && waits_first(lane))
		order_open(queue);
}

/* A group is ready: put it into its lane. */
static void
add_to_lane(QueueGroup *group)
{
	GroupLane *lane = group->lane;
	bool first = pairingheap_is_empty(&lane->groups) ||
				 order_compare_in_queue(group, order_first_group(lane)) > 0;

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

/* The queue has had its turn, at this time: that changes its place among the queues. */
void
order_set_turn(QueueState *queue, TimestampTz turn)
{
	GroupLane *lane = queue->first;

	if (lane && queue->turn != turn)
		remove_lane(lane);
	queue->turn = turn;
	if (lane && lane->state == LANE_AT_REST)
	{
		begin_ready(lane);
		choose_first(queue);
	}
}

/*
 * A task that was chosen, and still counts as running, has not begun: it is no start of its queue,
 * and no turn, unless another one has followed it.
 */
void
order_undo_start(QueueState *queue, QueueStart *start)
{
	if (start->turn != start->turn_before && start->turn == queue->turn)
		order_set_turn(queue, start->turn_before);
	start->turn = start->turn_before;
	rates_undo(&queue->claims, &start->number);
}

/*
 * Has no lane of the queue, also of a skipped role, a group before this one, which may start a
 * task? A loop over all lanes of the queue.
 */
bool
order_is_first(const QueueGroup *group)
{
	dlist_iter iter;

	dlist_foreach(iter, &group->queue->lanes)
	{
		GroupLane *lane = dlist_container(GroupLane, queue_node, iter.cur);

		if (lane->state != LANE_AT_REST &&
			order_compare_in_queue(order_first_group(lane), group) > 0)
			return false;
	}
	return true;
}

/* ---- roles that are skipped ---- */

/* Skip all groups of a role until the next round.  Lanes that wait behind its own become first. */
void
order_skip_role(GroupRole *role)
{
	unlink_role(role);
	if (role->skipped)
		return;
	role->skipped = true;
	dlist_push_tail(&order.skipped_roles, &role->skipped_node);
	while (!dlist_is_empty(&role->with_behind))
		choose_first(dlist_head_element(GroupLane, role_node, &role->with_behind)->queue);
}

/* A role is not skipped any more: bring it back, and its lanes that have made way. */
void
order_end_skip(GroupRole *role)
{
	Assert(role->skipped);
	dlist_delete(&role->skipped_node);
	role->skipped = role->aside = false;
	while (!dlist_is_empty(&role->skipped_lanes))
	{
		GroupLane *lane = dlist_head_element(GroupLane, role_node, &role->skipped_lanes);

		remove_lane(lane);
		link_lane(lane);
	}
	if (!role->ready)
		link_role(role);
}

/* The list of the roles that are skipped, or set aside. */
dlist_head *
order_skipped_roles(void)
{
	return &order.skipped_roles;
}

/* ---- groups ---- */

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

/* The wall clock has gone back: set the turn of a queue, and move its groups that are not due. */
static void
follow_back(QueueState *queue, TimestampTz turn)
{
	dlist_iter iter;

	order_set_turn(queue, turn);
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
	order_open_all();
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
	dlist_mutable_iter iter;
	QueueGroup *group;
	QueueState *queue;

	order.now = now;
	dlist_foreach_modify(iter, &order.skipped_roles)
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (!role->aside)
			order_end_skip(role);
	}
	while (!dlist_is_empty(&order.skipped_groups))
	{
		group = dlist_head_element(QueueGroup, skipped, &order.skipped_groups);
		order_detach(group);
		order_attach(group);
	}
	follow_wall_clock(now);
	while (!pairingheap_is_empty(&order.future))
	{
		group = pairingheap_container(QueueGroup, order, pairingheap_first(&order.future));
		if (group_next_place(group).dt > now.wall)
			break;
		order_detach(group);
		order_attach(group);
	}
	while (!pairingheap_is_empty(&order.closed))
	{
		queue = pairingheap_container(QueueState, closed_node, order.closed.ph_root);
		if (clock_is_before(now.mono, queue->closed_until))
			break;
		order_open(queue);
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
 * Return the first group of a role, which has a lane that is ready, if it may start a task; or a
 * group that has to be read before that is known.  Otherwise move it, or its queue, to where it
 * belongs, and return NULL.
 */
static QueueGroup *
try_first_of_role(GroupRole *role, ClockNow now)
{
	GroupLane *lane = order_first_lane(role);
	QueueGroup *group = order_first_group(lane);
	MonoTime until = queue_blocked_until(lane->queue, &group->key, now);

	Assert(group->state == GROUP_READY && lane->queue->first == lane);
	if (clock_is_before(now.mono, until))
		close_queue(lane->queue, until);
	else if (group_next_place(group).dt > now.wall)
	{
		/* the wall clock has gone back since the group was put there */
		order_detach(group);
		order_attach(group);
	}
	else
		return group;
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
 * Return the moment at which the next group comes back or queue opens by its time, assuming that
 * the wall clock is not set until then.  CLOCK_NEVER if there is none.
 */
MonoTime
order_due_at(ClockNow now)
{
	MonoTime until = CLOCK_NEVER;
	QueueGroup *group;

	if (!pairingheap_is_empty(&order.closed))
		until = pairingheap_container(QueueState, closed_node, order.closed.ph_root)->closed_until;
	if (pairingheap_is_empty(&order.future))
		return until;
	group = pairingheap_container(QueueGroup, order, pairingheap_first(&order.future));
	return clock_min(until, clock_of_wall(now, group_next_place(group).dt));
}
