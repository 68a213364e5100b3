/*
 * queues.c
 *		What the scheduler knows of each queue: its rule, what runs in it, and whether one more task
 * may start.
 *
 * The rule of a queue is the row of the queue table with its name, otherwise that with the longest
 * pattern that matches.  A rule that is found is valid until the table is read again.
 *
 * queue_blocked_until is the one place that decides whether a queue may start another task.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  It knows neither the
 * waiting rows nor their order.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "scheduler/queues.h"
#include "scheduler/rates.h"

/* Weight of the last run in the average duration. */
#define AVERAGE_WEIGHT 0.2

/*
 * How long a queue without tasks is remembered (ms), and how long if there are more than
 * QUEUES_MANY.
 */
#define QUEUE_MEMORY_MS (10 * 60 * 1000)
#define QUEUE_MEMORY_MANY_MS 1000
#define QUEUES_MANY 1000

/* ---- rules ---- */

typedef struct RuleEntry
{
	char *queue;
	uint32 hash;
	char status;
	const QueueRule *rule;
} RuleEntry;

#define SH_PREFIX ruletable
#define SH_ELEMENT_TYPE RuleEntry
#define SH_KEY queue
#include "scheduler/name_hash.h"

/* Static, because the rules hold from one iteration to the next. */
static struct
{
	MemoryContext context; /* contains all of them; NULL: there are none */
	ruletable_hash *names; /* of queues, and patterns */
	int prefix_max;		   /* the longest prefix (bytes) that is a pattern with "%"; -1: none */
	int nothers;
	const QueueRule **others; /* the other patterns, the longest first */
	uint32 generation;
	double shortest_keep;
} rules = {.prefix_max = -1, .shortest_keep = -1};

/* What holds for a queue that has no rule. */
static const QueueRule no_rule = {.max = -1,
								  .rate = -1,
								  .per = -1,
								  .until = DT_NOBEGIN,
								  .defaults = {-1, -1, -1, -1, -1, -1, -1, false}};

/* The longest pattern comes first; of two of the same length, the one that sorts first as bytes. */
static int
compare_patterns(const void *a, const void *b)
{
	const char *left = (*(const QueueRule *const *) a)->queue;
	const char *right = (*(const QueueRule *const *) b)->queue;

	if (strlen(left) != strlen(right))
		return strlen(left) > strlen(right) ? -1 : 1;
	return strcmp(left, right);
}

/*
 * Is the pattern a prefix and a percent sign?  There may be one such for each customer: they are
 * found by a hash, and the others by comparing a queue with each.
 */
static bool
is_prefix(const char *pattern)
{
	return strcspn(pattern, "%_\\") + 1 == strlen(pattern) && pattern[strlen(pattern) - 1] == '%';
}

/*
 * Do two rules say the same, whatever the names of their rows?  Both were zeroed before they were
 * filled in.
 */
bool
queue_rules_same(const QueueRule *a, const QueueRule *b)
{
	size_t start = offsetof(QueueRule, pattern);

	return memcmp((const char *) a + start, (const char *) b + start, sizeof(*a) - start) == 0;
}

/* Do these rules say the same as those so far? */
static bool
are_known(ruletable_hash *names)
{
	ruletable_iterator iterator;
	RuleEntry *entry;

	if (rules.names == NULL || rules.names->members != names->members)
		return false;
	ruletable_start_iterate(names, &iterator);
	while ((entry = ruletable_iterate(names, &iterator)) != NULL)
	{
		const RuleEntry *known = ruletable_lookup(rules.names, entry->queue);

		if (known == NULL || !queue_rules_same(entry->rule, known->rule))
			return false;
	}
	return true;
}

/*
 * Replace the rules by these, which are allocated in "context", as all that is made of them.  The
 * context belongs to this file from now on.  If memory runs out, the old rules stay; also if they
 * say the same, so that what was found among them stays valid.  Returns true if they do not: then
 * the caller tells order.c.
 */
