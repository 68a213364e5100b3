/*
 * after.h
 *		The tasks for which a row waits: the columns "after" and "waits".
 */
#ifndef PG_TASK_AFTER_H
#define PG_TASK_AFTER_H

#include "postgres.h"

#include "session/trigger_row.h"

extern bool after_needs(const TriggerRow *row, Datum *after, int64 *watched);
extern bool after_watch(const TriggerRow *row, bool check, int64 *watched);
extern char *after_find_chain(const TriggerRow *row);
extern bool after_is_marking(Relation rel);
extern void after_tell_end(const TriggerRow *row, bool removed);

#endif /* PG_TASK_AFTER_H */
