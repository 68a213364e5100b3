/*
 * trigger_hints.h
 *		What the scheduler must know of the rows that a transaction inserts, changes or removes.
 */
#ifndef PG_TASK_TRIGGER_HINTS_H
#define PG_TASK_TRIGGER_HINTS_H

#include "postgres.h"

#include "session/trigger_row.h"

extern void trigger_add_ended(Oid table, const TriggerRow *row);
extern void trigger_add_pending(const TriggerRow *old, const TriggerRow *new);

#endif /* PG_TASK_TRIGGER_HINTS_H */
