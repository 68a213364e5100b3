/*
 * role_line.h
 *		The roles that have due tasks and no executor.
 */
#ifndef PG_TASK_ROLE_LINE_H
#define PG_TASK_ROLE_LINE_H

#include "postgres.h"

#include "scheduler/order.h"
#include "shared/clock.h"

/*
 * Roles that are called at once.  A round that has demanded executors for as many in vain gives up.
 */
#define ROLE_LINE_CALLED 16

/* What a role needs that has no executor for its next task. */
typedef struct RoleDemand
{
	int tasks;		/* tasks that could start, or fewer if they are in many groups */
	double average; /* the longest average duration of their queues (us); negative: not known */
} RoleDemand;

/* The roles in line. */
typedef struct RoleLine
{
	int count;
	bool waits;		/* one may be called now */
	MonoTime until; /* when one may be that could not connect or may have none; or CLOCK_NEVER */
} RoleLine;

/* A role that is not called before this time takes no part in the round of "now", but in the next.
 */
static inline MonoTime
role_line_next_round(MonoTime now)
{
	return (MonoTime){now.us + 1};
}

extern RoleDemand role_line_block(QueueGroup *group, ClockNow now);
extern void role_line_add(GroupRole *role, MonoTime not_before);
extern int role_line_call(MonoTime now, bool full);
extern void role_line_recall(void);
extern RoleLine role_line_read(MonoTime now);

extern void role_connection_tried(Oid role, bool connected, MonoTime now);

#endif /* PG_TASK_ROLE_LINE_H */
