/*
 * rate_store.h
 *		What is durable of the rates of queues.
 */
#ifndef PG_TASK_RATE_STORE_H
#define PG_TASK_RATE_STORE_H

#include "postgres.h"

#include "scheduler/round.h"
#include "scheduler/job.h"
#include "shared/clock.h"

extern const SchedulerJob rate_store_job;
extern const SchedulerJob rate_tidy_job;

extern void rate_store_write(const DispatchRound *round);

#endif /* PG_TASK_RATE_STORE_H */
