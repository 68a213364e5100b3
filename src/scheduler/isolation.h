/*
 * isolation.h
 *		Isolation of suspects.
 */
#ifndef PG_TASK_ISOLATION_H
#define PG_TASK_ISOLATION_H

#include "postgres.h"

#include "scheduler/job.h"

extern const SchedulerJob isolation_job;

extern void isolation_want(void);
extern bool isolation_is_wanted(void);
extern void isolation_set_suspects(const int64 *ids, int count);
extern bool isolation_needed(int64 id);
extern bool isolation_acquire(void);
extern void isolation_release(void);
extern int isolation_count(void);

#endif /* PG_TASK_ISOLATION_H */
