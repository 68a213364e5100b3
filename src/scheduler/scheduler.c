/*
 * scheduler.c
 *		The process that decides, for one database, which task starts next.
 *
 * The loop: account for what executors did, recover what was lost, take the
 * hints that commits left, look at the table when the period is over, claim
 * what may start and hand it out, sleep until something is due.
 *
 * The process starts as the bootstrap superuser, because the owner of a table
 * need not be able to log in; every statement on task rows runs as that owner
 * (begin_work).  It runs no user's request.
 *
 * This file knows no SQL, no result and no calendar.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "scheduler/binding.h"
#include "scheduler/choice.h"
#include "scheduler/dispatch.h"
#include "scheduler/errors.h"
#include "scheduler/groups.h"
#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/refused.h"
#include "scheduler/scan.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/port.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "task/outcome.h"
#include "task/rows.h"
#include "task/statement.h"
#include "task/table.h"
#include "task/watch.h"

PGDLLEXPORT void pg_task_scheduler_main(Datum arg);

/* While a task waits for its turn to run in isolation, one looks for it so often at least. */
#define ISOLATED_RETRY_MS 1000

/* So many tasks are given up by one statement. */
#define EXPIRE_MAX 1000

/* So many rows at a time are looked at that are WORK and that nobody has in hand. */
#define ORPHANS_MAX 4000

/* To look for them takes at most 1/10 of the time, unless some are found. */
#define ORPHANS_SHARE 10

/* So many batches of what was lost are written before the scheduler goes. */
#define GO_BATCHES 8

/* A row that cannot be written is tried again so much later ... */
#define REFUSED_RETRY_MS 60000

/* ... and one for which a trigger of the owner's takes longer than WRITE_MS. */
#define REFUSED_SLOW_RETRY_MS 600000

/* A scheduler that has nothing to do for so long may leave its place to another database. */
#define IDLE_AHEAD_MS 1000

/* After an error, a database that shares its place has its next turn so much later. */
#define FAILED_TURN_MS 30000
/*
 * After a row that is written has waited in vain for a lock, nothing of that kind is written for
 * this time (ms): such rows take a tenth of the scheduler's time at most.
 */
#define ROW_LOCK_PAUSE_MS 200

/* After an error for want of memory the scheduler does nothing for this time, doubled each time. */
#define NO_MEMORY_MS 1000
#define NO_MEMORY_MAX_MS 60000

static SharedScheduler *me = NULL;
static const char *database; /* its name when this process started */
static SettingsTable where;
static uint32 wait_event = 0;

static Oid last_relid = InvalidOid; /* the table that was prepared last */
static bool reconcile_due = true;
static bool orphans_due = true;
static bool wants_executor = false;
static MonoTime next_orphans = {0};
static TimestampTz next_expiry = 0;	   /* when a waiting task is given up */
static ClockNow dispatched = {{0}, 0}; /* the moment of the last dispatch_round */
static bool turn_failed = false;
static MonoTime no_writing_until = {0}; /* a row has waited for a lock in vain */
static int no_memory_ms = 0; /* the next turn comes no sooner; 0: no error of that kind */

/*
 * Asked to end: between transactions in order, within one at once, for a trigger
 * of the owner's may run in it; and while it connects, for the database may be locked.
 */
static void
terminate(SIGNAL_ARGS)
{
	ShutdownRequestPending = true;
	if (work.open)
		die(COMPAT_SIGNAL_PASS);
	SetLatch(MyLatch);
}

static void
leave_slot(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	scheduler_slot_release(me);
}

/* Make sure of the work.table; everything known about its rows is read again. */
static void
prepare_table(void)
{
	TaskTable *prepared;

	shared_scheduler_publish(me, InvalidOid);
	work_forget_table();
	work_begin("preparing the task table");
	prepared = table_prepare(&where, me->user, work.context);
	work_end();
	table_keep(prepared);
	work.table = prepared;
	shared_scheduler_publish(me, work.table->relid);
	scan_forget();
	if (prepared->relid != last_relid)
	{
		/* another table: what was known of rows is not of its rows */
		groups_clear();
		reconcile_due = true;
	}
	last_relid = prepared->relid;
}

