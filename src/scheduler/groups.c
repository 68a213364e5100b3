/*
 * groups.c
 *		The scheduler's memory of the waiting rows, and of what runs in each queue.
 *
 * Only the scheduler of a database starts tasks there, so this memory decides order and limits
 * without a lock.  Rows are read from the table in stretches and never twice: each group has a read
 * position, so the dead rows before it are not scanned again.  Rows that appear before the read
 * position are named by a hint, or found by the scan of every period.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/binaryheap.h"
#include "utils/memutils.h"

#include "scheduler/groups.h"
#include "scheduler/hash_insert.h"

/* Weight of the last run in the average duration. */
#define AVERAGE_WEIGHT 0.2

/* A group counts as locked after this number of tasks in a row that could not be claimed. */
#define LOCKED_MISSES 16

/*
 * How long a queue without tasks is remembered (ms), and how long if there are more than
 * QUEUES_MANY.
 */
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

#define SH_PREFIX grouptable
#define SH_ELEMENT_TYPE GroupEntry
#define SH_KEY_TYPE TaskGroup
#define SH_KEY key
#define SH_HASH_KEY(tb, key) hash_group(key)
#define SH_EQUAL(tb, a, b) task_same_group(&(a), &(b))
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Static, because rows and queues are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of all that follows */
	queues_hash *queues;
	grouptable_hash *table;
	dlist_head all;	   /* all groups */
	dlist_head unread; /* those whose next row is not known */
	binaryheap *order; /* of the groups that may start a task; see groups_order */
	bool order_ended;  /* the next group is not known: one has to be read first */
	double average;	   /* of all queues; the initial value for a new one */
	uint32 scan_number;
} groups;

static int
compare_places(const TaskPlace *a, const TaskPlace *b)
{
	if (a->dt != b->dt)
		return a->dt < b->dt ? -1 : 1;
	if (a->id != b->id)
		return a->id < b->id ? -1 : 1;
	return 0;
}

/* Is the next row of the group known? */
static bool
knows_next_row(const QueueGroup *group)
{
	return group->next < group->count;
}

/* Put the group into the list of those whose next row is not known, or remove it from there. */
static void
update_unread(QueueGroup *group)
{
	bool unread = !knows_next_row(group) && !group->exhausted;

	if (unread && !group->unread)
		dlist_push_tail(&groups.unread, &group->unread_node);
	else if (!unread && group->unread)
		dlist_delete(&group->unread_node);
	group->unread = unread;
}

#ifdef USE_ASSERT_CHECKING
/*
 * Are these positions in ascending order, and behind the read position?  In a partitioned table two
 * rows may have the same position.
 */
static bool
are_ordered(TaskPlace read_position, const TaskPlace *places, int count)
{
	int i;

	for (i = 1; i < count; i++)
		if (compare_places(&places[i - 1], &places[i]) > 0)
			return false;
	return count == 0 || compare_places(&read_position, &places[0]) < 0;
}
#endif

/* Set the next rows of the group. */
static void
set_places(QueueGroup *group, const TaskPlace *places, int count)
{
	if (group->size < count)
	{
		if (group->places)
			pfree(group->places);
		group->places = NULL;
		group->size = group->next = group->count = 0;
		group->places = MemoryContextAlloc(groups.context, count * sizeof(TaskPlace));
		group->size = count;
	}
	group->next = 0;
	group->count = count;
	if (count == 0) /* and perhaps no memory on either side */
		return;
	memcpy(group->places, places, count * sizeof(TaskPlace));
	group->read_position = places[count - 1];
}

void
groups_create(void)
{
	memset(&groups, 0, sizeof(groups));
	dlist_init(&groups.all);
	dlist_init(&groups.unread);
	groups.order_ended = true;
	groups.average = -1;
	groups.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task groups", ALLOCSET_DEFAULT_SIZES);
	groups.queues = queues_create(groups.context, 64, NULL);
	groups.table = grouptable_create(groups.context, 64, NULL);
}

static void
forget_group(QueueGroup *group)
{
	group->queue->groups--;
	if (group->unread)
		dlist_delete(&group->unread_node);
	dlist_delete(&group->node);
	grouptable_delete(groups.table, group->key);
	if (group->places)
		pfree(group->places);
	pfree((char *) group->key.queue);
	pfree((char *) group->key.role);
	pfree(group);
}

