/*
 * dependents.h
 *		Rows that wait until other tasks have ended.
 */
#ifndef PG_TASK_DEPENDENTS_H
#define PG_TASK_DEPENDENTS_H

#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/job.h"
#include "shared/clock.h"

/* Tasks that have ended, and whose dependents are not judged yet. */
#define DEPENDENTS_ENDED 4096

/* Rows that could not be written, and are left out for a while. */
#define DEPENDENTS_REFUSED 64

/* What is known of rows that wait. */
typedef enum DependentsState
{
	DEPENDENTS_NONE, /* there are none */
	DEPENDENTS_REST, /* there may be some; the next walk begins at a time */
	DEPENDENTS_WALK	 /* the same, and a walk is going on */
} DependentsState;

/* The tasks for which rows wait, those of them that have ended, and the walk that looks for both.
 */
typedef struct Dependents
{
	DependentsState state;
	HTAB *watched; /* tasks for which rows wait; NULL: none is known */
	bool complete; /* these are all of them */
	bool full;	   /* there are too many to remember them */
	bool missed;   /* there are some that no report named, since the walk began */

	/* tasks that have ended, or perhaps: the first of them are judged */
	int count;
	int64 ended[DEPENDENTS_ENDED];
	MonoTime not_before; /* none is judged before this */

	/* rows that could not be written */
	int limit;	   /* as many are judged at once, at most */
	int judging;   /* as many are being judged, at most: an error may interrupt it */
	int64 writing; /* which one, if it is one */
	int nrefused;
	int64 refused[DEPENDENTS_REFUSED];
	MonoTime refused_until; /* then they are tried again */

	/* the walk from watched task to watched task, in slices */
	int64 position;
	bool found;	   /* it has found one */
	int64 cost;	   /* of its slices (us) */
	MonoTime next; /* slice, or walk */
} Dependents;

extern const SchedulerJob dependents_job;

extern void dependents_ended(int64 id);
extern void dependents_take(int events);
extern void dependents_look(void);
extern bool dependents_is_watched(int64 id);
extern bool dependents_refused(void);
extern void dependents_retry_refused(void);

#endif /* PG_TASK_DEPENDENTS_H */
