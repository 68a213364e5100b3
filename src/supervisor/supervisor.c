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

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/hold.h"
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

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define NO_WORKER_RETRY_MS 100

/*
 * If there are more databases than places for schedulers, a scheduler keeps its place for a time
 * slice: this long after it became idle, or this long after its start if it is busy (ms).
 */
#define IDLE_SLICE_MS 50
#define BUSY_SLICE_MS 1000

/*
 * A scheduler that was asked to exit is terminated after this time (ms): later if it is not
 * connected yet, because somebody may have locked the database, and much later while it creates its
 * table or indexes.
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

/* A database that should have a scheduler. */
typedef struct Wanted
{
	Oid database;
	Oid user;
	char *name;
} Wanted;

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
	char *name; /* in iteration_context */
	Oid user;
	MonoTime left;	/* when its last scheduler ended, or when it was first seen */
	MonoTime asked; /* when its scheduler was asked to exit to free its place; 0: it was not */
	MonoTime need;	/* when it is to get a scheduler; computed in each iteration */
} DatabaseEntry;

static HTAB *database_entries = NULL;
static MemoryContext iteration_context = NULL;
static List *reported = NIL;		   /* warnings of the last iteration, as strings */
static List *complaints = NIL;		   /* warnings of this iteration */
static MonoTime no_worker_since = {0}; /* since when no worker slot was free; 0: one was */
static bool no_worker_reported = false;
static bool crowd_reported = false;
static MonoTime next_turn = {0};

void
supervisor_register(void)
{
	BackgroundWorker worker;

	worker_describe(&worker, "supervisor");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/* Log a warning, unless it was due in the last iteration as well. */
static void
complain(const char *message, const char *detail)
{
	MemoryContext old;
	ListCell *cell;
	bool known = false;

	foreach(cell, reported)
		known |= strcmp(lfirst(cell), message) == 0;
	if (!known)
		ereport(WARNING, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("%s", message),
						  errdetail("%s", detail)));
	old = MemoryContextSwitchTo(TopMemoryContext);
	complaints = lappend(complaints, pstrdup(message));
	MemoryContextSwitchTo(old);
}

/* Forget the warnings of the last iteration, keep those of this one. */
static void
finish_complaints(void)
{
	list_free_deep(reported);
	reported = complaints;
	complaints = NIL;
}

static Wanted *
make_wanted(Form_pg_database database, Oid user)
{
	Wanted *wanted = palloc(sizeof(Wanted));

	wanted->database = database->oid;
	wanted->user = user;
	wanted->name = pstrdup(NameStr(database->datname));
	return wanted;
}

/*
 * Does the database allow connections?  A datconnlimit of -2 marks one whose DROP was interrupted.
 */
static bool
is_usable(Form_pg_database database)
{
	return database->datallowconn && database->datconnlimit != -2;
}

/*
 * Add the database that an entry of pg_task.database names to the list, or log why it cannot be
 * used.
 */
static List *
want_target(List *wanted, const SettingsTarget *target, Form_pg_database database)
{
	Oid user = database->datdba;

	if (!is_usable(database))
	{
		complain(psprintf("database \"%s\" in \"pg_task.database\" does not allow connections",
						  target->database),
				 "It has no task table until it does.");
		return wanted;
	}
	if (target->role)
		user = get_role_oid(target->role, true);
	if (OidIsValid(user))
		return lappend(wanted, make_wanted(database, user));
	complain(psprintf("role \"%s\" in \"pg_task.database\" does not exist", target->role),
			 psprintf("Database \"%s\" has no task table until it does.", target->database));
	return wanted;
}

