/*
 * orphans.c
 *		Orphans: runs whose processes cannot write their outcomes.
 *
 * An executor that exits leaves tasks behind: one that was running, and others that it had not
 * begun.  A row in state WORK that is in no executor's ring is an orphan, too; so is one that was
 * stopped and has no end.  To find these, the rows are compared with the rings.  A run whose row is
 * not that run any more is cancelled: only committed rows decide, so it does not matter who changed
 * the row.
 *
 * The run that may have crashed the server is written by outcome_lost, which blames it; the
 * others are planned again here.
 *
 * Orphans are kept here, in the scheduler's memory, until their rows are written.  A row that is
 * locked, or whose change a user's trigger refuses, is tried again later and does not delay the
 * others: no statement here waits for a lock of a row.  There may be very many, for example after a
 * restore.  They are read and written in batches, so that other work is done in between, and no
 * function here walks over all of them.
 *
 * This file starts no task.
 */
#include "postgres.h"

#include "lib/pairingheap.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/pmsignal.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/handout.h"
#include "scheduler/orphans.h"
#include "scheduler/queues.h"
#include "scheduler/work.h"
#include "shared/crash.h"
#include "shared/slots.h"
#include "shared/takers.h"
#include "task/events.h"
#include "task/outcome.h"
#include "task/rows_sql.h"

/* Retry interval for a row that is locked (ms). */
#define LOCKED_RETRY_MS 100

/*
 * If all rows of a batch are locked, the next batch waits LOCKED_SHARE times as long as it took,
 * but at most LOCKED_PAUSE_MS: they take about 1/5 of the time.
 */
#define LOCKED_SHARE 4
#define LOCKED_PAUSE_MS 1000

/* Maximum number of runs in a batch, and of those in it that are written by a statement each. */
#define BATCH_MAX 1000
#define BATCH_SINGLE_MAX 50

/*
 * A run that was rolled back, so as not to wait for a lock, is retried after as long as it has
 * lasted, within these bounds (ms): whether the lock is still held, only the next run finds out.
 */
#define YIELDED_RETRY_MS 1000
#define YIELDED_RETRY_MAX_MS 60000

/*
 * A task whose process was terminated is retried.  From this number of attempts on, it has failed
 * if that happens twice in a row: the task itself may be what terminates the process.  One that
 * asks to be run again may have any number of attempts.
 */
#define ATTEMPTS_MAX 100

/* Maximum number of rows in state WORK that are read at a time to find orphans. */
#define SEARCH_MAX 4000

/*
 * That takes at most 1/100 of the time, unless there may be more; for that, the next search waits
 * for a minute at most (ms).
 */
#define SEARCH_SHARE 100
#define SEARCH_MAX_MS 60000

typedef struct Orphan
{
	TaskPlace key; /* of the hash table: the time of the claim, and the id */
	TaskRun run;
	OrphanKind kind;
	bool interrupted; /* ORPHAN_FAILED: it has failed if the run before was interrupted, too */
	bool written;
	MonoTime not_before;
	TaskFailure *failure;	/* NULL: none */
	pairingheap_node order; /* in the heap, unless it is in the batch */
} Orphan;

/*
 * Positive if "a" is written first.  Of those that are due, the ones that were not begun come
 * first: they are written before the scheduler exits.
 */
static int
compare_orphans(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	const Orphan *left = pairingheap_const_container(Orphan, order, a);
	const Orphan *right = pairingheap_const_container(Orphan, order, b);

	if (left->not_before.us != right->not_before.us)
		return clock_is_before(left->not_before, right->not_before) ? 1 : -1;
	if (left->kind != right->kind)
		return left->kind < right->kind ? 1 : -1;
	return left->key.dt < right->key.dt ? 1 : -1;
}

/*
 * Static, because an orphan is kept until its row is written, in whichever iteration that is, and
 * because an error may interrupt a batch.
 */
static struct
{
	HTAB *all;			 /* of Orphan; NULL: none */
	pairingheap order;	 /* of those that are not being written */
	MonoTime not_before; /* no batch before this */

