/*
 * task.h
 *		The plain data that the files of pg_task pass to each other.
 *
 * Nothing here has behaviour, and nothing here knows a lock or a process.
 */
#ifndef PG_TASK_TASK_H
#define PG_TASK_TASK_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* A task whose "max" is NULL is in a group with this limit. */
#define TASK_UNLIMITED PG_INT32_MAX

/*
 * Maximum length of a queue's name, a key and a time zone's name, in bytes.  Statements contain
 * TASK_QUEUE_MAX, too.
 */
#define TASK_QUEUE_MAX 255
#define TASK_KEY_MAX 1000
#define TASK_ZONE_MAX 255

/* The same for the label of a workflow, and the name of a step in it. */
#define TASK_NAME_MAX 255

/* The same for why a task is on hold. */
#define TASK_HOLD_MAX 1000

/* The same for the request that follows a failure; its queue. */
#define TASK_ON_FAILURE_MAX 1000
#define TASK_ON_FAILURE_QUEUE "on_failure"

/* The same for the labels in "meta", as text; so many bytes of it stand in the server's log. */
#define TASK_META_MAX 1000
#define TASK_META_LOGGED 200

/* The same for a channel of NOTIFY, as the server's. */
#define TASK_CHANNEL_MAX 63

/* Nobody is notified while the server's queue is filled to more than this share. */
#define TASK_NOTIFY_USAGE 0.9

/* What is more in "delay" does not count (s): some 100 years.  Statements contain it. */
#define TASK_DELAY_MAX 3155760000

/* Minimum of "repeat" (ms). */
#define TASK_REPEAT_MIN_MS 10

/*
 * SQLSTATEs of our own, in a class that neither the standard nor the server uses.  With those of
 * the server the column "sqlstate" could not tell them from each other, nor from a cancelled
 * statement.
 */
#define TASK_ERROR_TIMEOUT "TK001"
#define TASK_ERROR_STOPPED "TK002"
#define TASK_MESSAGE_STOPPED "canceling task due to user request"
#define TASK_ERROR_EXPIRED "TK003"
#define TASK_ERROR_MISSED "TK004"
#define TASK_ERROR_PREDECESSOR "TK005"
#define TASK_ERROR_LOST "TK008"
#define ERRCODE_TASK_TIMEOUT MAKE_SQLSTATE('T', 'K', '0', '0', '1')
#define ERRCODE_TASK_STOPPED MAKE_SQLSTATE('T', 'K', '0', '0', '2')
#define ERRCODE_TASK_NOT_HELD MAKE_SQLSTATE('T', 'K', '0', '0', '6')
#define ERRCODE_TASK_ENDED MAKE_SQLSTATE('T', 'K', '0', '0', '7')

/*
 * A group: the waiting rows that are equal in these columns.  They form a FIFO, ordered by dt and
 * id.
 */
typedef struct TaskGroup
{
	const char *queue;
	int32 max; /* TASK_UNLIMITED for NULL */
	int32 priority;
	const char *role;
	int64 role_id; /* OID of the role that its rows are bound to */
} TaskGroup;

static inline bool
task_same_group(const TaskGroup *a, const TaskGroup *b)
{
	return a->max == b->max && a->priority == b->priority && a->role_id == b->role_id &&
		   strcmp(a->queue, b->queue) == 0 && strcmp(a->role, b->role) == 0;
}

/* A position in a group. */
typedef struct TaskPlace
{
	TimestampTz dt;
	int64 id;
} TaskPlace;

/*
 * One run of a task.  A later run of the same row has a higher attempt.  The time of the claim
 * distinguishes it from a run of another row that was given the same id.
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

/* Compare two runs.  Ids alone do not suffice: a partitioned table may have duplicates. */
static inline int
task_compare_runs(TaskRun a, TaskRun b)
{
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	if (a.attempt != b.attempt)
		return a.attempt < b.attempt ? -1 : 1;
	return a.claimed < b.claimed ? -1 : a.claimed > b.claimed;
}

/* What columns of a task mean that are NULL.  A negative value says nothing. */
typedef struct TaskDefaults
{
	int retry;
	int batch;	 /* tasks in a transaction */
	int64 delay; /* us */
	double backoff;
	int64 timeout; /* us; 0: no limit */
	int64 active;  /* ms; 0: no limit */
	double keep;   /* s */
	bool strict;   /* the queue is strict: a retry keeps its place */
} TaskDefaults;

/* The outcome of a run: the new state of its row. */
typedef enum TaskOutcome
{
	TASK_DONE,
	TASK_FAIL,
	TASK_AGAIN, /* state PLAN: retried */
	TASK_STOPPED
} TaskOutcome;

/* What is written back into the row. */
typedef struct TaskResult
{
	TaskOutcome outcome;
	TimestampTz start;
	TimestampTz stop;
	const char *response; /* NULL: made from "failure", in the format of the row */
	const struct Failure *failure;
	const char *notice;			 /* NULL when there was none */
	const char *error;			 /* NULL when DONE */
	const char *sqlstate;		 /* NULL when DONE */
	bool failed;				 /* count the run as failed ... */
	bool crashed;				 /* ... or as crashed */
	bool lost;					 /* ... or as lost */
	bool final;					 /* it is not retried */
	bool planned_again;			 /* the result: it has failed for good, but waits for another run */
	int64 wait;					 /* for the retry (us); 0: as the row and the queue say */
	TimestampTz again;			 /* TASK_AGAIN: time of the retry; 0: at once, "dt" is kept */
	bool goes_on;				 /* TASK_DONE: the task has asked to be run again ... */
	TimestampTz next;			 /* ... at this time ... */
	const struct varlena *input; /* ... with this "input", a jsonb; NULL: as it is */
} TaskResult;

/* What has become of a run whose process could not write its outcome. */
typedef enum TaskLeft
{
	TASK_LEFT_ERROR,   /* its process has exited with an error */
	TASK_LEFT_FAILED,  /* it has failed, and that could not be written */
	TASK_LEFT_DONE,	   /* it is done and has committed by itself, and that could not be written */
	TASK_LEFT_YIELDED, /* it was rolled back, because its process had to exit and not to wait */
	TASK_LEFT_TAKEN	   /* it was taken, and has failed in somebody's hands */
} TaskLeft;

/* How such a run ended. */
typedef struct TaskFailure
{
	char sqlstate[6]; /* empty: the run was interrupted */
	char error[256];  /* TASK_LEFT_DONE: its response */
	TaskLeft left;
} TaskFailure;

/* How the rows of a response are written. */
typedef enum ResultFormat
{
	RESULT_TEXT, /* columns separated by a tab, NULL as \N, values as they are */
	RESULT_CSV,	 /* RFC 4180, quoted as COPY does */
	RESULT_JSON	 /* one document */
} ResultFormat;

#endif /* PG_TASK_TASK_H */
