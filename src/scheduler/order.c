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
 * Of the groups of a queue that have a due row the first one is ready, and the others wait in a
 * heap behind it.  The ready groups of a role are a heap, and so are the roles, by their first
 * groups: so a role without a free executor is skipped in one step, in however many queues its
 * tasks wait.  Where groups of other roles wait behind its own, these make way for them.  In a
 * strict queue they do not: nothing overtakes its first task.
 *
 * A queue that may not start a task is closed: all of its groups wait, until its time has come, one
 * of its tasks ends, or another group becomes its first.
 *
 * The groups whose next row is not due are a heap by their times.  The order outlives the turn of
 * the scheduler, so a round costs what it looks at.  A group whose next row is not known has the
 * position up to which it was read: it has to be read when it is the first.
 *
 * A role that has due tasks and no executor, and for which none can be started, waits in line: it
 * stays skipped in round after round.  Each round calls the first few whose time has come, those
 * that have waited longest for an executor, and more as long as executors are started for them.  A
 * role gets an executor (demand.c) only when it is called, so one in line has none.  To walk over
 * the roles in line is cheap for the thousand roles that a database may have by the manual.
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
#include "shared/name_hash.h"

/* The wall clock was set if it differs by this (us) from what the monotonic clock makes of it. */
#define CLOCK_STEP_US 100000

/*
 * Delay of the next start for a role, after an executor of it could not connect (ms): doubled each
 * time, up to the second.
 */
#define RETRY_MS 1000
#define RETRY_MAX_MS 30000

typedef struct RoleEntry
{
	GroupRole *role;
	uint32 hash;
	char status;
} RoleEntry;

static uint32
hash_role(const GroupRole *role)
{
	return name_hash(role->name) ^ (role->limit ? name_hash(role->limit->pattern) : 0) ^
		   (uint32) role->taker;
}

#define SH_PREFIX roletable
#define SH_ELEMENT_TYPE RoleEntry
#define SH_KEY_TYPE GroupRole *
#define SH_KEY role
#define SH_HASH_KEY(tb, key) hash_role(key)
#define SH_EQUAL(tb, a, b) \
	((a)->limit == (b)->limit && (a)->taker == (b)->taker && strcmp((a)->name, (b)->name) == 0)
#include "shared/name_hash.h"

/* Static, because the order is remembered from iteration to iteration. */
static struct
{
	MemoryContext context;	   /* of roles */
	int64 aging;			   /* time that is worth one priority (us); 0: none is */
	roletable_hash *table;	   /* all roles that have groups */
	pairingheap roles;		   /* those that have a ready group, and are not skipped */
	dlist_head skipped_roles;  /* and those that wait in line */
	pairingheap closed;		   /* closed queues, by the time when they are opened */
	pairingheap future;		   /* groups whose next row is not due, by its dt */
	dlist_head skipped_groups; /* until the next round */
	ClockNow now;			   /* of this iteration, or of its round */
	int64 offset;			   /* of the wall clock when queues were opened for it (us) */
} order;

DEFINE_HASH_INSERT(insert_role, roletable, RoleEntry, GroupRole *)