	bool search_wanted;	   /* search for orphans */
	MonoTime search_after; /* no search for orphans before this */
	bool full;			   /* more are due than one batch has: no search before these are written */

	/* those that are being written, in one transaction */
	Orphan *batch[BATCH_MAX];
	int count;
} orphans = {.order.ph_compare = compare_orphans};

static const TaskFailure too_often = {.sqlstate = "57P01",
									  .error = "the process of the task was terminated too often"};

/* Write it then, or as soon as possible: the row may be locked or refused, or it has yielded. */
static void
push(Orphan *orphan, MonoTime not_before)
{
	orphan->not_before = not_before;
	pairingheap_add(&orphans.order, &orphan->order);
}

/* The one that is written first; NULL: there is none. */
static Orphan *
first_orphan(void)
{
	return pairingheap_is_empty(&orphans.order)
			   ? NULL
			   : pairingheap_container(Orphan, order, pairingheap_first(&orphans.order));
}

/* Add an orphan, unless it is known.  Fails only if memory runs out. */
void
orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(Orphan)};
	TaskPlace key = {run.claimed, run.id};
	MonoTime not_before = CLOCK_LONG_AGO;
	TaskFailure *copy = NULL;
	Orphan *orphan;

	Assert((failure != NULL) == (kind == ORPHAN_FAILED || kind == ORPHAN_CRASHED));
	if (orphans.all == NULL)
		orphans.all = hash_create("pg_task orphans", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	if (hash_search(orphans.all, &key, HASH_FIND, NULL))
		return;
	if (kind == ORPHAN_INTERRUPTED && run.attempt >= ATTEMPTS_MAX)
	{
		kind = ORPHAN_FAILED;
		failure = &too_often;
	}
	if (failure)
	{
		copy = MemoryContextAlloc(TopMemoryContext, sizeof(TaskFailure));
		*copy = *failure;
	}
	orphan = hash_search(orphans.all, &key, HASH_ENTER, NULL);
	orphan->run = run;
	orphan->kind = kind;
	orphan->interrupted = failure == &too_often;
	orphan->failure = copy;
	if (kind == ORPHAN_YIELDED)
	{
		int64 lasted = (GetCurrentTimestamp() - run.claimed) / 1000;

		not_before =
			clock_plus_ms(clock_mono(), Min(Max(lasted, YIELDED_RETRY_MS), YIELDED_RETRY_MAX_MS));
	}
	push(orphan, not_before);
}

int
orphans_count(void)
{
	return orphans.all ? (int) hash_get_num_entries(orphans.all) : 0;
}

/* Remove an orphan: it is written, or its row is in another run or state. */
static void
forget_orphan(Orphan *orphan)
{
	HTAB *all = orphans.all;

	if (orphan->failure)
		pfree(orphan->failure);
	(void) hash_search(all, &orphan->key, HASH_REMOVE, NULL);
	if (hash_get_num_entries(all) > 0)
		return;
	orphans.all = NULL;
	hash_destroy(all);
}

/* The table has changed: retry all rows now, also refused ones, they may be accepted. */
void
orphans_retry(void)
{
	HASH_SEQ_STATUS seq;
	Orphan *orphan;

	Assert(orphans.count == 0);
	if (orphans.all == NULL)
		return;
	pairingheap_reset(&orphans.order);
	hash_seq_init(&seq, orphans.all);
	while ((orphan = hash_seq_search(&seq)) != NULL)
		push(orphan, CLOCK_LONG_AGO);
}

static MonoTime
orphans_due(ClockNow now pg_attribute_unused())
{
	Orphan *first = first_orphan();

	return first ? clock_max(first->not_before, orphans.not_before) : CLOCK_NEVER;
}

/*
 * Must orphans be written before the scheduler exits?  Those that were not begun, so that they wait
 * again.
 */
bool
orphans_must_write(void)
{
	Orphan *first = first_orphan();

	return first && first->kind == ORPHAN_NOT_STARTED;
}

