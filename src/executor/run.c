/*
 * run.c
 *		One run of a task: the request and the write-back of its outcome, in one transaction.
 *
 * The server's own timeouts use the wall clock.  If that is set back by an hour, the task may run
 * for an hour longer; if it is set forward, the task times out at once.  Therefore the task
 * timeout has its own timer on CLOCK_MONOTONIC, and uses SIGUSR2, which background workers ignore
 * by default.  Where the system has no such timers, as macOS, it is one of the server's.
 *
 * A run that fails with a conflict (serialization failure, deadlock) is retried in this process.  A
 * run whose row was changed is cancelled by the scheduler, with a flag in the ring and SIGINT.
 *
 * If the write-back finds that the row is no longer this run, everything is rolled back.  A failure
 * is written in a transaction of its own, after the rollback.
 *
 * An executor that was asked to exit does not wait for locks when it reads or writes a row: it
 * yields.  Such a wait has no limit while nobody else needs the executor.  When another database or
 * role does, a scheduler asks the executor to exit.  Then a timer cancels the wait, and what has
 * run in the transaction is rolled back.  A request that waits for a lock is not cancelled.
 *
 * This file does not touch the row itself (write_back.c does), and ends no process: run_task
 * returns what the caller has to do.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "commands/trigger.h"
#include "common/pg_prng.h"
#include "jit/jit.h"
#include "libpq/pqsignal.h"
#include "mb/pg_wchar.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"

#include "compat.h"
#include "executor/cleanup.h"
#include "executor/request.h"
#include "executor/response.h"
#include "executor/run.h"
#include "executor/slot.h"
#include "executor/write_back.h"
#include "settings.h"
#include "task/events.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/roles.h"
#include "task/running.h"
#include "task/table.h"

/* Maximum number of retries in this process after conflicts. */
#define MAX_CONFLICT_RETRIES 5

/* Re-fire interval of the task timeout, for requests that catch query_canceled (ms). */
#define REFIRE_MS 100

/* How often the timer looks whether this process waits and must not (ms). */
#define LOOK_MS 100

/* Has the system POSIX timers?  -DPG_TASK_NO_TIMERS: as if it had none. */
#if _POSIX_TIMERS > 0 && !defined(PG_TASK_NO_TIMERS)
#define HAS_TIMERS
#endif

/* One run.  A run is tried again after a conflict, and without the implicit block if that failed.
 */
typedef struct Run
{
	const SharedTask *task;
	TimestampTz started;
	int conflicts;	 /* tries that failed with a conflict */
	bool block_ends; /* the last try failed because the statement must not be in a block ... */
	bool no_block;	 /* ... so it is tried without one */
	bool row_lost;	 /* the write-back found that the row is no longer this run */
	bool begun;		 /* the request was run, once or more often */
	bool dirty;		 /* a try has left what cannot be reset: the process exits after the run */

	/* As the row was when it was first read: a change of it has no effect on this run. */
	RowRequest given; /* "text" is NULL until it is read */

	/* Set anew for each try. */
	Request request; /* "text" is NULL until it is read, and if it must not run */
	Response response;
	LocalTransactionId first_transaction; /* in which the request began; 0: not begun, or noted */
	TaskResult result;					  /* if it succeeds */
	bool committed;						  /* the request has committed a part of itself */
	bool is_done;	/* it has ended with a commit, so DONE may be written later */
	bool yields;	/* the process has to exit, not to wait for a lock */
	bool not_begun; /* another process must run the task */
} Run;

/*
 * What outlives a run.  Static, because signal handlers and those of timers have no argument; and
 * because memory is kept for the next run.
 */
static struct
{
	MemoryContext context; /* what a try allocates; reset before the next one */
	MemoryContext given;   /* Run.given; reset after the run */

#ifdef HAS_TIMERS
	timer_t timer; /* of the task timeout */
#else
	TimeoutId timer;
#endif
	bool limited; /* it was set */
	volatile sig_atomic_t timed_out;

	TimeoutId look; /* the timer that looks at waits */
	volatile sig_atomic_t yields;

	volatile sig_atomic_t cancellable; /* a request is running that SIGINT may cancel */
} runs;

