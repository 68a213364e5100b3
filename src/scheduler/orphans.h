/*
 * orphans.h
 *		Runs whose processes cannot write what became of them.
 */
#ifndef PG_TASK_ORPHANS_H
#define PG_TASK_ORPHANS_H

#include "postgres.h"

#include "shared/clock.h"
#include "shared/task.h"
#include "task/rows.h"
#include "task/table.h"

/* What happened to a run, and so what becomes of its task. */
typedef enum OrphanKind
{
	ORPHAN_NOT_STARTED, /* as if it had not been claimed */
	ORPHAN_INTERRUPTED, /* its process is gone: it runs again */
	ORPHAN_FAILED,		/* it ended with its process, which left a message */
	ORPHAN_CRASHED		/* the server may have crashed because of it */
} OrphanKind;

extern void orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure);
extern bool orphans_has(TaskRun run);
extern int orphans_count(void);
extern int orphans_backlog(void);
extern bool orphans_ready(MonoTime now);
extern MonoTime orphans_until(void);
extern bool orphans_refused(void);
extern void orphans_retry_refused(void);
extern bool orphans_must_write(void);
extern bool orphans_write(const TaskTable *table, MonoTime now);
extern void orphans_written(MonoTime now);
extern bool orphans_write_failed(MonoTime now, bool row_at_fault, int pause_ms);

#endif /* PG_TASK_ORPHANS_H */
