/*
 * worker.c
 *		Background workers of pg_task: their names, their entry points, and the slot
 *		that each was started for.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "shared/worker.h"

/* Fill in the description of a background worker of a kind, such as "scheduler". */
void
worker_describe(BackgroundWorker *worker, const char *kind)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	snprintf(worker->bgw_name, BGW_MAXLEN, "pg_task %s", kind);
	snprintf(worker->bgw_type, BGW_MAXLEN, "pg_task %s", kind);
	strlcpy(worker->bgw_library_name, "pg_task", BGW_MAXLEN);
	snprintf(worker->bgw_function_name, BGW_MAXLEN, "pg_task_%s_main", kind);
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
}

/*
 * Start a process for a slot.  The postmaster signals this process, and so sets its latch, when the
 * new one starts and ends.  NULL if no worker slot is free.  The handle is allocated in the current
 * memory context.
 */
static BackgroundWorkerHandle *
start_worker(const char *kind, const char *title, int slot, uint32 generation)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	worker_describe(&worker, kind);
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_task %s %s", kind, title);
	worker.bgw_main_arg = Int32GetDatum(slot);
	memcpy(worker.bgw_extra, &generation, sizeof(generation));
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return NULL;
	return handle;
}

/* Start the scheduler of a reserved slot.  NULL if no worker slot is free. */
BackgroundWorkerHandle *
worker_start_scheduler(const SharedScheduler *slot, const char *database)
{
	return start_worker("scheduler", database, (int) (slot - Shared->schedulers), slot->generation);
}

/* Start the executor of a reserved slot.  NULL if no worker slot is free. */
BackgroundWorkerHandle *
worker_start_executor(const SharedExecutor *slot, const char *database, const char *role)
{
	char title[2 * NAMEDATALEN];

	/* not allocated: the caller keeps the context, and a slot without a process stays reserved */
	snprintf(title, sizeof(title), "%s %s", database, role);
	return start_worker("executor", title, (int) (slot - Shared->executors), slot->generation);
}

/*
 * Return the index of the slot that this process was started for, and the generation of the
 * reservation.
 */
int
worker_slot(Datum arg, uint32 *generation)
{
	Assert(MyBgworkerEntry != NULL);
	memcpy(generation, MyBgworkerEntry->bgw_extra, sizeof(*generation));
	return DatumGetInt32(arg);
}