/* In a signal handler: the running task has timed out. */
static void
end_timed_out(void)
{
	runs.timed_out = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
}

#ifdef HAS_TIMERS
static void
handle_timer(SIGNAL_ARGS)
{
	int save_errno = errno;

	COMPAT_SIGNAL_UNUSED;
	end_timed_out();
	errno = save_errno;
}
#endif

/* The timer's handler.  It reads the state of the slot without the lock, which it cannot take. */
static void
look_at_wait(void)
{
	if (MyExecutor->state != EXECUTOR_LEAVING || MyProc->waitStatus != PROC_WAIT_STATUS_WAITING)
		return;
	runs.yields = true;
	InterruptPending = true;
	QueryCancelPending = true;
}

/*
 * SIGINT: a user cancels the running request by the pid of the process, or a task is to end.  Then
 * the signal is for a task with "cancelled" or "interrupted": if that one has ended in the
 * meantime, the next one continues.  The server's statement_timeout and lock_timeout come as
 * SIGINT, too.
 */
static void
handle_cancel(SIGNAL_ARGS)
{
	bool sent = MyExecutor->cancel_sent;
	SharedTask *task = slot_running();

	MyExecutor->cancel_sent = false;
	if (!runs.cancellable || (sent && !task->cancelled && !task->interrupted))
		return;
	if (!sent && !get_timeout_indicator(STATEMENT_TIMEOUT, false) &&
		!get_timeout_indicator(LOCK_TIMEOUT, false))
		task->interrupted = true;
	StatementCancelHandler(COMPAT_SIGNAL_PASS);
}

#ifdef HAS_TIMERS

static void
create_timer(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};

	pqsignal(SIGUSR2, handle_timer);
	if (timer_create(CLOCK_MONOTONIC, &event, &runs.timer) != 0)
		ereport(FATAL, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not create a timer: %m")));
}

/* Fire after "us" microseconds, and then every REFIRE_MS; 0: stop the timer. */
static void
arm_timer(int64 us)
{
	struct itimerspec times = {.it_value = {us / 1000000, us % 1000000 * 1000},
							   .it_interval = {0, REFIRE_MS * 1000000}};

	if (timer_settime(runs.timer, 0, &times, NULL) != 0)
		ereport(ERROR, (errcode(ERRCODE_SYSTEM_ERROR), errmsg("could not set a timer: %m")));
}

#else

static void
create_timer(void)
{
	runs.timer = RegisterTimeout(USER_TIMEOUT, end_timed_out);
}

/* macOS takes no more than 10^8 seconds, three years. */
static void
arm_timer(int64 us)
{
	if (us > 0 && us < INT64CONST(100000000) * USECS_PER_SEC)
		enable_timeout_every(runs.timer, GetCurrentTimestamp() + us, REFIRE_MS);
	else
		disable_timeout(runs.timer, false);
}

#endif

/* Called once per executor. */
void
run_define(void)
{
	pqsignal(SIGINT, handle_cancel);
	create_timer();
	runs.look = RegisterTimeout(USER_TIMEOUT, look_at_wait);
	runs.context = AllocSetContextCreate(TopMemoryContext, "pg_task task", ALLOCSET_DEFAULT_SIZES);
	runs.given = AllocSetContextCreate(TopMemoryContext, "pg_task given", ALLOCSET_SMALL_SIZES);
}

/*
 * From now on the timeout raises an interrupt, as a user's cancel does: "limit" microseconds after
 * "started"; 0: no limit.
 */
void
run_start_timer(MonoTime started, int64 limit)
{
	runs.timed_out = false;
	runs.limited = limit > 0 && limit < PG_INT64_MAX - started.us;
	if (runs.limited)
	{
		/* the clock is read once: Max would read it again, and may find the time over by then */
		int64 left = started.us + Max(limit, 1000) - clock_mono().us;

		arm_timer(Max(left, 1));
	}
}

/* Stop the timer.  "timed_out" still says whether it has fired. */
void
run_stop_timer(void)
{
	if (runs.limited)
		arm_timer(0);
}

/* What waits for a lock from now on is pg_task's own: a read or write of the task's row. */
static void
begin_yielding(void)
{
	runs.yields = false;
	enable_timeout_every(runs.look, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_MS),
						 LOOK_MS);
}

