/*
 * reconcile.h
 *		The rows in state WORK, compared with the runs of the executors.
 */
#ifndef PG_TASK_RECONCILE_H
#define PG_TASK_RECONCILE_H

#include "postgres.h"

#include "shared/clock.h"
#include "task/table.h"

extern void reconcile_want(void);
extern bool reconcile_due(MonoTime now);
extern void reconcile_rows(const TaskTable *table);
extern MonoTime reconcile_until(void);

#endif /* PG_TASK_RECONCILE_H */
