/*
 * scheduler.c
 *		The process that decides, for one database, which task starts next.
 *
 * The loop: reap what executors have finished, take the hints that commits left, reconcile the rows
 * in state WORK, scan the table when the period is over, run one round of dispatch, write orphans
 * and other rows, sleep until something is due.
 *
 * The process starts as the bootstrap superuser, because the owner of a table need not be able to
 * log in; every statement on task rows is executed as that owner (work_begin).  It runs no user's
 * request.
 *
 * This file contains no SQL, formats no result and computes no repetition.
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
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h" /* get_database_name, from 19 on */
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "scheduler/away.h"
#include "scheduler/demand.h"
#include "scheduler/dependents.h"
#include "scheduler/dispatch.h"
#include "scheduler/errors.h"
#include "scheduler/figures.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/idle.h"
#include "scheduler/isolation.h"
#include "scheduler/order.h"
#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/rate_store.h"
#include "scheduler/rates.h"
#include "scheduler/reconcile.h"
#include "scheduler/recovery.h"
#include "scheduler/refused.h"
#include "scheduler/role_line.h"
#include "scheduler/role_state.h"
#include "scheduler/row_writes.h"
#include "scheduler/rules_reader.h"
#include "scheduler/scan.h"
#include "scheduler/scheduler.h"
#include "scheduler/work.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/port.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "task/database.h"
#include "task/rows.h"
#include "task/statement.h"
#include "task/table.h"
#include "task/watch.h"
#include "zones.h"

PGDLLEXPORT void pg_task_scheduler_main(Datum arg);

/* Maximum number of batches of orphans that are written before the scheduler exits. */
#define EXIT_BATCHES 8

/* What is due within this time ends the sleep by a timer (ms). */
#define WAKE_TIMER_MS 2000

/*
 * What look_at_indexes reads without being asked takes at most 1/100 of the time; for that, it
 * waits for a minute at most (us).
 */
#define INDEX_LOOK_SHARE 100
#define INDEX_LOOK_MAX_US 60000000

SchedulerProcess *MyScheduler = NULL;

/*
 * Handler of SIGTERM.  Between transactions the process exits in order.  Within one it exits at
 * once, because a trigger of the owner's may be running; likewise while it connects, because the
 * database may be locked.
 */
static void
handle_terminate(SIGNAL_ARGS)
{
	ShutdownRequestPending = true;
	if (MyScheduler->in_transaction)
		die(COMPAT_SIGNAL_PASS);
	SetLatch(MyLatch);
}

static void
release_slot_at_exit(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	scheduler_slot_release(MyScheduler->slot);
}

/* Publish the task table of this database, and log it: not again for each of its schedulers. */
static void
publish_table(TaskTable *table, const char *owner)
{
	if (shared_database_set_relid(MyDatabaseId, table->relid, table->owner) &&
		table->relid != MyScheduler->last_relid)
		ereport(LOG, (errmsg("pg_task has %s the task table %s of role \"%s\" in database \"%s\"",
							 table->created ? "created" : "found", table->name, owner,
							 MyScheduler->database),
					  errhidecontext(true)));
	MyScheduler->table = table;
	shared_scheduler_publish(MyScheduler->slot, table->relid);
}

/* If the table has changed since the last call, refused rows may be accepted now. */
static void
retry_refused(void)
{
	uint32 changes = watch_changes();

	if (changes == MyScheduler->changes_seen)
		return;
	MyScheduler->changes_seen = changes;
	refused_forget();
	orphans_retry_refused();
	dependents_retry_refused();
}

/*
 * There is no task table, and pg_task.create_table is off: this process exits, and the database has
 * no scheduler until somebody asks for a table.
 */