/*
 * That has ended.  An error may have ended it, and the timer, too.  The timer may have cancelled a
 * wait just when it was over: that cancels nothing that comes.
 */
static void
end_yielding(void)
{
	if (get_timeout_active(runs.look))
		disable_timeout(runs.look, false);
	if (runs.yields)
		QueryCancelPending = false;
	runs.yields = false;
}

/* Has an error ended what was begun last because the executor was asked to exit? */
static bool
has_yielded(void)
{
	return runs.yields && geterrcode() == ERRCODE_QUERY_CANCELED;
}

/*
 * From now on SIGINT cancels what runs.  If it came before, or has ended an earlier try of the run,
 * in a batch, that is made up for.
 */
void
run_allow_cancel(void)
{
	runs.cancellable = true;
	if (slot_running()->interrupted)
		InterruptPending = QueryCancelPending = true;
}

/* What ran has succeeded: SIGINT cancels nothing more, and nothing is made up for. */
void
run_forbid_cancel(void)
{
	runs.cancellable = false;
	CHECK_FOR_INTERRUPTS();
	slot_running()->interrupted = false;
}

static void
begin_transaction(void)
{
	Assert(!IsTransactionState());
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(runs.context);
	events_forget();
}

/* Commit a transaction that may have written how the run has ended. */
static void
commit_transaction(void)
{
	CommitTransactionCommand();
	end_yielding();
	events_committed();
}

/*
 * Begin a transaction that does nothing of the task.  It waits for other transactions; at a higher
 * isolation level, which the role may have set, it would fail because of them.
 */
static void
begin_write_transaction(void)
{
	begin_transaction();
	begin_yielding();
	XactIsoLevel = XACT_READ_COMMITTED;
}

/*
 * Get the request and its input from the ring or, if they are long, from the row.  Returns false if
 * the row is no longer this run.
 */
static bool
read_request(Run *run)
{
	const SharedTask *task = run->task;
	bool found = true;

	if (run->given.text)
		return true;
	MemoryContextSwitchTo(runs.given);
	if (task->request_len >= 0)
		run->given = slot_copy_request(task);
	else
	{
		begin_yielding();
		found = write_back_read_request(task, run->committed, &run->given);
		CHECK_FOR_INTERRUPTS();
		end_yielding();
		/* a request may set the isolation level, so no snapshot may have been taken before it */
		CommitTransactionCommand();
		/* here, so that a rollback leaves it */
		show_meta(run->given.meta);
		begin_transaction();
	}
	MemoryContextSwitchTo(runs.context);
	return found;
}

/* If a user has stopped the task, write when and how its run ended; else the row is not touched. */
static void
write_stopped(Run *run)
{
	Failure failure = {"ERROR", TASK_MESSAGE_STOPPED, NULL, NULL, TASK_ERROR_STOPPED};
	TaskResult result = {.outcome = TASK_STOPPED,
						 .start = run->started,
						 .stop = GetCurrentTimestamp(),
						 .response = run->response.format == RESULT_JSON ? failure_json(&failure)
																		 : failure_text(&failure),
						 .error = TASK_MESSAGE_STOPPED,
						 .sqlstate = TASK_ERROR_STOPPED,
						 .notice = response_notices(&run->response)};

	if (write_back_outcome(run->task, &result, run->committed))
		show_event(run->task, EVENT_STOPPED, result.start, result.stop);
}

/*
 * The write-back found that the row is no longer this run, and everything was rolled back.  If the
 * row now is this run, the task itself had changed it, so the run has failed.
 */
static void
check_own_row(Run *run)
{
	RowRequest request;

	begin_write_transaction();
	if (write_back_read_request(run->task, run->committed, &request))
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task has changed its own row"),
						errdetail("All that it did was rolled back.")));
	write_stopped(run);
	commit_transaction();
}

/* If the request has committed a part of itself, note that once, and tell it in the notices. */
static void
note_commits(Run *run)
{
	bool another = run->first_transaction != 0 && COMPAT_LOCAL_XID != run->first_transaction;

	run->first_transaction = 0;
	run->committed |= another;
	if (another)
		response_add_notice(&run->response,
							"INFO:  the request has committed by itself: it is run at least"
							" once, not exactly once");
}

