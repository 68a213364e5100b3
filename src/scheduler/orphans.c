/*
 * orphans.c
 *		Orphans: runs whose processes cannot write their outcomes.
 *
 * An executor that exits leaves tasks behind: one that was running, and others that it had not
 * begun.  They are kept here, in the scheduler's memory, until their rows are written.  A row that
 * is locked, or whose change a user's trigger refuses, is tried again later and does not delay the
 * others.
 *
 * There may be very many, for example after a restore.  They are written in batches, so that other
 * work is done in between, and no function here walks over all of them.
 *
 * This file starts no task.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/isolation.h"
#include "scheduler/orphans.h"
#include "scheduler/queue_rules.h"
#include "scheduler/refused.h"
#include "scheduler/work.h"
#include "task/failure.h"
#include "task/outcome.h"

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

typedef struct Orphan
{
	TaskRun run; /* key of the hash table */
	OrphanKind kind;
	bool interrupted; /* ORPHAN_FAILED: it has failed if the run before was interrupted, too */
	bool written;
	MonoTime not_before;
	TaskFailure *failure; /* NULL: none */
	union
	{
		pairingheap_node heap; /* in "waiting" */
		dlist_node list;	   /* in "ready" or "refused"; or it is in the batch */
	} node;
} Orphan;

/*
 * Static, because an orphan is kept until its row is written, in whichever iteration that is, and
 * because an error may interrupt a batch.
 */
static struct
{
	HTAB *all;			  /* of Orphan; NULL: none, and what follows is not initialized */
	dlist_head ready;	  /* to be written as soon as possible */
	pairingheap *waiting; /* not before "not_before": the row is locked, or the run has yielded */
	dlist_head refused;	  /* likewise, in the order of their refusals */
	int nready;
	int not_started;	  /* number of orphans of this kind */
	MonoTime not_before;  /* no batch before this */
	bool suspect_planned; /* and no scan was requested that finds it: others will follow */

	/* those that are being written, in one transaction */
	Orphan *batch[BATCH_MAX];
	int count;
} orphans;

static const Failure interrupted = {"FATAL", "the process of the task was terminated", NULL, NULL,
									"57P01"};
static const Failure yielded = {
	"ERROR", "the outcome of the task waited for a lock",
	"All that it did was rolled back, because others needed its executor.", NULL, "55P03"};
static const Failure stopped = {"ERROR", TASK_MESSAGE_STOPPED, NULL, NULL, TASK_ERROR_STOPPED};
static const TaskFailure too_often = {.sqlstate = "57P01",
									  .error = "the process of the task was terminated too often"};

static uint32
hash_run(const void *key, Size size pg_attribute_unused())
{
	const TaskRun *run = key;

	return hash_combine(
		murmurhash32((uint32) run->id),
		murmurhash32((uint32) (run->id >> 32) ^ (uint32) run->claimed ^ run->attempt));
}

/* The runs may have padding.  0: they are the same. */
static int
match_runs(const void *a, const void *b, Size size pg_attribute_unused())
{
	return task_compare_runs(*(const TaskRun *) a, *(const TaskRun *) b);
}

static int
compare_waiting(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	MonoTime left = pairingheap_const_container(Orphan, node.heap, a)->not_before;
	MonoTime right = pairingheap_const_container(Orphan, node.heap, b)->not_before;

	/* the first one is the greatest */
	return clock_is_before(left, right) ? 1 : clock_is_before(right, left) ? -1 : 0;
}

static void
prepare(void)
{
	HASHCTL ctl = {.keysize = sizeof(TaskRun),
				   .entrysize = sizeof(Orphan),
				   .hash = hash_run,
				   .match = match_runs};

	if (orphans.all)
		return;
	if (orphans.waiting == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		orphans.waiting = pairingheap_allocate(compare_waiting, NULL);
		MemoryContextSwitchTo(old);
	}
	dlist_init(&orphans.ready);
	dlist_init(&orphans.refused);
	orphans.all =
		hash_create("pg_task orphans", 64, &ctl, HASH_ELEM | HASH_FUNCTION | HASH_COMPARE);
}

/* Those that were not begun are first: they are written before the scheduler exits. */
static void
push_ready(Orphan *orphan)
{
	if (orphan->kind == ORPHAN_NOT_STARTED)
		dlist_push_head(&orphans.ready, &orphan->node.list);
	else
		dlist_push_tail(&orphans.ready, &orphan->node.list);
	orphans.nready++;
}

/* Write it after this time (ms). */
static void
push_waiting(Orphan *orphan, MonoTime now, int64 ms)
{
	orphan->not_before = clock_plus_ms(now, ms);
	pairingheap_add(orphans.waiting, &orphan->node.heap);
}

static Orphan *
first_waiting(void)
{
	return pairingheap_is_empty(orphans.waiting)
			   ? NULL
			   : pairingheap_container(Orphan, node.heap, pairingheap_first(orphans.waiting));
}