static void
take_batch(MonoTime now)
{
	int limit = refused_limit(REFUSED_ORPHANS, BATCH_MAX);
	int singles = 0;
	Orphan *orphan;

	Assert(orphans.count == 0);
	orphans.full = false;
	while ((orphan = first_orphan()) != NULL && !clock_is_before(now, orphan->not_before))
	{
		orphans.full = orphans.count == limit || singles == BATCH_SINGLE_MAX;
		if (orphans.full)
			break;
		(void) pairingheap_remove_first(&orphans.order);
		singles += orphan->kind >= ORPHAN_FAILED;
		orphan->written = false;
		orphans.batch[orphans.count++] = orphan;
		refused_batch_add(REFUSED_ORPHANS, (TaskPlace){DT_NOBEGIN, orphan->run.id}, 1);
	}
}

/* clang-format off */

#define WORKING_ROW \
	"t.id, t.attempt, " CLAIMED("t") ", " QUEUE_NAME "," \
	" coalesce(t.sqlstate = '57P01', false), t.state = 'STOP', coalesce(t.lease, -1)," \
	" coalesce(t.pid, 0), coalesce(t.role::text, ''), coalesce(t.role_id, 0)," \
	" coalesce(" TIMEOUT_OF("t") ", -1)"

/* A run of this row has begun and not ended: as in the condition of the index on running rows. */
#define HAS_NO_END "(CASE WHEN t.start IS NULL THEN 'infinity' ELSE t.stop END) IS NULL"

static const Statement find_working = {.sql =
	"SELECT " WORKING_ROW
	"  FROM {rows} AS t"
	" WHERE (t.state = 'WORK' OR (t.state = 'STOP' AND " HAS_NO_END "))"
	"   AND t.id IS NOT NULL AND t.attempt IS NOT NULL"
	" LIMIT $limit"};

/* clang-format on */

static int
compare_working(const void *a, const void *b)
{
	return task_compare_runs(((const WorkingRow *) a)->run, ((const WorkingRow *) b)->run);
}

/* Read the rows that the last statement returned, and sort them by run. */
static int
returned_working(MemoryContext where, uint64 count, WorkingRow **rows)
{
	uint64 i;

	*rows = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(WorkingRow));
	for (i = 0; i < count; i++)
	{
		WorkingRow *row = &(*rows)[i];

		row->run.id = statement_int64(i, 1);
		row->run.attempt = statement_int32(i, 2);
		row->run.claimed = statement_time(i, 3);
		row->queue = statement_text(where, i, 4);
		row->interrupted = statement_bool(i, 5);
		row->stopped = statement_bool(i, 6);
		row->lease = statement_int32(i, 7);
		row->pid = statement_int32(i, 8);
		row->role = statement_text(where, i, 9);
		row->role_id = statement_int64(i, 10);
		row->timeout = statement_int64(i, 11);
	}
	qsort(*rows, count, sizeof(WorkingRow), compare_working);
	return (int) count;
}

/*
 * Read up to "limit" rows in state WORK, or in state STOP with a "start" and no "stop".  A row in
 * state STOP without a "start" had no run that could end, as one that was inserted so.
 */
int
orphans_working(int limit, WorkingRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;

	statement_begin(&args);
	arg_int64(&args, "limit", limit);
	count = returned_working(caller, work_execute(&find_working, &args), rows);
	statement_end();
	return count;
}

/* clang-format off */
/* The state is an argument, so that the planner does not use the index on running rows. */
static const Statement find_runs = {.sql =
	"SELECT n.*"
	"  FROM ROWS FROM (unnest($ids), unnest($attempts), unnest($claims))"
	"       AS a (id, attempt, claimed)"
	" CROSS JOIN LATERAL ("
	"       SELECT " WORKING_ROW
	"         FROM {rows} AS t"
	"        WHERE t.id = a.id AND t.attempt = a.attempt"
	"          AND " CLAIMED("t") " = a.claimed"
	"          AND (t.state = $state OR (t.state = $stopped AND t.stop IS NULL))"
	"       OFFSET 0) AS n"};
