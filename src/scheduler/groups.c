/*
 * groups.c
 *		The scheduler's memory of the waiting rows.
 *
 * Only the scheduler of a database starts tasks there, so this memory decides order and limits
 * without a lock.  Rows are read from the table in stretches and never twice: each group has a read
 * position, so the dead rows before it are not scanned again.  Rows that appear before the read
 * position are named by a hint, or found by the scan of every period.
 *
 * A limited number of groups is remembered.  They are in a list in the order in which hints and
 * scans have named them, or tasks of them were chosen; to remember one more, the first one is
 * forgotten.
 *
 * order.c keeps the groups in order, and queues.c what runs in their queues.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/groups.h"
#include "shared/name_hash.h"
#include "scheduler/order.h"
#include "scheduler/rates.h"

/*
 * As many groups are remembered at most: 100,000 queues and what runs beside them.  One in a queue
 * of its own takes about 750 bytes.
 */
#define GROUPS_LIMIT 125000

/* Rows of a group that are remembered because hints named each of them. */
#define HINTED_ROWS 16

/*
 * A group of which rows could not be claimed is read again from the first of them after one ms for
 * each, or after this many as long as it was not read to its end.
 */
#define MISSED_READING 16

/* Groups of a blocked role that are asked for the tasks that they could start. */
#define DEMAND_GROUPS 32

typedef struct GroupEntry
{
	const TaskGroup *key; /* that of the group, at its beginning */
	uint32 hash;
	char status;
} GroupEntry;

/* Users choose all parts of a key: see name_hash.h. */
static uint32
hash_group(const TaskGroup *key)
{
	int64 numbers[] = {key->role_id, key->max, key->priority};
	uint64 hash =
		hash_bytes_extended((const unsigned char *) numbers, sizeof(numbers), name_seed());

	hash = hash_bytes_extended((const unsigned char *) key->role, strlen(key->role), hash);
	hash = hash_bytes_extended((const unsigned char *) key->queue, strlen(key->queue), hash);
	return (uint32) hash;
}

#define SH_PREFIX grouptable
#define SH_ELEMENT_TYPE GroupEntry
#define SH_KEY_TYPE const TaskGroup *
#define SH_KEY key
#define SH_HASH_KEY(tb, key) hash_group(key)
#define SH_EQUAL(tb, a, b) task_same_group(a, b)
#include "shared/name_hash.h"

/* Static, because rows are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of all that follows, of order.c and queues.c */
	MemoryContext members; /* of QueueGroup alone */
	grouptable_hash *table;
	dlist_head all; /* all groups; those that were named last at the end */
	uint32 scan_number;
	int limit;	  /* groups that are remembered at most */
	bool lacking; /* since the last scan began, one was not remembered, or forgotten, for that */
} groups;

DEFINE_HASH_INSERT(insert_group, grouptable, GroupEntry, const TaskGroup *)

void
groups_create(int64 aging)
{
	memset(&groups, 0, sizeof(groups));
	groups.limit = GROUPS_LIMIT;
	dlist_init(&groups.all);
	groups.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task groups", ALLOCSET_DEFAULT_SIZES);
	groups.members = SlabContextCreate(groups.context, "pg_task group members",
									   SLAB_DEFAULT_BLOCK_SIZE, sizeof(QueueGroup));
	groups.table = grouptable_create(groups.context, 64, NULL);
	queues_create(groups.context);
	rates_create(groups.context);
	order_create(groups.context, aging);
}

/* A hint or a scan has named the group, or a task of it was chosen. */
static void
move_to_end(QueueGroup *group)
{
	dlist_delete(&group->node);
	dlist_push_tail(&groups.all, &group->node);
	group->seen = groups.scan_number;
}

/* Free the memory of a group's rows, except for one. */
static void
free_places(QueueGroup *group)
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
static void
reserve_places(QueueGroup *group, int more)
{
	int known = group->count - group->next;
	TaskPlace *old = group->places;

	if (known + more <= group->size)
		memmove(old, old + group->next, known * sizeof(TaskPlace));
	else
	{
		group->places = MemoryContextAlloc(groups.context, (known + more) * sizeof(TaskPlace));
		group->size = known + more;
		memcpy(group->places, old + group->next, known * sizeof(TaskPlace));
		if (old != &group->one)
			pfree(old);
	}
	group->next = 0;
	group->count = known;
}

/* Add a row in its place among those that are known, unless it is known. */
static void
insert_place(QueueGroup *group, TaskPlace place)
{
	int i;

	reserve_places(group, 1);
	for (i = group->count; i > 0 && order_compare_places(&place, &group->places[i - 1]) < 0; i--)
		;
	if (i > 0 && order_compare_places(&place, &group->places[i - 1]) == 0)
		return;
	order_detach(group);
	memmove(&group->places[i + 1], &group->places[i], (group->count - i) * sizeof(TaskPlace));
	group->places[i] = place;
	group->count++;
	if (order_compare_places(&group->read_position, &place) < 0)
		group->read_position = place;
	order_attach(group);
}

