/*
 * queues.c
 *		What the scheduler knows of each queue: its rule, what runs in it, and whether one more task
 * may start.
 *
 * A rule that is found is valid until the queue table is read again: see task/queue_rules.c.
 *
 * queue_blocked_until is the one place that decides whether a queue may start another task; what
 * the limit of several queues leaves is asked in order.c.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  It knows neither the
 * waiting rows nor their order.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/queues.h"
#include "scheduler/rates.h"
#include "task/queue_rules.h"

/* Weight of the last run in the average duration. */
#define AVERAGE_WEIGHT 0.2

/*
 * How long a queue without tasks is remembered (ms), and how long if there are more than
 * QUEUES_MANY.
 */
#define QUEUE_MEMORY_MS (10 * 60 * 1000)
#define QUEUE_MEMORY_MANY_MS 1000
#define QUEUES_MANY 1000

typedef struct LimitEntry
{
	char *pattern;
	uint32 hash;
	char status;
	QueueLimit *limit;
} LimitEntry;

#define SH_PREFIX limittable
#define SH_ELEMENT_TYPE LimitEntry
#define SH_KEY pattern
#include "shared/name_hash.h"

/* Static, because the rules hold from one iteration to the next. */
static struct
{
	MemoryContext context; /* contains them */
	QueueRules *all;
	uint32 generation;
	bool counted; /* each queue with running tasks has the limit that its rule names */
	bool changed; /* a limit, or a taker, may be another one than that of the roles of its groups */
} rules;

typedef struct QueueEntry
{
	char *name;
	uint32 hash;
	char status;
	QueueState *queue;
} QueueEntry;

#define SH_PREFIX queuetable
#define SH_ELEMENT_TYPE QueueEntry
#define SH_KEY name
#include "shared/name_hash.h"

/* Static, because queues are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of names and the hash table */
	MemoryContext states;  /* of QueueState alone */
	queuetable_hash *table;
	limittable_hash *limits;
	dlist_head idle; /* those without groups and running tasks, in the order of becoming so */
	int nidle;
	TimestampTz turn; /* the last one of any queue */
	double average;	  /* of all queues */
} queues;

DEFINE_HASH_INSERT(insert_queue, queuetable, QueueEntry, char *)
DEFINE_HASH_INSERT(insert_limit, limittable, LimitEntry, char *)

/*
 * The queue table was read: replace the rules by these, which are in "context", as all that is made
 * of them.  The context belongs to this file from now on.  If they say the same, the old ones stay,
 * so that what was found among them stays valid.  Returns true if they do not: then the caller
 * tells order.c.
 */
bool
queues_set_rules(MemoryContext context, QueueRules *all)
{
	if (rules.all && queue_rules_same(all, rules.all))
	{
		MemoryContextDelete(context);
		return false;
	}
	MemoryContextSetParent(context, TopMemoryContext);
	rules.changed |= all->divide || (rules.all && rules.all->divide);
	if (rules.context)
		MemoryContextDelete(rules.context);
	rules.context = context;
	rules.counted = !rules.changed;
	rules.all = all;
	rules.generation++;
	return true;
}

void
queues_create(MemoryContext context)
{
	memset(&queues, 0, sizeof(queues));
	queues.context = context;
	queues.states =
		SlabContextCreate(context, "pg_task queues", SLAB_DEFAULT_BLOCK_SIZE, sizeof(QueueState));
	queues.table = queuetable_create(context, 64, NULL);
	queues.limits = limittable_create(context, 16, NULL);
	queues.average = -1;
	dlist_init(&queues.idle);
	if (rules.all == NULL)
	{
		context =
			AllocSetContextCreate(TopMemoryContext, "pg_task queue rules", ALLOCSET_SMALL_SIZES);
		(void) queues_set_rules(context, queue_rules_build(context, NULL, 0));
	}
}

/* The rules that were read last. */
QueueRules *
queues_rules(void)
{
	return rules.all;
}

/* Return the queue of this name; NULL if nothing is known of it. */
QueueState *
queue_find(const char *name)
{
	QueueEntry *entry = queuetable_lookup(queues.table, unconstify(char *, name));

	return entry ? entry->queue : NULL;
}

/*
 * So many groups and running tasks of the queue are new, or gone: without both, it is in the list
 * of idle queues.
 */