static void
leave_without_table(void)
{
	if (shared_database_set_absent(MyDatabaseId))
		ereport(LOG,
				(errmsg("pg_task creates no task table in database \"%s\"", MyScheduler->database),
				 errdetail("The setting \"pg_task.create_table\" is off."),
				 errhint("ALTER DATABASE %s SET pg_task.create_table = on",
						 quote_identifier(MyScheduler->database)),
				 errhidecontext(true)));
	MyScheduler->absent = true;
	/* this sets the latch as well */
	scheduler_slot_leave(MyScheduler->slot);
}

/*
 * Prepare the task table.  Everything known about its rows is read again.  Returns false if there
 * is none.
 */
static bool
prepare_table(void)
{
	SharedScheduler *slot = MyScheduler->slot;
	TaskTable *prepared;
	char *owner;

	shared_scheduler_publish(slot, InvalidOid);
	work_forget_table();
	work_begin("preparing the task table");
	prepared = table_prepare(&MyScheduler->settings, slot->user, MyScheduler->context);
	if (prepared == NULL)
	{
		work_end();
		leave_without_table();
		return false;
	}
	owner = GetUserNameFromId(prepared->owner, true);
	work_end();
	table_keep(prepared);
	/* after an error, a change may have been learnt of only now */
	retry_refused();
	publish_table(prepared, owner ? owner : "");
	if (!OidIsValid(MyScheduler->last_relid))
		shared_wake_supervisor(); /* another scheduler may be started */
	scan_forget();
	isolation_want();
	shared_database_set_owner_code(MyDatabaseId, Settings.owner_code);
	if (prepared->code == NULL)
		report_end_all(&MyScheduler->owner_code);
	role_line_recall_all();
	away_table_prepared(prepared);
	if (MyScheduler->away)
	{
		/* what is known of rows will not hold when it is released */
		MyScheduler->last_relid = InvalidOid;
		return true;
	}
	if (prepared->relid != MyScheduler->last_relid)
	{
		/* another table: what was known of rows is not of its rows */
		groups_clear();
		reconcile_want();
	}
	history_table_prepared(prepared->relid != MyScheduler->last_relid);
	rules_reader_forget();
	reboot_table_prepared(prepared->relid != MyScheduler->last_relid);
	dependents_table_prepared(prepared->relid != MyScheduler->last_relid);
	MyScheduler->last_relid = prepared->relid;
	return true;
}

static void
reconcile_with_rows(void)
{
	work_begin("reconciling the running tasks");
	work_limit(WORK_SCAN_MS);
	reconcile_rows(MyScheduler->table);
	work_end();
}

/* Take the hints and events that commits have left in the slot. */
static void
take_hints(void)
{
	SharedHint hints[SHARED_ALL_HINTS];
	int events;
	int count = shared_scheduler_take_hints(MyScheduler->slot, hints, &events);
	int i;

	for (i = 0; i < count; i++)
	{
		TaskGroup group = {hints[i].queue, hints[i].max, hints[i].priority, NameStr(hints[i].role),
						   hints[i].role_id};

		groups_hint(&group, hints[i].place, hints[i].several);
	}
	if (events & SHARED_SCAN)
	{
		scan_want();
		queues_lose_sight();
	}
	if (events & SHARED_RECONCILE)
		reconcile_want();
	if (events & SHARED_EXPIRY)
		MyScheduler->next_expiry = 0;
	if (events & SHARED_QUEUES)
		rules_reader_want();
	if (events & SHARED_HISTORY)
		history_hint(0, clock_mono());
	dependents_take(events);
}

/*
 * Look for suspects, the next expiry, and rows that wait for other tasks.  There are few of them,
 * if any, but their indexes are read from the beginning, where an old snapshot keeps an entry for
 * each task that was claimed under it.
 */