/* Return the databases of the cluster that should have a scheduler, as a List of Wanted. */
static List *
find_wanted(void)
{
	List *targets = settings_targets();
	List *missing = list_copy(targets);
	List *wanted = NIL;
	MemoryContext caller = CurrentMemoryContext;
	Relation rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple tuple;
	ListCell *cell;

	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);

		MemoryContextSwitchTo(caller);
		if (targets == NIL && is_usable(database) && !database->datistemplate)
			wanted = lappend(wanted, make_wanted(database, database->datdba));
		foreach(cell, targets)
		{
			SettingsTarget *target = lfirst(cell);

			if (strcmp(target->database, NameStr(database->datname)) != 0)
				continue;
			missing = list_delete_ptr(missing, target);
			wanted = want_target(wanted, target, database);
		}
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	foreach(cell, missing)
		complain(psprintf("database \"%s\" in \"pg_task.database\" does not exist",
						  ((SettingsTarget *) lfirst(cell))->database),
				 "It gets a scheduler as soon as it does.");
	return wanted;
}

static List *
read_wanted(void)
{
	List *wanted;

	if (!Settings.enabled)
		return NIL;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(iteration_context);
	wanted = find_wanted();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(iteration_context);
	return wanted;
}

/* Is the scheduler connected to its database? */
static bool
is_connected(const DatabaseEntry *charge)
{
	return pg_atomic_read_u64(&charge->slot->renewed) != 0;
}

/*
 * The scheduler of this database has ended: compute when the next one may start.
 */
static void
scheduler_ended(DatabaseEntry *charge, MonoTime now)
{
	bool young = !clock_exceeds(charge->started, now, YOUNG_MS);
	bool asked = charge->slot->asked || charge->slot->generation != charge->generation;
	bool shut = charge->asked.us != 0 && !is_connected(charge) &&
				clock_exceeds(charge->asked, now, LEAVE_CONNECTING_MS);

	/*
	 * An exit on request is not an early end, unless the scheduler could not connect: then its
	 * successor cannot either.
	 */
	if ((asked || !young) && !shut)
		charge->throttle = 0;
	else
		charge->throttle = Min(Max(charge->throttle * 2, THROTTLE_MS), THROTTLE_MAX_MS);
	charge->not_before = clock_plus_ms(now, charge->throttle);
	charge->left = now;
	charge->asked = CLOCK_LONG_AGO;
	charge->slot = NULL;
	if (charge->handle)
		pfree(charge->handle);
	charge->handle = NULL;
}

/* Find out whether the scheduler of this database has ended, or never attached. */
static void
check_entry(DatabaseEntry *charge, MonoTime now)
{
	pid_t pid;
	bool ended;

	if (charge->slot == NULL)
		return;
	LWLockAcquire(Shared->directory, LW_SHARED);
	ended = charge->slot->state == SCHEDULER_FREE || charge->slot->generation != charge->generation;
	LWLockRelease(Shared->directory);
	if (!ended && charge->handle && GetBackgroundWorkerPid(charge->handle, &pid) == BGWH_STOPPED)
	{
		scheduler_slot_withdraw(charge->slot, charge->generation);
		ended = true;
	}
	if (ended)
		scheduler_ended(charge, now);
}

static void
start_scheduler(DatabaseEntry *charge, MonoTime now)
{
	SharedScheduler *slot = scheduler_slot_reserve(charge->database, charge->user);
	MemoryContext old;

	if (slot == NULL)
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	charge->handle = worker_start_scheduler(slot, charge->name);
	MemoryContextSwitchTo(old);
	if (charge->handle == NULL)
	{
		scheduler_slot_withdraw(slot, slot->generation);
		arbiter_evict(InvalidOid, InvalidOid);
		next_turn = clock_min(next_turn, clock_plus_ms(now, NO_WORKER_RETRY_MS));
		if (no_worker_since.us == 0)
			no_worker_since = now;
		/* the worker slot of a process that has ended becomes free a little later */
		if (!clock_exceeds(no_worker_since, now, THROTTLE_MS))
			return;
		if (!no_worker_reported)
			ereport(
				LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker slot is free for the scheduler of database \"%s\"",
						charge->name),
				 errhint("Increase \"max_worker_processes\".")));
		no_worker_reported = true;
		return;
	}
	no_worker_reported = false;
	no_worker_since = CLOCK_LONG_AGO;
	charge->slot = slot;
	charge->generation = slot->generation;
	charge->started = now;
}

