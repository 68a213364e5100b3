/*
 * groups.c
 *		The scheduler's memory of what waits, and of what runs in each queue.
 *
 * Because one process alone starts tasks, this memory decides order and
 * limits without a lock.  Rows are read from the table a stretch at a time
 * and never twice: "mark" says how far a group was read, so dead rows in front
 * of it are not walked over again.  Rows that appear in front of the mark are
 * noted by the trigger, and by the complete scan that comes every period.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/binaryheap.h"
#include "utils/memutils.h"

#include "scheduler/groups.h"

/* A known average follows the last few runs. */
#define AVERAGE_WEIGHT 0.2

/* After so many tasks in a row that could not be claimed, a group is taken to be locked. */
#define LOCKED_MISSES 16

/* How long a queue without tasks is remembered, and how long when there are many. */
#define QUEUE_MEMORY_MS (10 * 60 * 1000)
#define QUEUE_MEMORY_MANY_MS 1000
#define QUEUES_MANY 1000

typedef struct QueueEntry
{
	char *name;
	uint32 hash;
	char status;
	QueueState *queue;
} QueueEntry;

#define SH_PREFIX queues
#define SH_ELEMENT_TYPE QueueEntry
#define SH_KEY_TYPE char *
#define SH_KEY name
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) (key), strlen(key))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

typedef struct GroupEntry
{
	TaskGroup key;
	uint32 hash;
	char status;
	QueueGroup *group;
} GroupEntry;

static uint32
hash_group(TaskGroup key)
{
	uint32 hash = hash_bytes((const unsigned char *) key.queue, strlen(key.queue));

	hash = hash_combine(hash, hash_bytes((const unsigned char *) key.role, strlen(key.role)));
	hash = hash_combine(hash, murmurhash32((uint32) key.role_id));
	return hash_combine(hash, murmurhash32((uint32) key.max * 31 + (uint32) key.priority));
}

static bool
same_group(TaskGroup a, TaskGroup b)
{
	return a.max == b.max && a.priority == b.priority && a.role_id == b.role_id &&
		   strcmp(a.queue, b.queue) == 0 && strcmp(a.role, b.role) == 0;
}

#define SH_PREFIX grouptable
#define SH_ELEMENT_TYPE GroupEntry
#define SH_KEY_TYPE TaskGroup
#define SH_KEY key
#define SH_HASH_KEY(tb, key) hash_group(key)
#define SH_EQUAL(tb, a, b) same_group(a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static MemoryContext context = NULL;
static queues_hash *queues = NULL;
static grouptable_hash *groups = NULL;
static dlist_head all_groups = DLIST_STATIC_INIT(all_groups);
static dlist_head unread_groups = DLIST_STATIC_INIT(unread_groups);
static binaryheap *order = NULL;
static double overall_average = -1; /* of all queues: what is thought of a new one */
static bool order_ended = false;	/* what comes next is not known */
static uint32 scan_number = 0;

static int
compare_places(const TaskPlace *a, const TaskPlace *b)
{
	if (a->dt != b->dt)
		return a->dt < b->dt ? -1 : 1;
	if (a->id != b->id)
		return a->id < b->id ? -1 : 1;
	return 0;
}

static bool
is_read(const QueueGroup *group)
{
	return group->next < group->count;
}

/* Keep the list of the groups whose next row is not known. */
static void
update_unread(QueueGroup *group)
{
	bool unread = !is_read(group) && !group->exhausted;

	if (unread && !group->unread)
		dlist_push_tail(&unread_groups, &group->unread_node);
	else if (!unread && group->unread)
		dlist_delete(&group->unread_node);
	group->unread = unread;
}

/* These are the next rows of the group. */
static void
set_places(QueueGroup *group, const TaskPlace *places, int count)
{
	if (group->size < count)
	{
		if (group->places)
			pfree(group->places);
		group->places = NULL;
		group->size = group->next = group->count = 0;
		group->places = MemoryContextAlloc(context, count * sizeof(TaskPlace));
		group->size = count;
	}
	memcpy(group->places, places, count * sizeof(TaskPlace));
	group->next = 0;
	group->count = count;
	if (count > 0)
		group->mark = places[count - 1];
}

void
groups_create(void)
{
	context = AllocSetContextCreate(TopMemoryContext, "pg_task waiting", ALLOCSET_DEFAULT_SIZES);
	queues = queues_create(context, 64, NULL);
	groups = grouptable_create(context, 64, NULL);
}

