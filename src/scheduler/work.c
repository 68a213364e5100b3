/*
 * work.c
 *		The transactions of the scheduler: as the owner of the task table, under fixed
 *		settings, and for a limited time.
 *
 * The process is connected as the bootstrap superuser, because the owner of a table need not be
 * able to log in.  Between work_begin and work_end it acts as the owner.
 *
 * This file reads and writes no row.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "scheduler/work.h"
#include "shared/statistics.h"
#include "task/events.h"
#include "task/owner.h"
#include "task/rows.h"

/* Longest transaction that writes rows; its owner's triggers run in it (ms). */
#define WRITE_MS 10000

/* A transaction that goes on after it was cancelled ends the process after this time (ms). */
#define END_MS 5000

/* Longest wait for the lock of a row in work_begin_writing. */
#define ROW_LOCK_TIMEOUT "20ms"

SchedulerProcess *MyScheduler = NULL;

/* Static, because these are of the one transaction that the process may have open. */
static OwnerScope scope;	  /* while the process acts as the table's owner */
static TimeoutId end_timeout; /* of a transaction that cannot be cancelled */

/* The transaction takes too long, and the cancel had no effect: end the process. */
static void
end_process(void)
{
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

/* End the limits of the transaction. */
void
work_end_limit(void)
{
	disable_timeout(STATEMENT_TIMEOUT, false);
	disable_timeout(end_timeout, false);
	QueryCancelPending = false;
}

/* Limit the rest of this transaction to this time (ms). */
void
work_limit(int limit_ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), limit_ms);

	work_end_limit();
	enable_timeout_at(STATEMENT_TIMEOUT, end);
	enable_timeout_at(end_timeout, TimestampTzPlusMilliseconds(end, END_MS));
}

/* Open a transaction; with a table, as its owner. */
void
work_begin(const char *activity)
{
	Assert(MyScheduler != NULL && !MyScheduler->in_transaction);
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, activity);
	MyScheduler->in_transaction = true;
	MyScheduler->lazy = false;
	events_forget();
	StartTransactionCommand();
	if (MyScheduler->table)
	{
		work_limit(WRITE_MS);
		/* with the lock the name stays; without, another table may have taken it */
		table_lock(MyScheduler->table, AccessShareLock);
		if (watch_changed())
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		owner_become(MyScheduler->table->owner, &scope);
		owner_pin_path(); /* for the commit, too */
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(MyScheduler->context);
}

/* The signals whose handlers are restored after code of the owner's. */
static const int signals[] = {SIGHUP,  SIGINT,	SIGQUIT, SIGTERM, SIGALRM,
							  SIGPIPE, SIGUSR1, SIGUSR2, SIGURG,  SIGCHLD};

/* Their handlers in this process.  Static, because they are those of the process. */
static struct sigaction handlers[lengthof(signals)];

/*
 * Undo what code of the owner's has done to the process: release the locks that it has taken for
 * the session, advisory ones; and restore the handlers of signals, which some languages, such as
 * plperl, let it change.  In the context in which it runs, it cannot leave anything else in the
 * session but settings, which have a level of their own.
 */
static void
clean_session(void)
{
	int i;

	Assert(!IsTransactionState());
	LockReleaseAll(USER_LOCKMETHOD, true);
	for (i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], &handlers[i], NULL);
}

/*
 * Commit, still as the owner.  Reset the settings before: what a trigger of the owner's has set
 * would stay after the commit.
 */
void
work_end(void)
{
	Assert(MyScheduler->in_transaction);
	PopActiveSnapshot();
	if (MyScheduler->table)
		AtEOXact_GUC(false, scope.nest_level);
	scope.nest_level = 0;
	if (MyScheduler->lazy)
		(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
	CommitTransactionCommand();
	clean_session();
	work_end_limit();
	if (MyScheduler->table)
		owner_return(&scope);
	MyScheduler->in_transaction = false;
	MyScheduler->writing = false;
	MemoryContextSwitchTo(MyScheduler->context);
	events_committed();
	statistics_flush();
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * As work_begin, to write rows other than claims.  The lock of a row or of an index entry may be
 * held by another session: the transaction waits ROW_LOCK_TIMEOUT for it, and then a row is at
 * fault.  For the lock of the table it waits as usual; or, unless "wait", not at all: it returns
 * false, without a transaction, if that is not free.
 */
bool
work_begin_writing(const char *activity, bool wait)
{
	Oid relid = MyScheduler->table->relid;

	work_begin(activity);
	if (wait)
		relation_lock(relid, RowExclusiveLock);
	else if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
	{
		work_end();
		return false;
	}
	(void) set_config_option("lock_timeout", ROW_LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	MyScheduler->writing = true;
	return true;
}

/* Fix the settings on which our statements depend: those of the database do not count. */
static void
fix_settings(void)
{
	static const char *const fixed[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"synchronous_commit", "local"}, /* a claim never waits for a standby */
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"lock_timeout", "1s"},
		{"statement_timeout", "0"},
		{"row_security", "on"},
		{"session_replication_role", "origin"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"DateStyle", "ISO"},
		{"IntervalStyle", "postgres"},
		{"default_table_access_method", "heap"}, /* others may not support UPDATE */
		{"exit_on_error", "off"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"transaction_timeout", "0"}, /* from 17 on */
		/* the table and its functions stay on this server */
		{"citus.enable_ddl_propagation", "off"},
		{"citus.use_citus_managed_tables", "off"},
	};
	int i;

	for (i = 0; i < (int) lengthof(fixed); i++)
		if (GetConfigOption(fixed[i][0], true, false))
			SetConfigOption(fixed[i][0], fixed[i][1], PGC_SUSET, PGC_S_SESSION);
}

/* Prepare the process for transactions, once, when it is connected. */
void
work_define(void)
{
	int i;

	for (i = 0; i < (int) lengthof(signals); i++)
		sigaction(signals[i], NULL, &handlers[i]);
	end_timeout = RegisterTimeout(USER_TIMEOUT, end_process);
	fix_settings();
	MyScheduler->context =
		AllocSetContextCreate(TopMemoryContext, "pg_task iteration", ALLOCSET_DEFAULT_SIZES);
}

/* An error has ended the transaction, and the caller has aborted it. */
void
work_abandon(void)
{
	MyScheduler->in_transaction = MyScheduler->writing = false;
	clean_session();
	owner_abandon();
}
