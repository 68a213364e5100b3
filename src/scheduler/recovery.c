/*
 * recovery.c
 *		After an error in an iteration: abort, report, and make everything whole again.
 *
 * If a row is at fault, only its batch is written in another way.  After any other error nothing
 * that was read of rows is trusted.  What runs is known from the rings.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "scheduler/binding.h"
#include "scheduler/dependents.h"
#include "scheduler/dispatch.h"
#include "scheduler/errors.h"
#include "scheduler/figures.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/orphans.h"
#include "scheduler/queues.h"
#include "scheduler/reboot.h"
#include "scheduler/reconcile.h"
#include "scheduler/recovery.h"
#include "scheduler/refused.h"
#include "scheduler/scan.h"
#include "scheduler/scheduler.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "task/watch.h"

/* A refused row is skipped for this time (ms) ... */
#define REFUSED_RETRY_MS 60000

/* ... or for this time, if a trigger of the owner's took too long (see work.c). */
#define REFUSED_SLOW_RETRY_MS 600000

/*
 * After a write has waited in vain for a row lock, there is none for this time (ms): these waits
 * take at most a tenth of the scheduler's time.
 */
#define ROW_LOCK_PAUSE_MS 200

/* Pause after a lack of memory (ms): doubled each time, up to the second. */
#define NO_MEMORY_MS 1000
#define NO_MEMORY_MAX_MS 60000

/*
 * Forget what was read of rows: after an error it is not trusted.  What runs is kept.  If the table
 * may have changed, which autovacuum brings about as well, the groups are kept: a scan corrects
 * what is wrong, and there may be very many.
 */
static void
forget_rows(bool table_changed)
{
	if (table_changed)
		queues_lose_sight();
	else
		groups_clear();
	binding_clear();
	work_forget_table();
	scan_forget();
	reconcile_want();
}

/* Return what follows from an error for the batch that was being written, and set the pauses. */
static BatchFailure
judge_error(int sqlstate, MonoTime now)
{
	bool waited = MyScheduler->writing && sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
	int pause_ms = sqlstate == ERRCODE_QUERY_CANCELED ? REFUSED_SLOW_RETRY_MS : REFUSED_RETRY_MS;
	BatchFailure failure = {.row_at_fault = waited || errors_of_row(sqlstate),
							.retry_at = clock_plus_ms(now, pause_ms)};

	if (waited)
		MyScheduler->no_writing_until = clock_plus_ms(now, ROW_LOCK_PAUSE_MS);
	if (sqlstate == ERRCODE_OUT_OF_MEMORY)
		MyScheduler->no_memory_ms =
			Min(Max(MyScheduler->no_memory_ms * 2, NO_MEMORY_MS), NO_MEMORY_MAX_MS);
	return failure;
}

/* Does the cause lie in one of these rows, so that the next tries tell in which? */
static bool
is_to_be_found(int sqlstate, int rows)
{
	return rows > 1 && errors_of_row(sqlstate) && sqlstate != ERRCODE_QUERY_CANCELED;
}

/*
 * Log an error, unless its message was logged before while the cause lasts.  If a row is at fault,
 * it is logged once that row is known.
 */
static void
report_error(const ErrorData *error, MonoTime now)
{
	int64 id = 0;
	int rows = refused_batch_rows(&id) + orphans_batch_rows(&id);

	if (rows == 1)
		errcontext("pg_task " INT64_FORMAT " in database \"%s\"", id, MyScheduler->database);
	if (error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		SetLatch(MyLatch);
	else if (!is_to_be_found(error->sqlerrcode, rows) &&
			 !errors_reported(MyScheduler->database, error->message ? error->message : "", now))
		EmitErrorReport();
	FlushErrorState();
}

/* The transaction of a batch has failed: decide how its rows are written next. */
static void
retry_batches(BatchFailure failure, bool writing, bool table_changed)
{
	bool at_once = refused_batches_failed(&failure);

	at_once |= orphans_write_failed(&failure);
	at_once |= history_write_failed(&failure);
	at_once |= reboot_write_failed(&failure);
	at_once |= dependents_write_failed(&failure);
	failure.row_at_fault &= writing;
	unstarted_write_failed(&failure);
	if (!failure.row_at_fault)
		forget_rows(table_changed);
	if (at_once)
	{
		/*
		 * What code of the owner's did to catalogs is undone, but was reported to this process: it
		 * does not have the refused rows tried again.
		 */
		MyScheduler->changes_seen = watch_changes();
		SetLatch(MyLatch);
	}
}

/* An error has ended the iteration: abort the transaction and make everything whole again. */
void
recovery_run(DispatchRound *round)
{
	ErrorData *error;
	MonoTime now = clock_mono();
	bool writing = MyScheduler->writing;
	BatchFailure failure;

	MemoryContextSwitchTo(MyScheduler->context);
	error = CopyErrorData();
	failure = judge_error(error->sqlerrcode, now);
	HOLD_INTERRUPTS();
	work_end_limit();
	report_error(error, now);
	AbortCurrentTransaction();
	if (error->sqlerrcode != ERRCODE_TABLE_CHANGED)
	{
		figures_error(error);
		dispatch_publish_none();
	}
	MyScheduler->iteration_failed = true;
	work_abandon();
	dispatch_abandon(round);
	retry_batches(failure, writing, error->sqlerrcode == ERRCODE_TABLE_CHANGED);
	MemoryContextSwitchTo(MyScheduler->context);
	RESUME_INTERRUPTS();
}
