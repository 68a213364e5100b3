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
#include "scheduler/errors.h"
#include "scheduler/history.h"
#include "scheduler/isolation.h"
#include "scheduler/rate_store.h"
#include "scheduler/reboot.h"
#include "scheduler/reconcile.h"
#include "scheduler/removed.h"
#include "scheduler/rules_reader.h"
#include "scheduler/scan.h"
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
	const char *database;	 /* its name when this process started */
	Location settings;		 /* of the task table */
	uint32 settings_seen;	 /* change counter of the settings of the database */
	uint32 changes_seen;	 /* of watch_changes: refused rows were retried after these */
	char *database_settings; /* as database_settings returns them; NULL: not read yet */
	uint32 wait_event;
	TimeoutId wake_timeout; /* ends the sleep of the loop */

	/* the task table, and the transaction on it: see work.c */
	TaskTable *table;					  /* in TopMemoryContext; NULL: it has to be prepared */
	Oid last_relid;						  /* the table that was prepared last */
	bool away;							  /* the table is: its tasks are held back */
	Reports owner_code;					  /* objects for which tasks wait, that were logged */
	MemoryContext context;				  /* reset in every iteration */
	volatile sig_atomic_t in_transaction; /* or connecting: read by the handler of SIGTERM */
	bool writing;						  /* between work_begin_writing and work_end */
	bool lazy;							  /* the commit need not be durable */
	OwnerScope scope;					  /* while the process acts as the table's owner */
	TimeoutId end_timeout;				  /* of a transaction that cannot be cancelled */

	/* what the files of these names remember from iteration to iteration */
	TableScan scan;
	ReconcileState reconcile;
	Isolation isolation;
	WorkerShortage no_worker;
	bool demands; /* the last round had roles that are to ask again soon: see DemandAnswer */
	ErrorLog errors;
	HistoryWalk history;
	RateStore rates;
	RulesReader rules;
	RebootSearch reboot;
	Dependents dependents;
	RemovedTasks removed;

	/* the loop */
	MonoTime next_look;		   /* at the rows that look_at_rows reads ... */
	MonoTime next_index_look;  /* ... and at those that look_at_indexes reads for it */
	TimestampTz next_expiry;   /* when the next waiting task expires */
	ClockNow dispatched;	   /* start of the last dispatch round */
	bool gave_back;			   /* the last round has put its tasks back */
	bool row_missed;		   /* since the last scan began, a row was locked */
	MonoTime rests_since;	   /* CLOCK_NEVER: it has work, or keeps its place anyway */
	bool absent;			   /* there is no table, and none is to be created */
	bool iteration_failed;	   /* the last iteration ended with an error */
	MonoTime no_writing_until; /* a write has waited for a row lock in vain */
	int no_memory_ms;		   /* pause after a lack of memory; 0: there was none */
} SchedulerProcess;

/* NULL in all other processes. */
extern SchedulerProcess *MyScheduler;

#endif /* PG_TASK_SCHEDULER_H */
