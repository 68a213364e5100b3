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
 * If there are places for all databases, each has a scheduler.  Otherwise they take turns.  A
 * database without a scheduler needs one when a commit has planned a task there, when something is
 * due there, and now and then, to find what no commit reports: these visits become rarer while they
 * find no work.  The one that needs a scheduler first gets the next place.  A scheduler that has
 * been idle for a while exits, and sooner, after a time slice, when another database needs its
 * place.
 *
 * It never touches a task table.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog_internal.h"
#include "libpq/pqsignal.h"
#include "nodes/pg_list.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/arbiter.h"
#include "shared/crash.h"
#include "shared/report.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "task/roles.h"

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

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define NO_WORKER_RETRY_MS 100

/*
 * Schedulers that start at once, so that the start of a server with very many databases leaves it
 * time for its users.  One that takes longer than this to prepare its table does not count (ms).
 */
#define STARTS_MAX 4
#define START_MS 1000

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

/* A scheduler is started this long before something is due: it has to connect and to look (ms). */
#define AHEAD_MS 500

/* What the catalogs say of a database that should have a scheduler. */
typedef struct Wanted
{
	Oid database;
	Oid user;
	char name[NAMEDATALEN];
	TransactionId version; /* another one after any change of its row in pg_database */
} Wanted;

/* What the supervisor remembers of a database. */
typedef struct DatabaseEntry
{
	Wanted wanted; /* as the catalogs were read last */
	bool is_wanted;
	bool is_unnamed;		/* it is not: pg_task.database has entries, but none for it */
	uint32 settings;		/* change counter of its settings, of which its scheduler was told */
	SharedDatabase *shared; /* or "unknown": see there */

	/* its scheduler */
	SharedScheduler *slot; /* NULL: none was started, or it has ended */
	uint32 generation;
	BackgroundWorkerHandle *handle; /* not NULL if "slot" is not */
	MonoTime started;
	MonoTime asked; /* when it was asked to exit to free its place; 0: it was not */

	/* the next one */
	MonoTime need;		 /* when it is to start; computed in each iteration */
	MonoTime left;		 /* when the last one ended, or the database was first seen */
	MonoTime not_before; /* earliest time of the next start */
	int throttle;		 /* delay of the next start after an early end (ms) */
	int visit;			 /* after this time somebody looks, if nothing else calls (ms) */
	int retry;			 /* pause after the table could not be prepared (ms); 0: it could */
	bool look;			 /* it has changed: what its last scheduler has found need not hold */
} DatabaseEntry;

/* The supervisor's process. */
typedef struct SupervisorProcess
{
	List *databases;		/* of DatabaseEntry, in TopMemoryContext */
	SharedDatabase unknown; /* for more than SHARED_DATABASES: these are only visited */
	MemoryContext context;	/* reset in each iteration */
	MonoTime next;			/* when the next iteration begins at the latest */
	int visit;				/* shortest time between two visits (ms) */
	MonoTime look;			/* what schedulers have found that were started earlier need not hold */
	bool lacks_standby;		/* as was logged last */
	bool takes_turns;		/* databases do: the same */
	Reports unusable;		/* entries of pg_task.database that cannot be used */

	/* when the catalogs are read again at the latest, and what was known when they were read */
	MonoTime read_again;
	uint32 databases_changes;
	uint32 settings_changes;
} SupervisorProcess;

static SupervisorProcess MySupervisor;

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
	bool connected = !mine || pg_atomic_read_u64(&slot->renewed) != 0;
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
		if (!ended && GetBackgroundWorkerPid(entry->handle, &pid) == BGWH_STOPPED)
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
	shared_database_report(
		wanted->database,
		psprintf("the scheduler has crashed the server %d times in a row: see pg_task_release",
				 crashes));
	ereport(WARNING,
			(errcode(ERRCODE_CRASH_SHUTDOWN),
			 errmsg("pg_task holds back the tasks of database \"%s\"", wanted->name),
			 errdetail("Its scheduler has crashed the server %d times in a row.", crashes),
			 errhint("Find out why; then \"SELECT pg_task_release()\" in this database, as a"
					 " superuser, or restart the server.")));
}

/* What is remembered of a database; NULL: nothing. */
static DatabaseEntry *
find_entry(Oid database)
{
	ListCell *cell;

	foreach(cell, MySupervisor.databases)
		if (((DatabaseEntry *) lfirst(cell))->wanted.database == database)
			return lfirst(cell);
	return NULL;
}

/*
 * Note what the catalogs say of a wanted database.  If it has another owner, name or other
 * settings, or is another one with the same oid, its scheduler looks whether that concerns it.  One
 * that exits for it has a successor, and a database without a scheduler gets one.
 */
