/*
 * executor.c
 *		The process that runs tasks: attach, wait, take a task or a batch of them, report, exit.
 *
 * An executor is connected to one database as one role, which is its session user: a task has the
 * privileges of that role and no way to others.  It takes claimed tasks from the ring of its slot,
 * runs each (run.c), resets the session (cleanup.c), and waits for the next one.
 *
 * It changes its slot under the slot's lock.  It reads without the lock the fields that no other
 * process writes ("taken", "done").  The state of the slot is changed in shared/slots.c.
 *
 * Short tasks that wait together run one after the other in one transaction, at the end of which
 * their outcomes are written (pg_task.batch).
 *
 * Each member of a batch has a subtransaction.  Only the outcome DONE is written here.  A member
 * that fails, takes too long or cannot run in a batch is rolled back to the beginning of its
 * subtransaction and ends the batch: run.c runs it again, alone, for its true outcome.  If the
 * common commit is not possible, all is rolled back, and all members run alone.  So nothing of a
 * member is to be seen that a run alone would not show, but for what no transaction rolls back.
 *
 * No member sees what another one has left in the session: cleanup_member resets it or ends the
 * batch.  What must last until a task has committed, as an advisory lock, ends the batch, too.
 *
 * This file schedules nothing, touches no row (write_back.c does), and reads no slot but its own.
 */
#include "postgres.h"

#include "libpq/pqsignal.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "executor/cleanup.h"
#include "executor/request.h"
#include "executor/response.h"
#include "executor/run.h"
#include "executor/slot.h"
#include "executor/write_back.h"
#include "settings.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/slots.h"
#include "shared/statistics.h"
#include "shared/worker.h"
#include "task/events.h"
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

/*
 * After BATCH_US (microseconds) a batch takes no other member; after MEMBERS_MAX_US the running
 * member is cancelled, so that the others need not wait for it.  The outcomes must be written
 * within WRITING_MAX_US: a row may be locked, or a trigger of the owner's slow.
 */
#define BATCH_US 5000
#define MEMBERS_MAX_US 20000
#define WRITING_MAX_US 50000

/* A batch whose members return more than this ends (bytes). */
#define TEXT_MAX (1024 * 1024)

/* The most tasks that run alone after batches of less than two members. */
#define PENALTY_MAX 63

/* The executor's process, beside its slot (MyExecutor). */
static struct
{
	volatile sig_atomic_t terminated; /* a run that ends with this process is interrupted */
	uint32 settings_seen; /* change counter of the settings with which it has connected */
	MonoTime flushed;	  /* when it has last added its figures to pg_stat_task */
} process;

/* ---- the ring ---- */

/* How many tasks wait in the ring?  The scheduler may add some, and reclaim them. */
static int
count_waiting(void)
{
	int count;

	LWLockAcquire(MyExecutor->lock, LW_SHARED);
	count = (int) (MyExecutor->assigned - MyExecutor->taken);
	LWLockRelease(MyExecutor->lock);
	return count;
}

/*
 * Take the next task from the ring, beside those that were taken and have not been reported.  NULL:
 * there is none, or "wanted" says no.  The entry in the ring is not copied: until it is reported
 * nobody changes it, but for "cancelled" and "interrupted".
 */
static const SharedTask *
take_task(bool (*wanted)(const SharedTask *task, const void *arg), const void *arg)
{
	SharedTask *task = NULL;

	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	if (MyExecutor->taken != MyExecutor->assigned)
		task = &MyExecutor->ring[MyExecutor->taken % SHARED_RING];
	if (task && wanted && !wanted(task, arg))
		task = NULL;
	if (task)
	{
		MyExecutor->taken++;
		MyExecutor->taken_at = clock_mono();
	}
	LWLockRelease(MyExecutor->lock);
	return task;
}

/*
 * All tasks that were taken have ended, with the outcome DONE or another one: report them.
 * "elapsed" is how long each of them took (us).  Wake the scheduler if it waits for one.
 */
