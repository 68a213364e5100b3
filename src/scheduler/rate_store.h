/*
 * rate_store.h
 *		What is durable of the rates of queues.
 */
#ifndef PG_TASK_RATE_STORE_H
#define PG_TASK_RATE_STORE_H

#include "postgres.h"

#include "scheduler/dispatch.h"
#include "scheduler/job.h"
#include "shared/clock.h"
#include "shared/report.h"
#include "task/table.h"

/* A part of SchedulerProcess. */
typedef struct RateStore
{
	TaskTable *table;  /* the rate table, in TopMemoryContext; NULL: it has to be prepared */
	bool read;		   /* what earlier schedulers have written was read */
	Oid last_relid;	   /* the one that was prepared last */
	MonoTime retry_at; /* it could not be used: try again then */
	Reports faults;	   /* that were logged */
	MonoTime tidy_at;  /* look for rates with nothing left to remember */
} RateStore;

extern const SchedulerJob rate_store_job;
extern const SchedulerJob rate_tidy_job;

extern void rate_store_write_chosen(const DispatchRound *round);
extern void rate_store_flush(ClockNow now);

#endif /* PG_TASK_RATE_STORE_H */
