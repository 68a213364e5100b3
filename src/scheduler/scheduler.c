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
 * The settings of the database are read when the process begins, and again when they have changed.
 * The task table is away if its database is a copy of the one for which its tasks were planned, or
 * was restored from a dump of it.  Then the scheduler holds them back: it reads and writes no row,
 * and adds nothing to the table, until somebody says that they may run (pg_task_release).
 *
 * This file knows nothing of rows.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "libpq/pqsignal.h"
#include "nodes/memnodes.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/handout.h"
#include "scheduler/history.h"
#include "scheduler/order.h"
#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/round.h"
#include "scheduler/scan.h"
#include "scheduler/side_tables.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/slots.h"
#include "shared/takers.h"
#include "shared/worker.h"
#include "task/home.h"

PGDLLEXPORT void pg_task_scheduler_main(Datum arg);

/* Maximum number of batches of orphans that are written before the scheduler exits. */
#define EXIT_BATCHES 8

/* What is due within this time ends the sleep by a timer (ms). */
#define WAKE_TIMER_MS 2000

/* More than all zones of the tz database need, at 24 kB each. */
#define ZONES_MAX ((Size) 32 * 1024 * 1024)

/*
 * After a write has waited in vain for a row lock, there is none for this time (ms): these waits
 * take at most a tenth of the scheduler's time.
 */
#define ROW_LOCK_PAUSE_MS 200

/* Pause after a lack of memory (ms): doubled each time, up to the second. */
#define NO_MEMORY_MS 1000
#define NO_MEMORY_MAX_MS 8000

/* The scheduler is idle if nothing is due within this time (ms). */
#define IDLE_AHEAD_MS 1000

/* Then it exits after this time, if there are not places for all databases (ms). */
#define REST_MS 5000

/* A table beside the task table that cannot be used is looked at again after this time (ms). */
#define SIDE_AGAIN_MS 10000

/* Static, because these are of the loop. */
static uint32 settings_seen;	/* change counter of the settings of the database */
static char *known_settings;	/* as read_settings returns them; NULL: not read yet */
static MonoTime table_again_at; /* a table beside the task table could not be used: prepare again */
static uint32 changes_seen;		/* of watch_changes: refused rows were retried after these */
static TimeoutId wake_timeout;	/* ends the sleep */
static MonoTime rests_since;	/* CLOCK_NEVER: it has work, or keeps its place anyway */
static bool iteration_failed;	/* the last iteration ended with an error */
static MonoTime no_writing_until; /* a write has waited for a row lock in vain */
static int no_memory_ms;		  /* pause after a lack of memory; 0: there was none */

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
	taken_abandon(MyScheduler->slot - Shared->schedulers);
	scheduler_slot_release(MyScheduler->slot);
}

/* If the table has changed since the last call, refused rows may be accepted now. */
static void
retry_refused(void)
{
	uint32 changes = watch_changes();

	if (changes == changes_seen)
		return;
	changes_seen = changes;
	if (refused_count() > 0)
		MyScheduler->events |= SHARED_DEPENDENTS;
	refused_forget(CLOCK_NEVER);
	orphans_retry();
}

static void
take_hints(ClockNow now pg_attribute_unused())
{
	SharedHint hints[SHARED_ALL_HINTS];
	SharedIds watched;
	int events;
	int count = shared_scheduler_take(MyScheduler->slot, hints, &watched, &events);
	int i;

	MyScheduler->events |= events;
	/* first, because a scan finds what is lost of the others if memory runs out */
	dependents_take(&watched);
	for (i = 0; i < count; i++)
	{
		TaskGroup group = {hints[i].queue, hints[i].max, hints[i].priority, NameStr(hints[i].role),
						   hints[i].role_id};

		groups_hint(&group, hints[i].place, hints[i].several);
	}
}

static const SchedulerJob hints_job = {.run = take_hints, .always = true};

/* The jobs, in the order in which they run in an iteration. */
static const SchedulerJob *const jobs[] = {
	&dependents_job,   /* before the hints, which it leaves for the tasks that it frees */
	&hints_job,		   /* what commits have reported: the jobs after it act on it */
	&rules_reader_job, /* before anything is chosen by rules */
	&rate_store_job,   /* before the tasks of an earlier scheduler are counted ... */
	&reconcile_job,	   /* ... which this does, and the look of a scan */
	&scan_job,		   /* what it finds may start in this iteration */
	&handout_job,	   /* what it ends makes room */
	&dispatch_job,	   /* chooses, claims, assigns */
	/* these may wait for locks or be refused: the claims of other tasks do not wait for them */
	&orphans_job,	/* first, because tasks may wait for these places */
	&unstarted_job, /* what a round or a scan has found */
	&history_job,
	&rate_tidy_job,
};

