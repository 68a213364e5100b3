/*
 * supervisor.c
 *		The process that starts and stops the schedulers of all databases.
 *
 * It is not connected to a database and reads shared catalogs only.  It compares the databases that
 * should have a scheduler with those that have one, starts and stops schedulers, and delays the
 * restart of those that keep exiting early.  A reload, a commit that changed databases or roles,
 * and the end of a scheduler wake it.
 *
 * It never touches a task table.
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

#include "compat.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/hold.h"
#include "shared/report.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/worker.h"
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

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define NO_WORKER_RETRY_MS 100

/*
 * That failure is logged if it lasts for this time (ms).  The worker slot of a process that has
 * ended becomes free a little later.
 */
#define NO_WORKER_MS 1000

/* Retry interval while a database or role that pg_task.database names cannot be used (ms). */
#define UNUSABLE_RETRY_MS 1000

/*
 * If there are more databases than places for schedulers, a scheduler keeps its place for a time
 * slice: this long after it became idle, or this long after its start if it is busy (ms).
 */
#define IDLE_SLICE_MS 50
#define BUSY_SLICE_MS 1000

/*
 * A scheduler that was asked to exit is terminated after this time (ms): later if it is not
 * connected yet, because another session may have locked the database, and much later while it
 * creates its table or indexes.
 */
#define LEAVE_MS 2000
#define LEAVE_CONNECTING_MS 5000
#define LEAVE_PREPARING_MS 600000

/* A database in which something waits precedes those that have waited for less than this (ms). */
#define MARKED_FIRST_MS 10000

/*
 * A database that is not known to need a scheduler gets one at this interval (ms), or, if there are
 * very many, at this interval times their number.
 */
#define VISIT_MS 60000
#define VISIT_EACH_MS 1000

/* Minimum pause between two iterations, however often the supervisor is woken (ms). */
#define PAUSE_MS 10

/* What is missing, and is logged once while it is. */
#define NO_WORKER "worker slot"
#define CROWD "places for all databases"

/* What the supervisor remembers of a database. */
typedef struct DatabaseEntry
{
	Oid database;		   /* key of the hash table */
	SharedScheduler *slot; /* NULL: none was started, or it has ended */
	uint32 generation;
	BackgroundWorkerHandle *handle;
	MonoTime started;
	MonoTime not_before; /* earliest time of the next start */
	int throttle;		 /* delay of the next start after an early end (ms) */
	bool seen;
	char *name; /* in the context of the iteration */
	Oid user;
	MonoTime left;	 /* when its last scheduler ended, or when it was first seen */
	MonoTime asked;	 /* when its scheduler was asked to exit to free its place; 0: it was not */
	MonoTime need;	 /* when it is to get a scheduler; computed in each iteration */
	uint32 settings; /* change counter of its settings, of which its scheduler was told */
} DatabaseEntry;

/* The supervisor's process. */
static struct
{
	HTAB *databases;	   /* of DatabaseEntry */
	MemoryContext context; /* reset in each iteration */
	MonoTime next;		   /* when the next iteration begins at the latest */
	Reports unusable;	   /* entries of pg_task.database that cannot be used */
	Reports missing;	   /* NO_WORKER, CROWD */
} MySupervisor;

void
supervisor_register(void)
{
	BackgroundWorker worker;

	worker_describe(&worker, "supervisor");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/* The next iteration begins at this time, or before. */
static void
wake_at(MonoTime moment)
{
	MySupervisor.next = clock_min(MySupervisor.next, moment);
}

/* Is the scheduler connected to its database? */
static bool
is_connected(const DatabaseEntry *entry)
{
	return pg_atomic_read_u64(&entry->slot->renewed) != 0;
}

/* The scheduler of this database has ended: compute when the next one may start. */
static void
scheduler_ended(DatabaseEntry *entry, MonoTime now)
{
	bool young = !clock_exceeds(entry->started, now, YOUNG_MS);
	bool asked = entry->slot->asked || entry->slot->generation != entry->generation;
	bool shut = entry->asked.us != 0 && !is_connected(entry) &&
				clock_exceeds(entry->asked, now, LEAVE_CONNECTING_MS);

	/*
	 * An exit on request is not an early end, unless the scheduler could not connect: then its
	 * successor cannot either.
	 */
	if ((asked || !young) && !shut)
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
}

/* Find out whether the scheduler of this database has ended, or never attached. */
static void
check_scheduler(DatabaseEntry *entry, MonoTime now)
{
	pid_t pid;
	bool ended;

	if (entry->slot == NULL)
		return;
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

/* No worker slot is free: log that once, if it lasts. */
static void
report_no_worker_for_scheduler(const DatabaseEntry *entry)
{
	if (report_due(&MySupervisor.missing, NO_WORKER, NO_WORKER_MS))
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker slot is free for the scheduler of database \"%s\"",
						entry->name),
				 errhint("Increase \"max_worker_processes\".")));
}

