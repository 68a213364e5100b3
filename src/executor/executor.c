/*
 * executor.c
 *		The process that runs tasks: attach, run, write back, clean up.
 *
 * An executor is connected to one database as one role, which is its session
 * user: a task has that role's rights and no way to others.  It takes claimed
 * tasks from its slot, runs each in one transaction together with the
 * write-back of its outcome, and stays for the next.  A run that collided with
 * another transaction is begun anew; one whose row was taken from it is cancelled
 * by the scheduler, through a mark in the slot and SIGINT.
 *
 * The write-back is the only thing done with other rights: those of the
 * table's owner, in a security-restricted context, with a fixed search path.
 * It carries a fence (the attempt it started and the time of its claim): when the row
 * is no longer that run, everything is rolled back.
 *
 * This file schedules nothing and looks at no slot but its own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "jit/jit.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "mb/pg_wchar.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "executor/cleanup.h"
#include "executor/client.h"
#include "executor/deadline.h"
#include "executor/request.h"
#include "executor/request_log.h"
#include "executor/result.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/port.h"
#include "shared/worker.h"
#include "task/compiled.h"
#include "task/outcome.h"
#include "task/pinned.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/statement.h"

PGDLLEXPORT void pg_task_executor_main(Datum arg);

/* A new executor waits so long for its first task, in milliseconds. */
#define ARRIVAL_MS 1000

/* A run that was in the way of others, or they in its, is begun anew so often. */
#define MAX_CONFLICT_RETRIES 5


static SharedExecutor *me = NULL;
static TaskTable *table = NULL;
static MemoryContext task_context = NULL; /* reset for every task */
static volatile sig_atomic_t terminated = false;
static volatile sig_atomic_t listening = false; /* a request runs that may be cancelled */
static uint32 wait_event = 0;
static uint32 settings_seen = 0; /* settings of roles and databases as of the connection */
static ResultText notices;		 /* of the task in hand, in its context */
static LocalTransactionId first_transaction = 0; /* that its request began in; 0: none */
static bool committed = false;					 /* the request has committed by itself */
static bool row_lost = false;					 /* the row is that run no more */
static bool session_dirty = false;				 /* the session cannot be cleaned any more */
static bool block_refused = false; /* the last run failed, for it must not be in a block of ours */
static bool without_block = false; /* so it is run without one */

/* Leave word how the task in hand ended, for the scheduler to write. */
static void
leave_failure(int sqlstate, const char *error)
{
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	strlcpy(me->failure.sqlstate, unpack_sql_state(sqlstate), sizeof(me->failure.sqlstate));
	strlcpy(me->failure.error, error,
			pg_mbcliplen(error, (int) strlen(error), sizeof(me->failure.error) - 1) + 1);
	LWLockRelease(me->lock);
}

/* Somebody wants this process to end. */
static void
handle_terminate(SIGNAL_ARGS)
{
	terminated = true;
	die(COMPAT_SIGNAL_PASS);
}

/* Was the row taken from the run in hand? */
static bool
is_cancelled(void)
{
	return me->ring[me->done % SHARED_RING].cancelled;
}

/*
 * Somebody cancels what this process does.  The scheduler's signal is for the task
 * that it has marked: if that has ended meanwhile, the next one goes on.
 */
static void
handle_cancel(SIGNAL_ARGS)
{
	bool sent = me->cancel_sent;

	me->cancel_sent = false;
	if (listening && (!sent || is_cancelled()))
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

	if (me->taken != me->done && me->failure.sqlstate[0] == '\0')
	{
		if (fatal && fatal->sqlstate != ERRCODE_ADMIN_SHUTDOWN)
			leave_failure(fatal->sqlstate, fatal->message);
		else if (!terminated && PostmasterIsAlive())
			leave_failure(ERRCODE_INTERNAL_ERROR, "the process of the task has ended");
	}
	shared_executor_release(me);
}

/* Take the next task from the slot.  False: there is none. */
static bool
take_task(SharedTask *task)
{
	bool taken = false;

	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	if (me->taken != me->assigned)
	{
		*task = me->ring[me->taken % SHARED_RING];
		me->taken++;
		me->taken_at = clock_mono();
		taken = true;
	}
	LWLockRelease(me->lock);
	return taken;
}

