/*
 * events.c
 *		What happens to tasks: counted in pg_stat_task, and logged as pg_task.log and
 *		pg_task.log_min_duration demand.  The response of a task that has failed, if no executor has
 *		formatted it; and failures as JSON: one object, with the same keys each time.
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
#include "mb/pg_wchar.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/statistics.h"
#include "shared/task.h"
#include "shared/worker.h"
#include "task/events.h"

/* In a response: room for what says that a value was cut. */
#define CUT_MAX 40

/*
 * The events of the transaction that is open, in the order in which they were noted.  Static,
 * because the statements that note them are far from the commit.
 */
static struct
{
	MemoryContext context; /* NULL: none was noted yet */
	List *list;			   /* of TaskEvent, in that context */
} noted;

/* An error is cut at this length: the server has logged all of it. */
#define ERROR_MAX_BYTES 1024

/* Of each kind: its word in the log, the least pg_task.log that demands it, and its counter. */
static const struct
{
	const char *word;
	SettingsLog demanded;
	StatCounter counter;
} kinds[] = {
	[EVENT_STARTED] = {"started", LOG_TASKS_ALL, STAT_STARTED},
	[EVENT_DONE] = {"done", LOG_TASKS_ENDS, STAT_DONE},
	[EVENT_RETRIED] = {"failed, is tried again", LOG_TASKS_FAILURES, STAT_RETRIED},
	[EVENT_FAILED] = {"failed", LOG_TASKS_FAILURES, STAT_FAILED},
	[EVENT_STOPPED] = {"stopped", LOG_TASKS_ENDS, STAT_STOPPED},
	[EVENT_GONE] = {"given up", LOG_TASKS_FAILURES, STAT_GONE},
};

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

/* The line begins as the one that executor/slot.c adds to other messages about the task. */
static void
log_event(const TaskEvent *event)
{
	StringInfoData line;
	int length = 0;

	initStringInfo(&line);
	appendStringInfo(&line, "pg_task " INT64_FORMAT, event->id);
	append_name(&line, " of queue ", event->queue);
	append_name(&line, " in database ", port_database());
	append_name(&line, " as role ", event->role_name);
	appendStringInfo(&line, ", attempt %d: %s", event->attempt, kinds[event->kind].word);
	if (event->sqlstate)
		appendStringInfo(&line, ", SQLSTATE %s", event->sqlstate);
	if (event->elapsed >= 0)
		appendStringInfo(&line, ", %s: %.3f ms",
						 event->kind == EVENT_STARTED ? "waited" : "duration",
						 (double) event->elapsed / 1000);
	if (event->error)
		length = pg_mbcliplen(event->error, strlen(event->error), ERROR_MAX_BYTES);
	ereport(LOG_SERVER_ONLY, (errmsg_internal("%s", line.data),
							  event->error ? errdetail_internal("%.*s", length, event->error) : 0,
							  errhidestmt(true), errhidecontext(true)));
	pfree(line.data);
}

/* This has happened, and is committed.  What is GONE without a code was not needed. */
void
event_report(const TaskEvent *event)
{
	bool started = event->kind == EVENT_STARTED;
	bool unneeded = event->kind == EVENT_GONE && event->sqlstate == NULL;
	SettingsLog demanded = unneeded ? LOG_TASKS_ENDS : kinds[event->kind].demanded;
	StatCounts *counts = statistics_of(event->queue);

	counts->counters[kinds[event->kind].counter]++;
	if (started)
		counts->last_start = GetCurrentTimestamp();
	counts->counters[STAT_CRASHED] += event->crashed;
	if (event->sqlstate && strcmp(event->sqlstate, TASK_ERROR_TIMEOUT) == 0)
		counts->counters[STAT_TIMED_OUT]++;
	if (event->elapsed >= 0)
		statistics_add_time(started ? &counts->wait : &counts->run, event->elapsed);
	if (Settings.log >= (int) demanded ||
		(!started && Settings.log_min_duration >= 0 &&
		 event->elapsed >= (int64) Settings.log_min_duration * 1000))
		log_event(event);
}

