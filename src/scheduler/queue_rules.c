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
#include "nodes/bitmapset.h"
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

/* A rule for the queues that match a pattern. */
typedef struct RulePattern
{
	const QueueRule *rule;
	text *pattern;
	int length; /* of the pattern (bytes) */
	int prefix; /* the pattern begins with this many ordinary bytes */
	int next;	/* the next pattern with the same prefix; -1: none */
} RulePattern;

/* The patterns that begin with the same ordinary bytes, up to the first wildcard. */
typedef struct RulePrefix
{
	char *prefix;
	uint32 hash;
	char status;
	int first; /* the longest of these patterns */
} RulePrefix;

#define SH_PREFIX prefixtable
#define SH_ELEMENT_TYPE RulePrefix
#define SH_KEY prefix
#include "scheduler/name_hash.h"

/* All patterns. */
typedef struct RulePatterns
{
	int count;
	RulePattern *all; /* the longest first */
	prefixtable_hash *prefixes;
	int nlengths;
	int *lengths; /* of the prefixes: each once, in ascending order */
} RulePatterns;

/* Static, because the rules hold from one iteration to the next. */
static struct
{
	MemoryContext context; /* contains all of them; NULL: there are none */
	ruletable_hash *names;
	RulePatterns patterns;
	uint32 generation;
	double shortest_keep;
} rules = {.shortest_keep = -1};

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
	const RulePattern *left = a;
	const RulePattern *right = b;

	if (left->length != right->length)
		return left->length > right->length ? -1 : 1;
	return strcmp(left->rule->queue, right->rule->queue);
}

static RulePattern
make_pattern(const QueueRule *rule)
{
	return (RulePattern){.rule = rule,
						 .pattern = cstring_to_text(rule->queue),
						 .length = (int) strlen(rule->queue),
						 .prefix = (int) strcspn(rule->queue, "%_\\")};
}

/*
 * Index the patterns by their prefixes: there may be one for each customer, and a queue is compared
 * with those alone that begin as it does.  Allocates in the current memory context.
 */
static void
index_patterns(RulePatterns *patterns)
{
	Bitmapset *seen = NULL;
	int length = -1;
	int i;

	qsort(patterns->all, patterns->count, sizeof(RulePattern), compare_patterns);
	patterns->prefixes = prefixtable_create(CurrentMemoryContext, Max(patterns->count, 1), NULL);
	/* backwards: the first of each list is the longest */
	for (i = patterns->count - 1; i >= 0; i--)
	{
		RulePattern *pattern = &patterns->all[i];
		char *prefix = pnstrdup(pattern->rule->queue, pattern->prefix);
		bool found;
		RulePrefix *entry = prefixtable_insert(patterns->prefixes, prefix, &found);

		pattern->next = found ? entry->first : -1;
		entry->first = i;
		seen = bms_add_member(seen, pattern->prefix);
	}
	patterns->lengths = palloc(Max(bms_num_members(seen), 1) * sizeof(int));
	while ((length = bms_next_member(seen, length)) >= 0)
		patterns->lengths[patterns->nlengths++] = length;
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

/*
 * Tell about each rule in the first table that the second one does not have in the same way.
 * Returns true if there is one.
 */
static bool
tell_differences(ruletable_hash *table, ruletable_hash *other, bool missing, RuleChanged changed)
{
	ruletable_iterator iterator;
	RuleEntry *entry;
	bool differ = false;

	ruletable_start_iterate(table, &iterator);
	while ((entry = ruletable_iterate(table, &iterator)) != NULL)
	{
		const RuleEntry *counterpart = ruletable_lookup(other, entry->queue);

		if (counterpart && (missing || queue_rules_same(entry->rule, counterpart->rule)))
			continue;
		changed(entry->rule->pattern ? NULL : entry->queue);
		differ = true;
	}
	return differ;
}

/* Tell what differs from the rules so far.  Returns true if anything does. */
static bool
tell_changes(ruletable_hash *names, int count, RuleChanged changed)
{
	bool differ;

	if (rules.names == NULL)
	{
		if (count > 0)
			changed(NULL);
		return true;
	}
	differ = tell_differences(rules.names, names, true, changed);
	differ |= tell_differences(names, rules.names, false, changed);
	return differ;
}

/*
 * Replace the rules by these, which are allocated in "context", as all that is made of them.  The
 * context belongs to this file from now on.  If memory runs out, the old rules stay; also if they
 * say the same, so that what was found among them stays valid.
 */
void
queue_rules_set(MemoryContext context, QueueRule *new_rules, int count, RuleChanged changed)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	ruletable_hash *names = ruletable_create(context, Max(count, 1), NULL);
	RulePatterns patterns = {.all = palloc(Max(count, 1) * sizeof(RulePattern))};
	double shortest_keep = -1;
	int i;

	for (i = 0; i < count; i++)
	{
		const QueueRule *rule = &new_rules[i];
		double keep = rule->defaults.keep;
		bool found;

		if (keep >= 0 && (shortest_keep < 0 || keep < shortest_keep))
			shortest_keep = keep;
		if (rule->pattern)
			patterns.all[patterns.count++] = make_pattern(rule);
		ruletable_insert(names, rule->queue, &found)->rule = rule;
	}
	index_patterns(&patterns);
	MemoryContextSwitchTo(caller);
	if (!tell_changes(names, count, changed))
	{
		MemoryContextDelete(context);
		return;
	}

	MemoryContextSetParent(context, TopMemoryContext);
	if (rules.context)
		MemoryContextDelete(rules.context);
	rules.context = context;
	rules.names = names;
	rules.patterns = patterns;
	rules.shortest_keep = shortest_keep;
	rules.generation++;
}

static bool
matches(const RulePattern *pattern, Datum name)
{
	return DatumGetBool(DirectFunctionCall2Coll(textlike, C_COLLATION_OID, name,
												PointerGetDatum(pattern->pattern)));
}

/* Return the first pattern that matches, of those with this prefix and before "best"; or "best". */
static int
first_match(char *prefix, Datum name, int best)
{
	RulePrefix *entry = prefixtable_lookup(rules.patterns.prefixes, prefix);
	int i;

	for (i = entry ? entry->first : -1; i >= 0 && i < best; i = rules.patterns.all[i].next)
		if (matches(&rules.patterns.all[i], name))
			return i;
	return best;
}

/*
 * Return the rule of a queue; one that says nothing if it has none.  Valid until the rules are read
 * again.  Compares the name with the patterns that begin as it does, up to their first wildcard;
 * callers keep the result.
 */
const QueueRule *
queue_rules_find(const char *queue)
{
	RuleEntry *entry;
	text *name;
	char *prefix;
	int length = (int) strlen(queue);
	int best = rules.patterns.count;
	int i;

	if (rules.context == NULL)
		return &no_rule;
	entry = ruletable_lookup(rules.names, unconstify(char *, queue));
	if (entry)
		return entry->rule;
	if (rules.patterns.count == 0)
		return &no_rule;
	name = cstring_to_text(queue);
	prefix = pstrdup(queue);
	/* the longest prefix first */
	for (i = rules.patterns.nlengths - 1; i >= 0; i--)
		if (rules.patterns.lengths[i] <= length)
		{
			prefix[rules.patterns.lengths[i]] = '\0';
			best = first_match(prefix, PointerGetDatum(name), best);
		}
	pfree(name);
	pfree(prefix);
	return best < rules.patterns.count ? rules.patterns.all[best].rule : &no_rule;
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