/* clang-format on */

/*
 * Find those of these runs that still have their row in state WORK, or in state STOP without an
 * end, sorted by run.
 */
static int
rows_of_runs(const TaskRun *runs, int count, WorkingRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;

	statement_begin(&args);
	arg_runs(&args, runs, count, "WORK");
	arg_text(&args, "stopped", "STOP");
	count = returned_working(caller, work_execute(&find_runs, &args), rows);
	statement_end();
	return count;
}

/*
 * Find the row of this run among the rows that orphans_working or rows_of_runs returned; or NULL.
 * Without rows the pointer may be NULL, which bsearch does not allow.
 */
static const WorkingRow *
rows_contain(const WorkingRow *rows, int count, TaskRun run)
{
	WorkingRow key = {.run = run};

	if (count == 0)
		return NULL;
	return bsearch(&key, rows, count, sizeof(WorkingRow), compare_working);
}

/* clang-format off */

/*
 * Select and lock those of the runs in three arrays whose rows are still these runs and are not
 * locked by anybody.  LATERAL keeps the planner from starting with all rows of the table, as it
 * would for a table that was empty when the plan was made.
 */
#define RUNS_NOT_LOCKED \
	"SELECT n.*" \
	"  FROM ROWS FROM (unnest($ids), unnest($attempts), unnest($claims))" \
	"       AS a (id, attempt, claimed)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT r.id, r.attempt, " CLAIMED("r") " AS claimed, r.tableoid AS oid, r.ctid AS tid" \
	"         FROM {rows} AS r" \
	"        WHERE r.id = a.id AND r.attempt = a.attempt" \
	"          AND " CLAIMED("r") " = a.claimed AND r.state = $state" \
	"          FOR NO KEY UPDATE OF r SKIP LOCKED) AS n"

/* Undo the claim of runs that never began. */
static const Statement release_runs = {.sql =
	"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
	" UPDATE {rows} AS t"
	"    SET state = 'PLAN', attempt = t.attempt - 1, start = NULL, pid = NULL"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW
	" RETURNING c.id, c.attempt, c.claimed"};

/* Plan again, due at once, the runs of a process that has exited, and record the reason. */
static const Statement replan_runs = {.sql =
	"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
	" UPDATE {rows} AS t"
	"    SET state = 'PLAN', stop = clock_timestamp(), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE ", notice = NULL"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW
	" RETURNING c.id, c.attempt, c.claimed"};

/* Write how runs have ended that a user has stopped, and whose process could not. */
static const Statement stop_runs = {.sql =
	"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
	" UPDATE {rows} AS t"
	"    SET stop = clock_timestamp(), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE ", notice = NULL"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW " AND t.stop IS NULL"
	" RETURNING c.id, c.attempt, c.claimed, t.start IS NOT NULL, coalesce(t.stop, c.claimed),"
	"           " QUEUE_NAME ", coalesce(t.role::text, '')"};
/* clang-format on */

/* Note, for the rows of the last result, that their runs were stopped. */
static void
note_stopped(uint64 count)
{
	uint64 i;

	for (i = 0; i < count; i++)
	{
		TaskEvent event = {.kind = EVENT_STOPPED,
						   .id = statement_int64(i, 1),
						   .attempt = statement_int32(i, 2),
						   .queue = statement_text(CurrentMemoryContext, i, 6),
						   .role_name = statement_text(CurrentMemoryContext, i, 7)};

		if (!statement_bool(i, 4))
			continue;
		event.elapsed = Max(statement_time(i, 5) - statement_time(i, 3), 0);
		event_note(&event);
	}
}

/*
 * End runs of one kind: why is in their rows, unless they never began.  Those count as written for
 * which that was done: the rows of the others no longer belong to these runs, or somebody has
 * locked them.
 */
