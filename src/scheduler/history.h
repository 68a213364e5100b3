/*
 * history.h
 *		Removes rows in a final state that have been kept for their time.
 */
#ifndef PG_TASK_HISTORY_H
#define PG_TASK_HISTORY_H

#include "postgres.h"

#include "scheduler/job.h"
#include "shared/clock.h"

extern const SchedulerJob history_job;

extern void history_hint(double keep, MonoTime now);
extern bool history_walking(void);
extern bool history_refused(void);

#endif /* PG_TASK_HISTORY_H */
