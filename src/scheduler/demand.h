/*
 * demand.h
 *		Which role gets another executor, and which executor exits for it.
 */
#ifndef PG_TASK_DEMAND_H
#define PG_TASK_DEMAND_H

#include "postgres.h"

#include "shared/clock.h"
#include "shared/report.h"
#include "task/roles.h"

/* A lack of worker slots, which lasts longer than a round. */
typedef struct WorkerShortage
{
	MonoTime until; /* no attempt before this */
	Reports reports;
} WorkerShortage;

/* What decides which of two roles is the next to get an executor. */
typedef struct DemandNeed
{
	int executors;	  /* that it has */
	MonoTime granted; /* when it got the last one */
} DemandNeed;

extern DemandNeed demand_need(Oid role);
extern int demand_compare(const DemandNeed *left, const DemandNeed *right);
extern bool
demand_executors(const Role *role, const char *name, int tasks, double average, MonoTime now);
extern void demand_yield(void);
extern MonoTime demand_until(MonoTime now);

#endif /* PG_TASK_DEMAND_H */
