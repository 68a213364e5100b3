/*
 * orphans.h
 *		Runs whose processes cannot write what became of them.
 */
#ifndef PG_TASK_ORPHANS_H
#define PG_TASK_ORPHANS_H

#include "postgres.h"

#include "shared/clock.h"
#include "task/rows.h"
#include "task/table.h"
#include "shared/task.h"

/* What happened to a run, and so what becomes of its task. */
typedef enum RescueKind
{
	RESCUE_NOT_STARTED, /* as if it had not been claimed */
	RESCUE_INTERRUPTED, /* its process is gone: it runs again */
	RESCUE_FAILED,		/* it ended with its process, which left a message */
	RESCUE_CRASHED		/* the server may have crashed because of it */
} RescueKind;

extern void rescue_add(TaskRun run, RescueKind kind, const TaskFailure *failure);
extern bool rescue_has(TaskRun run);
extern int rescue_count(void);
extern int rescue_backlog(void);
extern bool rescue_due(MonoTime now);
extern MonoTime rescue_until(void);
extern bool rescue_refused(void);
extern void rescue_again(void);
extern bool rescue_must_write(void);
extern bool rescue_write(const TaskTable *table, MonoTime now);
extern void rescue_written(MonoTime now);
extern bool rescue_not_written(MonoTime now, bool row_at_fault, int pause_ms);

#endif /* PG_TASK_ORPHANS_H */