/* Add an orphan, unless it is known.  Fails only if memory runs out. */
void
orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure)
{
	TaskFailure *copy = NULL;
	Orphan *orphan;
	bool found;

	Assert((failure != NULL) == (kind == ORPHAN_FAILED || kind == ORPHAN_CRASHED));
	prepare();
	if (orphans_has(run))
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
	orphan = hash_search(orphans.all, &run, HASH_ENTER, &found);
	orphan->kind = kind;
	orphan->interrupted = failure == &too_often;
	orphan->failure = copy;
	orphans.not_started += kind == ORPHAN_NOT_STARTED;
	if (kind == ORPHAN_YIELDED)
		push_waiting(orphan, clock_mono(),
					 Min(Max((GetCurrentTimestamp() - run.claimed) / 1000, YIELDED_RETRY_MS),
						 YIELDED_RETRY_MAX_MS));
	else
		push_ready(orphan);
}

bool
orphans_has(TaskRun run)
{
	return orphans.all && hash_search(orphans.all, &run, HASH_FIND, NULL) != NULL;
}

/* Return the number of orphans; orphans_backlog: of those that can be written at once. */
int
orphans_count(void)
{
	return orphans.all ? (int) hash_get_num_entries(orphans.all) : 0;
}

int
orphans_backlog(void)
{
	return orphans.nready;
}

/* Remove an orphan: it is written, or its row is in another run or state. */
static void
forget_orphan(Orphan *orphan)
{
	HTAB *all = orphans.all;

	if (orphan->failure)
		pfree(orphan->failure);
	orphans.not_started -= orphan->kind == ORPHAN_NOT_STARTED;
	(void) hash_search(all, &orphan->run, HASH_REMOVE, NULL);
	if (hash_get_num_entries(all) > 0)
		return;
	orphans.all = NULL;
	hash_destroy(all);
}

/* Is there an orphan whose row was refused, and that waits for a later attempt? */
bool
orphans_refused(void)
{
	return orphans.all && !dlist_is_empty(&orphans.refused);
}

/* The table has changed: retry the refused rows now, they may be accepted. */
void
orphans_retry_refused(void)
{
	while (orphans_refused())
		push_ready(dlist_container(Orphan, node.list, dlist_pop_head_node(&orphans.refused)));
}

static MonoTime
orphans_due(ClockNow now pg_attribute_unused())
{
	MonoTime due = CLOCK_NEVER;

	if (orphans.all == NULL)
		return CLOCK_NEVER;
	if (orphans.nready > 0)
		due = CLOCK_LONG_AGO;
	if (orphans_refused())
		due = clock_min(due, dlist_head_element(Orphan, node.list, &orphans.refused)->not_before);
	if (first_waiting())
		due = clock_min(due, first_waiting()->not_before);
	return clock_max(due, orphans.not_before);
}

/*
 * Must orphans be written before the scheduler exits?  Those that were not begun, so that they wait
 * again.
 */
bool
orphans_must_write(void)
{
	return orphans.not_started > 0;
}

/* Those whose time has come are ready. */
static void
end_waits(MonoTime now)
{
	Orphan *orphan;

	while ((orphan = first_waiting()) != NULL && !clock_is_before(now, orphan->not_before))
	{
		(void) pairingheap_remove_first(orphans.waiting);
		push_ready(orphan);
	}
	while (
		orphans_refused() &&
		!clock_is_before(now, dlist_head_element(Orphan, node.list, &orphans.refused)->not_before))
		push_ready(dlist_container(Orphan, node.list, dlist_pop_head_node(&orphans.refused)));
}

/* Take the next batch, to be written in one transaction. */
static void
take_batch(void)
{
	int limit = refused_limit(REFUSED_ORPHANS, BATCH_MAX);
	int singles = 0;

	Assert(orphans.count == 0);
	while (orphans.nready > 0 && orphans.count < limit && singles < BATCH_SINGLE_MAX)
	{
		Orphan *orphan = dlist_container(Orphan, node.list, dlist_pop_head_node(&orphans.ready));

		orphans.nready--;
		singles += orphan->kind == ORPHAN_FAILED || orphan->kind == ORPHAN_CRASHED;
		orphan->written = false;
		orphans.batch[orphans.count++] = orphan;
		refused_batch_add(REFUSED_ORPHANS, (TaskPlace){DT_NOBEGIN, orphan->run.id}, 1);
	}
}

static int
compare_runs(const void *a, const void *b)
{
	return task_compare_runs(*(const TaskRun *) a, *(const TaskRun *) b);
}

