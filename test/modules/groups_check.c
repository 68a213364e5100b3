/*
 * groups_check.c
 *		Unit tests of the scheduler's groups, run in an ordinary backend.
 *
 * src/scheduler/groups.c, order.c, lanes.c, surplus.c and queues.c are plain memory: they are compiled
 * into this library (groups_table.h), and the checks call their functions with times of their own.
 * groups_check(name, seed) runs one check.  It returns NULL if the check holds, otherwise what does
 * not hold.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "groups_model.h"
#include "groups_roles.h"
#include "groups_rules.h"
#include "groups_table.h"

PG_MODULE_MAGIC;

static const char *
check_order(void)
{
	int plain = add_key("q", TASK_UNLIMITED, 0, "r");
	int urgent = add_key("q", TASK_UNLIMITED, -1, "r");
	int limited = add_key("other", 9, -9, "r");
	int more_limited = add_key("third", 2, -9, "r");
	int paused = add_key("paused", -1, -9, "r");
	int elsewhere = add_key("elsewhere", TASK_UNLIMITED, 0, "r2");

	insert_with_hint(paused, start.wall - 9, 1);
	insert_with_hint(more_limited, start.wall - 8, 2);
	insert_with_hint(limited, start.wall - 7, 3);
	insert_with_hint(plain, start.wall - 5, 5);
	insert_with_hint(plain, start.wall - 5, 4);
	insert_with_hint(elsewhere, start.wall - 6, 6);
	insert_with_hint(urgent, start.wall, 7);
	insert_with_hint(plain, start.wall + 1, 8);

	CHECK(start_next(start, NULL) == 7); /* lower priority first */
	CHECK(start_next(start, NULL) == 6); /* then the earlier dt, also of another group */
	CHECK(start_next(start, NULL) == 4); /* then the smaller id */
	CHECK(start_next(start, NULL) == 5);
	CHECK(start_next(start, NULL) == 3); /* NULL is the largest max; then the larger one */
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
			groups_hint(&keys[i], place_of(start.wall, i));
	CHECK(groups.table->members == lengthof(keys));
	CHECK(queues.table->members == 2);
	CHECK(queue_find_or_add("q")->groups == 5);
	return NULL;
}

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
	groups_task_ended(queue);
	CHECK(start_next(start, NULL) == 14);
	groups_task_ended(queue);
	groups_task_ended(queue);
	groups_task_ended(queue);
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
	groups_task_ended(queue);
	CHECK(start_next(start, NULL) == 0);
	groups_task_ended(queue);
	CHECK(start_next(start, NULL) == 3);

	/* a task that was running before this scheduler began counts as well */
	groups_task_started(queue_find_or_add("q"));
	groups_task_ended(queue);
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
	CHECK(group_demand_tasks(next_known(start), start) == 2);
	groups_task_ended(queue);
	CHECK(group_demand_tasks(next_known(start), start) == 3);
	CHECK(start_next(start, NULL) == 2);
	groups_task_ended(queue);
	begin_round(start);
	CHECK(group_demand_tasks(next_known(start), start) == 2); /* 3 and 4; 5 is not due */
	CHECK(group_demand_tasks(next_known(start), after(start, 1)) == 3);
	groups_skip(next_known(start));
	CHECK(group_demand_tasks(next_known(start), start) == 1);
	return NULL;
}

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
	QueueRule rule = RULE("%", -1, .fair = true);
	TimestampTz turns[] = {DT_NOBEGIN, DT_NOBEGIN, DT_NOBEGIN, DT_NOBEGIN};
	TimestampTz turn = 0;
	int keys[16];
	int started = 0;
	int i;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	order_key_create(aging);
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
		CHECK(check_lanes() == NULL);
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
	QueueRule rule = RULE("fair%", -1, .fair = true);
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
	CHECK(groups_due_at(now).us == CLOCK_NEVER.us);
	now = after(now, SECOND / 2);
	groups_task_ended(queue);
	CHECK(start_next(now, NULL) == 0); /* the pause is counted from its start */
	CHECK(!groups_ready(now));
	CHECK(groups_due_at(now).us == start.mono.us + SECOND);
	CHECK(start_next(after(start, SECOND - 1), NULL) == 0);
	now = after(start, SECOND);
	CHECK(groups_ready(now));
	CHECK(start_next(now, NULL) == 2);
	now = after(now, 2 * SECOND);
	CHECK(start_next(now, NULL) == 0); /* one at a time, however long it runs */
	groups_task_ended(queue);
	CHECK(start_next(now, NULL) == 3);
	groups_task_ended(queue);

	/* the wall clock goes back: the pause is as long as before */
	now = (ClockNow){{now.mono.us + SECOND}, now.wall};
	CHECK(start_next(now, NULL) == 4);
	return NULL;
}