/* Forget the waiting rows, but not what runs: after an error they are not trusted. */
void
groups_clear(void)
{
	dlist_mutable_iter iter;

	groups.order_ended = true;
	dlist_foreach_modify(iter, &groups.all)
		forget_group(dlist_container(QueueGroup, node, iter.cur));
}

DEFINE_HASH_INSERT(insert_queue, queues, QueueEntry, char *)
DEFINE_HASH_INSERT(insert_group, grouptable, GroupEntry, TaskGroup)

QueueState *
groups_queue(const char *name)
{
	QueueEntry *entry = queues_lookup(groups.queues, (char *) name);
	QueueState *queue;

	if (entry)
		return entry->queue;
	queue = MemoryContextAllocZero(groups.context, sizeof(QueueState));
	queue->name = MemoryContextStrdup(groups.context, name);
	queue->average = groups.average;
	entry = insert_queue(groups.queues, queue->name);
	entry->queue = queue;
	return queue;
}

/* Return the group with this key.  A new group starts with its read position at infinity. */
static QueueGroup *
find_or_add_group(const TaskGroup *key)
{
	GroupEntry *entry = grouptable_lookup(groups.table, *key);
	QueueState *queue;
	QueueGroup *group;

	if (entry)
		return entry->group;
	queue = groups_queue(key->queue);
	group = MemoryContextAllocZero(groups.context, sizeof(QueueGroup));
	group->key = *key;
	group->key.queue = MemoryContextStrdup(groups.context, key->queue);
	group->key.role = MemoryContextStrdup(groups.context, key->role);
	entry = insert_group(groups.table, group->key);
	/* nothing fails from here on */
	entry->group = group;
	group->queue = queue;
	group->queue->groups++;
	group->read_position.dt = PG_INT64_MAX;
	group->read_position.id = PG_INT64_MAX;
	group->exhausted = true;
	group->seen = groups.scan_number;
	dlist_push_tail(&groups.all, &group->node);
	return group;
}

/* Set the group's next row to this one; the rows behind it have to be read again. */
static void
rewind_group(QueueGroup *group, TaskPlace place)
{
	set_places(group, &place, 1);
	group->exhausted = false;
	update_unread(group);
}

/*
 * A hint: new rows of a group wait, the first at this position.  If it is before the read position,
 * the rows that were read and not taken are read again.
 */
void
groups_hint(const TaskGroup *key, TaskPlace place)
{
	QueueGroup *group = find_or_add_group(key);

	group->seen = groups.scan_number;
	if (compare_places(&place, &group->read_position) > 0)
	{
		if (knows_next_row(group))
			group->exhausted = false;
		else if (group->exhausted)
			rewind_group(group, place);
		return;
	}
	if (knows_next_row(group) && compare_places(&group->places[group->next], &place) < 0)
		place = group->places[group->next];
	rewind_group(group, place);
}

/* Forget the rows behind this position. */
static void
read_again_from(QueueGroup *group, TaskPlace read_position)
{
	group->next = group->count = 0;
	group->read_position = read_position;
	group->exhausted = false;
	update_unread(group);
}

/*
 * A scan has found the first row of a locked group.  If no row that was read is left, and the group
 * was read to its end or this row is behind the read position, the group is read again from this
 * row.  Otherwise the rest of the group is read first.
 */
static void
set_head_of_locked(QueueGroup *group, TaskPlace place)
{
	TaskPlace before = {place.dt, place.id - (place.id > PG_INT64_MIN)};

	group->head = place;
	if (!knows_next_row(group) &&
		(group->exhausted || compare_places(&place, &group->read_position) > 0))
		read_again_from(group, before);
}

/* A task of the group was claimed: it does not count as locked. */
void
groups_claimed(QueueGroup *group)
{
	group->misses = 0;
	group->locked = false;
}

/*
 * A task of the group could not be claimed.  After too many in a row, only rows that are not locked
 * are chosen: a locked row needs no executor.
 */
void
groups_missed(QueueGroup *group)
{
	if (group->locked || ++group->misses < LOCKED_MISSES)
		return;
	group->locked = true;
	group->head.dt = DT_NOEND;
	if (group->next > 0)
		read_again_from(group, group->places[group->next - 1]);
}

