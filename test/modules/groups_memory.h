/*
 * groups_memory.h
 *		The checks of what is forgotten, and of memory that runs out, for groups_check.c:
 *		src/scheduler/groups.c and queues.c.
 */
#ifndef GROUPS_MEMORY_H
#define GROUPS_MEMORY_H

#include "groups_rules.h"
#include "groups_table.h"

static const char *
check_forgotten_queues(void)
{
	int group = add_key("paused", -3600 * 1000, 0, "r");
	QueueState *busy = queue_find_or_add("busy");
	ClockNow now = start;

	(void) queue_find_or_add("unused");
	queue_count(busy, 0, 1);
	insert_with_hint(group, start.wall, 1);
	CHECK(start_next(start, NULL) == 1);
	order_task_ended(queue_find_or_add("paused"));
	CHECK(queues.table->members == 3);

	/* the one that runs a task and the one in its pause are kept */
	now = after(start, HOUR - 1);
	scan_groups(now);
	CHECK(groups.table->members == 0);
	CHECK(queues.table->members == 2);
	CHECK(queue_find_or_add("busy") == busy);
	order_task_ended(busy);
	CHECK(rates_count() == 1);
	scan_groups(after(now, 1));
	CHECK(queues.table->members == 0 && rates_count() == 0);

	/* one that was used a short time ago is kept */
	insert_with_hint(add_key("recent", TASK_UNLIMITED, 0, "r"), start.wall, 2);
	CHECK(start_next(now, &busy) == 2);
	order_task_ended(busy);
	scan_groups(after(now, QUEUE_MEMORY_MS * INT64CONST(1000) - 1));
	CHECK(queues.table->members == 1);
	scan_groups(after(now, QUEUE_MEMORY_MS * INT64CONST(1000)));
	CHECK(queues.table->members == 0);
	return NULL;
}

/* Insert a row into a queue of its own. */
static void
insert_alone(int32 max, const char *role, TimestampTz dt, int64 id)
{
	insert_with_hint(add_key(psprintf("%d.%s", (int) id, role), max, 0, role), dt, id);
}

/* Too many groups: which are remembered. */
static const char *
check_forgotten_groups(void)
{
	int full = add_key("full", 1, 0, "r");
	QueueState *queue;
	int i;

	groups.limit = 10;

	/* one that never starts a task */
	insert_with_hint(add_key("closed", 0, 0, "r"), start.wall, 999);
	CHECK(groups.table->members == 0);

	/* what could not start a task now, when there are enough */
	insert_with_hint(full, start.wall, 100);
	CHECK(start_next(start, &queue) == 100);
	scan_groups(start);
	CHECK(groups.table->members == 0 && !groups_lack());
	for (i = 1; i <= 20; i++)
		insert_alone(TASK_UNLIMITED, "r", start.wall + i, i);
	insert_with_hint(full, start.wall, 101);
	CHECK(groups.table->members == 10 && groups_lack());
	CHECK(!groups_advance(start));

	/* one that could takes the place of another: that which was named longest ago */
	for (i = 21; i <= 25; i++)
		insert_alone(TASK_UNLIMITED, "r", start.wall, i);
	CHECK(groups.table->members == 10);
	CHECK(queues.table->members <= 12);
	for (i = 21; i <= 25; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 0);
	CHECK(order_due_at(start).us == start.mono.us + 6);

	/* scans find the others when there is room; tasks that start keep their groups */
	order_task_ended(queue);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 101);
	for (i = 0; i < 3; i++)
	{
		scan_groups(after(start, HOUR));
		while (start_next(after(start, HOUR), NULL) != 0)
			;
	}
	scan_groups(after(start, HOUR));
	CHECK(groups.table->members == 0 && !groups_lack());
	for (i = 0; i < table.nrows; i++)
		CHECK(table.rows[i].gone || table.rows[i].place.id == 999);
	return NULL;
}

