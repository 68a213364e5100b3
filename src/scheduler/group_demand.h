/*
 * group_demand.h
 *		What a role needs that has no executor for its next task.
 */
#ifndef PG_TASK_GROUP_DEMAND_H
#define PG_TASK_GROUP_DEMAND_H

#include "postgres.h"

#include "scheduler/groups.h"
#include "shared/clock.h"

/* What a role needs that has no executor for its next task. */
typedef struct GroupDemand
{
	int tasks;		/* tasks that could start, or fewer if they are in many groups */
	double average; /* the longest average duration of their queues (us); negative: not known */
} GroupDemand;

extern int group_demand_tasks(const QueueGroup *group, ClockNow now);
extern GroupDemand group_demand_block(QueueGroup *group, ClockNow now);

#endif /* PG_TASK_GROUP_DEMAND_H */
