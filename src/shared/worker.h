/*
 * worker.h
 *		Background workers of pg_task, and the connection to a client that they do not have.
 */
#ifndef PG_TASK_WORKER_H
#define PG_TASK_WORKER_H

#include "postgres.h"

#include "postmaster/bgworker.h"

#include "shared/shared.h"

extern void worker_register_supervisor(void); /* for pg_task.c */
extern BackgroundWorkerHandle *
worker_start(const char *kind, const char *database, const char *role, int slot, uint32 generation);
extern void worker_report_none(const char *process, const char *database);

/*
 * Return the index of the slot that this process was started for, and the generation of the
 * reservation.
 */
static inline int
worker_slot(Datum arg, uint32 *generation)
{
	Assert(MyBgworkerEntry != NULL);
	memcpy(generation, MyBgworkerEntry->bgw_extra, sizeof(*generation));
	return DatumGetInt32(arg);
}

/* For every process that runs users' functions: executors and schedulers. */
extern void port_describe(void);
extern const char *port_database(void);

#endif /* PG_TASK_WORKER_H */