static void
end_runs(OrphanKind kind, const TaskRun *runs, int count)
{
	static const struct
	{
		const Statement *statement;
		const char *state;
		Failure why;
	} ends[] = {
		[ORPHAN_NOT_STARTED] = {&release_runs, "WORK"},
		[ORPHAN_INTERRUPTED] = {&replan_runs,
								"WORK",
								{"FATAL", "the process of the task was terminated", NULL, NULL,
								 "57P01"}},
		[ORPHAN_YIELDED] = {&replan_runs,
							"WORK",
							{"ERROR", "the outcome of the task waited for a lock",
							 "All that it did was rolled back, because others needed its executor.",
							 NULL, "55P03"}},
		[ORPHAN_STOPPED] = {&stop_runs,
							"STOP",
							{"ERROR", TASK_MESSAGE_STOPPED, NULL, NULL, TASK_ERROR_STOPPED}},
	};
	StatementArgs args;
	int i;

	statement_begin(&args);
	arg_runs(&args, runs, count, ends[kind].state);
	if (kind != ORPHAN_NOT_STARTED)
		arg_failure(&args, &ends[kind].why, InvalidOid);
	count = (int) work_execute(ends[kind].statement, &args);
	for (i = 0; i < count; i++)
	{
		TaskPlace key = {statement_time(i, 3), statement_int64(i, 1)};
		Orphan *orphan = hash_search(orphans.all, &key, HASH_FIND, NULL);

		if (orphan)
			orphan->written = true;
	}
	if (kind == ORPHAN_STOPPED)
		note_stopped(count);
	statement_end();
}

/* Write all runs of one kind in the batch by one statement. */
static void
write_runs_of_kind(OrphanKind kind)
{
	TaskRun *runs = palloc((orphans.count + 1) * sizeof(TaskRun));
	int count = 0;
	int i;

	for (i = 0; i < orphans.count; i++)
		if (orphans.batch[i]->kind == kind)
			runs[count++] = orphans.batch[i]->run;
	if (count > 0)
		end_runs(kind, runs, count);
}

static bool
write_failed_run(Orphan *orphan)
{
	const TaskFailure *failure = orphan->failure;
	Failure why = {"FATAL", failure->error, NULL, NULL, failure->sqlstate};
	WorkingRow *row;
	TaskResult result = {.start = orphan->run.claimed,
						 .stop = GetCurrentTimestamp(),
						 .failure = &why,
						 .error = failure->error,
						 .sqlstate = failure->sqlstate};

	if (rows_of_runs(&orphan->run, 1, &row) == 0)
		return false;
	if (orphan->interrupted && !row->interrupted)
	{
		end_runs(ORPHAN_INTERRUPTED, &orphan->run, 1);
		return orphan->written;
	}
	if (failure->left == TASK_LEFT_DONE)
		return outcome_done_later(MyScheduler->table, orphan->run, failure->error);
	if (failure->left == TASK_LEFT_FAILED || failure->left == TASK_LEFT_TAKEN)
		why.severity = "ERROR";
	if (failure->left == TASK_LEFT_FAILED)
		why.detail = "The process of the task could not write this.";
	return outcome_failed(MyScheduler->table, orphan->run, &result,
						  &queue_rules_find(queues_rules(), row->queue)->defaults, false);
}

/* Write each failed, crashed or lost run in the batch. */
static void
write_single_runs(void)
{
	int i;

	for (i = 0; i < orphans.count; i++)
	{
		Orphan *orphan = orphans.batch[i];

		CHECK_FOR_INTERRUPTS();
		if (orphan->kind == ORPHAN_FAILED)
			orphan->written = write_failed_run(orphan);
		else if (orphan->kind == ORPHAN_LOST)
			orphan->written = outcome_lost(MyScheduler->table, orphan->run, NULL);
		else if (orphan->kind == ORPHAN_CRASHED)
		{
			orphan->written = outcome_lost(MyScheduler->table, orphan->run, orphan->failure);
			if (orphan->written)
				MyScheduler->wants_suspects = true; /* it is a suspect now */
		}
	}
}

