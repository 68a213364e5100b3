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
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/isolation.h"
#include "scheduler/name_hash.h"
#include "scheduler/orphans.h"
#include "scheduler/queue_rules.h"
#include "scheduler/refused.h"
#include "scheduler/work.h"
#include "task/failure.h"
#include "task/outcome.h"

/* Retry interval for a row that is locked (ms). */
#define LOCKED_RETRY_MS 100

/*
 * If all rows of a batch are locked, the next such batch waits LOCKED_SHARE times as long as it
 * took: they take at most 1/5 of the time.
 */
#define LOCKED_SHARE 4

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

/* The list in which an orphan waits.  A batch is made from one list; the lists take turns. */
typedef enum OrphanList
{
	LIST_NOT_STARTED, /* written by one statement */
	LIST_INTERRUPTED, /* written by one statement */
	LIST_SINGLE,	  /* written by a statement each, in one transaction */
	LIST_ALONE,		  /* each written in a transaction of its own */
	LIST_YIELDED,	  /* written by one statement, not before "not_before", ordered by it */
	LIST_LOCKED,	  /* not before "not_before", ordered by it */
	LIST_REFUSED,	  /* not before "not_before", in the order of their refusals */
	LISTS
} OrphanList;

typedef struct Orphan
{
	TaskRun run;
	OrphanKind kind;
	bool interrupted; /* ORPHAN_FAILED: it has failed if the run before was interrupted, too */
	bool alone;		  /* a transaction that wrote it with others has failed */
	bool written;
	MonoTime not_before;
	TaskFailure *failure; /* NULL: none */
	dlist_node node;	  /* in its list, unless it is in the batch */
} Orphan;

typedef struct OrphanEntry
{
	TaskRun run;
	uint32 hash;
	char status;
	Orphan *orphan;
} OrphanEntry;

static uint32
hash_run(TaskRun run)
{
	return hash_combine(murmurhash32((uint32) run.id),
						murmurhash32((uint32) (run.id >> 32) ^ (uint32) run.claimed ^ run.attempt));
}

#define SH_PREFIX orphantable
#define SH_ELEMENT_TYPE OrphanEntry
#define SH_KEY_TYPE TaskRun
#define SH_KEY run
#define SH_HASH_KEY(tb, key) hash_run(key)
#define SH_EQUAL(tb, a, b) task_same_run(a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* The orphans that are being written, in one transaction; they are in no list. */
typedef struct OrphanBatch
{
	Orphan *orphans[BATCH_MAX];
	int count;
	MonoTime begun;
} OrphanBatch;

/*
 * Static, because an orphan is kept until its row is written, in whichever iteration that is, and
 * because an error may interrupt a batch.
 */
static struct
{
	MemoryContext context;
	orphantable_hash *all; /* NULL: none, and the lists are not initialized */
	dlist_head lists[LISTS];
	int counts[LISTS];
	OrphanList last_list;		/* the list from which the last batch was made */
	MonoTime locked_not_before; /* no batch of locked rows before this */
	bool suspect_planned;		/* and no scan was requested that finds it: others will follow */
	OrphanBatch batch;
} orphans = {.last_list = LISTS - 1};

static const Failure interrupted = {"FATAL", "the process of the task was terminated", NULL, NULL,
									"57P01"};
static const Failure yielded = {
	"ERROR", "the outcome of the task waited for a lock",
	"All that it did was rolled back, because others needed its executor.", NULL, "55P03"};
static const TaskFailure too_often = {.sqlstate = "57P01",
									  .error = "the process of the task was terminated too often"};

static void
prepare_lists(void)
{
	int i;

	if (orphans.all)
		return;
	if (orphans.context == NULL)
		orphans.context =
			AllocSetContextCreate(TopMemoryContext, "pg_task orphans", ALLOCSET_DEFAULT_SIZES);
	for (i = 0; i < LISTS; i++)
		dlist_init(&orphans.lists[i]);
	orphans.all = orphantable_create(orphans.context, 64, NULL);
}

static void
push_orphan(Orphan *orphan, OrphanList list)
{
	dlist_push_tail(&orphans.lists[list], &orphan->node);
	orphans.counts[list]++;
}

