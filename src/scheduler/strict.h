/*
 * strict.h
 *		Strict queues: nothing overtakes the first task.
 */
#ifndef PG_TASK_STRICT_H
#define PG_TASK_STRICT_H

#include "scheduler/round.h"

extern void strict_hold(QueueState *queue, MonoTime now);
extern bool strict_awaits(DispatchRound *round, QueueGroup *group, TaskPlace first);
extern void strict_begin_claim(DispatchRound *round);
extern bool strict_check(DispatchRound *round);
extern void strict_end_round(const DispatchRound *round);

#endif /* PG_TASK_STRICT_H */