/* Return when a job is due, as "moment" says (see SchedulerJob), if it may write then. */
static MonoTime
may_run_at(const SchedulerJob *job, MonoTime moment)
{
	return job->writes ? clock_max(moment, no_writing_until) : moment;
}

/* Are the tasks of the table held back? */
static bool
is_away(void)
{
	return MyScheduler->table && MyScheduler->table->away;
}

/*
 * Publish the task table of this database, and log it, also if it does not belong to the "user" who
 * is to own it, who may be NULL: not again for each of its schedulers.  If
 * its tasks are held back, that is logged at first sight and after each start of the server.
 */
static void
publish_table(TaskTable *table, const char *owner, const char *user)
{
	SharedFindings found = shared_database_found(MyDatabaseId);
	bool news = found.relid != table->relid && table->relid != MyScheduler->last_relid;
	bool others = news || found.owner != table->owner || found.user != MyScheduler->slot->user;
	bool was_away = found.away;

	found.relid = table->relid;
	found.owner = table->owner;
	found.user = MyScheduler->slot->user;
	found.owner_code = Settings.owner_code;
	found.absent = false;
	found.away = table->away;
	shared_database_publish(MyDatabaseId, &found);
	if (news)
		ereport(LOG, (errmsg("pg_task has %s the task table %s of role \"%s\" in database \"%s\"",
							 table->created ? "created" : "found", table->name, owner,
							 MyScheduler->database),
					  errhidecontext(true)));
	if (user && others && table->owner != MyScheduler->slot->user)
		ereport(LOG,
				(errmsg("the task table %s in database \"%s\" belongs to role \"%s\" and not to"
						" \"%s\"",
						table->name, MyScheduler->database, owner, user),
				 errdetail("A table that is there keeps its owner."),
				 errhint("Name role \"%s\" in \"pg_task.database\", or SELECT"
						 " pg_task_change_owner(%s).",
						 owner, quote_literal_cstr(user)),
				 errhidecontext(true)));
	if (table->away && !was_away)
		ereport(LOG,
				(errmsg("pg_task holds back the tasks of %s in database \"%s\"", table->name,
						MyScheduler->database),
				 errdetail("The table comes from another database or server: this one is a copy"
						   " of it, or was or is being restored from a dump or a backup."),
				 errhint("Stop or delete what must not run here, and then \"SELECT"
						 " pg_task_release()\" in this database, as the owner of the table."),
				 errhidecontext(true)));
	else if (!table->away && was_away)
		ereport(LOG, (errmsg("pg_task runs the tasks of %s in database \"%s\" from now on",
							 table->name, MyScheduler->database),
					  errhidecontext(true)));
	MyScheduler->table = table;
	shared_scheduler_publish(MyScheduler->slot, table->relid, false);
}

/*
 * There is no task table, and none is to be created: this process exits, and the database has no
 * scheduler until somebody asks for a table, or the role is there that is to own it.  That a
 * setting says so is no news for the log, where each database would have such a line at each start.
 */
static void
leave_without_table(void)
{
	SharedFindings found = shared_database_found(MyDatabaseId);
	bool missing = !OidIsValid(MyScheduler->slot->user);
	bool news = missing && (!found.absent || OidIsValid(found.user));

	found.absent = true;
	found.relid = InvalidOid;
	found.user = MyScheduler->slot->user;
	shared_database_publish(MyDatabaseId, &found);
	if (missing)
		shared_database_report(MyDatabaseId,
							   "the role that \"pg_task.database\" names does not exist");
	if (news)
		ereport(LOG,
				(errmsg("pg_task creates no task table in database \"%s\"", MyScheduler->database),
				 errdetail("The role that \"pg_task.database\" names does not exist."),
				 errhidecontext(true)));
	MyScheduler->absent = true;
	/* this sets the latch as well */
	scheduler_slot_leave(MyScheduler->slot);
}

