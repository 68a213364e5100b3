/*
 * refused.h
 *		Rows that cannot be written: found in a batch, and set aside for a while.
 */
#ifndef PG_TASK_REFUSED_H
#define PG_TASK_REFUSED_H

#include "postgres.h"

#include "shared/clock.h"

#include "shared/task.h"

extern bool refused_has(TaskPlace place, MonoTime now);
extern int refused_count(void);
extern void refused_forget(void);
extern void refused_tidy(MonoTime now);

/* A batch: the rows that one transaction writes. */
typedef enum RefusedBatch
{
	REFUSED_CLAIM,
	REFUSED_UNSTARTED, /* what has expired, or may not run */
	REFUSED_BINDING,   /* what is bound to another role */
	REFUSED_BATCHES
} RefusedBatch;

extern bool refused_singly(RefusedBatch which);
extern void refused_add(RefusedBatch which, TaskPlace place);
extern void refused_batch_written(RefusedBatch which);
extern bool refused_batch_failed(MonoTime until, bool row_at_fault);

#endif /* PG_TASK_REFUSED_H */
