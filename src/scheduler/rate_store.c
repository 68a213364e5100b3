/*
 * rate_store.c
 *		What is durable of the rates of queues: the rate table.
 *
 * The claims of a queue that has a rate, or in which tasks with a negative "max" wait, are written
 * in the transaction of each claim.  A scheduler reads all rows when it learns of the first such
 * queue.  Until then no task of it starts.  While the table cannot be used, no task of a queue with
 * a rate starts; pauses hold as long as the scheduler lives.
 *
 * This file decides nothing about starts: rates.c does.
 */
#include "postgres.h"

#include "storage/lmgr.h"

#include "scheduler/order.h"
#include "scheduler/rate_store.h"
#include "scheduler/rates.h"
#include "scheduler/work.h"
#include "task/rate_table.h"

/* Rows of which nothing is left to remember are removed at such intervals (ms). */
#define TIDY_MS 10000

/* Static, because it is that of the process. */
static struct
{
	const TaskTable *table; /* the rate table; NULL: it cannot be used, or is not asked for */
	bool prepared;			/* it was asked for */
	bool read;				/* what earlier schedulers have written was read */
	MonoTime tidy_at;		/* remove rows then */
	Reports faults;			/* that were logged */
} store;

/* Lock the rate table: it has not changed since it was prepared. */
static void
lock_table(const TaskTable *table, LOCKMODE mode)
{
	LockRelationOid(table->relid, mode);
	if (watch_changed())
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the rate table has changed")));
}

/*
 * Write the claims of the queues of which tasks are claimed.  The caller is in the transaction that
 * claims them.
 */
void
rate_store_write(const DispatchRound *round)
{
	RateRow rows[DISPATCH_MAX];
	int count = 0;
	int i;
	int j;

	for (i = 0; i < round->count; i++)
	{
		const DispatchEntry *entry = &round->entries[i];
		const QueueState *queue = entry->group->queue;

		for (j = 0; j < count && rows[j].queue != queue->name; j++)
			;
		if (entry->claim && entry->start.number > 0 && j == count)
			rows[count++] = rates_row(&queue->claims, queue->name);
	}
	/* without the table, all of them only have pauses */
	if (count == 0 || store.table == NULL)
		return;
	lock_table(store.table, RowExclusiveLock);
	rate_rows_write(store.table, rows, count, round->now);
}

/* When is the rate table to be read?  CLOCK_NEVER: it was, or no queue has a rate or pauses. */
static MonoTime
rate_store_due(ClockNow now pg_attribute_unused())
{
	return rates_count() > 0 && !store.prepared ? CLOCK_LONG_AGO : CLOCK_NEVER;
}

/* If it could not be used, a scheduler that shares its worker slot comes back for it later. */
static MonoTime
rate_store_needed(ClockNow now)
{
	return rates_count() > 0 && store.table == NULL ? clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS)
													: CLOCK_NEVER;
}

/*
 * Read what earlier schedulers have written.  Queues with a rate may start tasks from then on, if
 * the rate table can be used.
 */
static void
prepare_store(ClockNow now)
{
	const TaskTable *table = MyScheduler->table->side[SIDE_RATE];
	char *fault;
	RateRow *rows;
	int count;
	int i;

	if (table && !store.read)
	{
		work_begin("reading the rate table");
		lock_table(table, AccessShareLock);
		count = rate_rows_read(table, now, &rows);
		for (i = 0; i < count; i++)
			if (rows[i].count > 0 && strlen(rows[i].queue) <= TASK_QUEUE_MAX)
				rates_restore(&queue_find_or_add(rows[i].queue)->claims, &rows[i]);
		work_end();
		store.read = true;
	}
	if (table)
		report_end(&store.faults, false);
	else
	{
		fault = psprintf("%s is not usable. %s", MyScheduler->table->side_name[SIDE_RATE],
						 MyScheduler->table->side_fault[SIDE_RATE]);
		if (report_due(&store.faults, fault, 0))
			ereport(WARNING,
					(errmsg("tasks of queues with a rate do not start in database \"%s\", and a"
							" restart will forget the pauses of a negative \"max\"",
							MyScheduler->database),
					 errdetail_internal("%s", fault),
					 errhint("Drop or rename that relation, or let the owner of the task table "
							 "create tables in its schema.")));
	}
	store.table = table;
	store.prepared = true;
	rates_hold(table == NULL);
	order_rules_changed();
}

/* The task table was prepared again, and so was this one. */
static void
forget_table(bool another pg_attribute_unused())
{
	if (store.prepared)
		rates_hold(true);
	store.table = NULL;
	store.prepared = false;
}

/* Remove the rows of which nothing is left to remember. */
static void
tidy_rates(ClockNow now)
{
	if (store.table == NULL || clock_is_before(now.mono, store.tidy_at))
		return;
	store.tidy_at = clock_plus_ms(now.mono, TIDY_MS);
	(void) work_begin_writing("removing old claims of queues", true);
	MyScheduler->lazy = true;
	lock_table(store.table, RowExclusiveLock);
	rate_rows_remove(store.table, now.wall);
	work_end();
}

const SchedulerJob rate_store_job = {.due = rate_store_due,
									 .needed = rate_store_needed,
									 .run = prepare_store,
									 .forget_table = forget_table};

const SchedulerJob rate_tidy_job = {.run = tidy_rates, .always = true, .writes = true};
