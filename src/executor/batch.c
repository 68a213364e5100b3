/*
 * batch.c
 *		Short tasks that wait together run one after the other in one transaction, at the end of
 *		which their outcomes are written (pg_task.batch).
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
 * This file touches no row (write_back.c does), and ends no process.
 */
#include "postgres.h"

#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "executor/batch.h"
#include "executor/cleanup.h"
#include "executor/request.h"
#include "executor/response.h"
#include "executor/run.h"
#include "executor/slot.h"
#include "executor/write_back.h"
#include "settings.h"
#include "task/events.h"
#include "task/roles.h"

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
	int64 timeout = show_timeout(task);

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
	waiting = slot_count_waiting();
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
	int most = slot_count_waiting();

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
	task = slot_take(may_be_member, batch);
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
	slot_untake(batches.alone);
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
bool
batch_run(bool *clean)
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
	slot_report(batch->elapsed, batch->count);
	MemoryContextReset(batches.context);
	return true;
}