static const char *
check_hints(void)
{
	int group = add_key("q", TASK_UNLIMITED, 0, "r");
	int i;

	/* rows 1 to 10; the group is read in stretches of 3 */
	for (i = 1; i <= 10; i++)
		add_row(group, start.wall - 100 + i, i);
	groups_hint(&table.keys[group], place_of(start.wall - 99, 1));
	CHECK(start_next(start, NULL) == 1);
	CHECK(table.reads == 0); /* the hint named it */
	CHECK(start_next(start, NULL) == 2);
	CHECK(table.reads == 1); /* 2 to 4 */

	/* before the read position: it is next, and nothing is skipped or repeated after it */
	insert_with_hint(group, start.wall - 200, 11);
	CHECK(start_next(start, NULL) == 11);
	CHECK(start_next(start, NULL) == 3);

	/* at the read position: a task that was chosen waits again, in its old place */
	CHECK(start_next(start, NULL) == 4);
	table.rows[3].gone = false;
	groups_hint(&table.keys[group], table.rows[3].place);
	CHECK(start_next(start, NULL) == 4);
	table.rows[3].gone = false;
	groups_hint(&table.keys[group], table.rows[3].place);

	/* before the read position, but behind the next row */
	add_row(group, start.wall - 100 + 4, 12);
	groups_hint(&table.keys[group], place_of(start.wall - 100 + 4, 12));
	CHECK(start_next(start, NULL) == 4);
	CHECK(start_next(start, NULL) == 12);

	/* behind the read position: it is read in its turn */
	table.reads = 0;
	insert_with_hint(group, start.wall, 13);
	for (i = 5; i <= 10; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 13);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads <= 4);

	/* the group was read to its end: a row behind it, and one before it */
	insert_with_hint(group, start.wall, 15);
	CHECK(start_next(start, NULL) == 15);
	CHECK(start_next(start, NULL) == 0);
	insert_with_hint(group, start.wall, 14);
	CHECK(start_next(start, NULL) == 14);
	CHECK(start_next(start, NULL) == 0);
	return NULL;
}

/* A scan has found the first row of a group.  Is it news? */
static bool
found(int group, TaskPlace place)
{
	return groups_scan_found(&table.keys[group], &place, 1, false);
}

static const char *
check_scan(void)
{
	int kept = add_key("kept", TASK_UNLIMITED, 0, "r");
	int emptied = add_key("emptied", TASK_UNLIMITED, 0, "r");
	int new = add_key("new", TASK_UNLIMITED, 0, "r");
	int unknown = add_key("unknown", TASK_UNLIMITED, 0, "r");

	insert_with_hint(kept, start.wall, 1);
	insert_with_hint(emptied, start.wall, 2);
	add_row(unknown, start.wall, 4); /* no hint reports it */
	table.rows[1].gone = true;
	CHECK(groups.table->members == 2);

	groups_scan_begin();
	CHECK(!found(kept, place_of(start.wall, 1)));
	/* meanwhile a commit reports a group that the scan has passed */
	insert_with_hint(new, start.wall, 3);
	CHECK(found(unknown, place_of(start.wall, 4)));
	CHECK(groups.table->members == 4);
	end_scan(start);
	CHECK(groups.table->members == 3); /* the emptied one is forgotten */

	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 3);
	CHECK(start_next(start, NULL) == 4);
	CHECK(start_next(start, NULL) == 0);

	/* a first row before the one that is known, which no hint reported */
	insert_with_hint(kept, start.wall, 6);
	add_row(kept, start.wall, 5);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 5);
	CHECK(start_next(start, NULL) == 6);

	/* the first row is gone without a report, and another is the first now */
	insert_with_hint(kept, start.wall, 7);
	insert_with_hint(kept, start.wall, 8);
	table.rows[table.nrows - 2].gone = true;
	scan_groups(start);
	CHECK(start_next(start, NULL) == 8);
	CHECK(start_next(start, NULL) == 0);

	/* a group that the scan does not find is kept if a hint reports it meanwhile */
	insert_with_hint(emptied, start.wall, 9);
	CHECK(start_next(start, NULL) == 9);
	groups_scan_begin();
	insert_with_hint(emptied, start.wall, 10);
	end_scan(start);
	CHECK(groups.table->members == 1);
	CHECK(start_next(start, NULL) == 10);
	return NULL;
}

