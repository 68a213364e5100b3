/*
 * slot.c
 *		The running task in the executor's own slot: its request, how it has failed, and what the
 *		request and others see of it: settings, pg_task_activity, events, and the line that says
 *		which task a message in the server's log belongs to.
 *
 * This file reads no row, and decides nothing about a run.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "storage/latch.h"
#include "utils/elog.h"
#include "utils/guc.h"

#include "compat.h"
#include "executor/slot.h"
#include "settings.h"
#include "shared/worker.h"

/*
 * Record how the running task has ended, because this process exits: the scheduler writes that
 * into the row.  Takes no lock: a FATAL error may have been raised anywhere.
 */
void
slot_set_failure(int sqlstate, const char *error, TaskLeft left)
{
	Assert(MyExecutor->taken != MyExecutor->done);
	strlcpy(MyExecutor->failure.sqlstate, unpack_sql_state(sqlstate),
			sizeof(MyExecutor->failure.sqlstate));
	strlcpy(MyExecutor->failure.error, error,
			pg_mbcliplen(error, (int) strlen(error), sizeof(MyExecutor->failure.error) - 1) + 1);
	MyExecutor->failure.left = left;
}

/* Copy the request of a task and its input from the ring.  Its "meta" there is for show_labels. */
RowRequest
slot_copy_request(const SharedTask *task)
{
	RowRequest request = {pnstrdup(task->request, task->request_len), NULL, NULL};

	if (task->input_len > 0)
		request.input =
			memcpy(palloc(task->input_len), task->request + task->request_len, task->input_len);
	return request;
}

/* Wait until the latch is set, or for "ms" milliseconds. */
void
slot_wait(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 COMPAT_WAIT_EVENT("PgTaskExecutorMain"));
	ResetLatch(MyLatch);
}

/* ---- what others see of the running task ---- */

/* The beginning of what pg_task.meta shows, for the line of the log; empty: nothing of a task. */
static char logged_meta[TASK_META_LOGGED + 1];

/*
 * Show the "meta" of the task in pg_task.meta; NULL: it has none.  A row that has bypassed the
 * trigger may have too much.
 */
void
show_meta(const Jsonb *meta)
{
	char *text;

	if (meta == NULL)
		return;
	text = JsonbToCString(NULL, unconstify(JsonbContainer *, &meta->root), VARSIZE(meta));
	if (strlen(text) <= TASK_META_MAX)
	{
		SetConfigOption("pg_task.meta", text, PGC_USERSET, PGC_S_SESSION);
		strlcpy(logged_meta, text, pg_mbcliplen(text, (int) strlen(text), TASK_META_LOGGED) + 1);
	}
	pfree(text);
}

/*
 * Show the task in pg_task.id, its flow in pg_task.flow and, if the ring has it, its "meta": new
 * rows have both, too.
 */
void
show_labels(const SharedTask *task)
{
	Settings.task_id = task->run.id;
	Settings.task_tells = strcmp(task->queue, TASK_ON_FAILURE_QUEUE) == 0;
	if (task->flow[0] != '\0')
		SetConfigOption("pg_task.flow", task->flow, PGC_USERSET, PGC_S_SESSION);
	if (task->meta_len > 0)
	{
		const char *meta = task->request + task->request_len + task->input_len;
		Jsonb *aligned = memcpy(palloc(task->meta_len), meta, task->meta_len);

		show_meta(aligned);
		pfree(aligned);
	}
}

/*
 * A run of the task, which has started then, begins or is tried again: show it in pg_task_activity,
 * where it has reported no progress yet, and in the settings pg_task.* and application_name.
 */
void
show_task(const SharedTask *task, TimestampTz started)
{
	char name[NAMEDATALEN];
	char *byte;
	Activity activity = {
		.database = MyExecutor->database,
		.relid = task->relid,
		.role = task->role,
		.pid = MyProcPid,
		.encoding = GetDatabaseEncoding(),
		.run = task->run,
		.start = started,
		.timeout = slot_timeout(task),
	};

	progress_clear(&activity.progress);
	strlcpy(activity.queue, task->queue, sizeof(activity.queue));
	activity_begin(&MyExecutor->activity, &activity);
	show_labels(task);
	snprintf(name, sizeof(name), "pg_task %.*s " INT64_FORMAT, NAMEDATALEN - 32, task->queue,
			 task->run.id);
	/* from 16 on the server would write four characters for each of them, and cut off the id */
	for (byte = name; *byte; byte++)
		if (IS_HIGHBIT_SET(*byte))
			*byte = '?';
	SetConfigOption("application_name", name, PGC_USERSET, PGC_S_SESSION);
}

/*
 * Report that a run of the task has begun, which has waited "from" this time on, or has ended. That
 * a user has stopped it is reported when the transaction commits.
 */
void
show_event(const SharedTask *task, EventKind kind, TimestampTz from, TimestampTz to)
{
	TaskEvent event = {.kind = kind,
					   .id = task->run.id,
					   .attempt = task->run.attempt,
					   .queue = task->queue,
					   .role_name = task->role_name,
					   .elapsed = TIMESTAMP_NOT_FINITE(from) ? -1 : Max(to - from, 0)};

	if (kind == EVENT_STOPPED)
		event_note(&event);
	else
		event_report(&event);
}

/* Longest line: an id, an attempt, the queue, two more names, and labels. */
#define LINE_MAX_BYTES (TASK_QUEUE_MAX + 4 * NAMEDATALEN + TASK_META_LOGGED)

/*
 * The line is the last one of the CONTEXT of every message that the process logs while it runs a
 * task and writes its outcome.  Within any state of the transaction: read no catalog.
 */
static const char *
format_line(const SharedTask *task, char *line)
{
	snprintf(line, LINE_MAX_BYTES,
			 "pg_task " INT64_FORMAT
			 " of queue \"%s\" in database \"%s\" as role \"%s\", attempt %d%s%s",
			 task->run.id, task->queue, port_database(), task->role_name, task->run.attempt,
			 logged_meta[0] ? ", meta " : "", logged_meta);
	return line;
}

static void
add_line(void *task)
{
	char line[LINE_MAX_BYTES];

	errcontext("%s", format_line(task, line));
}

/* From here on messages are about this task, until the caller removes the callback. */
void
context_begin(ErrorContextCallback *callback, const SharedTask *task)
{
	Assert(MyProcPort != NULL);
	logged_meta[0] = '\0';
	callback->callback = add_line;
	callback->arg = unconstify(SharedTask *, task);
	callback->previous = error_context_stack;
	error_context_stack = callback;
}

/* Cut the line from the context of an error, for the row, which does not need it; NULL if nothing
 * is left.
 */
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
