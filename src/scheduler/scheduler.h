/*
 * scheduler.h
 *		The scheduler process.
 */
#ifndef PG_TASK_SCHEDULER_H
#define PG_TASK_SCHEDULER_H

#include "postgres.h"

#include <signal.h>

#include "utils/timeout.h"

#include "location.h"
#include "scheduler/demand.h"
#include "scheduler/dependents.h"
#include "settings.h"
#include "shared/clock.h"
#include "shared/shared.h"
#include "task/owner.h"
#include "task/table.h"

/*
 * What a scheduler remembers from iteration to iteration.  The large memories, of groups, executors
 * and rows, are private to their files.
 */
typedef struct SchedulerProcess
{
	SharedScheduler *slot;
	const char *database; /* its name when this process started */
	Location settings;	  /* of the task table */
	uint32 wait_event;

	/* the task table, and the transaction on it: see work.c */
	TaskTable *table;					  /* in TopMemoryContext; NULL: it has to be prepared */
	Oid last_relid;						  /* whose rows are known, as far as any are */
	bool away;							  /* the table is: its tasks are held back */
	Reports owner_code;					  /* objects for which tasks wait, that were logged */
	MemoryContext context;				  /* reset in every iteration */
	volatile sig_atomic_t in_transaction; /* or connecting: read by the handler of SIGTERM */
	bool writing;						  /* between work_begin_writing and work_end */
	bool lazy;							  /* the commit need not be durable */
	OwnerScope scope;					  /* while the process acts as the table's owner */
	TimeoutId end_timeout;				  /* of a transaction that cannot be cancelled */

	bool row_missed; /* since the last scan began, a row was locked */
	bool absent;	 /* there is no table, and none is to be created */
	WorkerShortage no_worker;
	bool demands;	/* the last round had roles that are to ask again soon: see DemandAnswer */
	bool gave_back; /* the last round has put its tasks back */
	Dependents dependents;
} SchedulerProcess;

/* NULL in all other processes. */
extern SchedulerProcess *MyScheduler;

#endif /* PG_TASK_SCHEDULER_H */