/* Which of the rows that a scan finds are news: those that no hint has named. */
static const char *
check_news(void)
{
	int group = add_key("q", TASK_UNLIMITED, 0, "r");
	TaskPlace second = place_of(start.wall, 2);
	int i;

	groups_scan_begin();
	CHECK(found(group, second));
	CHECK(!found(group, second));
	CHECK(found(group, place_of(start.wall, 1)));
	CHECK(!found(group, second)); /* the first one is gone */

	/* rows behind the read position are to be read, as long as that is not the end */
	for (i = 1; i <= 4; i++)
		insert_with_hint(group, start.wall, i);
	CHECK(start_next(start, NULL) == 1);
	CHECK(!found(group, second));
	while (start_next(start, NULL) != 0)
		;
	CHECK(found(group, place_of(start.wall, 5)));

	/* a group that is not remembered is no news */
	table.keys[group].max = 0;
	CHECK(!found(group, second));
	return NULL;
}

static const char *
check_drop_and_skip(void)
{
	int first = add_key("first", TASK_UNLIMITED, 0, "r");
	int second = add_key("second", TASK_UNLIMITED, 1, "r");
	QueueGroup *group;
	TaskPlace place;

	insert_with_hint(first, start.wall - 1, 1);
	insert_with_hint(first, start.wall + 1, 2);
	insert_with_hint(second, start.wall, 3);
	begin_round(start);

	/* a skipped group comes again in the next round */
	group = next_known(start);
	CHECK(group->key.priority == 0);
	groups_skip(next_known(start));
	CHECK(next_known(start)->key.priority == 1);
	begin_round(start);
	CHECK(next_known(start) == group);

	/* a dropped row does not come again, and does not count; a row that is not due is kept */
	CHECK(groups_drop_first(group, start, &place));
	CHECK(place.id == 1);
	table.rows[0].gone = true;
	CHECK(group->queue->running == 0);
	begin_round(start);
	CHECK(next_known(start)->key.priority == 1);
	CHECK(!groups_due_now(group, start));
	CHECK(!groups_drop_first(group, start, &place));
	CHECK(start_next(after(start, 1), NULL) == 2);
	return NULL;
}

/* Must the group be read to know its next row? */
static bool
unread(const QueueGroup *group)
{
	return !group_knows_row(group) && !group->exhausted;
}

static const char *
check_locked_rows(void)
{
	int key = add_key("q", TASK_UNLIMITED, 0, "r");
	QueueGroup *group;
	TaskPlace places[2];
	MonoTime later = {start.mono.us + SECOND};
	int i;

	for (i = 1; i <= 30; i++)
		add_row(key, start.wall, i);
	groups_hint(&table.keys[key], place_of(start.wall, 1));
	begin_round(start);
	group = next_known(start);

	/* after 16 misses in a row the group is locked, and is read from its next row on */
	for (i = 1; i <= 15; i++)
		groups_missed(group);
	groups_claimed(group);
	for (i = 1; i <= 15; i++)
		groups_missed(group);
	CHECK(!group->locked);
	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 2);
	CHECK(group->read_position.id == 4);
	groups_missed(group);
	CHECK(group->locked);
	CHECK(group->read_position.id == 2);
	begin_round(start);
	CHECK(groups_next(start) == group && unread(group));

	/* it pauses, and other groups are read */
	groups_pause(group, later);
	begin_round(start);
	CHECK(groups_next(start) == NULL);
	CHECK(groups_due_at(start).us == later.us);
	begin_round(after(start, SECOND));
	CHECK(groups_next(after(start, SECOND)) == group);

	/* only the rows that are not locked are known; rows 3 to 9 were read */
	places[0] = place_of(start.wall, 5);
	places[1] = place_of(start.wall, 8);
	groups_read_unlocked(group, places, 2, place_of(start.wall, 9), false);
	CHECK(start_next(after(start, SECOND), NULL) == 5);
	CHECK(start_next(after(start, SECOND), NULL) == 8);
	CHECK(unread(group));
	CHECK(group->read_position.id == 9);

	/* a scan finds its first row; it is read to its end before it is read again from there */
	found(key, place_of(start.wall, 2));
	CHECK(group->head.id == 2);
	CHECK(group->read_position.id == 9);
	groups_read_unlocked(group, NULL, 0, place_of(start.wall, 30), true);
	CHECK(!unread(group));
	found(key, place_of(start.wall, 2));
	CHECK(unread(group));
	CHECK(group->read_position.id == 1);

	/* its first row is not locked any more: it is an ordinary group again, from there */
	groups_unlocked(group);
	CHECK(!group->locked);
	table.rows[1].gone = false;
	CHECK(start_next(after(start, SECOND), NULL) == 2);
	CHECK(start_next(after(start, SECOND), NULL) == 3);
	return NULL;
}