/*
 * Run a request, with what it has left for its commit, deferred triggers and cursors WITH HOLD,
 * until nothing is left: no code of the task runs after this.  Writes into the result, in "memory",
 * whether it has asked to be run again.
 *
 * A member of a batch leaves constraints deferred, for those of the next member are its own matter,
 * and the timer, which is that of the batch.
 */
void
run_request(Request *request, const Jsonb *input, TaskResult *result, MemoryContext memory)
{
	Assert(!owner_acts());
	debug_query_string = request->text;
	pgstat_report_activity(STATE_RUNNING, request->text);
	client_begin(request->response);
	running_begin(memory, input);
	request_run(request);
	do
	{
		if (request->batched)
			AfterTriggerFireDeferred();
		else
			owner_fire_deferred();
	} while (PreCommit_Portals(false));
	running_end(result);
	client_end();
	if (!request->batched)
		run_stop_timer();
	/* the request may have caught the error of either as an ordinary one */
	if (runs.timed_out || slot_is_cancelled())
		ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling task")));
}

/* The request has succeeded: write that and commit both. */
static void
commit_success(Run *run)
{
	TaskResult *done = &run->result;

	done->outcome = TASK_DONE;
	done->start = run->started;
	done->stop = GetCurrentTimestamp();
	done->response = response_finish(&run->response);
	done->notice = response_notices(&run->response);

	/*
	 * DONE may be written later only if the last statement has committed.  After one that goes on
	 * after its commit, such as CALL, the open transaction may hold what has no transaction id, a
	 * NOTIFY or a write to another server.  And the slot must hold all that there is to write.
	 */
	run->is_done = run->request.all_committed && !done->goes_on &&
				   strlen(done->response) < sizeof(MyExecutor->failure.error);
	begin_yielding();
	if (write_back_outcome(run->task, done, run->committed))
	{
		CommitTransactionCommand();
		end_yielding();
		show_event(run->task, EVENT_DONE, run->started, done->stop);
		request_log_duration(&run->request);
	}
	else
	{
		run->row_lost = true;
		run->is_done = false;
		AbortOutOfAnyTransaction();
		/* the request is over: nothing of it is left to cancel */
		runs.cancellable = false;
		QueryCancelPending = false;
		check_own_row(run);
	}
}

/* An error has ended what ran: reset what that has changed in the process. */
void
run_reset_process(void)
{
	Assert(InterruptHoldoffCount > 0);
	runs.cancellable = false;
	running_end(NULL);
	client_end();
	owner_abandon();
	(void) owner_code_bar(0);
	/* the server's report of the error would be converted for the client, and that may fail */
	(void) SetClientEncoding(GetDatabaseEncoding());
	disable_all_timeouts(false);
	run_stop_timer();
	QueryCancelPending = false;
}

/*
 * Roll back what has failed, with what the server drops for a client at that point: all, or (not 0)
 * down to this level of subtransactions.
 */
void
run_abort(int level)
{
	while (level > 0 && GetCurrentTransactionNestLevel() > level)
		RollbackAndReleaseCurrentSubTransaction();
	if (level == 0)
	{
		AbortOutOfAnyTransaction();
		PortalErrorCleanup();
	}
	cleanup_replication_slots();
	jit_reset_after_error();
}

/*
 * Reset the process after an error, and return the error, in the context of the task.
 *
 * It is copied after it was reported, because a library may rewrite it in emit_log_hook: Citus
 * turns a cancel into the deadlock between servers that was its cause.
 */
