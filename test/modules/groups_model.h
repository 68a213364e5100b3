/*
 * groups_model.h
 *		For the unit tests of the scheduler's groups: random rows, and a model that finds the next
 *		task by a search of all rows.
 */
#ifndef GROUPS_MODEL_H
#define GROUPS_MODEL_H

#include "groups_rules.h"
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

#define ROLES 5

static const char *const role_names[ROLES] = {"v", "w", "x", "y", "z"};

/* The limits that queues have together: of the first queue, and of the others; negative: none. */
static int model_totals[2];

static int
model_limit_of(int queue)
{
	return queue > 0;
}

/* Roles, in queues of each of these limits, and groups that the round has skipped. */
static bool model_skipped_roles[2][ROLES];
static bool model_skipped_groups[GROUPS_MAX];

static void
add_random_keys(void)
{
	static const int32 limits[] = {TASK_UNLIMITED, TASK_UNLIMITED, 1, 2, 7, 0, -50, -3000};

	while (table.ngroups < 40)
	{
		TaskGroup key = {queue_names[random_below(QUEUES)], limits[random_below(lengthof(limits))],
						 random_below(3) - 1, role_names[random_below(ROLES)], 1};
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

	if (with_hint && id % 2 == 0)
		insert_with_hint(group, dt, id);
	else if (with_hint)
		insert_singly(group, dt, id);
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

	int limit = model_limit_of(model_queue_of(key));
	int running = 0;
	int i;

	for (i = 0; i < QUEUES; i++)
		if (model_limit_of(i) == limit)
			running += queues[i].running;
	if (row->gone || row->place.dt > now.wall || model_skipped_groups[row->group] ||
		model_skipped_roles[limit][key->role[0] - 'v'] ||
		(model_totals[limit] >= 0 && running >= model_totals[limit]))
		return false;
	if (key->max < 0)
		return queue->running == 0 && now.mono.us >= queue->last_start.us - (int64) key->max * 1000;
	return key->max == TASK_UNLIMITED || queue->running < key->max;
}

/* Compare two rows, of one queue or of two: negative if "a" starts first. */
static int
model_compare(const Row *a, const Row *b)
{
	const TaskGroup *left = &table.keys[a->group];
	const TaskGroup *right = &table.keys[b->group];

	if (left->max != right->max && strcmp(left->queue, right->queue) == 0)
		return left->max > right->max ? -1 : 1;
	if (left->priority != right->priority)
		return left->priority < right->priority ? -1 : 1;
	if (a->place.dt != b->place.dt)
		return a->place.dt < b->place.dt ? -1 : 1;
	return a->place.id < b->place.id ? -1 : 1;
}

/* Of the rows that may start, the first of each queue, and of these the first; NULL: none. */
static Row *
model_next(const ModelQueue *queues, ClockNow now)
{
	Row *firsts[QUEUES] = {NULL};
	Row *next = NULL;
	int i;

	for (i = 0; i < table.nrows; i++)
	{
		Row *row = &table.rows[i];
		Row **first = &firsts[model_queue_of(&table.keys[row->group])];

		if (model_may_start(row, queues, now) &&
			(*first == NULL || model_compare(row, *first) < 0))
			*first = row;
	}
	for (i = 0; i < QUEUES; i++)
		if (firsts[i] && (next == NULL || model_compare(firsts[i], next) < 0))
			next = firsts[i];
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
			order_task_ended(queue_find_or_add(queue_names[i]));
		}
}

/* Does a group of the queue break what order.c demands of its groups? */
static const char *
check_groups_of(QueueState *queue)
{
	bool waits = !pairingheap_is_empty(&queue->waiting);
	int nready = 0;
	dlist_iter iter;

	dlist_foreach(iter, &groups.all)
	{
		const QueueGroup *group = dlist_container(QueueGroup, node, iter.cur);

		if (group->queue != queue)
			continue;
		nready += group->state == GROUP_READY;
		if (group->state == GROUP_WAITING && queue->first)
			CHECK(order_compare_in_queue(queue->first, group) > 0);
		if (group->state == GROUP_WAITING && queue->first && group->role != queue->first->role)
			CHECK(queue->first->has_behind && !queue->first->role->skip);
		if (group->state == GROUP_YIELDED)
			CHECK(group->role->skip != ROLE_NOT_SKIPPED);
	}
	CHECK(nready == (queue->first ? 1 : 0));
	CHECK(!queue->closed || (waits && queue->first == NULL));
	CHECK(!waits || queue->closed || queue->first);
	CHECK(queue->first == NULL || !queue->first->has_behind || waits);
	return NULL;
}

/* Does a queue break it? */
static const char *
check_groups(void)
{
	int i;

	for (i = 0; i < QUEUES; i++)
	{
		QueueState *queue = queue_find(queue_names[i]);
		const char *result = queue ? check_groups_of(queue) : NULL;

		if (result)
			return result;
	}
	return NULL;
}

