/*
 * show.c
 *		What the request and others see of the running task: settings, pg_task_activity, events.
 *
 * This file reads no row, and decides nothing about the run.
 */
#include "postgres.h"

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

/* A run of the task has begun or ended. */
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
