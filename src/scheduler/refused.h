/*
 * refused.h
 *		Refused rows: rows that a trigger or a constraint does not let the scheduler
 *		write.
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

/* A batch: the rows of one kind that one transaction writes. */
typedef enum RefusedBatch
{
	REFUSED_CLAIM,
	REFUSED_UNSTARTED, /* tasks that have expired, or may not run */
	REFUSED_BINDING,   /* rows that binding.c writes */
	REFUSED_BATCHES
} RefusedBatch;

extern bool refused_singly(RefusedBatch which);
extern void refused_add(RefusedBatch which, TaskPlace place);
extern void refused_batch_written(RefusedBatch which);
extern bool refused_batch_failed(MonoTime until, bool row_at_fault);

#endif /* PG_TASK_REFUSED_H */
