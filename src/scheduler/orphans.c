/*
 * orphans.c
 *		Runs whose processes cannot write what became of them.
 *
 * An executor that goes leaves tasks behind: one that was running, others that
 * it had not begun.  They are kept here, in the scheduler's memory, until their rows say
 * so.  A row that somebody has locked, or that a trigger of the user's refuses to
 * have changed, is tried again later and keeps none of the others waiting.
 *
 * There may be many, after a restore for instance.  They are written a batch at a time,
 * so that other work goes on in between, and nothing here walks over all of them.
 *
 * This file starts nothing, and opens no transaction.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/orphans.h"
#include "task/outcome.h"

/* A row that somebody has locked is tried again so much later. */
#define LOCKED_MS 100

/* While all rows of a batch are locked, such batches take at most 1/5 of the time. */
#define LOCKED_SHARE 4

/* At most so many runs are in a batch, and so many of those that are written one by one. */
#define BATCH_MAX 1000
#define BATCH_SINGLE_MAX 50

/*
 * A task whose process is terminated runs again, but not for ever: it may be
 * the task that terminates it.
 */
#define ATTEMPTS_MAX 100

/* Where a run waits; one batch is made of one list, and the lists take turns. */
typedef enum LostList
{
	LIST_NOT_STARTED, /* written by one statement */
	LIST_INTERRUPTED, /* likewise */
	LIST_SINGLE,	  /* written one by one, in one transaction */
	LIST_ALONE,		  /* to be written in a transaction of its own */
	LIST_LOCKED,	  /* not before a time, in the order of these */
	LIST_REFUSED,	  /* likewise */
	LISTS
} LostList;

typedef struct Orphan
{
	TaskRun run;
	OrphanKind kind;
	LostList list;
	bool alone; /* an error came when it was written with others */
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

/* What is being written. */
static Orphan *batch[BATCH_MAX];
static int batch_count = 0;
static LostList last_list = LISTS - 1; /* that a batch was made of */
static MonoTime batch_begun = {0};
static MonoTime locked_not_before = {0}; /* the next batch of locked rows */

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

/* Into the list of those that can be written at once. */
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

/* A run is not where it was.  Must not fail but for want of memory. */
void
orphans_add(TaskRun run, OrphanKind kind, const TaskFailure *failure)
{
	bool found;
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
	entry = losts_insert(all, run, &found);
	entry->lost = lost;
	push_ready(lost);
}

bool
orphans_has(TaskRun run)
{
	return all && losts_lookup(all, run);
}

/* How many there are, and how many of them can be written at once. */
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

/* This one is written, or is that run no more. */
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

/* Is a run left alone for a while because its row cannot be written? */
bool
orphans_refused(void)
{
	return counts[LIST_REFUSED] > 0;
}

/* The table has changed, perhaps for the better: try these now. */
void
orphans_retry_refused(void)
{
	while (counts[LIST_REFUSED] > 0)
		push_ready(pop(LIST_REFUSED));
}

/* When a batch can be made of a list. */
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

/* When there is next something to be written; CLOCK_NEVER if there is nothing. */
MonoTime
orphans_until(void)
{
	MonoTime until = CLOCK_NEVER;
	int i;

	for (i = 0; i < LISTS; i++)
		until = clock_min(until, list_until(i));
	return until;
}

/* Is there anything to be written now? */
bool
orphans_ready(MonoTime now)
{
	return !clock_is_before(now, orphans_until());
}

/* Runs that were never begun are to be given back before the scheduler goes. */
bool
orphans_must_write(void)
{
	return counts[LIST_NOT_STARTED] > 0;
}

/* Choose what is written in one transaction: one run, or all that may go together. */
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

/* The lists take turns. */
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

/* Write all runs of one kind that are in the batch by one statement. */
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

/* What could not be written is locked, or it is that run no more: then it is done with, too. */
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
 * In a transaction, as the owner of the table: write what became of one run, or of
 * many.  Then orphans_written has to be called after the commit, or orphans_write_failed
 * after an error.  True when a task has to be run in isolation from the others from now on, and no
 * more of these are known.
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

/* What was written is committed.  What was not is locked. */
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
 * An error came instead, if anything was being written.  If it is the fault of a row, each
 * is tried alone, and the one that is at fault is left alone for a while.  True when the
 * others should be tried at once.
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
