/*
 * places.c
 *		Distributes the places for schedulers among the databases.
 *
 * The database that needs a scheduler first gets the next place, a few at a time.  If there are
 * fewer places than databases, they take turns: a scheduler that has been idle for a while exits,
 * and when another database needs its place it exits sooner, after a time slice.
 *
 * This file reads no catalog.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "shared/arbiter.h"
#include "shared/hold.h"
#include "shared/slots.h"
#include "shared/worker.h"
#include "supervisor/places.h"

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
 * Compute again when the databases without a scheduler need one.  Bounded by their number; called
 * when it turns out that there are places for all, or are not any more, and after a reload.
 */
void
places_compute_needs(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	DatabaseEntry *entry;

	hash_seq_init(&scan, MySupervisor.databases);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (entry->place == ENTRY_SLEEPING || entry->place == ENTRY_DISABLED)
			sleepers_sleep(&MySupervisor.sleepers, entry, now);
}

/* Is the scheduler connected to its database? */
bool
places_connected(const DatabaseEntry *entry)
{
	return pg_atomic_read_u64(&entry->slot->renewed) != 0;
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

/* Start the scheduler of a database.  Returns false if that failed: try again a little later. */
static bool
start_scheduler(DatabaseEntry *entry, MonoTime now)
{
	SharedScheduler *slot = scheduler_slot_reserve(entry->database, entry->user);
	MemoryContext old;

	if (slot == NULL)
		return false;
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry->handle = worker_start_scheduler(slot, entry->name);
	MemoryContextSwitchTo(old);
	if (entry->handle == NULL)
	{
		scheduler_slot_withdraw(slot, slot->generation);
		arbiter_evict(InvalidOid, InvalidOid);
		report_no_worker_for_scheduler(entry);
		return false;
	}
	report_end(&MySupervisor.missing, NO_WORKER);
	entry->slot = slot;
	entry->generation = slot->generation;
	entry->started = now;
	sleepers_move(&MySupervisor.sleepers, entry, ENTRY_SERVED);
	entry->look = false;
	return true;
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

/* Had the database no table, and has none so far?  Then this scheduler leaves soon. */
static bool
is_visit(const DatabaseEntry *entry)
{
	return entry->absent && !OidIsValid(entry->slot->relid);
}

/*
 * This many databases need a place: ask as many schedulers to exit, those first whose time slices
 * end first.  The slice of an idle one is short.  Bounded by the squared number of schedulers.
 */
static void
ask_schedulers_to_exit(int needed, MonoTime now)
{
	while (needed > 0)
	{
		DatabaseEntry *victim = NULL;
		int leaving = 0;
		dlist_iter iter;

		dlist_foreach(iter, &MySupervisor.sleepers.served)
		{
			DatabaseEntry *entry = dlist_container(DatabaseEntry, list, iter.cur);

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
 * Return how many schedulers may be started now besides those that are starting, if there are
 * places.  Bounded by the number of schedulers.
 */
static int
count_starts(MonoTime now)
{
	int starts = STARTS_MAX;
	dlist_iter iter;

	dlist_foreach(iter, &MySupervisor.sleepers.served)
		starts -= is_preparing(dlist_container(DatabaseEntry, list, iter.cur), now);
	return Max(starts, 0);
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

/* Count the schedulers that are visits.  Bounded by the number of schedulers. */
static int
count_visits(void)
{
	int count = 0;
	dlist_iter iter;

	dlist_foreach(iter, &MySupervisor.sleepers.served)
		count += is_visit(dlist_container(DatabaseEntry, list, iter.cur));
	return count;
}

/*
 * Are there fewer places than databases that could use one?  If that changes, all databases without
 * a scheduler need one at another time.
 */
static void
note_crowd(int places, MonoTime now)
{
	Sleepers *sleepers = &MySupervisor.sleepers;
	int needing = sleepers_count_needing(sleepers);
	int visits = count_visits();
	int others = sleepers->counts[ENTRY_SERVED] + sleepers->counts[ENTRY_HELD] - visits;
	bool crowded = needing > Max(places + visits, 0);

	shared_crowd(crowded);
	report_crowd(needing + others, arbiter_places());
	if (crowded == sleepers->crowded)
		return;
	sleepers->crowded = crowded;
	places_compute_needs(now);
}

/*
 * Count the databases that need a scheduler now, but not more than there are places at all: they
 * are taken out of the heap and put back.
 */
static int
count_needing_now(MonoTime now)
{
	Sleepers *sleepers = &MySupervisor.sleepers;
	int most = arbiter_places();
	DatabaseEntry **found = palloc(most * sizeof(DatabaseEntry *));
	DatabaseEntry *entry;
	int count = 0;
	int i;

	while (count < most && (entry = sleepers_first(sleepers)) != NULL &&
		   !clock_is_before(now, entry->need))
	{
		found[count++] = entry;
		sleepers_move(sleepers, entry, ENTRY_NOWHERE);
	}
	for (i = 0; i < count; i++)
		sleepers_move(sleepers, found[i], ENTRY_SLEEPING);
	return count;
}

/*
 * Start schedulers where one is needed now, as far as there are places.  Returns how many places
 * are left; negative if the limit was lowered, or executors have taken the worker slots.  Bounded
 * by the places and the databases that are held.
 */
static int
start_schedulers(int places, MonoTime now)
{
	Sleepers *sleepers = &MySupervisor.sleepers;
	int starts = count_starts(now);
	DatabaseEntry *entry;

	while (places > 0 && starts > 0 && (entry = sleepers_first(sleepers)) != NULL &&
		   !clock_is_before(now, entry->need))
	{
		if (hold_exists(entry->database))
			sleepers_move(sleepers, entry, ENTRY_HELD);
		else if (start_scheduler(entry, now))
		{
			places--;
			starts--;
		}
		else
		{
			/* others may succeed: a scheduler of an earlier supervisor's may be exiting here */
			entry->not_before = clock_plus_ms(now, NO_WORKER_RETRY_MS);
			wake_at(entry->not_before);
			sleepers_sleep(sleepers, entry, now);
			starts--;
		}
	}
	return places;
}

/*
 * Distribute the places for schedulers among the databases; if there are too few, by time slices.
 */
void
places_share(MonoTime now)
{
	Sleepers *sleepers = &MySupervisor.sleepers;
	int places = arbiter_free_places();
	DatabaseEntry *first;
	int needed;

	sleepers_return_held(sleepers, now);
	note_crowd(places, now);
	places = start_schedulers(places, now);
	first = sleepers_first(sleepers);
	if (first && clock_is_before(now, first->need))
		wake_at(first->need);
	if (places > 0)
		return;
	needed = Max(count_needing_now(now), -places);
	if (needed == 0)
		return;
	arbiter_evict_for_scheduler();
	ask_schedulers_to_exit(Min(needed, arbiter_places()), now);
}