/*
 * Find out which rows that could not be written are not in that run any more: those orphans count
 * as written.  Of others that a user has stopped the end is written next.  The rest is locked.
 */
static void
find_ended_runs(void)
{
	TaskRun *runs = palloc((orphans.count + 1) * sizeof(TaskRun));
	WorkingRow *rows;
	int count = 0;
	int i;

	for (i = 0; i < orphans.count; i++)
		if (!orphans.batch[i]->written)
			runs[count++] = orphans.batch[i]->run;
	if (count == 0)
		return;
	count = rows_of_runs(runs, count, &rows);
	for (i = 0; i < orphans.count; i++)
	{
		Orphan *orphan = orphans.batch[i];
		const WorkingRow *row = rows_contain(rows, count, orphan->run);

		orphan->written |= row == NULL;
		if (row && row->stopped)
			orphan->kind = ORPHAN_STOPPED;
	}
}

/* The batch is committed.  The rows that could not be written are locked: retry them later. */
static void
end_batch(MonoTime begun)
{
	MonoTime now = clock_mono();
	int written = 0;
	int i;

	for (i = 0; i < orphans.count; i++)
	{
		Orphan *orphan = orphans.batch[i];

		if (orphan->written)
		{
			dependents_ended(orphan->run.id);
			forget_orphan(orphan);
			written++;
		}
		else
			push(orphan, clock_plus_ms(now, LOCKED_RETRY_MS));
	}
	if (written == 0)
		orphans.not_before = clock_after_share(begun, now, LOCKED_SHARE, LOCKED_PAUSE_MS);
	orphans.count = 0;
}

/* Write the outcomes of some orphans.  The others are due at once. */
static void
write_orphans(ClockNow now pg_attribute_unused())
{
	MonoTime begun = clock_mono();
	OrphanKind kind;

	/* the next server judges by the rows */
	if (!PostmasterIsAlive())
		proc_exit(1);
	(void) work_begin_writing("writing the outcomes of interrupted tasks", true);
	take_batch(begun);
	for (kind = ORPHAN_NOT_STARTED; kind <= ORPHAN_STOPPED; kind++)
		write_runs_of_kind(kind);
	write_single_runs();
	find_ended_runs();
	work_end_batch(REFUSED_ORPHANS);
	end_batch(begun);
}

/* The transaction failed, perhaps while a batch was being written. */
static void
orphans_failed(const BatchFailure *failure)
{
	bool refuses = orphans.count == 1 && failure->row_at_fault;

	while (orphans.count > 0)
	{
		Orphan *orphan = orphans.batch[--orphans.count];

		push(orphan, refuses ? failure->retry_at : CLOCK_LONG_AGO);
	}
}

const SchedulerJob orphans_job = {.due = orphans_due,
								  .needed = orphans_due,
								  .run = write_orphans,
								  .failed = orphans_failed,
								  .writes = true};

/* Return when orphans are to be searched for next: not while there are very many. */
static MonoTime
search_until(void)
{
	return orphans.search_wanted && !orphans.full ? orphans.search_after : CLOCK_NEVER;
}

/*
 * Return the runs of this table that are in rings, running or not, or were taken.  The result is
 * their number; the array is in the current memory context.
 */
static int
list_held_runs(TaskRun **runs)
{
	int count = 0;

	*runs =
		palloc((Shared->nexecutors * SHARED_RING + Shared->takers->ntaken + 1) * sizeof(TaskRun));
	pool_foreach(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
			if (executor->ring[i % SHARED_RING].relid == MyScheduler->table->relid)
				(*runs)[count++] = executor->ring[i % SHARED_RING].run;
	}
	return count + handout_list_runs(*runs + count);
}

/*
 * The row of a run was changed: cancel the run.  An executor does not begin a task with
 * "cancelled"; if it is running already, it gets SIGINT.
 */