/* Check the scheduler of a wanted database: has it ended, does it run for the right role? */
static void
attend(const Wanted *wanted, MonoTime now)
{
	bool found;
	DatabaseEntry *charge = hash_search(database_entries, &wanted->database, HASH_ENTER, &found);

	if (!found)
	{
		memset(charge, 0, sizeof(DatabaseEntry));
		charge->database = wanted->database;
		charge->left = now;
		shared_database_add(wanted->database);
	}
	charge->seen = true;
	charge->name = wanted->name;
	charge->user = wanted->user;
	check_entry(charge, now);
	if (charge->slot && charge->slot->user != wanted->user)
		scheduler_slot_leave(charge->slot);
}

/*
 * Compute when a database without a scheduler is to get one, if there are not enough places for
 * all.
 */
static MonoTime
find_need(const DatabaseEntry *charge)
{
	int visit = Max(VISIT_MS, VISIT_EACH_MS * hash_get_num_entries(database_entries));
	MonoTime need = clock_plus_ms(charge->left, visit);
	SharedDatabase *entry;

	LWLockAcquire(Shared->directory, LW_SHARED);
	entry = shared_database_find(charge->database);
	if (entry)
		need = clock_min(need, clock_max(entry->due, charge->left));
	if (entry && entry->marked.us != 0)
		need = clock_min(need, clock_plus_ms(entry->marked, -MARKED_FIRST_MS));
	LWLockRelease(Shared->directory);
	return need;
}

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
find_waiting(MonoTime now)
{
	List *waiting = NIL;
	HASH_SEQ_STATUS scan;
	DatabaseEntry *charge;

	hash_seq_init(&scan, database_entries);
	while ((charge = hash_seq_search(&scan)) != NULL)
	{
		if (charge->slot || hold_exists(charge->database))
			continue;
		if (clock_is_before(now, charge->not_before))
		{
			next_turn = clock_min(next_turn, charge->not_before);
			continue;
		}
		charge->need = find_need(charge);
		waiting = lappend(waiting, charge);
	}
	list_sort(waiting, compare_needs);
	return waiting;
}

/* Return when this scheduler's time slice ends. */
static MonoTime
find_end(const DatabaseEntry *charge)
{
	MonoTime idle_since = {(int64) pg_atomic_read_u64(&charge->slot->idle_since)};

	if (idle_since.us != 0)
		return clock_plus_ms(idle_since, IDLE_SLICE_MS);
	return clock_plus_ms(charge->started, BUSY_SLICE_MS);
}

/* A scheduler was asked to exit: terminate it if it takes too long. */
static void
see_leave(DatabaseEntry *charge, MonoTime now)
{
	MonoTime end;
	int patience = LEAVE_MS;

	/* read without the directory lock: a wrong guess only changes the delay */
	if (!is_connected(charge))
		patience = LEAVE_CONNECTING_MS;
	else if (!OidIsValid(charge->slot->relid))
		patience = LEAVE_PREPARING_MS;
	end = clock_plus_ms(charge->asked, patience);
	if (!clock_is_before(now, end) && charge->handle)
		TerminateBackgroundWorker(charge->handle);
	else
		next_turn = clock_min(next_turn, end);
}

/*
 * Does this scheduler exit, or has it exited since the iteration began?  The state is read without
 * the directory lock: if another process has changed it just now, the next iteration sees that.
 */
static bool
is_leaving(const DatabaseEntry *charge)
{
	return charge->slot->state == SCHEDULER_LEAVING || charge->slot->state == SCHEDULER_FREE ||
		   charge->slot->generation != charge->generation;
}

/*
 * This many databases need a place: ask as many schedulers to exit, idle ones first, when their
 * time slices end.
 */
