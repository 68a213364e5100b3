/*
 * groups_roles.h
 *		For the unit tests of the scheduler's groups: roles without an executor, and the line in
 *		which they wait.
 */
#ifndef GROUPS_ROLES_H
#define GROUPS_ROLES_H

#include "groups_model.h"
#include "groups_table.h"

#define LINE_ROLES 1000

/* What the model knows of a role: its place in the line. */
typedef struct LineRole
{
	bool aside;
	int64 since;
	uint64 number;
} LineRole;

static LineRole line_roles[LINE_ROLES];
static uint64 line_number;

static int
line_role_of(const QueueGroup *group)
{
	return atoi(group->key.role + 1);
}

static TaskGroup
key_of_role(int i)
{
	return (TaskGroup){psprintf("q%d", i % 7), TASK_UNLIMITED, 0, psprintf("r%d", i), 1};
}

static void
hint_of_role(int i, int64 id)
{
	TaskGroup key = key_of_role(i);

	groups_hint(&key, place_of(start.wall - SECOND, id), true);
}

static QueueGroup *
find_group_of_role(int i)
{
	TaskGroup key = key_of_role(i);

	return groups_find(&key);
}

/* The role of this group gets no executor: in the model as well. */
static void
refuse_role(QueueGroup *group, int64 since, ClockNow now)
{
	GroupRole *role = group->lane->role;
	LineRole *model = &line_roles[line_role_of(group)];

	role_line_look(role);
	(void) group_demand_block(group, now);
	role_line_add(role, (MonoTime){since}, ROLE_LINE_OPEN);
	if (model->number == 0 || model->since != since)
		model->number = ++line_number;
	model->since = since;
	model->aside = true;
}

/* The role that the model calls next; -1: none. */
static int
first_in_line(void)
{
	int first = -1;
	int i;

	for (i = 0; i < LINE_ROLES; i++)
	{
		const LineRole *role = &line_roles[i];

		if (role->aside && (first < 0 || role->since < line_roles[first].since ||
							(role->since == line_roles[first].since &&
							 role->number < line_roles[first].number)))
			first = i;
	}
	return first;
}

/* Refuse all roles: each comes into the line. */
static const char *
refuse_all(ClockNow now)
{
	QueueGroup *group;
	int count = 0;

	while ((group = groups_next(now)) != NULL)
	{
		if (!group_knows_row(group))
			groups_read(group, NULL, 0, 1);
		else
		{
			refuse_role(group, 0, now);
			count++;
		}
	}
	CHECK(count == LINE_ROLES);
	return NULL;
}

/*
 * One round: roles are called, as the model says.  Some of these get an executor, others are
 * refused, and some are not looked at.
 */
static const char *
run_line_round(ClockNow now)
{
	int wanted = 1 + random_below(16);
	int called = 0;
	QueueGroup *group;
	bool expected[LINE_ROLES] = {false};
	int i;

	begin_round(now);
	CHECK(groups_next(now) == NULL);
	for (i = 0; i < wanted; i++)
	{
		int role = first_in_line();

		if (role < 0 || line_roles[role].since >= now.mono.us)
			break;
		line_roles[role].aside = false;
		expected[role] = true;
		called++;
	}
	CHECK(role_line_call(now.mono, wanted, false) == called);
	for (i = random_below(called + 1); i > 0 && (group = groups_next(now)) != NULL; i--)
	{
		int role = line_role_of(group);

		CHECK(expected[role]);
		expected[role] = false;
		if (random_below(8) > 0)
			refuse_role(group, random_below(2) ? line_roles[role].since : now.mono.us, now);
		else
		{
			/* it gets an executor, and its task starts */
			role_line_look(group->lane->role);
			forget_group(group);
			line_roles[role] = (LineRole){0};
			hint_of_role(role, random_below(1000));
			CHECK((group = find_group_of_role(role)) != NULL);
			refuse_role(group, now.mono.us, now);
		}
	}
	role_line_end_round();
	for (i = 0; i < LINE_ROLES; i++)
		line_roles[i].aside |= expected[i];
	CHECK(groups_next(now) == NULL);
	return NULL;
}