/* Put an orphan into the list of those that are written after a pause. */
static void
push_yielded_orphan(Orphan *orphan)
{
	dlist_head *list = &orphans.lists[LIST_YIELDED];
	dlist_node *before = list->head.prev;
	int64 lasted = (GetCurrentTimestamp() - orphan->run.claimed) / 1000;

	lasted = Min(Max(lasted, YIELDED_RETRY_MS), YIELDED_RETRY_MAX_MS);
	orphan->not_before = clock_plus_ms(clock_mono(), (int) lasted);
	while (before != &list->head &&
		   clock_is_before(orphan->not_before, dlist_container(Orphan, node, before)->not_before))
		before = before->prev;
	dlist_insert_after(before, &orphan->node);
	orphans.counts[LIST_YIELDED]++;
}

/* Put an orphan into the list for its kind, to be written as soon as possible. */
static void
push_ready_orphan(Orphan *orphan)
{
	if (orphan->alone)
		push_orphan(orphan, LIST_ALONE);
	else if (orphan->kind == ORPHAN_NOT_STARTED)
		push_orphan(orphan, LIST_NOT_STARTED);
	else if (orphan->kind == ORPHAN_INTERRUPTED || orphan->kind == ORPHAN_STOPPED)
		push_orphan(orphan, LIST_INTERRUPTED);
	else if (orphan->kind == ORPHAN_YIELDED)
		push_yielded_orphan(orphan);
	else
		push_orphan(orphan, LIST_SINGLE);
}

static Orphan *
pop_orphan(OrphanList list)
{
	Orphan *orphan = dlist_container(Orphan, node, dlist_pop_head_node(&orphans.lists[list]));

	orphans.counts[list]--;
	return orphan;
}

static Orphan *
first_orphan(OrphanList list)
{
	return orphans.counts[list] > 0 ? dlist_head_element(Orphan, node, &orphans.lists[list]) : NULL;
}

DEFINE_HASH_INSERT(insert_orphan, orphantable, OrphanEntry, TaskRun)

/* Add an orphan, unless it is known.  Fails only if memory runs out. */
void
orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure)
{
	OrphanEntry *entry;
	Orphan *orphan;

	Assert((failure != NULL) == (kind == ORPHAN_FAILED || kind == ORPHAN_CRASHED));
	prepare_lists();
	if (kind == ORPHAN_INTERRUPTED && run.attempt >= ATTEMPTS_MAX)
	{
		kind = ORPHAN_FAILED;
		failure = &too_often;
	}
	if (orphantable_lookup(orphans.all, run))
		return;
	orphan = MemoryContextAllocZero(orphans.context, sizeof(Orphan));
	orphan->run = run;
	orphan->kind = kind;
	orphan->interrupted = failure == &too_often;
	if (failure)
	{
		orphan->failure = MemoryContextAlloc(orphans.context, sizeof(TaskFailure));
		*orphan->failure = *failure;
	}
	entry = insert_orphan(orphans.all, run);
	entry->orphan = orphan;
	push_ready_orphan(orphan);
}

bool
orphans_has(TaskRun run)
{
	return orphans.all && orphantable_lookup(orphans.all, run);
}

/* Return the number of orphans; orphans_backlog: of those that can be written at once. */
int
orphans_count(void)
{
	return orphans.all ? (int) orphans.all->members : 0;
}

int
orphans_backlog(void)
{
	return orphans.counts[LIST_NOT_STARTED] + orphans.counts[LIST_INTERRUPTED] +
		   orphans.counts[LIST_SINGLE] + orphans.counts[LIST_ALONE];
}

/* Remove an orphan: it is written, or its row is in another run or state. */
static void
forget_orphan(Orphan *orphan)
{
	orphantable_delete(orphans.all, orphan->run);
	if (orphan->failure)
		pfree(orphan->failure);
	pfree(orphan);
	if (orphans.all->members > 0)
		return;
	orphans.all = NULL;
	MemoryContextReset(orphans.context);
}

/* Is there an orphan whose row was refused, and that waits for a later attempt? */
bool
orphans_refused(void)
{
	return orphans.counts[LIST_REFUSED] > 0;
}

