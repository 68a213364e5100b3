/*
 * groups_model.h
 *		For the unit tests of the scheduler's groups: random rows, and a model that finds the next
 *		task by a search of all rows.
 */
#ifndef GROUPS_MODEL_H
#define GROUPS_MODEL_H

#include "groups_table.h"

static uint64 random_state;

/* A number from 0 to below - 1 (xorshift). */
static int
random_below(int below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (int) (random_state % (uint64) below);
}

#define QUEUES 6

/* What the model knows of a queue. */
typedef struct ModelQueue
{
	int running;
	MonoTime last_start;
} ModelQueue;

static const char *const queue_names[QUEUES] = {"a", "b", "c", "d", "e", "f"};

static void
add_random_keys(void)
{
	static const int32 limits[] = {TASK_UNLIMITED, TASK_UNLIMITED, 1, 2, 7, 0, -50, -3000};
	static const char *const roles[] = {"x", "y"};

	while (table.ngroups < 40)
	{
		TaskGroup key = {queue_names[random_below(QUEUES)], limits[random_below(lengthof(limits))],
						 random_below(3) - 1, roles[random_below(2)], 1};
		int i;

		for (i = 0; i < table.ngroups && !task_same_group(&table.keys[i], &key); i++)
			;
		if (i == table.ngroups)
			table.keys[table.ngroups++] = key;
	}
}

/* Insert a row, due or not, in any position of its group. */
static void
insert_random_row(ClockNow now, int64 id, bool with_hint)
{
	int group = random_below(table.ngroups);
	TimestampTz dt = now.wall + (random_below(2000) - 1500) * (SECOND / 100);

	if (with_hint)
		insert_with_hint(group, dt, id);
	else
		add_row(group, dt, id);
}

static int
model_queue_of(const TaskGroup *key)
{
	return key->queue[0] - 'a';
}

static bool
model_may_start(const Row *row, const ModelQueue *queues, ClockNow now)
{
	const TaskGroup *key = &table.keys[row->group];
	const ModelQueue *queue = &queues[model_queue_of(key)];

	if (row->gone || row->place.dt > now.wall)
		return false;
	if (key->max < 0)
		return queue->running == 0 && now.mono.us >= queue->last_start.us - (int64) key->max * 1000;
	return key->max == TASK_UNLIMITED || queue->running < key->max;
}

/* Compare two rows: negative if "a" starts first. */
static int
model_compare(const Row *a, const Row *b)
{
	const TaskGroup *left = &table.keys[a->group];
	const TaskGroup *right = &table.keys[b->group];

	if (left->max != right->max)
		return left->max > right->max ? -1 : 1;
	if (left->priority != right->priority)
		return left->priority < right->priority ? -1 : 1;
	if (a->place.dt != b->place.dt)
		return a->place.dt < b->place.dt ? -1 : 1;
	return a->place.id < b->place.id ? -1 : 1;
}

/* Of all rows that may start, the first; NULL if there is none. */
static Row *
model_next(const ModelQueue *queues, ClockNow now)
{
	Row *next = NULL;
	int i;

	for (i = 0; i < table.nrows; i++)
		if (model_may_start(&table.rows[i], queues, now) &&
			(next == NULL || model_compare(&table.rows[i], next) < 0))
			next = &table.rows[i];
	return next;
}

static void
model_start(Row *row, ModelQueue *queues, ClockNow now)
{
	ModelQueue *queue = &queues[model_queue_of(&table.keys[row->group])];

	row->gone = true;
	queue->running++;
	queue->last_start = now.mono;
}

static void
end_random_tasks(ModelQueue *queues)
{
	int i;

	for (i = 0; i < QUEUES; i++)
		while (queues[i].running > 0 && random_below(3) > 0)
		{
			queues[i].running--;
			groups_task_ended(queue_find_or_add(queue_names[i]));
		}
}

/* Choose up to "limit" tasks and compare each with the model.  *chosen is increased. */
static const char *
compare_round(ModelQueue *queues, ClockNow now, int limit, int *chosen)
{
	bool again = true;

	while (again && limit > 0)
	{
		TaskPlace place;
		QueueState *queue;

		again = false;
		begin_round(now);
		for (; limit > 0 && choose_next(now, &place, &queue); limit--)
		{
			Row *row = model_next(queues, now);

			CHECK(row != NULL);
			CHECK(row->place.id == place.id);
			CHECK(strcmp(queue->name, table.keys[row->group].queue) == 0);
			model_start(row, queues, now);
			(*chosen)++;
			again = true;
		}
	}
	CHECK(limit == 0 || model_next(queues, now) == NULL);
	return NULL;
}

