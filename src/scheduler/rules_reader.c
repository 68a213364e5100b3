/*
 * rules_reader.c
 *		When the scheduler reads the queue table.
 *
 * The table is prepared together with the task table.  It is read when a commit has changed a row,
 * or a role, which a rule names; and from time to time, because triggers can be disabled.  Before
 * it was read nothing starts.
 *
 * This file knows neither columns nor rules.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "scheduler/order.h"
#include "scheduler/queues.h"
#include "scheduler/rules_reader.h"
#include "scheduler/work.h"
#include "task/queue_table.h"
#include "task/relation.h"
#include "task/roles.h"

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
	return queue_rules_divide(queues_rules()) && reader.roles != roles_changes();
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
	if (asked && queue_rules_shortest_keep(queues_rules()) >= 0)
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

/*
 * The queue table was prepared together with the task table.  If it is the same, what was read of
 * it holds until it is read again.
 */
static void
forget_table(bool another pg_attribute_unused())
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
									   .forget_table = forget_table,
									   .always = true};
