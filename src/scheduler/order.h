/*
 * order.h
 *		The order in which the groups start tasks.
 */
#ifndef PG_TASK_ORDER_H
#define PG_TASK_ORDER_H

#include "postgres.h"

#include "scheduler/lanes.h"
#include "shared/clock.h"

extern void order_create(MemoryContext context, int64 aging);
extern void order_attach(QueueGroup *group);
extern void order_detach(QueueGroup *group);
extern void order_begin_round(ClockNow now);
extern QueueGroup *order_first(ClockNow now);
extern QueueGroup *order_first_of_role(GroupRole *role, ClockNow now);
extern void order_skip(QueueGroup *group);
extern MonoTime order_due_at(ClockNow now);
extern void order_set_now(ClockNow now);
extern ClockNow order_now(void);

#endif /* PG_TASK_ORDER_H */