/* Forget the table: the next iteration prepares it again. */
static void
forget_table(void)
{
	TaskTable *table = MyScheduler->table;

	MyScheduler->table = NULL;
	statement_forget_plans();
	if (table)
		MemoryContextDelete(table->context);
}

static bool
prepare_table(void)
{
	SharedScheduler *slot = MyScheduler->slot;
	Oid user = slot->user;
	TaskTable *prepared;
	char *owner;
	char *wanted;

	shared_scheduler_publish(slot, InvalidOid, false);
	forget_table();
	work_begin("preparing the task table");
	if (!OidIsValid(user)) /* who would have the same schema: no table is made */
	{
		user = shared_database_found(MyDatabaseId).owner;
		if (GetUserNameFromId(user, true) == NULL)
			user = service_here().user;
	}
	prepared = table_prepare(&MyScheduler->settings, user, MyScheduler->context);
	if (prepared == NULL)
	{
		work_end();
		leave_without_table();
		return false;
	}
	owner = GetUserNameFromId(prepared->owner, true);
	/* the database has another owner by now: the next scheduler looks whose the table is to be */
	wanted = service_here().user == slot->user ? GetUserNameFromId(slot->user, true) : NULL;
	work_end();
	MemoryContextSetParent(prepared->context, TopMemoryContext);
	publish_table(prepared, owner ? owner : "", wanted);
	if (!OidIsValid(MyScheduler->last_relid))
		shared_wake_supervisor(); /* another scheduler may be started */
	if (prepared->code == NULL)
		report_end(&MyScheduler->owner_code, false);
	table_again_at = prepared->side_fault[SIDE_QUEUE] || prepared->side_fault[SIDE_RATE]
						 ? clock_plus_ms(clock_mono(), SIDE_AGAIN_MS)
						 : CLOCK_NEVER;
	return true;
}

/*
 * Is the table still away?  If not, the next iteration prepares it.  The mark itself is read: the
 * commit that sets it wakes this process before it reports a change of the table.
 */
static void
look_away(void)
{
	HomeState home;

	work_begin("holding back the tasks of a copied database");
	home = home_find(MyScheduler->table->relid);
	work_end();
	if (home == HOME_AWAY)
		return;
	forget_table();
	SetLatch(MyLatch);
}

/*
 * Return what ALTER DATABASE has set for this database, of the settings that a scheduler reads when
 * it starts, as a text to compare.  Sets *disabled if pg_task.enabled is off among them.
 */