static void
forget_group(QueueGroup *group)
{
	group->queue->groups--;
	if (group->unread)
		dlist_delete(&group->unread_node);
	dlist_delete(&group->node);
	grouptable_delete(groups, group->key);
	if (group->places)
		pfree(group->places);
	pfree((char *) group->key.queue);
	pfree((char *) group->key.role);
	pfree(group);
}

/* Forget what waits, not what runs: after an error nothing of it can be trusted. */
void
groups_clear(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &all_groups)
		forget_group(dlist_container(QueueGroup, node, iter.cur));
}

/*
 * The server's hash tables take themselves for larger than they are when there was no memory to
 * let them grow.
 */
static QueueEntry *
insert_queue(char *name)
{
	queues_hash before = *queues;
	QueueEntry *volatile entry = NULL;
	bool found;

	PG_TRY();
	{
		entry = queues_insert(queues, name, &found);
	}
	PG_CATCH();
	{
		*queues = before;
		PG_RE_THROW();
	}
	PG_END_TRY();
	return entry;
}

static GroupEntry *
insert_group(TaskGroup key)
{
	grouptable_hash before = *groups;
	GroupEntry *volatile entry = NULL;
	bool found;

	PG_TRY();
	{
		entry = grouptable_insert(groups, key, &found);
	}
	PG_CATCH();
	{
		*groups = before;
		PG_RE_THROW();
	}
	PG_END_TRY();
	return entry;
}

QueueState *
groups_queue(const char *name)
{
	QueueEntry *entry = queues_lookup(queues, (char *) name);
	QueueState *queue;

	if (entry)
		return entry->queue;
	queue = MemoryContextAllocZero(context, sizeof(QueueState));
	queue->name = MemoryContextStrdup(context, name);
	queue->average = overall_average;
	entry = insert_queue(queue->name);
	entry->queue = queue;
	return queue;
}

/* The group with this key; a new one is thought to be read to the very end. */
QueueGroup *
groups_get(const TaskGroup *key)
{
	GroupEntry *entry = grouptable_lookup(groups, *key);
	QueueState *queue;
	QueueGroup *group;

	if (entry)
		return entry->group;
	queue = groups_queue(key->queue);
	group = MemoryContextAllocZero(context, sizeof(QueueGroup));
	group->key = *key;
	group->key.queue = MemoryContextStrdup(context, key->queue);
	group->key.role = MemoryContextStrdup(context, key->role);
	entry = insert_group(group->key);
	/* nothing fails from here on */
	entry->group = group;
	group->queue = queue;
	group->queue->groups++;
	group->mark.dt = PG_INT64_MAX;
	group->mark.id = PG_INT64_MAX;
	group->exhausted = true;
	group->seen = scan_number;
	dlist_push_tail(&all_groups, &group->node);
	return group;
}

/* The group's next row is here; those behind it have to be read. */
static void
rewind_group(QueueGroup *group, TaskPlace place)
{
	set_places(group, &place, 1);
	group->exhausted = false;
	update_unread(group);
}

/*
 * Rows of a group appeared, the first of them here.  If that is in front of
 * the mark, what was read and not taken is read again.
 */
void
groups_hint(const TaskGroup *key, TaskPlace place)
{
	QueueGroup *group = groups_get(key);

	group->seen = scan_number;
	if (compare_places(&place, &group->mark) > 0)
	{
		if (is_read(group))
			group->exhausted = false;
		else if (group->exhausted)
			rewind_group(group, place);
		return;
	}
	if (is_read(group) && compare_places(&group->places[group->next], &place) < 0)
		place = group->places[group->next];
	rewind_group(group, place);
}

/* Nothing is known of the rows behind this place. */
static void
read_from(QueueGroup *group, TaskPlace mark)
{
	group->next = group->count = 0;
	group->mark = mark;
	group->exhausted = false;
	update_unread(group);
}

/*
 * A look found the first row of a group whose rows are locked.  One that was read is tried
 * again, but the rest is read to the end before it is read from the beginning again.
 */
static void
head_of_locked(QueueGroup *group, TaskPlace place)
{
	TaskPlace before = {place.dt, place.id - (place.id > PG_INT64_MIN)};

	group->head = place;
	if (!is_read(group) && (group->exhausted || compare_places(&place, &group->mark) > 0))
		read_from(group, before);
}

/* A task of the group was claimed. */
void
groups_claimed(QueueGroup *group)
{
	group->misses = 0;
	group->locked = false;
}

/*
 * A task that was taken could not be claimed.  After too many in a row, rows are chosen only
 * when nobody has locked them: what is locked needs no executor.
 */