static void
check_database(const Wanted *wanted, MonoTime now)
{
	SharedDatabase *shared = shared_database_add(wanted->database);
	uint32 settings = shared_settings_of_database(wanted->database);
	DatabaseEntry *entry = find_entry(wanted->database);

	if (entry == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		entry = palloc0(sizeof(DatabaseEntry));
		entry->wanted = *wanted;
		entry->settings = settings;
		entry->left = now;
		MySupervisor.databases = lappend(MySupervisor.databases, entry);
		MemoryContextSwitchTo(old);
		if (crash_holds(wanted->database))
			report_held(wanted, crash_holds(wanted->database));
	}
	entry->shared = shared ? shared : &MySupervisor.unknown;
	entry->is_wanted = true;
	if (entry->settings != settings || entry->wanted.user != wanted->user ||
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

/* The task table of this database has been served, and is not any more: say so. */
static void
report_unserved(const Wanted *wanted)
{
	SharedFindings found = shared_database_found(wanted->database);

	if (found.unserved)
		return;
	found.unserved = true;
	shared_database_publish(wanted->database, &found);
	shared_database_report(wanted->database, "\"pg_task.database\" does not name it");
	ereport(LOG, (errmsg("pg_task runs no tasks of database \"%s\" from now on", wanted->name),
				  errdetail("\"pg_task.database\" does not name it.")));
}

/*
 * Stop the schedulers of databases that should not have one any more, and forget those databases
 * that have none.  Of one that is just not named any more it is remembered that it was served: that
 * may be a mistake.
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
		if (entry->is_unnamed && OidIsValid(entry->shared->found.relid))
		{
			report_unserved(&entry->wanted);
			continue;
		}
		shared_database_remove(entry->wanted.database);
		MySupervisor.databases = foreach_delete_current(MySupervisor.databases, cell);
		pfree(entry);
	}
}

/* Log a warning, unless it was due in the last iteration as well. */
static void
warn_once(const char *message, const char *detail)
{
	if (report_due(&MySupervisor.unusable, message, 0))
		ereport(WARNING, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("%s", message),
						  errdetail("%s", detail)));
}

/*
 * Note what pg_task.database says of this database.  One that cannot be used is logged if an entry
 * names it.
 */
static void
judge_database(const Service *service, bool none, HeapTuple tuple, MonoTime now)
{
	Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
	const char *name = NameStr(database->datname);
	const Target *target = service->target;
	DatabaseEntry *entry = find_entry(database->oid);
	Wanted wanted;

	if (entry)
	{
		entry->is_unnamed = target == NULL && !none;
		if (entry->is_unnamed)
			strlcpy(entry->wanted.name, name, NAMEDATALEN);
	}
	if (!service->wanted && target && target->database && !target->excluded)
		warn_once(
			psprintf("database \"%s\" in \"pg_task.database\" does not allow connections", name),
			"None of its tasks runs until it does.");
	if (!service->wanted)
		return;
	if (service->missing)
		warn_once(psprintf("role \"%s\" in \"pg_task.database\" does not exist", target->role),
				  "A task table that is there is served as its owner; until the role exists, none"
				  " is made.");
	wanted.database = database->oid;
	wanted.user = service->missing ? InvalidOid : service->user;
	strlcpy(wanted.name, name, NAMEDATALEN);
	wanted.version = HeapTupleHeaderGetRawXmin(tuple->t_data);
	check_database(&wanted, now);
}

/* Find the databases that should have a scheduler by the catalog and pg_task.database. */
static void
read_wanted(MonoTime now)
{
	List *targets = settings_targets();
	List *found = NIL;
	Relation rel;
	TableScanDesc scan;
	HeapTuple tuple;
	ListCell *cell;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Service service = service_find(targets, (Form_pg_database) GETSTRUCT(tuple));

		MemoryContextSwitchTo(MySupervisor.context);
		found = lappend(found, unconstify(Target *, service.target));
		judge_database(&service, targets == NIL, tuple, now);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	foreach(cell, targets)
	{
		const Target *target = lfirst(cell);

		if (target->database && !list_member_ptr(found, target))
			warn_once(psprintf("database \"%s\" in \"pg_task.database\" does not exist",
							   target->database),
					  target->excluded ? "It will be left out when it does."
									   : "It gets a scheduler as soon as it does.");
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(MySupervisor.context);
}

/* Read the catalogs: which databases should have a scheduler? */
static void
read_catalogs(MonoTime now)
{
	ListCell *cell;

	/* before: what changes meanwhile is read again */
	MySupervisor.databases_changes = pg_atomic_read_u32(&Shared->databases_changes);
	MySupervisor.settings_changes = pg_atomic_read_u32(&Shared->settings_changes);
	MySupervisor.read_again = clock_plus_ms(now, PERIOD_MS);
	foreach(cell, MySupervisor.databases)
	{
		DatabaseEntry *entry = lfirst(cell);

		entry->is_wanted = entry->is_unnamed = false;
	}
	Shared->enabled = Settings.enabled;
	if (Settings.enabled)
		read_wanted(now);
	report_end(&MySupervisor.unusable, true);
	MySupervisor.visit = Max(VISIT_MS, VISIT_EACH_MS * list_length(MySupervisor.databases));
	/* a missing role may exist by now, and this process may not have got the invalidation yet */
	if (MySupervisor.unusable.count > 0)
		MySupervisor.read_again = clock_plus_ms(now, UNUSABLE_RETRY_MS);
}

/* The next iteration begins at this time, or before. */
static void
wake_at(MonoTime moment)
{
	MySupervisor.next = clock_min(MySupervisor.next, moment);
}

/*
 * When does a database without a scheduler need one?  One in which nobody has looked since "look"
 * needs one from then on, and no earlier, so that databases in which something waits come first.
 * The caller holds the directory lock.
 */
static MonoTime
compute_need(const DatabaseEntry *entry, bool crowded, ClockNow now)
{
	const SharedDatabase *shared = entry->shared;
	bool known = OidIsValid(shared->database);
	int visit = known ? Max(entry->visit, MySupervisor.visit) : MySupervisor.visit;
	MonoTime need = clock_plus_ms(entry->left, visit);

	if (shared_database_is_disabled(entry->wanted.database, &shared->found) ||
		shared_database_is_held(entry->wanted.database))
		return CLOCK_NEVER;
	if ((!crowded && !shared->found.absent) || entry->look)
		need = clock_min(need, entry->left);
	if (clock_is_before(entry->started, MySupervisor.look))
		need = clock_min(need, clock_max(MySupervisor.look, entry->left));
	if (shared->found.due != DT_NOEND)
	{
		MonoTime due = {now.mono.us + (shared->found.due - now.wall)};

		need = clock_min(need, clock_max(clock_plus_ms(due, -AHEAD_MS),
										 clock_plus_ms(entry->left, entry->retry)));
	}
	if (shared->marked.us != 0)
		need = clock_min(need, clock_plus_ms(shared->marked, -MARKED_FIRST_MS));
	return clock_is_before(now.mono, entry->not_before) ? clock_max(need, entry->not_before) : need;
}

/*
 * Set whether more databases need a scheduler than there are places.  If so, schedulers report from
 * now on whether they are idle.
 */
static void
set_crowded(bool crowded)
{
	int i;

	if (Shared->crowded == crowded) /* read without the lock: only this process writes it */
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->crowded = crowded;
	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *scheduler = &Shared->schedulers[i];

		pg_atomic_write_u64(&scheduler->idle_since, 0);
		if (scheduler->state != SCHEDULER_FREE)
			shared_wake(scheduler->proc);
	}
	LWLockRelease(Shared->directory);
}

/*
 * Is it still to be found out whether this database has a task table?  Not if its first scheduler
 * takes long to prepare it.  The caller holds the directory lock.
 */
static bool
is_unseen(const DatabaseEntry *entry, MonoTime now)
{
	const SharedFindings *found = &entry->shared->found;

	if (found->absent || OidIsValid(found->relid) ||
		shared_database_is_disabled(entry->wanted.database, found))
		return false;
	return entry->started.us == 0 || (entry->slot && !clock_exceeds(entry->started, now, START_MS));
}

/* Log that databases take turns, once while they do. */
static void
report_turns(bool crowded, int databases)
{
	if (crowded && !MySupervisor.takes_turns)
		ereport(LOG, (errmsg("%d databases take turns at having a scheduler of pg_task: there are"
							 " places for %d",
							 databases, arbiter_places()),
					  errhint("Increase \"max_worker_processes\", or set \"pg_task.database\".")));
	MySupervisor.takes_turns = crowded;
}

/*
 * Compute when each database without a scheduler needs one.  Without crowding all that have a table
 * and are not disabled do.
 */
static void
compute_needs(int places, ClockNow now)
{
	int needing = 0;
	int served = 0;
	bool unseen = false;
	bool crowded;
	ListCell *cell;

	LWLockAcquire(Shared->directory, LW_SHARED);
	foreach(cell, MySupervisor.databases)
	{
		const DatabaseEntry *entry = lfirst(cell);

		if (entry->shared->found.absent)
			places += entry->slot != NULL; /* it leaves soon */
		else if (entry->slot)
			served++;
		else
			needing += !shared_database_is_disabled(entry->wanted.database, &entry->shared->found);
		unseen |= is_unseen(entry, now.mono);
	}
	crowded = needing > Max(places, 0);
	foreach(cell, MySupervisor.databases)
	{
		DatabaseEntry *entry = lfirst(cell);

		entry->need = entry->slot ? CLOCK_NEVER : compute_need(entry, crowded, now);
	}
	LWLockRelease(Shared->directory);
	/* how many do is known when somebody has looked at each */
	if (!unseen)
		report_turns(crowded && needing + served > arbiter_places(), needing + served);
	set_crowded(crowded);
}

/* Start the scheduler of a database, or try again a little later: others may succeed. */
static bool
start_scheduler(DatabaseEntry *entry, MonoTime now)
{
	SharedScheduler *slot = scheduler_slot_reserve(entry->wanted.database, entry->wanted.user);

	entry->handle = slot ? worker_start("scheduler", entry->wanted.name, NULL,
										(int) (slot - Shared->schedulers), slot->generation)
						 : NULL;
	if (entry->handle)
	{
		entry->slot = slot;
		entry->generation = slot->generation;
		entry->started = now;
		entry->look = false;
		entry->need = CLOCK_NEVER;
		return true;
	}
	entry->need = entry->not_before = clock_plus_ms(now, NO_WORKER_RETRY_MS);
	/* otherwise a scheduler of an earlier supervisor's is exiting here */
	if (slot)
	{
		scheduler_slot_withdraw(slot, slot->generation);
		arbiter_evict(InvalidOid, InvalidOid);
		worker_report_none("the scheduler", entry->wanted.name);
	}
	return false;
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
	if (pg_atomic_read_u64(&entry->slot->renewed) == 0)
		patience = LEAVE_CONNECTING_MS;
	else if (!OidIsValid(entry->slot->relid))
		patience = LEAVE_PREPARING_MS;
	end = clock_plus_ms(entry->asked, patience);
	if (!clock_is_before(now, end))
		TerminateBackgroundWorker(entry->handle);
	else
		wake_at(end);
}

/* Does this scheduler still prepare its table?  One that takes long does not count. */
static bool
is_preparing(const DatabaseEntry *entry, MonoTime now)
{
	MonoTime end = clock_plus_ms(entry->started, START_MS);

	/* read without the scheduler's lock: a wrong guess only delays the next start */
	if (OidIsValid(entry->slot->relid) || !clock_is_before(now, end))
		return false;
	wake_at(end);
	return true;
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
		DatabaseEntry *victim = NULL;
		int leaving = 0;
		ListCell *cell;

		foreach(cell, MySupervisor.databases)
		{
			DatabaseEntry *entry = lfirst(cell);

			if (entry->slot == NULL)
				continue;
			/* read without the directory lock: the next iteration sees what has just changed */
			if (entry->slot->state == SCHEDULER_LEAVING || entry->slot->state == SCHEDULER_FREE ||
				entry->slot->generation != entry->generation)
			{
				leaving++;
				if (entry->asked.us != 0)
					terminate_late_scheduler(entry, now);
			}
			else if (entry->shared->found.absent && is_preparing(entry, now))
				leaving++;
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

/*
 * Return the database that needs a scheduler first; NULL: none needs one now, and the process is
 * to wake up when one does.  *count: how many do.
 */
static DatabaseEntry *
find_first(int *count, MonoTime now)
{
	DatabaseEntry *first = NULL;
	ListCell *cell;

	*count = 0;
	foreach(cell, MySupervisor.databases)
	{
		DatabaseEntry *entry = lfirst(cell);

		*count += !clock_is_before(now, entry->need);
		if (first == NULL || clock_is_before(entry->need, first->need))
			first = entry;
	}
	if (*count > 0)
		return first;
	if (first)
		wake_at(first->need);
	return NULL;
}

/*
 * Start schedulers where they are needed, as far as there are places and only a few at once.  If
 * there are too few places, have other schedulers exit: by time slices.  The number of places is
 * negative if the limit was lowered, or executors have taken the worker slots.
 */
static void
share_places(ClockNow clock)
{
	MonoTime now = clock.mono;
	bool taken;
	int places = arbiter_free_places(&taken);
	int starts = STARTS_MAX;
	DatabaseEntry *entry;
	ListCell *cell;
	int needed;

	compute_needs(places, clock);
	foreach(cell, MySupervisor.databases)
	{
		entry = lfirst(cell);
		if (entry->slot)
			starts -= is_preparing(entry, now);
	}
	for (; (entry = find_first(&needed, now)) != NULL && places > 0 && starts > 0; starts--)
		places -= start_scheduler(entry, now);
	needed = Min(Max(needed, -places), arbiter_places());
	if (places > 0 || needed == 0)
		return;
	if (taken)
		arbiter_evict(InvalidOid, InvalidOid);
	ask_schedulers_to_exit(needed, now);
}

/* Log when pg_task.require_standby begins or ceases to keep tasks from starting. */
static void
report_standbys(MonoTime now)
{
	bool lacks = shared_lacks_standby();

	if (lacks && !MySupervisor.lacks_standby)
		ereport(LOG,
				(errmsg("pg_task starts no tasks: too few synchronous standbys are connected"),
				 errhint("See \"pg_task.require_standby\" and \"synchronous_standby_names\".")));
	else if (!lacks && MySupervisor.lacks_standby)
		ereport(LOG, (errmsg("pg_task starts tasks again")));
	MySupervisor.lacks_standby = lacks;
	if (Settings.require_standby)
		wake_at(clock_plus_ms(now, SHARED_STANDBY_MS));
}

/* Compare the databases that should have a scheduler with those that have one, and act on it. */
static void
supervise_databases(void)
{
	ClockNow now = clock_now();

	MemoryContextSwitchTo(MySupervisor.context);
	check_schedulers(now.mono);
	if (!clock_is_before(now.mono, MySupervisor.read_again) ||
		MySupervisor.databases_changes != pg_atomic_read_u32(&Shared->databases_changes) ||
		MySupervisor.settings_changes != pg_atomic_read_u32(&Shared->settings_changes))
		read_catalogs(now.mono);
	forget_unwanted();
	MySupervisor.next = MySupervisor.read_again;
	share_places(now);
	report_standbys(now.mono);
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

/*
 * Publish what tasks have if nothing but the configuration says it: a session that has set
 * something else does not know.
 */
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
	strlcpy(configured.on_failure, Settings.on_failure, sizeof(configured.on_failure));
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->configured = configured;
	LWLockRelease(Shared->directory);
}

/*
 * The server runs tasks from now on.  Recovery has ended, in the second in which the server was
 * ready to write WAL.  That time is later if a whole segment has been written since.  The time of
 * this call would not do, because a session may have planned a task before it.
 */
static void
begin_serving(void)
{
	XLogRecPtr lsn;
	TimestampTz since =
		Shared->recovers ? time_t_to_timestamptz(GetLastSegSwitchData(&lsn)) : PgStartTime;

	if (shared_serving_since() == 0)
		pg_atomic_write_u64(&Shared->serving_since, (uint64) since);
}

/*
 * Tell at the start if there are fewer worker slots than executors.  Schedulers never try to start
 * more than there are slots, so that nothing else in the log says so.
 */
static void
report_slots(void)
{
	int slots = arbiter_slots();
	int most = Max(slots - 1, 1); /* beside one scheduler */

	if (slots <= 0)
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						  errmsg("there are too few worker slots for pg_task to run tasks"),
						  errhint("Increase \"max_worker_processes\".")));
	else if (most < Settings.max_executors)
		ereport(LOG, (errmsg("pg_task can start at most %d of %d executors, because"
							 " \"max_worker_processes\" is %d",
							 most, Settings.max_executors, max_worker_processes),
					  errhint("Increase it to at least %d, and one more for each further database,"
							  " or lower \"pg_task.max_executors\".",
							  max_worker_processes - slots + 1 + Settings.max_executors)));
}

/* Connect, and take over from a supervisor that has exited. */
static void
attach_supervisor(void)
{
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	MySupervisor.look = clock_mono();
	MySupervisor.unknown.found.due = DT_NOEND;
	MySupervisor.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task supervisor", ALLOCSET_DEFAULT_SIZES);
	on_shmem_exit(detach_supervisor, 0);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	Shared->supervisor = COMPAT_MY_PROC;
	LWLockRelease(Shared->directory);
	begin_serving();
	publish_configured();
	stop_leftover_schedulers();
	report_slots();
}

void
pg_task_supervisor_main(Datum arg pg_attribute_unused())
{
	uint32 wait_event = COMPAT_WAIT_EVENT("PgTaskSupervisorMain");

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	attach_supervisor();
	ereport(LOG, (errmsg("pg_task %s has started", PG_TASK_VERSION)));
	while (!ShutdownRequestPending)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			publish_configured();
			/* it may have moved the tables: look at each database again */
			MySupervisor.look = MySupervisor.read_again = clock_mono();
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
