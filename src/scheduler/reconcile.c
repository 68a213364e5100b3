/*
 * reconcile.c
 *		The rows in state WORK, compared with the runs of the executors.
 *
 * A row that is in no executor's ring is an orphan; so is one that was stopped and has no end.  A
 * run whose row is not that run any more is cancelled: only committed rows decide, so it does not
 * matter who changed the row.
 *
 * The caller opens the transaction.  This file writes no row.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/reconcile.h"
#include "scheduler/scheduler.h"
#include "shared/crash.h"
#include "task/rows.h"

/* Maximum number of rows in state WORK that are read at a time to find orphans. */
#define ORPHANS_MAX 4000

/*
 * That takes at most 1/100 of the time, unless there may be more; for that, the next search waits
 * for a minute at most (us).
 */
#define ORPHANS_SHARE 100
#define ORPHANS_MAX_US 60000000

/* A row in state WORK was changed, or nothing is known of them: compare. */
void
reconcile_want(void)
{
	MyScheduler->reconcile.wanted = true;
}

/* Is a search for orphans due, as soon as it may begin, and is there memory for more of them? */
static bool
may_search_orphans(void)
{
	return MyScheduler->reconcile.orphans_wanted && orphans_backlog() < ORPHANS_MAX / 4;
}

bool
reconcile_due(MonoTime now)
{
	return MyScheduler->reconcile.wanted || !clock_is_before(now, reconcile_until());
}

/* Return when orphans are to be searched for next; CLOCK_NEVER if they are not. */
MonoTime
reconcile_until(void)
{
	return may_search_orphans() ? MyScheduler->reconcile.orphans_after : CLOCK_NEVER;
}

/*
 * Return the runs of this table that are in rings, running or not.  The result is their number; the
 * array is in the current memory context.
 */
static int
list_held_runs(Oid relid, TaskRun **runs)
{
	int count = 0;

	*runs = palloc((Shared->nexecutors * SHARED_RING + 1) * sizeof(TaskRun));
	pool_foreach(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
			if (executor->ring[i % SHARED_RING].relid == relid)
				(*runs)[count++] = executor->ring[i % SHARED_RING].run;
	}
	return count;
}

/*
 * The row of a run was changed: cancel the run.  An executor does not begin a task with
 * "cancelled"; if it is running already, it gets SIGINT.  The flag tells the executor that the
 * signal is for this task and no other.  The release of a slot changes "proc" under the slot's
 * lock, too, so the signal cannot reach another process.
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
		if (i + 1 == slot->taken && slot->proc != SHARED_NO_PROC)
		{
			slot->cancel_sent = true;
			(void) kill(slot->pid, SIGINT);
		}
	}
	LWLockRelease(slot->lock);
}

/*
 * Reconcile the rings with the table.  "rows" are those of the runs of list_held_runs that are
 * still in state WORK: from now on they count as running in their queues, if they did not before.
 * The other runs are cancelled.  Runs of another table, which had this name before, continue.
 */
static void
reconcile_rings(Oid relid, const WorkingRow *rows, int count)
{
	pool_foreach(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
		{
			PoolTask *task = &executor->ring[i % SHARED_RING];
			const WorkingRow *row;

			if (task->relid != relid)
				continue;
			row = rows_contain(rows, count, task->run);
			if (row == NULL || row->stopped)
				cancel_run(executor, task->run);
			else if (task->queue == NULL)
				pool_start_counting(task, row->queue);
		}
	}
}

/* No executor has the run of this row: add it to the orphans. */
static void
add_orphan(const WorkingRow *row)
{
	TaskRun run = row->run;
	static const TaskFailure crashed = {.sqlstate = "57P02",
										.error = "the server crashed while the task ran"};

	if (row->stopped)
		orphans_add(run, ORPHAN_STOPPED, NULL);
	else if (crash_blames(MyScheduler->slot->database, run))
		orphans_add(run, ORPHAN_CRASHED, &crashed);
	else
		orphans_add(run, ORPHAN_INTERRUPTED, NULL);
}

/*
 * Search for rows in state WORK, or stopped and without an end, that are in no ring.  "held" are
 * the rows of the runs in rings, in the order of rows_of_runs.  After a restore there may be many
 * orphans: they are read in parts, as fast as they are written.
 */
static void
search_orphans(const TaskTable *table, const WorkingRow *held, int nheld)
{
	ReconcileState *state = &MyScheduler->reconcile;
	MonoTime begun = clock_mono();
	MonoTime ended;
	int limit = nheld + orphans_count() + ORPHANS_MAX;
	WorkingRow *rows;
	int count = rows_working(table, limit, &rows);
	int i;

	for (i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!rows_contain(held, nheld, rows[i].run) && !orphans_has(rows[i].run))
			add_orphan(&rows[i]);
	}
	ended = clock_mono();
	state->orphans_wanted = count == limit;
	state->orphans_after = CLOCK_LONG_AGO;
	if (!state->orphans_wanted)
		state->orphans_after.us =
			ended.us + Min((ended.us - begun.us) * ORPHANS_SHARE, ORPHANS_MAX_US);
}

/*
 * Compare: runs whose rows were changed are cancelled, and rows that are in no ring become orphans.
 * The caller is in a transaction and acts as the owner of the table.
 */
void
reconcile_rows(const TaskTable *table)
{
	ReconcileState *state = &MyScheduler->reconcile;
	TaskRun *held;
	int count = list_held_runs(table->relid, &held);
	WorkingRow *rows = NULL;

	Assert(MyScheduler->in_transaction);
	if (count > 0)
		count = rows_of_runs(table, held, count, &rows);
	crash_report_used();
	reconcile_rings(table->relid, rows, count);
	state->orphans_wanted = true;
	if (!clock_is_before(clock_mono(), reconcile_until()))
		search_orphans(table, rows, count);
	state->wanted = false;
}