static const char *
check_clocks(void)
{
	int group = add_key("q", TASK_UNLIMITED, 0, "r");
	ClockNow now = start;

	insert_with_hint(group, start.wall + 10 * SECOND, 1);
	CHECK(start_next(now, NULL) == 0);
	CHECK(!groups_ready(now));
	CHECK(groups_due_at(now).us == start.mono.us + 10 * SECOND);
	now = after(start, 10 * SECOND - 1);
	CHECK(!groups_ready(now));
	CHECK(groups_due_at(now).us == now.mono.us + 1);

	/* the wall clock steps back: the row is due by the new time */
	now = (ClockNow){after(start, 10 * SECOND).mono, start.wall - HOUR};
	CHECK(!groups_ready(now));
	CHECK(groups_due_at(now).us == now.mono.us + HOUR + 10 * SECOND);

	/* it steps forward: the row is due at once, and nothing is due after that */
	now.wall = start.wall + 10 * SECOND;
	CHECK(groups_ready(now));
	CHECK(groups_due_at(now).us == CLOCK_NEVER.us);
	CHECK(start_next(now, NULL) == 1);

	/* due in the far future */
	insert_with_hint(group, PG_INT64_MAX, 2);
	CHECK(groups_due_at(now).us == CLOCK_NEVER.us);
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

static const char *
check_forgotten_queues(void)
{
	int group = add_key("paused", -3600 * 1000, 0, "r");
	QueueState *busy = queue_find_or_add("busy");
	ClockNow now = start;

	(void) queue_find_or_add("unused");
	groups_task_started(busy);
	insert_with_hint(group, start.wall, 1);
	CHECK(start_next(start, NULL) == 1);
	groups_task_ended(queue_find_or_add("paused"));
	CHECK(queues.table->members == 3);

	/* the one that runs a task and the one in its pause are kept */
	now = after(start, HOUR - 1);
	scan_groups(now);
	CHECK(groups.table->members == 0);
	CHECK(queues.table->members == 2);
	CHECK(queue_find_or_add("busy") == busy);
	groups_task_ended(busy);
	scan_groups(after(now, 1));
	CHECK(queues.table->members == 0);

	/* one that was used a short time ago is kept */
	insert_with_hint(add_key("recent", TASK_UNLIMITED, 0, "r"), start.wall, 2);
	CHECK(start_next(now, &busy) == 2);
	groups_task_ended(busy);
	scan_groups(after(now, QUEUE_MEMORY_MS * INT64CONST(1000) - 1));
	CHECK(queues.table->members == 1);
	scan_groups(after(now, QUEUE_MEMORY_MS * INT64CONST(1000)));
	CHECK(queues.table->members == 0);
	return NULL;
}

/* Nobody has inserted other rows: no group has to be read after its known rows. */
static void
end_all_groups(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &groups.all)
		dlist_container(QueueGroup, node, iter.cur)->exhausted = true;
}

/*
 * What a round costs depends on what it starts, not on the number of groups: ready, full, planned
 * for later or paused.
 */
static const char *
check_many_groups(void)
{
	int count = 100000;
	int chosen = 0;
	TaskGroup key = {NULL, TASK_UNLIMITED, 0, "r", 1};
	TaskPlace last = {PG_INT64_MIN, 0};
	TaskPlace place;
	QueueState *queue;
	int i;

	for (i = 0; i < count; i++)
	{
		key.queue = psprintf("queue %d", i);
		groups_hint(&key, place_of(start.wall - (int64) i * 7919 % count, i));
		key.queue = psprintf("later %d", i);
		groups_hint(&key, place_of(start.wall + HOUR + i, i));
		key.queue = psprintf("full %d", i);
		key.max = 1;
		groups_task_started(queue_find_or_add(key.queue));
		groups_hint(&key, place_of(start.wall, i));
		key.max = TASK_UNLIMITED;
	}
	CHECK(groups.table->members == 3 * (uint32) count);
	end_all_groups();
	CHECK(groups_ready(start));
	moves = 0;
	while (chosen < 1000 && choose_next(start, &place, &queue))
	{
		CHECK(order_compare_places(&last, &place) < 0);
		last = place;
		chosen++;
	}
	CHECK(chosen == 1000);
	CHECK(moves <= chosen * 12);
	CHECK(place.dt == start.wall - count + chosen);

	/* later rounds, and tasks that end, move no group that starts nothing */
	while (choose_next(start, &place, &queue))
		groups_task_ended(queue);
	moves = 0;
	for (i = 0; i < 100; i++)
	{
		groups_task_ended(queue_find_or_add(psprintf("full %d", i)));
		CHECK(groups_ready(after(start, i)));
		CHECK(choose_next(after(start, i), &place, &queue));
		CHECK(place.id == i);
		CHECK(!choose_next(after(start, i), &place, &queue));
		CHECK(groups_due_at(after(start, i)).us == start.mono.us + HOUR);
	}
	CHECK(moves <= 100 * 20);
	return NULL;
}

