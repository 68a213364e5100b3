/*
 * direct.h
 *		Writes DONE into the row of a run without a statement.
 */
#ifndef PG_TASK_DIRECT_H
#define PG_TASK_DIRECT_H

#include "postgres.h"

#include "shared/task.h"
#include "task/table.h"

extern bool direct_finish(const TaskTable *table, TaskRun run, const TaskResult *result);

#endif /* PG_TASK_DIRECT_H */