void
queue_count(QueueState *queue, int groups, int running)
{
	bool idle;

	queue->groups += groups;
	queue->running += running;
	if (queue->limit)
		queue->limit->running += running;
	Assert(queue->groups >= 0 && queue->running >= 0);
	idle = queue->groups == 0 && queue->running == 0;
	if (idle && !queue->idle)
		dlist_push_tail(&queues.idle, &queue->idle_node);
	else if (!idle && queue->idle)
		dlist_delete(&queue->idle_node);
	queues.nidle += idle - queue->idle;
	queue->idle = idle;
}

QueueState *
queue_find_or_add(const char *name)
{
	QueueEntry *entry;
	QueueState *queue = queue_find(name);

	if (queue)
		return queue;
	name = MemoryContextStrdup(queues.context, name);
	queue = MemoryContextAllocZero(queues.states, sizeof(QueueState));
	queue->name = (char *) name;
	queue->average = -1;
	queue->turn = DT_NOBEGIN;
	entry = insert_queue(queues.table, queue->name);
	/* nothing fails from here on */
	entry->queue = queue;
	queue_count(queue, 0, 0);
	return queue;
}

/* Return the limit of this pattern.  It is added if it is not known. */
static QueueLimit *
find_or_add_limit(const char *pattern)
{
	LimitEntry *entry = limittable_lookup(queues.limits, unconstify(char *, pattern));
	QueueLimit *limit;

	if (entry)
		return entry->limit;
	pattern = MemoryContextStrdup(queues.context, pattern);
	limit = MemoryContextAllocZero(queues.context, sizeof(QueueLimit));
	limit->pattern = unconstify(char *, pattern);
	dlist_init(&limit->full);
	entry = insert_limit(queues.limits, limit->pattern);
	entry->limit = limit;
	return limit;
}

/* The queue has this limit from now on, or none (NULL). */
static void
change_limit(QueueState *queue, QueueLimit *limit)
{
	QueueLimit *old = queue->limit;

	queue->limit = limit;
	if (limit)
	{
		limit->queues++;
		limit->running += queue->running;
	}
	if (old)
	{
		old->queues--;
		old->running -= queue->running;
	}
}

/* The rule of the queue, and its limit.  Found again when the rules were read again. */
const QueueRule *
queue_rule(QueueState *queue)
{
	const QueueRule *rule = queue->rule;
	QueueLimit *limit = NULL;

	if (rule && queue->rule_generation == rules.generation)
		return rule;
	rule = queue_rules_find(rules.all, queue->name);
	if (rule->total_of)
	{
		limit = find_or_add_limit(rule->total_of);
		limit->total = rule->total;
	}
	/* nothing fails from here on */
	if (limit != queue->limit)
		change_limit(queue, limit);
	queue->rule = rule;
	queue->rule_generation = rules.generation;
	return rule;
}

/* The rules have changed: let the tasks that run count in the limits of their queues. */
static void
count_running(void)
{
	queuetable_iterator iter;
	QueueEntry *entry;

	queuetable_start_iterate(queues.table, &iter);
	while ((entry = queuetable_iterate(queues.table, &iter)) != NULL)
		if (entry->queue->running > 0)
			(void) queue_rule(entry->queue);
	rules.counted = true;
}

/* Return the limit that the queue has together with others, whose numbers are true; NULL: none. */
QueueLimit *
queue_limit(QueueState *queue)
{
	if (!rules.counted)
		count_running();
	(void) queue_rule(queue);
	return queue->limit;
}

/* Have rules changed so that groups may be of another limit?  Reset by queues_forget_limits. */
bool
queues_limits_changed(void)
{
	if (rules.changed && !rules.counted)
		count_running();
	return rules.changed;
}

/* Groups are of the limits that their queues have: forget the limits that no queue has. */
void
queues_forget_limits(void)
{
	limittable_iterator iter;
	LimitEntry *entry;

	limittable_start_iterate(queues.limits, &iter);
	while ((entry = limittable_iterate(queues.limits, &iter)) != NULL)
	{
		QueueLimit *limit = entry->limit;

		if (limit->queues > 0)
			continue;
		Assert(limit->running == 0 && dlist_is_empty(&limit->full));
		limittable_delete_item(queues.limits, entry);
		pfree(limit->pattern);
		pfree(limit);
	}
	rules.changed = false;
}

/*
 * A task of the queue starts now: its turn, which is after all that there were, if its rule says
 * that it takes turns.
 */
