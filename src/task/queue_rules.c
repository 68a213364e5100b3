/*
 * queue_rules.c
 *		Which rows of the queue table hold for a queue, and what they say together.
 *
 * They are the row with the name of the queue, and then those whose pattern matches it, the longest
 * first.  Each column is that of the first of them in which it is not NULL; "per" goes with "rate",
 * and "fair" and "total" are a matter of patterns.
 *
 * This file is plain memory: no SPI, and it knows neither tasks nor processes.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "shared/name_hash.h"
#include "task/queue_rules.h"

typedef struct RowEntry
{
	char *queue;
	uint32 hash;
	char status;
	const QueueRule *row;
} RowEntry;

#define SH_PREFIX rowtable
#define SH_ELEMENT_TYPE RowEntry
#define SH_KEY queue
#include "shared/name_hash.h"

typedef struct RuleEntry
{
	const QueueRule *rule;
	char status;
} RuleEntry;

/* What is compared of a rule. */
#define CONTENT offsetof(QueueRule, pattern)

/*
 * Do two rules say the same, whatever the names of their rows?  Both were zeroed before they were
 * filled in.
 */
bool
queue_rule_same(const QueueRule *a, const QueueRule *b)
{
	return memcmp((const char *) a + CONTENT, (const char *) b + CONTENT,
				  sizeof(QueueRule) - CONTENT) == 0;
}

/* Rules of queues are one if the queues share the limit that they have together. */
#define SH_PREFIX ruletable
#define SH_ELEMENT_TYPE RuleEntry
#define SH_KEY_TYPE const QueueRule *
#define SH_KEY rule
#define SH_HASH_KEY(tb, key) \
	hash_bytes((const unsigned char *) (key) + CONTENT, sizeof(QueueRule) - CONTENT)
#define SH_EQUAL(tb, a, b) (queue_rule_same(a, b) && (a)->total_of == (b)->total_of)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

DEFINE_HASH_INSERT(insert_rule, ruletable, RuleEntry, const QueueRule *)

/* A rule that says nothing. */
static const QueueRule no_rule = {.paused = -1,
								  .strict = -1,
								  .fair = -1,
								  .max = -1,
								  .total = -1,
								  .rate = -1,
								  .per = -1,
								  .taker = -1,
								  .until = RULE_NO_UNTIL,
								  .defaults = {-1, -1, -1, -1, -1, -1, -1, false}};

/*
 * A name comes before patterns, a longer pattern before others; of two of the same length, the one
 * that sorts first as bytes.
 */
