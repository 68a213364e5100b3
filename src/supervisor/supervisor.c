/*
 * supervisor.c
 *		The process that starts and stops the schedulers of all databases.
 *
 * It is not connected to a database and reads shared catalogs only.  It compares the databases that
 * should have a scheduler with those that have one, and delays the restart of schedulers that keep
 * exiting early.  A reload, a commit that changed databases or roles, a commit that planned tasks
 * where no scheduler is, and the end of a scheduler wake it.  It reads the catalogs only if
 * databases, roles or settings have changed, and each period: other iterations are bounded by the
 * number of schedulers, not of databases.
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
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/crash.h"
#include "shared/serving.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "supervisor/places.h"
#include "supervisor/supervisor.h"
#include "supervisor/wanted.h"

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

/* Forget a database that is to have no scheduler. */
static void
forget_database(DatabaseEntry *entry)
{
	Assert(entry->slot == NULL);
	sleepers_move(&MySupervisor.sleepers, entry, ENTRY_NOWHERE);
	MySupervisor.sleepers.counts[ENTRY_NOWHERE]--;
	shared_database_remove(entry->database);
	hash_search(MySupervisor.databases, &entry->database, HASH_REMOVE, NULL);
}

/* The scheduler of this database has ended: compute when the next one may start. */
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
	if (((asked && entry->shared) || !young) && !shut)
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
	sleepers_stayed(&MySupervisor.sleepers, entry, worked, failed);
	if (entry->wanted)
		sleepers_sleep(&MySupervisor.sleepers, entry, now);
	else
		forget_database(entry);
}

/* Find out whether the scheduler of this database has ended, or never attached. */
static void
check_scheduler(DatabaseEntry *entry, MonoTime now)
{
	pid_t pid;
	bool ended;

	LWLockAcquire(Shared->directory, LW_SHARED);
	ended = entry->slot->state == SCHEDULER_FREE || entry->slot->generation != entry->generation;
	LWLockRelease(Shared->directory);
	if (!ended && entry->handle && GetBackgroundWorkerPid(entry->handle, &pid) == BGWH_STOPPED)
	{
		scheduler_slot_withdraw(entry->slot, entry->generation);
		ended = true;
	}
	if (ended)
		scheduler_ended(entry, now);
}

/* Find the schedulers that have ended.  Bounded by max_worker_processes. */
static void
check_schedulers(MonoTime now)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &MySupervisor.sleepers.served)
		check_scheduler(dlist_container(DatabaseEntry, list, iter.cur), now);
}

/*
 * A database has another owner, name or other settings, perhaps, or is another one with the same
 * oid: its scheduler looks whether that concerns it.  One that exits for it has a successor, and a
 * database without a scheduler gets one.
 */
static void
note_changes(DatabaseEntry *entry, const Wanted *wanted, MonoTime now)
{
	uint32 settings = shared_settings_of_database(entry->database);
	SharedNeeds needs = shared_database_needs(entry->database);
	Oid user = wanted->user;

	if ((entry->place == ENTRY_SLEEPING && needs.released) ||
		(entry->place == ENTRY_DISABLED && !needs.disabled))
		sleepers_sleep(&MySupervisor.sleepers, entry, now);
	if (entry->settings == settings && entry->user == user && entry->version == wanted->version)
		return;
	entry->settings = settings;
	entry->user = user;
	entry->version = wanted->version;
	entry->look = true;
	if (entry->slot && entry->slot->user != user)
		scheduler_slot_leave(entry->slot);
	else if (entry->slot)
		shared_scheduler_wake(entry->database);
	if (entry->place == ENTRY_SLEEPING || entry->place == ENTRY_DISABLED)
		sleepers_sleep(&MySupervisor.sleepers, entry, now);
}

/* A database is held back, because its scheduler has crashed the server: say so. */
static void
report_held(const Wanted *wanted, int crashes)
{
	SharedError error = {.at = GetCurrentTimestamp()};

	snprintf(error.message, sizeof(error.message),
			 "the scheduler has crashed the server %d times in a row: see pg_task_release",
			 crashes);
	shared_database_set_error(wanted->database, &error);
	ereport(WARNING,
			(errcode(ERRCODE_CRASH_SHUTDOWN),
			 errmsg("pg_task holds back the tasks of database \"%s\"", wanted->name),
			 errdetail("Its scheduler has crashed the server %d times in a row.", crashes),
			 errhint("Find out why; then \"SELECT pg_task_release()\" in this database, as a"
					 " superuser, or restart the server.")));
}

