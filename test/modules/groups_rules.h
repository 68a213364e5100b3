/*
 * groups_rules.h
 *		The checks of the rules of queues, for groups_check.c: src/task/queue_rules.c, and what
 *		a rule keeps from starting.
 */
#ifndef GROUPS_RULES_H
#define GROUPS_RULES_H

#include "groups_table.h"

static bool rules_told; /* it was told that they have changed */

/* As if the queue table had been read. */
static void
set_rules(const QueueRule *given, int count)
{
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "rules of a check", ALLOCSET_SMALL_SIZES);
	QueueRule *copy = MemoryContextAllocZero(context, Max(count, 1) * sizeof(QueueRule));
	int i;

	for (i = 0; i < count; i++)
	{
		copy[i] = given[i];
		copy[i].queue = MemoryContextStrdup(context, given[i].queue);
		copy[i].pattern = strchr(given[i].queue, '%') != NULL;
	}
	rules_told = queues_set_rules(context, queue_rules_build(context, copy, count));
	if (rules_told)
		order_rules_changed();
}

#define NO_DEFAULTS {-1, -1, -1, -1, -1, -1}
#define RULE(name, limit, ...) \
	((QueueRule){.queue = (name), .paused = -1, .strict = -1, .fair = -1, .max = (limit), \
				 .total = -1, .rate = -1, .per = -1, .until = RULE_NO_UNTIL, \
				 .defaults = NO_DEFAULTS, __VA_ARGS__})

/* The rule of a queue. */
static const QueueRule *
rule_of(const char *queue)
{
	return queue_rules_find(queues_rules(), queue);
}

/* Its limit; -1: none. */
static int
limit_of(const char *queue)
{
	return rule_of(queue)->max;
}

static uint32
next_random(uint32 *seed)
{
	*seed = *seed * 1103515245 + 12345;
	return *seed >> 16;
}

/* A random text of up to 4 of these characters. */
static char *
random_text(uint32 *seed, const char *characters)
{
	char *result = palloc0(6);
	int length = next_random(seed) & 3;
	int i;

	for (i = 0; i <= length; i++)
		result[i] = characters[next_random(seed) % strlen(characters)];
	return result;
}

/* Does a row count before another one, both of which are for a queue? */
static bool
counts_before(const QueueRule *a, const QueueRule *b)
{
	if (a->pattern != b->pattern)
		return !a->pattern;
	return strlen(a->queue) != strlen(b->queue) ? strlen(a->queue) > strlen(b->queue)
												: strcmp(a->queue, b->queue) < 0;
}

/*
 * Random rows and queues: of each column the value of the first row counts that has one, and "per"
 * goes with "rate".
 */
static const char *
check_patterns(void)
{
	uint32 seed = 1;
	int round;
	int i;
	int j;

	for (round = 0; round < 20; round++)
	{
		QueueRule rules[30];

		for (i = 0; i < 30; i++)
		{
			rules[i] = RULE(psprintf("%s%%%s", random_text(&seed, "ab_"), random_text(&seed, "ab_%")), -1);
			if (i % 5 == 0)
				rules[i].queue = random_text(&seed, "ab");
			rules[i].pattern = i % 5 != 0;
			/* of rows with one name the last one counts */
			for (j = 0; j < i; j++)
				if (strcmp(rules[j].queue, rules[i].queue) == 0)
					rules[j].queue = psprintf("no queue %d", j), rules[j].pattern = false;
			if (next_random(&seed) & 1)
				rules[i].max = i;
			if (next_random(&seed) & 1)
				rules[i].defaults.retry = i;
			if (next_random(&seed) & 1)
				rules[i].rate = rules[i].per = i + 1;
			else if (next_random(&seed) & 1)
				rules[i].rate = RULE_UNLIMITED;
			else
				rules[i].per = 100 + i;
			if (next_random(&seed) & 1)
				rules[i].total = i;
		}
		set_rules(rules, 30);
		for (i = 0; i < 200; i++)
		{
			char *queue = random_text(&seed, "ab");
			const QueueRule *max = NULL;
			const QueueRule *retry = NULL;
			const QueueRule *rate = NULL;
			const QueueRule *total = NULL;

			for (j = 0; j < 30; j++)
			{
				const QueueRule *rule = &rules[j];

				if (rule->pattern ? !DatumGetBool(DirectFunctionCall2Coll(
										textlike, C_COLLATION_OID, CStringGetTextDatum(queue),
										CStringGetTextDatum(rule->queue)))
								  : strcmp(queue, rule->queue) != 0)
					continue;
				if (rule->max >= 0 && (max == NULL || counts_before(rule, max)))
					max = rule;
				if (rule->defaults.retry >= 0 && (retry == NULL || counts_before(rule, retry)))
					retry = rule;
				if (rule->rate >= 0 && (rate == NULL || counts_before(rule, rate)))
					rate = rule;
				if (rule->pattern && rule->total >= 0 && (total == NULL || counts_before(rule, total)))
					total = rule;
			}
			CHECK(limit_of(queue) == (max ? max->max : -1));
			CHECK(rule_of(queue)->defaults.retry == (retry ? retry->defaults.retry : -1));
			if (rate == NULL || rate->rate == RULE_UNLIMITED)
				CHECK(rule_of(queue)->rate == -1);
			else
				CHECK(rule_of(queue)->rate == rate->rate && rule_of(queue)->per == rate->per);
			CHECK(rule_of(queue)->total == (total ? total->total : -1));
			CHECK(total == NULL || strcmp(rule_of(queue)->total_of, total->queue) == 0);
		}
	}
	return NULL;
}