/* The task in hand is accounted for; wake the scheduler when it asked for that. */
static void
report_task(MonoTime started)
{
	MonoTime now = clock_mono();
	SharedTask *task;
	bool notify;
	bool isolated;

	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	task = &me->ring[me->done % SHARED_RING];
	isolated = task->isolated;
	task->elapsed = (uint32) Min(now.us - started.us, PG_UINT32_MAX);
	me->done++;
	me->idle_since = now;
	notify = task->notify || me->done == me->notify_at || me->done == me->assigned;
	LWLockRelease(me->lock);
	if (notify)
		shared_scheduler_wake(me->database);
	if (isolated)
		arbiter_isolated_ended();
}

/* The task's own timeout, else the setting: the whole run counts, however often it is begun. */
static void
set_deadline(const SharedTask *task)
{
	int64 limit = task->timeout >= 0 ? task->timeout : (int64) settings_timeout * 1000;

	deadline_set(me->taken_at, limit);
}

/* Look the table up. */
static void
look_up_table(Oid relid)
{
	rows_forget_plans();
	/* the look-up may fail: what it replaces is gone by then */
	table_free(table);
	table = NULL;
	table = table_find(relid, TopMemoryContext);
	if (table == NULL)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("the task table is gone")));
}

/*
 * Lock the table, so that its name stays, and look it up again when it is another, or when
 * it may have changed: until it was locked and has not.  A run that has itself taken a column
 * away, or given a partition to another owner, or that has committed a part of itself, has
 * failed, for it would do so again and again.
 */
static void
find_table(const SharedTask *task)
{
	for (;;)
	{
		if (table && table->relid == task->relid)
		{
			table_lock(table);
			if (!table_changed())
				break;
		}
		CHECK_FOR_INTERRUPTS();
		look_up_table(task->relid);
	}
	if (table->whole)
		return;
	if (table_changed_here())
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task has made the task table unusable"),
						errdetail("All that it did was rolled back.")));
	if (committed)
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task table became unusable while the task ran")));
	/* somebody else has; the scheduler will add the column again, and the task is run again */
	ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
}

/*
 * Write the outcome, as the owner of the table, in the transaction that is
 * open.  Returns false when the row is no longer the run that was started.
 *
 * The task may have made its transaction read-only.  Nothing of its own may run
 * any more: finish_request has seen to that.
 */
static bool
write_back(const SharedTask *task, TaskResult *result)
{
	bool read_only = XactReadOnly;
	TableScope scope;
	bool written;

	XactReadOnly = false;
	cleanup_temporary();
	/* the outcome waits for locks as long as it takes */
	if (LockTimeout > 0)
		(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
								 true, 0, false);
	compat_stop_transaction_timeout();
	find_table(task);
	table_become(table->owner, &scope);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (result->outcome == TASK_DONE)
		written =
			outcome_done(table, task->run, task->role_name, result, task->repeats, task->deletes);
	else if (result->outcome == TASK_STOPPED)
		written = row_end(table, task->run, result);
	else
		written = outcome_failed(table, task->run, result, true);
	PopActiveSnapshot();
	table_return(&scope);
	XactReadOnly = read_only;
	return written;
}