void
groups_missed(QueueGroup *group)
{
	if (group->locked || ++group->misses < LOCKED_MISSES)
		return;
	group->locked = true;
	group->head.dt = DT_NOEND;
	if (group->next > 0)
		read_from(group, group->places[group->next - 1]);
}

/* Leave a group alone for a while; others are read before. */
void
groups_rest(QueueGroup *group, MonoTime until)
{
	group->rest_until = until;
	if (!group->unread)
		return;
	dlist_delete(&group->unread_node);
	dlist_push_tail(&unread_groups, &group->unread_node);
}

/* These rows of a locked group are not, of all that were read up to the mark. */
void
groups_read_unlocked(QueueGroup *group, const TaskPlace *places, int count, TaskPlace mark,
					 bool exhausted)
{
	Assert(!is_read(group));
	set_places(group, places, count);
	group->mark = mark;
	group->exhausted = exhausted;
	update_unread(group);
}

/* The first row of a locked group is not locked any more: read the group from there. */
void
groups_unlocked(QueueGroup *group)
{
	groups_claimed(group);
	rewind_group(group, group->head);
}

/* A complete scan begins ... */
void
groups_scan_begin(void)
{
	scan_number++;
}

/* ... found the first row of a group here ... */
void
groups_scan_found(const TaskGroup *key, TaskPlace place)
{
	QueueGroup *group = groups_get(key);

	group->seen = scan_number;
	if (group->locked)
		head_of_locked(group, place);
	else if (!is_read(group) || compare_places(&group->places[group->next], &place) != 0)
		rewind_group(group, place);
}

/* Forget queues that nothing refers to and that nobody used for a while. */
static void
forget_queues(MonoTime now)
{
	int memory = queues->members > QUEUES_MANY ? QUEUE_MEMORY_MANY_MS : QUEUE_MEMORY_MS;
	queues_iterator iter;
	QueueEntry *entry;

	queues_start_iterate(queues, &iter);
	while ((entry = queues_iterate(queues, &iter)) != NULL)
	{
		QueueState *queue = entry->queue;

		if (queue->groups > 0 || queue->running > 0 || clock_is_before(now, queue->paused_until) ||
			!clock_exceeds(queue->last_start, now, memory))
			continue;
		queues_delete_item(queues, entry);
		pfree(queue->name);
		pfree(queue);
	}
}

/* ... and is over: groups that it did not find are empty. */
void
groups_scan_end(MonoTime now)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &all_groups)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (group->seen != scan_number)
			forget_group(group);
	}
	forget_queues(now);
}

/*
 * Is there a free place in the queue?  A limit counts all running tasks of the
 * queue; a negative one lets one run at a time.
 */
static bool
has_place(const QueueGroup *group)
{
	int32 max = group->key.max;

	if (max == TASK_UNLIMITED)
		return true;
	return group->queue->running < (max < 0 ? 1 : max);
}

/* A negative limit is the pause between two starts, in milliseconds. */
static MonoTime
next_start(const QueueGroup *group)
{
	if (group->key.max >= 0)
		return group->rest_until;
	return clock_max(group->rest_until,
					 clock_plus_ms(group->queue->last_start, -(int64) group->key.max));
}

static bool
may_start(const QueueGroup *group, MonoTime now)
{
	return has_place(group) && !clock_is_before(now, next_start(group));
}

/* A group that must be read on before the order is known; NULL when there is none. */
QueueGroup *
groups_unread(ClockNow now)
{
	dlist_iter iter;

	dlist_foreach(iter, &unread_groups)
	{
		QueueGroup *group = dlist_container(QueueGroup, unread_node, iter.cur);

		if (may_start(group, now.mono))
			return group;
	}
	return NULL;
}

/* These rows of the group come behind its mark; fewer than the limit: no more do. */
void
groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit)
{
	Assert(!is_read(group));
	set_places(group, places, count);
	group->exhausted = count < limit;
	update_unread(group);
}

/* Which group's first task goes first: positive when a's does. */
static int
compare_groups(Datum a, Datum b, void *arg pg_attribute_unused())
{
	const QueueGroup *left = (const QueueGroup *) DatumGetPointer(a);
	const QueueGroup *right = (const QueueGroup *) DatumGetPointer(b);

	if (left->key.max != right->key.max)
		return left->key.max > right->key.max ? 1 : -1;
	if (left->key.priority != right->key.priority)
		return left->key.priority < right->key.priority ? 1 : -1;
	return -compare_places(&left->places[left->next], &right->places[right->next]);
}

