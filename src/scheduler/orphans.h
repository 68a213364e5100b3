/*
 * orphans.h
 *		Orphans: runs whose processes cannot write their outcomes; and the rows in state WORK,
 *		compared with the runs of the executors.
 */
#ifndef PG_TASK_ORPHANS_H
#define PG_TASK_ORPHANS_H

#include "postgres.h"

#include "scheduler/job.h"
#include "scheduler/pool.h"
#include "shared/task.h"

extern const SchedulerJob orphans_job;
extern const SchedulerJob reconcile_job;

extern void orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure);
extern int orphans_count(void);
extern void orphans_retry(void);
extern bool orphans_must_write(void);
extern void orphans_reconcile(void);
extern int orphans_working(int limit, WorkingRow **rows);

#endif /* PG_TASK_ORPHANS_H */
