/*
 * run.c
 *		One run: the request and the write-back of its outcome, in one transaction.
 *
 * A run that collides with another transaction is retried in this process.  One whose row was
 * taken from it is cancelled by the scheduler, through a mark in the slot and SIGINT.
 *
 * The write-back is the only thing done with other rights: those of the table's owner, in a
 * security-restricted context, with a fixed search path.  It carries a fence (the attempt it
 * started and the time of its claim): when the row is no longer that run, all is rolled back.
 *
 * This file ends no process: run_task says when the caller has to.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "jit/jit.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
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
#include "executor/message.h"
#include "executor/request.h"
#include "executor/request_log.h"
#include "executor/response.h"
#include "executor/run.h"
#include "executor/slot.h"
#include "settings.h"
#include "task/outcome.h"
#include "task/owner.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/table.h"
#include "task/watch.h"

/* Retries in this process after a serialization failure or a deadlock. */
#define MAX_CONFLICT_RETRIES 5

/* The run; all but "without_block" and "row_lost" is set anew for each try. */
static struct
{
	ResponseText notices;				  /* in task_context */
	LocalTransactionId first_transaction; /* that its request began in; 0: none */
	bool committed;						  /* the request has committed by itself */
	bool not_begun;						  /* it is another process's to run it */
	bool row_lost;						  /* the row is that run no more */
	bool block_refused; /* the last try failed, for it must not be in a block of ours */
	bool without_block; /* so it is run without one */
} run;

static TaskTable *table = NULL;			  /* as it was looked up last, in TopMemoryContext */
static MemoryContext task_context = NULL; /* reset for every task */
static uint32 conflict_wait_event = 0;
static bool session_dirty = false;				/* the session cannot be cleaned any more */
static volatile sig_atomic_t listening = false; /* a request runs that may be cancelled */

/* Once for a process. */
void
run_define(uint32 wait_event)
{
	conflict_wait_event = wait_event;
	task_context = AllocSetContextCreate(TopMemoryContext, "pg_task task", ALLOCSET_DEFAULT_SIZES);
}

/* For signal handlers: does a request run that may be cancelled? */
bool
run_listens(void)
{
	return listening;
}

/* The task's own timeout, else the setting: the whole run counts, however often it is begun. */
static void
set_deadline(const SharedTask *task)
{
	int64 limit = task->timeout >= 0 ? task->timeout : (int64) Settings.timeout * 1000;

	deadline_set(MyExecutor->taken_at, limit);
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
			if (!watch_changed())
				break;
		}
		CHECK_FOR_INTERRUPTS();
		look_up_table(task->relid);
	}
	if (table->whole)
		return;
	if (watch_changed_here())
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task has made the task table unusable"),
						errdetail("All that it did was rolled back.")));
	if (run.committed)
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
	OwnerScope scope;
	bool written;

	XactReadOnly = false;
	cleanup_temporary();
	/* the outcome waits for locks as long as it takes */
	if (LockTimeout > 0)
		(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
								 true, 0, false);
	compat_stop_transaction_timeout();
	find_table(task);
	owner_become(table->owner, &scope);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (result->outcome == TASK_DONE)
		written =
			outcome_done(table, task->run, task->role_name, result, task->repeats, task->deletes);
	else if (result->outcome == TASK_STOPPED)
		written = row_end(table, task->run, result);
	else
		written = outcome_failed(table, task->run, result, true);
	PopActiveSnapshot();
	owner_return(&scope);
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
	OwnerScope scope;
	char *request;

	if (task->request_len >= 0)
		return pnstrdup(task->request, task->request_len);
	find_table(task);
	owner_become(table->owner, &scope);
	PushActiveSnapshot(GetTransactionSnapshot());
	request = row_request(table, task->run);
	PopActiveSnapshot();
	owner_return(&scope);
	/* the request is the first to take a snapshot in its transaction */
	CommitTransactionCommand();
	begin_transaction();
	return request;
}

