/*
 * surplus.h
 *		Which groups are forgotten when there are too many.
 */
#ifndef PG_TASK_SURPLUS_H
#define PG_TASK_SURPLUS_H

#include "postgres.h"

#include "scheduler/groups.h"
#include "shared/clock.h"
#include "shared/task.h"

extern void surplus_create(void);
extern bool surplus_refuse(const TaskGroup *key, TaskPlace place);
extern void surplus_forget(dlist_head *all, int count, int keep);
extern void surplus_queue_free(QueueState *queue);
extern void surplus_rules_changed(void);
extern void surplus_scan_begin(void);
extern void surplus_scan_end(void);
extern MonoTime surplus_scan_at(ClockNow now);

#endif /* PG_TASK_SURPLUS_H */
