/*
 * sleepers_check.c
 *		Unit test of the supervisor's memory of databases, run in an ordinary backend.
 *
 * src/supervisor/sleepers.c is compiled into this library.  sleepers_check(databases, steps, seed)
 * has so many databases sleep, wake up, be held and be disabled, in a random order, and compares
 * the heap and the counters with a look at all of them.  It returns 0, or the line of what does not
 * hold.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "fmgr.h"

#include "supervisor/sleepers.c"

PG_MODULE_MAGIC;

/* Return from the check unless this holds. */
#define CHECK(condition)      \
	do                        \
	{                         \
		if (!(condition))     \
			return __LINE__; \
	} while (0)

/* A database, and what shared memory says of it. */
typedef struct Database
{
	DatabaseEntry entry;
	SharedNeeds needs;
	bool held;
} Database;

static Database *databases;
static int ndatabases;
static Sleepers sleepers;
static MonoTime now;
static pg_prng_state prng;

SharedNeeds
shared_database_needs(Oid database)
{
	return databases[database - 1].needs;
}

bool
hold_exists(Oid database)
{
	return databases[database - 1].held;
}

MonoTime
clock_mono(void)
{
	return now;
}

static int
random_below(int limit)
{
	return (int) (pg_prng_uint64(&prng) % limit);
}

static bool
one_in(int number)
{
	return random_below(number) == 0;
}

/* What is known of a database has changed. */
static void
change_needs(Database *database)
{
	SharedNeeds *needs = &database->needs;

	needs->known = !one_in(20);
	needs->disabled = one_in(20);
	needs->absent = one_in(3);
	needs->due = one_in(3)	 ? CLOCK_NEVER
				 : one_in(5) ? CLOCK_LONG_AGO
							 : clock_plus_ms(now, random_below(100000));
	needs->marked = one_in(10) ? now : CLOCK_LONG_AGO;
	if (one_in(20))
		database->entry.look = true;
	if (one_in(20))
		database->entry.not_before = clock_plus_ms(now, random_below(5000));
}

/* The databases without a scheduler need one at another time. */
static void
sleep_again(void)
{
	int i;

	for (i = 0; i < ndatabases; i++)
		if (databases[i].entry.place == ENTRY_SLEEPING ||
			databases[i].entry.place == ENTRY_DISABLED)
			sleepers_sleep(&sleepers, &databases[i].entry, now);
}

/* The first database gets a scheduler, or is held. */
static void
serve_first(void)
{
	DatabaseEntry *first = sleepers_first(&sleepers);

	if (first == NULL || clock_is_before(now, first->need))
		return;
	if (databases[first->database - 1].held)
	{
		sleepers_move(&sleepers, first, ENTRY_HELD);
		return;
	}
	first->started = now;
	first->look = false;
	databases[first->database - 1].needs.marked = CLOCK_LONG_AGO;
	sleepers_move(&sleepers, first, ENTRY_SERVED);
}

static void
take_step(Database *database)
{
	DatabaseEntry *entry = &database->entry;

	now = clock_plus_ms(now, random_below(20));
	if (one_in(500))
	{
		sleepers.look = one_in(2) ? now : sleepers.look;
		sleepers.crowded = !sleepers.crowded;
		sleep_again();
	}
	if (one_in(10))
		database->held = !database->held;
	if (one_in(50))
		sleepers_return_held(&sleepers, now);
	serve_first();
	if (entry->place == ENTRY_HELD)
		return;
	if (entry->place == ENTRY_SERVED)
	{
		entry->left = now;
		sleepers_stayed(&sleepers, entry, one_in(3), one_in(3));
	}
	change_needs(database);
	sleepers_sleep(&sleepers, entry, now);
}

/* Is the time at which a database is to get a scheduler as late as it may be? */
static int
check_need(const Database *database)
{
	const DatabaseEntry *entry = &database->entry;
	MonoTime earliest = clock_max(entry->left, entry->not_before);

	CHECK(!clock_exceeds(earliest, entry->need, VISIT_MAX_MS + 1));
	CHECK(!clock_is_before(entry->need, entry->not_before) ||
		  !clock_is_before(now, entry->not_before));
	if (!sleepers.crowded && !database->needs.absent)
		CHECK(!clock_is_before(earliest, entry->need));
	if (database->needs.marked.us != 0)
		CHECK(!clock_is_before(clock_max(entry->not_before, database->needs.marked), entry->need));
	if (database->needs.due.us != CLOCK_NEVER.us)
		CHECK(!clock_is_before(
			clock_max(clock_plus_ms(earliest, entry->retry), database->needs.due), entry->need));
	if (entry->look)
		CHECK(!clock_is_before(earliest, entry->need));
	return 0;
}

