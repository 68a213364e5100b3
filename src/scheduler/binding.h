/*
 * binding.h
 *		Waiting rows that are not bound to the role that they name.
 */
#ifndef PG_TASK_BINDING_H
#define PG_TASK_BINDING_H

#include "postgres.h"

#include "scheduler/job.h"
#include "task/rows.h"

extern const SchedulerJob binding_job;

extern void binding_add(const TaskGroup *group);
extern void binding_add_unbound(const GroupHead *heads, int count);

#endif /* PG_TASK_BINDING_H */
