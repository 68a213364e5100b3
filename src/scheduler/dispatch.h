/*
 * dispatch.h
 *		One round: choose tasks, claim them in one commit, and assign them to executors.
 */
#ifndef PG_TASK_DISPATCH_H
#define PG_TASK_DISPATCH_H

#include "scheduler/job.h"

extern const SchedulerJob dispatch_job;

#endif /* PG_TASK_DISPATCH_H */
