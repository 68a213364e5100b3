/*
 * worker.h
 *		Processes of pg_task, as the postmaster sees them.
 */
#ifndef PG_TASK_WORKER_H
#define PG_TASK_WORKER_H

#include "postgres.h"

#include "postmaster/bgworker.h"

extern void worker_describe(BackgroundWorker *worker, const char *kind);
extern BackgroundWorkerHandle *
worker_start(const char *kind, const char *title, int slot, uint32 generation);
extern int worker_slot(Datum arg, uint32 *generation);

#endif /* PG_TASK_WORKER_H */
