/*
 * correction.h
 *		Corrects a row of the task table after an INSERT or UPDATE.
 */
#ifndef PG_TASK_CORRECTION_H
#define PG_TASK_CORRECTION_H

#include "postgres.h"

#include "nodes/bitmapset.h"

#include "session/trigger_row.h"

extern bool
correction_apply(const TriggerRow *old, const TriggerRow *new, const Bitmapset *updated);

#endif /* PG_TASK_CORRECTION_H */
