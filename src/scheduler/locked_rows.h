/*
 * locked_rows.h
 *		The due rows that other sessions have locked, as far as the scheduler has found them.
 */
#ifndef PG_TASK_LOCKED_ROWS_H
#define PG_TASK_LOCKED_ROWS_H

#include "postgres.h"

#include "shared/task.h"

extern void locked_rows_add(TaskPlace place);
extern void locked_rows_remove(TaskPlace place);
extern void locked_rows_scan_begins(void);
extern void locked_rows_forget(void);
extern int locked_rows_count(void);

#endif /* PG_TASK_LOCKED_ROWS_H */
