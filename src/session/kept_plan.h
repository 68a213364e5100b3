/*
 * kept_plan.h
 *		A plan of SPI that is kept from one call of a trigger to the next.
 */
#ifndef PG_TASK_KEPT_PLAN_H
#define PG_TASK_KEPT_PLAN_H

#include "postgres.h"

#include "executor/spi.h"

/* A statement and its plan.  All zero: none is kept.  The members are kept_plan.c's own. */
typedef struct KeptPlan
{
	char *sql; /* in TopMemoryContext; NULL: there is no plan */
	Oid relid; /* the only table that it names */
	SPIPlanPtr plan;
	Oid planned_for;   /* who executed it last; InvalidOid: nobody has */
	bool row_security; /* the setting at that time */
	bool latest;	   /* set by its user: it sees what is committed now, in any isolation */
	bool busy;		   /* it is being executed: what runs meanwhile does not replace it */
} KeptPlan;

extern int kept_plan_execute(KeptPlan *kept, const char *text, Oid relid, int count, Oid *types,
							 Datum *values);

#endif /* PG_TASK_KEPT_PLAN_H */