static void
look_at_indexes(const TaskTable *table)
{
	MonoTime begun = clock_mono();
	MonoTime ended;
	int64 *suspects;
	int count;

	if (!isolation_is_wanted() && clock_is_before(begun, MyScheduler->next_index_look))
		return;
	count = rows_isolated(table, &suspects);
	isolation_set_suspects(suspects, count);
	MyScheduler->next_expiry = rows_next_expiry(table, DT_NOBEGIN);
	dependents_look();
	ended = clock_mono();
	MyScheduler->next_index_look.us =
		ended.us + Min((ended.us - begun.us) * INDEX_LOOK_SHARE, INDEX_LOOK_MAX_US);
}

/* Read every period, and before each scan, what else no hint reports: a few rows. */
static void
look_at_rows(MonoTime now)
{
	refused_tidy(now);
	reconcile_rows(MyScheduler->table);
	look_at_indexes(MyScheduler->table);
	MyScheduler->next_look = clock_plus_ms(now, MyScheduler->settings.period);
}

/*
 * Read the first row of every group, a slice at a time: finds rows that no hint reported.  When a
 * scan ends, the next look is due when the next scan is, if that is the next period.
 */
static void
scan_next_groups(void)
{
	if (!scan_going())
		MyScheduler->row_missed = false;
	scan_slice(MyScheduler->table, MyScheduler->settings.period);
	if (!scan_going())
		MyScheduler->next_look = clock_plus_ms(clock_mono(), MyScheduler->settings.period);
}

/* Look for what no hint reports, if that is due. */
static void
scan_table(MonoTime now)
{
	bool scans;
	bool looks;

	if (isolation_may_begin())
		isolation_want();
	scans = scan_due(now);
	looks = (scans && !scan_going()) || !clock_is_before(now, MyScheduler->next_look);
	if (!scans && !looks)
		return;
	work_begin("scanning the task table");
	work_limit(WORK_SCAN_MS);
	if (looks)
		look_at_rows(now);
	if (scans)
		scan_next_groups();
	work_end();
}

/* The settings of the database differ from those with which this process began, or disable it. */
static void
leave_for_settings(uint32 settings, bool disabled)
{
	if (disabled)
	{
		ereport(LOG, (errmsg("pg_task is disabled in database \"%s\"", MyScheduler->database),
					  errhidecontext(true)));
		shared_database_disable(MyDatabaseId, settings);
	}
	/* this sets the latch as well */
	scheduler_slot_leave(MyScheduler->slot);
}

/*
 * Look at the settings of the database, first of all and when they have changed.  If they concern
 * this process, it exits, and the next one begins with the new ones.  Returns true if so.
 */
static bool
check_settings(void)
{
	uint32 settings = shared_settings_of_database(MyDatabaseId);
	bool first = MyScheduler->database_settings == NULL;
	bool leaves;
	bool disabled;
	char *text;

	if (!first && settings == MyScheduler->settings_seen)
		return false;
	work_begin("reading the settings of the database");
	text = database_settings(&disabled);
	work_end();
	if (first)
	{
		MyScheduler->database_settings = MemoryContextStrdup(TopMemoryContext, text);
		/* it may have connected with older ones */
		leaves = disabled || settings != MyScheduler->settings_seen;
	}
	else
		leaves = strcmp(text, MyScheduler->database_settings) != 0;
	if (leaves)
		leave_for_settings(settings, disabled);
	MyScheduler->settings_seen = settings;
	return leaves;
}

