/*
 * work.h
 *		What all files of the scheduler share; its transactions, as the owner of the task table;
 *		errors that end them, and refused rows.
 */
#ifndef PG_TASK_WORK_H
#define PG_TASK_WORK_H

#include "postgres.h"

#include <signal.h>

#include "settings.h"
#include "shared/clock.h"
#include "shared/report.h"
#include "shared/shared.h"
#include "shared/task.h"
#include "task/statement.h"
#include "task/table.h"

/*
 * What all files of a scheduler share.  What one of them remembers from iteration to iteration is
 * private to it.
 */
typedef struct SchedulerProcess
{
	SharedScheduler *slot;
	const char *database; /* its name when this process started */
	Location settings;	  /* of the task table */
	uint32 wait_event;

	/* the task table, and the transaction on it */
	TaskTable *table;					  /* in TopMemoryContext; NULL: it has to be prepared */
	Oid last_relid;						  /* whose rows are known, as far as any are */
	bool absent;						  /* there is none, and none is to be created */
	Reports owner_code;					  /* objects for which tasks wait, that were logged */
	MemoryContext context;				  /* reset in every iteration */
	volatile sig_atomic_t in_transaction; /* or connecting: read by the handler of SIGTERM */
	bool writing;						  /* between work_begin_writing and work_end */

	/*
	 * The commit of this transaction need not be durable, because after a crash the scheduler does
	 * the same again.  A later commit that is durable, such as a claim, makes this one durable.
	 */
	bool lazy;
	int events;		 /* SharedEvents that are to be handled: each by the job that looks for it */
	bool row_missed; /* a row was locked that no complete look has found since */
	bool wants_suspects; /* a scan is to read the suspects, whatever that costs */
} SchedulerProcess;

/* NULL in all other processes. */
extern SchedulerProcess *MyScheduler;

/* Longest transaction that scans the table (ms); see work_limit. */
#define WORK_SCAN_MS 60000

extern void work_define(void);
extern void work_begin(const char *activity);
extern bool work_begin_writing(const char *activity, bool wait);
extern void work_limit(int limit_ms);
extern void work_end(void);

/* Execute a statement on the task table. */
static inline uint64
work_execute(const Statement *statement, StatementArgs *args)
{
	return statement_execute(statement, MyScheduler->table, args);
}

/* A figure for pg_stat_task_scheduler.  This process alone writes its figures, without a lock. */
static inline void
figure_set(SchedulerFigure which, int64 value)
{
	pg_atomic_write_u64(&MyScheduler->slot->figures[which], (uint64) value);
}

static inline void
figure_add(SchedulerFigure which, int64 value)
{
	figure_set(which, (int64) pg_atomic_read_u64(&MyScheduler->slot->figures[which]) + value);
}

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
extern void refused_forget(MonoTime until);

extern int refused_limit(RefusedBatch which, int most);
extern void refused_batch_add(RefusedBatch which, TaskPlace place, int rows);
extern void work_end_batch(RefusedBatch which);

extern BatchFailure refused_end_iteration(MonoTime now);
extern void refused_end_reports(void);

#endif /* PG_TASK_WORK_H */
