/*
 * executor.c
 *		The process that runs tasks: attach, wait, take a task, report it, exit.
 *
 * An executor is connected to one database as one role, which is its session user: a task has the
 * privileges of that role and no way to others.  It takes claimed tasks from its slot (slot.c),
 * runs each (run.c), resets the session (cleanup.c), and waits for the next one.
 *
 * This file schedules nothing, and reads no slot but its own.
 */
#include "postgres.h"

#include "libpq/pqsignal.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"

#include "compat.h"
#include "executor/batch.h"
#include "executor/cleanup.h"
#include "executor/response.h"
#include "executor/run.h"
#include "executor/slot.h"
#include "settings.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/slots.h"
#include "shared/statistics.h"
#include "shared/worker.h"
#include "task/roles.h"

PGDLLEXPORT void pg_task_executor_main(Datum arg);

/*
 * What this process has counted is added to pg_stat_task when it is idle, and after FLUSH_MS while
 * it is not.
 */
#define FLUSH_MS 1000

/* How long a new executor waits for its first task (ms), even if pg_task.idle_timeout is less. */
#define ARRIVAL_MS 1000

/* A new executor that gets a task within this time (ms) runs it with the settings that it has. */
#define FIRST_TASK_MS 200

/* The executor's process, beside its slot (MyExecutor). */
static struct
{
	volatile sig_atomic_t terminated; /* a run that ends with this process is interrupted */
	uint32 settings_seen; /* change counter of the settings with which it has connected */
	MonoTime flushed;	  /* when it has last added its figures to pg_stat_task */
} process;

/* SIGTERM: the process exits, and the scheduler plans the interrupted task again. */
static void
terminate_executor(SIGNAL_ARGS)
{
	process.terminated = true;
	die(COMPAT_SIGNAL_PASS);
}

/*
 * The process exits: release its slot.  The transaction has been aborted before.  If the process
 * was terminated, or the server shut down, the running task was interrupted and runs again.
 * Otherwise the task has failed, and the slot tells the scheduler how.
 */
static void
release_executor_slot(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	if (MyExecutor->taken != MyExecutor->done && MyExecutor->failure.sqlstate[0] == '\0' &&
		!process.terminated && PostmasterIsAlive())
		slot_set_failure(ERRCODE_INTERNAL_ERROR, "the process of the task has ended",
						 TASK_LEFT_ERROR);
	activity_end(&MyExecutor->activity);
	statistics_flush();
	executor_slot_release(MyExecutor);
}

/*
 * Sleep until a task is assigned.  Exit if asked to, or after the idle timeout.  A new executor
 * waits for the task that it was started for, even if pg_task.idle_timeout is 0.
 */
static void
wait_for_task(void)
{
	int timeout =
		MyExecutor->done == 0 ? Max(Settings.idle_timeout, ARRIVAL_MS) : Settings.idle_timeout;
	long delay = clock_ms_until(clock_mono(), clock_plus_ms(MyExecutor->idle_since, timeout));

	/* the state is read without a lock: the latch is set after a change */
	if ((delay <= 0 || MyExecutor->state == EXECUTOR_LEAVING) && executor_slot_retire(MyExecutor))
		proc_exit(0);

	pgstat_report_stat(true);
	statistics_flush();
	slot_wait(delay);
}

/* Attach to the slot that a scheduler has reserved, and connect as its role. */
static void
attach_executor(Datum arg)
{
	uint32 generation;
	int slot = worker_slot(arg, &generation);

	MyExecutor = executor_slot_attach(slot, generation);
	if (MyExecutor == NULL)
		proc_exit(0);
	Assert(!MyExecutor->activity.running);
	on_shmem_exit(release_executor_slot, 0);
	run_define();
	BackgroundWorkerUnblockSignals(); /* the handlers need the slot */
	process.settings_seen = shared_settings(MyExecutor->database, MyExecutor->role);
	crash_watch(&MyExecutor->quit);
	roles_define();
	BackgroundWorkerInitializeConnectionByOid(MyExecutor->database, MyExecutor->role,
											  COMPAT_WORKER_FLAGS);
	if (!roles_watch_session(MyExecutor->role))
		proc_exit(0);
	port_describe();

	/*
	 * Load the libraries that a client's session of this role loads before its first statement:
	 * they may restrict what the role does.  If one cannot be loaded, the process exits, and no
	 * task runs.
	 */
	StartTransactionCommand();
	process_session_preload_libraries();
	CommitTransactionCommand();
	client_define();
	cleanup_define();

	executor_slot_connected(MyExecutor);
	shared_scheduler_wake(MyExecutor->database, 0);
}

/* What ran was reported.  Exit if the session was not made "clean" for another task. */
static void
end_work(bool clean)
{
	(void) pgstat_report_stat(false);
	if (clock_exceeds(process.flushed, MyExecutor->idle_since, FLUSH_MS))
	{
		statistics_flush();
		process.flushed = MyExecutor->idle_since;
	}
	if (!clean)
		proc_exit(0); /* the scheduler assigns the rest of the ring to others */
}

/* Run the task that was taken.  Exit if this process cannot run another one. */
static void
run_and_report(const SharedTask *task)
{
	ErrorContextCallback callback;
	int64 elapsed;
	bool clean;

	context_begin(&callback, task);

	/* a task must never run with the privileges of another role: it is planned again */
	if (task->role != MyExecutor->role)
	{
		process.terminated = true;
		ereport(FATAL, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("task " INT64_FORMAT " was assigned to an executor of another role",
							   task->run.id)));
	}
	switch (run_task(task, &clean))
	{
		case RUN_OVER:
			break;
		case RUN_NOT_BEGUN:
			slot_untake(1);
			proc_exit(0);
		case RUN_RETURNED:
			/* as if this process had been terminated: the task is planned again */
			process.terminated = true;
			proc_exit(1);
		case RUN_UNWRITTEN:
			proc_exit(1);
	}
	error_context_stack = callback.previous;
	elapsed = clock_mono().us - MyExecutor->taken_at.us;
	slot_report(&elapsed, 1);
	end_work(clean);
}

/*
 * Have settings changed since this executor connected?  It applies them only when it connects.  A
 * new executor runs the task for which it was started in any case: a user who changes settings all
 * the time must not keep all tasks from running.  One that was not given that task may wait for
 * another one for long.
 */
static bool
has_old_settings(void)
{
	if (MyExecutor->done == 0 &&
		!clock_exceeds(MyExecutor->idle_since, clock_mono(), FIRST_TASK_MS))
		return false;
	return ConfigReloadPending ||
		   shared_settings(MyExecutor->database, MyExecutor->role) != process.settings_seen;
}

void
pg_task_executor_main(Datum arg)
{
	const SharedTask *task;
	bool clean;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, terminate_executor);
	attach_executor(arg);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (has_old_settings())
			proc_exit(0);
		if (batch_run(&clean))
			end_work(clean);
		else if ((task = slot_take(NULL, NULL)) != NULL)
			run_and_report(task);
		else
			wait_for_task();
	}
}
