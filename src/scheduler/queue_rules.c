/*
 * queue_rules.c
 *		The scheduler's memory of the rules of queues, as the queue table had them when it was read
 *		last.
 *
 * The rule of a queue is the one with its name, otherwise that of the longest pattern that matches.
 * A rule that is found is valid until the rules are read again: what keeps one compares
 * queue_rules_generation.
 *
 * This file reads no table, and knows neither groups nor tasks.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "scheduler/queue_rules.h"

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

/* A number that changes when the rules are read again. */
uint32
queue_rules_generation(void)
{
	return rules.generation;
}

/* Return the shortest time that a rule keeps rows (s); negative: none says how long. */
double
queue_rules_shortest_keep(void)
{
	return rules.shortest_keep;
}