/* A role and a queue with many groups are set aside at once. */
static const char *
check_blocked_roles(void)
{
	TaskGroup key = {"q", TASK_UNLIMITED, 0, "busy", 1};
	QueueGroup *group;
	GroupDemand demand;
	int i;

	for (i = 1; i <= 1000; i++)
	{
		key.priority = i;
		groups_hint(&key, place_of(start.wall, i));
		key.queue = psprintf("queue %d", i % 100);
		groups_hint(&key, place_of(start.wall, i + 1000));
	}
	key = (TaskGroup){"q", TASK_UNLIMITED, 9999, "free", 1};
	groups_hint(&key, place_of(start.wall, 9999));
	end_all_groups();
	queue_learn(queue_find_or_add("q"), 100);
	begin_round(start);
	group = groups_next(start);
	CHECK(group->key.priority == 1 && strcmp(group->key.role, "busy") == 0);
	moves = 0;
	demand = group_demand_block(group, start);
	CHECK(demand.tasks >= 32 && demand.average == 100);
	group = groups_next(start);
	CHECK(strcmp(group->key.role, "free") == 0);
	groups_skip_role(group);
	CHECK(groups_next(start) == NULL);
	begin_round(start);
	CHECK(groups_next(start)->key.priority == 1);
	CHECK(moves <= 32 * 14);

	/* a hint and a forgotten group do not bring a role back */
	groups_skip_role(groups_next(start));
	key = (TaskGroup){"q", TASK_UNLIMITED, 0, "busy", 1};
	groups_hint(&key, place_of(start.wall, 10000));
	CHECK(strcmp(groups_next(start)->key.role, "free") == 0);
	groups_clear();
	CHECK(roles.table->members == 0);
	CHECK(!groups_ready(start));
	return NULL;
}

/* A queue that is full or in a pause: what brings its lanes back. */
static const char *
check_parked(void)
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
	CHECK(queue->nparked > 0);

	/* a group with a larger limit comes to a parked lane */
	insert_with_hint(larger, start.wall, 4);
	CHECK(start_next(start, NULL) == 4);
	CHECK(start_next(start, NULL) == 0);
	groups_queue_changed(queue);
	CHECK(start_next(start, NULL) == 0);
	groups_task_ended(queue);
	CHECK(start_next(start, NULL) == 0);
	groups_task_ended(queue);
	CHECK(start_next(start, NULL) == 2);
	groups_task_ended(queue);
	CHECK(start_next(start, NULL) == 3);
	groups_task_ended(queue);
	CHECK(queue->nparked == 0);

	/* parked until a time, which a change of the rules may shorten */
	insert_with_hint(paused, start.wall, 5);
	insert_with_hint(paused, start.wall, 6);
	CHECK(start_next(start, &pausing) == 5);
	groups_task_ended(pausing);
	CHECK(start_next(start, NULL) == 0);
	CHECK(groups_due_at(start).us == start.mono.us + SECOND);
	pausing->pause.last_start = CLOCK_LONG_AGO;
	CHECK(!groups_ready(start));
	groups_queue_changed(pausing);
	CHECK(start_next(start, NULL) == 6);

	/* forgotten while they are parked */
	insert_with_hint(paused, start.wall, 7);
	CHECK(start_next(start, NULL) == 0);
	groups_clear();
	CHECK(pausing->nparked == 0 && dlist_is_empty(&pausing->lanes));
	CHECK(groups_due_at(start).us == CLOCK_NEVER.us);
	groups_task_ended(pausing);
	return NULL;
}

/* A later lane with a longer pause is looked at first: an earlier one does not wait for that. */
static const char *
check_two_pauses(void)
{
	int shorter = add_key("q", -1000, 0, "r");
	int longer = add_key("q", -5000, 0, "s");
	QueueState *queue;

	insert_with_hint(shorter, start.wall, 1);
	CHECK(start_next(start, &queue) == 1);
	groups_task_ended(queue);
	insert_with_hint(shorter, start.wall, 2);
	insert_with_hint(longer, start.wall, 3);
	order_begin_round(start);
	lanes_skip_role(group_role_find("r"));
	CHECK(groups_next(start) == NULL);
	CHECK(groups_due_at(start).us == start.mono.us + 5 * SECOND);
	CHECK(!groups_ready(after(start, 1)));
	CHECK(groups_due_at(after(start, 1)).us == start.mono.us + SECOND);
	CHECK(start_next(after(start, SECOND), NULL) == 2);
	return NULL;
}

