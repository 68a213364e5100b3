/*
 * executor.h
 *		The process that runs tasks.
 */
#ifndef PG_TASK_EXECUTOR_H
#define PG_TASK_EXECUTOR_H

#include "postgres.h"

#include "postmaster/bgworker.h"

#include "shared.h"

extern BackgroundWorkerHandle *
executor_start(const SharedExecutor *slot, const char *database, const char *role);

#endif /* PG_TASK_EXECUTOR_H */
