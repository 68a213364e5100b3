/*
 * removal.h
 *		Tasks that are removed before they are DONE, while others wait for them.
 */
#ifndef PG_TASK_REMOVAL_H
#define PG_TASK_REMOVAL_H

#include "postgres.h"

#include "session/trigger_row.h"

extern void removal_mark(const TriggerRow *row);
extern bool removal_marks(Relation rel);

#endif /* PG_TASK_REMOVAL_H */