/* The notices so far, or NULL. */
static const char *
notice_text(void)
{
	return run.notices.any ? response_text(&run.notices) : NULL;
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
	OwnerScope scope;
	bool is_run;

	begin_own_transaction();
	find_table(task);
	owner_become(table->owner, &scope);
	PushActiveSnapshot(GetTransactionSnapshot());
	is_run = row_request(table, task->run) != NULL;
	PopActiveSnapshot();
	owner_return(&scope);
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
	bool another = run.first_transaction != 0 && COMPAT_LOCAL_XID != run.first_transaction;

	run.first_transaction = 0;
	run.committed |= another;
	if (another)
		response_put_line(&run.notices,
						  "INFO:  the request has committed by itself: it is run at least"
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
		owner_fire_deferred();
	while (PreCommit_Portals(false));
}

/* Run the task and commit its effects with its outcome; errors are thrown. */
static void
run_and_commit(const SharedTask *task, const char *request, TimestampTz started)
{
	ResultFormat format = task->format >= 0 ? task->format : Settings.format;
	TaskResult done = {.outcome = TASK_DONE};
	ResponseText result;
	bool logged;

	response_init(&result, Settings.response_limit);
	run.first_transaction = COMPAT_LOCAL_XID;
	client_begin(&result, &run.notices);
	logged = request_run(request, task_context, format, &result, !run.without_block);
	finish_request();
	client_end();
	note_commits();
	deadline_stop();
	/* it may have taken either for an ordinary error */
	if (deadline_passed() || slot_is_cancelled())
		ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling task")));

	done.start = started;
	done.stop = GetCurrentTimestamp();
	done.response = response_text(&result);
	done.notice = notice_text();
	if (write_back(task, &done))
	{
		set_commit_durability();
		CommitTransactionCommand();
		request_log_duration(request, logged);
	}
	else
	{
		run.row_lost = true;
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
	owner_abandon();
	/* the server's report of the error would be converted for the client, and that may fail */
	(void) SetClientEncoding(GetDatabaseEncoding());
	disable_all_timeouts(false);
	deadline_stop();
	QueryCancelPending = false;
	MemoryContextSwitchTo(task_context);
	note_commits();
	run.block_refused = request_in_block() && geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION;
	if (geterrcode() != ERRCODE_TABLE_CHANGED && !run.block_refused)
		EmitErrorReport();
	error = CopyErrorData();
	FlushErrorState();
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && (slot_is_cancelled() || deadline_passed()))
		error->message = pstrdup(slot_is_cancelled() ? stopped : "canceling task due to timeout");
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
	if (slot_is_cancelled())
	{
		write_stopped(task, started);
		CommitTransactionCommand();
		return;
	}
	failed.start = started;
	failed.stop = GetCurrentTimestamp();
	failed.response = message_error(error, request, Settings.response_limit);
	failed.error = response_cut(error->message ? error->message : "", Settings.response_limit);
	failed.notice = notice_text();
	/* A copy: that of the server is overwritten when the write below logs, as of a lock wait. */
	failed.sqlstate = pstrdup(unpack_sql_state(error->sqlerrcode));
	run.row_lost = !write_back(task, &failed);
	CommitTransactionCommand();
}

static void
show_task(const SharedTask *task)
{
	char name[NAMEDATALEN];

	Settings.task_id = task->run.id;
	snprintf(name, sizeof(name), "pg_task %.*s " INT64_FORMAT, NAMEDATALEN - 32, task->queue,
			 task->run.id);
	SetConfigOption("application_name", name, PGC_USERSET, PGC_S_SESSION);
}

/* Run the task once, with all that is to be written.  NULL: that went well. */
static ErrorData *
run_once(const SharedTask *task, char **request, TimestampTz started)
{
	ErrorData *volatile error = NULL;

	MemoryContextReset(task_context);
	MemoryContextSwitchTo(task_context);
	response_init(&run.notices, Settings.response_limit);
	run.committed = run.block_refused = run.not_begun = false;
	*request = NULL;
	deadline_start();
	listening = true;
	PG_TRY();
	{
		begin_transaction();
		/*
		 * The server remembers some of what the session user was at the time of the connection,
		 * whether it was a superuser above all.  When that has changed, another process is to
		 * run the task, as if this one had not taken it.
		 */
		if (!slot_is_cancelled())
			*request = read_request(task);
		run.not_begun = *request && roles_session_changed();
		if (run.not_begun)
			*request = NULL;
		if (*request)
		{
			debug_query_string = *request;
			pgstat_report_activity(STATE_RUNNING, *request);
			run_and_commit(task, *request, started);
		}
		else if (run.not_begun)
			CommitTransactionCommand();
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

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause,
					 conflict_wait_event);
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
	if (!run.block_refused && (!is_collision(error) || *reruns >= MAX_CONFLICT_RETRIES))
		return false;
	if (run.committed || deadline_passed() || slot_is_cancelled())
		return false;
	session_dirty |= !cleanup_session(MyExecutor->role);
	show_task(task);
	run.without_block |= run.block_refused;
	if (!run.block_refused)
		wait_after_conflict((*reruns)++);
	return true;
}

/*
 * The failure could not be written: the row is left to the scheduler.  What the row is told is
 * why the task failed; why that could not be written stands in the log.
 */
static RunEnd
leave_to_scheduler(const ErrorData *error)
{
	if (geterrcode() == ERRCODE_TABLE_CHANGED)
		return RUN_RETURNED;
	EmitErrorReport();
	FlushErrorState();
	slot_leave_failure(error->sqlerrcode, error->message ? error->message : "", true);
	return RUN_UNWRITTEN;
}

/* Write the failure of a run.  If that fails, the caller must end the process at once. */
static RunEnd
fail(const SharedTask *task, ErrorData *error, const char *request, TimestampTz started)
{
	volatile RunEnd end = RUN_OVER;

	if (error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		return RUN_RETURNED;
	PG_TRY();
	{
		write_failure(task, error, request, started);
	}
	PG_CATCH();
	{
		end = leave_to_scheduler(error);
	}
	PG_END_TRY();
	return end;
}

/* Run a task to its end, and write its outcome. */
RunEnd
run_task(const SharedTask *task)
{
	TimestampTz started = GetCurrentTimestamp();
	char *request;
	ErrorData *error;
	int reruns = 0;
	RunEnd end = RUN_OVER;

	show_task(task);
	set_deadline(task);
	run.row_lost = run.without_block = false;
	do
		error = run_once(task, &request, started);
	while (error && retry_on_conflict(task, error, &reruns));
	if (error)
		end = fail(task, error, request, started);
	else if (run.not_begun)
		return RUN_NOT_BEGUN;
	if (end != RUN_OVER)
		return end;
	/* the row was locked while the fence was tried: perhaps it could not be claimed therefore */
	if (run.row_lost || slot_is_cancelled())
		shared_scheduler_hint(MyExecutor->database, InvalidOid, NULL, 0, SHARED_SCAN);
	debug_query_string = NULL;
	return RUN_OVER;
}

/* The session is as it was before the task.  False: that cannot be done, the process must end. */
bool
run_clean_up(void)
{
	bool clean;

	Settings.task_id = SETTINGS_NO_TASK;
	QueryCancelPending = false;
	clean = cleanup_session(MyExecutor->role) && !session_dirty;
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(task_context);
	return clean;
}