static int
compare_rows(const void *a, const void *b)
{
	const QueueRule *left = *(const QueueRule *const *) a;
	const QueueRule *right = *(const QueueRule *const *) b;

	if (left->pattern != right->pattern)
		return left->pattern ? 1 : -1;
	if (strlen(left->queue) != strlen(right->queue))
		return strlen(left->queue) > strlen(right->queue) ? -1 : 1;
	return strcmp(left->queue, right->queue);
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
 * Return the rules that these rows make, in no order, allocated in "context", in which the rows
 * are, too.
 */
QueueRules *
queue_rules_build(MemoryContext context, const QueueRule *rows, int count)
{
	QueueRules *rules = MemoryContextAllocZero(context, sizeof(QueueRules));
	int i;

	rules->context = context;
	rules->rows = rowtable_create(context, Max(count, 1), NULL);
	rules->found = ruletable_create(context, 16, NULL);
	rules->others = MemoryContextAlloc(context, (count + 1) * sizeof(QueueRule *));
	rules->prefix_max = -1;
	rules->shortest_keep = -1;
	for (i = 0; i < count; i++)
	{
		const QueueRule *row = &rows[i];
		double keep = row->defaults.keep;
		bool found;

		if (keep >= 0 && (rules->shortest_keep < 0 || keep < rules->shortest_keep))
			rules->shortest_keep = keep;
		rules->divide |= (row->pattern && row->total >= 0) || row->taker > 0;
		if (row->pattern && is_prefix(row->queue))
			rules->prefix_max = Max(rules->prefix_max, (int) strlen(row->queue) - 1);
		else if (row->pattern)
			rules->others[rules->nothers++] = row;
		rowtable_insert(rules->rows, unconstify(char *, row->queue), &found)->row = row;
	}
	return rules;
}

/* Do these rules have the same rows? */
bool
queue_rules_same(const QueueRules *a, const QueueRules *b)
{
	rowtable_iterator iterator;
	RowEntry *entry;

	if (a->rows->members != b->rows->members)
		return false;
	rowtable_start_iterate(a->rows, &iterator);
	while ((entry = rowtable_iterate(a->rows, &iterator)) != NULL)
	{
		const RowEntry *other = rowtable_lookup(b->rows, entry->queue);

		if (other == NULL || !queue_rule_same(entry->row, other->row))
			return false;
	}
	return true;
}

/* Does a row, which need not be in force, name a taker of which this is true? */
bool
queue_rules_let_take(const QueueRules *rules, bool (*may)(const QueueRule *row))
{
	rowtable_iterator iterator;
	RowEntry *entry;
	bool found = false;

	rowtable_start_iterate(rules->rows, &iterator);
	while ((entry = rowtable_iterate(rules->rows, &iterator)) != NULL)
		found |= may(entry->row);
	return found;
}

/* Is this the name of the queue, or a pattern that matches it? */
static bool
name_matches(const char *pattern, const char *queue)
{
	text *left;
	text *right;
	bool result;

	if (strchr(pattern, '%') == NULL)
		return strcmp(pattern, queue) == 0;
	left = cstring_to_text(queue);
	right = cstring_to_text(pattern);
	result = DatumGetBool(DirectFunctionCall2Coll(textlike, C_COLLATION_OID, PointerGetDatum(left),
												  PointerGetDatum(right)));
	pfree(left);
	pfree(right);
	return result;
}

/* Is one of these names and patterns, which follow each other, for the queue?  So it is if none is.
 */
bool
queue_list_matches(const char *names, int count, const char *queue)
{
	int i;

	for (i = 0; i < count; i++, names += strlen(names) + 1)
		if (name_matches(names, queue))
			return true;
	return count == 0;
}

/*
 * Return the rows that hold for a queue, the one that counts first at the beginning, allocated in
 * the current memory context.  Bounded by the length of the name, and by the patterns that are not
 * a prefix and a percent sign.
 */
const QueueRule **
queue_rules_match(const QueueRules *rules, const char *queue, int *count)
{
	int length = (int) strlen(queue);
	int longest = Min(length, rules->prefix_max);
	const QueueRule **rows = palloc((longest + rules->nothers + 3) * sizeof(QueueRule *));
	char *name = palloc(length + 2);
	RowEntry *entry;
	int n = 0;
	int i;

	strcpy(name, queue);
	entry = rowtable_lookup(rules->rows, name);
	if (entry && !entry->row->pattern)
		rows[n++] = entry->row;
	for (i = longest; i >= 0; i--)
	{
		strcpy(name + i, "%");
		entry = rowtable_lookup(rules->rows, name);
		if (entry && is_prefix(name))
			rows[n++] = entry->row;
	}
	for (i = 0; i < rules->nothers; i++)
		if (name_matches(rules->others[i]->queue, queue))
			rows[n++] = rules->others[i];
	qsort(rows, n, sizeof(QueueRule *), compare_rows);
	pfree(name);
	*count = n;
	return rows;
}

/* What "rule" does not say yet, "row" says. */
#define INHERIT(field) rule->field = rule->field < 0 ? row->field : rule->field

/* What a rule does not say yet, this row says, which counts after those before it. */
static void
inherit(QueueRule *rule, const QueueRule *row)
{
	INHERIT(paused);
	INHERIT(strict);
	INHERIT(max);
	INHERIT(taker);
	INHERIT(defaults.retry);
	INHERIT(defaults.batch);
	INHERIT(defaults.delay);
	INHERIT(defaults.backoff);
	INHERIT(defaults.timeout);
	INHERIT(defaults.active);
	INHERIT(defaults.keep);
	if (row->pattern)
		INHERIT(fair);
	if (rule->total < 0 && row->pattern && row->total >= 0)
	{
		rule->total = row->total;
		rule->total_of = row->queue;
	}
	if (rule->rate < 0)
	{
		rule->rate = row->rate;
		rule->per = row->per;
	}
	if (rule->until == RULE_NO_UNTIL)
		rule->until = row->until;
}

/*
 * Return the rule of a queue: what its rows say together, in which "paused", "strict" and "fair"
 * are true or false, and a limit that there is not is negative.  It is valid as long as the rules
 * are.  Rules that say the same are one, so that they take no more memory with more queues.
 */
const QueueRule *
queue_rules_find(QueueRules *rules, const char *queue)
{
	int count;
	const QueueRule **rows = queue_rules_match(rules, queue, &count);
	QueueRule rule;
	RuleEntry *entry;
	int i;

	memcpy(&rule, &no_rule, sizeof(QueueRule)); /* with its padding */
	for (i = 0; i < count; i++)
		inherit(&rule, rows[i]);
	pfree(rows);
	rule.paused = rule.paused > 0;
	rule.strict = rule.defaults.strict = rule.strict > 0;
	rule.fair = rule.fair > 0;
	rule.taker = Max(rule.taker, 0);
	if (rule.max == RULE_UNLIMITED)
		rule.max = -1;
	if (rule.total == RULE_UNLIMITED)
	{
		rule.total = -1;
		rule.total_of = NULL;
	}
	if (rule.rate == RULE_UNLIMITED)
		rule.rate = -1;
	if (rule.per < 0)
		rule.per = USECS_PER_SEC;
	if (rule.until == RULE_NO_UNTIL)
		rule.until = DT_NOBEGIN;

	entry = ruletable_lookup(rules->found, &rule);
	if (entry == NULL)
	{
		QueueRule *copy = MemoryContextAlloc(rules->context, sizeof(QueueRule));

		memcpy(copy, &rule, sizeof(QueueRule));
		entry = insert_rule(rules->found, copy);
	}
	return entry->rule;
}
