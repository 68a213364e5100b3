/*
 * aside.h
 *		Rows that cannot be written: found in a batch, and set aside for a while.
 */
#ifndef PG_TASK_ASIDE_H
#define PG_TASK_ASIDE_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "task.h"

extern bool aside_has(TaskPlace place, TimestampTz now);
extern int aside_count(void);
extern void aside_forget(void);
extern void aside_tidy(TimestampTz now);

/* The batch: the rows that one transaction writes. */
extern bool aside_singly(void);
extern void aside_add(TaskPlace place);
extern void aside_written(void);
extern bool aside_failed(TimestampTz until, bool row_at_fault);

#endif /* PG_TASK_ASIDE_H */
