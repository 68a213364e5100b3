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

extern void groups_create(int64 aging);
extern void groups_clear(void);

extern void groups_hint(const TaskGroup *key, TaskPlace place, bool several);
extern void groups_scan_begin(void);
extern void
groups_scan_found(const TaskGroup *key, const TaskPlace *places, int count, bool complete);
extern bool groups_forget_unseen(MonoTime now, int limit);
extern bool groups_lack(void);

extern int groups_read_ahead(QueueGroup **batch, int limit, ClockNow now);
extern void groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit);

extern bool groups_advance(ClockNow now);
extern TaskPlace groups_take(QueueGroup *group, ClockNow now);
extern bool groups_drop(QueueGroup *group, ClockNow now);

extern void groups_rewind(QueueGroup *group, TaskPlace place);
extern void groups_read_again(QueueGroup *group, TaskPlace place);
extern void groups_claimed(QueueGroup *group, TaskPlace place, bool claimed);

#endif /* PG_TASK_GROUPS_H */
