/*
 * trigger_checks.h
 *		Checks what a user writes into a row of the task table.
 */
#ifndef PG_TASK_TRIGGER_CHECKS_H
#define PG_TASK_TRIGGER_CHECKS_H

#include "postgres.h"

#include "session/trigger_row.h"

/* "old" is NULL for an INSERT. */
extern void trigger_check_values(const TriggerRow *row);
extern void trigger_check_role(const TriggerRow *row, int64 role_id);
extern void trigger_check_rights(const TriggerRow *old, const TriggerRow *new);
extern void trigger_check_state(const TriggerRow *old, const TriggerRow *new);
extern void trigger_forbid(TaskColumn which, const char *hint);

#endif /* PG_TASK_TRIGGER_CHECKS_H */