/* The first of the ready groups of a role that has one. */
static inline QueueGroup *
ready_of_role(const GroupRole *role)
{
	return pairingheap_container(QueueGroup, order, role->groups.ph_root);
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

/* Compare two groups of different queues: positive if the first task of "a" starts first. */
static int
compare_of_queues(const QueueGroup *a, const QueueGroup *b)
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
static int
order_compare_in_queue(const QueueGroup *a, const QueueGroup *b)
{
	OrderKey left = order_key_at(&a->key, DT_NOBEGIN, group_next_place(a));
	OrderKey right = order_key_at(&b->key, DT_NOBEGIN, group_next_place(b));

	Assert(a->queue == b->queue);
	return order_compare_keys_in_queue(&left, &right);
}

static int
compare_waiting(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	return order_compare_in_queue(pairingheap_const_container(QueueGroup, order, a),
								  pairingheap_const_container(QueueGroup, order, b));
}

static int
compare_ready(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return compare_of_queues(pairingheap_const_container(QueueGroup, order, a),
							 pairingheap_const_container(QueueGroup, order, b));
}

static int
compare_roles(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	return compare_of_queues(ready_of_role(pairingheap_const_container(GroupRole, order, a)),
							 ready_of_role(pairingheap_const_container(GroupRole, order, b)));
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
	order.aging = aging;
	order.table = roletable_create(context, 16, NULL);
	order.roles.ph_compare = compare_roles;
	order.closed.ph_compare = compare_closed;
	order.future.ph_compare = compare_future;
	dlist_init(&order.skipped_roles);
	dlist_init(&order.skipped_groups);
	order.now.wall = PG_INT64_MIN;
}

/* ---- roles, and the first groups of queues ---- */

/*
 * Return the role with this name, of queues with this limit and taker.  It is added if it is not
 * known, and released again if no group of it is added.
 */
GroupRole *
order_find_or_add_role(const char *name, QueueLimit *limit, int64 taker)
{
	GroupRole key = {.name = unconstify(char *, name), .limit = limit, .taker = taker};
	RoleEntry *entry = roletable_lookup(order.table, &key);
	GroupRole *role;

	if (entry)
		return entry->role;
	name = MemoryContextStrdup(order.context, name);
	role = MemoryContextAllocZero(order.context, sizeof(GroupRole));
	role->name = (char *) name;
	role->limit = limit;
	role->taker = taker;
	role->groups.ph_compare = compare_ready;
	dlist_init(&role->with_behind);
	dlist_init(&role->yielded);
	return insert_role(order.table, role)->role;
}

/* Free a role if no group is left of it. */
void
order_release_role(GroupRole *role)
{
	if (role->ngroups > 0)
		return;
	Assert(pairingheap_is_empty(&role->groups) && dlist_is_empty(&role->yielded));
	if (role->skip != ROLE_NOT_SKIPPED)
		dlist_delete(&role->skipped_node);
	if (role->full)
		dlist_delete(&role->full_node);
	roletable_delete(order.table, role);
	pfree(role->name);
	pfree(role);
}

/* Is the role in the heap of roles?  It is if it has a ready group, and may start a task. */
static inline bool
in_heap(const GroupRole *role)
{
	return role->skip == ROLE_NOT_SKIPPED && !role->full && !pairingheap_is_empty(&role->groups);
}

/* Remove a role from the heap of roles, if it is there: its first group is about to change. */
static void
unlink_role(GroupRole *role)
{
	if (in_heap(role))
		pairingheap_remove(&order.roles, &role->order);
}

/* Put a role into the heap of roles, if it belongs there. */
static void
link_role(GroupRole *role)
{
	if (in_heap(role))
		pairingheap_add(&order.roles, &role->order);
}

/* A group is the first one of its queue: put it into its role's heap. */
static void
begin_ready(QueueGroup *group)
{
	GroupRole *role = group->role;
	bool first =
		pairingheap_is_empty(&role->groups) || compare_of_queues(group, ready_of_role(role)) > 0;

	Assert(group->queue->first == NULL);
	group->queue->first = group;
	if (first)
		unlink_role(role);
	pairingheap_add(&role->groups, &group->order);
	if (first)
		link_role(role);
}

/* A group is not ready any more. */
static void
end_ready(QueueGroup *group)
{
	GroupRole *role = group->role;
	bool first = ready_of_role(role) == group;

	group->queue->first = NULL;
	if (group->has_behind)
		dlist_delete(&group->listed);
	group->has_behind = false;
	if (first)
		unlink_role(role);
	pairingheap_remove(&role->groups, &group->order);
	if (first)
		link_role(role);
}

/*
 * Move a group from where it is to where this state has it.  make_first_ready follows if it was or
 * is ready or waits.
 */
static void
move_group(QueueGroup *group, QueueGroupState state)
{
	switch (group->state)
	{
		case GROUP_AT_REST:
			break;
		case GROUP_READY:
			end_ready(group);
			break;
		case GROUP_WAITING:
			pairingheap_remove(&group->queue->waiting, &group->order);
			break;
		case GROUP_FUTURE:
			pairingheap_remove(&order.future, &group->order);
			break;
		case GROUP_YIELDED:
		case GROUP_SKIPPED:
			dlist_delete(&group->listed);
			break;
	}
	group->state = state;
	switch (state)
	{
		case GROUP_AT_REST:
			break;
		case GROUP_READY:
			begin_ready(group);
			break;
		case GROUP_WAITING:
			group->queue->waiting.ph_compare = compare_waiting;
			pairingheap_add(&group->queue->waiting, &group->order);
			break;
		case GROUP_FUTURE:
			pairingheap_add(&order.future, &group->order);
			break;
		case GROUP_YIELDED:
			dlist_push_tail(&group->role->yielded, &group->listed);
			break;
		case GROUP_SKIPPED:
			dlist_push_tail(&order.skipped_groups, &group->listed);
			break;
	}
}

/* Is the next row of the group due, by the time of the round? */
static inline bool
is_due(const QueueGroup *group)
{
	return group_next_place(group).dt <= order.now.wall;
}

/*
 * The first of the groups of an open queue becomes ready; those of skipped roles make way, unless
 * all of its groups are of one role, or the queue is strict.  After the wall clock has gone back,
 * some may not be due any more.
 */
static void
make_first_ready(QueueState *queue)
{
	bool yields = queue->role == NULL && !queue_rule(queue)->strict;
	QueueGroup *first = queue->first;
	bool behind;

	Assert(!queue->closed);
	if (first && !is_due(first))
		move_group(first, GROUP_FUTURE);
	else if (first && yields && first->role->skip && !pairingheap_is_empty(&queue->waiting))
		move_group(first, GROUP_YIELDED);
	while (!pairingheap_is_empty(&queue->waiting))
	{
		QueueGroup *group = pairingheap_container(QueueGroup, order, queue->waiting.ph_root);

		first = queue->first;
		if (first && order_compare_in_queue(group, first) <= 0)
			break;
		if (!is_due(group))
			move_group(group, GROUP_FUTURE);
		else if (yields && group->role->skip)
			move_group(group, GROUP_YIELDED);
		else
		{
			if (first)
				move_group(first, GROUP_WAITING);
			move_group(group, GROUP_READY);
		}
	}
	first = queue->first;
	behind = queue->role == NULL && !pairingheap_is_empty(&queue->waiting);
	if (first == NULL || first->has_behind == behind)
		return;
	first->has_behind = behind;
	if (behind)
		dlist_push_tail(&first->role->with_behind, &first->listed);
	else
		dlist_delete(&first->listed);
}

/* Have the roles take part again that wait for a place in this limit. */
static void
end_full(QueueLimit *limit)
{
	while (!dlist_is_empty(&limit->full))
	{
		GroupRole *role = dlist_head_element(GroupRole, full_node, &limit->full);

		dlist_delete(&role->full_node);
		role->full = false;
		link_role(role);
	}
}

/* One more task of the queue may be able to start. */
void
order_open(QueueState *queue)
{
	if (queue->limit && queue->limit->running < queue->limit->total)
		end_full(queue->limit);
	if (!queue->closed)
		return;
	queue->closed = false;
	pairingheap_remove(&order.closed, &queue->closed_node);
	make_first_ready(queue);
}

/* Is this group the first one that waits in its queue? */
static bool
leads_waiting(const QueueGroup *group)
{
	return group->state == GROUP_WAITING && group->queue->waiting.ph_root == &group->order;
}

/* The next row of a group is due: put it where it belongs. */
static void
add_due(QueueGroup *group)
{
	QueueState *queue = group->queue;

	/* most often it is the first one again */
	if (!queue->closed && queue->first == NULL && !group->role->skip &&
		(pairingheap_is_empty(&queue->waiting) ||
		 compare_waiting(&group->order, queue->waiting.ph_root, NULL) > 0))
		move_group(group, GROUP_READY);
	else
		move_group(group, GROUP_WAITING);
	if (!queue->closed)
		make_first_ready(queue);
	else if (leads_waiting(group))
		order_open(queue);
}

/* The queue has had its turn, at this time: that changes its place among the queues. */
void
order_set_turn(QueueState *queue, TimestampTz turn)
{
	QueueGroup *group = queue->first;

	if (queue->turn == turn)
		return;
	if (group)
		move_group(group, GROUP_AT_REST);
	queue->turn = turn;
	if (group)
	{
		move_group(group, GROUP_READY);
		make_first_ready(queue);
	}
}

/* A task that counted as running has ended, or is not started. */
void
order_task_ended(QueueState *queue)
{
	queue_count(queue, 0, -1);
	order_open(queue);
}

/*
 * A task that was chosen, and counted as running, has not begun: it is no start of its queue, and
 * no turn, unless another one has followed it.
 */
void
order_undo_start(QueueState *queue, QueueStart start)
{
	if (start.turn != start.turn_before && start.turn == queue->turn)
		order_set_turn(queue, start.turn_before);
	rates_undo(&queue->claims, start.number);
	order_task_ended(queue);
}

/* ---- roles that are skipped ---- */

/* Skip all groups of a role for so long.  Those that wait behind its own become first. */
void
order_skip_role(GroupRole *role, RoleSkip skip)
{
	dlist_mutable_iter iter;

	if (role->skip)
		return;
	unlink_role(role);
	role->skip = skip;
	dlist_push_tail(&order.skipped_roles, &role->skipped_node);
	dlist_foreach_modify(iter, &role->with_behind)
		make_first_ready(dlist_container(QueueGroup, listed, iter.cur)->queue);
}

/* A role is not skipped any more: bring it back, and its groups that have made way. */
static void
end_skip(GroupRole *role)
{
	Assert(role->skip);
	dlist_delete(&role->skipped_node);
	role->skip = ROLE_NOT_SKIPPED;
	link_role(role);
	while (!dlist_is_empty(&role->yielded))
		add_due(dlist_head_element(QueueGroup, listed, &role->yielded));
}

/* Sessions wait for tasks: the roles take part again that have waited for that. */
void
order_takers_came(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &order.skipped_roles)
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->skip == ROLE_TAKERLESS)
			end_skip(role);
	}
}

