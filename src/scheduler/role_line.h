/*
 * role_line.h
 *		The roles that have due tasks and no executor.
 */
#ifndef PG_TASK_ROLE_LINE_H
#define PG_TASK_ROLE_LINE_H

#include "postgres.h"

#include "scheduler/order.h"
#include "shared/clock.h"

/* What a role needs that has no executor for its next task. */
typedef struct RoleDemand
{
	int tasks;		/* tasks that could start, or fewer if they are in many groups */
	double average; /* the longest average duration of their queues (us); negative: not known */
} RoleDemand;

extern int role_line_tasks(const QueueGroup *group, ClockNow now);
extern RoleDemand role_line_block(QueueGroup *group, ClockNow now);
extern void role_line_add(GroupRole *role, MonoTime not_before);
extern void role_line_bar(GroupRole *role, MonoTime now);
extern int role_line_call(MonoTime now, int limit, bool full);
extern void role_line_recall(uint32 changes, MonoTime now);
extern void role_line_recall_all(void);
extern bool role_line_waits(MonoTime now);
extern MonoTime role_line_until(MonoTime now);
extern int role_line_count(void);
extern bool role_line_has_barred(uint32 *changes);

extern void role_connected(Oid role);
extern void role_connection_failed(Oid role, MonoTime now);

#endif /* PG_TASK_ROLE_LINE_H */