/* Copy a text; NULL is NULL. */
static const char *
copy_text(const char *text)
{
	return text ? pstrdup(text) : NULL;
}

/* Copy an event, with its texts, into the current memory context. */
TaskEvent *
event_copy(const TaskEvent *event)
{
	TaskEvent *copy = palloc(sizeof(TaskEvent));

	*copy = *event;
	copy->queue = copy_text(event->queue);
	copy->role_name = copy_text(event->role_name);
	copy->sqlstate = copy_text(event->sqlstate);
	copy->error = copy_text(event->error);
	return copy;
}

/* This has happened, if the transaction commits. */
void
event_note(const TaskEvent *event)
{
	MemoryContext old;

	if (noted.context == NULL)
		noted.context =
			AllocSetContextCreate(TopMemoryContext, "pg_task events", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(noted.context);
	noted.list = lappend(noted.list, event_copy(event));
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

/* ---- responses ---- */

/* As psql prints it: severity and message, DETAIL, HINT. */
char *
failure_text(const Failure *failure)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "%s:  %s", failure->severity, failure->error);
	if (failure->detail)
		appendStringInfo(&text, "\nDETAIL:  %s", failure->detail);
	if (failure->hint)
		appendStringInfo(&text, "\nHINT:  %s", failure->hint);
	return text.data;
}

/* How many bytes of a text take at most this many bytes in JSON; no character is split. */
static int
fitting_length(const char *value, int limit)
{
	int length = 0;
	int size = 0;

	for (; value[length] != '\0'; length++)
	{
		unsigned char c = value[length];

		size += strchr("\"\\\b\f\n\r\t", c) ? 2 : c < ' ' ? 6 : 1;
		if (size > limit)
			return pg_mbcliplen(value, length + 1, length);
	}
	return length;
}

/* Append a value, NULL as null.  What would make the text longer than the limit is cut. */
static void
put_value(StringInfo text, const char *value, int limit)
{
	int length;

	if (value == NULL)
	{
		appendStringInfoString(text, "null");
		return;
	}
	length = fitting_length(value, Max(limit - text->len - CUT_MAX, 0));
	if (value[length] == '\0')
		escape_json(text, value);
	else
		escape_json(text, psprintf("%.*s\n(%zu bytes cut)", length, value, strlen(value + length)));
}

static void
put_key(StringInfo text, const char *key, const char *value, int limit)
{
	appendStringInfo(text, "%s\"%s\":", text->len > 0 ? "," : "{", key);
	put_value(text, value, limit);
}

/*
 * An error of the server as JSON.  "position" counts characters from 1, in "query" if there is one,
 * else in the request.  The limit is exceeded by some hundred bytes at most.
 */
char *
failure_error_json(const ErrorData *error, int limit)
{
	int position = error->internalquery ? error->internalpos : error->cursorpos;
	StringInfoData text;

	initStringInfo(&text);
	put_key(&text, "error", error->message ? error->message : "missing error text", limit);
	put_key(&text, "sqlstate", unpack_sql_state(error->sqlerrcode), limit + CUT_MAX);
	put_key(&text, "detail", error->detail, limit);
	put_key(&text, "hint", error->hint, limit);
	put_key(&text, "query", error->internalquery, limit);
	put_key(&text, "context", error->context, limit);
	if (position > 0)
		appendStringInfo(&text, ",\"position\":%d}", position);
	else
		appendStringInfoString(&text, ",\"position\":null}");
	return text.data;
}

char *
failure_json(const Failure *failure)
{
	const char *code = failure->sqlstate;
	ErrorData error = {.message = (char *) failure->error,
					   .detail = (char *) failure->detail,
					   .hint = (char *) failure->hint,
					   .sqlerrcode = MAKE_SQLSTATE(code[0], code[1], code[2], code[3], code[4])};

	return failure_error_json(&error, MaxAllocSize / 8);
}
