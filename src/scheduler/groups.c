/*
 * groups.c
 *		The scheduler's memory of the waiting rows.
 *
 * Only the scheduler of a database starts tasks there, so this memory decides order and limits
 * without a lock.  Rows are read from the table in stretches and never twice: each group has a read
 * position, so the dead rows before it are not scanned again.  Rows that appear before the read
 * position are named by a hint, or found by the scan of every period.
 *
 * order.c keeps the groups in order, queues.c what runs in their queues, and surplus.c decides
 * which groups are forgotten when there are too many.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "scheduler/group_places.h"
#include "scheduler/groups.h"
#include "scheduler/hash_insert.h"
#include "scheduler/name_seed.h"
#include "scheduler/order.h"
#include "scheduler/rates.h"
#include "scheduler/role_line.h"
#include "scheduler/surplus.h"

/* Rows of a group that are remembered because hints named each of them. */
#define HINTED_ROWS 16

/*
 * A group of which rows could not be claimed is read again from the first of them after one ms for
 * each, or after this many as long as it was not read to its end.
 */
#define MISSED_READING 16

typedef struct GroupEntry
{
	const TaskGroup *key; /* that of the group, at its beginning */
	uint32 hash;
	char status;
} GroupEntry;

/* Users choose all parts of a key: see name_seed.h. */
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
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Static, because rows are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of all that follows, of order.c and queues.c */
	MemoryContext members; /* of QueueGroup alone */
	grouptable_hash *table;
	dlist_head all;		  /* all groups; those that were named last at the end */
	dlist_node *expected; /* the one that the scan will probably find next, in that list; or NULL */
	uint32 scan_number;
	int limit;	   /* groups that are remembered at most */
	bool sweeping; /* the groups that the last scan did not find are forgotten */
} groups;

DEFINE_HASH_INSERT(insert_group, grouptable, GroupEntry, const TaskGroup *)

void
groups_create(int limit, int64 aging)
{
	memset(&groups, 0, sizeof(groups));
	groups.limit = limit;
	dlist_init(&groups.all);
	groups.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task groups", ALLOCSET_DEFAULT_SIZES);
	groups.members = SlabContextCreate(groups.context, "pg_task group members",
									   SLAB_DEFAULT_BLOCK_SIZE, sizeof(QueueGroup));
	groups.table = grouptable_create(groups.context, 64, NULL);
	queues_create(groups.context);
	rates_create(groups.context);
	order_key_create(aging);
	order_create(groups.context);
	surplus_create();
}

/* Remove a group from the list of all. */
static void
unlist_group(QueueGroup *group)
{
	if (groups.expected == &group->node)
		groups.expected = dlist_has_next(&groups.all, &group->node)
							  ? dlist_next_node(&groups.all, &group->node)
							  : NULL;
	dlist_delete(&group->node);
}

/* A strict queue is not held any more: look at its first task again. */
static void
end_hold(QueueState *queue)
{
	queue->held_group = NULL;
	queue->held_until = CLOCK_LONG_AGO;
	lanes_open(queue);
}

/* Forget a group.  Those that wait are found again by a scan. */
void
groups_forget(QueueGroup *group)
{
	QueueState *queue = group->queue;

	if (queue->held_group == group)
		end_hold(queue);
	unlist_group(group);
	grouptable_delete(groups.table, &group->key);
	order_detach(group);
	group->lane->role->ngroups--;
	group->lane->ngroups--;
	lane_release(group->lane);
	queue_remove_group(queue);
	group->next = group->count = 0;
	group_places_free(group);
	pfree(group);
}

/* Forget the waiting rows, but not what runs: after an error they are not trusted. */
void
groups_clear(void)
{
	dlist_mutable_iter iter;

	queues_lose_sight();
	dlist_foreach_modify(iter, &groups.all)
		groups_forget(dlist_container(QueueGroup, node, iter.cur));
}

/* Put a group into its lane and the hash table. */
static void
insert_into_lane(QueueGroup *group, QueueState *queue, GroupLane *lane)
{
	group->key.queue = queue->name;
	group->key.role = lane->role->name;
	PG_TRY();
	{
		(void) insert_group(groups.table, &group->key);
	}
	PG_CATCH();
	{
		lane_release(lane);
		PG_RE_THROW();
	}
	PG_END_TRY();
	/* nothing fails from here on */
	group->queue = queue;
	group->lane = lane;
	lane->ngroups++;
	lane->role->ngroups++;
	queue_add_group(queue);
	dlist_push_tail(&groups.all, &group->node);
}

