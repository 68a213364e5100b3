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
 * This file starts no task, and opens no transaction.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/hash_insert.h"
#include "scheduler/orphans.h"
#include "task/outcome.h"

/* Retry interval for a row that is locked (ms). */
#define LOCKED_MS 100

/*
 * If all rows of a batch are locked, the next such batch waits LOCKED_SHARE times as long as it
 * took: they take at most 1/5 of the time.
 */
#define LOCKED_SHARE 4

/* Maximum number of runs in a batch, and of those in it that are written by a statement each. */
#define BATCH_MAX 1000
#define BATCH_SINGLE_MAX 50

/*
 * A task whose process was terminated is retried, up to this number of attempts: the task itself
 * may be what terminates the process.
 */
#define ATTEMPTS_MAX 100

/* The list in which an orphan waits.  A batch is made from one list; the lists take turns. */
typedef enum LostList
{
	LIST_NOT_STARTED, /* written by one statement */
	LIST_INTERRUPTED, /* written by one statement */
	LIST_SINGLE,	  /* written by a statement each, in one transaction */
	LIST_ALONE,		  /* each written in a transaction of its own */
	LIST_LOCKED,	  /* not before "not_before", ordered by it */
	LIST_REFUSED,	  /* not before "not_before", in the order of their refusals */
	LISTS
} LostList;

typedef struct Orphan
{
	TaskRun run;
	OrphanKind kind;
	LostList list;
	bool alone; /* a transaction that wrote it with others has failed */
	bool written;
	MonoTime not_before;
	TaskFailure *failure; /* NULL: none */
	dlist_node node;	  /* in its list, unless it is in the batch */
} Orphan;

typedef struct LostEntry
{
	TaskRun run;
	uint32 hash;
	char status;
	Orphan *lost;
} LostEntry;

static uint32
hash_run(TaskRun run)
{
	return hash_combine(murmurhash32((uint32) run.id),
						murmurhash32((uint32) (run.id >> 32) ^ (uint32) run.claimed ^ run.attempt));
}

#define SH_PREFIX losts
#define SH_ELEMENT_TYPE LostEntry
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

static MemoryContext context = NULL;
static losts_hash *all = NULL; /* NULL: none */
static dlist_head lists[LISTS];
static int counts[LISTS];

/* The batch that is being written. */
static Orphan *batch[BATCH_MAX];
static int batch_count = 0;
static LostList last_list = LISTS - 1; /* from which the last batch was made */
static MonoTime batch_begun = {0};
static MonoTime locked_not_before = {0}; /* no batch of locked rows before this */

static const TaskFailure interrupted = {.sqlstate = "57P01",
										.error = "the process of the task was terminated"};
static const TaskFailure too_often = {.sqlstate = "57P01",
									  .error = "the process of the task was terminated too often"};

static void
prepare_memory(void)
{
	int i;

	if (all)
		return;
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "pg_task rescue", ALLOCSET_DEFAULT_SIZES);
	for (i = 0; i < LISTS; i++)
		dlist_init(&lists[i]);
	all = losts_create(context, 64, NULL);
}

static void
push(Orphan *lost, LostList list)
{
	lost->list = list;
	dlist_push_tail(&lists[list], &lost->node);
	counts[list]++;
}

/* Put an orphan into the list for its kind, to be written as soon as possible. */
static void
push_ready(Orphan *lost)
{
	if (lost->alone)
		push(lost, LIST_ALONE);
	else if (lost->kind == ORPHAN_NOT_STARTED)
		push(lost, LIST_NOT_STARTED);
	else if (lost->kind == ORPHAN_INTERRUPTED)
		push(lost, LIST_INTERRUPTED);
	else
		push(lost, LIST_SINGLE);
}

static Orphan *
pop(LostList list)
{
	Orphan *lost = dlist_container(Orphan, node, dlist_pop_head_node(&lists[list]));

	counts[list]--;
	return lost;
}

static Orphan *
first(LostList list)
{
	return counts[list] > 0 ? dlist_head_element(Orphan, node, &lists[list]) : NULL;
}

DEFINE_HASH_INSERT(insert_run, losts, LostEntry, TaskRun)