static char *
read_settings(bool *disabled)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid types[] = {OIDOID};
	Datum values[] = {ObjectIdGetDatum(MyDatabaseId)};
	bool enabled = true;
	char *text;
	char *word;

	SPI_connect();
	if (SPI_execute_with_args(
			"SELECT coalesce(string_agg(c, ' '), ''),"
			"       max(split_part(c, '=', 2)) FILTER (WHERE n = 'pg_task.enabled')"
			"  FROM pg_db_role_setting AS s, unnest(s.setconfig) AS c, lower(split_part(c, '=', 1)) AS n"
			" WHERE s.setdatabase = $1 AND s.setrole = 0"
			"   AND n IN ('pg_task.enabled', 'pg_task.schema_name', 'pg_task.table_name',"
			"             'pg_task.schema', 'pg_task.table', 'pg_task.create_table',"
			"             'pg_task.period', 'pg_task.owner_code')",
			1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the settings of the database");
	text = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	word = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
	*disabled = word && parse_bool(word, &enabled) && !enabled;
	text = MemoryContextStrdup(caller, text);
	SPI_finish();
	return text;
}

/*
 * Look at the settings of the database, first of all and when they have changed.  If they concern
 * this process, it exits, and the next one begins with the new ones.  Returns true if so.
 */
static bool
check_settings(void)
{
	uint32 settings = shared_settings_of_database(MyDatabaseId);
	bool first = known_settings == NULL;
	bool leaves;
	bool disabled;
	char *text;

	if (!first && settings == settings_seen)
		return false;
	work_begin("reading the settings of the database");
	text = read_settings(&disabled);
	work_end();
	if (first)
	{
		known_settings = MemoryContextStrdup(TopMemoryContext, text);
		/* it may have connected with older ones */
		leaves = disabled || settings != settings_seen;
	}
	else
		leaves = strcmp(text, known_settings) != 0;
	if (disabled && leaves)
	{
		SharedFindings found = shared_database_found(MyDatabaseId);

		ereport(LOG, (errmsg("pg_task is disabled in database \"%s\"", MyScheduler->database),
					  errhidecontext(true)));
		found.disabled = true;
		found.settings = settings;
		shared_database_publish(MyDatabaseId, &found);
	}
	/* this sets the latch as well */
	if (leaves)
		scheduler_slot_leave(MyScheduler->slot);
	settings_seen = settings;
	return leaves;
}

/*
 * Prepare the task table, and forget what does not hold any more.  Returns false if there is none.
 */
static bool
find_table(void)
{
	bool another;
	int i;

	if (!prepare_table())
		return false;
	another = MyScheduler->table->relid != MyScheduler->last_relid;
	/* after an error, a change may have been learnt of only now */
	retry_refused();
	role_line_recall();
	if (is_away())
	{
		demand_publish(NULL);
		/* what is known of rows will not hold when it is released */
		MyScheduler->last_relid = InvalidOid;
		return true;
	}
	if (another)
		groups_clear();
	for (i = 0; i < (int) lengthof(jobs); i++)
		if (jobs[i]->forget_table)
			jobs[i]->forget_table(another);
	MyScheduler->last_relid = MyScheduler->table->relid;
	return true;
}

static void
run_iteration(void)
{
	ClockNow now = clock_now();
	int i;

	pg_atomic_write_u64(&MyScheduler->slot->renewed, (uint64) now.mono.us);
	(void) groups_advance(now);
	pool_reap();
	handout_reap();
	/* before anything that may wait for a lock: others need not wait for that */
	demand_yield();
	pool_reclaim(now.mono, false);
	if (check_settings())
		return;
	retry_refused();
	if ((MyScheduler->table == NULL || watch_changed() ||
		 !clock_is_before(now.mono, table_again_at)) &&
		!find_table())
		return;
	if (is_away())
	{
		look_away();
		iteration_failed = false;
		return;
	}
	for (i = 0; i < (int) lengthof(jobs); i++)
	{
		MonoTime due = jobs[i]->always ? CLOCK_LONG_AGO : jobs[i]->due(now);

		if (!clock_is_before(now.mono, may_run_at(jobs[i], due)))
			jobs[i]->run(now);
	}
	iteration_failed = false;
	no_memory_ms = 0;
	if (orphans_count() == 0 && refused_count() == 0 && !history_refused())
		refused_end_reports();
}

/* An error has ended the iteration: abort the transaction and make everything whole again. */
static void
recover(void)
{
	MonoTime now = clock_mono();
	BatchFailure failure;
	int i;

	HOLD_INTERRUPTS();
	failure = refused_end_iteration(now);
	iteration_failed = true;
	if (failure.waited)
		no_writing_until = clock_plus_ms(now, ROW_LOCK_PAUSE_MS);
	if (failure.sqlstate == ERRCODE_OUT_OF_MEMORY)
		no_memory_ms = Min(Max(no_memory_ms * 2, NO_MEMORY_MS), NO_MEMORY_MAX_MS);
	for (i = 0; i < (int) lengthof(jobs); i++)
		if (jobs[i]->failed)
			jobs[i]->failed(&failure);
	/*
	 * After an error that was no row's nothing is trusted that was read of rows.  What runs is
	 * known from the rings.  If the table may have changed, which autovacuum brings about as well,
	 * the groups are kept: a scan corrects what is wrong, and there may be very many.
	 */
	if (failure.forget && failure.sqlstate != ERRCODE_TABLE_CHANGED)
		groups_clear();
	if (failure.forget)
		forget_table();
	if (failure.row_at_fault && failure.rows > 0)
	{
		/*
		 * What code of the owner's did to catalogs is undone, but was reported to this process: it
		 * does not have the refused rows tried again.
		 */
		changes_seen = watch_changes();
		SetLatch(MyLatch);
	}
	RESUME_INTERRUPTS();
}

/* Return when something is due that needs a scheduler, besides what the executors report. */
static MonoTime
needed_at(ClockNow now)
{
	MonoTime needed = CLOCK_NEVER;
	int i;

	if (iteration_failed)
		return clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS);
	if (is_away())
		return CLOCK_NEVER;
	if (MyScheduler->table == NULL)
		return now.mono;
	for (i = 0; i < (int) lengthof(jobs); i++)
		if (jobs[i]->needed)
			needed = clock_min(needed, may_run_at(jobs[i], jobs[i]->needed(now)));
	if (refused_count() > 0)
		needed = clock_min(needed, clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS));
	return needed;
}

