/*
 * rate_store.c
 *		What is durable of the rates of queues: the rate table.
 *
 * The starts that a claim adds are written in its transaction, in queues that have a rate or in
 * which tasks with a negative "max" wait.  A scheduler reads all rows when it learns of the first
 * such queue.  Until then no task of it starts.  While the table cannot be used, no task of a queue
 * with a rate starts; pauses hold as long as the scheduler lives.
 *
 * This file decides nothing about starts: rate.c does.
 */
#include "postgres.h"

#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "scheduler/groups.h"
#include "scheduler/queue_rules.h"
#include "scheduler/rate_store.h"
#include "scheduler/rates.h"
#include "scheduler/scheduler.h"
#include "scheduler/work.h"
#include "task/rate_table.h"
#include "task/watch.h"

/* Rows that one statement reads, writes or removes, and rates that one look for idle ones sees. */
#define BATCH_MAX 1000

/* Interval between two looks for rates with nothing left to remember (ms). */
#define TIDY_MS 1000

/* A table that cannot be used is looked at again after this time (ms). */
#define RETRY_MS 60000

/* Batches that are written before the scheduler exits. */
#define FLUSH_MAX 16

/* Lock the rate table, to write it: it has not changed since it was prepared. */
static void
lock_table(void)
{
	LockRelationOid(MyScheduler->rates.table->relid, RowExclusiveLock);
	if (watch_changed())
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the rate table has changed")));
}

/* Make the row of a rate, in the current memory context. */
static RateRow
make_row(const QueueRate *rate, ClockNow now)
{
	MonoTime idle_at = rates_idle_at(rate);
	StringInfoData image;

	initStringInfo(&image);
	rates_write(rate, now, &image);
	return (RateRow){.queue = rate->queue->name,
					 .image = image.data,
					 .length = image.len,
					 .until = idle_at.us == CLOCK_NEVER.us ? DT_NOEND
														   : now.wall + (idle_at.us - now.mono.us)};
}

/* Write these rates, at most BATCH_MAX. */
static void
write_rates(QueueRate *const *chosen, int count, ClockNow now)
{
	RateRow *rows = palloc(count * sizeof(RateRow));
	int i;

	for (i = 0; i < count; i++)
	{
		rows[i] = make_row(chosen[i], now);
		/* if this fails, what was chosen is released, and the row is stale again */
		chosen[i]->stored = true;
		chosen[i]->stale = false;
	}
	rate_rows_write(MyScheduler->rates.table, rows, count);
}

/* Return the rate of an entry's queue, if its start has to be durable; NULL otherwise. */
static QueueRate *
rate_of_entry(const DispatchEntry *entry)
{
	const QueueState *queue = entry->group->queue;

	return entry->rated || queue->pause.longest > 0 ? queue->rate : NULL;
}

/*
 * Write the rates of the queues of which tasks were chosen.  The caller is in the transaction of
 * the claim.
 */
void
rate_store_write_chosen(const DispatchRound *round)
{
	QueueRate *chosen[DISPATCH_MAX];
	int count = 0;
	int i;

	for (i = 0; i < round->count; i++)
	{
		QueueRate *rate = rate_of_entry(&round->entries[i]);

		if (rate == NULL || rate->listed)
			continue;
		rate->listed = rate->stale = true;
		chosen[count++] = rate;
	}
	for (i = 0; i < count; i++)
		chosen[i]->listed = false;
	/* without the table, all of them only have pauses */
	if (count == 0 || MyScheduler->rates.table == NULL)
		return;
	lock_table();
	write_rates(chosen, count, round->now);
}

/* Restore the rates of some rows.  Those with nothing left to remember are removed. */
static void
restore_rates(TaskTable *table, const RateRow *rows, int count, ClockNow now)
{
	RateRow *over = palloc(count * sizeof(RateRow));
	int nover = 0;
	int i;

	for (i = 0; i < count; i++)
	{
		bool valid = strlen(rows[i].queue) <= TASK_QUEUE_MAX && rows[i].until > now.wall;

		/* only the owner of the table may have added more */
		if (valid && rates_are_full())
			continue;
		if (valid)
		{
			QueueState *queue = queue_find_or_add(rows[i].queue);

			valid = (queue->rate && queue->rate->stored) ||
					rates_restore(queue, rows[i].image, rows[i].length, now);
		}
		if (!valid)
			over[nover++] = rows[i];
	}
	if (nover > 0)
		rate_rows_remove(table, over, nover);
}

/*
 * Read what earlier schedulers have written.  There are as many rows as queues with late starts.
 * The last row of a batch is the first of the next, and is then known.
 */
static void
read_all(TaskTable *table, ClockNow now)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext batch =
		AllocSetContextCreate(caller, "pg_task rate rows", ALLOCSET_DEFAULT_SIZES);
	char *last = "";
	RateRow *rows;
	int count;

	do
	{
		MemoryContextSwitchTo(batch);
		count = rate_rows_read(table, last, BATCH_MAX, &rows);
		restore_rates(table, rows, count, now);
		MemoryContextSwitchTo(caller);
		if (count > 0)
			last = pstrdup(rows[count - 1].queue);
		MemoryContextReset(batch);
	} while (count == BATCH_MAX);
	MemoryContextDelete(batch);
}

/* When is the rate table to be prepared?  CLOCK_NEVER: it is, or no queue has a rate or pauses. */
static MonoTime
rate_store_due(ClockNow now pg_attribute_unused())
{
	bool needed = queue_rules_have_rate() || rates_count() > 0;

	return needed && MyScheduler->rates.table == NULL ? MyScheduler->rates.retry_at : CLOCK_NEVER;
}

