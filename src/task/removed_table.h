/*
 * removed_table.h
 *		The table of removed tasks that were not DONE.
 */
#ifndef PG_TASK_REMOVED_TABLE_H
#define PG_TASK_REMOVED_TABLE_H

#include "postgres.h"

#include "storage/lock.h"

#include "task/table.h"

#define REMOVED_SUFFIX "removed"

extern TaskTable *
removed_table_prepare(const TaskTable *table, MemoryContext context, char **fault);
extern void removed_lock_tag(LOCKTAG *tag, Oid relid);

extern int removed_rows_find(const TaskTable *removed, const int64 *ids, int count, int64 **found);
extern int removed_rows_forget(const TaskTable *removed, int limit);

#endif /* PG_TASK_REMOVED_TABLE_H */
