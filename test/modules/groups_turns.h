/*
 * groups_turns.h
 *		The checks of queues that take turns, for groups_check.c, also when the clock is set.
 */
#ifndef GROUPS_TURNS_H
#define GROUPS_TURNS_H

#include "groups_model.h"
#include "groups_rules.h"
#include "groups_table.h"

/*
 * Is this row before the other one, which may be NULL, if the queues take turns?  With aging, a
 * priority is worth so much time, and within a queue the turns do not count.
 */
static bool
is_before(const Row *row, const Row *other, const TimestampTz *turns, int64 aging)
{
	const TaskGroup *a = &table.keys[row->group];
	const TaskGroup *b = other ? &table.keys[other->group] : NULL;
	bool between = other == NULL || aging == 0 || strcmp(a->queue, b->queue) != 0;
	TimestampTz left = between ? Max(row->place.dt, turns[a->queue[0] - 'a']) : row->place.dt;
	TimestampTz right;

	if (other == NULL)
		return true;
	right = between ? Max(other->place.dt, turns[b->queue[0] - 'a']) : other->place.dt;
	if (aging == 0 && a->priority != b->priority)
		return a->priority < b->priority;
	left += aging * a->priority;
	right += aging * b->priority;
	if (left != right)
		return left < right;
	return order_compare_places(&row->place, &other->place) < 0;
}

/* Return the first of all rows, if the queues take turns: that of the first of each queue. */
static Row *
first_by_turns(const TimestampTz *turns, int64 aging)
{
	Row *first_of_queue[4] = {NULL};
	Row *first = NULL;
	int i;

	for (i = 0; i < table.nrows; i++)
	{
		Row *row = &table.rows[i];
		Row **best = &first_of_queue[table.keys[row->group].queue[0] - 'a'];

		if (!row->gone && is_before(row, *best, turns, aging))
			*best = row;
	}
	for (i = 0; i < 4; i++)
		if (first_of_queue[i] && is_before(first_of_queue[i], first, turns, aging))
			first = first_of_queue[i];
	return first;
}

/*
 * Queues that take turns: each start is that of the first row, by the times of the last starts.
 * With aging all tasks are of one role.
 */
static const char *
compare_turns(int seed, int64 aging)
{
	static const char *const names[] = {"a", "b", "c", "d"};
	QueueRule rule = RULE("%", -1, .fair = 1);
	TimestampTz turns[] = {DT_NOBEGIN, DT_NOBEGIN, DT_NOBEGIN, DT_NOBEGIN};
	TimestampTz turn = 0;
	int keys[16];
	int started = 0;
	int i;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	order.aging = aging;
	set_rules(&rule, 1);
	for (i = 0; i < 16; i++)
		keys[i] = aging > 0 && i % 8 >= 4 ? keys[i - 4]
										  : add_key(names[i % 4], TASK_UNLIMITED, i / 8,
													role_names[i % 8 / 4]);
	while (started < 1000)
	{
		Row *first;

		for (i = random_below(4); i > 0 && table.nrows < ROWS_MAX; i--)
			insert_with_hint(keys[random_below(16)], start.wall - random_below(1000),
							 table.nrows + 1);
		first = first_by_turns(turns, aging);
		if (first == NULL)
			continue;
		CHECK(start_next(start, NULL) == first->place.id);
		CHECK(check_groups() == NULL);
		turn = Max(turn + 1, start.wall);
		turns[table.keys[first->group].queue[0] - 'a'] = turn;
		started++;
	}
	return NULL;
}

static const char *
check_turns(int seed)
{
	return compare_turns(seed, 0);
}

static const char *
check_aged_turns(int seed)
{
	return compare_turns(seed, 300);
}

/* The wall clock goes far ahead and back: queues that were served meanwhile keep their turns. */
static const char *
check_turned_back(void)
{
	QueueRule rule = RULE("fair%", -1, .fair = 1);
	int served = add_key("fair 1", TASK_UNLIMITED, 0, "r");
	int other = add_key("fair 2", TASK_UNLIMITED, 0, "r");
	int plain = add_key("plain", TASK_UNLIMITED, 0, "r");
	ClockNow ahead = {{start.mono.us + SECOND}, start.wall + 24 * HOUR};
	ClockNow back = after(start, 2 * SECOND);
	int i;

	set_rules(&rule, 1);
	begin_round(start);
	for (i = 1; i <= 4; i++)
		insert_with_hint(served, start.wall, i);
	CHECK(start_next(ahead, NULL) == 1);
	insert_with_hint(other, start.wall, 5);
	CHECK(start_next(ahead, NULL) == 5);
	insert_with_hint(other, start.wall, 6);

	/* the first was served before the second; both before what was planned later */
	insert_with_hint(plain, back.wall + SECOND, 7);
	CHECK(start_next(after(back, 3 * SECOND), NULL) == 2);
	CHECK(start_next(after(back, 3 * SECOND), NULL) == 6);
	CHECK(start_next(after(back, 3 * SECOND), NULL) == 7);
	CHECK(start_next(after(back, 3 * SECOND), NULL) == 3);
	return NULL;
}

#endif /* GROUPS_TURNS_H */