/*
 * Add a group, with its read position before all rows.  If memory runs out, only a queue without
 * groups and its rate may remain, which are forgotten like any other.
 */
static QueueGroup *
add_group(const TaskGroup *key)
{
	QueueState *queue = queue_find_or_add(key->queue);
	QueueGroup *group;

	if (key->max < 0)
		rates_want_pause(queue, -(int64) key->max);
	group = MemoryContextAllocZero(groups.members, sizeof(QueueGroup));
	group->key = *key;
	group->places = &group->one;
	group->size = 1;
	group->read_position.dt = PG_INT64_MIN;
	group->read_position.id = PG_INT64_MIN;
	group->exhausted = true;
	PG_TRY();
	{
		insert_into_lane(group, queue, lane_find_or_add(queue, key->role));
	}
	PG_CATCH();
	{
		pfree(group);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return group;
}

/*
 * Must this group, which is not known, be remembered?  A group whose "max" is 0 never starts a
 * task. If there are too many groups, others are forgotten for it, or it is not remembered.
 */
static bool
is_wanted(const TaskGroup *key, TaskPlace place)
{
	if (key->max == 0)
		return false;
	if ((int) groups.table->members < groups.limit)
		return true;
	if (surplus_refuse(key, place))
		return false;
	surplus_forget(&groups.all, (int) groups.table->members, groups.limit - groups.limit / 5);
	return !surplus_refuse(key, place);
}

/* Return the group with this key; NULL if it is not remembered. */
QueueGroup *
groups_find(const TaskGroup *key)
{
	GroupEntry *entry = grouptable_lookup(groups.table, key);

	return entry ? (QueueGroup *) entry->key : NULL;
}

/*
 * The same for the next group that a scan has found.  Each scan finds them in the same order, so it
 * mostly is the one that the last scan has found next: that saves a look into the table.
 */
static QueueGroup *
find_expected(const TaskGroup *key)
{
	QueueGroup *group = NULL;

	if (groups.expected)
		group = dlist_container(QueueGroup, node, groups.expected);
	if (group == NULL || !task_same_group(&group->key, key))
		group = groups_find(key);
	if (group)
		groups.expected = &group->node;
	return group;
}

/*
 * A hint or a scan has named a row of this group at this position.  Return it, or add it if it is
 * NULL; NULL if it is not to be remembered.
 */
static QueueGroup *
see_group(QueueGroup *group, const TaskGroup *key, TaskPlace place)
{
	if (group == NULL && !is_wanted(key, place))
		return NULL;
	if (group == NULL)
		group = add_group(key);
	else
	{
		unlist_group(group);
		dlist_push_tail(&groups.all, &group->node);
	}
	group->seen = groups.scan_number;
	return group;
}

/*
 * Set the group's next rows to these.  Unless there are no more behind them ("complete"), those are
 * to be read.
 */
static void
rewind_group(QueueGroup *group, const TaskPlace *places, int count, bool complete)
{
	if (group->size < count)
		group_places_reserve(groups.context, group, count);
	order_detach(group);
	group->next = group->count = 0;
	group_places_append(group, places, count);
	group->exhausted = complete;
	order_attach(group);
}

/* The first row of a group is this one; the rows behind it have to be read again. */
void
groups_rewind(QueueGroup *group, TaskPlace place)
{
	rewind_group(group, &place, 1, false);
}

/*
 * A hint or a scan has named the first row of a group.  If its queue is held for another one, or
 * that row was written, what holds the queue may be over.  If the group for which it is held was
 * forgotten, this may be that group.
 */
static void
note_first_row(QueueGroup *group, TaskPlace place, bool scanned)
{
	int order = order_compare_places(&place, &group->queue->held_place);

	if (group->queue->held_group == NULL && group->queue->held_until.us != CLOCK_LONG_AGO.us)
	{
		if (!scanned)
			end_hold(group->queue);
		else if (order == 0)
			group->queue->held_group = group;
	}
	if (group->queue->held_group != group)
		return;
	if (order < 0 || (order == 0) != scanned)
		end_hold(group->queue);
}

/*
 * New rows of a group wait, the first at this position.  If it is before the read position, the
 * rows that were read and not taken are read again.
 */
static void
add_rows(QueueGroup *group, TaskPlace place)
{
	if (order_compare_places(&place, &group->read_position) > 0)
	{
		if (group_knows_row(group))
			group->exhausted = false;
		else if (group->exhausted)
			rewind_group(group, &place, 1, false);
		return;
	}
	if (group_knows_row(group) && order_compare_places(&group->places[group->next], &place) < 0)
		place = group->places[group->next];
	rewind_group(group, &place, 1, false);
}

/* Add one row to those that are known; the others stay as they are. */
static void
insert_row(QueueGroup *group, TaskPlace place)
{
	group_places_reserve(groups.context, group, 1);
	order_detach(group);
	group_places_insert(group, place);
	order_attach(group);
}

/* A hint: new rows of a group wait, the first at this position. */
void
groups_hint(const TaskGroup *key, TaskPlace place)
{
	QueueGroup *group = see_group(groups_find(key), key, place);

	if (group == NULL)
		return;
	note_first_row(group, place, false);
	add_rows(group, place);
}

/*
 * A hint: one new row of a group waits, at this position.  If all other rows of the group are
 * known, nothing has to be read to know this one.
 */
void
groups_hint_row(const TaskGroup *key, TaskPlace place)
{
	QueueGroup *group = see_group(groups_find(key), key, place);

	if (group == NULL)
		return;
	note_first_row(group, place, false);
	if (!group->exhausted || group->count - group->next >= HINTED_ROWS)
	{
		add_rows(group, place);
		return;
	}
	insert_row(group, place);
}

/* Is it known that the first row of this group is the one at this position? */
bool
groups_know(const TaskGroup *key, TaskPlace place)
{
	const QueueGroup *group = groups_find(key);

	return group && group_knows_row(group) &&
		   order_compare_places(&group->places[group->next], &place) == 0;
}

/* A scan begins. */
void
groups_scan_begin(void)
{
	groups.scan_number++;
	surplus_scan_begin();
}

/* Is the first row of a group, as a scan has found it, one that should have been known? */
static bool
is_news(const QueueGroup *group, TaskPlace place)
{
	if (group_knows_row(group))
		return order_compare_places(&place, &group->places[group->next]) < 0;
	return group->exhausted || order_compare_places(&place, &group->read_position) <= 0;
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
		order_detach(group);
		group->next = group->count = group->nmissed = 0;
		group->read_position = place;
		group->exhausted = false;
		order_attach(group);
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
 * The scan has found the first rows of a group, and whether they are all ("complete").  Returns
 * true if no hint had named the first one.
 */
bool
groups_scan_found(const TaskGroup *key, const TaskPlace *places, int count, bool complete)
{
	QueueGroup *group = see_group(find_expected(key), key, places[0]);
	bool news;
	bool known;

	Assert(count > 0);
	if (group == NULL)
		return false;
	news = is_news(group, places[0]);
	note_first_row(group, places[0], true);
	known = group_knows_row(group) &&
			order_compare_places(&group->places[group->next], &places[0]) == 0;
	if (group->nmissed > 0 && !complete && !may_read_again(group) &&
		order_compare_places(&group->missed, &places[0]) == 0)
	{
		/* try it once more, and go on behind what was read */
		if (!known)
			insert_row(group, places[0]);
	}
	else if (!known)
	{
		rewind_group(group, places, count, complete);
		group->nmissed = 0;
		group->missed_from = order_now().mono;
	}
	else if (!complete || group->count - group->next < count)
		group->exhausted = false;
	else if (group->count - group->next == count)
		group->exhausted = true;
	return news;
}

/* The scan is complete: the groups that it did not find are empty, and are to be forgotten. */
void
groups_scan_end(void)
{
	groups.sweeping = false;
	surplus_scan_end();
}

/*
 * After a scan: forget groups that it did not find, and queues that are not used, up to this
 * number. Returns true when all are forgotten.
 */
bool
groups_forget_unseen(MonoTime now, int limit)
{
	for (; limit > 0 && !dlist_is_empty(&groups.all); limit--)
	{
		QueueGroup *group = dlist_head_element(QueueGroup, node, &groups.all);

		if (group->seen == groups.scan_number)
			break;
		groups_forget(group);
	}
	if (limit <= 0)
		return false;
	if (!groups.sweeping)
		queues_sweep_begin();
	groups.sweeping = true;
	return queues_sweep(now, limit);
}

/* Can the group be read ahead?  At most one of its rows is known, and there may be more. */
static bool
wants_reading(const QueueGroup *group)
{
	return !group->exhausted && group->count - group->next <= 1;
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

	while (nfirst < limit && (group = order_first(now)) != NULL)
	{
		first[nfirst++] = group;
		order_detach(group);
	}
	for (i = 0; i < nfirst; i++)
	{
		order_attach(first[i]);
		if (wants_reading(first[i]))
			batch[count++] = first[i];
	}
	pfree(first);
	return count;
}

/*
 * Add the next rows of the group, read from behind its read position.  Fewer than the limit mean
 * that there are no more.
 */
void
groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit)
{
	Assert(order_places_ascend(group->read_position, places, count));
	group_places_reserve(groups.context, group, count);
	order_detach(group);
	group_places_append(group, places, count);
	group->exhausted = count < limit;
	order_attach(group);
}

/*
 * A round of dispatch begins.  May there be a task that can start now?
 */
bool
groups_ready(ClockNow now)
{
	order_begin_round(now);
	return order_first(now) != NULL || role_line_waits();
}

/*
 * Return the group whose first task is next.  If no row of it is known, it has to be read.  NULL if
 * there is none.
 */
QueueGroup *
groups_next(ClockNow now)
{
	return order_first(now);
}

/* Remove the first row from those that are known. */
static TaskPlace
take_first(QueueGroup *group)
{
	TaskPlace place;

	order_detach(group);
	place = group->places[group->next++];
	if (!group_knows_row(group))
		group_places_free(group);
	order_attach(group);
	return place;
}

/* Choose the first task of the group that groups_next returned, which counts as running. */
TaskPlace
groups_choose_first(QueueGroup *group, ClockNow now)
{
	TaskPlace place = take_first(group);

	Assert(place.dt <= now.wall);
	lanes_set_turn(group->queue, queue_next_turn(group->queue, now.wall));
	return place;
}

/* Skip a group until the next round. */
void
groups_skip(QueueGroup *group)
{
	order_skip(group);
}

/* Skip all groups of the same role until the next round. */
void
groups_skip_role(QueueGroup *group)
{
	lanes_skip_role(group->lane->role);
}

/* Is the first task of a group known, and due? */
bool
groups_due_now(const QueueGroup *group, ClockNow now)
{
	return group_knows_row(group) && group->places[group->next].dt <= now.wall;
}

/* Remove the first task of a group, if it is due, without starting it. */
bool
groups_drop_first(QueueGroup *group, ClockNow now, TaskPlace *place)
{
	if (!groups_due_now(group, now))
		return false;
	*place = take_first(group);
	return true;
}

/*
 * A task of the queue was chosen, or is running already: it counts for the queue's limit.  Only
 * pool.c calls this and groups_task_ended.
 */
void
groups_task_started(QueueState *queue)
{
	queue_count_started(queue);
}

/* A task that counted has ended, or is not started. */
void
groups_task_ended(QueueState *queue)
{
	queue_count_ended(queue);
	lanes_open(queue);
	surplus_queue_free(queue);
}

/* The rule of the queue has changed: look again whether it may start a task. */
void
groups_queue_changed(QueueState *queue)
{
	lanes_open(queue);
	surplus_queue_free(queue);
}

/* The rule of the queue of this name has changed, or that of any queue (NULL). */
void
groups_rule_changed(const char *name)
{
	QueueState *queue = name ? queue_find(name) : NULL;

	if (name == NULL)
		lanes_open_all();
	else if (queue)
		groups_queue_changed(queue);
	surplus_rules_changed();
}

/*
 * Return the next moment after "now", which is that of the last round, at which a task may become
 * due or a queue may start one more, assuming that the wall clock is not set until then.
 * CLOCK_NEVER if none is known.
 */
MonoTime
groups_due_at(ClockNow now)
{
	return order_due_at(now);
}