/* Start the scheduler of a database, or try again a little later. */
static void
start_scheduler(DatabaseEntry *entry, MonoTime now)
{
	SharedScheduler *slot = scheduler_slot_reserve(entry->database, entry->user);
	MemoryContext old;

	if (slot == NULL)
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry->handle = worker_start_scheduler(slot, entry->name);
	MemoryContextSwitchTo(old);
	if (entry->handle == NULL)
	{
		scheduler_slot_withdraw(slot, slot->generation);
		arbiter_evict(InvalidOid, InvalidOid);
		wake_at(clock_plus_ms(now, NO_WORKER_RETRY_MS));
		report_no_worker_for_scheduler(entry);
		return;
	}
	report_end(&MySupervisor.missing, NO_WORKER);
	entry->slot = slot;
	entry->generation = slot->generation;
	entry->started = now;
}

/* Wake the scheduler of a database whose settings have changed: it looks whether they concern it.
 */
static void
tell_changed_settings(DatabaseEntry *entry)
{
	uint32 settings = shared_settings_of_database(entry->database);

	if (entry->slot && entry->settings != settings)
		shared_scheduler_wake(entry->database);
	entry->settings = settings;
}

/* Check the scheduler of a wanted database: has it ended, does it run for the right role? */
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
		shared_database_add(wanted->database);
	}
	entry->seen = true;
	entry->name = wanted->name;
	entry->user = wanted->user;
	check_scheduler(entry, now);
	tell_changed_settings(entry);
	if (entry->slot && entry->slot->user != wanted->user)
		scheduler_slot_leave(entry->slot);
}

/*
 * Compute when a database without a scheduler is to get one, if there are not enough places for
 * all.
 */
static MonoTime
compute_need(const DatabaseEntry *entry)
{
	int visit = Max(VISIT_MS, VISIT_EACH_MS * hash_get_num_entries(MySupervisor.databases));
	MonoTime need = clock_plus_ms(entry->left, visit);
	SharedDatabase *shared;

	LWLockAcquire(Shared->directory, LW_SHARED);
	shared = shared_database_find(entry->database);
	if (shared)
		need = clock_min(need, clock_max(shared->due, entry->left));
	if (shared && shared->marked.us != 0)
		need = clock_min(need, clock_plus_ms(shared->marked, -MARKED_FIRST_MS));
	LWLockRelease(Shared->directory);
	return need;
}

/* For list_sort: the earliest need first. */
static int
compare_needs(const ListCell *left, const ListCell *right)
{
	const DatabaseEntry *a = lfirst(left);
	const DatabaseEntry *b = lfirst(right);

	return a->need.us < b->need.us ? -1 : a->need.us > b->need.us;
}

/*
 * Return the databases that could get a scheduler now, as a List of DatabaseEntry, in the order of
 * their needs.
 */
static List *
find_startable(MonoTime now)
{
	List *waiting = NIL;
	HASH_SEQ_STATUS scan;
	DatabaseEntry *entry;

	hash_seq_init(&scan, MySupervisor.databases);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->slot || hold_exists(entry->database) ||
			shared_database_is_disabled(entry->database))
			continue;
		if (clock_is_before(now, entry->not_before))
		{
			wake_at(entry->not_before);
			continue;
		}
		entry->need = compute_need(entry);
		waiting = lappend(waiting, entry);
	}
	list_sort(waiting, compare_needs);
	return waiting;
}

/* Return when this scheduler's time slice ends. */
static MonoTime
end_of_slice(const DatabaseEntry *entry)
{
	MonoTime idle_since = {(int64) pg_atomic_read_u64(&entry->slot->idle_since)};

	if (idle_since.us != 0)
		return clock_plus_ms(idle_since, IDLE_SLICE_MS);
	return clock_plus_ms(entry->started, BUSY_SLICE_MS);
}

/* A scheduler was asked to exit: terminate it if it takes too long. */
static void
terminate_late_scheduler(DatabaseEntry *entry, MonoTime now)
{
	MonoTime end;
	int patience = LEAVE_MS;

	/* read without the directory lock: a wrong guess only changes the delay */
	if (!is_connected(entry))
		patience = LEAVE_CONNECTING_MS;
	else if (!OidIsValid(entry->slot->relid))
		patience = LEAVE_PREPARING_MS;
	end = clock_plus_ms(entry->asked, patience);
	if (!clock_is_before(now, end) && entry->handle)
		TerminateBackgroundWorker(entry->handle);
	else
		wake_at(end);
}

