/*
 * after.h
 *		The tasks for which a row waits: the columns "after" and "waits".
 */
#ifndef PG_TASK_AFTER_H
#define PG_TASK_AFTER_H

#include "postgres.h"

#include "utils/array.h"

#include "session/trigger_row.h"

/* The ids in the column "after". */
typedef struct After
{
	int count;
	int64 *ids;
	ArrayType *array;
	bool removed; /* there is a NULL for a task that was removed: "ids" is not set */
} After;

extern bool after_read(const TriggerRow *row, After *after);
extern bool after_needs(const TriggerRow *row, Datum *after, int64 *watched);
extern bool after_watch(const TriggerRow *row, bool check, int64 *watched);
extern void after_removed(const TriggerRow *row);
extern bool after_is_marking(Relation rel);

#endif /* PG_TASK_AFTER_H */