/* Skip the first group or its role, sometimes, as if it had no executor. */
static bool
skip_sometimes(QueueGroup *group, ClockNow now)
{
	int what = random_below(10);

	if (what == 0)
	{
		model_skipped_groups[find_key(group)] = true;
		order_skip(group);
	}
	else if (what <= 2)
	{
		/* a role is one of each limit, if there are limits */
		for (int limit = 0; limit < 2; limit++)
			if (group->role->limit == NULL ? model_totals[limit] < 0
										   : limit == model_limit_of(model_queue_of(&group->key)))
				model_skipped_roles[limit][group->key.role[0] - 'v'] = true;
		if (what == 1)
			order_skip_role(group->role, ROLE_SKIPPED);
		else
			(void) groups_block_role(group, now);
	}
	return what <= 2;
}

static void
begin_model_round(ClockNow now)
{
	memset(model_skipped_groups, 0, sizeof(model_skipped_groups));
	memset(model_skipped_roles, 0, sizeof(model_skipped_roles));
	begin_round(now);
}

/*
 * In one round, choose up to *limit tasks, which is decreased, and compare each with the model.
 * Some groups and roles are skipped.
 */
static const char *
compare_choices(ModelQueue *queues, ClockNow now, int *limit)
{
	QueueGroup *group;

	begin_model_round(now);
	while (*limit > 0 && (group = next_known(now)) != NULL)
	{
		Row *row = model_next(queues, now);
		const char *result = check_groups();
		TaskPlace place;
		QueueState *queue;

		if (result)
			return result;
		CHECK(row != NULL && row->place.id == group->places[group->next].id);
		CHECK(strcmp(group->queue->name, table.keys[row->group].queue) == 0);
		if (skip_sometimes(group, now))
			continue;
		CHECK(choose_next(now, &place, &queue) && place.id == row->place.id);
		model_start(row, queues, now);
		(*limit)--;
	}
	CHECK(*limit == 0 || model_next(queues, now) == NULL);
	return check_groups();
}

/* Choose up to "limit" tasks, in two rounds.  *chosen is increased. */
static const char *
compare_round(ModelQueue *queues, ClockNow now, int limit, int *chosen)
{
	const char *result;

	*chosen += limit;
	result = compare_choices(queues, now, &limit);
	if (result == NULL)
		result = compare_choices(queues, after(now, 1), &limit);
	*chosen -= limit;
	return result;
}

/*
 * Set another time, which is not that of a round before: both clocks go on, or the wall clock alone
 * goes back or forward.
 */
static ClockNow
random_later(ClockNow now)
{
	int64 us = random_below(300) * (SECOND / 100) + 2;

	if (random_below(10) == 0)
		return (ClockNow){{now.mono.us + us}, now.wall + (random_below(200) - 100) * (SECOND / 10)};
	return after(now, us);
}

/* Change the limits that queues have together, and what they are. */
static void
change_limits(ClockNow now)
{
	QueueRule rules[] = {RULE("%", -1), RULE("a%", -1)};
	int i;

	for (i = 0; i < 2; i++)
	{
		model_totals[1 - i] = random_below(5) - 1;
		rules[i].total = model_totals[1 - i] < 0 ? RULE_UNLIMITED : model_totals[1 - i];
	}
	set_rules(rules, 2);
	begin_model_round(now);
}

static const char *
check_random_order(int seed)
{
	ModelQueue queues[QUEUES] = {{0}};
	ClockNow now = start;
	int chosen = 0;
	int round;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	model_totals[0] = model_totals[1] = -1;
	begin_model_round(start);
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
		if (round > 150 && random_below(10) == 0)
			change_limits(now);
		result = compare_round(queues, now, random_below(12), &chosen);
		if (result)
			return psprintf("round %d, after %d tasks: %s", round, chosen, result);
		end_random_tasks(queues);
		now = random_later(now);
	}
	set_rules(NULL, 0);
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
	begin_model_round(start);
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

/* At most 15 of 40 groups are remembered: with scans, each row is started. */
static const char *
check_random_forgetting(int seed)
{
	ModelQueue queues[QUEUES] = {{0}};
	ClockNow now = start;
	int waiting = 0;
	int round;
	int i;

	random_state = (uint64) seed * UINT64CONST(2654435769) + 1;
	begin_model_round(start);
	add_random_keys();
	groups.limit = 15;
	for (round = 1; round <= 900; round++)
	{
		(void) groups_advance(now);
		for (i = random_below(8); i > 0 && round <= 300; i--)
			insert_random_row(now, table.nrows + 1, true);
		table.list_limit = 1 + random_below(4);
		if (random_below(2) == 0)
			scan_groups(now);
		for (i = 0; i < 12; i++)
		{
			int64 id = start_next(now, NULL);

			CHECK(groups.table->members <= 15);
			if (id == 0)
				break;
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
