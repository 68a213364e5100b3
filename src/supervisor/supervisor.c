/*
 * supervisor.c
 *		The process that starts and stops the schedulers of all databases.
 *
 * It is not connected to a database and reads shared catalogs only.  It compares the databases that
 * should have a scheduler with those that have one, and delays the restart of schedulers that keep
 * exiting early.  A reload, a commit that changed databases or roles, a commit that planned tasks
 * where no scheduler is, and the end of a scheduler wake it.  It reads the catalogs only if
 * databases, roles or settings have changed, and each period.
 *
 * It never touches a task table.  Which database gets the next place is decided in places.c.
 */
#include "postgres.h"

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "supervisor/supervisor.h"

PGDLLEXPORT void pg_task_supervisor_main(Datum arg);

/* Maximum time between two iterations (ms). */
#define PERIOD_MS 10000

/* A scheduler that ran for less than this ended early (ms). */
#define YOUNG_MS 5000

/*
 * Delay of the restart of a scheduler that ended early (ms); doubled each time, up to the maximum.
 */
#define THROTTLE_MS 1000
#define THROTTLE_MAX_MS 60000

/* Retry interval while a database or role that pg_task.database names cannot be used (ms). */
#define UNUSABLE_RETRY_MS 1000

/*
 * Shortest time between two visits to a database that is not known to need a scheduler (ms), or, if
 * there are very many, the second times their number.
 */
#define VISIT_MS 60000
#define VISIT_EACH_MS 1000

/* Longest time between two visits (ms). */
#define VISIT_MAX_MS (60 * 60 * 1000)

/*
 * A table that could not be prepared is tried again after this time, then after twice the time
 * (ms).
 */
#define RETRY_MS 30000

/* Minimum pause between two iterations, however often the supervisor is woken (ms). */
#define PAUSE_MS 10

/* The wall clock was set if it moves against the monotonic one by more than this (us). */
#define CLOCK_STEP_US 1000000

void
supervisor_register(void)
{
	BackgroundWorker worker;

	worker_describe(&worker, "supervisor");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/*
 * The scheduler of this database has ended: compute when the next one may start.  If it has found
 * no work, the next visit comes after twice the time; likewise the next try if it could not prepare
 * the table.
 */
static void
scheduler_ended(DatabaseEntry *entry, MonoTime now)
{
	SharedScheduler *slot = entry->slot;
	bool mine = slot->generation == entry->generation; /* otherwise it is in use again */
	bool young = !clock_exceeds(entry->started, now, YOUNG_MS);
	bool asked = slot->asked || !mine;
	bool connected = !mine || places_connected(entry);
	bool shut =
		entry->asked.us != 0 && !connected && clock_exceeds(entry->asked, now, LEAVE_CONNECTING_MS);
	bool worked = mine && connected && pg_atomic_read_u64(&slot->figures[FIGURE_CLAIMED]) > 0;
	bool failed = mine && connected && !OidIsValid(slot->relid) &&
				  pg_atomic_read_u64(&slot->figures[FIGURE_ERRORS]) > 0;

	/*
	 * An exit on request is not an early end, unless the scheduler could not connect: then its
	 * successor cannot either.  Of one that had nothing to do in its database, nobody may remember
	 * that.
	 */
	if (((asked && OidIsValid(entry->shared->database)) || !young) && !shut)
		entry->throttle = 0;
	else
		entry->throttle = Min(Max(entry->throttle * 2, THROTTLE_MS), THROTTLE_MAX_MS);
	entry->not_before = clock_plus_ms(now, entry->throttle);
	entry->left = now;
	entry->asked = CLOCK_LONG_AGO;
	entry->slot = NULL;
	if (entry->handle)
		pfree(entry->handle);
	entry->handle = NULL;
	entry->visit = worked ? 0 : Min(Max(entry->visit * 2, MySupervisor.visit), VISIT_MAX_MS);
	entry->retry = failed ? Min(Max(entry->retry * 2, RETRY_MS), VISIT_MAX_MS) : 0;
}

/* Find the schedulers that have ended, or never attached. */
static void
check_schedulers(MonoTime now)
{
	ListCell *cell;

	foreach(cell, MySupervisor.databases)
	{
		DatabaseEntry *entry = lfirst(cell);
		pid_t pid;
		bool ended;

		if (entry->slot == NULL)
			continue;
		LWLockAcquire(Shared->directory, LW_SHARED);
		ended =
			entry->slot->state == SCHEDULER_FREE || entry->slot->generation != entry->generation;
		LWLockRelease(Shared->directory);
		if (!ended && entry->handle && GetBackgroundWorkerPid(entry->handle, &pid) == BGWH_STOPPED)
		{
			scheduler_slot_withdraw(entry->slot, entry->generation);
			ended = true;
		}
		if (ended)
			scheduler_ended(entry, now);
	}
}

/* A database is held back, because its scheduler has crashed the server: say so. */
static void
report_held(const Wanted *wanted, int crashes)
{
	SharedFindings found = shared_database_found(wanted->database);

	found.error.at = GetCurrentTimestamp();
	snprintf(found.error.message, sizeof(found.error.message),
			 "the scheduler has crashed the server %d times in a row: see pg_task_release",
			 crashes);
	shared_database_publish(wanted->database, &found);
	ereport(WARNING,
			(errcode(ERRCODE_CRASH_SHUTDOWN),
			 errmsg("pg_task holds back the tasks of database \"%s\"", wanted->name),
			 errdetail("Its scheduler has crashed the server %d times in a row.", crashes),
			 errhint("Find out why; then \"SELECT pg_task_release()\" in this database, as a"
					 " superuser, or restart the server.")));
}

static DatabaseEntry *
find_database(Oid database)
{
	ListCell *cell;

	foreach(cell, MySupervisor.databases)
		if (((DatabaseEntry *) lfirst(cell))->wanted.database == database)
			return lfirst(cell);
	return NULL;
}

/* Share what is remembered of a database with other processes, if there is room. */
static void
share_database(DatabaseEntry *entry)
{
	entry->shared = shared_database_add(entry->wanted.database);
	if (entry->shared == NULL)
		entry->shared = &MySupervisor.unknown;
}

static DatabaseEntry *
add_database(const Wanted *wanted, MonoTime now)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	DatabaseEntry *entry = palloc0(sizeof(DatabaseEntry));

	entry->wanted = *wanted;
	entry->left = now;
	entry->settings = shared_settings_of_database(wanted->database);
	MySupervisor.databases = lappend(MySupervisor.databases, entry);
	MemoryContextSwitchTo(old);
	share_database(entry);
	if (crash_holds(wanted->database))
		report_held(wanted, crash_holds(wanted->database));
	return entry;
}

