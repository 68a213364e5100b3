/*
 * places.c
 *		Distributes the places for schedulers among the databases.
 *
 * If there are places for all databases, each has a scheduler.  Otherwise they take turns.  A
 * database without a scheduler needs one when a commit has planned a task there, when something is
 * due there, and now and then, to find what no commit reports: these visits become rarer while they
 * find no work.  The one that needs a scheduler first gets the next place.  A scheduler that has
 * been idle for a while exits, and sooner, after a time slice, when another database needs its
 * place.
 *
 * Each iteration walks over the databases.  This file reads no catalog.
 */
#include "postgres.h"

#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "shared/arbiter.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "supervisor/supervisor.h"

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define NO_WORKER_RETRY_MS 100

/*
 * That failure is logged if it lasts for this time (ms).  The worker slot of a process that has
 * ended becomes free a little later.
 */
#define NO_WORKER_MS 1000

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
#define LEAVE_PREPARING_MS 600000

/* A database in which something waits precedes those that have waited for less than this (ms). */
#define MARKED_FIRST_MS 10000

/* A scheduler is started this long before something is due: it has to connect and to look (ms). */
#define AHEAD_MS 500

/* What is missing, and is logged once while it is. */
#define NO_WORKER "worker slot"
#define CROWD "places for all databases"

SupervisorProcess MySupervisor;

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
compute_need(const DatabaseEntry *entry, bool crowded, MonoTime now)
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
	if (shared->found.barred && shared->found.barred_changes != shared_databases_changes())
		need = clock_min(need, entry->left);
	if (shared->found.due.us != CLOCK_NEVER.us)
		need = clock_min(need, clock_max(clock_plus_ms(shared->found.due, -AHEAD_MS),
										 clock_plus_ms(entry->left, entry->retry)));
	if (shared->marked.us != 0)
		need = clock_min(need, clock_plus_ms(shared->marked, -MARKED_FIRST_MS));
	return clock_is_before(now, entry->not_before) ? clock_max(need, entry->not_before) : need;
}

/* Had the database no table, and has none so far?  Then this scheduler leaves soon. */
static bool
is_visit(const DatabaseEntry *entry)
{
	return entry->absent && !OidIsValid(entry->slot->relid);
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
 * Compute when each database without a scheduler needs one.  Without crowding all that have a table
 * and are not disabled do.
 */
static void
compute_needs(int places, MonoTime now)
{
	int needing = 0;
	int served = 0;
	bool crowded;
	ListCell *cell;

	LWLockAcquire(Shared->directory, LW_SHARED);
	foreach(cell, MySupervisor.databases)
	{
		const DatabaseEntry *entry = lfirst(cell);

		if (entry->slot == NULL)
			needing +=
				!shared_database_is_disabled(entry->wanted.database, &entry->shared->found) &&
				!entry->shared->found.absent;
		else if (is_visit(entry))
			places++; /* it leaves soon */
		else
			served++;
	}
	crowded = needing > Max(places, 0);
	foreach(cell, MySupervisor.databases)
	{
		DatabaseEntry *entry = lfirst(cell);

		entry->need = entry->slot ? CLOCK_NEVER : compute_need(entry, crowded, now);
	}
	LWLockRelease(Shared->directory);
	shared_crowd(crowded);
	report_crowd(needing + served, arbiter_places());
}

/* Is the scheduler connected to its database? */
bool
places_connected(const DatabaseEntry *entry)
{
	return pg_atomic_read_u64(&entry->slot->renewed) != 0;
}

/* Start the scheduler of a database, or try again a little later: others may succeed. */
static bool
start_scheduler(DatabaseEntry *entry, MonoTime now)
{
	SharedScheduler *slot = scheduler_slot_reserve(entry->wanted.database, entry->wanted.user);
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	entry->handle = slot ? worker_start_scheduler(slot, entry->wanted.name) : NULL;
	MemoryContextSwitchTo(old);
	if (entry->handle)
	{
		report_end(&MySupervisor.missing, NO_WORKER);
		entry->slot = slot;
		entry->generation = slot->generation;
		entry->started = now;
		entry->absent = entry->shared->found.absent;
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
		if (report_due(&MySupervisor.missing, NO_WORKER, NO_WORKER_MS))
			ereport(
				LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker slot is free for the scheduler of database \"%s\"",
						entry->wanted.name),
				 errhint("Increase \"max_worker_processes\".")));
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
	if (!places_connected(entry))
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
			if (is_exiting(entry))
			{
				leaving++;
				if (entry->asked.us != 0)
					terminate_late_scheduler(entry, now);
			}
			else if (is_visit(entry) && is_preparing(entry, now))
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
void
places_share(MonoTime now)
{
	int places = arbiter_free_places();
	int starts = STARTS_MAX;
	DatabaseEntry *entry;
	ListCell *cell;
	int needed;

	compute_needs(places, now);
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
	arbiter_evict_for_scheduler();
	ask_schedulers_to_exit(needed, now);
}