/* The table has changed: retry the refused rows now, they may be accepted. */
void
orphans_retry_refused(void)
{
	while (orphans.counts[LIST_REFUSED] > 0)
	{
		Orphan *orphan = pop_orphan(LIST_REFUSED);

		orphan->not_before = CLOCK_LONG_AGO;
		push_ready_orphan(orphan);
	}
}

/* Return when a batch can be made from a list. */
static MonoTime
list_ready_at(OrphanList list)
{
	const Orphan *orphan = first_orphan(list);

	if (orphan == NULL)
		return CLOCK_NEVER;
	if (list == LIST_LOCKED)
		return clock_max(orphan->not_before, orphans.locked_not_before);
	return orphan->not_before;
}

static MonoTime
orphans_due(ClockNow now pg_attribute_unused())
{
	MonoTime until = CLOCK_NEVER;
	int i;

	for (i = 0; i < LISTS; i++)
		until = clock_min(until, list_ready_at(i));
	return until;
}

/*
 * Must orphans be written before the scheduler exits?  Those that were not begun, so that they wait
 * again.
 */
bool
orphans_must_write(void)
{
	return orphans.counts[LIST_NOT_STARTED] > 0;
}

/*
 * Make a batch, to be written in one transaction: one orphan, or all that may be written together.
 */
static void
fill_batch(OrphanBatch *batch, OrphanList list, MonoTime now)
{
	int singles = 0;

	while (batch->count < BATCH_MAX && singles < BATCH_SINGLE_MAX)
	{
		Orphan *orphan = first_orphan(list);

		if (orphan == NULL || clock_is_before(now, orphan->not_before) ||
			(orphan->alone && batch->count > 0))
			break;
		singles += orphan->kind == ORPHAN_FAILED || orphan->kind == ORPHAN_CRASHED;
		orphan->written = false;
		batch->orphans[batch->count++] = pop_orphan(list);
		if (orphan->alone)
			break;
	}
}

/* Make a batch from the next list that has something to write: the lists take turns. */
static OrphanBatch *
make_batch(MonoTime now)
{
	OrphanBatch *batch = &orphans.batch;
	int i;

	Assert(batch->count == 0);
	batch->begun = now;
	for (i = 1; i <= LISTS; i++)
	{
		OrphanList list = (orphans.last_list + i) % LISTS;

		if (clock_is_before(now, list_ready_at(list)))
			continue;
		orphans.last_list = list;
		fill_batch(batch, list, now);
		break;
	}
	return batch;
}

static int
compare_runs(const void *a, const void *b)
{
	return task_compare_runs(*(const TaskRun *) a, *(const TaskRun *) b);
}

/* Write all runs of one kind in the batch by one statement.  "why" they are planned again, or NULL.
 */
