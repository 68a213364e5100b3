/*
 * rescue.c
 *		Runs whose processes cannot write what became of them.
 *
 * An executor that goes leaves tasks behind: one that was running, others that
 * it had not begun.  They are kept here, in the scheduler's memory, until their rows say
 * so.  A row that somebody has locked, or that a trigger of the user's refuses to
 * have changed, is tried again later and keeps none of the others waiting.
 *
 * This room starts nothing, and opens no transaction.
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "outcome.h"
#include "rescue.h"

/* A row that somebody has locked is tried again so much later. */
#define LOCKED_MS 100

/* At most so many runs are written by one statement. */
#define PORTION 1000

/*
 * A task whose process is terminated runs again, but not for ever: it may be
 * the task that terminates it.
 */
#define ATTEMPTS_MAX 100

typedef struct Lost
{
	TaskRun run;
	RescueKind kind;
	TaskFailure failure;
	TimestampTz not_before;
	bool alone;	  /* to be written in a transaction of its own */
	bool refused; /* that is not possible just now */
	bool chosen;  /* is being written ... */
	bool written; /* ... and was found */
} Lost;

static List *all = NIL;

static const TaskFailure interrupted = {.sqlstate = "57P01",
										.error = "the process of the task was terminated"};
static const TaskFailure too_often = {.sqlstate = "57P01",
									  .error = "the process of the task was terminated too often"};

/* A run is not where it was.  Must not fail but for want of memory. */
void
rescue_add(TaskRun run, RescueKind kind, const TaskFailure *failure)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Lost *lost = palloc0(sizeof(Lost));

	if (kind == RESCUE_INTERRUPTED && run.attempt >= ATTEMPTS_MAX)
	{
		kind = RESCUE_FAILED;
		failure = &too_often;
	}
	lost->run = run;
	lost->kind = kind;
	lost->alone = kind == RESCUE_FAILED || kind == RESCUE_CRASHED;
	if (failure)
		lost->failure = *failure;
	all = lappend(all, lost);
	MemoryContextSwitchTo(old);
}

bool
rescue_has(TaskRun run)
{
	ListCell *cell;

	foreach(cell, all)
		if (task_same_run(((Lost *) lfirst(cell))->run, run))
			return true;
	return false;
}

/* Forget the runs that are not among these rows, which are in the order of their runs. */
void
rescue_retain(const QueueWork *rows, int count)
{
	ListCell *cell;

	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		if (queue_works(rows, count, lost->run))
			continue;
		all = foreach_delete_current(all, cell);
		pfree(lost);
	}
}

/* Is a run left alone for a while because its row cannot be written? */
bool
rescue_refused(void)
{
	ListCell *cell;

	foreach(cell, all)
		if (((Lost *) lfirst(cell))->refused)
			return true;
	return false;
}

/* The table has changed, perhaps for the better: try these now. */
void
rescue_again(void)
{
	ListCell *cell;

	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		if (lost->refused)
			lost->not_before = 0;
		lost->refused = false;
	}
}

/* Is there anything to be written now? */
bool
rescue_due(TimestampTz now)
{
	ListCell *cell;

	foreach(cell, all)
		if (((Lost *) lfirst(cell))->not_before <= now)
			return true;
	return false;
}

/* When there is next something to be written; DT_NOEND if there is nothing. */
TimestampTz
rescue_until(void)
{
	TimestampTz until = DT_NOEND;
	ListCell *cell;

	foreach(cell, all)
		until = Min(until, ((Lost *) lfirst(cell))->not_before);
	return until;
}

/* Choose what is written in one transaction: one run, or all that may go together. */
static int
choose(TimestampTz now)
{
	int count = 0;
	bool alone = false;
	ListCell *cell;

	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		lost->chosen =
			lost->not_before <= now && !alone && count < PORTION && (count == 0 || !lost->alone);
		lost->written = false;
		count += lost->chosen;
		alone |= lost->chosen && lost->alone;
	}
	return count;
}

/* Write all runs of one kind that were chosen by one statement. */
static void
write_together(const TaskTable *table, RescueKind kind, int count)
{
	TaskRun *runs = palloc(count * sizeof(TaskRun));
	TaskRun *done;
	int found;
	ListCell *cell;
	int i;

	count = 0;
	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		if (lost->chosen && lost->kind == kind)
			runs[count++] = lost->run;
	}
	if (count == 0)
		return;
	if (kind == RESCUE_NOT_STARTED)
		found = queue_release(table, runs, count, &done);
	else
		found = queue_replan(table, runs, count, &interrupted, &done);
	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		for (i = 0; i < found && lost->chosen && !lost->written; i++)
			lost->written = task_same_run(done[i], lost->run);
	}
}

static bool
write_failed(const TaskTable *table, const Lost *lost)
{
	TaskResult result = {.start = lost->run.claimed,
						 .stop = GetCurrentTimestamp(),
						 .error = lost->failure.error,
						 .sqlstate = lost->failure.sqlstate};

	result.response =
		lost->failure.unwritten
			? psprintf("ERROR:  %s\nDETAIL:  The process of the task could not write this.",
					   lost->failure.error)
			: psprintf("FATAL:  %s", lost->failure.error);
	return outcome_failed(table, lost->run, &result, false);
}

/*
 * In a transaction, as the owner of the table: write what became of one run, or of
 * many.  Then rescue_written has to be called after the commit, or rescue_not_written
 * after an error.  True when a task has to be run apart from the others from now on.
 */
bool
rescue_write(const TaskTable *table, TimestampTz now)
{
	int count = choose(now);
	bool apart = false;
	ListCell *cell;

	write_together(table, RESCUE_NOT_STARTED, count);
	write_together(table, RESCUE_INTERRUPTED, count);
	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		if (lost->chosen && lost->kind == RESCUE_FAILED)
			lost->written = write_failed(table, lost);
		else if (lost->chosen && lost->kind == RESCUE_CRASHED)
			apart |= lost->written = outcome_crashed(table, lost->run, &lost->failure);
	}
	return apart;
}

/*
 * What was written is committed.  What was not found is locked, or not that run any
 * more: true when there was such a run, to find out which.
 */
bool
rescue_written(TimestampTz now)
{
	bool missing = false;
	ListCell *cell;

	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		if (lost->chosen && lost->written)
		{
			all = foreach_delete_current(all, cell);
			pfree(lost);
			continue;
		}
		if (lost->chosen)
		{
			lost->not_before = TimestampTzPlusMilliseconds(now, LOCKED_MS);
			missing = true;
		}
		lost->chosen = false;
	}
	return missing;
}

/*
 * An error came instead, if anything was being written.  If it is the fault of a row, each
 * is tried alone, and the one that is at fault is left alone for a while.  True when the
 * others should be tried at once.
 */
bool
rescue_not_written(TimestampTz now, bool row_at_fault, int pause_ms)
{
	int count = 0;
	ListCell *cell;

	foreach(cell, all)
		count += ((Lost *) lfirst(cell))->chosen;
	foreach(cell, all)
	{
		Lost *lost = lfirst(cell);

		if (lost->chosen && row_at_fault && count > 1)
			lost->alone = true;
		else if (lost->chosen && row_at_fault)
		{
			lost->refused = true;
			lost->not_before = TimestampTzPlusMilliseconds(now, pause_ms);
		}
		lost->chosen = false;
	}
	return row_at_fault && count > 0;
}