static ErrorData *
catch_error(Run *run)
{
	ErrorData *error;

	HOLD_INTERRUPTS();
	run_reset_process();
	MemoryContextSwitchTo(runs.context);
	note_commits(run);
	run->block_ends = run->request.in_block && geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION;
	run->yields = has_yielded();
	if (geterrcode() != ERRCODE_TABLE_CHANGED && !run->block_ends && !run->yields)
		EmitErrorReport();
	error = CopyErrorData();
	FlushErrorState();

	/* if pg_task itself has cancelled the request, say why; the server's own keep their code */
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && slot_is_cancelled())
	{
		error->message = pstrdup(TASK_MESSAGE_STOPPED);
		error->sqlerrcode = ERRCODE_TASK_STOPPED;
	}
	else if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && runs.timed_out)
	{
		error->message = pstrdup("canceling task due to timeout");
		error->sqlerrcode = ERRCODE_TASK_TIMEOUT;
	}
	error->context = context_cut(error->context, run->task);
	run_abort(0);
	MemoryContextSwitchTo(runs.context);
	RESUME_INTERRUPTS();
	return error;
}

/* Write a failure, in a transaction of its own. */
static void
write_failure(Run *run, const ErrorData *error)
{
	TaskResult failed = {.outcome = TASK_FAIL};

	begin_write_transaction();
	if (slot_is_cancelled())
	{
		write_stopped(run);
		commit_transaction();
		return;
	}
	failed.start = run->started;
	failed.stop = GetCurrentTimestamp();
	if (run->response.format == RESULT_JSON)
		failed.response = failure_error_json(error, Settings.response_limit);
	else
		failed.response = response_error(error, run->request.text);
	failed.error = response_cut(error->message ? error->message : "");
	failed.notice = response_notices(&run->response);
	/* a copy: if the write-back logs something, as a lock wait, the server overwrites its buffer */
	failed.sqlstate = pstrdup(unpack_sql_state(error->sqlerrcode));
	run->row_lost = !write_back_outcome(run->task, &failed, run->committed);
	/* the STOP has committed just now */
	if (run->row_lost)
		write_stopped(run);
	commit_transaction();
}

/*
 * Read the request and run it, unless it must not run: the scheduler has cancelled the task, the
 * row is no longer this run, or the session user was changed.  The server keeps what the session
 * user was at the time of the connection, a superuser above all, so another process must run the
 * task then, as if this one had not taken it.
 */
static void
execute_try(Run *run)
{
	bool found;

	begin_transaction();
	found = !slot_is_cancelled() && read_request(run);
	run->not_begun = found && roles_session_changed();
	if (found && !run->not_begun)
	{
		run->request.text = run->given.text;
		/* how it ends is reported below, or noted in outcome.c */
		if (!run->begun)
			show_event(run->task, EVENT_STARTED, run->task->due, run->started);
		run->begun = true;
		run->first_transaction = COMPAT_LOCAL_XID;
		run_request(&run->request, run->given.input, &run->result, runs.context);
		note_commits(run);
		commit_success(run);
		return;
	}
	begin_yielding();
	if (!run->not_begun)
		write_stopped(run);
	commit_transaction();
}

/*
 * Try the run once: the memory of the try before is freed, and what it left in the run is cleared.
 * Returns the error that has ended it, or NULL if its outcome is written.
 */
static ErrorData *
try_run(Run *run)
{
	ErrorData *volatile error = NULL;

	debug_query_string = NULL; /* what the last try has set is freed here */
	MemoryContextReset(runs.context);
	MemoryContextSwitchTo(runs.context);
	response_begin(&run->response, run->task);
	run->request = (Request){.response = &run->response, .wants_block = !run->no_block};
	run->first_transaction = 0;
	run->result = (TaskResult){0};
	run->committed = run->block_ends = run->not_begun = run->is_done = run->yields = false;
	run_start_timer(MyExecutor->taken_at, slot_timeout(run->task));
	run_allow_cancel();
	PG_TRY();
	{
		execute_try(run);
	}
	PG_CATCH();
	{
		error = catch_error(run);
	}
	PG_END_TRY();
	runs.cancellable = false;
	end_yielding();
	run_stop_timer();
	return error;
}

/*
 * Must the run be tried again in this process: after a conflict, or without the implicit block? Not
 * if the request has committed a part of itself.  Resets the session before the next try.
 *
 * After a conflict, wait some milliseconds, twice as many each time, so that the other transaction
 * can end.  The time is random, because the other may be a task that waits in the same way.
 */
