/*
 * job.h
 *		What the scheduler has to do again and again: jobs, each with the same verbs.
 *
 * The loop knows jobs by these verbs alone.  Its list (scheduler.c) has the order in which they run
 * in an iteration; the same list says how long the scheduler may sleep, and whether it is idle.  A
 * verb that a job does not need is NULL.
 *
 * All are called in the guarded iteration of the loop, "failed" while it handles an error, where
 * nothing may fail.
 */
#ifndef PG_TASK_JOB_H
#define PG_TASK_JOB_H

#include "postgres.h"

#include "scheduler/work.h"
#include "shared/clock.h"

/*
 * If rows were refused, or a table beside the task table, or a role has no executor, a scheduler
 * that has exited for another database comes back after this time (ms).
 */
#define JOB_FAILED_RETRY_MS 30000

typedef struct SchedulerJob
{
	/*
	 * Return when the job has something to do; CLOCK_NEVER: not by itself.  The scheduler sleeps no
	 * longer.
	 */
	MonoTime (*due)(ClockNow now);

	/*
	 * Return when the database needs a scheduler for it: one with nothing to do exits where there
	 * are more databases than places, and comes back then.  NULL: what a successor would do anyway.
	 */
	MonoTime (*needed)(ClockNow now);

	/*
	 * Do it, in transactions of its own, for a short time: what is left is due again.  Called if
	 * the job is due.
	 */
	void (*run)(ClockNow now);

	/*
	 * The task table was prepared again: what is known of its definition does not hold any more.
	 * "another": nor what is known of its rows, because it is not the table of before.
	 */
	void (*forget_table)(bool another);

	/*
	 * An error has ended the iteration and been rolled back, perhaps in a transaction of this job:
	 * make its memory whole.
	 */
	void (*failed)(const BatchFailure *failure);

	bool always; /* "run" is called in every iteration, and decides itself */
	bool writes; /* does not run for a while after a write has waited for a row lock in vain */
} SchedulerJob;

#endif /* PG_TASK_JOB_H */