bool
queue_rules_set(MemoryContext context, QueueRule *new_rules, int count)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	ruletable_hash *names = ruletable_create(context, Max(count, 1), NULL);
	const QueueRule **others = palloc((count + 1) * sizeof(QueueRule *));
	double shortest_keep = -1;
	int prefix_max = -1;
	int nothers = 0;
	int i;

	for (i = 0; i < count; i++)
	{
		const QueueRule *rule = &new_rules[i];
		double keep = rule->defaults.keep;
		bool found;

		if (keep >= 0 && (shortest_keep < 0 || keep < shortest_keep))
			shortest_keep = keep;
		if (rule->pattern && is_prefix(rule->queue))
			prefix_max = Max(prefix_max, (int) strlen(rule->queue) - 1);
		else if (rule->pattern)
			others[nothers++] = rule;
		ruletable_insert(names, rule->queue, &found)->rule = rule;
	}
	qsort(others, nothers, sizeof(QueueRule *), compare_patterns);
	MemoryContextSwitchTo(caller);
	if (are_known(names))
	{
		MemoryContextDelete(context);
		return false;
	}

	MemoryContextSetParent(context, TopMemoryContext);
	if (rules.context)
		MemoryContextDelete(rules.context);
	rules.context = context;
	rules.names = names;
	rules.prefix_max = prefix_max;
	rules.nothers = nothers;
	rules.others = others;
	rules.shortest_keep = shortest_keep;
	rules.generation++;
	return true;
}

/* The rule of the longest prefix of a queue that is a pattern with a percent sign; NULL: none. */
static const QueueRule *
find_prefix(const char *queue)
{
	char *pattern = palloc(strlen(queue) + 2);
	const QueueRule *found = NULL;
	int i;

	strcpy(pattern, queue);
	for (i = Min((int) strlen(queue), rules.prefix_max); i >= 0 && found == NULL; i--)
	{
		RuleEntry *entry;

		strcpy(pattern + i, "%");
		entry = ruletable_lookup(rules.names, pattern);
		if (entry && is_prefix(pattern))
			found = entry->rule;
	}
	pfree(pattern);
	return found;
}

static bool
matches(const QueueRule *rule, const char *queue)
{
	text *name = cstring_to_text(queue);
	text *pattern = cstring_to_text(rule->queue);
	bool result = DatumGetBool(DirectFunctionCall2Coll(
		textlike, C_COLLATION_OID, PointerGetDatum(name), PointerGetDatum(pattern)));

	pfree(name);
	pfree(pattern);
	return result;
}

/*
 * Return the rule of a queue; one that says nothing if it has none.  Valid until the rules are read
 * again.  Callers keep the result.
 */
const QueueRule *
queue_rules_find(const char *queue)
{
	const QueueRule *found;
	RuleEntry *entry;
	int i;

	if (rules.context == NULL)
		return &no_rule;
	entry = ruletable_lookup(rules.names, unconstify(char *, queue));
	if (entry)
		return entry->rule;
	found = find_prefix(queue);
	/* those that would win over it */
	for (i = 0;
		 i < rules.nothers && (found == NULL || compare_patterns(&rules.others[i], &found) < 0);
		 i++)
		if (matches(rules.others[i], queue))
			return rules.others[i];
	return found ? found : &no_rule;
}

/* Return the shortest time that a rule keeps rows (s); negative: none says how long. */
double
queue_rules_shortest_keep(void)
{
	return rules.shortest_keep;
}

/* ---- queues ---- */

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
#include "scheduler/name_hash.h"

/* Static, because queues are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of names and the hash table */
	MemoryContext states;  /* of QueueState alone */
	queuetable_hash *table;
	dlist_head idle; /* those without groups and running tasks, in the order of becoming so */
	int nidle;
	TimestampTz turn; /* the last one of any queue */
	double average;	  /* of all queues */
} queues;

DEFINE_HASH_INSERT(insert_queue, queuetable, QueueEntry, char *)

void
queues_create(MemoryContext context)
{
	memset(&queues, 0, sizeof(queues));
	queues.context = context;
	queues.states =
		SlabContextCreate(context, "pg_task queues", SLAB_DEFAULT_BLOCK_SIZE, sizeof(QueueState));
	queues.table = queuetable_create(context, 64, NULL);
	queues.average = -1;
	dlist_init(&queues.idle);
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

/* The rule of the queue, which says nothing if it has none.  Found again when the rules were read
 * again. */
const QueueRule *
queue_rule(QueueState *queue)
{
	if (queue->rule == NULL || queue->rule_generation != rules.generation)
		queue->rule = queue_rules_find(queue->name);
	queue->rule_generation = rules.generation;
	return queue->rule;
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
	return Min(places_by_max(queue, group), rates_room(&queue->claims, queue_rule(queue), now));
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
		pfree(queue->name);
		pfree(queue);
		limit--;
	}
	return limit > 0;
}
