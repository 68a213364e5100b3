/*
 * groups_roles.h
 *		For the unit tests of the scheduler's groups: roles without an executor, and the line in
 *		which they wait.
 */
#ifndef GROUPS_ROLES_H
#define GROUPS_ROLES_H

#include "groups_model.h"
#include "groups_table.h"

/* The role of the next group gets no executor since this moment. */
static GroupRole *
refuse_next(ClockNow now, int64 since, MonoTime not_before)
{
	QueueGroup *group = next_known(now);
	GroupRole *role = group->role;

	role->since.us = since;
	(void) groups_block_role(group, now);
	role_line_add(role, not_before);
	return role;
}

static void
insert_for_roles(int from, int to)
{
	int i;

	for (i = from; i <= to; i++)
		insert_with_hint(add_key("q", TASK_UNLIMITED, 0, psprintf("r%d", i)), start.wall - 100 + i,
						 i);
}

/* Is this role the one whose task is the next? */
static bool
role_is_next(int number, ClockNow now)
{
	QueueGroup *group = next_known(now);

	return group && atoi(group->key.role + 1) == number;
}

/* Roles without an executor are called by their needs, when their times have come. */
static const char *
check_role_line(void)
{
	MonoTime later = after(start, SECOND).mono;
	GroupRole *limited;
	GroupRole *barred;
	int i;

	insert_for_roles(1, 40);
	begin_round(start);
	for (i = 1; i <= 40; i++)
	{
		CHECK(role_is_next(i, start));
		(void) refuse_next(start, 1000 - i, i % 2 ? CLOCK_LONG_AGO : later);
	}
	CHECK(order_next(start) == NULL && role_line_read(start.mono).count == 40 && role_line_read(start.mono).waits);
	CHECK(role_line_read(start.mono).until.us == later.us);

	/* those that have waited longest, up to 16 */
	CHECK(role_line_call(start.mono, false) == 16 && role_is_next(9, start));
	begin_round(start);
	CHECK(role_is_next(9, start));
	CHECK(role_line_call(start.mono, false) == 4 && role_is_next(1, start));
	CHECK(role_line_call(start.mono, false) == 0 && !role_line_read(start.mono).waits);
	CHECK(role_line_read(later).waits && role_line_read(start.mono).count == 20);
	groups_clear();
	CHECK(role_line_read(start.mono).count == 0 && !groups_advance(after(start, SECOND)));

	/* the connection limit of the database, and roles that may have none */
	table.ngroups = table.nrows = 0;
	insert_for_roles(1, 3);
	begin_round(start);
	limited = refuse_next(start, 1, CLOCK_LONG_AGO);
	limited->limited = true;
	(void) refuse_next(start, 2, CLOCK_LONG_AGO);
	barred = refuse_next(start, 3, after(start, 10 * SECOND).mono);
	CHECK(role_line_call(start.mono, true) == 1 && role_is_next(2, start));
	CHECK(role_line_call(start.mono, true) == 0);
	CHECK(role_line_call(start.mono, false) == 1 && role_is_next(1, start));
	CHECK(role_line_read(start.mono).count == 1 && !role_line_read(start.mono).waits);
	CHECK(role_line_call(start.mono, false) == 0);
	CHECK(role_line_read(after(start, 10 * SECOND).mono).waits);
	barred->retry_ms = 1000;
	role_line_recall();
	CHECK(role_line_call(start.mono, false) == 0);
	barred->retry_ms = 0;
	role_line_recall();
	CHECK(role_line_read(start.mono).waits && role_line_call(start.mono, false) == 1);

	/* an executor could not connect, twice */
	limited->oid = 99;
	role_connection_tried(99, false, start.mono);
	CHECK(limited->not_before.us == start.mono.us + SECOND);
	role_connection_tried(99, false, start.mono);
	CHECK(limited->not_before.us == start.mono.us + 2 * SECOND);
	role_connection_tried(99, true, start.mono);
	CHECK(limited->retry_ms == 0);
	return NULL;
}

/* A role is skipped in one step for each queue, or group where another role waits. */
static const char *
check_blocked_roles(void)
{
	TaskGroup key = {"q", TASK_UNLIMITED, 0, "busy", 1};
	QueueGroup *group;
	RoleDemand demand;
	int i;

	for (i = 1; i <= 1000; i++)
	{
		key.priority = i;
		groups_hint(&key, place_of(start.wall, i), true);
		key.queue = psprintf("queue %d", i % 100);
		groups_hint(&key, place_of(start.wall, i + 1000), true);
	}
	key = (TaskGroup){"q", TASK_UNLIMITED, 9999, "free", 1};
	groups_hint(&key, place_of(start.wall, 9999), true);
	end_all_groups();
	queue_learn(queue_find_or_add("q"), 100);
	begin_round(start);
	group = order_next(start);
	CHECK(group->key.priority == 1 && strcmp(group->key.role, "busy") == 0);
	moves = 0;
	demand = groups_block_role(group, start);
	CHECK(demand.tasks >= 32 && demand.average == 100);
	group = order_next(start);
	CHECK(strcmp(group->key.role, "free") == 0);
	order_skip_role(group->role, ROLE_SKIPPED);
	CHECK(order_next(start) == NULL);
	begin_round(start);
	CHECK(order_next(start)->key.priority == 1);
	CHECK(moves <= 1000 * 8);

	/* a hint and a forgotten group do not bring a role back */
	order_skip_role(order_next(start)->role, ROLE_SKIPPED);
	key = (TaskGroup){"q", TASK_UNLIMITED, 0, "busy", 1};
	groups_hint(&key, place_of(start.wall, 10000), true);
	CHECK(strcmp(order_next(start)->key.role, "free") == 0);
	groups_clear();
	CHECK(order.table->members == 0);
	CHECK(!groups_advance(start));
	return NULL;
}

#endif /* GROUPS_ROLES_H */
