/*
 * outcome.h
 *		The outcome of a run of a task.
 *
 * Every function runs inside a transaction of the caller, as the table's owner (owner_become),
 * with an active snapshot.
 */
#ifndef PG_TASK_OUTCOME_H
#define PG_TASK_OUTCOME_H

#include "postgres.h"

#include "shared/task.h"
#include "task/rows.h"
#include "task/table.h"

/*
 * Minimum delay before the next run of a repeating task that has expired, or whose role may not
 * run it (ms).
 */
#define OUTCOME_EXPIRED_PAUSE_MS 1000
#define OUTCOME_REFUSED_PAUSE_MS 60000

extern bool outcome_done(const TaskTable *table, TaskRun run, const char *role,
						 const TaskResult *result, bool repeats, bool deletes);
extern bool outcome_failed(const TaskTable *table, TaskRun run, TaskResult *result,
						   const TaskDefaults *queue, bool wait);
extern bool outcome_crashed(const TaskTable *table, TaskRun run, const TaskFailure *failure);
extern void outcome_plan_next(const TaskTable *table, RowKey row, TimestampTz ended, int pause_ms);

#endif /* PG_TASK_OUTCOME_H */
