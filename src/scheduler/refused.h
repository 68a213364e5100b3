/*
 * refused.h
 *		Rows that cannot be written: found in a batch, and set aside for a while.
 */
#ifndef PG_TASK_REFUSED_H
#define PG_TASK_REFUSED_H

#include "postgres.h"

#include "shared/clock.h"

#include "shared/task.h"

extern bool aside_has(TaskPlace place, MonoTime now);
extern int aside_count(void);
extern void aside_forget(void);
extern void aside_tidy(MonoTime now);

/* A batch: the rows that one transaction writes. */
typedef enum AsideBatch
{
	ASIDE_CLAIM,
	ASIDE_UNSTARTED, /* what has expired, or may not run */
	ASIDE_BINDING,	 /* what is bound to another role */
	ASIDE_BATCHES
} AsideBatch;

extern bool aside_singly(AsideBatch which);
extern void aside_add(AsideBatch which, TaskPlace place);
extern void aside_written(AsideBatch which);
extern bool aside_failed(MonoTime until, bool row_at_fault);

#endif /* PG_TASK_REFUSED_H */
