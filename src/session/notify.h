/*
 * notify.h
 *		Tells whoever listens that a user has ended a task.
 */
#ifndef PG_TASK_NOTIFY_H
#define PG_TASK_NOTIFY_H

#include "postgres.h"

#include "session/trigger_row.h"

extern void notify_end(const TriggerRow *old, const TriggerRow *new);

#endif /* PG_TASK_NOTIFY_H */