/* One iteration of the loop. */
static void
run_iteration(DispatchRound *round)
{
	ClockNow now = clock_now();

	arbiter_renew(MyScheduler->slot);
	order_set_now(now);
	pool_reap();
	/* before anything that may wait for a lock: others need not wait for that */
	demand_yield();
	pool_reclaim(now.mono);
	if (check_settings())
		return;
	retry_refused();
	if ((MyScheduler->table == NULL || watch_changed()) && !prepare_table())
		return;
	if (MyScheduler->away)
	{
		away_look();
		MyScheduler->iteration_failed = false;
		return;
	}
	/* before the hints, which it leaves for the tasks that are free now */
	if (dependents_due(now.mono))
		dependents_run(now);
	take_hints();
	rules_reader_run(now.mono);
	/* before the tasks of an earlier scheduler are counted */
	if (rate_store_due(now.mono))
		rate_store_prepare(now);
	if (reconcile_due(now.mono))
		reconcile_with_rows();
	rates_settle(now.mono);
	scan_table(now.mono);
	/* one claim per iteration: hints and finished tasks are handled in between */
	MyScheduler->dispatched = clock_now();
	if (dispatch_round(round, MyScheduler->dispatched))
		SetLatch(MyLatch);
	dispatch_publish(round);
	row_writes_run(now);
	MyScheduler->iteration_failed = false;
	MyScheduler->no_memory_ms = 0;
	if (!orphans_refused() && refused_count() == 0 && !history_refused() && !dependents_refused())
		errors_forget();
}

static void
add_error_context(void *arg pg_attribute_unused())
{
	errcontext("pg_task scheduler of database \"%s\"", MyScheduler->database);
}

