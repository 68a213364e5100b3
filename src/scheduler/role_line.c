/*
 * role_line.c
 *		The roles that have due tasks and no executor.
 *
 * A role that has none, and for which none can be started, waits in line: it stays skipped in round
 * after round.  Each round calls the first few whose time has come, those that
 * have waited longest for an executor, and more as long as executors are started for them.  A role
 * gets an executor only when it is called, so one in line has none.
 *
 * The functions walk over the roles in line.  That is cheap for the thousand roles that a database
 * may have by the manual.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  demand.c starts the
 * executors.
 */
#include "postgres.h"

#include "scheduler/order.h"
#include "scheduler/role_line.h"

/* Groups of a blocked role that are asked for the tasks that they could start. */
#define DEMAND_GROUPS 32

/*
 * Delay of the next start for a role, after an executor of it could not connect (ms): doubled each
 * time, up to the second.
 */
#define RETRY_MS 1000
#define RETRY_MAX_MS 30000

/* Count the tasks of a group that could start now, as far as rows were read. */
static int
count_startable(const QueueGroup *group, ClockNow now)
{
	int count =
		Min(group->count - group->next, queue_free_places(group->queue, &group->key, now.mono));
	int i = group->next;

	while (i - group->next < count && group->places[i].dt <= now.wall)
		i++;
	return i - group->next;
}

/*
 * The role of this group, which order_next returned, has no executor for it: skip the role until
 * the next round.  Returns what it needs; it looks at no more than DEMAND_GROUPS groups for that,
 * and counts one task for each other queue.
 */
RoleDemand
role_line_block(QueueGroup *group, ClockNow now)
{
	GroupRole *role = group->role;
	RoleDemand demand = {0, 0};
	QueueGroup *looked[DEMAND_GROUPS];
	int count = 0;

	if (role->since.us == 0)
		role->since = now.mono;
	while (count < DEMAND_GROUPS && (group = order_next_of_role(role, now)) != NULL)
	{
		double average = queue_average(group->queue);

		demand.tasks += count_startable(group, now);
		demand.average = average < 0 || demand.average < 0 ? -1 : Max(demand.average, average);
		order_detach(group);
		looked[count++] = group;
	}
	if (count == DEMAND_GROUPS)
		demand.tasks = Max(demand.tasks, role->ngroups);
	order_skip_role(role);
	while (count > 0)
		order_attach(looked[--count]);
	return demand;
}

/* A role that is skipped in this round waits in line.  It is not called before this time. */
void
role_line_add(GroupRole *role, MonoTime not_before)
{
	Assert(role->skip != ROLE_NOT_SKIPPED);
	role->skip = ROLE_IN_LINE;
	role->not_before = not_before;
}

/*
 * Call the first roles in line: their tasks take part in this round.  "full": not those that the
 * connection limit of the database keeps from starting.  Returns how many.
 */
int
role_line_call(MonoTime now, bool full)
{
	GroupRole *first[ROLE_LINE_CALLED];
	int count = 0;
	int i;
	dlist_iter iter;

	dlist_foreach(iter, order_skipped_roles())
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->skip != ROLE_IN_LINE || clock_is_before(now, role->not_before) ||
			(full && role->limited) ||
			(count == ROLE_LINE_CALLED && !clock_is_before(role->since, first[count - 1]->since)))
			continue;
		for (i = count < ROLE_LINE_CALLED ? count++ : count - 1;
			 i > 0 && clock_is_before(role->since, first[i - 1]->since); i--)
			first[i] = first[i - 1];
		first[i] = role;
	}
	for (i = 0; i < count; i++)
		order_end_skip(first[i]);
	return count;
}

/*
 * What keeps roles from having an executor may have changed: they may be called at once, but for
 * those that could not connect.
 */
void
role_line_recall(void)
{
	dlist_iter iter;

	dlist_foreach(iter, order_skipped_roles())
	{
		GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->retry_ms == 0)
			role->not_before = CLOCK_LONG_AGO;
	}
}

/* Return what is known of the roles in line. */
RoleLine
role_line_read(MonoTime now)
{
	RoleLine line = {.until = CLOCK_NEVER};
	dlist_iter iter;

	dlist_foreach(iter, order_skipped_roles())
	{
		const GroupRole *role = dlist_container(GroupRole, skipped_node, iter.cur);

		if (role->skip != ROLE_IN_LINE)
			continue;
		line.count++;
		if (!clock_is_before(now, role->not_before))
			line.waits = true;
		else if (clock_is_before(role_line_next_round(now), role->not_before))
			line.until = clock_min(line.until, role->not_before);
	}
	return line;
}

static void
note_connection(GroupRole *role, bool connected, MonoTime now)
{
	role->retry_ms = connected ? 0 : Min(Max(role->retry_ms * 2, RETRY_MS), RETRY_MAX_MS);
	if (!connected)
		role->not_before = clock_plus_ms(now, role->retry_ms);
}

/* An executor of this role has connected, or has exited before: then the next one starts later. */
void
role_connection_tried(Oid role, bool connected, MonoTime now)
{
	order_each_role(role, note_connection, connected, now);
}
