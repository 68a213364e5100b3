/*
 * groups_limits.h
 *		The checks of full queues and of pauses, for groups_check.c: src/scheduler/order.c.
 */
#ifndef GROUPS_LIMITS_H
#define GROUPS_LIMITS_H

#include "groups_rules.h"
#include "groups_table.h"

static const char *
check_limits(void)
{
	int two = add_key("q", 2, 0, "r");
	int three = add_key("q", 3, 1, "r");
	int unlimited = add_key("q", TASK_UNLIMITED, 2, "r");
	int none = add_key("closed", 0, 0, "r");
	QueueState *queue = NULL;
	int i;

	for (i = 1; i <= 9; i++)
		insert_with_hint(two, start.wall, i);
	for (i = 11; i <= 19; i++)
		insert_with_hint(three, start.wall, i);
	insert_with_hint(none, start.wall, 31);

	/* the larger limit goes first, and counts the tasks of all groups of the queue */
	CHECK(start_next(start, &queue) == 11);
	CHECK(start_next(start, NULL) == 12);
	CHECK(start_next(start, NULL) == 13);
	CHECK(start_next(start, NULL) == 0);
	CHECK(queue->running == 3);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 14);
	order_task_ended(queue);
	order_task_ended(queue);
	order_task_ended(queue);
	CHECK(queue->running == 0);

	/* without the larger limit, the smaller one counts */
	for (i = 0; i < table.nrows; i++)
		table.rows[i].gone |= table.rows[i].group == three;
	groups_clear();
	scan_groups(start);
	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 2);
	CHECK(start_next(start, NULL) == 0);

	/* tasks that are not limited start beside them, and count */
	insert_with_hint(unlimited, start.wall, 21);
	CHECK(start_next(start, NULL) == 21);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 3);

	/* a task that was running before this scheduler began counts as well */
	queue_count(queue_find_or_add("q"), 0, 1);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 0);
	return NULL;
}

/* How many tasks of a group could start, for the number of executors that they need. */
static const char *
check_startable(void)
{
	int limited = add_key("q", 3, 0, "r");
	int paused = add_key("paused", -1000, 1, "r");
	QueueState *queue;
	int i;

	table.read_limit = 9;
	for (i = 1; i <= 6; i++)
	{
		insert_with_hint(limited, start.wall - 4 + i, i);
		insert_with_hint(paused, start.wall, i + 10);
	}
	groups_clear();
	scan_groups(start);
	CHECK(start_next(start, &queue) == 1);
	begin_round(start);
	CHECK(count_startable(next_known(start), start) == 2);
	order_task_ended(queue);
	CHECK(count_startable(next_known(start), start) == 3);
	CHECK(start_next(start, NULL) == 2);
	order_task_ended(queue);
	begin_round(start);
	CHECK(count_startable(next_known(start), start) == 2); /* 3 and 4; 5 is not due */
	CHECK(count_startable(next_known(start), after(start, 1)) == 3);
	order_skip(next_known(start));
	CHECK(count_startable(next_known(start), start) == 1);
	return NULL;
}

static const char *
check_pause(void)
{
	int group = add_key("q", -1000, 0, "r");
	ClockNow now = start;
	QueueState *queue;
	int i;

	for (i = 1; i <= 4; i++)
		insert_with_hint(group, start.wall, i);
	CHECK(start_next(now, &queue) == 1);
	CHECK(start_next(now, NULL) == 0); /* it runs */
	CHECK(order_due_at(now).us == CLOCK_NEVER.us);
	now = after(now, SECOND / 2);
	order_task_ended(queue);
	CHECK(start_next(now, NULL) == 0); /* the pause is counted from its start */
	CHECK(!groups_advance(now));
	CHECK(order_due_at(now).us == start.mono.us + SECOND);
	CHECK(start_next(after(start, SECOND - 1), NULL) == 0);
	now = after(start, SECOND);
	CHECK(groups_advance(now));
	CHECK(start_next(now, NULL) == 2);
	now = after(now, 2 * SECOND);
	CHECK(start_next(now, NULL) == 0); /* one at a time, however long it runs */
	order_task_ended(queue);
	CHECK(start_next(now, NULL) == 3);
	order_task_ended(queue);

	/* the wall clock goes back: the pause is as long as before */
	now = (ClockNow){{now.mono.us + SECOND}, now.wall};
	CHECK(start_next(now, NULL) == 4);
	return NULL;
}