static void
set_commit_durability(void)
{
	const char *value = settings_commit();

	if (value)
		(void) set_config_option("synchronous_commit", value, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

static void
begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(task_context);
}

/* The same for what is only ours: it waits for others, and does not fail because of them. */
static void
begin_own_transaction(void)
{
	begin_transaction();
	XactIsoLevel = XACT_READ_COMMITTED;
}

/* The request, from the slot or, when it is long, from the row. */
static char *
read_request(const SharedTask *task)
{
	TableScope scope;
	char *request;

	if (task->request_len >= 0)
		return pnstrdup(task->request, task->request_len);
	find_table(task);
	table_become(table->owner, &scope);
	PushActiveSnapshot(GetTransactionSnapshot());
	request = row_request(table, task->run);
	PopActiveSnapshot();
	table_return(&scope);
	/* the request is the first to take a snapshot in its transaction */
	CommitTransactionCommand();
	begin_transaction();
	return request;
}

/* The notices so far, or NULL. */
static const char *
notice_text(void)
{
	return notices.any ? result_text(&notices) : NULL;
}

static const char stopped[] = "canceling task due to user request";

/* A row that a user has stopped is told when and how its run ended; others are not touched. */
static void
write_stopped(const SharedTask *task, TimestampTz started)
{
	TaskResult result = {.outcome = TASK_STOPPED,
						 .start = started,
						 .stop = GetCurrentTimestamp(),
						 .response = psprintf("ERROR:  %s", stopped),
						 .error = stopped,
						 .sqlstate = "57014",
						 .notice = notice_text()};

	(void) write_back(task, &result);
}

/*
 * The fence found no row, and everything was rolled back.  If the row is this
 * run all the same, then the task itself had changed it.
 */
static void
check_own_row(const SharedTask *task, TimestampTz started)
{
	TableScope scope;
	bool is_run;

	begin_own_transaction();
	find_table(task);
	table_become(table->owner, &scope);
	PushActiveSnapshot(GetTransactionSnapshot());
	is_run = row_request(table, task->run) != NULL;
	PopActiveSnapshot();
	table_return(&scope);
	if (is_run)
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task has changed its own row"),
						errdetail("All that it did was rolled back.")));
	write_stopped(task, started);
	CommitTransactionCommand();
}

/* If the request has committed by itself, say so, once. */
static void
note_commits(void)
{
	bool another = first_transaction != 0 && COMPAT_LOCAL_XID != first_transaction;

	first_transaction = 0;
	committed |= another;
	if (another)
		result_put_line(&notices, "INFO:  the request has committed by itself: it is run at least"
								  " once, not exactly once");
}

/*
 * Run what the request has left for its commit, deferred triggers and cursors WITH HOLD,
 * until nothing is left: no code of the task runs after this.
 */
static void
finish_request(void)
{
	do
		table_fire_deferred();
	while (PreCommit_Portals(false));
}

/* Run the task and commit its effects with its outcome; errors are thrown. */
static void
run_and_commit(const SharedTask *task, const char *request, TimestampTz started)
{
	ResultFormat format = task->format >= 0 ? task->format : settings_default_format;
	TaskResult done = {.outcome = TASK_DONE};
	ResultText result;
	bool logged;

	result_init(&result, settings_response_limit);
	first_transaction = COMPAT_LOCAL_XID;
	client_begin(&result, &notices);
	logged = request_run(request, task_context, format, &result, !without_block);
	finish_request();
	client_end();
	note_commits();
	deadline_stop();
	/* it may have taken either for an ordinary error */
	if (deadline_passed() || is_cancelled())
		ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling task")));

	done.start = started;
	done.stop = GetCurrentTimestamp();
	done.response = result_text(&result);
	done.notice = notice_text();
	if (write_back(task, &done))
	{
		set_commit_durability();
		CommitTransactionCommand();
		request_log_duration(request, logged);
	}
	else
	{
		row_lost = true;
		AbortOutOfAnyTransaction();
		/* what is left to do is for nobody to cancel */
		listening = false;
		QueryCancelPending = false;
		check_own_row(task, started);
	}
}

/*
 * What is left of an error, once the transaction is gone.  A library may rewrite it on its way to
 * the log (a cancel becomes a deadlock that spans several servers): what it says then counts.
 */
static ErrorData *
catch_error(void)
{
	ErrorData *error;

	HOLD_INTERRUPTS();
	listening = false;
	client_end();
	table_abandon();
	/* the server's report of the error would be converted for the client, and that may fail */
	(void) SetClientEncoding(GetDatabaseEncoding());
	disable_all_timeouts(false);
	deadline_stop();
	QueryCancelPending = false;
	MemoryContextSwitchTo(task_context);
	note_commits();
	block_refused = request_in_block() && geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION;
	if (geterrcode() != ERRCODE_TABLE_CHANGED && !block_refused)
		EmitErrorReport();
	error = CopyErrorData();
	FlushErrorState();
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && (is_cancelled() || deadline_passed()))
		error->message = pstrdup(is_cancelled() ? stopped : "canceling task due to timeout");
	error_context_stack = NULL;
	AbortOutOfAnyTransaction();
	PortalErrorCleanup();
	jit_reset_after_error();
	MemoryContextSwitchTo(task_context);
	RESUME_INTERRUPTS();
	return error;
}

