/*
 * on_failure.h
 *		The task that is planned when another one has failed for good.
 */
#ifndef PG_TASK_ON_FAILURE_H
#define PG_TASK_ON_FAILURE_H

#include "postgres.h"

#include "task/rows.h"
#include "task/table.h"

extern void on_failure_plan(const TaskTable *table, RowKey row, int64 role_id, OnFailure says);

#endif /* PG_TASK_ON_FAILURE_H */
