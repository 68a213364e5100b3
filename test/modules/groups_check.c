/*
 * groups_check.c
 *		Unit tests of the scheduler's groups, run in an ordinary backend.
 *
 * The files of src/scheduler that it tests are plain memory: they are compiled into this library
 * (groups_table.h), and the checks call their functions with times of their own.  Here are the
 * checks of what all groups have in common; those of one topic each are in headers of their own.
 * groups_check(name, seed) runs one check.  It returns NULL if the check holds, otherwise what does
 * not hold.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "groups_limits.h"
#include "groups_memory.h"
#include "groups_model.h"
#include "groups_roles.h"
#include "groups_rows.h"
#include "groups_rules.h"
#include "groups_table.h"
#include "groups_turns.h"

PG_MODULE_MAGIC;

static const char *
check_order(void)
{
	int plain = add_key("q", TASK_UNLIMITED, 0, "r");
	int urgent = add_key("q", TASK_UNLIMITED, -1, "r");
	int limited = add_key("q", 9, -9, "r");
	int more_limited = add_key("q", 8, -9, "r2");
	int paused = add_key("paused", -1, 1, "r");
	int elsewhere = add_key("elsewhere", TASK_UNLIMITED, 0, "r2");

	insert_with_hint(paused, start.wall - 9, 1);
	insert_with_hint(more_limited, start.wall - 8, 2);
	insert_with_hint(limited, start.wall - 7, 3);
	insert_with_hint(plain, start.wall - 5, 5);
	insert_with_hint(plain, start.wall - 5, 4);
	insert_with_hint(elsewhere, start.wall - 6, 6);
	insert_with_hint(urgent, start.wall, 7);
	insert_with_hint(plain, start.wall + 1, 8);

	CHECK(start_next(start, NULL) == 7); /* NULL is the largest max, and then lower priority */
	CHECK(start_next(start, NULL) == 6); /* then the earlier dt, also of another queue */
	CHECK(start_next(start, NULL) == 4); /* then the smaller id */
	CHECK(start_next(start, NULL) == 5);
	CHECK(start_next(start, NULL) == 3); /* the larger max */
	CHECK(start_next(start, NULL) == 2);
	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 0); /* one is left, not due */
	CHECK(start_next(after(start, 1), NULL) == 8);
	return NULL;
}

/* A group is known by all of its columns. */
static const char *
check_keys(void)
{
	TaskGroup keys[] = {{"q", 1, 0, "r", 1}, {"p", 1, 0, "r", 1}, {"q", 2, 0, "r", 1},
						{"q", 1, 1, "r", 1}, {"q", 1, 0, "s", 1}, {"q", 1, 0, "r", 2}};
	int round;
	int i;

	for (round = 0; round < 2; round++)
		for (i = 0; i < (int) lengthof(keys); i++)
			groups_hint(&keys[i], place_of(start.wall, i), true);
	CHECK(groups.table->members == lengthof(keys));
	CHECK(queues.table->members == 2);
	CHECK(queue_find_or_add("q")->groups == 5);
	return NULL;
}

static const char *
check_clocks(void)
{
	int group = add_key("q", TASK_UNLIMITED, 0, "r");
	ClockNow now = start;

	insert_with_hint(group, start.wall + 10 * SECOND, 1);
	CHECK(start_next(now, NULL) == 0);
	CHECK(!groups_advance(now));
	CHECK(order_due_at(now).us == start.mono.us + 10 * SECOND);
	now = after(start, 10 * SECOND - 1);
	CHECK(!groups_advance(now));
	CHECK(order_due_at(now).us == now.mono.us + 1);

	/* the wall clock steps back: the row is due by the new time */
	now = (ClockNow){after(start, 10 * SECOND).mono, start.wall - HOUR};
	CHECK(!groups_advance(now));
	CHECK(order_due_at(now).us == now.mono.us + HOUR + 10 * SECOND);

	/* it steps forward: the row is due at once, and nothing is due after that */
	now.wall = start.wall + 10 * SECOND;
	CHECK(groups_advance(now));
	CHECK(order_due_at(now).us == CLOCK_NEVER.us);
	CHECK(start_next(now, NULL) == 1);

	/* due in the far future */
	insert_with_hint(group, PG_INT64_MAX, 2);
	CHECK(order_due_at(now).us == CLOCK_NEVER.us);
	CHECK(start_next(now, NULL) == 0);
	return NULL;
}

static const char *
check_averages(void)
{
	QueueState *queue = queue_find_or_add("q");

	CHECK(queue->average < 0);
	queue_learn(queue, 1000);
	CHECK(queue->average == 1000);
	queue_learn(queue, 2000);
	CHECK(queue->average == 1200);
	CHECK(queue_average(queue) == 1200);

	/* a queue of which no task has ended: that of all tasks, also of those that ended later */
	CHECK(queue_average(queue_find_or_add("new")) == 1200);
	queue_learn(queue, 1200 + 1000);
	CHECK(queue_average(queue_find_or_add("new")) == 1400);
	queue_learn(queue_find_or_add("new"), 1400 + 500);
	CHECK(queue_average(queue_find_or_add("new")) == 1500);
	return NULL;
}

typedef struct Check
{
	const char *name;
	const char *(*run)(void);
	const char *(*run_random)(int seed);
} Check;

static const Check checks[] = {
	{"order", check_order, NULL},
	{"keys", check_keys, NULL},
	{"limits", check_limits, NULL},
	{"startable", check_startable, NULL},
	{"pause", check_pause, NULL},
	{"turned back", check_turned_back, NULL},
	{"hints", check_hints, NULL},
	{"hinted rows", check_hinted_rows, NULL},
	{"scan", check_scan, NULL},
	{"drop and skip", check_drop_and_skip, NULL},
	{"locked rows", check_locked_rows, NULL},
	{"rules", check_rules, NULL},
	{"patterns", check_patterns, NULL},
	{"inherited rules", check_inherited_rules, NULL},
	{"shared limits", check_shared_limits, NULL},
	{"ruled queues", check_ruled_queues, NULL},
	{"clocks", check_clocks, NULL},
	{"averages", check_averages, NULL},
	{"forgotten queues", check_forgotten_queues, NULL},
	{"blocked roles", check_blocked_roles, NULL},
	{"role line", check_role_line, NULL},
	{"closed queues", check_closed, NULL},
	{"two pauses", check_two_pauses, NULL},
	{"listed rows", check_listed_rows, NULL},
	{"forgotten groups", check_forgotten_groups, NULL},
	{"out of memory", check_out_of_memory, NULL},
	{"restored pauses", check_restored_pauses, NULL},
	{"many groups", NULL, check_many_groups},
	{"random order", NULL, check_random_order},
	{"turns", NULL, check_turns},
	{"aged turns", NULL, check_aged_turns},
	{"random scans", NULL, check_random_scans},
	{"random forgetting", NULL, check_random_forgetting},
};

PG_FUNCTION_INFO_V1(groups_check);
Datum
groups_check(PG_FUNCTION_ARGS)
{
	const char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *result = "no such check";
	int i;

	memset(&table, 0, sizeof(table));
	table.read_limit = 3;
	table.list_limit = 1;
	failing_allocation = 0;
	groups_create(0);
	rates_hold(true);
	for (i = 0; i < (int) lengthof(checks); i++)
		if (strcmp(checks[i].name, name) == 0)
			result = checks[i].run ? checks[i].run() : checks[i].run_random(PG_GETARG_INT32(1));
	MemoryContextDelete(groups.context);
	if (result == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(result));
}