static bool
prepare_retry(Run *run, const ErrorData *error)
{
	bool conflict = error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
					error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;

	if (!run->block_ends && (!conflict || run->conflicts >= MAX_CONFLICT_RETRIES))
		return false;
	if (run->committed || run->yields || runs.timed_out || slot_is_cancelled())
		return false;
	run->dirty |= !cleanup_session(MyExecutor->role);
	show_task(run->task, run->started);
	show_meta(run->given.meta);
	run->no_block |= run->block_ends;
	if (!run->block_ends)
		slot_wait((long) ((1 << run->conflicts++) * (1 + pg_prng_double(&pg_global_prng_state))));
	return true;
}

/* The executor was asked to exit, and does not wait for a lock until it has written the outcome. */
static void
log_yield(const char *follows)
{
	ereport(LOG, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				  errmsg("the outcome of the task waits for a lock, and others need its executor"),
				  errdetail_internal("%s", follows)));
}

/*
 * The failure could not be written: the scheduler must write it.  It gets the error with which the
 * task failed; the one of the write-back is only logged.
 */
static RunEnd
leave_failure_to_scheduler(const ErrorData *error)
{
	bool yields = has_yielded();

	if (geterrcode() == ERRCODE_TABLE_CHANGED)
		return RUN_RETURNED;
	if (!yields)
		EmitErrorReport();
	FlushErrorState();
	if (yields)
		log_yield("It has failed, and that is written when the lock is released.");
	slot_set_failure(error->sqlerrcode, error->message ? error->message : "", TASK_LEFT_FAILED);
	return RUN_UNWRITTEN;
}

/*
 * The outcome DONE waits for a lock, and others need this process.  What has run in the transaction
 * is rolled back, and the task runs again.  Only if the request has ended with a commit, the
 * scheduler writes DONE: see commit_success.
 */
static RunEnd
yield_run(const Run *run)
{
	if (run->is_done)
	{
		log_yield("It is done, and that is written when the lock is released.");
		slot_set_failure(ERRCODE_SUCCESSFUL_COMPLETION, run->result.response, TASK_LEFT_DONE);
	}
	else
	{
		log_yield("It was rolled back, and runs again.");
		slot_set_failure(ERRCODE_LOCK_NOT_AVAILABLE, "", TASK_LEFT_YIELDED);
	}
	return RUN_UNWRITTEN;
}

/*
 * Write the failure of a run.  If that fails, the transaction is still open, and the process must
 * exit, as the result says.
 */
static RunEnd
fail_run(Run *run, const ErrorData *error)
{
	volatile RunEnd end = RUN_OVER;

	if (run->yields)
		return yield_run(run);
	if (error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		return RUN_RETURNED;
	PG_TRY();
	{
		write_failure(run, error);
	}
	PG_CATCH();
	{
		end = leave_failure_to_scheduler(error);
	}
	PG_END_TRY();
	return end;
}

/*
 * Reset the session to its state before what has run.  Returns false if that is not possible: the
 * process must exit.
 */
bool
run_clean_up(void)
{
	bool clean;

	Settings.task_id = SETTINGS_NO_TASK;
	QueryCancelPending = false;
	clean = cleanup_session(MyExecutor->role);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(runs.context);
	MemoryContextReset(runs.given);
	return clean;
}

/*
 * Run a task, write its outcome, and reset the session.  Sets "clean" to whether the process can
 * run another task.
 */
RunEnd
run_task(const SharedTask *task, bool *clean)
{
	Run run = {.task = task, .started = GetCurrentTimestamp()};
	RunEnd end = RUN_OVER;
	ErrorData *error;

	Assert(MyExecutor != NULL && task->role == MyExecutor->role);
	show_task(task, run.started);
	do
		error = try_run(&run);
	while (error && prepare_retry(&run, error));
	if (error)
		end = fail_run(&run, error);
	else if (run.not_begun)
		end = RUN_NOT_BEGUN;
	if (end != RUN_OVER)
		return end;
	/* the write-back locked the row for a while, so a claim may have skipped it */
	if (run.row_lost || slot_is_cancelled())
		shared_scheduler_wake(MyExecutor->database, SHARED_SCAN);
	debug_query_string = NULL;
	*clean = run_clean_up() && !run.dirty;
	return RUN_OVER;
}