/* Return the value of an expression, or false if memory runs out. */
#define RETURN_ATTEMPT(expression)                     \
	do                                                 \
	{                                                  \
		MemoryContext context = CurrentMemoryContext;  \
		volatile bool succeeded = false;               \
                                                       \
		PG_TRY();                                      \
		{                                              \
			succeeded = (expression);                  \
		}                                              \
		PG_CATCH();                                    \
		{                                              \
			MemoryContextSwitchTo(context);            \
			FlushErrorState();                         \
		}                                              \
		PG_END_TRY();                                  \
		return succeeded;                              \
	} while (0)

/* Report a row as a commit does; false if memory runs out. */
static bool
try_hint(const TaskGroup *key, TaskPlace place)
{
	RETURN_ATTEMPT((groups_hint(key, place, true), true));
}

/* Read two rows of a group; false if memory runs out. */
static bool
try_read(QueueGroup *group, TimestampTz dt)
{
	TaskPlace places[] = {{dt, 1}, {dt, 2}};

	RETURN_ATTEMPT((groups_read(group, places, 2, 2), true));
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
		order_task_ended(queue);
	}
	CHECK(!choose_next(start, &place, &queue));

	/* the array of rows cannot grow: the group is as before */
	groups_hint(&key, place_of(start.wall, count), true);
	begin_round(start);
	group = order_next(start);
	failing_allocation = 1;
	CHECK(!try_read(group, start.wall + 1));
	CHECK(order_next(start) == group);
	CHECK(try_read(group, start.wall + 1));
	CHECK(group->count - group->next == 3);

	/* nothing is left when all groups were forgotten */
	groups_clear();
	CHECK(groups.table->members == 0 && order.table->members == 0);
	CHECK(order_next(start) == NULL);
	return NULL;
}

/* The pause that an earlier scheduler has begun, which is read after the first row is known. */
static const char *
check_restored_pauses(void)
{
	int group = add_key("q", -5000, 0, "r");
	int other = add_key("q", TASK_UNLIMITED, 0, "r");
	ClockNow now = after(start, 2 * SECOND);
	QueueState *queue;
	RateClaim claim;
	RateRow row;
	uint64 one;
	uint64 two;

	insert_with_hint(group, start.wall, 1);
	CHECK(start_next(start, &queue) == 1);
	order_task_ended(queue);
	row = rates_row(&queue->claims, queue->name);
	CHECK(row.count == 1 && row.keep == 5 * SECOND);
	CHECK(!rates_is_idle(&queue->claims, after(start, 5 * SECOND - 1).mono));
	CHECK(rates_is_idle(&queue->claims, after(start, 5 * SECOND).mono));
	claim = row.claims[0];
	row.claims = &claim;

	/* the next scheduler */
	MemoryContextDelete(groups.context);
	groups_create(0);
	insert_with_hint(group, start.wall, 2);
	insert_with_hint(other, start.wall, 3);
	CHECK(start_next(now, &queue) == 3);
	order_task_ended(queue);
	queue->claims.last = CLOCK_LONG_AGO;
	CHECK(start_next(now, NULL) == 0);
	CHECK(order_due_at(now).us == CLOCK_NEVER.us);
	rates_restore(&queue->claims, &row);
	CHECK(rates_count() == 1);
	rates_hold(false);
	order_open(queue);
	CHECK(start_next(now, NULL) == 0);
	CHECK(order_due_at(now).us == after(start, 5 * SECOND).mono.us);
	CHECK(start_next(after(start, 5 * SECOND), NULL) == 2);

	/* a claim that has not begun is no start; nor is one that others have followed, when they go */
	one = rates_add(&queue->claims, after(start, 6 * SECOND).mono);
	two = rates_add(&queue->claims, after(start, 7 * SECOND).mono);
	rates_undo(&queue->claims, one);
	CHECK(queue->claims.last.us == after(start, 7 * SECOND).mono.us);
	rates_undo(&queue->claims, two);
	CHECK(queue->claims.last.us == after(start, 5 * SECOND).mono.us);
	return NULL;
}

#endif /* GROUPS_MEMORY_H */