/* Compare the heap, the lists and the counters with all databases. */
static int
check_all(void)
{
	int counts[ENTRY_DISABLED + 1] = {0};
	DatabaseEntry *first = sleepers_first(&sleepers);
	int absent = 0;
	int served = 0;
	dlist_iter iter;
	int i;

	for (i = 0; i < ndatabases; i++)
	{
		const Database *database = &databases[i];
		const DatabaseEntry *entry = &database->entry;

		counts[entry->place]++;
		if (entry->place != ENTRY_SLEEPING)
			continue;
		absent += entry->absent;
		CHECK(first && !clock_is_before(entry->need, first->need));
		CHECK(check_need(database) == 0);
	}
	for (i = 0; i <= ENTRY_DISABLED; i++)
		CHECK(counts[i] == sleepers.counts[i]);
	CHECK(counts[ENTRY_NOWHERE] == 0 && absent == sleepers.absent);
	CHECK(sleepers_count_needing(&sleepers) == counts[ENTRY_SLEEPING] - absent);
	dlist_foreach(iter, &sleepers.served)
		served++;
	CHECK(served == counts[ENTRY_SERVED]);
	return 0;
}

/* Visits become rarer while they find nothing, and one that finds something begins anew. */
static int
check_visits(void)
{
	DatabaseEntry *entry = &databases[0].entry;
	int visit = 0;
	int i;

	sleepers.crowded = true;
	databases[0].needs = (SharedNeeds){.known = true, .due = CLOCK_NEVER};
	entry->not_before = CLOCK_LONG_AGO;
	entry->look = false;
	sleepers_stayed(&sleepers, entry, true, false);
	for (i = 0; i < 20; i++)
	{
		entry->started = entry->left = now = clock_plus_ms(now, 1);
		sleepers_sleep(&sleepers, entry, now);
		CHECK(clock_exceeds(now, entry->need, visit));
		visit = (int) ((entry->need.us - now.us) / 1000);
		sleepers_stayed(&sleepers, entry, false, false);
	}
	CHECK(visit == VISIT_MAX_MS);
	sleepers_stayed(&sleepers, entry, true, false);
	sleepers_sleep(&sleepers, entry, now);
	CHECK(entry->need.us == clock_plus_ms(now, sleepers.visit).us);
	return 0;
}

/* What is due in a table that cannot be prepared is looked at less and less often. */
static int
check_retries(void)
{
	DatabaseEntry *entry = &databases[0].entry;
	int i;

	databases[0].needs.due = CLOCK_LONG_AGO;
	for (i = 0; i < 20; i++)
	{
		sleepers_sleep(&sleepers, entry, now);
		CHECK(entry->need.us == clock_plus_ms(now, Min(entry->retry, sleepers.visit)).us);
		CHECK(entry->retry == Min(i == 0 ? 0 : RETRY_MS << Min(i - 1, 10), VISIT_MAX_MS));
		sleepers_stayed(&sleepers, entry, true, true);
	}
	sleepers_stayed(&sleepers, entry, true, false);
	sleepers_sleep(&sleepers, entry, now);
	CHECK(entry->need.us == now.us);
	return 0;
}

PG_FUNCTION_INFO_V1(sleepers_check);
Datum
sleepers_check(PG_FUNCTION_ARGS)
{
	int steps = PG_GETARG_INT32(1);
	int fault = 0;
	int i;

	ndatabases = PG_GETARG_INT32(0);
	pg_prng_seed(&prng, PG_GETARG_INT64(2));
	databases = palloc0_array(Database, ndatabases);
	now = (MonoTime){INT64CONST(1000000000000)};
	sleepers_create(&sleepers);
	sleepers.visit = ndatabases * 1000;
	sleepers.counts[ENTRY_NOWHERE] = ndatabases;
	for (i = 0; i < ndatabases; i++)
	{
		databases[i].entry.database = i + 1;
		databases[i].entry.left = now;
		change_needs(&databases[i]);
		sleepers_sleep(&sleepers, &databases[i].entry, now);
	}
	for (i = 0; i < steps && fault == 0; i++)
	{
		take_step(&databases[random_below(ndatabases)]);
		if (i % 50 == 0)
			fault = check_all();
	}
	if (fault == 0)
		fault = check_visits();
	if (fault == 0)
		fault = check_retries();
	PG_RETURN_INT32(fault);
}
