/*
 * work.c
 *		The transactions of the scheduler: as the owner of the task table, under fixed
 *		settings, and for a limited time.
 *
 * The process is connected as the bootstrap superuser, because the owner of a table need not be
 * able to log in.  Between work_begin and work_end it acts as the owner.
 *
 * This file knows no row.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "scheduler/work.h"
#include "task/owner.h"
#include "task/rows.h"
#include "task/watch.h"

/* Longest transaction that writes rows; its owner's triggers run in it (ms). */
#define WRITE_MS 10000

/* A transaction that does not end for being cancelled ends the process after this (ms). */
#define END_MS 5000

/* Longest wait for another's row lock in work_begin_writing. */
#define ROW_LOCK_TIMEOUT "20ms"

Work work;

static OwnerScope scope;
static TimeoutId end_timeout; /* of a transaction that cannot be cancelled */

/* The transaction takes too long, and does not end for being cancelled. */
static void
end_process(void)
{
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

/* The limits of the transaction hold no more. */
void
work_end_limit(void)
{
	disable_timeout(STATEMENT_TIMEOUT, false);
	disable_timeout(end_timeout, false);
	QueryCancelPending = false;
}

/* What is left of this transaction takes so long at most. */
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
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, activity);
	work.open = true;
	StartTransactionCommand();
	if (work.table)
	{
		work_limit(WRITE_MS);
		/* with the lock the name stays; without, another table may have taken it */
		table_lock(work.table);
		if (watch_changed())
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		owner_become(work.table->owner, &scope);
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(work.context);
}

/*
 * Commit, still as the owner.  Settings go back before, for what a trigger of the
 * owner's has set would stay with the commit.
 */
void
work_end(void)
{
	PopActiveSnapshot();
	if (work.table)
		AtEOXact_GUC(false, scope.nest_level);
	CommitTransactionCommand();
	work_end_limit();
	if (work.table)
		owner_committed(&scope);
	work.open = false;
	work.writing = false;
	MemoryContextSwitchTo(work.context);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * As work_begin, to write rows whose next runs may have to wait for somebody: not for long,
 * and then it counts as the fault of a row.  For the table itself it waits as usual.
 */
void
work_begin_writing(const char *activity)
{
	work_begin(activity);
	LockRelationOid(work.table->relid, RowExclusiveLock);
	(void) set_config_option("lock_timeout", ROW_LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	work.writing = true;
}

void
work_forget_table(void)
{
	rows_forget_plans();
	table_free(work.table);
	work.table = NULL;
}

/* What has to be fixed for our own statements, whatever the database's settings. */
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
		{"default_table_access_method", "heap"}, /* one in which rows can be changed */
		{"exit_on_error", "off"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"transaction_timeout", "0"}, /* from 17 on */
		/* the table, and what it needs, is of this server alone */
		{"citus.enable_ddl_propagation", "off"},
		{"citus.use_citus_managed_tables", "off"},
	};
	int i;

	for (i = 0; i < (int) lengthof(fixed); i++)
		if (GetConfigOption(fixed[i][0], true, false))
			SetConfigOption(fixed[i][0], fixed[i][1], PGC_SUSET, PGC_S_SESSION);
}

/* Once, when the process is connected. */
void
work_define(void)
{
	end_timeout = RegisterTimeout(USER_TIMEOUT, end_process);
	fix_settings();
	work.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task iteration", ALLOCSET_DEFAULT_SIZES);
}

/* An error has ended the transaction, or will; the caller aborts it. */
void
work_abandon(void)
{
	work.open = work.writing = false;
	owner_abandon();
}
