/*
 * run.h
 *		One run: the request and the write-back of its outcome, in one transaction.
 */
#ifndef PG_TASK_RUN_H
#define PG_TASK_RUN_H

#include "postgres.h"

#include "shared/shared.h"

/* How a run has ended, and what the process has to do. */
typedef enum RunEnd
{
	RUN_OVER,	   /* its outcome is written, or its row is no longer that run: go on */
	RUN_NOT_BEGUN, /* nothing of it has run: give it back untaken, and exit */
	RUN_RETURNED,  /* rolled back, and not its fault: exit, and it is run again */
	RUN_UNWRITTEN  /* the slot says how it failed; the row is the scheduler's to write: exit */
} RunEnd;

extern void run_define(uint32 wait_event);
extern RunEnd run_task(const SharedTask *task);
extern bool run_clean_up(void);
extern bool run_listens(void);

#endif /* PG_TASK_RUN_H */