/* Which rule is for a queue, and what tells that rules have changed. */
static const char *
check_rules(void)
{
	QueueRule rules[] = {RULE("a%", 1),	   RULE("a.%", 2), RULE("a.%.z", 3), RULE("a.b", 4),
						 RULE("under_", 5), RULE("%x_", 6), RULE("%\\_y", 7), RULE("%\\%w", 8),
						 RULE("b%", 9),	   RULE("%b", 10)};
	int count = lengthof(rules);
	const QueueRule *found;
	int i;

	CHECK(limit_of("a") == -1);
	set_rules(rules, count);
	CHECK(rules_told);
	CHECK(limit_of("a") == 1 && limit_of("abc") == 1 && limit_of("") == -1);
	CHECK(limit_of("a.c") == 2 && limit_of("a.c.z") == 3 && limit_of("a.b") == 4 && limit_of("a.b.z") == 3);
	CHECK(limit_of("under_") == 5 && limit_of("underX") == -1);
	CHECK(limit_of("xx") == 6 && limit_of("x") == -1);
	CHECK(limit_of("_y") == 7 && limit_of("zy") == -1 && limit_of("%w") == 8 && limit_of("zw") == -1);
	CHECK(limit_of("a.%") == 2); /* a name like a pattern */
	CHECK(limit_of("bb") == 10); /* of two, the first as bytes */

	found = rule_of("a.b");
	set_rules(rules, count);
	CHECK(!rules_told);
	CHECK(rule_of("a.b") == found); /* what was found stays valid */
	rules[3].max = 5;
	set_rules(rules, count);
	CHECK(rules_told && limit_of("a.b") == 5);
	rules[4].defaults.keep = 1;
	set_rules(rules, count);
	CHECK(rules_told);
	rules[8].max = 8;
	set_rules(rules, count);
	CHECK(rules_told);
	set_rules(rules, count - 1);
	CHECK(rules_told && limit_of("ab") == 1 && limit_of("cb") == -1);
	set_rules(rules + 4, count - 5);
	CHECK(rules_told && limit_of("a.b") == -1);

	/* each allocation may fail: the rules stay as they were */
	for (i = 1; i < 100; i++)
	{
		bool failed = false;

		failing_allocation = i;
		PG_TRY();
		{
			set_rules(rules, count);
		}
		PG_CATCH();
		{
			FlushErrorState();
			failed = true;
		}
		PG_END_TRY();
		failing_allocation = 0;
		if (!failed)
			break;
		CHECK(limit_of("a.b") == -1 && limit_of("under_") == 5);
	}
	CHECK(i > 1 && i < 100 && limit_of("a.b") == 5);
	set_rules(NULL, 0);
	CHECK(limit_of("under_") == -1);
	return NULL;
}

/* What a column means that is NULL, and values that say that there is no limit. */
static const char *
check_inherited_rules(void)
{
	QueueRule rules[] = {
		RULE("c.%", 1, .strict = 1, .rate = 5, .per = SECOND, .until = DT_NOEND, .total = 3, .fair = 1),
		RULE("c.1", -1, .paused = 1, .fair = 0, .total = 9),
		RULE("c.2", RULE_UNLIMITED, .strict = 0, .rate = RULE_UNLIMITED, .until = DT_NOBEGIN),
		RULE("c.3%", -1, .total = RULE_UNLIMITED, .fair = 0)};

	set_rules(rules, lengthof(rules));
	CHECK(rule_of("c.0")->paused == 0 && rule_of("c.0")->fair == 1 && rule_of("c.0")->total == 3);
	/* pausing a queue takes no limit away; "fair" and "total" of a name say nothing */
	CHECK(rule_of("c.1")->paused == 1 && limit_of("c.1") == 1 && rule_of("c.1")->strict == 1);
	CHECK(rule_of("c.1")->defaults.strict && rule_of("c.1")->rate == 5);
	CHECK(rule_of("c.1")->fair == 1 && rule_of("c.1")->total == 3);
	CHECK(limit_of("c.2") == -1 && rule_of("c.2")->rate == -1 && rule_of("c.2")->strict == 0);
	CHECK(rule_of("c.2")->until == DT_NOBEGIN && rule_of("c.0")->until == DT_NOEND);
	CHECK(rule_of("c.31")->fair == 0 && rule_of("c.31")->total == -1 && limit_of("c.31") == 1);
	CHECK(rule_of("c.31")->total_of == NULL);
	/* as many as say different things are kept, and not one for each queue */
	CHECK(rule_of("c.0") == rule_of("c.00") && rule_of("d") == rule_of("e"));
	set_rules(NULL, 0);
	return NULL;
}

