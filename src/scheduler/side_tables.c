/*
 * side_tables.c
 *		When the scheduler reads the queue table, and reads and writes the rate table.
 *
 * Both tables are prepared together with the task table.  The queue table is read when a commit has
 * changed a row, or a role, which a rule names; and from time to time, because triggers can be
 * disabled.  Before it was read nothing starts.
 *
 * The claims of a queue that has a rate, or in which tasks with a negative "max" wait, are written
 * in the transaction of each claim.  A scheduler reads all rows of the rate table when it learns of
 * the first such queue.  Until then no task of it starts.  While the table cannot be used, no task
 * of a queue with a rate starts; pauses hold as long as the scheduler lives.
 *
 * This file knows neither columns nor rules, and decides nothing about starts.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "scheduler/order.h"
#include "scheduler/queues.h"
#include "scheduler/rates.h"
#include "scheduler/side_tables.h"
#include "scheduler/work.h"
#include "task/queue_table.h"
#include "task/rate_table.h"
#include "task/relation.h"
#include "task/roles.h"

/* ---- the queue table ---- */

/*
 * Reading a table with many rows takes at most a fifth of the time if commits ask for it, and else
 * a hundredth.
 */
#define ASKED_SHARE 4
#define UNASKED_SHARE 100
#define MANY_ROWS 1000

/* If it is locked, that is tried again after this time (ms): a TRUNCATE is reported too early. */
#define LOCKED_AGAIN_MS 5

/* Static, because the rules hold from one iteration to the next. */
static struct
{
	Oid relid;		/* InvalidOid: there is none that can be used */
	bool known;		/* the rules of this table were read ... */
	uint32 roles;	/* ... when roles_changes returned this */
	MonoTime again; /* when it is read again, in case that no commit has told */
	MonoTime pause; /* not before this */
	Reports faults; /* that were logged */
} reader;

/* May a rule name a role that was created, renamed or dropped since the table was read? */
bool
rules_reader_roles_changed(void)
{
	return queues_rules()->divide && reader.roles != roles_changes();
}

/*
 * Is the table to be read because a commit has changed it, or the roles, or because it was not read
 * yet?
 */
static bool
is_asked_for(void)
{
	return OidIsValid(reader.relid) &&
		   (!reader.known || (MyScheduler->events & SHARED_QUEUES) || rules_reader_roles_changed());
}

/* Log once why there is no queue table, and publish it. */
static void
report_fault(const char *fault)
{
	const char *name = MyScheduler->table->side_name[SIDE_QUEUE];

	if (!report_due(&reader.faults, psprintf("%s %s", name, fault), 0))
		return;
	shared_database_report(MyDatabaseId, psprintf("queue table %s: %s", name, fault));
	ereport(WARNING, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
					  errmsg("%s is not the queue table of the task table", name),
					  errdetail_internal("%s", fault),
					  errhint("Tasks run without queue table until this is changed.")));
}

/* Let the rules be these, which are in "context". */
static void
set_rules(MemoryContext context, const QueueRule *rows, int count)
{
	if (queues_set_rules(context, queue_rules_build(context, rows, count)))
		order_rules_changed();
}

/* Read the rules.  Returns how many; -1: the table has changed, or is locked. */
static int
read_rules(void)
{
	MemoryContext context =
		AllocSetContextCreate(MyScheduler->context, "pg_task queue rules", ALLOCSET_DEFAULT_SIZES);
	QueueRule *rows = NULL;
	bool read;
	int count = 0;

	work_begin("reading the queue table");
	work_limit(WORK_SCAN_MS);
	read = ConditionalLockRelationOid(reader.relid, AccessShareLock) && !watch_changed();
	if (read)
		count = queue_rules_read(MyScheduler->table->side[SIDE_QUEUE], context, &rows);
	work_end();
	if (!read)
		return -1;
	if (count == QUEUE_ROWS_MAX && report_due(&reader.faults, "too many rows", 0))
		ereport(WARNING, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						  errmsg("the queue table has more than %d rows", QUEUE_ROWS_MAX),
						  errdetail("The other rows have no effect."), errhint("Use patterns.")));
	set_rules(context, rows, count);
	return count;
}