/* Return when the walk that removes rows goes on, or begins because something is to be found. */
static MonoTime
next_walk(ClockNow now)
{
	if (iteration_failed || is_away())
		return CLOCK_NEVER;
	return may_run_at(&history_job, history_job.due(now));
}

/* Does any executor have a task, or one that is being claimed? */
static bool
is_busy(void)
{
	pool_foreach(executor)
		if (pool_count_tasks(executor) > 0)
			return true;
	return false;
}

/*
 * With more databases than places for schedulers, tell the supervisor whether this one is idle, so
 * that another database may have its worker slot.  After a rest it exits, and leaves the time at
 * which the database needs a scheduler again.  Called within the guarded iteration, because memory
 * may run out.
 */
static void
show_idle(ClockNow now)
{
	SharedScheduler *slot = MyScheduler->slot;
	MonoTime ahead = clock_plus_ms(now.mono, IDLE_AHEAD_MS);
	bool idle;

	/* read without a lock: the supervisor wakes this process when it changes */
	if (!Shared->crowded)
	{
		rests_since = CLOCK_NEVER;
		return;
	}
	idle = !is_busy() && clock_is_before(ahead, needed_at(now));
	if (!idle || !clock_is_before(ahead, next_walk(now)))
		rests_since = CLOCK_NEVER;
	else if (clock_is_before(now.mono, rests_since))
		rests_since = now.mono;
	else if (clock_exceeds(rests_since, now.mono, REST_MS))
		scheduler_slot_leave(slot); /* this sets the latch as well */
	if (idle == (pg_atomic_read_u64(&slot->idle_since) != 0))
		return;
	pg_atomic_write_u64(&slot->idle_since, idle ? (uint64) now.mono.us : 0);
	if (idle)
		shared_wake_supervisor();
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

	MemoryContextReset(MyScheduler->context);
	MemoryContextSwitchTo(MyScheduler->context);
	error_context_stack = &callback;
	PG_TRY();
	{
		run_iteration();
		show_idle(clock_now());
	}
	PG_CATCH();
	{
		recover();
		show_idle(clock_now()); /* cannot fail: nothing is looked up now */
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
	figure_add(FIGURE_ITERATIONS, 1);
	figure_set(FIGURE_HELD, refused_count() + scan_count_suspects() + orphans_count());
}

/*
 * Do the zones that this process has loaded take too much memory?  The server keeps each until the
 * process exits, and a user can name any number of them: "A1", "A1:01", ...
 */
static bool
zones_fill_memory(void)
{
	MemoryContext context = TopMemoryContext->firstchild;

	for (; context; context = context->nextchild)
		if (context->ident && strcmp(context->ident, "Timezones") == 0)
			return MemoryContextMemAllocated(context, true) > ZONES_MAX;
	return false;
}

/* Must this process exit?  If its memory is full of zones, it is started again. */
static bool
must_exit(void)
{
	return ShutdownRequestPending || ConfigReloadPending ||
		   MyScheduler->slot->state == SCHEDULER_LEAVING || zones_fill_memory();
}

/*
 * Memory has run out: wait, also if the latch is set.  Each attempt would add to the shortage, and
 * some dozens of lines of the server's own to the log.
 */
static void
wait_for_memory(void)
{
	MonoTime until = clock_plus_ms(clock_mono(), no_memory_ms);
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

static MonoTime
next_iteration(ClockNow now)
{
	MonoTime until = CLOCK_NEVER;
	int i;

	if (iteration_failed || is_away())
		return clock_plus_ms(now.mono, MyScheduler->settings.period);
	if (rests_since.us != CLOCK_NEVER.us)
		until = clock_plus_ms(rests_since, REST_MS);
	for (i = 0; i < (int) lengthof(jobs); i++)
		if (jobs[i]->due)
			until = clock_min(until, may_run_at(jobs[i], jobs[i]->due(now)));
	return until;
}

/* Handler of wake_timeout.  The server has set the latch. */
static void
wake_up(void)
{
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
		/*
		 * WaitLatch counts whole milliseconds, and may end a millisecond late.  For what is due
		 * soon a timer ends the sleep to the microsecond.  If the wall clock is set meanwhile,
		 * WaitLatch ends it.
		 */
		if (clock_is_before(until, clock_plus_ms(now.mono, WAKE_TIMER_MS)))
			enable_timeout_at(wake_timeout, now.wall + (until.us - now.mono.us));
	}
	MyScheduler->slot->innocent = true;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left,
					 MyScheduler->wait_event);
	MyScheduler->slot->innocent = false;
	disable_timeout(wake_timeout, false);
	ResetLatch(MyLatch);
	QueryCancelPending = false; /* there is nothing to cancel */
	CHECK_FOR_INTERRUPTS();
}

