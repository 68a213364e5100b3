/*
 * survey.h
 *		What the slots of all processes say at one moment, for functions that SQL calls.
 */
#ifndef PG_TASK_SURVEY_H
#define PG_TASK_SURVEY_H

#include "postgres.h"

#include "shared/shared.h"

/* What is asked for. */
typedef struct SurveySubject
{
	Oid database;
	Oid role;
	const char *queue;
	TaskRun run;
} SurveySubject;

/* What was found. */
typedef struct Survey
{
	/* the scheduler of the database */
	SchedulerState state; /* SCHEDULER_FREE: there is none */
	bool prepared;		  /* it has a task table */
	int scheduler_pid;	  /* 0: it has not attached */
	bool supervised;	  /* the supervisor runs */
	bool crowded;		  /* databases take turns at having a scheduler */

	/* executors: those that are busy have a task, or get one */
	int busy;		  /* on the server */
	int of_role;	  /* executors of the role on the server */
	int of_database;  /* executors in the database */
	bool has_idle;	  /* one of the role in the database is not busy */
	int of_queue;	  /* tasks of the queue in the database that run, or are about to */
	bool isolated;	  /* a task runs isolated, somewhere on the server */
	bool has_run;	  /* the run is in a ring ... */
	bool has_begun;	  /* ... and has begun ... */
	int executor_pid; /* ... in this process */
} Survey;

extern Survey survey_take(const SurveySubject *subject);

#endif /* PG_TASK_SURVEY_H */
