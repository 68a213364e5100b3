/*
 * dependents.h
 *		Rows that wait until other tasks have ended.
 */
#ifndef PG_TASK_DEPENDENTS_H
#define PG_TASK_DEPENDENTS_H

#include "postgres.h"

#include "scheduler/job.h"
#include "shared/shared.h"

extern const SchedulerJob dependents_job;

extern void dependents_ended(int64 id);
extern void dependents_take(const SharedIds *watched);
extern void dependents_look(void);
extern bool dependents_is_watched(int64 id);

#endif /* PG_TASK_DEPENDENTS_H */