/* Note what the catalogs say of a wanted database. */
static void
check_database(const Wanted *wanted, MonoTime now)
{
	bool found;
	DatabaseEntry *entry =
		hash_search(MySupervisor.databases, &wanted->database, HASH_ENTER, &found);

	if (!found)
	{
		memset(entry, 0, sizeof(DatabaseEntry));
		entry->database = wanted->database;
		entry->left = now;
		entry->settings = shared_settings_of_database(wanted->database);
		entry->user = wanted->user;
		entry->version = wanted->version;
		MySupervisor.sleepers.counts[ENTRY_NOWHERE]++;
		entry->shared = shared_database_add(wanted->database);
		if (crash_holds(wanted->database))
			report_held(wanted, crash_holds(wanted->database));
		sleepers_sleep(&MySupervisor.sleepers, entry, now);
	}
	else if (!entry->shared && shared_database_add(wanted->database))
	{
		/* others were removed; from now on commits can mark it */
		entry->shared = true;
		if (entry->place == ENTRY_SLEEPING)
			sleepers_sleep(&MySupervisor.sleepers, entry, now);
	}
	entry->wanted = true;
	strlcpy(entry->name, wanted->name, NAMEDATALEN);
	note_changes(entry, wanted, now);
}

/*
 * Stop the schedulers of databases that should not have one any more.  Bounded by the number of
 * databases, each time that the catalogs are read.
 */
static void
stop_unwanted_schedulers(void)
{
	HASH_SEQ_STATUS scan;
	DatabaseEntry *entry;

	hash_seq_init(&scan, MySupervisor.databases);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!entry->wanted && entry->slot)
			scheduler_slot_leave(entry->slot);
		else if (!entry->wanted)
			forget_database(entry);
}

/*
 * A reload may have moved the tables, and after a step of the clock nobody knows when something is
 * due: look at each database again.
 */
static void
look_again(MonoTime now)
{
	MySupervisor.sleepers.look = now;
	places_compute_needs(now);
	MySupervisor.read_again = now;
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

/* May the catalogs say anything else than when they were read? */
static bool
must_read_catalogs(MonoTime now)
{
	return !clock_is_before(now, MySupervisor.read_again) ||
		   MySupervisor.databases_changes != shared_databases_changes() ||
		   MySupervisor.settings_changes != shared_settings_changes();
}

/*
 * Read the catalogs: which databases should have a scheduler?  Bounded by the number of databases,
 * when any has changed, and each period.
 */
static void
read_catalogs(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	DatabaseEntry *entry;
	ListCell *cell;

	/* before: what changes meanwhile is read again */
	MySupervisor.databases_changes = shared_databases_changes();
	MySupervisor.settings_changes = shared_settings_changes();
	MySupervisor.read_again = clock_plus_ms(now, PERIOD_MS);
	hash_seq_init(&scan, MySupervisor.databases);
	while ((entry = hash_seq_search(&scan)) != NULL)
		entry->wanted = false;
	foreach(cell, wanted_read(MySupervisor.context, &MySupervisor.unusable))
		check_database(lfirst(cell), now);
	stop_unwanted_schedulers();
	MySupervisor.sleepers.visit =
		Max(VISIT_MS, VISIT_EACH_MS * (int) hash_get_num_entries(MySupervisor.databases));
	/* a missing role may exist by now, and this process may not have got the invalidation yet */
	if (MySupervisor.unusable.count > 0)
		MySupervisor.read_again = clock_plus_ms(now, UNUSABLE_RETRY_MS);
}

/* Commits have planned something in databases without a scheduler.  Bounded by SHARED_DATABASES. */
static void
take_marks(MonoTime now)
{
	Oid *marks = palloc(SHARED_DATABASES * sizeof(Oid));
	bool lost;
	int count = shared_databases_take_marks(marks, &lost);
	int i;

	for (i = 0; i < count; i++)
	{
		DatabaseEntry *entry = hash_search(MySupervisor.databases, &marks[i], HASH_FIND, NULL);

		if (entry && (entry->place == ENTRY_SLEEPING || entry->place == ENTRY_DISABLED))
			sleepers_sleep(&MySupervisor.sleepers, entry, now);
	}
	if (lost)
		places_compute_needs(now);
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
	if (must_read_catalogs(now))
		read_catalogs(now);
	MySupervisor.next = MySupervisor.read_again;
	take_marks(now);
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
	for (i = 0; i < SHARED_DATABASES; i++)
		if (OidIsValid(Shared->databases[i].database))
			shared_database_remove(Shared->databases[i].database);
}

/* Limit the number of iterations: another process may set the latch all the time. */
static void
pause_between_iterations(uint32 wait_event)
{
	(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, PAUSE_MS, wait_event);
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
	HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(DatabaseEntry)};

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	sleepers_create(&MySupervisor.sleepers);
	(void) clock_was_set();
	MySupervisor.databases = hash_create("pg_task databases", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	MySupervisor.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task supervisor", ALLOCSET_DEFAULT_SIZES);
	on_shmem_exit(detach_supervisor, 0);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = COMPAT_MY_PROC;
	LWLockRelease(Shared->directory);
	serving_begin();
	crash_server_runs();
	shared_prepared_recovered();
	publish_configured();
	stop_leftover_schedulers();
	if (!arbiter_has_slots())
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
		pause_between_iterations(wait_event);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 clock_ms_until(clock_mono(), MySupervisor.next), wait_event);
		ResetLatch(MyLatch);
	}
	/* with exit code 0, the postmaster would not restart it after a SIGTERM */
	proc_exit(1);
}
