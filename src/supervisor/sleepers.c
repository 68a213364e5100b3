/*
 * sleepers.c
 *		The databases that the supervisor knows, and when those without a scheduler need one.
 *
 * A database that has no scheduler gets one when a commit has planned a task there, when something
 * is due there, and now and then, to find what no commit reports: these visits become rarer while
 * they find no work.  A heap has the database that needs one first.  If there are places for all
 * databases, each needs one at once.
 *
 * This file starts and stops nothing, and reads no catalog.
 */
#include "postgres.h"

#include "shared/hold.h"
#include "supervisor/sleepers.h"

/* Longest time between two visits (ms). */
#define VISIT_MAX_MS (60 * 60 * 1000)

/* A table that could not be prepared is tried again after this time, then after twice the time
 * (ms). */
#define RETRY_MS 30000

/* A database in which something waits precedes those that have waited for less than this (ms). */
#define MARKED_FIRST_MS 10000

/* A scheduler is started this long before something is due: it has to connect and to look (ms). */
#define AHEAD_MS 500

/* The earliest need first. */
static int
compare_needs(const pairingheap_node *a, const pairingheap_node *b, void *arg pg_attribute_unused())
{
	MonoTime left = pairingheap_const_container(DatabaseEntry, sleep, a)->need;
	MonoTime right = pairingheap_const_container(DatabaseEntry, sleep, b)->need;

	return left.us < right.us ? 1 : left.us > right.us ? -1 : 0;
}

void
sleepers_create(Sleepers *sleepers)
{
	memset(sleepers, 0, sizeof(Sleepers));
	sleepers->sleeping = pairingheap_allocate(compare_needs, NULL);
	sleepers->look = clock_mono();
	dlist_init(&sleepers->served);
	dlist_init(&sleepers->held);
}

/* Put an entry into another place. */
void
sleepers_move(Sleepers *sleepers, DatabaseEntry *entry, EntryPlace place)
{
	if (entry->place == ENTRY_SLEEPING)
	{
		pairingheap_remove(sleepers->sleeping, &entry->sleep);
		sleepers->absent -= entry->absent;
	}
	else if (entry->place == ENTRY_SERVED || entry->place == ENTRY_HELD)
		dlist_delete(&entry->list);
	sleepers->counts[entry->place]--;
	entry->place = place;
	sleepers->counts[place]++;
	if (place == ENTRY_SLEEPING)
	{
		pairingheap_add(sleepers->sleeping, &entry->sleep);
		sleepers->absent += entry->absent;
	}
	else if (place == ENTRY_SERVED || place == ENTRY_HELD)
		dlist_push_tail(place == ENTRY_SERVED ? &sleepers->served : &sleepers->held, &entry->list);
}

/*
 * Compute when a database without a scheduler is to get one, but for its throttle.  One in which
 * nobody has looked since "look" needs one from then on, and no earlier, so that databases in which
 * something waits come first.
 */
static MonoTime
compute_need(const Sleepers *sleepers, const DatabaseEntry *entry, const SharedNeeds *needs)
{
	int visit = needs->known ? Max(entry->visit, sleepers->visit) : sleepers->visit;
	MonoTime need = clock_plus_ms(entry->left, visit);

	if (!sleepers->crowded && !needs->absent)
		return entry->left;
	if (needs->due.us != CLOCK_NEVER.us)
		need = clock_min(need, clock_max(clock_plus_ms(needs->due, -AHEAD_MS),
										 clock_plus_ms(entry->left, entry->retry)));
	if (needs->marked.us != 0)
		need = clock_min(need, clock_plus_ms(needs->marked, -MARKED_FIRST_MS));
	if (entry->look || needs->released)
		need = clock_min(need, entry->left);
	if (clock_is_before(entry->started, sleepers->look))
		need = clock_min(need, clock_max(sleepers->look, entry->left));
	return need;
}

/* A database without a scheduler sleeps until it needs one.  Also if what it needs has changed. */
void
sleepers_sleep(Sleepers *sleepers, DatabaseEntry *entry, MonoTime now)
{
	SharedNeeds needs = shared_database_needs(entry->database);

	Assert(entry->slot == NULL);
	sleepers_move(sleepers, entry, ENTRY_NOWHERE);
	entry->need = compute_need(sleepers, entry, &needs);
	if (clock_is_before(now, entry->not_before))
		entry->need = clock_max(entry->need, entry->not_before);
	entry->absent = needs.absent;
	sleepers_move(sleepers, entry, needs.disabled ? ENTRY_DISABLED : ENTRY_SLEEPING);
}

/* Return the database that needs a scheduler first; NULL: there is none. */
DatabaseEntry *
sleepers_first(const Sleepers *sleepers)
{
	if (pairingheap_is_empty(sleepers->sleeping))
		return NULL;
	return pairingheap_container(DatabaseEntry, sleep, pairingheap_first(sleepers->sleeping));
}

/* Databases that no command needs any more sleep again.  Bounded by the number of holds. */
void
sleepers_return_held(Sleepers *sleepers, MonoTime now)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &sleepers->held)
	{
		DatabaseEntry *entry = dlist_container(DatabaseEntry, list, iter.cur);

		if (!hold_exists(entry->database))
			sleepers_sleep(sleepers, entry, now);
	}
}

/*
 * The scheduler of this database has ended.  If it has found no work, the next visit comes after
 * twice the time; likewise the next try if it could not prepare the table.
 */
void
sleepers_stayed(const Sleepers *sleepers, DatabaseEntry *entry, bool worked, bool failed)
{
	if (worked)
		entry->visit = sleepers->visit;
	else
		entry->visit = Max(Min(entry->visit * 2, VISIT_MAX_MS), sleepers->visit);
	if (failed)
		entry->retry = Min(Max(entry->retry * 2, RETRY_MS), VISIT_MAX_MS);
	else
		entry->retry = 0;
}

/* Return how many databases without a scheduler would get one if there were places for all. */
int
sleepers_count_needing(const Sleepers *sleepers)
{
	return sleepers->counts[ENTRY_SLEEPING] - sleepers->absent;
}