static bool
is_eligible(const QueueGroup *group, ClockNow now)
{
	return is_read(group) && group->places[group->next].dt <= now.wall &&
		   may_start(group, now.mono);
}

/*
 * Put all groups that may start a task now into order.  All that could matter
 * must have been read.
 */
void
groups_order(ClockNow now)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	dlist_iter iter;

	if (order)
		binaryheap_free(order);
	order = NULL;
	order = binaryheap_allocate(groups->members + 1, compare_groups, NULL);
	MemoryContextSwitchTo(old);
	dlist_foreach(iter, &all_groups)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (is_eligible(group, now))
			binaryheap_add_unordered(order, PointerGetDatum(group));
	}
	binaryheap_build(order);
	order_ended = false;
}

/*
 * The group whose first task goes next.  NULL when there is none, or when it
 * is not known because a group has to be read on first.
 */
QueueGroup *
groups_next(ClockNow now)
{
	while (!order_ended && !binaryheap_empty(order))
	{
		QueueGroup *group = (QueueGroup *) DatumGetPointer(binaryheap_first(order));

		if (may_start(group, now.mono))
			return group;
		binaryheap_remove_first(order);
	}
	return NULL;
}

/* Take the first task of the group that groups_next returned: it counts as running. */
TaskPlace
groups_take(ClockNow now)
{
	QueueGroup *group = (QueueGroup *) DatumGetPointer(binaryheap_first(order));
	TaskPlace place = group->places[group->next++];
	QueueState *queue = group->queue;

	queue->running++;
	queue->last_start = now.mono;
	if (group->key.max < 0)
		queue->paused_until = clock_max(queue->paused_until, next_start(group));
	if (is_eligible(group, now))
		binaryheap_replace_first(order, PointerGetDatum(group));
	else
		binaryheap_remove_first(order);
	update_unread(group);
	order_ended = group->unread;
	return place;
}

/* Leave that group alone until the next groups_order. */
void
groups_skip(void)
{
	binaryheap_remove_first(order);
}

/* Is the first task of a group known, and due? */
bool
groups_due_now(const QueueGroup *group, ClockNow now)
{
	return is_read(group) && group->places[group->next].dt <= now.wall;
}

/* Remove the first task of a group, if it is due, without starting it. */
bool
groups_drop(QueueGroup *group, ClockNow now, TaskPlace *place)
{
	if (!groups_due_now(group, now))
		return false;
	*place = group->places[group->next++];
	update_unread(group);
	return true;
}

/* May there be a task that can start now?  If so, groups are to be read and ordered. */
bool
groups_ready(ClockNow now)
{
	dlist_iter iter;

	dlist_foreach(iter, &all_groups)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (is_eligible(group, now))
			return true;
	}
	return groups_unread(now) != NULL;
}

/* How many tasks of a group could start now, as far as is known. */
int
groups_startable(const QueueGroup *group, ClockNow now)
{
	int32 max = group->key.max;
	int count = group->count - group->next;
	int i = group->next;

	if (max != TASK_UNLIMITED)
		count = Min(count, max < 0 ? 1 : max - group->queue->running);
	while (i - group->next < count && group->places[i].dt <= now.wall)
		i++;
	return i - group->next;
}

/* A task of the queue runs no more, or was not started after all. */
void
groups_task_ended(QueueState *queue)
{
	Assert(queue->running > 0);
	queue->running--;
}

static void
learn(double *average, uint32 elapsed)
{
	if (*average < 0)
		*average = elapsed;
	else
		*average += AVERAGE_WEIGHT * (elapsed - *average);
}

/* A task of the queue took so many microseconds. */
void
groups_learn(QueueState *queue, uint32 elapsed)
{
	learn(&queue->average, elapsed);
	learn(&overall_average, elapsed);
}

/*
 * The next moment after "now" at which a task becomes due whose queue has a
 * free place, if nobody sets the wall clock until then; CLOCK_NEVER when there is none in
 * sight.
 */
MonoTime
groups_until(ClockNow now)
{
	MonoTime until = CLOCK_NEVER;
	dlist_iter iter;

	dlist_foreach(iter, &all_groups)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);
		MonoTime moment;

		if (!has_place(group) || (!is_read(group) && group->exhausted))
			continue;
		moment = next_start(group);
		if (is_read(group))
			moment = clock_max(moment, clock_of_wall(now, group->places[group->next].dt));
		if (clock_is_before(now.mono, moment))
			until = clock_min(until, moment);
	}
	return until;
}
