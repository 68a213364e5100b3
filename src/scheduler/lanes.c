/*
 * lanes.c
 *		The order among groups, their lanes, and which of these are ready.
 *
 * Within a queue the order is: larger max first, lower priority, dt, id.  The queues are in the
 * order of their first tasks: lower priority, dt, id.  In place of dt stands the time of the last
 * start of the queue, if that takes turns and the time is later: so the queue that was served least
 * recently is the next.  With aging, priority and dt are one sum, which does not change while a
 * task waits: that is why it can be kept in heaps.
 *
 * The groups of one queue and one role that have a due row are a lane, a heap.  The lanes of a role
 * that are ready are a heap, by their first groups, and so are the roles: so a role without a free
 * executor is set aside in one step, however many of its tasks wait.
 *
 * A queue that may not start a task is closed: a lane of it that comes to its turn is parked at the
 * queue.  When the queue may start one more task, it is opened, and one lane is ready again: its
 * front, which comes before all that are parked.  The next one becomes the front when that has
 * changed, or its role is skipped.  So the end of a task costs the same, however many lanes the
 * queue has.
 *
 * For a queue that has parked lanes this always holds: it is closed, and all of them come behind a
 * group that it may not start; or it is open, and has a front, whose role is not skipped.  A lane
 * that would be the front, but whose role is skipped, is put away until that ends.
 *
 * A lane may come to its turn among all before the first one of its queue, because "max" counts
 * within a queue only, and turns between queues only: it is parked behind that
 * (lane_first_of_queue).
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "common/int.h"
#include "utils/memutils.h"

#include "scheduler/lanes.h"

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

/* Static, because lanes are remembered from iteration to iteration. */
static struct
{
	MemoryContext context;	  /* of roles */
	MemoryContext members;	  /* of GroupLane alone */
	int64 aging;			  /* time that is worth one priority (us); 0: none is */
	roletable_hash *table;	  /* all roles that have groups */
	pairingheap roles;		  /* those that are ready */
	dlist_head skipped_roles; /* until the next round */
	dlist_head aside_roles;	  /* until they are called: see role_line.c */
	pairingheap closed; /* closed queues with parked lanes, by the time when they are opened */
} lanes;

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

/*
 * Return the position in the order of a task at this place of a group, whose queue had its last
 * turn then (DT_NOBEGIN: it takes none).  With aging, a priority is worth so much time.
 */
