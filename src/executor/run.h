/*
 * run.h
 *		One run of a task.
 */
#ifndef PG_TASK_RUN_H
#define PG_TASK_RUN_H

#include "postgres.h"

#include "utils/jsonb.h"

#include "executor/request.h"
#include "shared/shared.h"

/* How a run has ended, and what the process has to do. */
typedef enum RunEnd
{
	RUN_OVER,	   /* the outcome is written, or the row is no longer this run: continue */
	RUN_NOT_BEGUN, /* the request has not begun: return the task to the ring and exit */
	RUN_RETURNED,  /* rolled back, but the task has not failed: exit, and it is run again */
	RUN_UNWRITTEN  /* the scheduler must write how it has ended: it is in the slot; exit */
} RunEnd;

extern void run_define(void);
extern RunEnd run_task(const SharedTask *task, bool *clean);

/* For a batch (executor.c). */
extern void run_start_timer(MonoTime started, int64 limit);
extern void run_stop_timer(void);
extern void run_allow_cancel(void);
extern void run_forbid_cancel(void);
extern void
run_request(Request *request, const Jsonb *input, TaskResult *result, MemoryContext memory);
extern void run_reset_process(void);
extern void run_abort(int level);
extern bool run_clean_up(void);

#endif /* PG_TASK_RUN_H */