/* A queue that is full or in a pause: what brings its groups back. */
static const char *
check_closed(void)
{
	int one = add_key("q", 1, 0, "r");
	int other = add_key("q", 1, 1, "s");
	int larger = add_key("q", 2, 0, "r");
	int paused = add_key("p", -1000, 0, "r");
	QueueState *queue = queue_find_or_add("q");
	QueueState *pausing;

	insert_with_hint(one, start.wall, 1);
	insert_with_hint(one, start.wall, 2);
	insert_with_hint(other, start.wall, 3);
	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 0);
	CHECK(queue->closed);

	/* a group with a larger limit comes before one that waits */
	insert_with_hint(larger, start.wall, 4);
	CHECK(start_next(start, NULL) == 4);
	CHECK(start_next(start, NULL) == 0);
	order_open(queue);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 0);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 2);
	order_task_ended(queue);
	CHECK(start_next(start, NULL) == 3);
	order_task_ended(queue);
	CHECK(!queue->closed);

	/* closed until a time, which a change of the rules may shorten */
	insert_with_hint(paused, start.wall, 5);
	insert_with_hint(paused, start.wall, 6);
	CHECK(start_next(start, &pausing) == 5);
	order_task_ended(pausing);
	CHECK(start_next(start, NULL) == 0);
	CHECK(order_due_at(start).us == start.mono.us + SECOND);
	pausing->claims.last = CLOCK_LONG_AGO;
	CHECK(!groups_advance(start));
	order_open(pausing);
	CHECK(start_next(start, NULL) == 6);

	/* forgotten while they wait */
	insert_with_hint(paused, start.wall, 7);
	CHECK(start_next(start, NULL) == 0);
	groups_clear();
	CHECK(!pausing->closed && pairingheap_is_empty(&pausing->waiting));
	CHECK(order_due_at(start).us == CLOCK_NEVER.us);
	order_task_ended(pausing);
	return NULL;
}

/* A later group with a longer pause is looked at first: an earlier one does not wait for that. */
static const char *
check_two_pauses(void)
{
	int shorter = add_key("q", -1000, 0, "r");
	int longer = add_key("q", -5000, 0, "s");
	QueueState *queue;

	insert_with_hint(shorter, start.wall, 1);
	CHECK(start_next(start, &queue) == 1);
	order_task_ended(queue);
	insert_with_hint(shorter, start.wall, 2);
	insert_with_hint(longer, start.wall, 3);
	order_advance(start);
	order_skip_role(order_find_or_add_role("r", NULL, 0), ROLE_SKIPPED);
	CHECK(order_next(start) == NULL);
	CHECK(order_due_at(start).us == start.mono.us + 5 * SECOND);
	CHECK(!groups_advance(after(start, 1)));
	CHECK(order_due_at(after(start, 1)).us == start.mono.us + SECOND);
	CHECK(start_next(after(start, SECOND), NULL) == 2);
	return NULL;
}

/*
 * A full queue in which so many roles have waiting tasks: the end of a task costs what it starts,
 * however many groups wait.  With "fair", the start moves only those that are ready.
 */
static const char *
check_many_groups(int count)
{
	const QueueRule rules[] = {RULE("q", -1), RULE("q", -1, .fair = 1)};
	TaskGroup key = {"q", 1, 0, NULL, 1};
	QueueState *queue;
	TaskPlace place;
	int64 id = 1;
	int kind;
	int i;

	for (i = 1; i <= count; i++)
	{
		key.role = psprintf("role %d", i);
		place = place_of(start.wall - HOUR, i);
		groups_scan_found(&key, &place, 1, true);
	}
	begin_round(start);
	CHECK(choose_next(start, &place, &queue));
	CHECK(place.id == 1 && queue->running == 1);
	CHECK(order_next(start) == NULL);
	for (kind = 0; kind < (int) lengthof(rules); kind++)
	{
		/* the groups wait */
		set_rules(&rules[kind], 1);
		begin_round(start);
		CHECK(order_next(start) == NULL);
		/* the first times that groups come back, the heap of the waiting ones is put in order */
		for (i = -100; i < 100; i++)
		{
			if (i == 0)
				comparisons = moves = 0;
			/* the role of the task that ends has another one, behind all others */
			key.role = psprintf("role %d", (int) (id - 1) % count + 1);
			place = place_of(start.wall - HOUR, id + count);
			groups_scan_found(&key, &place, 1, true);
			order_task_ended(queue);
			begin_round(start);
			CHECK(order_next(start) != NULL);
			CHECK(choose_next(start, &place, &queue));
			CHECK(place.id == ++id);
			CHECK(order_next(start) == NULL);
		}
		if (moves + comparisons > 100 * 100)
			return psprintf("rule %d: %d moves, " INT64_FORMAT " comparisons", kind, moves,
							comparisons);
	}
	return NULL;
}

#endif /* GROUPS_LIMITS_H */