/*
 * Note what the catalogs say of a wanted database.  If it has another owner, name or other
 * settings, or is another one with the same oid, its scheduler looks whether that concerns it.  One
 * that exits for it has a successor, and a database without a scheduler gets one.
 */
static void
check_database(const Wanted *wanted, MonoTime now)
{
	uint32 settings = shared_settings_of_database(wanted->database);
	DatabaseEntry *entry = find_database(wanted->database);
	Oid user;

	if (entry == NULL)
		entry = add_database(wanted, now);
	else if (!OidIsValid(entry->shared->database)) /* others may have been removed */
		share_database(entry);
	entry->is_wanted = true;
	user = entry->wanted.user;
	if (entry->settings != settings || user != wanted->user ||
		entry->wanted.version != wanted->version)
	{
		entry->look = true;
		if (entry->slot && entry->slot->user != wanted->user)
			scheduler_slot_leave(entry->slot);
		else if (entry->slot)
			shared_scheduler_wake(wanted->database, 0);
	}
	entry->settings = settings;
	entry->wanted = *wanted;
}

/*
 * Stop the schedulers of databases that should not have one any more, and forget those databases
 * that have none.
 */
static void
forget_unwanted(void)
{
	ListCell *cell;

	foreach(cell, MySupervisor.databases)
	{
		DatabaseEntry *entry = lfirst(cell);

		if (entry->is_wanted)
			continue;
		if (entry->slot)
		{
			scheduler_slot_leave(entry->slot);
			continue;
		}
		shared_database_remove(entry->wanted.database);
		MySupervisor.databases = foreach_delete_current(MySupervisor.databases, cell);
		pfree(entry);
	}
}

/*
 * A reload may have moved the tables, and after a step of the clock nobody knows when something is
 * due: look at each database again.
 */
static void
look_again(MonoTime now)
{
	MySupervisor.look = MySupervisor.read_again = now;
}