/* Add an orphan, unless it is known.  Fails only if memory runs out. */
void
orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure)
{
	LostEntry *entry;
	Orphan *lost;

	prepare_memory();
	if (kind == ORPHAN_INTERRUPTED && run.attempt >= ATTEMPTS_MAX)
	{
		kind = ORPHAN_FAILED;
		failure = &too_often;
	}
	if (losts_lookup(all, run))
		return;
	lost = MemoryContextAllocZero(context, sizeof(Orphan));
	lost->run = run;
	lost->kind = kind;
	if (failure)
	{
		lost->failure = MemoryContextAlloc(context, sizeof(TaskFailure));
		*lost->failure = *failure;
	}
	entry = insert_run(all, run);
	entry->lost = lost;
	push_ready(lost);
}

bool
orphans_has(TaskRun run)
{
	return all && losts_lookup(all, run);
}

/* Return the number of orphans; orphans_backlog: of those that can be written at once. */
int
orphans_count(void)
{
	return all ? (int) all->members : 0;
}

int
orphans_backlog(void)
{
	return counts[LIST_NOT_STARTED] + counts[LIST_INTERRUPTED] + counts[LIST_SINGLE] +
		   counts[LIST_ALONE];
}

/* Remove an orphan: it is written, or its row is in another run or state. */
static void
forget(Orphan *lost)
{
	losts_delete(all, lost->run);
	if (lost->failure)
		pfree(lost->failure);
	pfree(lost);
	if (all->members > 0)
		return;
	all = NULL;
	MemoryContextReset(context);
}

/* Is there an orphan whose row was refused, and that waits for a later attempt? */
bool
orphans_refused(void)
{
	return counts[LIST_REFUSED] > 0;
}

/* The table has changed: retry the refused rows now, they may be accepted. */
void
orphans_retry_refused(void)
{
	while (counts[LIST_REFUSED] > 0)
	{
		Orphan *orphan = pop(LIST_REFUSED);

		orphan->not_before = CLOCK_LONG_AGO;
		push_ready(orphan);
	}
}

/* Return when a batch can be made from a list. */
static MonoTime
list_until(LostList list)
{
	const Orphan *lost = first(list);

	if (lost == NULL)
		return CLOCK_NEVER;
	if (list == LIST_LOCKED)
		return clock_max(lost->not_before, locked_not_before);
	return lost->not_before;
}

/* Return when there is something to write next; CLOCK_NEVER if there are no orphans. */
MonoTime
orphans_until(void)
{
	MonoTime until = CLOCK_NEVER;
	int i;

	for (i = 0; i < LISTS; i++)
		until = clock_min(until, list_until(i));
	return until;
}

/* Is there anything to write now? */
bool
orphans_ready(MonoTime now)
{
	return !clock_is_before(now, orphans_until());
}

/*
 * Must orphans be written before the scheduler exits?  Those that were not begun, so that they wait
 * again.
 */
bool
orphans_must_write(void)
{
	return counts[LIST_NOT_STARTED] > 0;
}

/*
 * Make a batch, to be written in one transaction: one orphan, or all that may be written together.
 */
static void
choose_batch(LostList list, MonoTime now)
{
	int singles = 0;

	batch_count = 0;
	while (batch_count < BATCH_MAX && singles < BATCH_SINGLE_MAX)
	{
		const Orphan *lost = first(list);

		if (lost == NULL || clock_is_before(now, lost->not_before) ||
			(lost->alone && batch_count > 0))
			break;
		singles += lost->kind == ORPHAN_FAILED || lost->kind == ORPHAN_CRASHED;
		batch[batch_count] = pop(list);
		batch[batch_count++]->written = false;
		if (lost->alone)
			break;
	}
}

/* Make a batch from the next list that has something to write: the lists take turns. */
static void
choose_next(MonoTime now)
{
	int i;

	batch_begun = now;
	for (i = 1; i <= LISTS; i++)
	{
		LostList list = (last_list + i) % LISTS;

		if (clock_is_before(now, list_until(list)))
			continue;
		last_list = list;
		choose_batch(list, now);
		return;
	}
}

static int
compare_runs(const void *a, const void *b)
{
	return task_compare_runs(*(const TaskRun *) a, *(const TaskRun *) b);
}

