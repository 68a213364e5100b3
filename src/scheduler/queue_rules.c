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
#include "common/hashfn.h"
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
#define SH_KEY_TYPE char *
#define SH_KEY queue
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) (key), strlen(key))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* A rule for the queues that match a pattern. */
typedef struct RulePattern
{
	const QueueRule *rule;
	text *pattern;
	int length; /* of the pattern (bytes) */
	int prefix; /* the pattern begins with this many ordinary bytes */
} RulePattern;

/* Static, because the rules hold from one iteration to the next. */
static struct
{
	MemoryContext context; /* contains all of them; NULL: there are none */
	ruletable_hash *names;
	int npatterns;
	RulePattern *patterns; /* the longest first */
	uint32 generation;
	double shortest_keep;
	bool have_rate;
} rules = {.shortest_keep = -1};

/* What holds for a queue that has no rule. */
static const TaskDefaults no_defaults = {-1, -1, -1, -1, -1, -1, false};

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

/* Do two rows of the queue table say the same?  Both were zeroed before they were filled in. */
static bool
same_rule(const QueueRule *a, const QueueRule *b)
{
	size_t start = offsetof(QueueRule, pattern);

	return memcmp((const char *) a + start, (const char *) b + start, sizeof(*a) - start) == 0;
}

/* Tell about each rule in the first table that the second one does not have in the same way. */
static void
tell_differences(ruletable_hash *table, ruletable_hash *other, bool missing, RuleChanged changed)
{
	ruletable_iterator iterator;
	RuleEntry *entry;

	ruletable_start_iterate(table, &iterator);
	while ((entry = ruletable_iterate(table, &iterator)) != NULL)
	{
		const RuleEntry *counterpart = ruletable_lookup(other, entry->queue);

		if (counterpart == NULL || (!missing && !same_rule(entry->rule, counterpart->rule)))
			changed(entry->rule->pattern ? NULL : entry->queue);
	}
}

/*
 * Replace the rules by these, which are allocated in "context", as all that is made of them.  The
 * context belongs to this file from now on.  If memory runs out, the old rules stay.
 */
void
queue_rules_set(MemoryContext context, QueueRule *new_rules, int count, RuleChanged changed)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	ruletable_hash *names = ruletable_create(context, Max(count, 1), NULL);
	RulePattern *patterns = palloc(Max(count, 1) * sizeof(RulePattern));
	double shortest_keep = -1;
	bool have_rate = false;
	int npatterns = 0;
	int i;

	for (i = 0; i < count; i++)
	{
		const QueueRule *rule = &new_rules[i];
		double keep = rule->defaults.keep;
		bool found;

		if (keep >= 0 && (shortest_keep < 0 || keep < shortest_keep))
			shortest_keep = keep;
		have_rate |= rule->rate >= 0;
		if (rule->pattern)
			patterns[npatterns++] = make_pattern(rule);
		ruletable_insert(names, rule->queue, &found)->rule = rule;
	}
	qsort(patterns, npatterns, sizeof(RulePattern), compare_patterns);
	if (rules.names == NULL && count > 0)
		changed(NULL);
	else if (rules.names)
	{
		tell_differences(rules.names, names, true, changed);
		tell_differences(names, rules.names, false, changed);
	}
	MemoryContextSwitchTo(caller);

	MemoryContextSetParent(context, TopMemoryContext);
	if (rules.context)
		MemoryContextDelete(rules.context);
	rules.context = context;
	rules.names = names;
	rules.patterns = patterns;
	rules.npatterns = npatterns;
	rules.shortest_keep = shortest_keep;
	rules.have_rate = have_rate;
	rules.generation++;
}

static bool
matches(const RulePattern *pattern, const char *queue, Datum name)
{
	return strncmp(pattern->rule->queue, queue, pattern->prefix) == 0 &&
		   DatumGetBool(DirectFunctionCall2Coll(textlike, C_COLLATION_OID, name,
												PointerGetDatum(pattern->pattern)));
}

/*
 * Return the rule of a queue; NULL if it has none.  Valid until the rules are read again.  Compares
 * the name with each pattern that is longer than the one that matches; callers keep the result.
 */
const QueueRule *
queue_rules_find(const char *queue)
{
	const QueueRule *rule = NULL;
	RuleEntry *entry;
	text *name;
	int i;

	if (rules.context == NULL)
		return NULL;
	entry = ruletable_lookup(rules.names, unconstify(char *, queue));
	if (entry)
		return entry->rule;
	if (rules.npatterns == 0)
		return NULL;
	name = cstring_to_text(queue);
	for (i = 0; i < rules.npatterns && rule == NULL; i++)
		if (matches(&rules.patterns[i], queue, PointerGetDatum(name)))
			rule = rules.patterns[i].rule;
	pfree(name);
	return rule;
}

/* Return the defaults of the tasks of a queue with this rule, or with none (NULL). */
const TaskDefaults *
queue_rules_defaults(const QueueRule *rule)
{
	return rule ? &rule->defaults : &no_defaults;
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

/* Has any rule a rate? */
bool
queue_rules_have_rate(void)
{
	return rules.have_rate;
}
