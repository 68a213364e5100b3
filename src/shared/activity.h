/*
 * activity.h
 *		What an executor runs now, for everybody who wants to know.
 */
#ifndef PG_TASK_ACTIVITY_H
#define PG_TASK_ACTIVITY_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "storage/spin.h"

#include "shared/task.h"

/* Longest message of a task's progress (bytes). */
#define ACTIVITY_MESSAGE 255

/* A number of the progress that the task has not reported. */
#define ACTIVITY_UNKNOWN PG_INT64_MIN

/* How far a task says that it has come. */
typedef struct Progress
{
	int64 done;							/* ACTIVITY_UNKNOWN: not said */
	int64 total;						/* the same */
	char message[ACTIVITY_MESSAGE + 1]; /* empty: not said */
} Progress;

/* What a task reports of it.  What is ACTIVITY_UNKNOWN or NULL stays as it was. */
typedef struct ProgressReport
{
	int64 done;
	int64 total;
	const char *message;
	int length; /* of the message: at most ACTIVITY_MESSAGE */
} ProgressReport;

/* The run of a task. */
typedef struct Activity
{
	Oid database;
	Oid relid; /* the task table */
	Oid role;
	int pid;
	int encoding; /* of the database, and so of "queue" and "progress.message" */
	TaskRun run;
	TimestampTz start; /* what the outcome will write into "start" */
	int64 timeout;	   /* us; 0: none */
	char queue[TASK_QUEUE_MAX + 1];
	Progress progress;
} Activity;

/*
 * The place of an executor for its activity.  Only the process of the executor writes it, with the
 * spinlock; it reads "running" without (own).
 */
typedef struct SharedActivity
{
	slock_t mutex;
	bool running;
	Activity activity;
} SharedActivity;

/* For the executor of the place. */
extern void activity_begin(SharedActivity *place, const Activity *activity);
extern void activity_end(SharedActivity *place);
extern void activity_progress(SharedActivity *place, const ProgressReport *report);

/* For all. */
extern bool activity_read(SharedActivity *place, Activity *activity);
extern ProgressReport progress_of_arguments(FunctionCallInfo fcinfo, int first);
extern void progress_update(Progress *progress, const ProgressReport *report);

/* Nothing is said yet. */
static inline void
progress_clear(Progress *progress)
{
	progress->done = progress->total = ACTIVITY_UNKNOWN;
	progress->message[0] = '\0';
}

#endif /* PG_TASK_ACTIVITY_H */