/* Was the wall clock set since this was true the last time, at once or in small steps? */
static bool
clock_was_set(void)
{
	MonoTime before = clock_mono();
	ClockNow now = clock_now();
	int64 ahead = now.wall - now.mono.us;
	int64 step = ahead - MySupervisor.wall_ahead;

	/* this process may have been stopped between the two clocks: look again next time */
	if (clock_mono().us - before.us > CLOCK_STEP_US / 2)
		return false;
	if (step <= CLOCK_STEP_US && step >= -CLOCK_STEP_US)
		return false;
	MySupervisor.wall_ahead = ahead;
	return true;
}

/* Read the catalogs: which databases should have a scheduler? */
static void
read_catalogs(MonoTime now)
{
	ListCell *cell;

	/* before: what changes meanwhile is read again */
	MySupervisor.databases_changes = shared_databases_changes();
	MySupervisor.settings_changes = shared_settings_changes();
	MySupervisor.read_again = clock_plus_ms(now, PERIOD_MS);
	foreach(cell, MySupervisor.databases)
		((DatabaseEntry *) lfirst(cell))->is_wanted = false;
	foreach(cell, wanted_read(MySupervisor.context, &MySupervisor.unusable))
		check_database(lfirst(cell), now);
	MySupervisor.visit = Max(VISIT_MS, VISIT_EACH_MS * list_length(MySupervisor.databases));
	/* a missing role may exist by now, and this process may not have got the invalidation yet */
	if (MySupervisor.unusable.count > 0)
		MySupervisor.read_again = clock_plus_ms(now, UNUSABLE_RETRY_MS);
}

/* Compare the databases that should have a scheduler with those that have one, and act on it. */
static void
supervise_databases(void)
{
	MonoTime now = clock_mono();

	MemoryContextSwitchTo(MySupervisor.context);
	check_schedulers(now);
	if (clock_was_set())
		look_again(now);
	if (!clock_is_before(now, MySupervisor.read_again) ||
		MySupervisor.databases_changes != shared_databases_changes() ||
		MySupervisor.settings_changes != shared_settings_changes())
		read_catalogs(now);
	forget_unwanted();
	MySupervisor.next = MySupervisor.read_again;
	places_share(now);
	MemoryContextReset(MySupervisor.context);
}

/*
 * The predecessor of this supervisor ended alone: its schedulers are asked to exit, and are started
 * again.
 */
static void
stop_leftover_schedulers(void)
{
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
		scheduler_slot_leave(&Shared->schedulers[i]);
	for (i = 0; i < Shared->ndatabases; i++)
		if (OidIsValid(Shared->databases[i].database))
			shared_database_remove(Shared->databases[i].database);
}

/* At exit: backends wake no supervisor any more. */
static void
detach_supervisor(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = SHARED_NO_PROC;
	LWLockRelease(Shared->directory);
}

/* Publish what tasks have if nothing but the configuration says it. */
static void
publish_configured(void)
{
	SettingsTask settings = settings_task();
	SharedConfigured configured = {.format = settings.format};

	strlcpy(configured.sessions, pg_get_timezone_name(settings.timezone),
			sizeof(configured.sessions));
	if (settings.task_timezone)
		strlcpy(configured.tasks, pg_get_timezone_name(settings.task_timezone),
				sizeof(configured.tasks));
	shared_publish_configured(&configured);
}

/* Connect, and take over from a supervisor that has exited. */
static void
attach_supervisor(void)
{
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	MySupervisor.look = clock_mono();
	MySupervisor.unknown.found.due = CLOCK_NEVER;
	(void) clock_was_set();
	MySupervisor.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task supervisor", ALLOCSET_DEFAULT_SIZES);
	on_shmem_exit(detach_supervisor, 0);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = COMPAT_MY_PROC;
	LWLockRelease(Shared->directory);
	shared_begin_serving();
	crash_server_runs();
	publish_configured();
	stop_leftover_schedulers();
	if (arbiter_slots() <= 0)
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						  errmsg("there are too few worker slots for pg_task to run tasks"),
						  errhint("Increase \"max_worker_processes\".")));
}

void
pg_task_supervisor_main(Datum arg pg_attribute_unused())
{
	uint32 wait_event = COMPAT_WAIT_EVENT("PgTaskSupervisorMain");

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	attach_supervisor();
	while (!ShutdownRequestPending)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			publish_configured();
			look_again(clock_mono());
		}
		supervise_databases();
		/* another process may set the latch all the time */
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, PAUSE_MS, wait_event);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 clock_ms_until(clock_mono(), MySupervisor.next), wait_event);
		ResetLatch(MyLatch);
	}
	/* with exit code 0, the postmaster would not restart it after a SIGTERM */
	proc_exit(1);
}