/* Nobody has this run in hand: why? */
static void
add_orphan(TaskRun run)
{
	static const TaskFailure crashed = {.sqlstate = "57P02",
										.error = "the server crashed while the task ran"};

	if (crash_blames(me->database, run))
		orphans_add(run, ORPHAN_CRASHED, &crashed);
	else
		orphans_add(run, ORPHAN_INTERRUPTED, NULL);
}

/*
 * Within a transaction: rows that are WORK and that nobody has in hand (of these runs, in the
 * order of rows_of_runs) are rescued.  After a restore there may be many: they are read a
 * part at a time, as fast as they are rescued.
 */
static void
find_orphans(const WorkingRow *held, int nheld)
{
	MonoTime begun = clock_mono();
	int limit = nheld + orphans_count() + ORPHANS_MAX;
	WorkingRow *rows;
	int count = rows_working(work.table, limit, &rows);
	int i;

	for (i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!rows_contain(held, nheld, rows[i].run) && !orphans_has(rows[i].run))
			add_orphan(rows[i].run);
	}
	orphans_due = count == limit;
	next_orphans = CLOCK_LONG_AGO;
	if (!orphans_due)
		next_orphans.us = begun.us + (clock_mono().us - begun.us) * ORPHANS_SHARE;
}

/* Rows that nobody has in hand are to be looked for, and there is room in memory for more. */
static bool
may_find_orphans(void)
{
	return orphans_due && orphans_backlog() < ORPHANS_MAX / 4;
}

/*
 * Within a transaction: compare the rows that are WORK with what executors have in hand.
 * A row that nobody has in hand is rescued; a task whose row is that run no more is
 * cancelled.
 */
static void
reconcile_in_transaction(void)
{
	TaskRun *held;
	int count = pool_held(work.table->relid, &held);
	WorkingRow *rows = NULL;

	if (count > 0)
		count = rows_of_runs(work.table, held, count, &rows);
	crash_report_used();
	pool_reconcile(work.table->relid, rows, count);
	orphans_due = true;
	if (may_find_orphans() && !clock_is_before(clock_mono(), next_orphans))
		find_orphans(rows, count);
	reconcile_due = false;
}

static void
reconcile(void)
{
	work_begin("looking at the tasks that run");
	work_limit(WORK_SCAN_MS);
	reconcile_in_transaction();
	work_end();
}

/*
 * Write what became of runs whose processes could not do so: one batch, and again when other
 * work has had its turn.
 */
static void
write_orphans(void)
{
	MonoTime now = clock_mono();

	if (!orphans_ready(now))
		return;
	/* what ends with the server is for the next one to judge */
	if (!PostmasterIsAlive())
		proc_exit(1);
	work_begin_writing("rescuing tasks");
	/* what may crash the server is found by a scan, and run in isolation */
	if (orphans_write(work.table, now))
		scan_want();
	work_end();
	orphans_written(clock_mono());
	if (orphans_ready(now))
		SetLatch(MyLatch);
}