/*
 * The rules of queues have changed: open all that are closed, and bring the skipped roles back, as
 * many as there are: their groups have made way in queues that may be strict now.
 */
void
order_rules_changed(void)
{
	roletable_iterator iter;
	RoleEntry *entry;

	while (!pairingheap_is_empty(&order.closed))
		order_open(pairingheap_container(QueueState, closed_node, order.closed.ph_root));
	roletable_start_iterate(order.table, &iter);
	while ((entry = roletable_iterate(order.table, &iter)) != NULL)
		if (entry->role->full)
			end_full(entry->role->limit);
	while (!dlist_is_empty(&order.skipped_roles))
		end_skip(dlist_head_element(GroupRole, skipped_node, &order.skipped_roles));
}

/* ---- roles without an executor: the line ---- */

/* A role that is skipped in this round waits in line.  It is not called before this time. */
void
role_line_add(GroupRole *role, MonoTime not_before)
{
	Assert(role->skip != ROLE_NOT_SKIPPED);
	role->skip = ROLE_IN_LINE;
	role->not_before = not_before;
}

/*
 * Call the first roles in line: their tasks take part in this round.  "full": not those that the
 * connection limit of the database keeps from starting.  Returns how many.
 */
int
role_line_call(MonoTime now, bool full)
{
	GroupRole *first[ROLE_LINE_CALLED];
	int count = 0;
	int i;
	dlist_iter iter;

	dlist_foreach(iter, &order.skipped_roles)
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->skip != ROLE_IN_LINE || clock_is_before(now, role->not_before) ||
			(full && role->limited) ||
			(count == ROLE_LINE_CALLED && !clock_is_before(role->since, first[count - 1]->since)))
			continue;
		for (i = count < ROLE_LINE_CALLED ? count++ : count - 1;
			 i > 0 && clock_is_before(role->since, first[i - 1]->since); i--)
			first[i] = first[i - 1];
		first[i] = role;
	}
	for (i = 0; i < count; i++)
		end_skip(first[i]);
	return count;
}