static void
make_room(int needed, MonoTime now)
{
	while (needed > 0)
	{
		HASH_SEQ_STATUS scan;
		DatabaseEntry *charge;
		DatabaseEntry *victim = NULL;
		int leaving = 0;

		hash_seq_init(&scan, database_entries);
		while ((charge = hash_seq_search(&scan)) != NULL)
		{
			if (charge->slot == NULL)
				continue;
			if (is_leaving(charge))
			{
				leaving++;
				if (charge->asked.us != 0)
					see_leave(charge, now);
			}
			else if (victim == NULL || clock_is_before(find_end(charge), find_end(victim)))
				victim = charge;
		}
		if (leaving >= needed || victim == NULL)
			return;
		if (clock_is_before(now, find_end(victim)))
		{
			next_turn = clock_min(next_turn, find_end(victim));
			return;
		}
		victim->asked = now;
		scheduler_slot_leave(victim->slot);
	}
}

static void
report_crowd(int places)
{
	if (!crowd_reported)
		ereport(LOG, (errmsg("%d databases take turns at having a scheduler of pg_task: there are"
							 " places for %d",
							 (int) hash_get_num_entries(database_entries), places),
					  errhint("Increase \"max_worker_processes\", or set \"pg_task.database\".")));
	crowd_reported = true;
}

/*
 * Distribute the places for schedulers among the databases; if there are too few, by time slices.
 */
static void
share_places(MonoTime now)
{
	List *waiting = find_waiting(now);
	int places = arbiter_free_places();
	int needed = 0;
	ListCell *cell;

	shared_crowd(list_length(waiting) > Max(places, 0));
	if (hash_get_num_entries(database_entries) > arbiter_places())
		report_crowd(arbiter_places());
	else
		crowd_reported = false;
	foreach(cell, waiting)
	{
		DatabaseEntry *charge = lfirst(cell);

		if (places > 0)
		{
			start_scheduler(charge, now);
			places--;
		}
		else if (!clock_is_before(now, charge->need))
			needed++;
		else
			next_turn = clock_min(next_turn, charge->need);
	}
	/* places is negative if the limit was lowered or executors have taken the worker slots */
	needed = Max(needed, -places);
	if (needed == 0)
		return;
	arbiter_evict_for_scheduler();
	make_room(Min(needed, arbiter_places()), now);
}

/* Stop the schedulers of databases that should not have one any more. */
static void
stop_unwanted_schedulers(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	DatabaseEntry *charge;

	hash_seq_init(&scan, database_entries);
	while ((charge = hash_seq_search(&scan)) != NULL)
	{
		if (!charge->seen)
		{
			check_entry(charge, now);
			if (charge->slot)
				scheduler_slot_leave(charge->slot);
			else
			{
				shared_database_remove(charge->database);
				hash_search(database_entries, &charge->database, HASH_REMOVE, NULL);
			}
		}
		else
			charge->seen = false;
	}
}

static void
run_iteration(void)
{
	MonoTime now = clock_mono();
	ListCell *cell;

	next_turn = clock_plus_ms(now, PERIOD_MS);
	MemoryContextSwitchTo(iteration_context);
	foreach(cell, read_wanted())
		attend(lfirst(cell), now);
	stop_unwanted_schedulers(now);
	share_places(now);
	/* a missing role may exist by now, and this process may not have got the invalidation yet */
	if (complaints != NIL)
		next_turn = clock_min(next_turn, clock_plus_ms(now, THROTTLE_MS));
	finish_complaints();
	MemoryContextReset(iteration_context);
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
pause_a_moment(uint32 wait_event)
{
	(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, PAUSE_MS, wait_event);
}

static void
detach_supervisor(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = SHARED_NO_PROC;
	LWLockRelease(Shared->directory);
}

static void
attach_supervisor(void)
{
	HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(DatabaseEntry)};

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	database_entries = hash_create("pg_task databases", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	iteration_context =
		AllocSetContextCreate(TopMemoryContext, "pg_task supervisor", ALLOCSET_DEFAULT_SIZES);
	on_shmem_exit(detach_supervisor, 0);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = COMPAT_MY_PROC;
	LWLockRelease(Shared->directory);
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
		}
		run_iteration();
		pause_a_moment(wait_event);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 clock_ms_until(clock_mono(), next_turn), wait_event);
		ResetLatch(MyLatch);
	}
	/* with exit code 0, the postmaster would not restart it after a SIGTERM */
	proc_exit(1);
}
