/*
 * rules_reader.c
 *		When the scheduler prepares and reads the queue table.
 *
 * The table is prepared together with the task table, and when it has changed.  It is read when a
 * commit has changed a row, and from time to time, because triggers can be disabled.  Before it was
 * read nothing starts.
 *
 * This file knows neither columns nor rules.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "scheduler/errors.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/queue_rules.h"
#include "scheduler/rules_reader.h"
#include "scheduler/work.h"
#include "shared/report.h"
#include "shared/shared.h"
#include "task/queue_table.h"
#include "task/subtransaction.h"

/*
 * A table of so many pages at most is read whenever a commit asks for it.  Reading a larger one
 * takes at most a fifth of the time if commits ask for it, unless it is fast (us).  Without that,
 * reading takes a hundredth of the time at most.
 */
#define SMALL_PAGES 128
#define ASKED_SHARE 4
#define UNASKED_SHARE 100
#define FAST_US 5000

/* If the table has changed, it is prepared again and read at once, this many times. */
#define ATTEMPTS 3

/* If the queue table could not be prepared, or is locked, that is tried again after this (ms). */
#define PREPARE_AGAIN_MS 10000
#define LOCKED_AGAIN_MS 100

/* Static, because the rules hold from one iteration to the next. */
static struct
{
	Oid relid;		/* InvalidOid: there is none that can be used */
	bool prepared;	/* and has not changed since, as far as is known */
	bool known;		/* the rules of this table were read */
	bool wanted;	/* a commit has changed it */
	bool small;		/* it is read as often as commits ask for it */
	MonoTime again; /* when it is read again, in case that no commit has told */
	MonoTime pause; /* not before this */
	Reports faults; /* that were logged */
} reader;

/* A commit has changed the queue table. */
void
rules_reader_want(void)
{
	reader.wanted = true;
}

/* Is the table to be read because a commit has changed it, or because it was not read yet? */
static bool
is_asked_for(void)
{
	return OidIsValid(reader.relid) && (reader.wanted || !reader.known);
}

/* Do commits ask for the rules, which could not be read yet? */
bool
rules_reader_wants(void)
{
	return is_asked_for();
}

/* Is the table to be read now? */
static bool
must_read(MonoTime now)
{
	if (!OidIsValid(reader.relid) || clock_is_before(now, reader.pause))
		return false;
	return is_asked_for() || !clock_is_before(now, reader.again);
}

/* Log once why there is no queue table. */
static void
report_fault(const QueueTable *queues)
{
	if (!report_due(&reader.faults, psprintf("%s %s", queues->name, queues->fault), 0))
		return;
	ereport(WARNING, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
					  errmsg("%s is not the queue table of the task table", queues->name),
					  errdetail_internal("%s", queues->fault),
					  errhint("Tasks run without queue table until this is changed.")));
}

static void
prepare_queue_table(void *arg)
{
	*(QueueTable *) arg = queue_table_prepare(MyScheduler->table);
}

/*
 * Prepare the queue table in a subtransaction.  An error in it that a trigger or a constraint of
 * somebody's may have raised is a fault; others end the iteration.
 */
static void
try_to_prepare(QueueTable *queues)
{
	ErrorData *error = subtransaction_try(prepare_queue_table, queues);

	if (error == NULL)
		return;
	if (!errors_of_row(error->sqlerrcode))
		ReThrowError(error);
	queues->name = "it";
	queues->fault = psprintf("It could not be prepared: %s", error->message);
}

/* Find or create the queue table. */
static void
prepare(MonoTime now)
{
	QueueTable queues;

	work_begin("preparing the queue table");
	try_to_prepare(&queues);
	work_end();
	if (queues.fault)
	{
		report_fault(&queues);
		queues.relid = InvalidOid;
		queue_rules_set(AllocSetContextCreate(MyScheduler->context, "pg_task queue rules",
											  ALLOCSET_SMALL_SIZES),
						NULL, 0, groups_rule_changed);
		reader.again = clock_plus_ms(now, PREPARE_AGAIN_MS);
	}
	else
		report_end_all(&reader.faults);
	shared_scheduler_publish(MyScheduler->slot, queues.relid, true);
	/* the same table: what was read of it holds until it is read again */
	reader.known &= queues.relid == reader.relid;
	reader.known |= !OidIsValid(queues.relid);
	reader.wanted = true;
	reader.relid = queues.relid;
	reader.prepared = true;
}

static void
report_too_many(void)
{
	if (report_due(&reader.faults, "too many rows", 0))
		ereport(WARNING, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						  errmsg("the queue table has more than %d rows", QUEUE_ROWS_MAX),
						  errdetail("The other rows have no effect."), errhint("Use patterns.")));
}

/* Read the rules.  Returns false if the table has changed, or is locked. */
static bool
read_rules(void)
{
	MemoryContext context =
		AllocSetContextCreate(MyScheduler->context, "pg_task queue rules", ALLOCSET_DEFAULT_SIZES);
	QueueRows rows;
	bool complete;

	work_begin("reading the queue table");
	work_limit(WORK_SCAN_MS);
	complete = queue_table_read(reader.relid, context, &rows);
	work_end();
	if (!complete)
		return false;
	if (rows.count == QUEUE_ROWS_MAX)
		report_too_many();
	queue_rules_set(context, rows.rules, rows.count, groups_rule_changed);
	reader.small = rows.pages <= SMALL_PAGES;
	return true;
}

/* The rules were read: decide when they are read again. */
static void
rules_read(bool asked, MonoTime begun)
{
	MonoTime now = clock_mono();
	int64 duration = now.us - begun.us;

	if (asked && queue_rules_shortest_keep() >= 0)
		history_rules_changed();
	reader.known = true;
	reader.pause = now;
	if (duration > FAST_US && !reader.small)
		reader.pause.us += duration * ASKED_SHARE;
	reader.again.us = now.us + duration * UNASKED_SHARE;
	reader.again = clock_max(reader.again, clock_plus_ms(now, MyScheduler->settings.period));
}

/* Is the queue table to be prepared? */
static bool
must_prepare(MonoTime now)
{
	return !reader.prepared || queue_table_changed() ||
		   (!OidIsValid(reader.relid) && !clock_is_before(now, reader.again));
}

/*
 * Prepare and read the queue table, if that is due.  While it cannot be read, the rules that are
 * known hold.  If none are, an error ends the iteration: nothing starts.
 */
void
rules_reader_run(ClockNow now)
{
	MonoTime begun;
	bool asked;
	int i;

	/* the table may change again in between */
	for (i = 0; i < ATTEMPTS; i++)
	{
		if (must_prepare(now.mono))
			prepare(now.mono);
		if (!must_read(now.mono))
			return;
		asked = reader.wanted;
		reader.wanted = false; /* before it is read: what comes later is another change */
		begun = clock_mono();
		if (read_rules())
		{
			rules_read(asked, begun);
			return;
		}
		reader.wanted |= asked;
		if (!queue_table_changed())
			break;
	}
	reader.pause = clock_plus_ms(now.mono, LOCKED_AGAIN_MS);
	if (!reader.known)
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("could not read the queue table, because it is locked")));
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

/* The queue table is prepared together with the task table. */
static void
forget_table(bool another pg_attribute_unused())
{
	reader.prepared = false;
}

const SchedulerJob rules_reader_job = {.due = rules_reader_due,
									   .needed = rules_reader_due,
									   .run = rules_reader_run,
									   .forget_table = forget_table,
									   .always = true};