/* Write all runs of one kind in the batch by one statement. */
static void
write_together(const TaskTable *table, OrphanKind kind)
{
	TaskRun *runs = palloc((batch_count + 1) * sizeof(TaskRun));
	TaskRun *done;
	int count = 0;
	int i;

	for (i = 0; i < batch_count; i++)
		if (batch[i]->kind == kind)
			runs[count++] = batch[i]->run;
	if (count == 0)
		return;
	if (kind == ORPHAN_NOT_STARTED)
		count = rows_release(table, runs, count, &done);
	else
		count = rows_replan(table, runs, count, &interrupted, &done);
	qsort(done, count, sizeof(TaskRun), compare_runs);
	for (i = 0; i < batch_count; i++)
		if (batch[i]->kind == kind)
			batch[i]->written =
				bsearch(&batch[i]->run, done, count, sizeof(TaskRun), compare_runs) != NULL;
}

static bool
write_failed(const TaskTable *table, const Orphan *lost)
{
	TaskResult result = {.start = lost->run.claimed,
						 .stop = GetCurrentTimestamp(),
						 .error = lost->failure->error,
						 .sqlstate = lost->failure->sqlstate};

	result.response =
		lost->failure->unwritten
			? psprintf("ERROR:  %s\nDETAIL:  The process of the task could not write this.",
					   lost->failure->error)
			: psprintf("FATAL:  %s", lost->failure->error);
	return outcome_failed(table, lost->run, &result, false);
}

/*
 * Find out which rows that could not be written are not in that run any more: those orphans count
 * as written.  The other rows are locked.
 */
static void
find_gone(const TaskTable *table)
{
	TaskRun *runs = palloc((batch_count + 1) * sizeof(TaskRun));
	WorkingRow *rows;
	int count = 0;
	int i;

	for (i = 0; i < batch_count; i++)
		if (!batch[i]->written)
			runs[count++] = batch[i]->run;
	if (count == 0)
		return;
	count = rows_of_runs(table, runs, count, &rows);
	for (i = 0; i < batch_count; i++)
		batch[i]->written |= !rows_contain(rows, count, batch[i]->run);
}

/*
 * Write the outcome of one orphan, or of many.  The caller is in a transaction and acts as the
 * owner of the table.  It calls orphans_written after the commit, or orphans_write_failed after an
 * error.  Returns true if a task is to run isolated from now on, and no more such orphans are
 * known.
 */
bool
orphans_write(const TaskTable *table, MonoTime now)
{
	static bool crashed = false;
	bool isolated = crashed;
	int i;

	choose_next(now);
	write_together(table, ORPHAN_NOT_STARTED);
	write_together(table, ORPHAN_INTERRUPTED);
	for (i = 0; i < batch_count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (batch[i]->kind == ORPHAN_FAILED)
			batch[i]->written = write_failed(table, batch[i]);
		else if (batch[i]->kind == ORPHAN_CRASHED)
			isolated |= batch[i]->written =
				outcome_crashed(table, batch[i]->run, batch[i]->failure);
	}
	find_gone(table);
	crashed = isolated && counts[LIST_SINGLE] > 0;
	return isolated && !crashed;
}

/* The batch is committed.  The rows that could not be written are locked: retry them later. */
void
orphans_written(MonoTime now)
{
	int written = 0;
	int i;

	for (i = 0; i < batch_count; i++)
	{
		if (batch[i]->written)
		{
			forget(batch[i]);
			written++;
			continue;
		}
		batch[i]->not_before = clock_plus_ms(now, LOCKED_MS);
		push(batch[i], LIST_LOCKED);
	}
	if (written == 0 && batch_count > 0)
		locked_not_before.us = now.us + (now.us - batch_begun.us) * LOCKED_SHARE;
	batch_count = 0;
}

/*
 * The transaction failed, perhaps while a batch was being written.  If a row is at fault, each is
 * retried in a transaction of its own; if the batch was a single row, that row is retried after
 * pause_ms.  Returns true if the others should be tried at once.
 */
bool
orphans_write_failed(MonoTime now, bool row_at_fault, int pause_ms)
{
	bool retry = row_at_fault && batch_count > 0;
	int count = batch_count;
	int i;

	batch_count = 0;
	for (i = 0; i < count; i++)
	{
		batch[i]->alone |= row_at_fault;
		batch[i]->not_before = CLOCK_LONG_AGO;
		if (row_at_fault && count == 1)
		{
			batch[i]->not_before = clock_plus_ms(now, pause_ms);
			push(batch[i], LIST_REFUSED);
		}
		else
			push_ready(batch[i]);
	}
	return retry;
}