/* Do not start tasks of a group before "until", and read the other groups first. */
void
groups_pause(QueueGroup *group, MonoTime until)
{
	group->paused_until = until;
	if (!group->unread)
		return;
	dlist_delete(&group->unread_node);
	dlist_push_tail(&groups.unread, &group->unread_node);
}

/*
 * Set the next rows of a locked group: those that are not locked, of all up to the new read
 * position.
 */
void
groups_read_unlocked(QueueGroup *group, const TaskPlace *places, int count, TaskPlace read_position,
					 bool exhausted)
{
	Assert(!knows_next_row(group));
	Assert(are_ordered(group->read_position, places, count));
	set_places(group, places, count);
	group->read_position = read_position;
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

/* A scan begins. */
void
groups_scan_begin(void)
{
	groups.scan_number++;
}

/* The scan has found the first row of a group at this position. */
void
groups_scan_found(const TaskGroup *key, TaskPlace place)
{
	QueueGroup *group = find_or_add_group(key);

	group->seen = groups.scan_number;
	if (group->locked)
		set_head_of_locked(group, place);
	else if (!knows_next_row(group) || compare_places(&group->places[group->next], &place) != 0)
		rewind_group(group, place);
}

/* Forget queues that have no groups and no running tasks, and that were not used for a while. */
static void
forget_queues(MonoTime now)
{
	int memory = groups.queues->members > QUEUES_MANY ? QUEUE_MEMORY_MANY_MS : QUEUE_MEMORY_MS;
	queues_iterator iter;
	QueueEntry *entry;

	queues_start_iterate(groups.queues, &iter);
	while ((entry = queues_iterate(groups.queues, &iter)) != NULL)
	{
		QueueState *queue = entry->queue;

		if (queue->groups > 0 || queue->running > 0 || clock_is_before(now, queue->paused_until) ||
			!clock_exceeds(queue->last_start, now, memory))
			continue;
		queues_delete_item(groups.queues, entry);
		pfree(queue->name);
		pfree(queue);
	}
}

/* The scan is complete: the groups that it did not find are empty. */
void
groups_scan_end(MonoTime now)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &groups.all)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (group->seen != groups.scan_number)
			forget_group(group);
	}
	forget_queues(now);
}

/*
 * May one more task of the queue run?  The limit "max" counts all running tasks of the queue; a
 * negative one lets one run at a time.
 */
static bool
is_below_limit(const QueueGroup *group)
{
	int32 max = group->key.max;

	if (max == TASK_UNLIMITED)
		return true;
	return group->queue->running < (max < 0 ? 1 : max);
}

/*
 * When may the next task of the group start?  A negative limit is the pause between two starts
 * (ms).
 */
static MonoTime
next_start_of(const QueueGroup *group)
{
	if (group->key.max >= 0)
		return group->paused_until;
	return clock_max(group->paused_until,
					 clock_plus_ms(group->queue->last_start, -(int64) group->key.max));
}

static bool
may_start_one(const QueueGroup *group, MonoTime now)
{
	return is_below_limit(group) && !clock_is_before(now, next_start_of(group));
}

/* Return a group whose next rows must be read before the order is known; NULL if there is none. */
QueueGroup *
groups_unread(ClockNow now)
{
	dlist_iter iter;

	dlist_foreach(iter, &groups.unread)
	{
		QueueGroup *group = dlist_container(QueueGroup, unread_node, iter.cur);

		if (may_start_one(group, now.mono))
			return group;
	}
	return NULL;
}

/*
 * Set the next rows of the group, read from behind its read position.  Fewer than the limit mean
 * that there are no more.
 */
void
groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit)
{
	TaskPlace end = count > 0 ? places[count - 1] : group->read_position;

	groups_read_unlocked(group, places, count, end, count < limit);
}

/* Compare two groups: positive if the first task of "a" starts first. */
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
	return knows_next_row(group) && group->places[group->next].dt <= now.wall &&
		   may_start_one(group, now.mono);
}

/*
 * Order all groups that may start a task now.  The groups that groups_unread returns must have been
 * read before.
 */