/* Set another time: both clocks go on, or the wall clock alone goes back or forward. */
static ClockNow
random_later(ClockNow now)
{
	int64 us = random_below(300) * (SECOND / 100);

	if (random_below(10) == 0)
		return (ClockNow){now.mono, now.wall + (random_below(200) - 100) * (SECOND / 10)};
	return after(now, us);
}

static const char *
check_random_order(int seed)
{
	ModelQueue queues[QUEUES] = {{0}};
	ClockNow now = start;
	int chosen = 0;
	int round;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	add_random_keys();
	for (round = 1; round <= 300; round++)
	{
		const char *result;
		int i;

		for (i = random_below(12); i > 0; i--)
			insert_random_row(now, table.nrows + 1, true);
		table.list_limit = 1 + random_below(4);
		if (random_below(5) == 0)
			scan_groups(now);
		result = compare_round(queues, now, random_below(12), &chosen);
		if (result)
			return psprintf("round %d, after %d tasks: %s", round, chosen, result);
		end_random_tasks(queues);
		now = random_later(now);
	}
	CHECK(chosen > 500);
	return NULL;
}

/* Half of the rows are reported by no hint: with scans, each is started, and none twice. */
static const char *
check_random_scans(int seed)
{
	ModelQueue queues[QUEUES] = {{0}};
	ClockNow now = start;
	int started = 0;
	int waiting = 0;
	int round;
	int i;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	add_random_keys();
	for (round = 1; round <= 600; round++)
	{
		for (i = random_below(8); i > 0 && round <= 200; i--)
			insert_random_row(now, table.nrows + 1, random_below(2) == 0);
		table.list_limit = 1 + random_below(4);
		scan_groups(now);
		for (i = 0; i < 12; i++)
		{
			int before = started;
			int64 id = start_next(now, NULL);

			if (id == 0)
				break;
			CHECK(id <= table.nrows);
			queues[model_queue_of(&table.keys[table.rows[id - 1].group])].running++;
			started++;
			CHECK(started == before + 1);
		}
		end_random_tasks(queues);
		now = after(now, SECOND);
	}
	for (i = 0; i < table.nrows; i++)
		waiting += !table.rows[i].gone && table.keys[table.rows[i].group].max != 0;
	CHECK(waiting == 0);
	return NULL;
}

/* Of the rows of a role that may start, is this the first? */
static bool
model_is_first(const Row *row, const ModelQueue *queues, ClockNow now)
{
	const char *role = table.keys[row->group].role;
	int i;

	for (i = 0; i < table.nrows; i++)
		if (strcmp(table.keys[table.rows[i].group].role, role) == 0 &&
			model_may_start(&table.rows[i], queues, now) &&
			model_compare(&table.rows[i], row) < 0)
			return false;
	return true;
}

/*
 * At most 15 of 40 groups are remembered: each row is started, in the order of its role, if a scan
 * is done when one is wanted.
 */
static const char *
check_random_forgetting(int seed)
{
	ModelQueue queues[QUEUES] = {{0}};
	ClockNow now = start;
	int waiting = 0;
	int round;
	int i;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	add_random_keys();
	groups.limit = 15;
	for (round = 1; round <= 600; round++)
	{
		order_set_now(now);
		for (i = random_below(8); i > 0 && round <= 300; i--)
			insert_random_row(now, table.nrows + 1, true);
		table.list_limit = 1 + random_below(4);
		for (i = 0; i < 12; i++)
		{
			int64 id;

			if (!clock_is_before(now.mono, surplus_scan_at(now)) || random_below(100) == 0)
				scan_groups(now);
			CHECK(groups.table->members <= 15);
			id = start_next(now, NULL);
			if (id == 0)
				continue;
			if (!model_is_first(&table.rows[id - 1], queues, now))
				return psprintf("round %d: %d is not the first of its role", round, (int) id);
			model_start(&table.rows[id - 1], queues, now);
		}
		end_random_tasks(queues);
		now = after(now, SECOND);
	}
	for (i = 0; i < table.nrows; i++)
		waiting += !table.rows[i].gone && table.keys[table.rows[i].group].max != 0;
	CHECK(waiting == 0);
	return NULL;
}

#endif /* GROUPS_MODEL_H */
