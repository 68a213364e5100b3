/*
 * reconcile.c
 *		The rows in state WORK, compared with the runs of the executors.
 *
 * A row that is in no executor's ring is an orphan; so is one that was stopped and has no end.  A
 * run whose row is not that run any more is cancelled: only committed rows decide, so it does not
 * matter who changed the row.
 *
 * This file writes no row.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/reconcile.h"
#include "scheduler/work.h"
#include "shared/crash.h"
#include "task/rows.h"

/* Maximum number of rows in state WORK that are read at a time to find orphans. */
#define ORPHANS_MAX 4000

/*
 * That takes at most 1/100 of the time, unless there may be more; for that, the next search waits
 * for a minute at most (ms).
 */
#define ORPHANS_SHARE 100
#define ORPHANS_MAX_MS 60000

/*
 * Static, because after a restart the orphans are found in parts, in different iterations.
 */
static struct
{
	bool wanted;			/* compare, because a row in state WORK was changed */
	bool orphans_wanted;	/* search for orphans */
	MonoTime orphans_after; /* no search for orphans before this */
} reconcile;

/* A row in state WORK was changed, or nothing is known of them: compare. */
void
reconcile_want(void)
{
	reconcile.wanted = true;
}

/* Return when orphans are to be searched for next: not while there are very many. */
static MonoTime
search_until(void)
{
	if (reconcile.orphans_wanted && orphans_backlog() < ORPHANS_MAX / 4)
		return reconcile.orphans_after;
	return CLOCK_NEVER;
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
	MonoTime begun = clock_mono();
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
	reconcile.orphans_wanted = count == limit;
	reconcile.orphans_after = CLOCK_LONG_AGO;
	if (!reconcile.orphans_wanted)
		reconcile.orphans_after =
			clock_after_share(begun, clock_mono(), ORPHANS_SHARE, ORPHANS_MAX_MS);
}

/*
 * Compare: runs whose rows were changed are cancelled, and rows that are in no ring become orphans.
 * The caller is in a transaction and acts as the owner of the table.
 */
void
reconcile_rows(const TaskTable *table)
{
	TaskRun *held;
	int count = list_held_runs(table->relid, &held);
	WorkingRow *rows = NULL;

	Assert(MyScheduler->in_transaction);
	if (count > 0)
		count = rows_of_runs(table, held, count, &rows);
	crash_report_used();
	reconcile_rings(table->relid, rows, count);
	reconcile.orphans_wanted = true;
	if (!clock_is_before(clock_mono(), search_until()))
		search_orphans(table, rows, count);
	reconcile.wanted = false;
}

static void
reconcile_with_rows(ClockNow now pg_attribute_unused())
{
	work_begin("reconciling the running tasks");
	work_limit(WORK_SCAN_MS);
	reconcile_rows(MyScheduler->table);
	work_end();
}

static MonoTime
reconcile_due(ClockNow now pg_attribute_unused())
{
	return reconcile.wanted ? CLOCK_LONG_AGO : search_until();
}

static void
forget_reconciled(bool another)
{
	reconcile.wanted |= another;
}

static void
reconcile_failed(const BatchFailure *failure)
{
	reconcile.wanted |= failure->forget;
}

const SchedulerJob reconcile_job = {.due = reconcile_due,
									.needed = reconcile_due,
									.run = reconcile_with_rows,
									.forget_table = forget_reconciled,
									.failed = reconcile_failed};
