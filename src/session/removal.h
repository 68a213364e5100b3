/*
 * removal.h
 *		Tasks that are removed while others may wait for them.
 */
#ifndef PG_TASK_REMOVAL_H
#define PG_TASK_REMOVAL_H

#include "postgres.h"

#include "storage/itemptr.h"

#include "session/trigger_row.h"

extern void removal_record(const TriggerRow *row);
extern void removal_forget_all(Oid root);
extern void removal_expect_waiting(Oid root);
extern bool removal_wait(Oid relid, ItemPointer tid);

#endif /* PG_TASK_REMOVAL_H */
