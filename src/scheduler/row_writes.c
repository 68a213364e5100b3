/*
 * row_writes.c
 *		The rows that the scheduler writes besides claims: orphans, tasks that are not started
 *		or have expired, bindings, tasks that run when the server starts.
 *
 * Each kind is one batch in a transaction of its own, which may wait for locks or be refused.  So
 * these transactions come last in an iteration, and the claims of other tasks do not wait for them.
 *
 * This file decides nothing about the rows: the files that it calls do.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "utils/timestamp.h"

#include "scheduler/binding.h"
#include "scheduler/dependents.h"
#include "scheduler/history.h"
#include "scheduler/orphans.h"
#include "scheduler/rate_store.h"
#include "scheduler/reboot.h"
#include "scheduler/refused.h"
#include "scheduler/row_writes.h"
#include "scheduler/scheduler.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "task/outcome.h"
#include "task/rows.h"

/* Maximum number of tasks that are set to GONE in one transaction. */
#define EXPIRE_MAX 1000

/* Write the outcomes of orphans: one batch.  More are written in later iterations. */
void
row_writes_orphans(void)
{
	MonoTime now = clock_mono();

	if (!orphans_ready(now))
		return;
	/* the next server judges by the rows */
	if (!PostmasterIsAlive())
		proc_exit(1);
	work_begin_writing("writing the outcomes of interrupted tasks");
	if (orphans_write(MyScheduler->table, now))
		isolation_want();
	work_end();
	orphans_written(clock_mono());
	if (orphans_ready(now))
		SetLatch(MyLatch);
}

/* Read tasks that have expired and are not refused, as a batch.  Returns their number. */
static int
read_expired_tasks(ClockNow now, int limit, Candidate **expired)
{
	TaskPlace *places;
	int found = rows_expired(MyScheduler->table, now.wall, EXPIRE_MAX + refused_count(), &places);
	int count = 0;
	int i;

	*expired = palloc0(found * sizeof(Candidate) + 1);
	for (i = 0; i < found && count < limit; i++)
	{
		if (refused_has(places[i], now.mono))
			continue;
		refused_batch_add(REFUSED_UNSTARTED, places[i]);
		(*expired)[count++].place = places[i];
	}
	return count;
}

/* Set to GONE the tasks that have expired. */
static void
expire_tasks(ClockNow now)
{
	const TaskTable *table = MyScheduler->table;
	int limit = refused_singly(REFUSED_UNSTARTED) ? 1 : EXPIRE_MAX;
	Candidate *expired;
	RowKey *rows;
	double keep = -1;
	int written = 0;
	int count;
	int i;

	work_begin_writing("expiring tasks");
	count = read_expired_tasks(now, limit, &expired);
	if (count > 0)
		written = rows_expire(table, now.wall, expired, count, &rows, &keep);
	history_hint(keep, now.mono);
	for (i = 0; i < written; i++)
	{
		outcome_expired(table, rows[i], now.wall);
		dependents_ended(rows[i].id);
	}
	MyScheduler->next_expiry = rows_next_expiry(table, DT_NOBEGIN);
	if (MyScheduler->next_expiry <= now.wall && written < limit)
	{
		/* the others are locked or refused: the next look finds them again */
		MyScheduler->next_expiry = rows_next_expiry(table, now.wall);
		MyScheduler->row_missed |= refused_count() == 0;
	}
	work_end();
	refused_batch_written(REFUSED_UNSTARTED);
}

/* Write the rows of tasks that will not be started. */
static void
write_unstarted(ClockNow now)
{
	if (!unstarted_any())
		return;
	work_begin_writing("writing tasks that are not started");
	unstarted_write(MyScheduler->table, now.wall);
	work_end();
	refused_batch_written(REFUSED_UNSTARTED);
	unstarted_written();
	if (unstarted_any())
		SetLatch(MyLatch);
}

/* Bind waiting rows to their roles, or fail those whose role was dropped. */
static void
write_bindings(ClockNow now)
{
	work_begin_writing("binding tasks to roles");
	if (binding_write(MyScheduler->table, now.mono))
		SetLatch(MyLatch);
	work_end();
	refused_batch_written(REFUSED_BINDING);
}

/*
 * Write rows other than claims.  These transactions may wait for locks or be refused, so they come
 * last, and not at all for a while after such a wait.
 */
void
row_writes_run(ClockNow now)
{
	if (clock_is_before(now.mono, MyScheduler->no_writing_until))
		return;
	row_writes_orphans();
	write_unstarted(now);
	if (now.wall >= MyScheduler->next_expiry)
		expire_tasks(now);
	if (binding_due())
		write_bindings(now);
	if (reboot_due(now.mono))
		reboot_run(now);
	if (history_due(now.mono))
		history_run(now);
	rate_store_tidy(now.mono);
}

/* Return when a row is to be written next, if no write has waited for a lock in vain. */
MonoTime
row_writes_until(ClockNow now)
{
	if (unstarted_any() || binding_due())
		return now.mono;
	return clock_min(clock_of_wall(now, MyScheduler->next_expiry),
					 clock_min(orphans_until(), reboot_until()));
}