/*
 * A full queue in which so many roles have waiting tasks: the end of a task costs what it starts,
 * however many lanes the queue has.  With "fair", the start moves only the lanes that are ready;
 * with "strict", a task is known to be the first one without a look at all lanes.
 */
static const char *
check_many_lanes(int count)
{
	const QueueRule rules[] = {RULE("q", -1), RULE("q", -1, .fair = true),
							   RULE("q", -1, .strict = true)};
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
	CHECK(groups_next(start) == NULL);
	for (kind = 0; kind < (int) lengthof(rules); kind++)
	{
		/* the lanes are parked */
		set_rules(&rules[kind], 1);
		begin_round(start);
		CHECK(groups_next(start) == NULL);
		/* the first times that lanes come back, the heap of the parked ones is put in order */
		for (i = -100; i < 100; i++)
		{
			if (i == 0)
				comparisons = moves = 0;
			/* the role of the task that ends has another one, behind all others */
			key.role = psprintf("role %d", (int) (id - 1) % count + 1);
			place = place_of(start.wall - HOUR, id + count);
			groups_scan_found(&key, &place, 1, true);
			groups_task_ended(queue);
			begin_round(start);
			CHECK(groups_next(start) != NULL && order_is_first_of_queue(groups_next(start)));
			CHECK(choose_next(start, &place, &queue));
			CHECK(place.id == ++id);
			CHECK(groups_next(start) == NULL);
		}
		if (moves + comparisons > 100 * 100)
			return psprintf("rule %d: %d moves, " INT64_FORMAT " comparisons", kind, moves,
							comparisons);
	}
	return NULL;
}

/* A scan lists all rows of small groups, which are not read again. */
static const char *
check_listed_rows(void)
{
	int small = add_key("small", TASK_UNLIMITED, 0, "r");
	int large = add_key("large", TASK_UNLIMITED, 1, "r");
	int i;

	table.list_limit = 3;
	for (i = 1; i <= 3; i++)
		add_row(small, start.wall, i);
	for (i = 4; i <= 10; i++)
		add_row(large, start.wall, i);
	scan_groups(start);
	for (i = 1; i <= 3; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(table.reads == 0);
	for (i = 4; i <= 10; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads > 0);

	/* a hint says that there are more; a scan that lists them all says that there are not */
	table.reads = 0;
	insert_with_hint(small, start.wall, 21);
	insert_with_hint(small, start.wall, 22);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 21);
	CHECK(start_next(start, NULL) == 22);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads == 1);
	insert_with_hint(small, start.wall, 23);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 23);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads == 1);
	return NULL;
}

/* Is a scan due, to find groups that were forgotten? */
static bool
scan_wanted(ClockNow now)
{
	return !clock_is_before(now.mono, surplus_scan_at(now));
}

/* Insert a row into a queue of its own. */
static void
insert_alone(int32 max, const char *role, TimestampTz dt, int64 id)
{
	insert_with_hint(add_key(psprintf("%d.%s", (int) id, role), max, 0, role), dt, id);
}

