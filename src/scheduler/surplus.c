/*
 * surplus.c
 *		Which groups are forgotten when there are too many.
 *
 * The scheduler remembers a limited number of groups.  When there are more, it forgets those that
 * cannot start a task soon: first the ones of which no row waits, then those planned for later, the
 * latest first, then those of queues that may not start a task, then the last of the due ones.  For
 * each kind this file knows when a scan must find them again: before the first of them is due, when
 * the queue may start a task, or when a role has started all that comes before them.  Until then no
 * group of the role behind them in the order starts a task, so the order stays as it is.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "scheduler/group_roles.h"
#include "scheduler/order.h"
#include "scheduler/surplus.h"

/* The kinds, in the order in which they are forgotten. */
typedef enum SurplusKind
{
	SURPLUS_AT_REST,
	SURPLUS_FUTURE,
	SURPLUS_PARKED,
	SURPLUS_DUE
} SurplusKind;

/* A group as one that may be forgotten. */
typedef struct SurplusGroup
{
	QueueGroup *group;
	SurplusKind kind;
	OrderKey key;
} SurplusGroup;

/* Static, because what was forgotten is to be found by a later iteration. */
static struct
{
	TimestampTz future_from; /* groups that are due later were forgotten */
	TimestampTz future;		 /* the earliest dt of those since the last scan began */
	MonoTime parked;		 /* the earliest end of a pause of the queue of one */
	bool any_parked;		 /* is there such a group? */
	bool wanted;			 /* a queue with forgotten groups may start a task */
} surplus;

/* Nothing is forgotten so far. */
void
surplus_create(void)
{
	surplus.future_from = surplus.future = DT_NOEND;
	surplus.parked = CLOCK_NEVER;
	surplus.any_parked = surplus.wanted = false;
}

/* Remember that groups of this queue were forgotten, which may not start a task before "until". */
static void
note_parked(QueueState *queue, MonoTime until)
{
	queue->forgotten = surplus.any_parked = true;
	surplus.parked = clock_min(surplus.parked, until);
}

/*
 * There are too many groups: is this new one to be forgotten at once, rather than another?
 */
bool
surplus_refuse(const TaskGroup *key, TaskPlace place)
{
	ClockNow now = order_now();
	const GroupRole *role;
	QueueState *queue;
	OrderKey position;

	if (place.dt > now.wall && place.dt < surplus.future_from)
		return false;
	queue = queue_find(key->queue);
	if (queue)
		queue->sure = false; /* the first task of a strict queue may not be known */
	if (place.dt > now.wall)
	{
		surplus.future = Min(surplus.future, place.dt);
		return true;
	}
	if (queue && clock_is_before(now.mono, queue_blocked_until(queue, key, now)))
	{
		note_parked(queue, queue_blocked_until(queue, key, now));
		return true;
	}
	role = group_role_find(key->role);
	position = order_key_at(key, queue ? queue->turn : DT_NOBEGIN, place);
	return role && group_role_forgot(role, &position);
}

static SurplusKind
kind_of(const QueueGroup *group)
{
	if (group->state == GROUP_AT_REST)
		return SURPLUS_AT_REST;
	if (group->state == GROUP_FUTURE)
		return SURPLUS_FUTURE;
	if (group->state == GROUP_READY && group->lane->state == LANE_PARKED && group->queue->closed)
		return SURPLUS_PARKED;
	return SURPLUS_DUE;
}

/* Comparator for qsort: what is forgotten first comes first. */
static int
compare_surplus(const void *a, const void *b)
{
	const SurplusGroup *left = a;
	const SurplusGroup *right = b;

	if (left->kind != right->kind)
		return left->kind < right->kind ? -1 : 1;
	if (left->kind == SURPLUS_FUTURE)
		return -order_compare_places(&left->key.place, &right->key.place);
	return order_compare_keys(&left->key, &right->key);
}

/* This group is forgotten: note what makes a scan necessary. */
static void
note_forgotten(const SurplusGroup *entry)
{
	QueueGroup *group = entry->group;

	if (entry->kind != SURPLUS_AT_REST)
		group->queue->sure = false; /* the first task of a strict queue may not be known */
	switch (entry->kind)
	{
		case SURPLUS_AT_REST:
			break;
		case SURPLUS_FUTURE:
			surplus.future_from = entry->key.place.dt;
			surplus.future = Min(surplus.future, entry->key.place.dt);
			break;
		case SURPLUS_PARKED:
			surplus.future_from = DT_NOBEGIN; /* all future ones are forgotten */
			/* a strict queue stays held, or else its first task would have to be checked again */
			if (group->queue->held_group == group)
				group->queue->held_group = NULL;
			note_parked(group->queue, group->queue->closed_until);
			break;
		case SURPLUS_DUE:
			surplus.future_from = DT_NOBEGIN;
			group_role_bound(group->lane->role, &entry->key);
			break;
	}
}

/*
 * Forget all but "keep" of these "count" groups.  A role keeps its share of them, whatever others
 * have waiting.  It takes some 20 ms for 100,000 groups, and a fifth of them is forgotten at once.
 */
void
surplus_forget(dlist_head *all, int count, int keep)
{
	SurplusGroup *entries = palloc_extended(count * sizeof(SurplusGroup), MCXT_ALLOC_HUGE);
	int share = keep / Max(group_roles_count(), 1);
	dlist_iter iter;
	int n = 0;
	int i;

	dlist_foreach(iter, all)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		entries[n++] = (SurplusGroup){group, kind_of(group), order_key(group)};
	}
	Assert(n == count);
	qsort(entries, n, sizeof(SurplusGroup), compare_surplus);
	surplus.future_from = DT_NOEND;
	for (i = 0; i < n && count > keep; i++)
	{
		if (entries[i].kind == SURPLUS_DUE && entries[i].group->lane->role->ngroups <= share)
			continue;
		note_forgotten(&entries[i]);
		groups_forget(entries[i].group);
		count--;
	}
	pfree(entries);
}

/* The queue may start a task: find the groups of it that were forgotten. */
void
surplus_queue_free(QueueState *queue)
{
	surplus.wanted |= queue->forgotten;
	queue->forgotten = false;
}

/*
 * The rules of queues have changed: some that are not known any more may be able to start a task.
 */
void
surplus_rules_changed(void)
{
	surplus.wanted |= surplus.any_parked;
}

/* A scan begins, which finds what was forgotten until now. */
void
surplus_scan_begin(void)
{
	surplus_create();
	group_roles_scan_begin();
}

/* The scan is complete. */
void
surplus_scan_end(void)
{
	group_roles_scan_end();
}

/* Return when a scan is due to find groups that were forgotten; CLOCK_NEVER if none is. */
MonoTime
surplus_scan_at(ClockNow now)
{
	MonoTime due = clock_of_wall(now, surplus.future);

	if (surplus.wanted || group_roles_lack())
		return CLOCK_LONG_AGO;
	return clock_min(surplus.parked, due);
}
