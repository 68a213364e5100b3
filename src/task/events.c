/*
 * events.c
 *		What happens to tasks: counted in pg_stat_task, and logged as pg_task.log and
 *		pg_task.log_min_duration demand.
 *
 * An executor reports the runs that it has begun and ended, a scheduler the tasks whose rows it has
 * written without a run.  What a transaction writes is noted (event_note), and reported when it has
 * committed (events_committed), or forgotten.
 *
 * The text of a request is never logged here: log_statement decides about that.  This file reads no
 * row and no catalog.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "utils/json.h"
#include "utils/memutils.h"

#include "settings.h"
#include "shared/worker.h"
#include "shared/statistics.h"
#include "shared/task.h"
#include "task/events.h"

/*
 * The events of the transaction that is open, in the order in which they were noted.  Static,
 * because the statements that note them are far from the commit.
 */
static struct
{
	MemoryContext context; /* NULL: none was noted yet */
	List *list;			   /* of TaskEvent, in that context */
} noted;

/* ---- the server's log ---- */

static const char *const words[] = {
	[EVENT_STARTED] = "started",
	[EVENT_DONE] = "done",
	[EVENT_RETRIED] = "failed, is tried again",
	[EVENT_FAILED] = "failed",
	[EVENT_STOPPED] = "stopped",
	[EVENT_GONE] = "given up",
};

/* The least value of pg_task.log that demands a line for such an event. */
static const SettingsLog demanded[] = {
	[EVENT_STARTED] = LOG_TASKS_ALL,	  [EVENT_DONE] = LOG_TASKS_ENDS,
	[EVENT_RETRIED] = LOG_TASKS_FAILURES, [EVENT_FAILED] = LOG_TASKS_FAILURES,
	[EVENT_STOPPED] = LOG_TASKS_ENDS,	  [EVENT_GONE] = LOG_TASKS_FAILURES,
};

static bool
is_logged(const TaskEvent *event)
{
	if (Settings.log >= (int) demanded[event->kind])
		return true;
	return Settings.log_min_duration >= 0 && event->kind != EVENT_STARTED &&
		   event->elapsed >= (int64) Settings.log_min_duration * 1000;
}

/*
 * Append a name in quotes.  Users choose the names of queues and roles: quotes in them, and
 * characters that would break the line, are escaped as in JSON.
 */
static void
append_name(StringInfo line, const char *before, const char *name)
{
	appendStringInfoString(line, before);
	escape_json(line, name);
}

/* The line begins as the one that show.c adds to other messages about the task. */
static void
log_event(const TaskEvent *event)
{
	StringInfoData line;

	initStringInfo(&line);
	appendStringInfo(&line, "pg_task " INT64_FORMAT, event->id);
	append_name(&line, " of queue ", event->queue);
	append_name(&line, " in database ", port_database());
	append_name(&line, " as role ", event->role_name);
	appendStringInfo(&line, ", attempt %d: %s", event->attempt, words[event->kind]);
	if (event->sqlstate)
		appendStringInfo(&line, ", SQLSTATE %s", event->sqlstate);
	if (event->elapsed >= 0)
		appendStringInfo(&line, ", %s: %.3f ms",
						 event->kind == EVENT_STARTED ? "waited" : "duration",
						 (double) event->elapsed / 1000);
	ereport(LOG_SERVER_ONLY, (errmsg_internal("%s", line.data),
							  event->error ? errdetail_internal("%s", event->error) : 0,
							  errhidestmt(true), errhidecontext(true)));
	pfree(line.data);
}

/* ---- the figures of pg_stat_task ---- */

static void
count_event(const TaskEvent *event)
{
	static const StatCounter counters[] = {
		[EVENT_STARTED] = STAT_STARTED, [EVENT_DONE] = STAT_DONE,
		[EVENT_RETRIED] = STAT_RETRIED, [EVENT_FAILED] = STAT_FAILED,
		[EVENT_STOPPED] = STAT_STOPPED, [EVENT_GONE] = STAT_GONE,
	};
	StatCounts *counts = statistics_of(event->queue);

	counts->counters[counters[event->kind]]++;
	counts->counters[STAT_CRASHED] += event->crashed;
	if (event->sqlstate && strcmp(event->sqlstate, TASK_ERROR_TIMEOUT) == 0)
		counts->counters[STAT_TIMED_OUT]++;
	if (event->elapsed >= 0)
		statistics_add_time(event->kind == EVENT_STARTED ? &counts->wait : &counts->run,
							event->elapsed);
}

/* ---- reports ---- */

/* This has happened, and is committed. */
void
event_report(const TaskEvent *event)
{
	count_event(event);
	if (is_logged(event))
		log_event(event);
}

/* Copy a text; NULL is NULL. */
static const char *
copy_text(const char *text)
{
	return text ? pstrdup(text) : NULL;
}

/* This has happened, if the transaction commits. */
void
event_note(const TaskEvent *event)
{
	MemoryContext old;
	TaskEvent *copy;

	if (noted.context == NULL)
		noted.context =
			AllocSetContextCreate(TopMemoryContext, "pg_task events", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(noted.context);
	copy = palloc(sizeof(TaskEvent));
	*copy = *event;
	copy->queue = copy_text(event->queue);
	copy->role_name = copy_text(event->role_name);
	copy->sqlstate = copy_text(event->sqlstate);
	copy->error = copy_text(event->error);
	noted.list = lappend(noted.list, copy);
	MemoryContextSwitchTo(old);
}

/* Forget what was noted: the transaction has not committed. */
void
events_forget(void)
{
	if (noted.list == NIL)
		return;
	noted.list = NIL;
	MemoryContextReset(noted.context);
}

/* The transaction has committed: report what was noted. */
void
events_committed(void)
{
	ListCell *cell;

	foreach(cell, noted.list)
		event_report(lfirst(cell));
	events_forget();
}
