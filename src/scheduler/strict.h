/*
 * strict.h
 *		Strict queues: nothing overtakes the first task.
 */
#ifndef PG_TASK_STRICT_H
#define PG_TASK_STRICT_H

#include "postgres.h"

#include "scheduler/dispatch.h"
#include "task/table.h"

/* Groups of which strict_note_waits reads the first rows at once. */
#define STRICT_HEADS_MAX 256

extern bool strict_keeps(DispatchRound *round, QueueGroup *group, bool refused);
extern void strict_wait(QueueGroup *group, ClockNow now);
extern void strict_check(DispatchRound *round, const TaskTable *table);
extern void strict_learn(DispatchEntry *entry, bool claimed, ClockNow now);
extern void
strict_note_waits(const TaskTable *table, const GroupHead *heads, int count, ClockNow now);
extern void strict_note_heads(const DispatchRound *round);

#endif /* PG_TASK_STRICT_H */
