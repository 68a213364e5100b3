/*
 * removed.h
 *		The table of removed tasks, as the scheduler uses it.
 */
#ifndef PG_TASK_REMOVED_H
#define PG_TASK_REMOVED_H

#include "postgres.h"

#include "shared/clock.h"
#include "shared/report.h"
#include "task/table.h"

typedef struct RemovedTasks
{
	TaskTable *table; /* in TopMemoryContext; NULL: it has to be prepared, or cannot be used */
	bool prepared;
	MonoTime retry_at; /* then it is prepared again, if it could not be used */
	Reports faults;	   /* that were logged */
} RemovedTasks;

/* What removed_settle has found. */
typedef enum RemovedState
{
	REMOVED_SETTLED, /* no row waits, and nothing is recorded */
	REMOVED_NEEDED,	 /* rows wait */
	REMOVED_AGAIN	 /* look again: a row may be being inserted, or there is more to delete */
} RemovedState;

extern bool removed_due(MonoTime now);
extern void removed_prepare(MonoTime now);
extern void removed_forget_table(void);
extern const TaskTable *removed_lock(void);
extern RemovedState removed_settle(void);

#endif /* PG_TASK_REMOVED_H */