/* Roles that wait in line cost a round nothing, and are called in their order. */
static const char *
check_role_line(int seed)
{
	const char *fault;
	ClockNow now = start;
	int i;

	random_state = seed;
	line_number = 0;
	memset(line_roles, 0, sizeof(line_roles));
	for (i = 0; i < LINE_ROLES; i++)
		hint_of_role(i, i);
	begin_round(now);
	if ((fault = refuse_all(now)) != NULL)
		return fault;
	CHECK(groups_ready(now));
	for (i = 0; i < 1000; i++)
	{
		now.mono.us += 1000;
		now.wall += 1000;
		if ((fault = run_line_round(now)) != NULL)
			return fault;
	}
	groups_clear();
	CHECK(!role_line_waits() && !groups_ready(now));
	return NULL;
}

/* A role that is called and has no due task any more leaves the line. */
static const char *
check_left_line(void)
{
	ClockNow now = start;
	TaskPlace place;
	QueueGroup *group;

	line_number = 0;
	memset(line_roles, 0, sizeof(line_roles));
	hint_of_role(0, 1);
	begin_round(now);
	groups_read(find_group_of_role(0), NULL, 0, 1);
	refuse_role(groups_next(now), 0, now);
	now.mono.us += 1000;
	begin_round(now);
	CHECK(groups_next(now) == NULL && role_line_waits());
	CHECK(role_line_call(now.mono, 16, false) == 1);
	CHECK((group = groups_next(now)) != NULL);
	CHECK(groups_drop_first(group, now, &place));
	role_line_end_round();
	CHECK(!role_line_waits() && !groups_ready(now));
	hint_of_role(0, 2);
	CHECK(groups_ready(now));
	return NULL;
}

/* A role that comes into the line in a round is not called again in it: the round would not end. */
static const char *
check_called_once(void)
{
	ClockNow now = start;

	line_number = 0;
	memset(line_roles, 0, sizeof(line_roles));
	hint_of_role(0, 1);
	begin_round(now);
	groups_read(find_group_of_role(0), NULL, 0, 1);
	refuse_role(groups_next(now), now.mono.us, now);
	CHECK(role_line_call(now.mono, 16, false) == 0);
	role_line_end_round();
	now.mono.us += 1000;
	begin_round(now);
	CHECK(role_line_call(now.mono, 16, false) == 1);
	role_line_end_round();
	return NULL;
}

/* Roles that the connection limit of the database keeps from starting do not stand before others. */
static const char *
check_full_line(void)
{
	ClockNow now = start;
	int i;

	for (i = 0; i < 100; i++)
		hint_of_role(i, i + 1);
	begin_round(now);
	for (i = 0; i < 100; i++)
	{
		GroupRole *role = groups_next(now)->lane->role;

		lanes_skip_role(role);
		role_line_add(role, CLOCK_LONG_AGO, i != 99);
	}
	CHECK(!groups_ready(now) || groups_next(now) == NULL);
	now.mono.us += 1000;
	begin_round(now);
	CHECK(role_line_call(now.mono, 16, true) == 1);
	CHECK(role_line_call(now.mono, 16, true) == 0);
	CHECK(role_line_call(now.mono, 16, false) == 16);
	role_line_end_round();

	/* they keep their lines, and leave them when they are forgotten */
	now.mono.us += 1000;
	begin_round(now);
	CHECK(role_line_call(now.mono, 200, true) == 1);
	CHECK(role_line_call(now.mono, 200, false) == 99);
	role_line_end_round();
	groups_clear();
	CHECK(!role_line_waits());
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
		groups_hint(&key, place_of(start.wall, i), true);
		key.queue = psprintf("queue %d", i % 100);
		groups_hint(&key, place_of(start.wall, i + 1000), true);
	}
	key = (TaskGroup){"q", TASK_UNLIMITED, 9999, "free", 1};
	groups_hint(&key, place_of(start.wall, 9999), true);
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
	groups_hint(&key, place_of(start.wall, 10000), true);
	CHECK(strcmp(groups_next(start)->key.role, "free") == 0);
	groups_clear();
	CHECK(roles.table->members == 0);
	CHECK(!groups_ready(start));
	return NULL;
}

#endif /* GROUPS_ROLES_H */