static void
attach_to_slot(Datum arg)
{
	SchedulerFigure which;
	uint32 generation;
	int slot = worker_slot(arg, &generation);

	MyScheduler->slot = scheduler_slot_attach(slot, generation);
	if (MyScheduler->slot == NULL)
		proc_exit(0);
	on_shmem_exit(release_slot_at_exit, 0);
	crash_watch(&MyScheduler->slot->innocent);
	/* another process has used the slot before */
	for (which = 0; which < SCHEDULER_FIGURES; which++)
		figure_set(which, 0);
	figure_set(FIGURE_OLDEST, DT_NOEND);
	figure_set(FIGURE_BEGUN, GetCurrentTimestamp());
}

static void
connect_to_database(void)
{
	/* before it connects, with the settings of this moment */
	settings_seen = shared_settings_of_database(MyScheduler->slot->database);
	MyScheduler->in_transaction = true;
	BackgroundWorkerInitializeConnectionByOid(MyScheduler->slot->database, InvalidOid, 0);
	MyScheduler->in_transaction = false;
	pg_atomic_write_u64(&MyScheduler->slot->renewed, (uint64) clock_mono().us);
	port_describe(); /* for triggers of the owner's */
	MyScheduler->database = port_database();
	MemoryContextSwitchTo(TopMemoryContext);
}

/* Initialize what the iterations need.  The process is connected. */
static void
prepare_process(void)
{
	MyScheduler->wait_event = COMPAT_WAIT_EVENT("PgTaskSchedulerMain");
	rests_since = CLOCK_NEVER;
	MyScheduler->settings = location_of(MyScheduler->database);
	MyScheduler->settings.create &= OidIsValid(MyScheduler->slot->user);
	wake_timeout = RegisterTimeout(USER_TIMEOUT, wake_up);
	work_define();
	groups_create((int64) Settings.aging * 1000);
	pool_create((PoolListener){.ended = dependents_ended, .orphaned = orphans_add});
	handout_create();
}

/* Nothing new starts.  Tasks that were assigned and not begun wait again. */
static void
shut_down(void)
{
	ClockNow now = clock_now();
	SharedFindings found;
	MonoTime due = CLOCK_NEVER;
	int i;

	scheduler_slot_leave(MyScheduler->slot);
	pool_reap();
	pool_reclaim(now.mono, true);
	/*
	 * When the database needs a scheduler again.  A walk that is given up begins anew with the next
	 * visit: one that came back for it would be asked to exit again, where many have walks to do.
	 */
	if (!MyScheduler->absent)
	{
		due = needed_at(now);
		if (MyScheduler->row_missed)
			due = clock_min(due, scan_job.due(now));
		if (!history_walking())
			due = clock_min(due, next_walk(now));
	}
	found = shared_database_found(MyDatabaseId);
	found.due = due.us == CLOCK_NEVER.us ? DT_NOEND : now.wall + (due.us - now.mono.us);
	shared_database_publish(MyDatabaseId, &found);
	if (MyScheduler->table == NULL || is_away())
		return;
	/* of other orphans there may be very many: some are written, the next scheduler finds the rest
	 */
	for (i = 0; i < EXIT_BATCHES || orphans_must_write(); i++)
	{
		if (clock_is_before(clock_mono(), orphans_job.due(clock_now())))
			break;
		orphans_job.run(clock_now());
	}
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
		if (no_memory_ms > 0)
			wait_for_memory();
		wait_for_work();
	}
	MemoryContextSwitchTo(MyScheduler->context);
	shut_down();
	proc_exit(0);
}
