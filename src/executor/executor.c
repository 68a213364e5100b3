/*
 * executor.c
 *		The process that runs tasks: attach, wait, take a task, report it, exit.
 *
 * An executor is connected to one database as one role, which is its session user: a task has
 * that role's rights and no way to others.  It takes claimed tasks from its slot (slot.c), runs
 * each (run.c), brings the session back to what it was (cleanup.c), and stays for the next.
 *
 * This file schedules nothing and looks at no slot but its own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"

#include "compat.h"
#include "executor/cleanup.h"
#include "executor/client.h"
#include "executor/deadline.h"
#include "executor/run.h"
#include "executor/slot.h"
#include "settings.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/port.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "task/compiled.h"
#include "task/pinned.h"
#include "task/roles.h"
#include "task/statement.h"

PGDLLEXPORT void pg_task_executor_main(Datum arg);

/* A new executor waits so long for its first task, in milliseconds. */
#define ARRIVAL_MS 1000

static volatile sig_atomic_t terminated = false;
static uint32 wait_event = 0;
static uint32 settings_seen = 0; /* settings of roles and databases as of the connection */

/* Somebody wants this process to end. */
static void
handle_terminate(SIGNAL_ARGS)
{
	terminated = true;
	die(COMPAT_SIGNAL_PASS);
}

/*
 * Somebody cancels what this process does.  The scheduler's signal is for the task
 * that it has marked: if that has ended meanwhile, the next one goes on.
 */
static void
handle_cancel(SIGNAL_ARGS)
{
	bool sent = MyExecutor->cancel_sent;

	MyExecutor->cancel_sent = false;
	if (run_is_cancellable() && (!sent || slot_is_cancelled()))
		StatementCancelHandler(COMPAT_SIGNAL_PASS);
}

/*
 * The last thing this process does with shared memory; its transaction is over
 * by now.  If somebody ended the process, or the whole server, the task in hand was
 * interrupted, and will run again.  Otherwise it has failed.
 */
static void
leave_slot(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	const ClientFatal *fatal = client_fatal();

	if (MyExecutor->taken != MyExecutor->done && MyExecutor->failure.sqlstate[0] == '\0')
	{
		if (fatal && fatal->sqlstate != ERRCODE_ADMIN_SHUTDOWN)
			slot_leave_failure(fatal->sqlstate, fatal->message, false);
		else if (!terminated && PostmasterIsAlive())
			slot_leave_failure(ERRCODE_INTERNAL_ERROR, "the process of the task has ended", false);
	}
	executor_slot_release(MyExecutor);
}

/*
 * Trust must not hang on bookkeeping: a task of another role is not run here.
 * The process ends, and the task is planned again.
 */
static void
check_role(const SharedTask *task)
{
	if (task->role == MyExecutor->role)
		return;
	terminated = true;
	ereport(FATAL, (errcode(ERRCODE_INTERNAL_ERROR),
					errmsg("task " INT64_FORMAT " was handed to an executor of another role",
						   task->run.id)));
}

/*
 * How long this executor may go on doing nothing, in milliseconds.  One that is
 * new waits for the task that it was started for, even if none may be idle.
 */
static long
idle_time_left(void)
{
	int timeout =
		MyExecutor->done == 0 ? Max(Settings.idle_timeout, ARRIVAL_MS) : Settings.idle_timeout;
	return clock_ms_until(clock_mono(), clock_plus_ms(MyExecutor->idle_since, timeout));
}

/* Sleep until there is a task; leave when there was none for too long, or when asked to. */
static void
wait_for_task(void)
{
	long delay = idle_time_left();

	if (slot_may_exit(delay <= 0))
		proc_exit(0);

	pgstat_report_stat(true);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, delay, wait_event);
	ResetLatch(MyLatch);
}

/*
 * A client's session of this role has these libraries before its first statement: they may
 * restrict what it does.  Without them there is no task.
 */
static void
preload_libraries(void)
{
	StartTransactionCommand();
	process_session_preload_libraries();
	CommitTransactionCommand();
}

static void
attach_executor(Datum arg)
{
	uint32 generation;
	int slot = worker_slot(arg, &generation);

	MyExecutor = executor_slot_attach(slot, generation);
	if (MyExecutor == NULL)
		proc_exit(0);
	on_shmem_exit(leave_slot, 0);
	settings_seen = shared_settings(MyExecutor->database, MyExecutor->role);
	crash_watch(MyExecutor);
	roles_define();
	compiled_define();
	pinned_define(false);
	BackgroundWorkerInitializeConnectionByOid(MyExecutor->database, MyExecutor->role,
											  COMPAT_WORKER_FLAGS);
	if (!roles_watch_session(MyExecutor->role))
		proc_exit(0);
	port_describe();
	preload_libraries();
	pinned_define(true);
	client_define();
	cleanup_define();
	statement_define();
	wait_event = COMPAT_WAIT_EVENT("PgTaskExecutorMain");
	deadline_define();
	run_define(wait_event);

	executor_slot_connected(MyExecutor);
	shared_scheduler_wake(MyExecutor->database);
}

/* Run a task that was taken; ends the process when it is not fit for the next one. */
static void
run_and_report(const SharedTask *task)
{
	bool clean;

	check_role(task);
	switch (run_task(task))
	{
		case RUN_OVER:
			break;
		case RUN_NOT_BEGUN:
			slot_untake();
			proc_exit(0);
		case RUN_RETURNED:
			/* as if this process had been terminated */
			terminated = true;
			proc_exit(1);
		case RUN_UNWRITTEN:
			proc_exit(1);
	}
	clean = run_clean_up();
	slot_report(MyExecutor->taken_at);
	(void) pgstat_report_stat(false);
	if (!clean)
		proc_exit(0); /* tasks in line go to others */
}

void
pg_task_executor_main(Datum arg)
{
	static SharedTask task;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, handle_terminate);
	pqsignal(SIGINT, handle_cancel);
	BackgroundWorkerUnblockSignals();
	attach_executor(arg);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		/*
		 * Settings are read when it connects.  A new one takes a task all the same: whoever
		 * changes his settings without end is not to stop all work.
		 */
		if (MyExecutor->done > 0 &&
			(ConfigReloadPending ||
			 shared_settings(MyExecutor->database, MyExecutor->role) != settings_seen))
			proc_exit(0);
		if (slot_take(&task))
			run_and_report(&task);
		else
			wait_for_task();
	}
}