/* A limit that queues have together, however they and their roles come and go. */
static const char *
check_shared_limits(void)
{
	int keys[] = {add_key("c.1", TASK_UNLIMITED, 0, "r"), add_key("c.2", TASK_UNLIMITED, 0, "s"),
				  add_key("c.3", 1, 0, "r"), add_key("d", TASK_UNLIMITED, 0, "r")};
	QueueRule rules[] = {RULE("c.%", -1, .total = 2), RULE("c.1%", -1)};
	QueueState *queues_of[8];
	int i;

	for (i = 0; i < 12; i++)
		insert_with_hint(keys[i % 4], start.wall - 12 + i, i + 1);
	set_rules(rules, 1);
	begin_round(start); /* moves the groups of these queues, with what is known of their rows */
	CHECK(!groups_lack() && groups.table->members == 4);
	CHECK(start_next(start, &queues_of[0]) == 1 && start_next(start, &queues_of[1]) == 2);
	CHECK(queues_of[0]->limit == queues_of[1]->limit && queues_of[0]->limit->running == 2);
	/* that of another queue, and then no other one */
	CHECK(start_next(start, &queues_of[2]) == 4 && queues_of[2]->limit == NULL);
	order_task_ended(queues_of[1]);
	CHECK(start_next(start, &queues_of[1]) == 3 && start_next(start, &queues_of[3]) == 8);
	/* three of them, by another rule; then the pattern is gone: those that run stay counted */
	rules[0].total = 3;
	set_rules(rules, 1);
	CHECK(start_next(start, &queues_of[4]) == 5 && start_next(start, &queues_of[5]) == 12);
	CHECK(start_next(start, NULL) == 0 && queues_of[0]->limit->running == 3);
	rules[1].total = 1;
	set_rules(rules, 2);
	begin_round(start);
	CHECK(queues_of[0]->limit->total == 1 && queues_of[0]->limit->running == 2);
	CHECK(queue_find("c.3")->limit->total == 3 && queue_find("c.3")->limit->running == 1);
	CHECK(start_next(start, &queues_of[6]) == 6 && start_next(start, &queues_of[7]) == 10);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queues_of[0]);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queues_of[4]);
	CHECK(start_next(start, NULL) == 9);
	set_rules(NULL, 0);
	begin_round(start);
	CHECK(queues.limits->members == 0 && queue_find("c.2")->limit == NULL);
	order_task_ended(queue_find("c.3"));
	CHECK(start_next(start, NULL) == 7);
	/* what runs of a queue of which nothing waits counts, too */
	scan_groups(start);
	CHECK(queue_find("d")->running == 3 && queue_find("d")->groups == 0);
	set_rules(&RULE("d%", -1, .total = 3), 1);
	insert_with_hint(add_key("d.1", TASK_UNLIMITED, 0, "r"), start.wall - 20, 20);
	CHECK(start_next(start, NULL) != 20);
	order_task_ended(queue_find("d"));
	CHECK(start_next(start, NULL) == 20);
	set_rules(NULL, 0);
	return NULL;
}

/* What the rule of a queue keeps from starting, and what brings its groups back. */
static const char *
check_ruled_queues(void)
{
	int one = add_key("q.1", TASK_UNLIMITED, 0, "r");
	int two = add_key("q.2", 3, 0, "r");
	QueueState *queue;
	ClockNow late = after(start, SECOND);
	ClockNow stepped = {late.mono, late.wall + HOUR};

	for (int i = 1; i <= 6; i++)
		insert_with_hint(i <= 3 ? one : two, start.wall, i);
	set_rules(&RULE("q.%", -1, .paused = 1), 1);
	CHECK(start_next(start, NULL) == 0 && order_due_at(start).us == CLOCK_NEVER.us);
	set_rules(&RULE("q.%", 1), 1);
	CHECK(start_next(start, &queue) == 1);
	CHECK(start_next(start, NULL) == 4 && start_next(start, NULL) == 0);
	set_rules(&RULE("q.%", 2), 1);
	CHECK(start_next(start, NULL) == 2);
	CHECK(start_next(start, NULL) == 5 && start_next(start, NULL) == 0);
	set_rules(&RULE("q.%", 1), 1);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 3);
	order_task_ended(queue);

	/* a time of the wall clock, which may be set */
	insert_with_hint(one, start.wall, 7);
	insert_with_hint(one, start.wall, 8);
	set_rules(&RULE("q.1", -1, .until = start.wall + HOUR), 1);
	CHECK(start_next(start, NULL) == 6 && start_next(start, NULL) == 0);
	CHECK(order_due_at(start).us == start.mono.us + HOUR);
	CHECK(start_next(late, NULL) == 0);
	CHECK(start_next(stepped, NULL) == 7);
	CHECK(start_next(late, NULL) == 0);
	set_rules(&RULE("q.1", -1, .until = DT_NOEND), 1);
	CHECK(start_next(stepped, NULL) == 0);
	set_rules(NULL, 0);
	CHECK(start_next(late, NULL) == 8);
	return NULL;
}

#endif /* GROUPS_RULES_H */