/*
 * Set the group's next rows to these.  Unless there are no more behind them ("complete"), those are
 * to be read.  One row needs no memory.
 */
static void
set_places(QueueGroup *group, const TaskPlace *places, int count, bool complete)
{
	if (group->size < count)
		reserve_places(group, count);
	order_detach(group);
	memcpy(group->places, places, count * sizeof(TaskPlace));
	group->next = 0;
	group->count = count;
	group->read_position = places[count - 1];
	group->exhausted = complete;
	order_attach(group);
}

/* A row of the queue is new or gone: if it is a strict one that is held, look at it again. */
static void
end_hold(QueueState *queue)
{
	if (queue->held_until.us == CLOCK_LONG_AGO.us)
		return;
	queue->held_until = CLOCK_LONG_AGO;
	order_open(queue);
}

/* Forget a group.  If rows of it wait, a scan finds it again. */
static void
forget_group(QueueGroup *group)
{
	QueueState *queue = group->queue;

	end_hold(queue);
	dlist_delete(&group->node);
	grouptable_delete(groups.table, &group->key);
	order_detach(group);
	group->role->ngroups--;
	order_release_role(group->role);
	queue_count(queue, -1, 0);
	group->next = group->count = 0;
	free_places(group);
	pfree(group);
}

/* Forget the waiting rows, but not what runs: after an error they are not trusted. */
void
groups_clear(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &groups.all)
		forget_group(dlist_container(QueueGroup, node, iter.cur));
}

/* The role of a group, by the limit and the taker that its queue has now. */
static GroupRole *
find_or_add_role(QueueState *queue, const char *name)
{
	return order_find_or_add_role(name, queue_limit(queue), queue_rule(queue)->taker);
}

/*
 * Before a round: if rules have changed so that queues have another limit together, or another
 * taker, move their groups to where the order has them by that.
 */
static void
follow_limits(void)
{
	dlist_iter iter;

	if (!queues_limits_changed())
		return;
	dlist_foreach(iter, &groups.all)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);
		QueueState *queue = group->queue;
		GroupRole *old = group->role;
		GroupRole *role = find_or_add_role(queue, old->name);

		if (role == old)
			continue;
		/* nothing fails from here on */
		order_detach(group);
		group->role = role;
		group->key.role = role->name;
		if (queue->role == old)
			queue->role = role;
		role->ngroups++;
		old->ngroups--;
		order_attach(group);
		/* those that no session wanted were passed over until a scan: see skip_task */
		if (old->taker > 0 && old->taker != role->taker)
			groups_read_again(group, (TaskPlace){PG_INT64_MIN, PG_INT64_MIN});
		order_release_role(old);
	}
	queues_forget_limits();
}

/*
 * Add a group, with its read position before all rows.  If memory runs out, only a queue without
 * groups and its rate may remain, which are forgotten like any other.
 */
static QueueGroup *
add_group(const TaskGroup *key)
{
	QueueState *queue = queue_find_or_add(key->queue);
	GroupRole *role = find_or_add_role(queue, key->role);
	QueueGroup *volatile added = NULL;
	QueueGroup *group;

	PG_TRY();
	{
		if (key->max < 0)
			rates_want_pause(&queue->claims, -(int64) key->max);
		added = MemoryContextAllocZero(groups.members, sizeof(QueueGroup));
		added->key = *key;
		added->key.queue = queue->name;
		added->key.role = role->name;
		(void) insert_group(groups.table, &added->key);
	}
	PG_CATCH();
	{
		order_release_role(role);
		if (added)
			pfree(added);
		PG_RE_THROW();
	}
	PG_END_TRY();
	/* nothing fails from here on */
	group = added;
	group->queue = queue;
	group->role = role;
	queue->role = queue->groups == 0 || queue->role == role ? role : NULL;
	group->places = &group->one;
	group->size = 1;
	group->read_position = (TaskPlace){PG_INT64_MIN, PG_INT64_MIN};
	group->exhausted = true;
	role->ngroups++;
	queue_count(queue, 1, 0);
	dlist_push_tail(&groups.all, &group->node);
	return group;
}

/*
 * May this group, which is not known, be remembered?  A group whose "max" is 0 never starts a task.
 * If there are too many, one that could start a task now takes the place of the one that was named
 * longest ago, and others wait for a scan after that.  No round may be under way: its tasks belong
 * to groups.
 */
