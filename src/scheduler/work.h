/*
 * work.h
 *		The transactions of the scheduler, as the owner of the task table.
 */
#ifndef PG_TASK_WORK_H
#define PG_TASK_WORK_H

#include "postgres.h"

#include <signal.h>

#include "task/table.h"

/* Longest transaction that scans the table (ms); see work_limit. */
#define WORK_SCAN_MS 60000

/* The table that this process serves, and the transaction that it is in. */
typedef struct Work
{
	TaskTable *table;			/* in TopMemoryContext; NULL: it has to be prepared */
	MemoryContext context;		/* reset in every iteration */
	volatile sig_atomic_t open; /* a transaction is open, or the process is connecting */
	bool writing;				/* between work_begin_writing and work_end */
} Work;

extern Work work;

extern void work_define(void);
extern void work_begin(const char *activity);
extern void work_begin_writing(const char *activity);
extern void work_limit(int limit_ms);
extern void work_end_limit(void);
extern void work_end(void);
extern void work_abandon(void);
extern void work_forget_table(void);

#endif /* PG_TASK_WORK_H */
