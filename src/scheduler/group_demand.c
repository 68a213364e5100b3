/*
 * group_demand.c
 *		What a role needs that has no executor for its next task.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  demand.c starts the
 * executors.
 */
#include "postgres.h"

#include "scheduler/group_demand.h"
#include "scheduler/order.h"

/* Groups of a blocked role that are asked for the tasks that they could start. */
#define DEMAND_GROUPS 32

/* Count the tasks of a group that could start now, as far as rows were read. */
int
group_demand_tasks(const QueueGroup *group, ClockNow now)
{
	int count =
		Min(group->count - group->next, queue_free_places(group->queue, &group->key, now.mono));
	int i = group->next;

	while (i - group->next < count && group->places[i].dt <= now.wall)
		i++;
	return i - group->next;
}

/*
 * The role of this group, which groups_next returned, has no executor for it: skip the role until
 * the next round.  Returns what it needs; it looks at no more than DEMAND_GROUPS groups for that,
 * and counts one task for each other queue.
 */
GroupDemand
group_demand_block(QueueGroup *group, ClockNow now)
{
	GroupRole *role = group->lane->role;
	GroupDemand demand = {0, 0};
	QueueGroup *looked[DEMAND_GROUPS];
	int count = 0;

	while (count < DEMAND_GROUPS && (group = order_first_of_role(role, now)) != NULL)
	{
		double average = queue_average(group->queue);

		demand.tasks += group_demand_tasks(group, now);
		demand.average = average < 0 || demand.average < 0 ? -1 : Max(demand.average, average);
		order_detach(group);
		looked[count++] = group;
	}
	if (count == DEMAND_GROUPS)
		demand.tasks = Max(demand.tasks, role->nlanes);
	lanes_skip_role(role);
	while (count > 0)
		order_attach(looked[--count]);
	return demand;
}
