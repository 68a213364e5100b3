/*
 * orphans.h
 *		Orphans: runs whose processes cannot write their outcomes.
 */
#ifndef PG_TASK_ORPHANS_H
#define PG_TASK_ORPHANS_H

#include "postgres.h"

#include "scheduler/job.h"
#include "shared/task.h"

/* What happened to a run, which decides about its outcome. */
typedef enum OrphanKind
{
	ORPHAN_NOT_STARTED, /* it was not begun: its row is written as if it had not been claimed */
	ORPHAN_INTERRUPTED, /* its process has exited: it is retried */
	ORPHAN_YIELDED,		/* it was rolled back, so as not to wait for a lock: it is retried */
	ORPHAN_STOPPED,		/* a user has stopped it */
	ORPHAN_FAILED,		/* its process has exited and recorded how it has ended */
	ORPHAN_CRASHED		/* it may have crashed the server */
} OrphanKind;

extern const SchedulerJob orphans_job;

extern void orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure);
extern bool orphans_has(TaskRun run);
extern int orphans_count(void);
extern int orphans_backlog(void);
extern bool orphans_refused(void);
extern void orphans_retry_refused(void);
extern bool orphans_must_write(void);
extern int orphans_batch_rows(int64 *id);

#endif /* PG_TASK_ORPHANS_H */
