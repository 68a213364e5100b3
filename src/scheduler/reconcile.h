/*
 * reconcile.h
 *		The rows in state WORK, compared with the runs of the executors.
 */
#ifndef PG_TASK_RECONCILE_H
#define PG_TASK_RECONCILE_H

#include "postgres.h"

#include "shared/clock.h"
#include "task/table.h"

/* What is to be compared: after a restart the orphans are found in parts, in different iterations.
 */
typedef struct ReconcileState
{
	bool wanted;			/* compare, because a row in state WORK was changed */
	bool orphans_wanted;	/* search for orphans */
	MonoTime orphans_after; /* no search for orphans before this */
} ReconcileState;

extern void reconcile_want(void);
extern bool reconcile_due(MonoTime now);
extern void reconcile_rows(const TaskTable *table);
extern MonoTime reconcile_until(void);

#endif /* PG_TASK_RECONCILE_H */