static void
write_runs_of_kind(const TaskTable *table, OrphanBatch *batch, OrphanKind kind, const Failure *why)
{
	TaskRun *runs = palloc((batch->count + 1) * sizeof(TaskRun));
	TaskRun *done;
	int count = 0;
	int i;

	for (i = 0; i < batch->count; i++)
		if (batch->orphans[i]->kind == kind)
			runs[count++] = batch->orphans[i]->run;
	if (count == 0)
		return;
	if (kind == ORPHAN_STOPPED)
		count = rows_stop(table, runs, count, &done);
	else if (why)
		count = rows_replan(table, runs, count, why, &done);
	else
		count = rows_release(table, runs, count, &done);
	qsort(done, count, sizeof(TaskRun), compare_runs);
	for (i = 0; i < batch->count; i++)
	{
		Orphan *orphan = batch->orphans[i];

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
		return rows_replan(table, &orphan->run, 1, &interrupted, &done) > 0;
	if (failure->left == TASK_LEFT_DONE)
		return outcome_done_later(table, orphan->run, failure->error);
	if (failure->left == TASK_LEFT_FAILED)
	{
		why.severity = "ERROR";
		why.detail = "The process of the task could not write this.";
	}
	return outcome_failed(table, orphan->run, &result,
						  queue_rules_defaults(queue_rules_find(row->queue)), false);
}

/* Write each failed or crashed run in the batch.  Returns true if one of them is a suspect now. */
static bool
write_single_runs(const TaskTable *table, OrphanBatch *batch)
{
	bool suspect = false;
	int i;

	for (i = 0; i < batch->count; i++)
	{
		Orphan *orphan = batch->orphans[i];

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
find_ended_runs(const TaskTable *table, OrphanBatch *batch)
{
	TaskRun *runs = palloc((batch->count + 1) * sizeof(TaskRun));
	WorkingRow *rows;
	int count = 0;
	int i;

	for (i = 0; i < batch->count; i++)
		if (!batch->orphans[i]->written)
			runs[count++] = batch->orphans[i]->run;
	if (count == 0)
		return;
	count = rows_of_runs(table, runs, count, &rows);
	for (i = 0; i < batch->count; i++)
	{
		Orphan *orphan = batch->orphans[i];
		const WorkingRow *row = rows_contain(rows, count, orphan->run);

		orphan->written |= row == NULL;
		if (row && row->stopped)
			orphan->kind = ORPHAN_STOPPED;
	}
}

/*
 * Write a batch.  Returns true if a scan is needed that finds new suspects: when the last one is
 * planned.
 */
static bool
write_batch(const TaskTable *table, OrphanBatch *batch)
{
	bool planned = orphans.suspect_planned;

	write_runs_of_kind(table, batch, ORPHAN_NOT_STARTED, NULL);
	write_runs_of_kind(table, batch, ORPHAN_INTERRUPTED, &interrupted);
	write_runs_of_kind(table, batch, ORPHAN_YIELDED, &yielded);
	write_runs_of_kind(table, batch, ORPHAN_STOPPED, NULL);
	planned |= write_single_runs(table, batch);
	find_ended_runs(table, batch);
	orphans.suspect_planned = planned && orphans.counts[LIST_SINGLE] > 0;
	return planned && !orphans.suspect_planned;
}

/* The batch is committed.  The rows that could not be written are locked: retry them later. */
static void
end_batch(OrphanBatch *batch, MonoTime now)
{
	int written = 0;
	int i;

	for (i = 0; i < batch->count; i++)
	{
		Orphan *orphan = batch->orphans[i];

		if (orphan->written)
		{
			dependents_ended(orphan->run.id);
			forget_orphan(orphan);
			written++;
			continue;
		}
		orphan->not_before = clock_plus_ms(now, LOCKED_RETRY_MS);
		push_orphan(orphan, LIST_LOCKED);
	}
	if (written == 0 && batch->count > 0)
		orphans.locked_not_before.us = now.us + (now.us - batch->begun.us) * LOCKED_SHARE;
	batch->count = 0;
}

/* Write the outcomes of some orphans.  The others are due at once. */
static void
write_orphans(ClockNow now pg_attribute_unused())
{
	OrphanBatch *batch;

	/* the next server judges by the rows */
	if (!PostmasterIsAlive())
		proc_exit(1);
	work_begin_writing("writing the outcomes of interrupted tasks");
	batch = make_batch(clock_mono());
	if (write_batch(MyScheduler->table, batch))
		isolation_want();
	work_end();
	end_batch(batch, clock_mono());
}

/* Return the number of runs in the batch that is being written, and the id of the first one. */
int
orphans_batch_rows(int64 *id)
{
	if (orphans.batch.count > 0)
		*id = orphans.batch.orphans[0]->run.id;
	return orphans.batch.count;
}

/*
 * The transaction failed, perhaps while a batch was being written.  Returns true if orphans should
 * be tried at once.
 */
static bool
orphans_failed(const BatchFailure *failure)
{
	OrphanBatch *batch = &orphans.batch;
	BatchRetry retry = refused_next_try(failure, batch->count);
	int i;

	for (i = 0; i < batch->count; i++)
	{
		Orphan *orphan = batch->orphans[i];

		orphan->alone |= retry != RETRY_TOGETHER;
		orphan->not_before = retry == RETRY_LATER ? failure->retry_at : CLOCK_LONG_AGO;
		if (retry == RETRY_LATER)
			push_orphan(orphan, LIST_REFUSED);
		else
			push_ready_orphan(orphan);
	}
	batch->count = 0;
	return retry != RETRY_TOGETHER;
}

const SchedulerJob orphans_job = {.due = orphans_due,
								  .needed = orphans_due,
								  .run = write_orphans,
								  .failed = orphans_failed,
								  .writes = true};