/*
 * What keeps roles from having an executor may have changed: they may be called at once, but for
 * those that could not connect.
 */
void
role_line_recall(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &order.skipped_roles)
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->retry_ms == 0)
			role->not_before = CLOCK_LONG_AGO;
	}
}

/* Return what is known of the roles in line. */
RoleLine
role_line_read(MonoTime now)
{
	RoleLine line = {.until = CLOCK_NEVER};
	dlist_iter iter;

	dlist_foreach(iter, &order.skipped_roles)
	{
		const GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->skip != ROLE_IN_LINE)
			continue;
		line.count++;
		if (!clock_is_before(now, role->not_before))
			line.waits = true;
		else if (clock_is_before(role_line_next_round(now), role->not_before))
			line.until = clock_min(line.until, role->not_before);
	}
	return line;
}

/* An executor of this role has connected, or has exited before: then the next one starts later. */
void
role_connection_tried(Oid oid, bool connected, MonoTime now)
{
	roletable_iterator iter;
	RoleEntry *entry;

	/* once for each limit and taker of its queues */
	roletable_start_iterate(order.table, &iter);
	while ((entry = roletable_iterate(order.table, &iter)) != NULL)
	{
		GroupRole *role = entry->role;

		if (role->oid != oid)
			continue;
		role->retry_ms = connected ? 0 : Min(Max(role->retry_ms * 2, RETRY_MS), RETRY_MAX_MS);
		if (!connected)
			role->not_before = clock_plus_ms(now, role->retry_ms);
	}
}