/* Write all runs of one kind in the batch by one statement. */
static void
write_runs_of_kind(const TaskTable *table, OrphanKind kind, RunsEnd end, const Failure *why)
{
	TaskRun *runs = palloc((orphans.count + 1) * sizeof(TaskRun));
	TaskRun *done;
	int count = 0;
	int i;

	for (i = 0; i < orphans.count; i++)
		if (orphans.batch[i]->kind == kind)
			runs[count++] = orphans.batch[i]->run;
	if (count == 0)
		return;
	count = rows_end_runs(table, end, runs, count, why, &done);
	qsort(done, count, sizeof(TaskRun), compare_runs);
	for (i = 0; i < orphans.count; i++)
	{
		Orphan *orphan = orphans.batch[i];

		if (orphan->kind == kind)
			orphan->written =
				bsearch(&orphan->run, done, count, sizeof(TaskRun), compare_runs) != NULL;
	}
}

static bool
write_failed_run(const TaskTable *table, const Orphan *orphan)
{
	const TaskFailure *failure = orphan->failure;
	Failure why = {"FATAL", failure->error, NULL, NULL, failure->sqlstate};
	WorkingRow *row;
	TaskRun *done;
	TaskResult result = {.start = orphan->run.claimed,
						 .stop = GetCurrentTimestamp(),
						 .failure = &why,
						 .error = failure->error,
						 .sqlstate = failure->sqlstate};

	if (rows_of_runs(table, &orphan->run, 1, &row) == 0)
		return false;
	if (orphan->interrupted && !row->interrupted)
		return rows_end_runs(table, RUNS_REPLAN, &orphan->run, 1, &interrupted, &done) > 0;
	if (failure->left == TASK_LEFT_DONE)
		return outcome_done_later(table, orphan->run, failure->error);
	if (failure->left == TASK_LEFT_FAILED)
	{
		why.severity = "ERROR";
		why.detail = "The process of the task could not write this.";
	}
	return outcome_failed(table, orphan->run, &result, &queue_rules_find(row->queue)->defaults,
						  false);
}

/* Write each failed or crashed run in the batch.  Returns true if one of them is a suspect now. */
static bool
write_single_runs(const TaskTable *table)
{
	bool suspect = false;
	int i;

	for (i = 0; i < orphans.count; i++)
	{
		Orphan *orphan = orphans.batch[i];

		CHECK_FOR_INTERRUPTS();
		if (orphan->kind == ORPHAN_FAILED)
			orphan->written = write_failed_run(table, orphan);
		else if (orphan->kind == ORPHAN_CRASHED)
			suspect |= orphan->written = outcome_crashed(table, orphan->run, orphan->failure);
	}
	return suspect;
}

/*
 * Find out which rows that could not be written are not in that run any more: those orphans count
 * as written.  Of others that a user has stopped the end is written next.  The rest is locked.
 */
static void
find_ended_runs(const TaskTable *table)
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
	count = rows_of_runs(table, runs, count, &rows);
	for (i = 0; i < orphans.count; i++)
	{
		Orphan *orphan = orphans.batch[i];
		const WorkingRow *row = rows_contain(rows, count, orphan->run);

		orphan->written |= row == NULL;
		if (row == NULL || !row->stopped)
			continue;
		orphans.not_started -= orphan->kind == ORPHAN_NOT_STARTED;
		orphan->kind = ORPHAN_STOPPED;
	}
}

/*
 * Write a batch.  Returns true if a scan is needed that finds new suspects: when the last one is
 * planned.
 */
static bool
write_batch(const TaskTable *table)
{
	bool planned = orphans.suspect_planned;

	write_runs_of_kind(table, ORPHAN_NOT_STARTED, RUNS_RELEASE, NULL);
	write_runs_of_kind(table, ORPHAN_INTERRUPTED, RUNS_REPLAN, &interrupted);
	write_runs_of_kind(table, ORPHAN_YIELDED, RUNS_REPLAN, &yielded);
	write_runs_of_kind(table, ORPHAN_STOPPED, RUNS_STOP, &stopped);
	planned |= write_single_runs(table);
	find_ended_runs(table);
	orphans.suspect_planned = planned && orphans.nready > 0;
	return planned && !orphans.suspect_planned;
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
			push_waiting(orphan, now, LOCKED_RETRY_MS);
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

	/* the next server judges by the rows */
	if (!PostmasterIsAlive())
		proc_exit(1);
	work_begin_writing("writing the outcomes of interrupted tasks");
	end_waits(begun);
	take_batch();
	if (write_batch(MyScheduler->table))
		isolation_want();
	work_end();
	refused_batch_written(REFUSED_ORPHANS);
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

		orphan->not_before = failure->retry_at;
		if (refuses)
			dlist_push_tail(&orphans.refused, &orphan->node.list);
		else
		{
			dlist_push_head(&orphans.ready, &orphan->node.list);
			orphans.nready++;
		}
	}
}

const SchedulerJob orphans_job = {.due = orphans_due,
								  .needed = orphans_due,
								  .run = write_orphans,
								  .failed = orphans_failed,
								  .writes = true};