TimestampTz
queue_next_turn(QueueState *queue, TimestampTz now)
{
	if (!queue_rule(queue)->fair)
		return DT_NOBEGIN;
	queues.turn = Max(queues.turn + 1, now);
	return queues.turn;
}

/*
 * The wall clock was set back by "step" (us), and is "now".  Call "follow" for each queue, with the
 * time of its turn by the new clock.
 */
void
queues_turn_back(TimestampTz now, int64 step, void (*follow)(QueueState *, TimestampTz))
{
	queuetable_iterator iter;
	QueueEntry *entry;

	queues.turn = Min(queues.turn, now);
	queuetable_start_iterate(queues.table, &iter);
	while ((entry = queuetable_iterate(queues.table, &iter)) != NULL)
	{
		TimestampTz turn = entry->queue->turn;

		follow(entry->queue, turn > now ? Min(turn - step, now) : turn);
	}
}

/* How many more tasks may run in the queue, by the limit of this group and by its rule? */
static int
places_by_max(QueueState *queue, const TaskGroup *group)
{
	const QueueRule *rule = queue_rule(queue);
	int places = PG_INT32_MAX;

	if (rule->paused)
		return 0;
	if (group->max != TASK_UNLIMITED)
		places = (group->max < 0 ? 1 : group->max) - queue->running;
	if (rule->max >= 0)
		places = Min(places, rule->max - queue->running);
	return places;
}

/*
 * Until when may no task of this group of the queue start?  CLOCK_LONG_AGO, or another moment that
 * has passed: one may start now.  CLOCK_NEVER: not before a task of the queue ends, or its rule
 * changes (order_rules_changed).
 *
 * "max" counts all running tasks of the queue; a negative one lets one run at a time, and is the
 * pause between two starts (ms).  order.c relies on this: if a group of the queue may not start,
 * no group behind it in the order may.  Therefore groups whose "max" is 0 are not in the order.
 */
MonoTime
queue_blocked_until(QueueState *queue, const TaskGroup *group, ClockNow now)
{
	const QueueRule *rule = queue_rule(queue);
	MonoTime until;

	if (places_by_max(queue, group) <= 0)
		return CLOCK_NEVER;
	until = rates_blocked_until(&queue->claims, rule, group->max, now.mono);
	if (rule->until > now.wall)
		until = clock_max(until, clock_of_wall(now, rule->until));
	if (rule->strict)
		until = clock_max(until, queue->held_until);
	return until;
}

/* How many more tasks of this group may start now? */
int
queue_free_places(QueueState *queue, const TaskGroup *group, MonoTime now)
{
	const QueueLimit *limit = queue_limit(queue);
	int places =
		Min(places_by_max(queue, group), rates_room(&queue->claims, queue_rule(queue), now));

	return limit ? Min(places, limit->total - limit->running) : places;
}

/*
 * The average duration of the queue's tasks (us), or of all tasks as long as none of the queue has
 * ended.  Negative if none has ended at all.
 */
double
queue_average(const QueueState *queue)
{
	return queue->average >= 0 ? queue->average : queues.average;
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
queue_learn(QueueState *queue, uint32 elapsed)
{
	queue->average = queue_average(queue);
	update_average(&queue->average, elapsed);
	update_average(&queues.average, elapsed);
}

/*
 * Forget idle queues that were not used for a while, up to this number.  Returns true when all are
 * forgotten.
 */
bool
queues_forget_idle(MonoTime now, int limit)
{
	int memory = queues.table->members > QUEUES_MANY ? QUEUE_MEMORY_MANY_MS : QUEUE_MEMORY_MS;
	int left = queues.nidle;

	for (; left > 0 && limit > 0; left--)
	{
		QueueState *queue = dlist_head_element(QueueState, idle_node, &queues.idle);

		/* those behind it became idle later */
		if (!clock_exceeds(queue->claims.last, now, memory))
			break;
		Assert(queue->idle && queue->first == NULL);
		dlist_delete(&queue->idle_node);
		if (clock_is_before(now, queue->held_until) || !rates_is_idle(&queue->claims, now))
		{
			dlist_push_tail(&queues.idle, &queue->idle_node);
			continue;
		}
		queues.nidle--;
		queuetable_delete(queues.table, queue->name);
		rates_forget(&queue->claims);
		change_limit(queue, NULL);
		pfree(queue->name);
		pfree(queue);
		limit--;
	}
	return limit > 0;
}