static bool
find_place(const TaskGroup *key, TaskPlace place)
{
	ClockNow now = order_now();
	QueueState *queue;

	if (key->max == 0)
		return false;
	if ((int) groups.table->members < groups.limit)
		return true;
	groups.lacking = true;
	queue = queue_find(key->queue);
	if (place.dt > now.wall ||
		(queue && clock_is_before(now.mono, queue_blocked_until(queue, key, now))))
		return false;
	forget_group(dlist_head_element(QueueGroup, node, &groups.all));
	/* that may leave one more queue without groups */
	(void) queues_forget_idle(now.mono, 2);
	return true;
}

/* Were groups forgotten, or not remembered, because there are too many? */
bool
groups_lack(void)
{
	return groups.lacking;
}

/*
 * A hint or a scan has named a row of this group at this position.  Return it, and add it if it is
 * not known; NULL if it is not to be remembered.
 */
static QueueGroup *
name_group(const TaskGroup *key, TaskPlace place)
{
	GroupEntry *entry = grouptable_lookup(groups.table, key);
	QueueGroup *group = entry ? (QueueGroup *) entry->key : NULL;

	if (group == NULL && find_place(key, place))
		group = add_group(key);
	if (group)
		move_to_end(group);
	return group;
}

/* The first row of a group is this one; the rows behind it have to be read again. */
void
groups_rewind(QueueGroup *group, TaskPlace place)
{
	set_places(group, &place, 1, false);
}

/* The rows of the group are to be read again from this one on, which may be gone. */
void
groups_read_again(QueueGroup *group, TaskPlace place)
{
	order_detach(group);
	group->read_position.dt = place.dt;
	group->read_position.id = Max(place.id, PG_INT64_MIN + 1) - 1;
	group->next = group->count = 0;
	group->exhausted = false;
	order_attach(group);
}

/*
 * A hint: a new row of a group waits at this position; "several": and others behind it.  A single
 * one is remembered without reading any.  Otherwise, if it is before the read position, the rows
 * that were read and not taken are read again; that allocates no memory.
 */
void
groups_hint(const TaskGroup *key, TaskPlace place, bool several)
{
	QueueGroup *group = name_group(key, place);
	bool behind;

	if (group == NULL)
		return;
	end_hold(group->queue);
	behind = order_compare_places(&place, &group->read_position) > 0;
	if (behind && !group->exhausted)
		return;
	if (!several && group->count - group->next < HINTED_ROWS)
		insert_place(group, place);
	else if (behind && group_knows_row(group))
		group->exhausted = false;
	else if (group_knows_row(group) &&
			 order_compare_places(&group->places[group->next], &place) < 0)
		groups_rewind(group, group->places[group->next]);
	else
		groups_rewind(group, place);
}

/* A scan begins. */
void
groups_scan_begin(void)
{
	groups.scan_number++;
	groups.lacking = false;
}

/*
 * The scan has found again the first row of a group that could not be claimed: may the group be
 * read again from there, because others like it may be free by now?  The rows that were missed take
 * a small part of the time however many they are, and a group that is not at its end gets there.
 */
static bool
may_read_again(const QueueGroup *group)
{
	int64 pause = (int64) group->nmissed * (group->exhausted ? 1 : MISSED_READING);

	return !clock_is_before(order_now().mono, clock_plus_ms(group->missed_from, pause));
}

/*
 * A row of the group that was chosen was claimed, or was not: most likely it is locked.  It is
 * passed over until a scan finds it as the first one.  When that row is claimed, those behind it
 * may be free as well.
 */
void
groups_claimed(QueueGroup *group, TaskPlace place, bool claimed)
{
	int order = group->nmissed > 0 ? order_compare_places(&place, &group->missed) : -1;

	if (claimed && group->nmissed > 0 && order == 0)
	{
		group->nmissed = 0;
		groups_read_again(group, place);
	}
	else if (!claimed && order != 0)
	{
		if (group->nmissed++ == 0)
			group->missed_from = order_now().mono;
		if (order < 0)
			group->missed = place;
	}
}

/*
 * The scan has found the first rows of a group, and whether they are all ("complete").  If they are
 * not, those behind them are read again: there may be some that no hint has named.
 */
void
groups_scan_found(const TaskGroup *key, const TaskPlace *places, int count, bool complete)
{
	QueueGroup *group = name_group(key, places[0]);
	bool again;
	bool first;

	Assert(count > 0);
	if (group == NULL)
		return;
	first = group_knows_row(group) &&
			order_compare_places(&group->places[group->next], &places[0]) == 0;
	if (!first)
		end_hold(group->queue);
	again = complete || may_read_again(group);
	if (!again && order_compare_places(&group->missed, &places[0]) == 0)
		insert_place(group, places[0]); /* try it once more, and go on behind what was read */
	else if (!again && first)
		group->exhausted = false;
	else if (first && complete && group->count - group->next == count &&
			 memcmp(&group->places[group->next], places, count * sizeof(TaskPlace)) == 0)
		group->exhausted = true;
	else
	{
		set_places(group, places, count, complete);
		group->nmissed = 0;
		group->missed_from = order_now().mono;
	}
}

