/*
 * write_back.h
 *		The row of the running task.
 */
#ifndef PG_TASK_WRITE_BACK_H
#define PG_TASK_WRITE_BACK_H

#include "postgres.h"

#include "shared/shared.h"
#include "task/rows.h"

extern bool write_back_read_request(const SharedTask *task, bool committed, RowRequest *request);
extern bool write_back_batch(const SharedTask *const *tasks, const TaskResult *results, int count);
extern bool write_back_outcome(const SharedTask *task, TaskResult *result, bool committed);

#endif /* PG_TASK_WRITE_BACK_H */