/* Write a failure, in a transaction of its own. */
static void
write_failure(const SharedTask *task, ErrorData *error, const char *request, TimestampTz started)
{
	TaskResult failed = {.outcome = TASK_FAIL};

	begin_own_transaction();
	if (is_cancelled())
	{
		write_stopped(task, started);
		CommitTransactionCommand();
		return;
	}
	failed.start = started;
	failed.stop = GetCurrentTimestamp();
	failed.response = result_error(error, request, settings_response_limit);
	failed.error = result_cut(error->message ? error->message : "", settings_response_limit);
	failed.notice = notice_text();
	failed.sqlstate = unpack_sql_state(error->sqlerrcode);
	row_lost = !write_back(task, &failed);
	CommitTransactionCommand();
}

/* Another process is to run the task: it is not its fault, as if this one had been terminated. */
static void
return_task(void)
{
	terminated = true;
	proc_exit(1);
}

/*
 * The failure could not be written: leave it, and the row, to the scheduler.  What the row
 * is told is why the task failed; why that could not be written stands in the log.
 */
static void
leave_to_scheduler(const ErrorData *error)
{
	if (geterrcode() == ERRCODE_TABLE_CHANGED)
		return_task();
	EmitErrorReport();
	FlushErrorState();
	leave_failure(error->sqlerrcode, error->message ? error->message : "");
	me->failure.unwritten = true;
	proc_exit(1);
}

/*
 * Trust must not hang on bookkeeping: a task of another role is not run here.
 * The process ends, and the task is planned again.
 */
static void
check_role(const SharedTask *task)
{
	if (task->role == me->role)
		return;
	terminated = true;
	ereport(FATAL, (errcode(ERRCODE_INTERNAL_ERROR),
					errmsg("task " INT64_FORMAT " was handed to an executor of another role",
						   task->run.id)));
}

static void
show_task(const SharedTask *task)
{
	char name[NAMEDATALEN];

	settings_task_id = task->run.id;
	snprintf(name, sizeof(name), "pg_task %.*s " INT64_FORMAT, NAMEDATALEN - 32, task->queue,
			 task->run.id);
	SetConfigOption("application_name", name, PGC_USERSET, PGC_S_SESSION);
}

/*
 * In a transaction, before anything of the request runs: the server remembers some of what the
 * session user was at the time of the connection, whether it was a superuser above all.  When
 * that has changed, another process is to run the task, as if this one had not taken it.
 */
static void
check_session_role(void)
{
	if (!roles_session_changed())
		return;
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	me->taken--;
	LWLockRelease(me->lock);
	proc_exit(0);
}

/* Run the task once, with all that is to be written.  NULL: that went well. */
static ErrorData *
run_once(const SharedTask *task, char **request, TimestampTz started)
{
	ErrorData *volatile error = NULL;

	MemoryContextReset(task_context);
	MemoryContextSwitchTo(task_context);
	result_init(&notices, settings_response_limit);
	committed = block_refused = false;
	*request = NULL;
	deadline_start();
	listening = true;
	PG_TRY();
	{
		begin_transaction();
		if (!is_cancelled())
			*request = read_request(task);
		if (*request)
		{
			check_session_role();
			debug_query_string = *request;
			pgstat_report_activity(STATE_RUNNING, *request);
			run_and_commit(task, *request, started);
		}
		else
		{
			write_stopped(task, started);
			CommitTransactionCommand();
		}
	}
	PG_CATCH();
	{
		error = catch_error();
	}
	PG_END_TRY();
	listening = false;
	deadline_stop();
	return error;
}

/*
 * Let the other one have what both want: some milliseconds, twice as many each time, by
 * chance, for the other may be a task that does the same.
 */
static void
wait_after_conflict(int reruns)
{
	long pause = (long) ((1 << reruns) * (1 + pg_prng_double(&pg_global_prng_state)));

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause, wait_event);
	ResetLatch(MyLatch);
}