void
groups_order(ClockNow now)
{
	MemoryContext old = MemoryContextSwitchTo(groups.context);
	dlist_iter iter;

	groups.order_ended = true;
	if (groups.order)
		binaryheap_free(groups.order);
	groups.order = NULL;
	groups.order = binaryheap_allocate(groups.table->members + 1, compare_groups, NULL);
	MemoryContextSwitchTo(old);
	dlist_foreach(iter, &groups.all)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (is_eligible(group, now))
			binaryheap_add_unordered(groups.order, PointerGetDatum(group));
	}
	binaryheap_build(groups.order);
	groups.order_ended = false;
}

/*
 * Return the group whose first task is next.  NULL if there is none, or if a group has to be read
 * first to know.
 */
QueueGroup *
groups_next(ClockNow now)
{
	while (!groups.order_ended && !binaryheap_empty(groups.order))
	{
		QueueGroup *group = (QueueGroup *) DatumGetPointer(binaryheap_first(groups.order));

		if (may_start_one(group, now.mono))
			return group;
		binaryheap_remove_first(groups.order);
	}
	return NULL;
}

/*
 * Choose the first task of the group that groups_next returned.  The caller has counted it as
 * running (groups_task_started).
 */
TaskPlace
groups_choose_first(ClockNow now)
{
	QueueGroup *group = (QueueGroup *) DatumGetPointer(binaryheap_first(groups.order));
	TaskPlace place = group->places[group->next++];
	QueueState *queue = group->queue;

	Assert(!groups.order_ended);
	Assert(place.dt <= now.wall);
	Assert(queue->running > 0);
	queue->last_start = now.mono;
	if (group->key.max < 0)
		queue->paused_until = clock_max(queue->paused_until, next_start_of(group));
	if (is_eligible(group, now))
		binaryheap_replace_first(groups.order, PointerGetDatum(group));
	else
		binaryheap_remove_first(groups.order);
	update_unread(group);
	groups.order_ended = group->unread;
	return place;
}

/* Skip that group until the next groups_order. */
void
groups_skip(void)
{
	binaryheap_remove_first(groups.order);
}

/* Is the first task of a group known, and due? */
bool
groups_due_now(const QueueGroup *group, ClockNow now)
{
	return knows_next_row(group) && group->places[group->next].dt <= now.wall;
}

/* Remove the first task of a group, if it is due, without starting it. */
bool
groups_drop_first(QueueGroup *group, ClockNow now, TaskPlace *place)
{
	if (!groups_due_now(group, now))
		return false;
	*place = group->places[group->next++];
	update_unread(group);
	return true;
}

/* May there be a task that can start now?  If so, the groups are to be read and ordered. */
bool
groups_ready(ClockNow now)
{
	dlist_iter iter;

	dlist_foreach(iter, &groups.all)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (is_eligible(group, now))
			return true;
	}
	return groups_unread(now) != NULL;
}

/* Count the tasks of a group that could start now, as far as rows were read. */
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

/*
 * A task of the queue was chosen, or is running already: it counts for the queue's limit.  Only
 * pool.c calls this and groups_task_ended.
 */
void
groups_task_started(QueueState *queue)
{
	queue->running++;
}

/* A task that counted has ended, or is not started. */
void
groups_task_ended(QueueState *queue)
{
	Assert(queue->running > 0);
	queue->running--;
}

static void
update_average(double *average, uint32 elapsed)
{
	if (*average < 0)
		*average = elapsed;
	else
		*average += AVERAGE_WEIGHT * (elapsed - *average);
}

/* Add the duration of a run to the averages (us). */
void
groups_learn(QueueState *queue, uint32 elapsed)
{
	update_average(&queue->average, elapsed);
	update_average(&groups.average, elapsed);
}

/*
 * Return the next moment after "now" at which a task becomes due whose queue may run one more,
 * assuming that the wall clock is not set until then.  CLOCK_NEVER if none is known.
 */
MonoTime
groups_due_at(ClockNow now)
{
	MonoTime until = CLOCK_NEVER;
	dlist_iter iter;

	dlist_foreach(iter, &groups.all)
	{
		QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);
		MonoTime moment;

		if (!is_below_limit(group) || (!knows_next_row(group) && group->exhausted))
			continue;
		moment = next_start_of(group);
		if (knows_next_row(group))
			moment = clock_max(moment, clock_of_wall(now, group->places[group->next].dt));
		if (clock_is_before(now.mono, moment))
			until = clock_min(until, moment);
	}
	return until;
}