/*
 * The scan has read all groups: those that it did not find are empty.  Forget them, and queues that
 * are not used, up to this number.  Returns true when all are forgotten.
 */
bool
groups_forget_unseen(MonoTime now, int limit)
{
	for (; limit > 0 && !dlist_is_empty(&groups.all); limit--)
	{
		QueueGroup *group = dlist_head_element(QueueGroup, node, &groups.all);

		if (group->seen == groups.scan_number)
			break;
		forget_group(group);
	}
	return queues_forget_idle(now, limit);
}

/*
 * Return the groups whose next rows are to be read in one statement: of the first "limit" groups in
 * the order those of which at most one row is known.  One statement for many groups costs little
 * more than for one.
 */
int
groups_read_ahead(QueueGroup **batch, int limit, ClockNow now)
{
	QueueGroup **first = palloc(limit * sizeof(QueueGroup *));
	QueueGroup *group;
	int nfirst = 0;
	int count = 0;
	int i;

	while (nfirst < limit && (group = order_next(now)) != NULL)
	{
		first[nfirst++] = group;
		order_detach(group);
	}
	for (i = 0; i < nfirst; i++)
	{
		order_attach(first[i]);
		if (!first[i]->exhausted && first[i]->count - first[i]->next <= 1)
			batch[count++] = first[i];
	}
	pfree(first);
	return count;
}

/* Count the tasks of a group that could start now, as far as rows were read. */
static int
count_startable(const QueueGroup *group, ClockNow now)
{
	int count =
		Min(group->count - group->next, queue_free_places(group->queue, &group->key, now.mono));
	int i = group->next;

	while (i - group->next < count && group->places[i].dt <= now.wall)
		i++;
	return i - group->next;
}

/*
 * The role of this group, which order_next returned, has no executor for it: skip the role until
 * the next round.  Returns what it needs; it looks at no more than DEMAND_GROUPS groups for that,
 * and counts one task for each other queue.
 */
RoleDemand
groups_block_role(QueueGroup *group, ClockNow now)
{
	GroupRole *role = group->role;
	RoleDemand demand = {0, 0};
	QueueGroup *looked[DEMAND_GROUPS];
	int count = 0;

	if (role->since.us == 0)
		role->since = now.mono;
	while (count < DEMAND_GROUPS && (group = order_next_of_role(role, now)) != NULL)
	{
		double average = queue_average(group->queue);

		demand.tasks += count_startable(group, now);
		demand.average = average < 0 || demand.average < 0 ? -1 : Max(demand.average, average);
		order_detach(group);
		looked[count++] = group;
	}
	if (count == DEMAND_GROUPS)
		demand.tasks = Max(demand.tasks, role->ngroups);
	order_skip_role(role, ROLE_SKIPPED);
	while (count > 0)
		order_attach(looked[--count]);
	return demand;
}

/*
 * Add the next rows of the group, read from behind its read position.  Fewer than the limit mean
 * that there are no more.
 */
void
groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit)
{
	int i;

	/* in a partitioned table two rows may have the same position */
	for (i = 0; i < count; i++)
		Assert(order_compare_places(i > 0 ? &places[i - 1] : &group->read_position, &places[i]) <=
			   0);
	reserve_places(group, count);
	order_detach(group);
	/* of none the array may be NULL */
	if (count > 0)
	{
		memcpy(group->places + group->count, places, count * sizeof(TaskPlace));
		group->read_position = places[count - 1];
	}
	group->count += count;
	group->exhausted = count < limit;
	order_attach(group);
}

/*
 * Bring the groups to this moment: those come back that the last round has skipped, and those whose
 * time has come.  Returns whether there may be a task that can start now.
 */
bool
groups_advance(ClockNow now)
{
	follow_limits();
	order_advance(now);
	return order_next(now) != NULL || role_line_read(now.mono).waits;
}

/* Remove the first row from those that are known. */
static TaskPlace
pop_place(QueueGroup *group)
{
	TaskPlace place;

	order_detach(group);
	place = group->places[group->next++];
	if (!group_knows_row(group))
		free_places(group);
	order_attach(group);
	return place;
}

/* Take the first task of the group that order_next returned: the caller starts it. */
TaskPlace
groups_take(QueueGroup *group, ClockNow now)
{
	TaskPlace place = pop_place(group);

	Assert(place.dt <= now.wall);
	move_to_end(group);
	order_set_turn(group->queue, queue_next_turn(group->queue, now.wall));
	return place;
}

/* Drop the first task of a group, if it is due: it is not started. */
bool
groups_drop(QueueGroup *group, ClockNow now)
{
	if (!group_is_due(group, now))
		return false;
	(void) pop_place(group);
	return true;
}
