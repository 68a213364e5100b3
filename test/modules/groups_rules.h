/*
 * groups_rules.h
 *		The checks of the rules of queues, for groups_check.c: src/scheduler/queues.c, and what
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
	rules_told = queue_rules_set(context, copy, count);
	if (rules_told)
		order_rules_changed();
}

#define NO_DEFAULTS {-1, -1, -1, -1, -1, -1}
#define RULE(name, limit, ...) \
	((QueueRule){.queue = (char *) (name), .max = (limit), .rate = -1, .per = -1, \
				 .until = DT_NOBEGIN, .defaults = NO_DEFAULTS, __VA_ARGS__})

/* The limit of the rule that is found for a queue; -2: none is. */
static int
limit_of(const char *queue)
{
	const QueueRule *rule = queue_rules_find(queue);

	return rule->queue ? rule->max : -2;
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

/* Random patterns and queues: the rule that is found is that of the first pattern that matches. */
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
			rules[i] = RULE(psprintf("%s%%%s", random_text(&seed, "ab_"), random_text(&seed, "ab_%")), i);
		set_rules(rules, 30);
		for (i = 0; i < 200; i++)
		{
			char *queue = random_text(&seed, "ab");
			int best = -1;

			for (j = 0; j < 30; j++)
				if (DatumGetBool(DirectFunctionCall2Coll(
						textlike, C_COLLATION_OID, CStringGetTextDatum(queue),
						CStringGetTextDatum(rules[j].queue))) &&
					(best < 0 || strlen(rules[j].queue) > strlen(rules[best].queue) ||
					 (strlen(rules[j].queue) == strlen(rules[best].queue) &&
					  strcmp(rules[j].queue, rules[best].queue) < 0)))
					best = j;
			CHECK(best < 0 ? limit_of(queue) == -2
						   : strcmp(queue_rules_find(queue)->queue, rules[best].queue) == 0);
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

	CHECK(limit_of("a") == -2);
	set_rules(rules, count);
	CHECK(rules_told);
	CHECK(limit_of("a") == 1 && limit_of("abc") == 1 && limit_of("") == -2);
	CHECK(limit_of("a.c") == 2 && limit_of("a.c.z") == 3 && limit_of("a.b") == 4 && limit_of("a.b.z") == 3);
	CHECK(limit_of("under_") == 5 && limit_of("underX") == -2);
	CHECK(limit_of("xx") == 6 && limit_of("x") == -2);
	CHECK(limit_of("_y") == 7 && limit_of("zy") == -2 && limit_of("%w") == 8 && limit_of("zw") == -2);
	CHECK(limit_of("a.%") == 2); /* a name like a pattern */
	CHECK(limit_of("bb") == 10); /* of two, the first as bytes */

	found = queue_rules_find("a.b");
	set_rules(rules, count);
	CHECK(!rules_told);
	CHECK(queue_rules_find("a.b") == found); /* what was found stays valid */
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
	CHECK(rules_told && limit_of("ab") == 1 && limit_of("cb") == -2);
	set_rules(rules + 4, count - 5);
	CHECK(rules_told && limit_of("a.b") == -2);

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
		CHECK(limit_of("a.b") == -2 && limit_of("under_") == 5);
	}
	CHECK(i > 1 && i < 100 && limit_of("a.b") == 5);
	set_rules(NULL, 0);
	CHECK(limit_of("under_") == -2);
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
	set_rules(&RULE("q.%", -1, .paused = true), 1);
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
