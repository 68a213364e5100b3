/*
 * events.h
 *		What happens to tasks: counted in pg_stat_task, and logged as pg_task.log demands; and the
 *		response of a task that failed.
 */
#ifndef PG_TASK_EVENTS_H
#define PG_TASK_EVENTS_H

#include "postgres.h"

typedef enum EventKind
{
	EVENT_STARTED, /* a run has begun */
	EVENT_DONE,	   /* a run has ended DONE, or goes on later */
	EVENT_RETRIED, /* a run has failed, and the task is tried again */
	EVENT_FAILED,  /* the task is FAIL, perhaps without having been started */
	EVENT_STOPPED, /* a run was stopped by a user */
	EVENT_GONE	   /* the task was given up before it started */
} EventKind;

typedef struct TaskEvent
{
	EventKind kind;
	int64 id;
	int32 attempt; /* 0: the task has not been started */
	const char *queue;
	const char *role_name;
	int64 elapsed;		  /* us, negative: nothing; how long the task has waited, or the run took */
	const char *sqlstate; /* NULL: none */
	const char *error;	  /* NULL: none */
	bool crashed;		  /* the run may have crashed the server */
} TaskEvent;

extern TaskEvent *event_copy(const TaskEvent *event);
extern void event_report(const TaskEvent *event);
extern void event_note(const TaskEvent *event);
extern void events_committed(void);
extern void events_forget(void);

/* Why a task has failed, or did not start. */
typedef struct Failure
{
	const char *severity; /* ERROR or FATAL */
	const char *error;
	const char *detail; /* NULL: none */
	const char *hint;	/* NULL: none */
	const char *sqlstate;
} Failure;

extern char *failure_text(const Failure *failure);
extern char *failure_json(const Failure *failure);
extern char *failure_error_json(const ErrorData *error, int limit);

#endif /* PG_TASK_EVENTS_H */
