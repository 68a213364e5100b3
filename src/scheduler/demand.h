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

extern int demand_compare(Oid left, Oid right);
extern bool
demand_executors(const Role *role, const char *name, int tasks, double average, MonoTime now);
extern void demand_yield(void);
extern MonoTime demand_until(MonoTime now);

#endif /* PG_TASK_DEMAND_H */