/* If it could not be used, a scheduler that shares its worker slot comes back for it later. */
static MonoTime
rate_store_needed(ClockNow now)
{
	return rate_store_due(now).us == CLOCK_NEVER.us ? CLOCK_NEVER
													: clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS);
}

/*
 * What has held the queues is over: look again at those that have a rate, and at those with pauses
 * unless these were known.
 */
static void
look_at_queues(bool pauses_known)
{
	QueueRate *rate = NULL;

	while ((rate = rates_next(rate)) != NULL)
		if (rate->limited || !pauses_known)
			groups_queue_changed(rate->queue);
}

/* The table cannot be used: the rates stay held, and pauses do not. */
static void
report_fault(const char *fault, MonoTime now)
{
	bool pauses_known = rates_know_pauses();

	MyScheduler->rates.retry_at = clock_plus_ms(now, RETRY_MS);
	rates_end_pause_hold();
	if (!pauses_known)
		look_at_queues(false);
	if (report_due(&MyScheduler->rates.faults, fault, 0))
		ereport(WARNING,
				(queue_rules_have_rate()
					 ? errmsg("tasks of queues with a rate do not start in database \"%s\"",
							  MyScheduler->database)
					 : errmsg("a restart will forget the pauses of a negative \"max\" in database"
							  " \"%s\"",
							  MyScheduler->database),
				 errdetail_internal("%s", fault),
				 errhint("Drop or rename that relation, or let the owner of the task table create "
						 "tables in its schema.")));
}

/*
 * Write all rates again, as batches: the table that had them is gone.  "all" false: only those of
 * which the rows are stale, and at most FLUSH_MAX batches.
 */
static void
write_many(ClockNow now, bool all)
{
	QueueRate *chosen[BATCH_MAX];
	QueueRate *rate = NULL;
	int batches = 0;

	do
	{
		int count = 0;

		while (count < BATCH_MAX && (rate = rates_next(rate)) != NULL)
			if (all || rate->stale)
				chosen[count++] = rate;
		if (count > 0)
			write_rates(chosen, count, now);
	} while (rate && (all || ++batches < FLUSH_MAX));
}

/*
 * Find or create the rate table, and read what earlier schedulers have written.  Queues with a rate
 * may start tasks from then on.
 */
static void
prepare_store(ClockNow now)
{
	RateStore *store = &MyScheduler->rates;
	bool pauses_known = rates_know_pauses();
	TaskTable *table;
	char *fault;

	work_begin("preparing the rate table");
	table = rate_table_prepare(MyScheduler->table, MyScheduler->context, &fault);
	if (table && !store->read)
		read_all(table, now);
	work_end();
	if (table == NULL)
	{
		report_fault(fault, now.mono);
		return;
	}
	report_end_all(&store->faults);
	table_keep(table);
	store->table = table;
	if (store->read && table->relid != store->last_relid)
	{
		work_begin("writing the rates of queues");
		lock_table();
		write_many(now, true);
		work_end();
	}
	store->read = true;
	store->last_relid = table->relid;
	rates_end_hold();
	look_at_queues(pauses_known);
}

/* The task table is prepared again, and so is this one. */
static void
forget_table(bool another pg_attribute_unused())
{
	table_free(MyScheduler->rates.table);
	MyScheduler->rates.table = NULL;
	rates_hold();
}

#define FULL "the starts of very many queues are remembered"

/* Log once that there is no place for the starts of more queues. */
static void
report_full(RateStore *store)
{
	if (!rates_are_full())
		report_end(&store->faults, FULL);
	else if (report_due(&store->faults, FULL, 0))
		ereport(WARNING,
				(errmsg("tasks of more queues with a rate or a pause do not start in database"
						" \"%s\"",
						MyScheduler->database),
				 errdetail("The starts of %d queues are remembered, which is the limit.",
						   RATE_QUEUES_MAX),
				 errhint("Use fewer queues, a shorter \"per\", or a shorter pause.")));
}

/*
 * Forget rates with nothing left to remember, and remove their rows.  If there is no place for
 * more, look at all; a queue that has tasks is given another one when it asks.
 */
static void
tidy_rates(ClockNow now)
{
	RateStore *store = &MyScheduler->rates;
	bool full = rates_are_full();
	QueueRate *idle[BATCH_MAX];
	RateRow rows[BATCH_MAX];
	QueueRate *rate;
	int left = full ? rates_count() : Min(BATCH_MAX, rates_count());
	int count = 0;
	int nrows = 0;
	int i;

	if (clock_is_before(now.mono, store->tidy_at))
		return;
	store->tidy_at = clock_plus_ms(now.mono, TIDY_MS);
	report_full(store);
	while (count < BATCH_MAX && (rate = rates_next_idle(now.mono, &left)) != NULL)
	{
		if (rate->stored && store->table == NULL)
			continue;
		if (rate->stored)
			rows[nrows++].queue = rate->queue->name;
		idle[count++] = rate;
	}
	if (nrows > 0)
	{
		work_begin_writing("removing old rates of queues");
		lock_table();
		rate_rows_remove(store->table, rows, nrows);
		work_end();
	}
	for (i = 0; i < count; i++)
	{
		idle[i]->stored = idle[i]->stale = false;
		if (full || (idle[i]->queue->groups == 0 && idle[i]->queue->running == 0))
			rates_forget(idle[i]);
	}
}

/* The scheduler exits: write what has become known since the last claims. */
void
rate_store_flush(ClockNow now)
{
	if (MyScheduler->rates.table == NULL)
		return;
	work_begin("writing the rates of queues");
	lock_table();
	write_many(now, false);
	work_end();
}

const SchedulerJob rate_store_job = {.due = rate_store_due,
									 .needed = rate_store_needed,
									 .run = prepare_store,
									 .forget_table = forget_table};

const SchedulerJob rate_tidy_job = {.run = tidy_rates, .always = true, .writes = true};