/* Too many groups: which are forgotten, and when a scan finds them again. */
static const char *
check_forgotten_groups(void)
{
	TimestampTz last = PG_INT64_MIN;
	QueueState *queue;
	int i;

	groups.limit = 10;

	/* those that never start a task */
	insert_with_hint(add_key("closed", 0, 0, "r"), start.wall, 999);
	CHECK(groups.table->members == 0);

	/* the latest of those that are not due */
	for (i = 1; i <= 20; i++)
		insert_alone(TASK_UNLIMITED, "r", start.wall + i * 7 % 20 + 1, i);
	CHECK(groups.table->members <= 10);
	CHECK(!groups_ready(start));
	CHECK(groups_due_at(start).us == start.mono.us + 1);
	CHECK(surplus_scan_at(start).us > start.mono.us + 5);
	CHECK(surplus_scan_at(start).us <= start.mono.us + 10);
	for (i = 1; i <= 20; i++)
	{
		ClockNow now = after(start, i);

		if (scan_wanted(now))
			scan_groups(now);
		CHECK(start_next(now, NULL) != 0);
		CHECK(start_next(now, NULL) == 0);
	}

	/* of due ones the last in the order; another role keeps its share */
	scan_groups(after(start, HOUR));
	for (i = 21; i <= 40; i++)
		insert_alone(TASK_UNLIMITED, "r", start.wall - i * 7 % 20, i);
	insert_alone(TASK_UNLIMITED, "s", start.wall, 41);
	CHECK(groups.table->members <= 10);
	for (i = 0; i <= 21; i++)
	{
		int64 id;

		/* behind those that were forgotten */
		if (i == 5)
			insert_alone(TASK_UNLIMITED, "r", start.wall + SECOND, 42);
		id = start_next(after(start, HOUR), NULL);

		if (id == 41)
			continue;
		CHECK(id == 0 || table.rows[id].place.dt >= last);
		last = id == 0 ? last : table.rows[id].place.dt;
		if (id == 0)
		{
			CHECK(scan_wanted(after(start, HOUR)));
			scan_groups(after(start, HOUR));
			id = start_next(after(start, HOUR), NULL);
			CHECK(id != 0 && table.rows[id].place.dt >= last);
			last = table.rows[id].place.dt;
		}
	}
	CHECK(start_next(after(start, HOUR), NULL) == 0);

	/* those of a full queue, before any that is due */
	scan_groups(after(start, HOUR));
	scan_groups(after(start, HOUR));
	CHECK(groups.table->members == 0);
	for (i = 0; i < 5; i++)
		add_key("full", 1, i, "r");
	for (i = 0; i < 5; i++)
		insert_with_hint(table.ngroups - 5 + i, start.wall, 50 + i);
	CHECK(start_next(start, &queue) == 50);
	CHECK(start_next(start, NULL) == 0);
	for (i = 60; i < 68; i++)
		insert_alone(1, "r", start.wall, i);
	CHECK(queue->forgotten);
	for (i = 60; i < 68; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(!scan_wanted(start));
	groups_task_ended(queue);
	CHECK(scan_wanted(start));
	scan_groups(start);
	CHECK(start_next(start, NULL) == 51);

	/* those of a queue in its pause */
	groups_clear();
	groups_task_ended(queue);
	table.nrows = 0;
	insert_alone(-1000, "r", start.wall, 80);
	CHECK(start_next(start, &queue) == 80);
	groups_task_ended(queue);
	insert_with_hint(table.ngroups - 1, start.wall, 81);
	CHECK(start_next(start, NULL) == 0);
	for (i = 82; i < 94; i++)
		insert_alone(TASK_UNLIMITED, "r", start.wall, i);
	CHECK(queue->groups == 0);
	CHECK(surplus_scan_at(start).us == start.mono.us + SECOND);
	return NULL;
}

/* Report a row as a commit does; false if memory runs out. */
static bool
try_hint(const TaskGroup *key, TaskPlace place)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool succeeded = false;

	PG_TRY();
	{
		groups_hint(key, place);
		succeeded = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return succeeded;
}

/* Read two rows of a group; false if memory runs out. */
static bool
try_read(QueueGroup *group, TimestampTz dt)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool succeeded = false;
	TaskPlace places[] = {{dt, 1}, {dt, 2}};

	PG_TRY();
	{
		groups_read(group, places, 2, 2);
		succeeded = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return succeeded;
}

/* A strict queue that is held for its first task stays held when its group is forgotten. */
static const char *
check_forgotten_hold(void)
{
	static char names[8][8];
	QueueRule rule = RULE("strict", -1, .strict = true);
	int held = add_key("strict", TASK_UNLIMITED, 0, "r");
	QueueState *queue = queue_find_or_add("strict");
	ClockNow later = after(start, 60 * SECOND);
	int i;

	set_rules(&rule, 1);
	groups.limit = 5;
	insert_with_hint(held, start.wall, 1);
	begin_round(start);
	queue->held_group = groups_next(start);
	queue->held_place = place_of(start.wall, 1);
	queue->held_until = later.mono;
	for (i = 0; i < 8; i++)
	{
		snprintf(names[i], sizeof(names[i]), "q%d", i);
		insert_with_hint(add_key(names[i], TASK_UNLIMITED, 0, "r"), start.wall, 2 + i);
		CHECK(start_next(start, NULL) == 2 + i);
		add_row(table.ngroups - 1, start.wall, 10 + i);
	}
	CHECK(queue->held_group == NULL && queue->groups == 0);
	CHECK(queue->held_until.us == later.mono.us);
	CHECK(surplus_scan_at(start).us == later.mono.us);
	while (!queues_sweep(after(start, 30 * SECOND).mono, 1))
		;
	CHECK(queue_find("strict") == queue);

	/* scans find it, but it is not started before the hold ends */
	for (i = 0; i < 8; i++)
	{
		scan_groups(start);
		CHECK(start_next(start, NULL) >= 10);
	}
	scan_groups(start);
	CHECK(start_next(start, NULL) == 0);
	scan_groups(later);
	CHECK(start_next(later, NULL) == 1);

	/* a row of the queue that a hint names may be before the one that it is held for */
	queue->held_until = after(later, SECOND).mono;
	insert_with_hint(held, start.wall - 1, 100);
	CHECK(start_next(later, NULL) == 100);
	return NULL;
}

/* Each allocation of each insertion fails once; the hash tables grow several times. */
static const char *
check_out_of_memory(void)
{
	int count = 1000;
	int failures = 0;
	TaskGroup key = {NULL, TASK_UNLIMITED, 0, "r", 1};
	TaskPlace place;
	QueueState *queue;
	QueueGroup *group;
	int i;

	for (i = 0; i < count; i++)
	{
		int allocation = 1;

		key.queue = psprintf("queue %d", i);
		for (;; allocation++, failures++)
		{
			failing_allocation = allocation;
			if (try_hint(&key, place_of(start.wall, i)))
				break;
			CHECK(failing_allocation == 0);
			CHECK(groups.table->members == (uint32) i || groups.table->members == (uint32) i + 1);
		}
		failing_allocation = 0;
		CHECK(allocation > 1);
		CHECK(groups.table->members == (uint32) i + 1);
	}
	CHECK(failures > 3 * count);
	CHECK(queues.table->members == (uint32) count);

	/* the order is whole */
	end_all_groups();
	begin_round(start);
	for (i = 0; i < count; i++)
	{
		CHECK(choose_next(start, &place, &queue));
		CHECK(place.id == i);
		groups_task_ended(queue);
	}
	CHECK(!choose_next(start, &place, &queue));

	/* the array of rows cannot grow: the group is as before */
	groups_hint(&key, place_of(start.wall, count));
	begin_round(start);
	group = groups_next(start);
	failing_allocation = 1;
	CHECK(!try_read(group, start.wall + 1));
	CHECK(groups_next(start) == group);
	CHECK(try_read(group, start.wall + 1));
	CHECK(group->count - group->next == 3);

	/* nothing is left when all groups were forgotten */
	groups_clear();
	CHECK(groups.table->members == 0 && roles.table->members == 0);
	CHECK(groups_next(start) == NULL);
	return NULL;
}

/* Restore a rate as try_hint reports a row. */
static bool
try_restore(QueueState *queue, StringInfo image)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool succeeded = false;

	PG_TRY();
	{
		succeeded = rates_restore(queue, image->data, image->len, start);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return succeeded;
}

/* What earlier schedulers have started is restored as a whole, or later. */
static const char *
check_restored_rates(void)
{
	QueueState *queue = queue_find_or_add("q");
	RateState state;
	StringInfoData image;
	int allocation = 1;
	int i;

	rate_init(&state, CurrentMemoryContext, (RateRule){20, 10 * USECS_PER_SEC, 0});
	for (i = 0; i < 20; i++)
	{
		rate_chosen(&state);
		rate_begun(&state, start.mono);
	}
	initStringInfo(&image);
	rate_write(&state, start, &image);
	for (;; allocation++)
	{
		failing_allocation = allocation;
		if (try_restore(queue, &image))
			break;
		CHECK(failing_allocation == 0);
		CHECK(queue->rate == NULL && queue->idle && rates_count() == 0);
	}
	failing_allocation = 0;
	CHECK(allocation > 2);
	CHECK(queue->rate && queue->rate->state.total == 20);
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
	{"scan", check_scan, NULL},
	{"news", check_news, NULL},
	{"drop and skip", check_drop_and_skip, NULL},
	{"locked rows", check_locked_rows, NULL},
	{"rules", check_rules, NULL},
	{"patterns", check_patterns, NULL},
	{"ruled queues", check_ruled_queues, NULL},
	{"clocks", check_clocks, NULL},
	{"averages", check_averages, NULL},
	{"forgotten queues", check_forgotten_queues, NULL},
	{"many groups", check_many_groups, NULL},
	{"blocked roles", check_blocked_roles, NULL},
	{"left line", check_left_line, NULL},
	{"called once", check_called_once, NULL},
	{"role line", NULL, check_role_line},
	{"parked lanes", check_parked, NULL},
	{"two pauses", check_two_pauses, NULL},
	{"listed rows", check_listed_rows, NULL},
	{"forgotten groups", check_forgotten_groups, NULL},
	{"forgotten hold", check_forgotten_hold, NULL},
	{"out of memory", check_out_of_memory, NULL},
	{"restored rates", check_restored_rates, NULL},
	{"many lanes", NULL, check_many_lanes},
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
	groups_create(PG_INT32_MAX, 0);
	for (i = 0; i < (int) lengthof(checks); i++)
		if (strcmp(checks[i].name, name) == 0)
			result = checks[i].run ? checks[i].run() : checks[i].run_random(PG_GETARG_INT32(1));
	MemoryContextDelete(groups.context);
	if (result == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(result));
}
