/*
 * rows.h
 *		The SQL statements on task rows, and what is written without one.
 *
 * Every function runs inside a transaction of the caller, as the owner of the table (owner_become),
 * which is watched and locked, and returns what it has read in the current memory context.
 */
#ifndef PG_TASK_ROWS_H
#define PG_TASK_ROWS_H

#include "postgres.h"

#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/task.h"
#include "task/events.h"
#include "task/table.h"

/* A group that has waiting rows, and the position of the first one. */
typedef struct GroupHead
{
	TaskGroup group;
	TaskPlace place;
	bool too_long; /* the name of the queue is too long, and was cut */
} GroupHead;

/* The next rows of a group are to be read. */
typedef struct RowsPeek
{
	const TaskGroup *group;
	TaskPlace after;
	TaskPlace *places; /* the result */
	int count;
} RowsPeek;

/* A task to claim, and the executor that is to run it. */
typedef struct Candidate
{
	TaskPlace place;
	const TaskGroup *group;
	int pid;
	int64 active;		   /* default of column "active" (ms), if that is NULL; 0: no limit */
	SettingsMissed missed; /* default of column "missed" */
	bool isolated;		   /* it may be claimed even if it is a suspect */
	bool first_run;		   /* only if it has not failed before */
	int lease;			   /* what the column is set to; -1: NULL */
} Candidate;

/* A claimed task. */
typedef struct Claim
{
	TaskRun run;
	int64 timeout; /* us; -1 for NULL */
	char *format;  /* NULL for NULL */
	char *request; /* NULL if longer than SHARED_REQUEST, with "input" and "meta" */
	Jsonb *input;  /* NULL for NULL, and if longer than that */
	Jsonb *meta;   /* the same */
	char *flow;	   /* NULL for NULL, and if longer than TASK_NAME_MAX */
	char *role;
	int64 role_id;
	TimestampTz planned; /* when its first run was planned for */
	double keep;		 /* column "keep" in seconds; -1 for NULL */
	int lost;
} Claim;

/* Identifies a row: its id and, because ids may not be unique in a partitioned table, its role. */
typedef struct RowKey
{
	int64 id;
	const char *role;
} RowKey;

/* A run that is to be set to DONE, and what its row says of what follows. */
typedef struct RowFinish
{
	TaskRun run;
	const char *role;
	const TaskResult *result;
	bool finished;
	bool repeats; /* the next run is still to be planned ... */
	bool removes; /* ... and then the row is to be removed */
} RowFinish;

/* What a run is given. */
typedef struct RowRequest
{
	char *text;
	Jsonb *input; /* NULL for NULL */
	Jsonb *meta;  /* the same */
} RowRequest;

/* What determines the next run of a repeating task. */
typedef struct RowRepeat
{
	TimestampTz anchor; /* of the chain, as the row says */
	TimestampTz dt;		/* the planned time of this run */
	char *cron;			/* NULL: by the interval */
	Interval repeat;
	bool drift;
	char *missed;	/* NULL: as the role's setting says */
	char *timezone; /* NULL: that of the role */
	int64 role_id;
	bool expires;	   /* by column "active" */
	TimestampTz until; /* no run is planned for a later time; DT_NOEND for NULL */
	int runs;		   /* how many are left, with this one; PG_INT32_MAX for NULL */
} RowRepeat;

/* What the column "on_failure" of a row says. */
typedef enum OnFailure
{
	ON_FAILURE_DEFAULT, /* NULL: what the setting of its role says */
	ON_FAILURE_NOTHING, /* an empty text */
	ON_FAILURE_REQUEST
} OnFailure;

/* The next run of a repeating task. */
typedef struct RowNext
{
	TimestampTz dt;
	bool has_anchor;
	TimestampTz anchor;
	const char *hold; /* what it waits for, other than its time; NULL: nothing */
	int hold_after;	  /* default of the column */
} RowNext;

/* What decides whether a run is retried. */
typedef struct RowRetry
{
	int failed; /* number of earlier runs that failed */
	int crashed;
	int lost;
	int retry;			 /* -1 for NULL */
	double backoff;		 /* -1 for NULL */
	int64 delay;		 /* us; -1 for NULL */
	TimestampTz planned; /* when the first run was planned for */
	TimestampTz expires; /* by column "active"; DT_NOEND for NULL */
	char *format;		 /* NULL for NULL */
	bool repeats;
	char *role;
	int64 role_id;
	bool planned_again; /* for one more run after this one */
	OnFailure on_failure;
	char *queue;
} RowRetry;

/* In "waits": a task that was removed, and of which only a NULL in "after" is left. */
#define WAITS_REMOVED PG_INT64_MIN

/* direct.c */
extern int
direct_claim(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
			 TimestampTz claimed, Claim *claims, Candidate *left, int *nleft);
extern void direct_finish(const TaskTable *table, RowFinish *finishes, int count);

/* rows_claim.c */
extern void rows_peek_groups(const TaskTable *table, RowsPeek *peeks, int count, int limit);
extern int rows_returned_places(MemoryContext where, uint64 count, TaskPlace **places);
extern int rows_claim(const TaskTable *table, const Candidate *candidates, int count,
					  TimestampTz now, TimestampTz claimed, Claim **claims);

#endif /* PG_TASK_ROWS_H */
