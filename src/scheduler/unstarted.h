/*
 * unstarted.h
 *		Waiting rows that are not started, until they are written.
 */
#ifndef PG_TASK_UNSTARTED_H
#define PG_TASK_UNSTARTED_H

#include "postgres.h"

#include "scheduler/job.h"
#include "task/rows.h"

extern const SchedulerJob unstarted_job;

extern bool unstarted_fail(TaskPlace place, const TaskGroup *group, const char *error,
						   const char *hint, int sqlstate, bool repeats);
extern void unstarted_bind(const TaskGroup *group);
extern void unstarted_expire(const Candidate *candidate);
extern void unstarted_look(void);

#endif /* PG_TASK_UNSTARTED_H */
