/*
 * demand.h
 *		Which role gets another executor, and which executor exits for it.
 */
#ifndef PG_TASK_DEMAND_H
#define PG_TASK_DEMAND_H

#include "postgres.h"

#include "scheduler/order.h"
#include "shared/clock.h"
#include "task/roles.h"

/* What becomes of a demand for executors. */
typedef enum DemandAnswer
{
	DEMAND_MET,		/* the role gets as many as it needs, or may not have more itself */
	DEMAND_REFUSED, /* no role gets one now, unless it comes from another database */
	DEMAND_AWAITED, /* the role has as many as it may on the server, some in other databases: one of
					 * them may exit for it, and others are of no use */
	DEMAND_BARRED,	/* a connection limit of 0, or code of the table's owner, keeps the role from
					 * having any */
	DEMAND_FULL		/* the connection limit of this database is reached: the same for all roles that
					 * it concerns, and executors of other databases are of no use */
} DemandAnswer;

extern int demand_executors_of(Oid role);
extern int demand_lacking(Oid role, int tasks, double average);
extern DemandAnswer
demand_executors(const Role *role, GroupRole *asks, int tasks, double average, MonoTime now);
extern void demand_yield(void);
extern void demand_ask_again(bool soon);
extern MonoTime demand_until(MonoTime now);

#endif /* PG_TASK_DEMAND_H */