/* Give up the tasks that have waited for too long. */
static void
expire(ClockNow now)
{
	TaskPlace *places;
	RowKey *rows;
	int found;
	int written = 0;
	int count = 0;
	int most = refused_singly(REFUSED_UNSTARTED) ? 1 : EXPIRE_MAX;
	Candidate *expired;
	int i;

	work_begin_writing("giving up tasks");
	found = rows_expired(work.table, now.wall, EXPIRE_MAX + refused_count(), &places);
	expired = palloc0(found * sizeof(Candidate) + 1);
	for (i = 0; i < found && count < most; i++)
	{
		if (refused_has(places[i], now.mono))
			continue;
		refused_add(REFUSED_UNSTARTED, places[i]);
		expired[count++].place = places[i];
	}
	if (count > 0)
	{
		written = rows_expire(work.table, now.wall, expired, count, &rows);
		for (i = 0; i < written; i++)
			outcome_plan_next(work.table, rows[i], now.wall, OUTCOME_EXPIRED_PAUSE_MS);
	}
	next_expiry = rows_next_expiry(work.table);
	work_end();
	refused_batch_written(REFUSED_UNSTARTED);
	/* what somebody has locked, or is set aside, is seen to with the next look */
	if (next_expiry <= now.wall && written < most)
		next_expiry = DT_NOEND;
}

/* Write the rows of tasks that will not be started. */
static void
write_unstarted(ClockNow now)
{
	if (!unstarted_any())
		return;
	work_begin_writing("giving up tasks");
	unstarted_write(work.table, now.wall);
	work_end();
	refused_batch_written(REFUSED_UNSTARTED);
	unstarted_written();
	if (unstarted_any())
		SetLatch(MyLatch);
}

/* Bind waiting rows to their roles, or end those whose role is gone. */
static void
bind_rows(ClockNow now)
{
	work_begin_writing("binding tasks to roles");
	if (binding_write(work.table, now.mono))
		SetLatch(MyLatch);
	work_end();
	refused_batch_written(REFUSED_BINDING);
}

/* Take what commits have noted since the last time. */
static void
take_hints(void)
{
	static SharedHint hints[SHARED_ALL_HINTS];
	int events;
	int count = shared_scheduler_take_hints(me, hints, &events);
	int i;

	for (i = 0; i < count; i++)
	{
		TaskGroup group = {hints[i].queue, hints[i].max, hints[i].priority, NameStr(hints[i].role),
						   hints[i].role_id};

		groups_hint(&group, hints[i].place);
	}
	if (events & SHARED_SCAN)
		scan_want();
	reconcile_due |= (events & SHARED_RECONCILE) != 0;
	if (events & SHARED_EXPIRY)
		next_expiry = 0;
}

/* What is done with each scan beside it. */
static void
begin_scan(MonoTime now)
{
	int64 *isolated;
	int count;

	refused_tidy(now);
	reconcile_in_transaction();
	count = rows_isolated(work.table, &isolated);
	choice_set_isolated(isolated, count);
	next_expiry = rows_next_expiry(work.table);
}

/* Read the first row of every group, a slice at a time: finds what no hint told of. */
static void
scan(MonoTime now)
{
	if (choice_waits_isolated() && pool_isolated_free())
		scan_want();
	if (!scan_due(now))
		return;
	work_begin("looking at the task table");
	work_limit(WORK_SCAN_MS);
	if (!scan_going())
	{
		dispatch_row_locked = false;
		begin_scan(now);
	}
	scan_slice(work.table, where.period);
	work_end();
}

/* One turn of the loop. */
static void
run_iteration(void)
{
	ClockNow now = clock_now();

	arbiter_renew(me);
	pool_reap();
	if (watch_changed())
	{
		refused_forget();
		orphans_retry_refused();
	}
	if (work.table == NULL || watch_changed())
		prepare_table();
	take_hints();
	if (reconcile_due || (may_find_orphans() && !clock_is_before(now.mono, next_orphans)))
		reconcile();
	pool_yield();
	pool_reclaim(now.mono);
	scan(now.mono);
	wants_executor = false;
	/* one claim a turn: hints and finished tasks come in between */
	dispatched = clock_now();
	if (dispatch_round(dispatched, &wants_executor))
		SetLatch(MyLatch);
	arbiter_want(me, wants_executor);
	/* last: these may wait for others or be refused by them, and nobody else is to suffer */
	if (!clock_is_before(now.mono, no_writing_until))
	{
		write_orphans();
		write_unstarted(now);
		if (now.wall >= next_expiry)
			expire(now);
		if (binding_due())
			bind_rows(now);
	}
	turn_failed = false;
	no_memory_ms = 0;
	if (!orphans_refused() && refused_count() == 0)
		errors_forget();
}

