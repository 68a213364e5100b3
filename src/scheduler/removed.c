/*
 * removed.c
 *		The table of removed tasks, as the scheduler uses it: prepared with the task table, read
 *		when dependent rows are judged, and emptied when no row waits for others.
 *
 * This file decides nothing about dependent rows.
 */
#include "postgres.h"

#include "storage/lmgr.h"
#include "storage/lock.h"

#include "compat.h"
#include "scheduler/removed.h"
#include "scheduler/scheduler.h"
#include "scheduler/work.h"
#include "task/removed_table.h"
#include "task/rows.h"
#include "task/watch.h"

/* Rows that are deleted in one transaction. */
#define FORGET_MAX 4096

/* A table that cannot be used is looked at again after this (ms). */
#define RETRY_MS 60000

/* The table cannot be used: what is removed counts as DONE. */
static void
report_fault(RemovedTasks *removed, const char *fault, MonoTime now)
{
	removed->retry_at = clock_plus_ms(now, RETRY_MS);
	if (report_due(&removed->faults, fault, 0))
		ereport(WARNING,
				(errmsg("tasks that are removed in database \"%s\" count as DONE for those that"
						" wait for them",
						MyScheduler->database),
				 errdetail_internal("%s", fault),
				 errhint("Drop or rename that relation, or let the owner of the task table create"
						 " tables in its schema.")));
}

/* Is the table to be prepared, before any row is judged? */
bool
removed_due(MonoTime now)
{
	const RemovedTasks *removed = &MyScheduler->removed;

	return !removed->prepared ||
		   (removed->table == NULL && !clock_is_before(now, removed->retry_at));
}

/* Find or create the table. */
void
removed_prepare(MonoTime now)
{
	RemovedTasks *removed = &MyScheduler->removed;
	TaskTable *table;
	char *fault;

	work_begin("preparing the table of removed tasks");
	table = removed_table_prepare(MyScheduler->table, MyScheduler->context, &fault);
	work_end();
	removed->prepared = true;
	if (table == NULL)
	{
		report_fault(removed, fault, now);
		return;
	}
	report_end_all(&removed->faults);
	table_keep(table);
	removed->table = table;
}

/* The task table is prepared again, and so is this one. */
void
removed_forget_table(void)
{
	RemovedTasks *removed = &MyScheduler->removed;

	table_free(removed->table);
	removed->table = NULL;
	removed->prepared = false;
}

/* Lock the table in a transaction that writes, and return it; NULL: there is none. */
const TaskTable *
removed_lock(void)
{
	const TaskTable *table = MyScheduler->removed.table;

	if (table == NULL)
		return NULL;
	LockRelationOid(table->relid, RowExclusiveLock);
	if (watch_changed())
		ereport(ERROR,
				(errcode(ERRCODE_TABLE_CHANGED), errmsg("the table of removed tasks has changed")));
	return table;
}

/*
 * No row seems to wait for others.  If that is so, and none is being inserted, what was recorded is
 * removed, in slices, and then DELETEs record nothing any more.
 */
RemovedState
removed_settle(void)
{
	RemovedState state = REMOVED_AGAIN;
	const TaskTable *removed;
	WatchedTask *tasks;
	bool more;
	LOCKTAG tag;

	work_begin_writing("looking for tasks that wait for others");
	removed = removed_lock();
	removed_lock_tag(&tag, MyScheduler->table->relid);
	if (LockAcquire(&tag, ShareLock, false, true) != LOCKACQUIRE_NOT_AVAIL)
	{
		if (rows_watched(MyScheduler->table, PG_INT64_MIN, 1, &tasks, &more) > 0)
			state = REMOVED_NEEDED;
		else if (removed == NULL || removed_rows_forget(removed, FORGET_MAX) < FORGET_MAX)
		{
			shared_scheduler_publish_watches(MyScheduler->slot, false);
			state = REMOVED_SETTLED;
		}
	}
	work_end();
	return state;
}