/*
 * Read the queue table, if that is due, and decide when it is read again.  While it cannot be read,
 * the rules that are known hold.  If none are, an error ends the iteration: nothing starts.
 */
static void
rules_reader_run(ClockNow now)
{
	MonoTime begun = clock_mono();
	bool asked = (MyScheduler->events & SHARED_QUEUES) != 0;
	MonoTime ended;
	uint32 roles;
	int count;

	if (!OidIsValid(reader.relid) || clock_is_before(now.mono, reader.pause) ||
		(!is_asked_for() && clock_is_before(now.mono, reader.again)))
		return;
	roles = roles_changes();
	count = read_rules();
	if (count < 0)
	{
		MyScheduler->events |= SHARED_QUEUES;
		/* the next iteration prepares it again */
		if (watch_changed())
			return;
		reader.pause = clock_plus_ms(now.mono, LOCKED_AGAIN_MS);
		if (reader.known)
			return;
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("could not read the queue table, because it is locked")));
	}
	MyScheduler->events &= ~SHARED_QUEUES;
	reader.known = true;
	reader.roles = roles;
	if (asked && queues_rules()->shortest_keep >= 0)
		MyScheduler->events |= SHARED_HISTORY;
	ended = clock_mono();
	reader.pause = ended;
	if (count > MANY_ROWS)
		reader.pause.us += (ended.us - begun.us) * ASKED_SHARE;
	reader.again = clock_plus_ms(ended, MyScheduler->settings.period);
	reader.again.us = Max(reader.again.us, ended.us + (ended.us - begun.us) * UNASKED_SHARE);
}

/* A commit has changed the queue table: read it now.  Returns false if that is to be done yet. */
bool
rules_reader_read(void)
{
	MyScheduler->events |= SHARED_QUEUES;
	rules_reader_run(clock_now());
	return !is_asked_for();
}

/*
 * The table is to be read when somebody has asked for it.  Otherwise it is read in iterations that
 * there are anyway.
 */
static MonoTime
rules_reader_due(ClockNow now pg_attribute_unused())
{
	return is_asked_for() ? reader.pause : CLOCK_NEVER;
}

/* The table was prepared again.  If it is the same, what was read holds until it is read again. */
static void
forget_queue_table(bool another pg_attribute_unused())
{
	const TaskTable *queues = MyScheduler->table->side[SIDE_QUEUE];
	Oid relid = queues ? queues->relid : InvalidOid;

	if (queues)
		report_end(&reader.faults, false);
	else
	{
		report_fault(MyScheduler->table->side_fault[SIDE_QUEUE]);
		set_rules(AllocSetContextCreate(MyScheduler->context, "pg_task queue rules",
										ALLOCSET_SMALL_SIZES),
				  NULL, 0);
	}
	shared_scheduler_publish(MyScheduler->slot, relid, true);
	reader.known &= relid == reader.relid;
	reader.known |= !OidIsValid(relid);
	MyScheduler->events |= SHARED_QUEUES;
	reader.relid = relid;
}

const SchedulerJob rules_reader_job = {.due = rules_reader_due,
									   .needed = rules_reader_due,
									   .run = rules_reader_run,
									   .forget_table = forget_queue_table,
									   .always = true};

/* ---- the rate table ---- */

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
lock_rate_table(const TaskTable *table, LOCKMODE mode)
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
	lock_rate_table(store.table, RowExclusiveLock);
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
		lock_rate_table(table, AccessShareLock);
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
forget_rate_table(bool another pg_attribute_unused())
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
	lock_rate_table(store.table, RowExclusiveLock);
	rate_rows_remove(store.table, now.wall);
	work_end();
}

const SchedulerJob rate_store_job = {.due = rate_store_due,
									 .needed = rate_store_needed,
									 .run = prepare_store,
									 .forget_table = forget_rate_table};

const SchedulerJob rate_tidy_job = {.run = tidy_rates, .always = true, .writes = true};