/* Nothing that was remembered of rows is trusted any more; what runs is. */
static void
forget_rows(void)
{
	choice_drop();
	groups_clear();
	binding_clear();
	work_forget_table();
	scan_forget();
	reconcile_due = true;
}

/* What follows from the kind of an error: whether it is a row's, and how long to wait. */
static bool
judge_error(int sqlstate, MonoTime now)
{
	bool waited = work.writing && sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;

	if (waited)
		no_writing_until = clock_plus_ms(now, ROW_LOCK_PAUSE_MS);
	if (sqlstate == ERRCODE_OUT_OF_MEMORY)
		no_memory_ms = Min(Max(no_memory_ms * 2, NO_MEMORY_MS), NO_MEMORY_MAX_MS);
	return waited || errors_of_row(sqlstate);
}

/*
 * An error ended the turn.  It is reported once, not in every turn.  If it is the fault of
 * a row that is given up or rescued, the others are not affected.
 */
static void
recover_from_error(void)
{
	ErrorData *error;
	MonoTime now = clock_mono();
	bool writing = work.writing;
	bool of_row;
	int pause;

	MemoryContextSwitchTo(work.context);
	error = CopyErrorData();
	of_row = judge_error(error->sqlerrcode, now);
	pause = error->sqlerrcode == ERRCODE_QUERY_CANCELED ? REFUSED_SLOW_RETRY_MS : REFUSED_RETRY_MS;
	HOLD_INTERRUPTS();
	work_end_limit();
	if (error->sqlerrcode == ERRCODE_TABLE_CHANGED)
		SetLatch(MyLatch);
	else if (!errors_reported(database, error->message ? error->message : "", now))
		EmitErrorReport();
	FlushErrorState();
	AbortCurrentTransaction();
	turn_failed = true;
	work_abandon();
	if (refused_batch_failed(clock_plus_ms(now, pause), of_row))
		SetLatch(MyLatch);
	if (orphans_write_failed(now, of_row, pause))
		SetLatch(MyLatch);
	unstarted_failed(writing && of_row);
	if (!writing || !of_row)
		forget_rows();
	MemoryContextSwitchTo(work.context);
	RESUME_INTERRUPTS();
}

static void
name_database(void *arg pg_attribute_unused())
{
	errcontext("pg_task scheduler of database \"%s\"", database);
}

