/*
 * supervisor.c
 *		The process that gives every database its scheduler.
 *
 * It is connected to no database and reads shared catalogs only.  It compares
 * the databases that should have a scheduler with those that have one, starts
 * and stops processes accordingly, and throttles what keeps dying.  A reload,
 * a commit that changed databases or roles, and the end of a scheduler wake it.
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
#include "shared/worker.h"
#include "supervisor/supervisor.h"

PGDLLEXPORT void pg_task_supervisor_main(Datum arg);

/* Whatever wakes it, it looks around at least so often. */
#define PERIOD_MS 10000

/* A scheduler that lived for less than this died young. */
#define YOUNG_MS 5000

/* A scheduler that died young is started again so much later, then twice as late, ... */
#define THROTTLE_MS 1000
#define THROTTLE_MAX_MS 60000

/* While no worker slot is free, one is asked for so often. */
#define NO_WORKER_RETRY_MS 100

/*
 * When there are more databases than places for schedulers, they take turns: a scheduler
 * that has nothing to do leaves after the first of these, any after the second.
 */
#define IDLE_SLICE_MS 50
#define BUSY_SLICE_MS 1000

/*
 * What does not leave when it is asked is terminated, later when it connects (somebody may
 * have locked the database), and much later when it makes its table or indexes.
 */
#define LEAVE_MS 2000
#define LEAVE_CONNECTING_MS 5000
#define LEAVE_PREPARING_MS 600000

/* A database in which something waits goes before those that have waited for less than this. */
#define MARKED_FIRST_MS 10000

/* A database that is not known to need one has a scheduler so often, or once in a second each. */
#define VISIT_MS 60000
#define VISIT_EACH_MS 1000

/* Between two turns of the supervisor, however often it is woken. */
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
	Oid database;		   /* hash key */
	SharedScheduler *slot; /* NULL: none was started, or it is over */
	uint32 generation;
	BackgroundWorkerHandle *handle;
	MonoTime started;
	MonoTime not_before; /* of the next start */
	int throttle;		 /* milliseconds */
	bool seen;
	char *name; /* in the context of the cycle, like user */
	Oid user;
	MonoTime left;	/* when it last had a scheduler, or was first seen without */
	MonoTime asked; /* when its scheduler was asked to leave its place; 0: it was not */
	MonoTime need;	/* when it is to have one; of this cycle */
} DatabaseEntry;

static HTAB *database_entries = NULL;
static MemoryContext iteration_context = NULL;
static List *reported = NIL;		   /* complaints that were logged, as strings */
static List *complaints = NIL;		   /* complaints of this turn */
static MonoTime no_worker_since = {0}; /* 0: there was one */
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

/* Log a complaint, unless it was one in the last turn, too. */
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

/* From now on only the complaints of this turn are known. */
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

/* Is it a database that one can connect to?  -2 marks one whose DROP was interrupted. */
static bool
is_usable(Form_pg_database database)
{
	return database->datallowconn && database->datconnlimit != -2;
}

/* Does an entry of pg_task.database ask for this one?  Adds it to the list if it can be had. */
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

/* The databases of the cluster that should have a scheduler, as a List of Wanted. */
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

	if (!settings_enabled)
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

/* Did the scheduler that was started get into its database? */
static bool
is_connected(const DatabaseEntry *charge)
{
	return pg_atomic_read_u64(&charge->slot->renewed) != 0;
}

