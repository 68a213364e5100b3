/*
 * dependents.h
 *		Rows that wait until other tasks have ended.
 */
#ifndef PG_TASK_DEPENDENTS_H
#define PG_TASK_DEPENDENTS_H

#include "postgres.h"

#include "scheduler/job.h"
#include "shared/clock.h"

/* Tasks that have ended, and whose dependents are not judged yet. */
#define DEPENDENTS_ENDED 4096

/* Rows that could not be written, and are left out for a while. */
#define DEPENDENTS_REFUSED 64

/* What the scheduler knows of the tasks for which rows wait, and its walk through their index. */
typedef struct Dependents
{
	bool any;	   /* rows may wait for other tasks */
	bool any_rule; /* some of them may have the rule "any" */

	/*
	 * Bits for the hashes of each watched task; NULL: nothing is known, so each task may be
	 * watched. The other ones are filled by the walk.
	 */
	uint8 *watched;
	uint8 *walked;

	/* ended tasks of which a row may watch one */
	int64 ended[DEPENDENTS_ENDED];
	int count;
	int judging; /* as many, from the first, are being judged: an error may interrupt it */

	/* rows that are being written, and those that could not be */
	int limit;	 /* as many are judged at once, at most */
	int writing; /* number of rows */
	int64 first; /* the first of them */
	int64 refused[DEPENDENTS_REFUSED];
	int nrefused;
	MonoTime refused_until; /* then they are tried again */
	MonoTime not_before;	/* nothing is judged before this: too many are refused */

	/*
	 * the walk from watched task to watched task, in slices; beside tasks that may start it takes a
	 * small share of the time, unless there are rows whose tasks may have ended before
	 */
	bool wanted;
	bool urgent;
	bool incomplete; /* until a walk has ended, the bits do not say enough */
	bool again;		 /* it has become so since the walk began */
	bool walking;
	bool found; /* the walk has found one */
	int64 position;
	int64 cost;		/* of its slices (us) */
	MonoTime next;	/* the next walk ... */
	MonoTime slice; /* ... and the next slice */

	/* whether none waits any more, so that all is forgotten: looked at when rows have ceased to
	 * wait */
	bool thinned;
	MonoTime settle_at;

	/* the walk through the rows with the rule "any" */
	bool any_wanted; /* a task has ended since the last one began */
	bool any_walking;
	bool any_found;
	int64 any_position;
	int64 any_cost;
	MonoTime any_next;

	bool routine; /* walks of both kinds that go on or are due: only because it was time */
} Dependents;

extern const SchedulerJob dependents_job;

extern void dependents_forget(void);
extern void dependents_ended(int64 id);
extern void dependents_take(int events);
extern void dependents_look(void);
extern bool dependents_is_watched(int64 id);
extern bool dependents_refused(void);
extern void dependents_retry_refused(void);

#endif /* PG_TASK_DEPENDENTS_H */
