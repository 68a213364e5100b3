/*
 * refused.h
 *		Errors that end an iteration of the scheduler, and refused rows: rows that a trigger or a
 *		constraint does not let it write.
 */
#ifndef PG_TASK_REFUSED_H
#define PG_TASK_REFUSED_H

#include "postgres.h"

#include "shared/clock.h"
#include "shared/task.h"

/* The transaction that wrote a batch of rows has failed. */
typedef struct BatchFailure
{
	int sqlstate;
	bool waited;	   /* for a row lock, in vain */
	bool row_at_fault; /* so it was, or the error may come from the data of a row */
	bool forget;	   /* nothing is trusted that was read of rows */
	int rows;		   /* how many were to be written */
	MonoTime retry_at; /* a refused row is not written before this */
} BatchFailure;

/* What writes rows: each has one batch in a transaction. */
typedef enum RefusedBatch
{
	REFUSED_CLAIM,
	REFUSED_UNSTARTED,
	REFUSED_HISTORY,
	REFUSED_DEPENDENTS,
	REFUSED_ORPHANS, /* which keeps its refused rows itself */
	REFUSED_BATCHES
} RefusedBatch;

extern bool refused_has(TaskPlace place, MonoTime now);
extern int refused_ids(MonoTime now, int64 **ids);
extern int refused_count(void);
extern void refused_forget(void);
extern void refused_tidy(MonoTime now);

extern int refused_limit(RefusedBatch which, int most);
extern int
refused_batch_take(RefusedBatch which, TaskPlace *places, int count, int limit, MonoTime now);
extern void refused_batch_add(RefusedBatch which, TaskPlace place, int rows);
extern void refused_batch_written(RefusedBatch which);

extern BatchFailure refused_end_iteration(MonoTime now);
extern void refused_end_reports(void);

#endif /* PG_TASK_REFUSED_H */
