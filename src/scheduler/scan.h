/*
 * scan.h
 *		The scan that finds the first waiting row of every group.
 */
#ifndef PG_TASK_SCAN_H
#define PG_TASK_SCAN_H

#include "postgres.h"

#include "scheduler/job.h"
#include "shared/clock.h"

extern const SchedulerJob scan_job;

extern bool scan_is_open(void);
extern void scan_no_later(MonoTime moment);

extern int scan_count_suspects(void);
extern bool scan_is_suspect(int64 id);
extern bool scan_acquire_suspect(void);

#endif /* PG_TASK_SCAN_H */
