/*
 * rows.h
 *		The statements on task rows.
 *
 * Every function runs inside a transaction of the caller's, as the table's
 * owner (table_become), and returns what it read in the current memory
 * context.
 */
#ifndef PG_TASK_ROWS_H
#define PG_TASK_ROWS_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "task/table.h"
#include "shared/task.h"

/* A group that has waiting rows, and its first one. */
typedef struct QueueHead
{
	TaskGroup group;
	TaskPlace place;
	bool too_long; /* the name of the queue, which is cut */
} QueueHead;

/* A task to be claimed, and the process that is to run it. */
typedef struct QueueCandidate
{
	TaskPlace place;
	const TaskGroup *group;
	int pid;
	int active; /* milliseconds, where the column is NULL; 0: no limit */
	bool apart; /* it may be one that was running when the server crashed */
} QueueCandidate;

/* A task that was claimed. */
typedef struct QueueClaim
{
	TaskRun run;
	int64 timeout; /* microseconds, -1 for NULL */
	bool repeats;
	bool deletes;
	char *format;  /* NULL for NULL */
	char *request; /* NULL when longer than was asked for */
	char *role;
	int64 role_id;
} QueueClaim;

/* A row: its id, and because that may not be unique in a partitioned table, its role. */
typedef struct QueueRow
{
	int64 id;
	const char *role;
} QueueRow;

/* A row in state WORK. */
typedef struct QueueWork
{
	TaskRun run;
	char *queue;
} QueueWork;

/* What the next run of a repeating task is computed from. */
typedef struct QueueRepeat
{
	TimestampTz dt;
	Interval *repeat;
	bool drift;
	char *timezone; /* NULL: the role's */
	int64 role_id;
} QueueRepeat;

/* What decides whether a run is tried again. */
typedef struct QueueRetry
{
	int failed; /* earlier runs */
	int crashed;
	int retry;			 /* -1 for NULL */
	double backoff;		 /* -1 for NULL */
	int64 delay;		 /* microseconds, at most an hour; -1 for NULL */
	TimestampTz planned; /* at first */
	TimestampTz expires; /* by "active" alone; DT_NOEND for NULL */
	bool repeats;
	char *role;
	int64 role_id;
} QueueRetry;

extern int queue_look(const TaskTable *table, const TaskGroup *after, int limit, QueueHead **heads);
extern int queue_peek(const TaskTable *table, const TaskGroup *group, TaskPlace after, int limit,
					  TaskPlace **places);
extern int queue_unlocked(const TaskTable *table, const TaskPlace *places, int count, int64 **ids);
extern int queue_claim(const TaskTable *table, const QueueCandidate *candidates, int count,
					   TimestampTz now, TimestampTz claimed, QueueClaim **claims);
extern int queue_release(const TaskTable *table, const TaskRun *runs, int count, TaskRun **done);
extern int queue_replan(const TaskTable *table, const TaskRun *runs, int count,
						const TaskFailure *why, TaskRun **done);
extern int queue_work(const TaskTable *table, int limit, QueueWork **rows);
extern int queue_runs(const TaskTable *table, const TaskRun *runs, int count, QueueWork **rows);
extern const QueueWork *queue_works(const QueueWork *rows, int count, TaskRun run);
extern int queue_apart(const TaskTable *table, int64 **ids);
extern int queue_expired(const TaskTable *table, TimestampTz now, int limit, TaskPlace **places);
extern int queue_expire(const TaskTable *table, TimestampTz now, const QueueCandidate *candidates,
						int count, QueueRow **rows);
extern TimestampTz queue_expiry(const TaskTable *table);
extern bool
queue_refuse(const TaskTable *table, QueueRow row, const char *error, const char *sqlstate);
extern int queue_role_gone(const TaskTable *table, const TaskGroup *group, const int64 *ids,
						   int count, const char *error, const char *sqlstate);
extern int queue_bind(const TaskTable *table, const TaskGroup *group, const int64 *ids, int count,
					  const char *role, int64 role_id);
extern char *queue_request(const TaskTable *table, TaskRun run);
extern bool queue_finish(const TaskTable *table, TaskRun run, const TaskResult *result);
extern bool queue_end(const TaskTable *table, TaskRun run, const TaskResult *result);
extern bool queue_retry(const TaskTable *table, TaskRun run, bool wait, QueueRetry *retry);
extern bool queue_delete(const TaskTable *table, TaskRun run, const char *state);
extern bool queue_repeat(const TaskTable *table, QueueRow row, QueueRepeat *repeat);
extern void queue_insert_next(const TaskTable *table, QueueRow row, TimestampTz dt);
extern int queue_compare_ids(const void *a, const void *b);
extern void queue_forget(void);

#endif /* PG_TASK_ROWS_H */
