/*
 * strict.h
 *		Strict queues: nothing overtakes the first task.
 */
#ifndef PG_TASK_STRICT_H
#define PG_TASK_STRICT_H

#include "postgres.h"

#include "scheduler/round.h"
#include "task/table.h"

extern bool strict_keeps(DispatchRound *round, QueueGroup *group, bool refused);
extern void strict_hold(QueueState *queue, MonoTime now);
extern void strict_begin_claim(DispatchRound *round);
extern bool strict_check(DispatchRound *round, const TaskTable *table);
extern void strict_end_round(const DispatchRound *round);

#endif /* PG_TASK_STRICT_H */
