/*
 * scheduler.h
 *		The process that decides, for one database, which task starts next.
 */
#ifndef PG_TASK_SCHEDULER_H
#define PG_TASK_SCHEDULER_H

#include "postgres.h"

#include "postmaster/bgworker.h"

#include "shared.h"

extern BackgroundWorkerHandle *scheduler_start(const SharedScheduler *slot, const char *database);

#endif /* PG_TASK_SCHEDULER_H */
