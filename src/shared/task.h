/*
 * task.h
 *		The plain data that the rooms of pg_task hand to each other.
 *
 * Nothing here has behaviour, and nothing here knows a lock or a process.
 */
#ifndef PG_TASK_TASK_H
#define PG_TASK_TASK_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* A task whose "max" is NULL is in a group with this limit. */
#define TASK_UNLIMITED PG_INT32_MAX

/* The longest queue, key and name of a zone, in bytes; TASK_QUEUE_MAX stands in SQL, too. */
#define TASK_QUEUE_MAX 255
#define TASK_KEY_MAX 1000
#define TASK_ZONE_MAX 255

/* The shortest "repeat", in milliseconds. */
#define TASK_REPEAT_MIN_MS 10

/*
 * Waiting tasks form groups: all that are equal in these columns wait
 * in one line, ordered by dt and id.
 */
typedef struct TaskGroup
{
	const char *queue;
	int32 max; /* TASK_UNLIMITED for NULL */
	int32 priority;
	const char *role;
	int64 role_id; /* the role that its rows are bound to, see roles_bind */
} TaskGroup;

/* A place in such a line. */
typedef struct TaskPlace
{
	TimestampTz dt;
	int64 id;
} TaskPlace;

/*
 * One run of a task.  A later run of the same row has a higher attempt; the time
 * of the claim tells it from a run of another row that was given the same id.
 */
typedef struct TaskRun
{
	int64 id;
	int32 attempt;
	TimestampTz claimed; /* what the claim wrote into "start" */
} TaskRun;

static inline bool
task_same_run(TaskRun a, TaskRun b)
{
	return a.id == b.id && a.attempt == b.attempt && a.claimed == b.claimed;
}

/* An order of runs: ids alone do not tell them apart where a table is partitioned. */
static inline int
task_compare_runs(TaskRun a, TaskRun b)
{
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	if (a.attempt != b.attempt)
		return a.attempt < b.attempt ? -1 : 1;
	return a.claimed < b.claimed ? -1 : a.claimed > b.claimed;
}

/* What becomes of a task when a run has ended, in the words of the table. */
typedef enum TaskOutcome
{
	TASK_DONE,
	TASK_FAIL,
	TASK_AGAIN, /* PLAN */
	TASK_STOPPED
} TaskOutcome;

/* What is written back into the row. */
typedef struct TaskResult
{
	TaskOutcome outcome;
	TimestampTz start;
	TimestampTz stop;
	const char *response; /* never NULL */
	const char *notice;	  /* NULL when there was none */
	const char *error;	  /* NULL when DONE */
	const char *sqlstate; /* NULL when DONE */
	bool failed;		  /* the run counts as failed ... */
	bool crashed;		  /* ... or as one that the server has crashed in */
	TimestampTz again;	  /* TASK_AGAIN: when; 0: at once, "dt" stays */
} TaskResult;

/* How a run ended whose process could not write that. */
typedef struct TaskFailure
{
	char sqlstate[6]; /* empty: it did not end, it was interrupted */
	char error[256];
	bool unwritten; /* the task failed in its process, which could not write that */
} TaskFailure;

/* How the rows of a response are written. */
typedef enum ResultFormat
{
	RESULT_TEXT, /* columns separated by a tab, NULL as \N, values as they are */
	RESULT_CSV,	 /* RFC 4180, quoted as COPY does */
	RESULT_JSON	 /* one array of objects per statement */
} ResultFormat;

#endif /* PG_TASK_TASK_H */
