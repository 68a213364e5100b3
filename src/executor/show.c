/*
 * show.c
 *		What the request and others see of the running task: settings, pg_task_activity, events, and
 *		the line that says which task a message in the server's log belongs to.
 *
 * That is the last line of the CONTEXT of every message that the process logs while it runs a task
 * and writes its outcome.  The row does not need it: context_cut removes it from an error that is
 * written there.
 *
 * This file reads no row, and decides nothing about the run.
 */
#include "postgres.h"

/* Without these, libpq-be.h needs headers of libraries that need not be installed. */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq-be.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "executor/show.h"
#include "executor/slot.h"
#include "settings.h"

/* Return the timeout of the task (us), its own or the setting; 0: none.  It covers all tries. */
int64
show_timeout(const SharedTask *task)
{
	return task->timeout >= 0 ? task->timeout : (int64) Settings.timeout * 1000;
}

/* Show in pg_task_activity what this process runs now. */
void
show_activity(const SharedTask *task, TimestampTz started)
{
	Activity activity = {
		.database = MyExecutor->database,
		.relid = task->relid,
		.role = task->role,
		.pid = MyProcPid,
		.encoding = GetDatabaseEncoding(),
		.run = task->run,
		.start = started,
		.timeout = show_timeout(task),
		.progress = {.done = ACTIVITY_UNKNOWN, .total = ACTIVITY_UNKNOWN},
	};

	strlcpy(activity.queue, task->queue, sizeof(activity.queue));
	activity_begin(&activity);
}

/* Show the task in pg_task.id, and its flow in pg_task.flow: new rows have it by their default. */
void
show_id_and_flow(const SharedTask *task)
{
	Settings.task_id = task->run.id;
	if (task->flow[0] != '\0')
		SetConfigOption("pg_task.flow", task->flow, PGC_USERSET, PGC_S_SESSION);
}

/* Show the task in pg_task.id, pg_task.flow and application_name. */
void
show_settings(const SharedTask *task)
{
	char name[NAMEDATALEN];
	char *byte;

	show_id_and_flow(task);
	snprintf(name, sizeof(name), "pg_task %.*s " INT64_FORMAT, NAMEDATALEN - 32, task->queue,
			 task->run.id);
	/* from 16 on the server would write four characters for each of them, and cut off the id */
	for (byte = name; *byte; byte++)
		if (IS_HIGHBIT_SET(*byte))
			*byte = '?';
	SetConfigOption("application_name", name, PGC_USERSET, PGC_S_SESSION);
}

/* A run of the task has ended. */
TaskEvent
show_event(const SharedTask *task, EventKind kind, int64 elapsed)
{
	return (TaskEvent){.kind = kind,
					   .id = task->run.id,
					   .attempt = task->run.attempt,
					   .queue = task->queue,
					   .role_name = task->role_name,
					   .elapsed = elapsed};
}

/* Report that a run of the task has begun. */
void
show_started(const SharedTask *task, TimestampTz started)
{
	int64 waited = TIMESTAMP_NOT_FINITE(task->due) ? -1 : Max(started - task->due, 0);
	TaskEvent event = show_event(task, EVENT_STARTED, waited);

	event_report(&event);
}

/* Report that a run of the task is done. */
void
show_done(const SharedTask *task, TimestampTz started, TimestampTz stop)
{
	TaskEvent event = show_event(task, EVENT_DONE, Max(stop - started, 0));

	event_report(&event);
}

/* Longest line: an id, an attempt, and three names. */
#define LINE_MAX_BYTES (5 * NAMEDATALEN)

/* Within any state of the transaction: read no catalog. */
static const char *
format_line(const SharedTask *task, char *line)
{
	snprintf(line, LINE_MAX_BYTES,
			 "pg_task " INT64_FORMAT
			 " of queue \"%s\" in database \"%s\" as role \"%s\", attempt %d",
			 task->run.id, task->queue, MyProcPort->database_name, MyProcPort->user_name,
			 task->run.attempt);
	return line;
}

static void
add_line(void *task)
{
	char line[LINE_MAX_BYTES];

	errcontext("%s", format_line(task, line));
}

/* From here on messages are about this task, until context_end. */
void
context_begin(ErrorContextCallback *callback, const SharedTask *task)
{
	Assert(MyProcPort != NULL);
	callback->callback = add_line;
	callback->arg = unconstify(SharedTask *, task);
	callback->previous = error_context_stack;
	error_context_stack = callback;
}

void
context_end(const ErrorContextCallback *callback)
{
	error_context_stack = callback->previous;
}

/* Cut the line from the context of an error; NULL if nothing is left. */
char *
context_cut(char *context, const SharedTask *task)
{
	char line[LINE_MAX_BYTES];
	size_t length = strlen(format_line(task, line));
	size_t total = context ? strlen(context) : 0;

	if (total < length || strcmp(context + total - length, line) != 0)
		return context;
	if (total == length)
		return NULL;
	if (context[total - length - 1] == '\n')
		context[total - length - 1] = '\0';
	return context;
}