static void
report_tasks(const int64 *elapsed, int count)
{
	MonoTime now = clock_mono();
	bool notify = false;
	bool isolated = false;
	int i;

	Assert(MyExecutor->taken == MyExecutor->done + count);
	activity_end(&MyExecutor->activity);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	for (i = 0; i < count; i++)
	{
		SharedTask *task = &MyExecutor->ring[MyExecutor->done % SHARED_RING];

		task->elapsed = (uint32) Min(elapsed[i], PG_UINT32_MAX);
		isolated |= task->isolated;
		MyExecutor->done++;
		notify |= task->notify || MyExecutor->done == MyExecutor->notify_at ||
				  MyExecutor->done == MyExecutor->assigned;
	}
	MyExecutor->idle_since = now;
	LWLockRelease(MyExecutor->lock);
	if (notify)
		shared_scheduler_wake(MyExecutor->database, 0);
	/* schedulers may wait to start theirs */
	if (isolated)
	{
		LWLockAcquire(Shared->directory, LW_SHARED);
		slots_notify_vacated();
		LWLockRelease(Shared->directory);
	}
}

/* Return the last tasks that were taken to the ring: of their requests nothing is left. */
static void
untake_tasks(int count)
{
	Assert(MyExecutor->taken - MyExecutor->done >= (uint32) count);
	LWLockAcquire(MyExecutor->lock, LW_EXCLUSIVE);
	MyExecutor->taken -= count;
	LWLockRelease(MyExecutor->lock);
}

/* ---- the process ---- */

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

/* ---- batches ---- */

/* A batch.  In batches.context. */
typedef struct Batch
{
	MonoTime begun;
	int most;	   /* members that there may be, and no more than waited when the batch began */
	int count;	   /* members that have run */
	int failed;	   /* 1: another one was begun, and rolled back */
	bool must_end; /* the last one may have left something in the session */
	bool committed;
	size_t text;	   /* bytes that they have returned */
	Response response; /* of the member that runs */

	/* of each member */
	const SharedTask **tasks; /* in the ring */
	TaskResult *results;
	int64 *elapsed; /* us */
} Batch;

/* What outlives a batch.  Static, as "runs" in run.c. */
static struct
{
	MemoryContext context; /* what the members of a batch return; reset before the next one */
	MemoryContext request; /* what a member allocates; reset before the next one */
	int alone;			   /* number of tasks that run alone before the next batch */
	int penalty;		   /* the least "alone" may be after a batch of less than two members */
} batches;

/* How many members may a batch with this task have?  As its queue says, or else the setting. */
static int
members_max(const SharedTask *task)
{
	return task->defaults.batch >= 0 ? task->defaults.batch : Settings.task.batch;
}

/*
 * May this task be a member, of a batch with those that there are?  Not if it must be alone in its
 * process, or if the batch's time limit is not less than its own.  Called under the slot's lock.
 */
static bool
may_be_member(const SharedTask *task, const void *arg)
{
	const Batch *batch = arg;
	int64 timeout = slot_timeout(task);

	return members_max(task) > Max(batch->count, 1) && task->role == MyExecutor->role &&
		   !task->isolated && !task->cancelled && task->request_len >= 0 &&
		   (timeout == 0 || timeout > MEMBERS_MAX_US) &&
		   (batch->count == 0 || task->relid == batch->tasks[0]->relid);
}

/*
 * Is the next task in the ring to be run in a batch, if it may?  The first one of a process is not:
 * a member that is to be run alone may have cost the process before, so this may be that one.
 */
static bool
may_begin_batch(void)
{
	int waiting;

	if ((Settings.task.batch <= 1 && !MyExecutor->batches) || MyExecutor->done == 0)
		return false;
	waiting = count_waiting();
	if (batches.alone > 0)
	{
		batches.alone -= waiting > 0;
		return false;
	}
	return waiting > 1 && DefaultXactIsoLevel == XACT_READ_COMMITTED &&
		   !COMPAT_LIMITS_TRANSACTIONS && cleanup_allows_members();
}