/* ---- groups ---- */

/* Put a group where it belongs, by what is known of its rows and by the time of the last round. */
void
order_attach(QueueGroup *group)
{
	Assert(group->state == GROUP_AT_REST);
	if (!group_knows_row(group) && group->exhausted)
		return;
	if (is_due(group))
		add_due(group);
	else
		move_group(group, GROUP_FUTURE);
}

/* Remove a group from where it is, before what is known of its rows changes. */
void
order_detach(QueueGroup *group)
{
	QueueState *queue = group->queue;
	bool due;

	/* those behind it are looked at again */
	if (queue->closed && leads_waiting(group))
		order_open(queue);
	due = group->state == GROUP_READY || group->state == GROUP_WAITING;
	move_group(group, GROUP_AT_REST);
	if (due && !queue->closed)
		make_first_ready(queue);
}

/* Skip a group until the next round. */
void
order_skip(QueueGroup *group)
{
	order_detach(group);
	move_group(group, GROUP_SKIPPED);
}

/* The wall clock has gone back: set the turn of a queue, and look which of its groups are due. */
static void
follow_back(QueueState *queue, TimestampTz turn)
{
	order_set_turn(queue, turn);
	make_first_ready(queue);
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
	while (!pairingheap_is_empty(&order.closed))
		order_open(pairingheap_container(QueueState, closed_node, order.closed.ph_root));
	if (back > 0)
		queues_turn_back(now.wall, back, follow_back);
}

/*
 * Bring back what the last round has skipped, and all whose time has come.  Bounded by what that
 * round has looked at, and by the groups that have become due since.
 */
void
order_advance(ClockNow now)
{
	dlist_mutable_iter iter;
	QueueGroup *group;
	QueueState *queue;

	order.now = now;
	dlist_foreach_modify(iter, &order.skipped_roles)
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->skip == ROLE_SKIPPED)
			end_skip(role);
	}
	while (!dlist_is_empty(&order.skipped_groups))
	{
		group = dlist_head_element(QueueGroup, listed, &order.skipped_groups);
		order_detach(group);
		order_attach(group);
	}
	follow_wall_clock(now);
	while (!pairingheap_is_empty(&order.future))
	{
		group = pairingheap_container(QueueGroup, order, pairingheap_first(&order.future));
		if (!is_due(group))
			break;
		add_due(group);
	}
	while (!pairingheap_is_empty(&order.closed))
	{
		queue = pairingheap_container(QueueState, closed_node, order.closed.ph_root);
		if (clock_is_before(now.mono, queue->closed_until))
			break;
		order_open(queue);
	}
}

/* Return the time by which groups are where they belong. */
ClockNow
order_now(void)
{
	return order.now;
}

/*
 * Return the first group of a role, which has one that is ready, if it may start a task, or has to
 * be read before that is known.  Otherwise move it, or its queue or role, to where it belongs, and
 * return NULL.
 */
static QueueGroup *
startable_of_role(GroupRole *role, ClockNow now)
{
	QueueGroup *group = ready_of_role(role);
	QueueState *queue = group->queue;
	QueueLimit *limit = queue_limit(queue);
	MonoTime until = queue_blocked_until(queue, &group->key, now);

	Assert(group->state == GROUP_READY && queue->first == group && !queue->closed);
	Assert(limit == role->limit);
	if (limit && limit->running >= limit->total)
	{
		unlink_role(role);
		role->full = true;
		dlist_push_tail(&limit->full, &role->full_node);
	}
	else if (clock_is_before(now.mono, until))
	{
		/* all of its groups wait */
		move_group(group, GROUP_WAITING);
		queue->closed = true;
		queue->closed_until = until;
		pairingheap_add(&order.closed, &queue->closed_node);
	}
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
order_next(ClockNow now)
{
	QueueGroup *group = NULL;

	Assert(order.now.wall == now.wall);
	while (group == NULL && !pairingheap_is_empty(&order.roles))
		group = startable_of_role(
			pairingheap_container(GroupRole, order, pairingheap_first(&order.roles)), now);
	return group;
}

/* Return the first group of this role; NULL if there is none. */
QueueGroup *
order_next_of_role(GroupRole *role, ClockNow now)
{
	QueueGroup *group = NULL;

	Assert(order.now.wall == now.wall);
	while (group == NULL && in_heap(role))
		group = startable_of_role(role, now);
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