static void
cancel_run(PoolExecutor *executor, TaskRun run)
{
	SharedExecutor *slot = executor->slot;
	uint32 i;

	LWLockAcquire(slot->lock, LW_EXCLUSIVE);
	for (i = slot->done; slot->generation == executor->generation && i != slot->assigned; i++)
	{
		SharedTask *task = &slot->ring[i % SHARED_RING];

		if (!task_same_run(task->run, run))
			continue;
		task->cancelled = true;
		executor_slot_signal(slot, i);
	}
	LWLockRelease(slot->lock);
}

/*
 * Reconcile the rings with the table.  "rows" are those of the runs of list_held_runs that are
 * still in state WORK: from now on they count as running in their queues, if they did not before.
 * The other runs are cancelled.  Runs of another table, which had this name before, continue.
 */
static void
reconcile_rings(const WorkingRow *rows, int count)
{
	pool_foreach(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
		{
			PoolTask *task = &executor->ring[i % SHARED_RING];
			const WorkingRow *row;

			if (task->relid != MyScheduler->table->relid)
				continue;
			row = rows_contain(rows, count, task->run);
			if (row == NULL || row->stopped)
				cancel_run(executor, task->run);
			else if (task->queue == NULL)
				pool_start_counting(task, row->queue);
		}
	}
	handout_reconcile(rows, count, rows_contain);
}

/*
 * Search for rows in state WORK, or stopped and without an end, whose run nobody has.  "held" are
 * the rows of the runs that somebody has, in the order of rows_of_runs.  After a restore there may
 * be many orphans: they are read in parts, as fast as they are written.
 */
static void
search_orphans(const WorkingRow *held, int nheld)
{
	static const TaskFailure crashed = {.sqlstate = "57P02",
										.error = "the server crashed while the task ran"};
	MonoTime begun = clock_mono();
	int limit = nheld + orphans_count() + SEARCH_MAX;
	WorkingRow *rows;
	int count = orphans_working(limit, &rows);
	int i;

	for (i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (rows_contain(held, nheld, rows[i].run))
			continue;
		if (rows[i].stopped)
			orphans_add(rows[i].run, ORPHAN_STOPPED, NULL);
		else if (handout_keep(&rows[i]))
			continue;
		else if (crash_blames(MyScheduler->slot->database, rows[i].run))
			orphans_add(rows[i].run, ORPHAN_CRASHED, &crashed);
		else
			orphans_add(rows[i].run, ORPHAN_INTERRUPTED, NULL);
	}
	orphans.search_wanted = orphans.full = count == limit;
	orphans.search_after = CLOCK_LONG_AGO;
	if (!orphans.search_wanted)
		orphans.search_after = clock_after_share(begun, clock_mono(), SEARCH_SHARE, SEARCH_MAX_MS);
}

/*
 * Compare: runs whose rows were changed are cancelled, and rows that are in no ring become orphans.
 * The caller is in a transaction and acts as the owner of the table.  Each look of the scan does
 * so, the first one before anything starts.
 */
void
orphans_reconcile(void)
{
	TaskRun *held;
	int count = list_held_runs(&held);
	WorkingRow *rows = NULL;

	Assert(MyScheduler->in_transaction);
	if (count > 0)
		count = rows_of_runs(held, count, &rows);
	crash_report_used();
	reconcile_rings(rows, count);
	orphans.search_wanted = true;
	if (!clock_is_before(clock_mono(), search_until()))
		search_orphans(rows, count);
	MyScheduler->events &= ~SHARED_RECONCILE;
}

static void
reconcile_with_rows(ClockNow now pg_attribute_unused())
{
	work_begin("reconciling the running tasks");
	work_limit(WORK_SCAN_MS);
	orphans_reconcile();
	work_end();
}

static MonoTime
reconcile_due(ClockNow now pg_attribute_unused())
{
	return MyScheduler->events & SHARED_RECONCILE ? CLOCK_LONG_AGO : search_until();
}

const SchedulerJob reconcile_job = {
	.due = reconcile_due, .needed = reconcile_due, .run = reconcile_with_rows};
