/*
 * pending.h
 *		What this transaction will tell the scheduler of rows, if it commits.
 */
#ifndef PG_TASK_PENDING_H
#define PG_TASK_PENDING_H

#include "postgres.h"

#include "access/xact.h"

#include "session/trigger_row.h"

extern bool pending_add_events(Oid relid, int events);
extern void pending_add_row(const TriggerRow *old, const TriggerRow *new);
extern void pending_add_ended(Oid table, const TriggerRow *row);

/* For pg_task.c. */
extern void pending_transaction_ended(XactEvent event);

#endif /* PG_TASK_PENDING_H */