OrderKey
order_key_at(const TaskGroup *key, TimestampTz turn, TaskPlace place)
{
	OrderKey position = {key->max, key->priority, Max(place.dt, turn), place};
	int64 worth;

	if (lanes.aging == 0)
		return position;
	position.priority = 0;
	if (pg_mul_s64_overflow(lanes.aging, key->priority, &worth) ||
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

static int
compare_in_lane(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	return order_compare_in_queue(pairingheap_const_container(QueueGroup, order, a),
								  pairingheap_const_container(QueueGroup, order, b));
}

static int
compare_lanes(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return order_compare_groups(
		order_first_group(pairingheap_const_container(GroupLane, order, a)),
		order_first_group(pairingheap_const_container(GroupLane, order, b)));
}

/* Compare two lanes of one queue: positive if "a" comes first. */
static int
compare_in_queue(const GroupLane *a, const GroupLane *b)
{
	return order_compare_in_queue(order_first_group(a), order_first_group(b));
}

static int
compare_parked(const pairingheap_node *a, const pairingheap_node *b,
			   void *arg pg_attribute_unused())
{
	return compare_in_queue(pairingheap_const_container(GroupLane, order, a),
							pairingheap_const_container(GroupLane, order, b));
}

static int
compare_roles(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return order_compare_groups(
		order_first_group(order_first_lane(pairingheap_const_container(GroupRole, order, a))),
		order_first_group(order_first_lane(pairingheap_const_container(GroupRole, order, b))));
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

void
lanes_create(MemoryContext context, int64 aging)
{
	memset(&lanes, 0, sizeof(lanes));
	lanes.context = context;
	lanes.members =
		SlabContextCreate(context, "pg_task lanes", SLAB_DEFAULT_BLOCK_SIZE, sizeof(GroupLane));
	lanes.aging = aging;
	lanes.table = roletable_create(context, 16, NULL);
	lanes.roles.ph_compare = compare_roles;
	lanes.closed.ph_compare = compare_closed;
	dlist_init(&lanes.skipped_roles);
	dlist_init(&lanes.aside_roles);
}

/* Return the role with this name.  It is added if it is not known. */
static GroupRole *
find_or_add_role(const char *name)
{
	RoleEntry *entry = roletable_lookup(lanes.table, unconstify(char *, name));
	GroupRole *role;

	if (entry)
		return entry->role;
	name = MemoryContextStrdup(lanes.context, name);
	role = MemoryContextAllocZero(lanes.context, sizeof(GroupRole));
	role->name = (char *) name;
	role->lanes.ph_compare = compare_lanes;
	dlist_init(&role->all_lanes);
	dlist_init(&role->fronts);
	dlist_init(&role->away);
	entry = insert_role(lanes.table, role->name);
	entry->role = role;
	return role;
}

/* Return the role with this OID, if that is known; otherwise NULL.  A loop over all. */
GroupRole *
lanes_find_role(Oid oid)
{
	roletable_iterator iter;
	RoleEntry *entry;

	roletable_start_iterate(lanes.table, &iter);
	while ((entry = roletable_iterate(lanes.table, &iter)) != NULL)
		if (entry->role->oid == oid)
			return entry->role;
	return NULL;
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
lane_find_or_add(QueueState *queue, const char *name)
{
	GroupRole *role = find_or_add_role(name);
	GroupLane *lane = find_lane(queue, role);

	if (lane)
		return lane;
	lane = MemoryContextAllocZero(lanes.members, sizeof(GroupLane));
	lane->queue = queue;
	lane->role = role;
	lane->groups.ph_compare = compare_in_lane;
	queue->parked.ph_compare = compare_parked;
	role->nlanes++;
	queue->nlanes++;
	dlist_push_tail(&queue->lanes, &lane->queue_node);
	dlist_push_tail(&role->all_lanes, &lane->role_node);
	return lane;
}

/* Free a lane, and its role, if no group is left in it. */
void
lane_release(GroupLane *lane)
{
	GroupRole *role = lane->role;

	if (lane->ngroups > 0)
		return;
	Assert(lane->state == LANE_AT_REST && lane->queue->front != lane);
	lane->queue->nlanes--;
	dlist_delete(&lane->queue_node);
	dlist_delete(&lane->role_node);
	pfree(lane);
	if (--role->nlanes == 0)
	{
		if (role->skipped)
			dlist_delete(&role->skipped_node);
		Assert(!role->ready);
		roletable_delete(lanes.table, role->name);
		pfree(role->name);
		pfree(role);
	}
}

/* Remove a role from the heap of roles: its lanes are about to change. */
static void
unlink_role(GroupRole *role)
{
	if (role->ready)
		pairingheap_remove(&lanes.roles, &role->order);
	role->ready = false;
}

/* Put a role into the heap of roles, if it has a lane that is ready. */
static void
link_role(GroupRole *role)
{
	Assert(!role->ready);
	role->ready = !role->skipped && !pairingheap_is_empty(&role->lanes);
	if (role->ready)
		pairingheap_add(&lanes.roles, &role->order);
}

/* Put a lane, which has a group that is ready, into the heap of its role. */
static void
begin_ready(GroupLane *lane)
{
	GroupRole *role = lane->role;
	bool first = pairingheap_is_empty(&role->lanes) ||
				 order_compare_groups(order_first_group(lane),
									  order_first_group(order_first_lane(role))) > 0;

	Assert(lane->state == LANE_AT_REST);
	lane->state = LANE_READY;
	dlist_push_tail(&lane->queue->ready, &lane->ready_node);
	if (first)
		unlink_role(role);
	pairingheap_add(&role->lanes, &lane->order);
	if (first)
		link_role(role);
}

/* Remove a lane from the heap of its role. */
static void
end_ready(GroupLane *lane)
{
	GroupRole *role = lane->role;
	bool first = order_first_lane(role) == lane;

	Assert(lane->state == LANE_READY);
	lane->state = LANE_AT_REST;
	dlist_delete(&lane->ready_node);
	if (first)
		unlink_role(role);
	pairingheap_remove(&role->lanes, &lane->order);
	if (first)
		link_role(role);
}

/* Put a lane among the parked ones of its queue. */
static void
begin_parked(GroupLane *lane)
{
	Assert(lane->state == LANE_AT_REST);
	lane->state = LANE_PARKED;
	pairingheap_add(&lane->queue->parked, &lane->order);
	lane->queue->nparked++;
}

/* Remove a lane from the parked ones of its queue. */
static void
end_parked(GroupLane *lane)
{
	Assert(lane->state == LANE_PARKED);
	lane->state = LANE_AT_REST;
	pairingheap_remove(&lane->queue->parked, &lane->order);
	lane->queue->nparked--;
}

/* The first of the parked lanes of a queue that has some. */
static GroupLane *
first_parked(const QueueState *queue)
{
	return pairingheap_container(GroupLane, order, queue->parked.ph_root);
}

/* The queue has no front any more. */
static void
clear_front(QueueState *queue)
{
	if (queue->front)
		dlist_delete(&queue->front->front_node);
	queue->front = NULL;
}

/* Put a lane, which is at rest, away until its role is not skipped any more. */
static void
put_away(GroupLane *lane)
{
	lane->state = LANE_AWAY;
	dlist_push_tail(&lane->role->away, &lane->ready_node);
}

/*
 * The first of the ready lanes of a queue; NULL if there is none.  Those of skipped roles are put
 * away.  The loop is over the lanes that have changed since they were parked.
 */
static GroupLane *
first_ready(QueueState *queue)
{
	GroupLane *first = NULL;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &queue->ready)
	{
		GroupLane *lane = dlist_container(GroupLane, ready_node, iter.cur);

		if (lane->role->skipped)
		{
			end_ready(lane);
			put_away(lane);
		}
		else if (first == NULL || compare_in_queue(lane, first) > 0)
			first = lane;
	}
	return first;
}

/* Give an open queue a front, if it has parked lanes: the first of those that are not put away. */
static void
choose_front(QueueState *queue)
{
	Assert(!queue->closed);
	while (queue->front == NULL && queue->nparked > 0)
	{
		GroupLane *lane = first_ready(queue);

		if (lane == NULL || compare_in_queue(first_parked(queue), lane) > 0)
		{
			lane = first_parked(queue);
			end_parked(lane);
			if (lane->role->skipped)
			{
				put_away(lane);
				continue;
			}
			begin_ready(lane);
		}
		queue->front = lane;
		dlist_push_tail(&lane->role->fronts, &lane->front_node);
	}
}

/* The parked lanes of the queue may not start a task before "until". */
static void
close_queue(QueueState *queue, MonoTime until)
{
	clear_front(queue);
	if (queue->closed)
	{
		pairingheap_remove(&lanes.closed, &queue->closed_node);
		until = clock_min(until, queue->closed_until);
	}
	queue->closed = true;
	queue->closed_until = until;
	pairingheap_add(&lanes.closed, &queue->closed_node);
}

/* One more task of the queue may be able to start: bring the first of its parked lanes back. */
void
lanes_open(QueueState *queue)
{
	if (!queue->closed)
		return;
	queue->closed = false;
	pairingheap_remove(&lanes.closed, &queue->closed_node);
	choose_front(queue);
}

/* Open the queues whose time has come. */
void
lanes_open_due(MonoTime now)
{
	while (!clock_is_before(now, lanes_closed_until()))
		lanes_open(pairingheap_container(QueueState, closed_node, lanes.closed.ph_root));
}

/* The rules of queues have changed: open all that are closed, as many as there are. */
void
lanes_open_all(void)
{
	while (!pairingheap_is_empty(&lanes.closed))
		lanes_open(pairingheap_container(QueueState, closed_node, lanes.closed.ph_root));
}

/* Return the moment at which the next queue is to be opened; CLOCK_NEVER if none is known. */
MonoTime
lanes_closed_until(void)
{
	if (pairingheap_is_empty(&lanes.closed))
		return CLOCK_NEVER;
	return pairingheap_container(QueueState, closed_node, lanes.closed.ph_root)->closed_until;
}

/* Remove a lane from where it is: its first group is about to change. */
static void
unlink_lane(GroupLane *lane)
{
	QueueState *queue = lane->queue;

	if (lane->state == LANE_READY)
	{
		end_ready(lane);
		if (queue->front == lane)
		{
			clear_front(queue);
			choose_front(queue);
		}
	}
	else if (lane->state == LANE_PARKED)
	{
		end_parked(lane);
		if (queue->nparked == 0)
			lanes_open(queue);
	}
	else if (lane->state == LANE_AWAY)
	{
		lane->state = LANE_AT_REST;
		dlist_delete(&lane->ready_node);
	}
}

/* Put a lane into the heap of its role, if a group of it is ready. */
static void
link_lane(GroupLane *lane)
{
	if (!pairingheap_is_empty(&lane->groups))
		begin_ready(lane);
}

/* A group is ready: put it into its lane. */
void
lane_add_group(QueueGroup *group)
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

void
lane_remove_group(QueueGroup *group)
{
	GroupLane *lane = group->lane;
	bool first = order_first_group(lane) == group;

	if (first)
		unlink_lane(lane);
	pairingheap_remove(&lane->groups, &group->order);
	if (first)
		link_lane(lane);
}

/*
 * The queue of this lane, which is ready, may not start its first task before "until": park the
 * lane.  If no parked one is before it, none of them may start a task.
 */
void
lane_park(GroupLane *lane, MonoTime until)
{
	QueueState *queue = lane->queue;

	end_ready(lane);
	if (queue->front == lane)
		clear_front(queue);
	begin_parked(lane);
	if (first_parked(queue) == lane)
		close_queue(queue, until);
	Assert(queue->closed || queue->front);
}

/*
 * Return the first lane of the queue of this one, which is ready and may start a task: this one, or
 * one before it, behind which it is parked then.
 */
GroupLane *
lane_first_of_queue(GroupLane *lane)
{
	QueueState *queue = lane->queue;
	GroupLane *first = first_ready(queue);

	Assert(!lane->role->skipped);
	if (first == lane)
		return lane;
	end_ready(lane);
	clear_front(queue);
	begin_parked(lane);
	lanes_open(queue);
	choose_front(queue);
	return queue->front;
}

/*
 * The queue has had its turn, at this time.  That does not change the order of its groups, but that
 * of its lanes among those of other queues: all are parked except for one.  Bounded by the lanes
 * that have become ready since its last turn.
 */
void
lanes_set_turn(QueueState *queue, TimestampTz turn)
{
	if (queue->turn == turn)
		return;
	clear_front(queue);
	while (!dlist_is_empty(&queue->ready))
	{
		GroupLane *lane = dlist_head_element(GroupLane, ready_node, &queue->ready);

		end_ready(lane);
		begin_parked(lane);
	}
	queue->turn = turn;
	lanes_open(queue);
	choose_front(queue);
}

/*
 * A task that was chosen, and still counts as running, has not begun: it is no start of its queue,
 * and no turn, unless another one has followed it.
 */
void
lanes_undo_start(QueueState *queue, QueueStart *start)
{
	if (start->turn != start->turn_before && start->turn == queue->turn)
		lanes_set_turn(queue, start->turn_before);
	start->turn = start->turn_before;
	queue_undo_start(queue, start);
}

/*
 * Has no lane of the queue, also of a skipped role, a group before this one, which may start a
 * task? A loop over all lanes of the queue.
 */
bool
lanes_have_first(const QueueGroup *group)
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

/* Return the role whose first lane is the first of all; NULL if no lane is ready. */
GroupRole *
lanes_first_role(void)
{
	if (pairingheap_is_empty(&lanes.roles))
		return NULL;
	return pairingheap_container(GroupRole, order, pairingheap_first(&lanes.roles));
}

/* Skip all groups of a role until the next round.  The queues of its fronts get other ones. */
void
lanes_skip_role(GroupRole *role)
{
	unlink_role(role);
	if (role->skipped)
		return;
	role->skipped = true;
	dlist_push_tail(&lanes.skipped_roles, &role->skipped_node);
	while (!dlist_is_empty(&role->fronts))
	{
		QueueState *queue = dlist_head_element(GroupLane, front_node, &role->fronts)->queue;

		clear_front(queue);
		choose_front(queue);
	}
}

/* A role is not skipped any more: bring it back, with its lanes that were put away. */
static void
end_skip(GroupRole *role)
{
	role->skipped = role->aside = false;
	while (!dlist_is_empty(&role->away))
	{
		GroupLane *lane = dlist_head_element(GroupLane, ready_node, &role->away);

		unlink_lane(lane);
		link_lane(lane);
	}
	if (!role->ready)
		link_role(role);
}

/* A round begins: bring back the roles that the last one has skipped. */
void
lanes_end_skipping(void)
{
	while (!dlist_is_empty(&lanes.skipped_roles))
	{
		GroupRole *role = dlist_head_element(GroupRole, skipped_node, &lanes.skipped_roles);

		dlist_delete(&role->skipped_node);
		end_skip(role);
	}
}

/* A role that is skipped stays so when the next round begins. */
void
lanes_set_aside(GroupRole *role)
{
	Assert(role->skipped && !role->aside);
	dlist_delete(&role->skipped_node);
	dlist_push_tail(&lanes.aside_roles, &role->skipped_node);
	role->aside = true;
}

/* The list of the roles that are set aside. */
dlist_head *
lanes_aside(void)
{
	return &lanes.aside_roles;
}

/* Bring a role back that was set aside. */
void
lanes_bring_back(GroupRole *role)
{
	Assert(role->skipped && role->aside);
	dlist_delete(&role->skipped_node);
	end_skip(role);
}