/*
 * Does this scheduler exit, or has it exited since the iteration began?  The state is read without
 * the directory lock: if another process has changed it just now, the next iteration sees that.
 */
static bool
is_exiting(const DatabaseEntry *entry)
{
	return entry->slot->state == SCHEDULER_LEAVING || entry->slot->state == SCHEDULER_FREE ||
		   entry->slot->generation != entry->generation;
}

/*
 * This many databases need a place: ask as many schedulers to exit, those first whose time slices
 * end first.  The slice of an idle one is short.
 */
static void
ask_schedulers_to_exit(int needed, MonoTime now)
{
	while (needed > 0)
	{
		HASH_SEQ_STATUS scan;
		DatabaseEntry *entry;
		DatabaseEntry *victim = NULL;
		int leaving = 0;

		hash_seq_init(&scan, MySupervisor.databases);
		while ((entry = hash_seq_search(&scan)) != NULL)
		{
			if (entry->slot == NULL)
				continue;
			if (is_exiting(entry))
			{
				leaving++;
				if (entry->asked.us != 0)
					terminate_late_scheduler(entry, now);
			}
			else if (victim == NULL || clock_is_before(end_of_slice(entry), end_of_slice(victim)))
				victim = entry;
		}
		if (leaving >= needed || victim == NULL)
			return;
		if (clock_is_before(now, end_of_slice(victim)))
		{
			wake_at(end_of_slice(victim));
			return;
		}
		victim->asked = now;
		scheduler_slot_leave(victim->slot);
	}
}

/* Log once that databases share the places, while they do. */
static void
report_crowd(int databases, int places)
{
	if (databases <= places)
		report_end(&MySupervisor.missing, CROWD);
	else if (report_due(&MySupervisor.missing, CROWD, 0))
		ereport(LOG, (errmsg("%d databases take turns at having a scheduler of pg_task: there are"
							 " places for %d",
							 databases, places),
					  errhint("Increase \"max_worker_processes\", or set \"pg_task.database\".")));
}

/*
 * Distribute the places for schedulers among the databases; if there are too few, by time slices.
 */
static void
share_places(MonoTime now)
{
	List *waiting = find_startable(now);
	int places = arbiter_free_places();
	int needed = 0;
	ListCell *cell;

	shared_crowd(list_length(waiting) > Max(places, 0));
	report_crowd((int) hash_get_num_entries(MySupervisor.databases), arbiter_places());
	foreach(cell, waiting)
	{
		DatabaseEntry *entry = lfirst(cell);

		if (places > 0)
		{
			start_scheduler(entry, now);
			places--;
		}
		else if (!clock_is_before(now, entry->need))
			needed++;
		else
			wake_at(entry->need);
	}
	/* places is negative if the limit was lowered or executors have taken the worker slots */
	needed = Max(needed, -places);
	if (needed == 0)
		return;
	arbiter_evict_for_scheduler();
	ask_schedulers_to_exit(Min(needed, arbiter_places()), now);
}

/* Stop the schedulers of databases that should not have one any more. */
static void
stop_unwanted_schedulers(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	DatabaseEntry *entry;

	hash_seq_init(&scan, MySupervisor.databases);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (!entry->seen)
		{
			check_scheduler(entry, now);
			if (entry->slot)
				scheduler_slot_leave(entry->slot);
			else
			{
				shared_database_remove(entry->database);
				hash_search(MySupervisor.databases, &entry->database, HASH_REMOVE, NULL);
			}
		}
		else
			entry->seen = false;
	}
}

/* Compare the databases that should have a scheduler with those that have one, and act on it. */
static void
supervise_databases(void)
{
	MonoTime now = clock_mono();
	ListCell *cell;

	MySupervisor.next = clock_plus_ms(now, PERIOD_MS);
	MemoryContextSwitchTo(MySupervisor.context);
	foreach(cell, wanted_read(MySupervisor.context, &MySupervisor.unusable))
		check_database(lfirst(cell), now);
	stop_unwanted_schedulers(now);
	share_places(now);
	/* a missing role may exist by now, and this process may not have got the invalidation yet */
	if (MySupervisor.unusable.count > 0)
		wake_at(clock_plus_ms(now, UNUSABLE_RETRY_MS));
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
	MySupervisor.databases = hash_create("pg_task databases", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	MySupervisor.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task supervisor", ALLOCSET_DEFAULT_SIZES);
	on_shmem_exit(detach_supervisor, 0);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = COMPAT_MY_PROC;
	LWLockRelease(Shared->directory);
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
