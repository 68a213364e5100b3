/*
 * orphans.h
 *		Orphans: runs whose processes cannot write their outcomes.
 */
#ifndef PG_TASK_ORPHANS_H
#define PG_TASK_ORPHANS_H

#include "postgres.h"

#include "scheduler/job.h"
#include "scheduler/pool.h"
#include "shared/task.h"

extern const SchedulerJob orphans_job;

extern void orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure);
extern bool orphans_has(TaskRun run);
extern int orphans_count(void);
extern int orphans_backlog(void);
extern bool orphans_refused(void);
extern void orphans_retry_refused(void);
extern bool orphans_must_write(void);

#endif /* PG_TASK_ORPHANS_H */
