/*
 * demand.h
 *		Which role gets another executor, and which executor exits for it.
 */
#ifndef PG_TASK_DEMAND_H
#define PG_TASK_DEMAND_H

#include "postgres.h"

#include "scheduler/round.h"
#include "shared/clock.h"
#include "task/roles.h"

extern void demand_block(DispatchRound *round, QueueGroup *group, const Role *role);
extern bool demand_for_blocked(DispatchRound *round);
extern void demand_publish(const DispatchRound *round);
extern void demand_yield(void);
extern MonoTime demand_until(const DispatchRound *round);

#endif /* PG_TASK_DEMAND_H */
