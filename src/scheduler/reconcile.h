/*
 * reconcile.h
 *		The rows in state WORK, compared with the runs of the executors.
 */
#ifndef PG_TASK_RECONCILE_H
#define PG_TASK_RECONCILE_H

#include "postgres.h"

#include "scheduler/job.h"
#include "task/table.h"

extern const SchedulerJob reconcile_job;

extern void reconcile_want(void);
extern void reconcile_rows(const TaskTable *table);

#endif /* PG_TASK_RECONCILE_H */
