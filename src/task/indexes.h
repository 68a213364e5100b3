/*
 * indexes.h
 *		The indexes of the task table.
 */
#ifndef PG_TASK_INDEXES_H
#define PG_TASK_INDEXES_H

#include "postgres.h"

extern void indexes_complete(Oid relid, const char *name);

#endif /* PG_TASK_INDEXES_H */