static bool
is_collision(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		   error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/*
 * A run that collided with another is begun anew at once, unless a part of it is
 * committed; so is one that must not be in a block.  The session is cleaned before.
 */
static bool
retry_on_conflict(const SharedTask *task, const ErrorData *error, int *reruns)
{
	if (!block_refused && (!is_collision(error) || *reruns >= MAX_CONFLICT_RETRIES))
		return false;
	if (committed || deadline_passed() || is_cancelled())
		return false;
	session_dirty |= !cleanup_session(me->role);
	show_task(task);
	without_block |= block_refused;
	if (!block_refused)
		wait_after_conflict((*reruns)++);
	return true;
}

static void
run_task(const SharedTask *task)
{
	TimestampTz started = GetCurrentTimestamp();
	char *request;
	ErrorData *volatile error;
	int reruns = 0;

	set_deadline(task);
	row_lost = without_block = false;
	do
		error = run_once(task, &request, started);
	while (error && retry_on_conflict(task, error, &reruns));
	if (error && error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		return_task();
	if (error)
	{
		PG_TRY();
		{
			write_failure(task, error, request, started);
		}
		PG_CATCH();
		{
			leave_to_scheduler(error);
		}
		PG_END_TRY();
	}
	/* the row was locked while the fence was tried: perhaps it could not be claimed therefore */
	if (row_lost || is_cancelled())
		shared_scheduler_hint(me->database, InvalidOid, NULL, 0, SHARED_SCAN);
	debug_query_string = NULL;
}

/* The session is as it was before the task.  False: that cannot be done, the process must end. */
static bool
clean_up(void)
{
	bool clean;

	settings_task_id = SETTINGS_NO_TASK;
	QueryCancelPending = false;
	clean = cleanup_session(me->role) && !session_dirty;
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(task_context);
	return clean;
}

/*
 * How long this executor may go on doing nothing, in milliseconds.  One that is
 * new waits for the task that it was started for, even if none may be idle.
 */
static long
idle_time_left(void)
{
	int timeout = me->done == 0 ? Max(settings_idle_timeout, ARRIVAL_MS) : settings_idle_timeout;
	return clock_ms_until(clock_mono(), clock_plus_ms(me->idle_since, timeout));
}

/* Sleep until there is a task; leave when there was none for too long, or when asked to. */
static void
wait_for_task(void)
{
	long delay = idle_time_left();
	bool leave;

	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	leave = me->taken == me->assigned && (me->leave || delay <= 0);
	if (leave)
		me->ready = false; /* from here on nothing is assigned */
	LWLockRelease(me->lock);
	if (leave)
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

	me = shared_executor_attach(slot, generation);
	if (me == NULL)
		proc_exit(0);
	on_shmem_exit(leave_slot, 0);
	settings_seen = shared_settings(me->database, me->role);
	crash_watch(me);
	roles_define();
	compiled_define();
	pinned_define(false);
	BackgroundWorkerInitializeConnectionByOid(me->database, me->role, COMPAT_WORKER_FLAGS);
	if (!roles_watch_session(me->role))
		proc_exit(0);
	port_describe();
	preload_libraries();
	pinned_define(true);
	client_define();
	cleanup_define();
	statement_define();
	wait_event = COMPAT_WAIT_EVENT("PgTaskExecutorMain");
	deadline_define();
	task_context = AllocSetContextCreate(TopMemoryContext, "pg_task task", ALLOCSET_DEFAULT_SIZES);

	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	me->pid = MyProcPid;
	me->idle_since = clock_mono();
	me->ready = true;
	LWLockRelease(me->lock);
	shared_scheduler_wake(me->database);
}

void
pg_task_executor_main(Datum arg)
{
	static SharedTask task;
	bool clean;

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
		if (me->done > 0 &&
			(ConfigReloadPending || shared_settings(me->database, me->role) != settings_seen))
			proc_exit(0);
		if (take_task(&task))
		{
			check_role(&task);
			show_task(&task);
			run_task(&task);
			clean = clean_up();
			report_task(me->taken_at);
			(void) pgstat_report_stat(false);
			if (!clean)
				proc_exit(0); /* tasks in line go to others */
		}
		else
			wait_for_task();
	}
}
