/*
 * groups.h
 *		The scheduler's memory of the waiting rows.
 */
#ifndef PG_TASK_GROUPS_H
#define PG_TASK_GROUPS_H

#include "postgres.h"

#include "scheduler/order.h"
#include "shared/clock.h"
#include "shared/task.h"

/* What a role needs that has no executor for its next task. */
typedef struct RoleDemand
{
	int tasks;		/* tasks that could start, or fewer if they are in many groups */
	double average; /* the longest average duration of their queues (us); negative: not known */
} RoleDemand;

extern void groups_create(int64 aging);
extern void groups_clear(void);

extern void groups_hint(const TaskGroup *key, TaskPlace place, bool several);
extern void groups_scan_begin(void);
extern void
groups_scan_found(const TaskGroup *key, const TaskPlace *places, int count, bool complete);
extern bool groups_forget_unseen(MonoTime now, int limit);
extern bool groups_lack(void);

extern int groups_read_ahead(QueueGroup **batch, int limit, ClockNow now);
extern RoleDemand groups_block_role(QueueGroup *group, ClockNow now);
extern void groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit);

extern bool groups_advance(ClockNow now);
extern TaskPlace groups_take(QueueGroup *group, ClockNow now);
extern bool groups_drop(QueueGroup *group, ClockNow now);

extern void groups_rewind(QueueGroup *group, TaskPlace place);
extern void groups_read_again(QueueGroup *group, TaskPlace place);
extern void groups_claimed(QueueGroup *group, TaskPlace place, bool claimed);

#endif /* PG_TASK_GROUPS_H */