static void
run_guarded_iteration(void)
{
	ErrorContextCallback callback = {.previous = error_context_stack, .callback = name_database};

	MemoryContextReset(work.context);
	MemoryContextSwitchTo(work.context);
	error_context_stack = &callback;
	PG_TRY();
	{
		run_iteration();
	}
	PG_CATCH();
	{
		recover_from_error();
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
}

/* When there is next a row to be written that is not a claim. */
static MonoTime
next_writing(ClockNow now)
{
	if (unstarted_any() || binding_due())
		return now.mono;
	return clock_min(clock_of_wall(now, next_expiry), orphans_until());
}

/* When there is next something to do, beside scans and what executors have in hand. */
static MonoTime
next_due(ClockNow now)
{
	MonoTime due = clock_min(groups_until(now), next_writing(now));

	if (turn_failed)
		return clock_plus_ms(now.mono, FAILED_TURN_MS);
	if (work.table == NULL || scan_going() || groups_ready(now))
		return now.mono;
	if (choice_waits_isolated())
		due = clock_min(due, clock_plus_ms(now.mono, ISOLATED_RETRY_MS));
	return clock_min(due, choice_until());
}

/* Tell the supervisor whether the place of this scheduler may be another's. */
static void
show_idle(ClockNow now)
{
	bool idle;

	/* read without a lock: when that changes, this process is woken */
	if (!Shared->crowded)
		return;
	idle =
		!pool_is_busy() && clock_is_before(clock_plus_ms(now.mono, IDLE_AHEAD_MS), next_due(now));
	if (idle == (pg_atomic_read_u64(&me->idle_since) != 0))
		return;
	pg_atomic_write_u64(&me->idle_since, idle ? (uint64) now.mono.us : 0);
	if (idle)
		shared_wake_supervisor();
}

/*
 * Memory has run out: whatever wakes us, wait for a while.  Each attempt would add to the
 * load, and some dozens of lines of the server's own to the log.
 */
static void
wait_for_memory(void)
{
	MonoTime until = clock_plus_ms(clock_mono(), no_memory_ms);
	long left;

	arbiter_want(me, false);
	while (!ShutdownRequestPending && !ConfigReloadPending && !scheduler_slot_is_leaving(me) &&
		   (left = clock_ms_until(clock_mono(), until)) > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left,
						 wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	SetLatch(MyLatch);
}

/* Sleep until the next thing is due, or until somebody wakes us. */
static void
wait_for_work(void)
{
	ClockNow now = clock_now();
	MonoTime until = clock_plus_ms(now.mono, where.period);

	show_idle(now);
	if (!turn_failed)
	{
		/* what became due since tasks were dispatched is due at once */
		until = clock_min(scan_until(), groups_until(dispatched));
		until = clock_min(until, clock_min(pool_until(dispatched.mono), choice_until()));
		until = clock_min(until, clock_max(next_writing(now), no_writing_until));
	}
	if (may_find_orphans() && !turn_failed)
		until = clock_min(until, next_orphans);
	if (choice_waits_isolated())
		until = clock_min(until, clock_plus_ms(now.mono, ISOLATED_RETRY_MS));
	(void) pgstat_report_stat(false);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 clock_ms_until(now.mono, until), wait_event);
	ResetLatch(MyLatch);
	QueryCancelPending = false; /* there is nothing to cancel */
	CHECK_FOR_INTERRUPTS();
}

static void
attach(Datum arg)
{
	uint32 generation;
	int slot = worker_slot(arg, &generation);

	me = scheduler_slot_attach(slot, generation);
	if (me == NULL)
		proc_exit(0);
	on_shmem_exit(leave_slot, 0);
	roles_define();
	work.open = true;
	BackgroundWorkerInitializeConnectionByOid(me->database, InvalidOid, 0);
	work.open = false;
	arbiter_renew(me);
	wait_event = COMPAT_WAIT_EVENT("PgTaskSchedulerMain");
	work_define();
	port_describe(); /* for triggers of the owner's */
	statement_define();
	StartTransactionCommand();
	database = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	where = settings_table(database);
}

/* Nothing new starts; what was handed out and not begun is given back. */
static void
shut_down(void)
{
	ClockNow now = clock_now();
	int i;

	scheduler_slot_leave(me);
	pool_dismiss();
	me->due = dispatch_row_locked ? clock_min(next_due(now), scan_until()) : next_due(now);
	/* there may be very many of other kinds: some are written, and the next scheduler finds the
	 * rest */
	for (i = 0; work.table && (i < GO_BATCHES || orphans_must_write()); i++)
		write_orphans();
}

void
pg_task_scheduler_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, terminate);
	BackgroundWorkerUnblockSignals();
	attach(arg);
	groups_create();
	pool_create(me, database);

	/* on a reload it goes, and is started again with the settings of that moment */
	while (!ShutdownRequestPending && !ConfigReloadPending && !scheduler_slot_is_leaving(me))
	{
		run_guarded_iteration();
		if (no_memory_ms > 0)
			wait_for_memory();
		wait_for_work();
	}
	MemoryContextSwitchTo(work.context);
	shut_down();
	proc_exit(0);
}