/*
 * Only a process that runs batches has the memory for them.  What comes into the ring later is no
 * member: its now(), the beginning of the transaction, would be before the commit that has inserted
 * it.
 */
static Batch *
make_batch(void)
{
	Batch *batch;
	int most = count_waiting();

	if (batches.context == NULL)
		batches.context =
			AllocSetContextCreate(TopMemoryContext, "pg_task batch", ALLOCSET_DEFAULT_SIZES);
	if (batches.request == NULL)
		batches.request =
			AllocSetContextCreate(TopMemoryContext, "pg_task member", ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(batches.context);
	batch = MemoryContextAllocZero(batches.context, sizeof(Batch));
	batch->tasks = MemoryContextAllocZero(batches.context, most * sizeof(SharedTask *));
	batch->results = MemoryContextAllocZero(batches.context, most * sizeof(TaskResult));
	batch->elapsed = MemoryContextAlloc(batches.context, most * sizeof(int64));
	batch->most = most;
	batch->begun = clock_mono();
	return batch;
}

/* Take the next member out of the ring.  Returns false if there is none. */
static bool
take_member(Batch *batch)
{
	const SharedTask *task;

	if (batch->count >= batch->most)
		return false;
	if (batch->count > 0 &&
		(batch->must_end || batch->text > TEXT_MAX || clock_mono().us - batch->begun.us > BATCH_US))
		return false;
	task = take_task(may_be_member, batch);
	if (task == NULL)
		return false;
	batch->most = Min(batch->most, members_max(task));
	batch->tasks[batch->count] = task;
	return true;
}

/* Run the next member in the subtransaction that was begun for it. */
static void
run_member(Batch *batch)
{
	const SharedTask *task = batch->tasks[batch->count];
	TaskResult *result = &batch->results[batch->count];
	Response *response = &batch->response;
	Request request = {.response = response, .batched = true};
	int nest_level = NewGUCNestLevel();
	int durability = synchronous_commit;
	MemoryContext old;
	RowRequest given;

	SetCurrentStatementStartTimestamp();
	result->start = GetCurrentStatementStartTimestamp();
	show_task(task, result->start);
	old = MemoryContextSwitchTo(batches.context);
	given = slot_copy_request(task);
	response_begin(response, task);
	MemoryContextSwitchTo(old);
	request.text = given.text;
	if (roles_session_changed())
		elog(ERROR, "the session user has changed");
	run_request(&request, given.input, result, batches.context);
	if (synchronous_commit != durability)
		elog(ERROR, "the commit is to be as durable as the task has set");
	CHECK_FOR_INTERRUPTS();
	result->outcome = TASK_DONE;
	result->stop = GetCurrentTimestamp();
	result->response = response_finish(response);
	result->notice = response_notices(response);
	batch->text += response->text.text.len + response->notices.text.len;
	request_log_duration(&request);
	AtEOXact_GUC(false, nest_level); /* it keeps nothing that the member has set */
	batch->must_end = !cleanup_member(MyExecutor->role);
}

/*
 * A member has failed, or the commit of all: reset what that has changed in the process, and roll
 * it back, down to this level.  The error is not reported: it is again if a task fails alone.
 */
static void
roll_back(int level)
{
	HOLD_INTERRUPTS();
	run_reset_process();
	MemoryContextSwitchTo(batches.context);
	FlushErrorState();
	run_abort(level);
	RESUME_INTERRUPTS();
}

/* Run the member that was taken last, in a subtransaction.  Returns false if it was rolled back. */
static bool
try_member(Batch *batch)
{
	const SharedTask *task = batch->tasks[batch->count];
	ResourceOwner owner = CurrentResourceOwner;
	int level = GetCurrentTransactionNestLevel();
	ErrorContextCallback callback;
	volatile bool done = false;

	debug_query_string = NULL;
	MemoryContextReset(batches.request);
	context_begin(&callback, task);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(batches.request);
	run_allow_cancel();
	PG_TRY();
	{
		run_member(batch);
		run_forbid_cancel();
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		roll_back(level);
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(batches.request);
	batch->elapsed[batch->count] = clock_mono().us - MyExecutor->taken_at.us;
	return done;
}

/* Run members until the batch ends. */
static void
run_members(Batch *batch)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	events_forget();
	do
	{
		if (!try_member(batch))
		{
			batch->failed = 1;
			return;
		}
		batch->count++;
	} while (take_member(batch));
}

/* Write the outcomes of all members, and commit. */
static void
commit_batch(Batch *batch)
{
	if (!cleanup_allows_commit())
		elog(ERROR, "the commit would be of the replication origin that a member has set");
	run_stop_timer();
	QueryCancelPending = false;
	MemoryContextSwitchTo(batches.request);
	run_start_timer(clock_mono(), WRITING_MAX_US);
	if (!write_back_batch(batch->tasks, batch->results, batch->count))
		elog(ERROR, "a member of the batch cannot be written");
	run_stop_timer();
	CHECK_FOR_INTERRUPTS();
	CommitTransactionCommand();
	batch->committed = true;
}

/* Run the batch, and commit it or roll it back. */
static void
execute_batch(Batch *batch)
{
	run_start_timer(batch->begun, MEMBERS_MAX_US);
	PG_TRY();
	{
		run_members(batch);
		if (batch->count > 0)
			commit_batch(batch);
		else
			AbortCurrentTransaction();
	}
	PG_CATCH();
	{
		roll_back(0);
	}
	PG_END_TRY();
	run_stop_timer();
	QueryCancelPending = false;
	debug_query_string = NULL;
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(batches.request);
}

/*
 * Return what has not been committed to the ring, to be run alone.  If batches are of no use, the
 * next one comes after more tasks that run alone.
 */
static void
return_members(Batch *batch)
{
	int rolled_back = batch->committed ? 0 : batch->count;

	batches.alone = rolled_back + batch->failed;
	untake_tasks(batches.alone);
	batch->count -= rolled_back;
	if (batch->count > 1)
		batches.penalty = 0;
	else if (batches.alone > 0)
		batches.penalty = Min(2 * batches.penalty + 1, PENALTY_MAX);
	if (batch->count <= 1)
		batches.alone = Max(batches.alone, batches.penalty);
}

/*
 * Run tasks that wait in the ring as a batch, reset the session, and report those that have
 * committed: their places in the ring are free.  Returns false, and has done nothing, if the next
 * task is to be run alone.  Sets "clean" to whether the process can run another task.
 */
static bool
run_batch(bool *clean)
{
	Batch *batch;
	int i;

	if (!may_begin_batch())
		return false;
	batch = make_batch();
	if (!take_member(batch))
		return false;
	execute_batch(batch);
	return_members(batch);
	for (i = 0; i < batch->count; i++)
	{
		const TaskResult *result = &batch->results[i];

		show_event(batch->tasks[i], EVENT_STARTED, batch->tasks[i]->due, result->start);
		show_event(batch->tasks[i], EVENT_DONE, result->start, result->stop);
	}
	if (batch->committed)
		events_committed();
	*clean = run_clean_up();
	report_tasks(batch->elapsed, batch->count);
	MemoryContextReset(batches.context);
	return true;
}

/* ---- the loop ---- */

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
			untake_tasks(1);
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
	report_tasks(&elapsed, 1);
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
		if (run_batch(&clean))
			end_work(clean);
		else if ((task = take_task(NULL, NULL)) != NULL)
			run_and_report(task);
		else
			wait_for_task();
	}
}