static void
run_guarded_iteration(void)
{
	ErrorContextCallback callback = {.previous = error_context_stack,
									 .callback = add_error_context};
	DispatchRound round;

	MemoryContextReset(MyScheduler->context);
	MemoryContextSwitchTo(MyScheduler->context);
	dispatch_begin(&round);
	error_context_stack = &callback;
	PG_TRY();
	{
		run_iteration(&round);
		idle_show(clock_now());
	}
	PG_CATCH();
	{
		recovery_run(&round);
		idle_show(clock_now()); /* cannot fail: nothing is looked up now */
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
	figures_publish();
}

/* Must this process exit?  If its memory is full of zones, it is started again. */
static bool
must_exit(void)
{
	return ShutdownRequestPending || ConfigReloadPending ||
		   scheduler_slot_is_leaving(MyScheduler->slot) || zones_fill_memory();
}

/*
 * Memory has run out: wait, also if the latch is set.  Each attempt would add to the shortage, and
 * some dozens of lines of the server's own to the log.
 */
static void
wait_for_memory(void)
{
	MonoTime until = clock_plus_ms(clock_mono(), MyScheduler->no_memory_ms);
	long left;

	while (!must_exit() && (left = clock_ms_until(clock_mono(), until)) > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left,
						 MyScheduler->wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	SetLatch(MyLatch);
}

/* Return when the next iteration is due. */
static MonoTime
next_iteration(ClockNow now)
{
	ClockNow dispatched = MyScheduler->dispatched;
	MonoTime until;

	if (MyScheduler->iteration_failed)
		return clock_min(clock_plus_ms(now.mono, MyScheduler->settings.period),
						 isolation_until(now.mono));
	if (MyScheduler->away)
		return clock_plus_ms(now.mono, MyScheduler->settings.period);
	/* what has become due since the last round is due now */
	until = clock_min(clock_min(scan_until(), MyScheduler->next_look), groups_due_at(dispatched));
	until = clock_min(until, clock_min(pool_until(dispatched.mono), demand_until(dispatched.mono)));
	until = clock_min(until, clock_max(clock_min(row_writes_until(now), history_until()),
									   MyScheduler->no_writing_until));
	until = clock_min(until, clock_min(reconcile_until(), rules_reader_until()));
	until = clock_min(until, clock_min(dependents_until(), rate_store_until()));
	until = clock_min(until, idle_until());
	return clock_min(until, isolation_until(now.mono));
}

/* Handler of wake_timeout.  The server has set the latch. */
static void
wake_up(void)
{
}

/*
 * WaitLatch counts whole milliseconds, and may end a millisecond late.  For what is due soon a
 * timer ends the sleep to the microsecond.  If the wall clock is set meanwhile, WaitLatch ends it.
 */
static void
set_wake_timer(ClockNow now, MonoTime until)
{
	if (clock_is_before(until, clock_plus_ms(now.mono, WAKE_TIMER_MS)))
		enable_timeout_at(MyScheduler->wake_timeout, now.wall + (until.us - now.mono.us));
}

/* Sleep until the next iteration is due, or until another process sets the latch. */
static void
wait_for_work(void)
{
	ClockNow now = clock_now();
	MonoTime until;
	long left;

	Assert(!IsTransactionState());
	(void) pgstat_report_stat(false);
	until = next_iteration(now);
	left = clock_ms_until(now.mono, until);
	if (left > 0)
	{
		shared_scheduler_sleep(MyScheduler->slot, TimestampTzPlusMilliseconds(now.wall, left));
		set_wake_timer(now, until);
	}
	MyScheduler->slot->innocent = true;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left,
					 MyScheduler->wait_event);
	MyScheduler->slot->innocent = false;
	disable_timeout(MyScheduler->wake_timeout, false);
	ResetLatch(MyLatch);
	QueryCancelPending = false; /* there is nothing to cancel */
	CHECK_FOR_INTERRUPTS();
}

/* Attach to the slot that the supervisor has reserved. */
static void
attach_to_slot(Datum arg)
{
	uint32 generation;
	int slot = worker_slot(arg, &generation);

	MyScheduler->slot = scheduler_slot_attach(slot, generation);
	if (MyScheduler->slot == NULL)
		proc_exit(0);
	on_shmem_exit(release_slot_at_exit, 0);
	crash_watch_scheduler(MyScheduler->slot);
	figures_begin();
}

static void
connect_to_database(void)
{
	MyScheduler->settings_seen = shared_settings_of_database(MyScheduler->slot->database);
	MyScheduler->in_transaction = true;
	BackgroundWorkerInitializeConnectionByOid(MyScheduler->slot->database, InvalidOid, 0);
	MyScheduler->in_transaction = false;
	arbiter_renew(MyScheduler->slot);
	StartTransactionCommand();
	MyScheduler->database = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
}

/* Initialize what the iterations need.  The process is connected. */
static void
prepare_process(void)
{
	MyScheduler->wait_event = COMPAT_WAIT_EVENT("PgTaskSchedulerMain");
	MyScheduler->rests_since = CLOCK_NEVER;
	MyScheduler->settings = location_of(MyScheduler->database);
	MyScheduler->wake_timeout = RegisterTimeout(USER_TIMEOUT, wake_up);
	work_define();
	port_describe(); /* for triggers of the owner's */
	statement_define();
	groups_create(GROUPS_LIMIT, (int64) Settings.aging * 1000);
	role_state_create();
	pool_create();
}

/* Nothing new starts.  Tasks that were assigned and not begun wait again. */
static void
shut_down(void)
{
	ClockNow now = clock_now();
	int i;

	scheduler_slot_leave(MyScheduler->slot);
	pool_dismiss();
	rate_store_flush(now);
	MyScheduler->slot->due = idle_next_need(now);
	MyScheduler->slot->barred = role_line_has_barred(&MyScheduler->slot->barred_changes);
	/* of other orphans there may be very many: some are written, the next scheduler finds the rest
	 */
	for (i = 0;
		 MyScheduler->table && !MyScheduler->away && (i < EXIT_BATCHES || orphans_must_write());
		 i++)
		row_writes_orphans();
}

void
pg_task_scheduler_main(Datum arg)
{
	MyScheduler = MemoryContextAllocZero(TopMemoryContext, sizeof(SchedulerProcess));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, handle_terminate);
	BackgroundWorkerUnblockSignals();
	attach_to_slot(arg);
	roles_define();
	connect_to_database();
	prepare_process();

	/* after a reload it exits, and is started again with the new settings */
	while (!must_exit())
	{
		run_guarded_iteration();
		if (MyScheduler->no_memory_ms > 0)
			wait_for_memory();
		wait_for_work();
	}
	MemoryContextSwitchTo(MyScheduler->context);
	shut_down();
	proc_exit(0);
}