/* The scheduler of this database has ended: when may the next one start? */
static void
scheduler_ended(DatabaseEntry *charge, MonoTime now)
{
	bool young = !clock_exceeds(charge->started, now, YOUNG_MS);
	bool asked = charge->slot->leave || charge->slot->generation != charge->generation;
	bool shut = charge->asked.us != 0 && !is_connected(charge) &&
				clock_exceeds(charge->asked, now, LEAVE_CONNECTING_MS);

	/* one that was asked to go did not die, but nobody can enter where it could not connect */
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

/* See whether the process that was started still is, or never arrived. */
static void
check_entry(DatabaseEntry *charge, MonoTime now)
{
	pid_t pid;
	bool ended;

	if (charge->slot == NULL)
		return;
	LWLockAcquire(Shared->directory, LW_SHARED);
	ended = !charge->slot->in_use || charge->slot->generation != charge->generation;
	LWLockRelease(Shared->directory);
	if (!ended && charge->handle && GetBackgroundWorkerPid(charge->handle, &pid) == BGWH_STOPPED)
	{
		shared_scheduler_release(charge->slot);
		ended = true;
	}
	if (ended)
		scheduler_ended(charge, now);
}

static void
start_scheduler(DatabaseEntry *charge, MonoTime now)
{
	SharedScheduler *slot = shared_scheduler_reserve(charge->database, charge->user);
	MemoryContext old;

	if (slot == NULL)
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	charge->handle = worker_start_scheduler(slot, charge->name);
	MemoryContextSwitchTo(old);
	if (charge->handle == NULL)
	{
		shared_scheduler_release(slot);
		arbiter_evict(InvalidOid, InvalidOid);
		next_turn = clock_min(next_turn, clock_plus_ms(now, NO_WORKER_RETRY_MS));
		if (no_worker_since.us == 0)
			no_worker_since = now;
		/* the slot of a process that has ended is free a little later */
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

/* One wanted database: see what became of its scheduler, and whether it is the right one. */
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
		shared_scheduler_leave(charge->slot);
}

/* When is a database that has no scheduler to have one, if there are not enough for all? */
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

/* The databases that could be given a scheduler now, as a List of DatabaseEntry, those that need it
 * most first. */
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

/* When may the place of this scheduler be another's? */
static MonoTime
find_end(const DatabaseEntry *charge)
{
	MonoTime idle_since = {(int64) pg_atomic_read_u64(&charge->slot->idle_since)};

	if (idle_since.us != 0)
		return clock_plus_ms(idle_since, IDLE_SLICE_MS);
	return clock_plus_ms(charge->started, BUSY_SLICE_MS);
}

/* A scheduler was asked to leave: it does, sooner or later. */
static void
see_leave(DatabaseEntry *charge, MonoTime now)
{
	MonoTime end;
	int patience = LEAVE_MS;

	/* read without a lock: a guess will do */
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

/* So many databases need a place: ask that many schedulers to leave theirs, the idle ones first. */
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
			leaving += charge->slot->leave;
			if (charge->slot->leave && charge->asked.us != 0)
				see_leave(charge, now);
			else if (!charge->slot->leave &&
					 (victim == NULL || clock_is_before(find_end(charge), find_end(victim))))
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
		shared_scheduler_leave(victim->slot);
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

/* Give the places that there are to databases; when there are too few, by turns. */
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
	/* the limit was lowered, or executors have taken the slots */
	needed = Max(needed, -places);
	if (needed == 0)
		return;
	arbiter_evict_for_scheduler();
	make_room(Min(needed, arbiter_places()), now);
}

/* Databases that are wanted no more lose their schedulers. */
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
				shared_scheduler_leave(charge->slot);
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
	/* a role may have appeared of which this process has not heard yet */
	if (complaints != NIL)
		next_turn = clock_min(next_turn, clock_plus_ms(now, THROTTLE_MS));
	finish_complaints();
	MemoryContextReset(iteration_context);
}

/* After a crash of the supervisor alone, its schedulers are sent away and started anew. */
static void
stop_leftover_schedulers(void)
{
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
	{
		bool in_use;

		LWLockAcquire(Shared->directory, LW_SHARED);
		in_use = Shared->schedulers[i].in_use;
		LWLockRelease(Shared->directory);
		if (in_use)
			shared_scheduler_leave(&Shared->schedulers[i]);
	}
	for (i = 0; i < SHARED_DATABASES; i++)
		if (OidIsValid(Shared->databases[i].database))
			shared_database_remove(Shared->databases[i].database);
}

/* Somebody may wake this process without end. */
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
	if (!turns_enough_slots())
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
	/* with 0, the postmaster would not start it again when it was only terminated */
	proc_exit(1);
}
