/*
 * statistics.c
 *		What has become of tasks, per database, queue and role, in shared memory of a fixed size.
 *
 * Each process counts for itself, and adds what it has counted to the shared entries from time to
 * time (statistics_flush).  Adding takes the lock in shared mode and the spinlock of the entry.
 * Only a new entry takes the lock in exclusive mode.  When all are in use, the new one replaces an
 * entry that was used least lately.
 *
 * Whoever reads all entries takes no lock but the spinlock of each.  Any user may do that in a
 * loop, in many sessions: with the lock in shared mode they would keep others from adding entries,
 * which happens at a commit and cannot be cancelled.
 *
 * This file reads no setting but the number of entries, and no catalog.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/int.h"
#include "mb/pg_wchar.h"
#include "port/pg_bitutils.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/shared.h"
#include "shared/statistics.h"

StatTable *Statistics = NULL;

/* Entries that a process counts before it must add them to the shared ones. */
#define LOCAL_MAX 16

/* Highest usage of an entry: it survives so many rounds of find_victim. */
#define USAGE_MAX 5

typedef struct LocalEntry
{
	StatKey key;
	StatCounts counts;
} LocalEntry;

/* What this process has counted and not added yet. */
static struct
{
	int count;
	int last; /* the entry that was asked for last */
	LocalEntry entries[LOCAL_MAX];
} local;

/* ---- the shared entries ---- */

Size
statistics_size(void)
{
	Size size = MAXALIGN(sizeof(StatTable));

	size = add_size(size, MAXALIGN(mul_size(Settings.stat_max, sizeof(int))));
	return add_size(size, mul_size(Settings.stat_max, sizeof(StatEntry)));
}

static void
set_used(StatEntry *entry, bool used)
{
	SpinLockAcquire(&entry->mutex);
	entry->used = used;
	SpinLockRelease(&entry->mutex);
}

/* Remove all entries.  The caller holds the lock in exclusive mode, or is alone. */
static void
clear_table(void)
{
	int i;

	for (i = 0; i < Statistics->size; i++)
	{
		Statistics->chains[i] = -1;
		set_used(&Statistics->entries[i], false);
		Statistics->entries[i].next = i + 1 < Statistics->size ? i + 1 : -1;
	}
	Statistics->vacant = 0;
	Statistics->hand = 0;
	Statistics->evicted = 0;
	Statistics->reset = GetCurrentTimestamp();
}

/* Make the table, empty, in this memory.  The postmaster calls this. */
void
statistics_create(void *memory, LWLock *lock)
{
	int i;

	Statistics = memory;
	Statistics->lock = lock;
	Statistics->size = Settings.stat_max;
	memory = (char *) memory + MAXALIGN(sizeof(StatTable));
	Statistics->chains = memory;
	memory = (char *) memory + MAXALIGN(mul_size(Statistics->size, sizeof(int)));
	Statistics->entries = memory;
	for (i = 0; i < Statistics->size; i++)
		SpinLockInit(&Statistics->entries[i].mutex);
	clear_table();
}

/*
 * Where the chain of a key begins.  Users choose the names of queues: without the seed, which
 * nobody knows, one could choose many that have the same chain, and make it long for all.
 */
static int *
chain_of(const StatKey *key)
{
	uint64 seed = Shared->seed ^ ((uint64) key->database << 32 | key->role);
	uint64 hash =
		hash_bytes_extended((const unsigned char *) key->queue, (int) strlen(key->queue), seed);

	return &Statistics->chains[hash % (uint64) Statistics->size];
}

static bool
same_key(const StatKey *a, const StatKey *b)
{
	return a->role == b->role && a->database == b->database && strcmp(a->queue, b->queue) == 0;
}

/* NULL if there is none.  The caller holds the lock. */
static StatEntry *
find_entry(const StatKey *key)
{
	int i;

	for (i = *chain_of(key); i >= 0; i = Statistics->entries[i].next)
		if (same_key(&Statistics->entries[i].record.key, key))
			return &Statistics->entries[i];
	return NULL;
}

/* Make an entry free.  The caller holds the lock in exclusive mode. */
static void
remove_entry(StatEntry *entry)
{
	int number = (int) (entry - Statistics->entries);
	int *link = chain_of(&entry->record.key);

	Assert(LWLockHeldByMeInMode(Statistics->lock, LW_EXCLUSIVE));
	while (*link != number)
		link = &Statistics->entries[*link].next;
	*link = entry->next;
	set_used(entry, false);
	entry->next = Statistics->vacant;
	Statistics->vacant = number;
}

/*
 * Find the entry that makes way for a new one: the next one that was not used since this function
 * has passed it USAGE_MAX times.  All entries are in use, so each is passed at most that often.
 */
static StatEntry *
find_victim(void)
{
	for (;;)
	{
		StatEntry *entry = &Statistics->entries[Statistics->hand];

		Statistics->hand = (Statistics->hand + 1) % Statistics->size;
		if (entry->usage == 0)
			return entry;
		entry->usage--;
	}
}

/* Make an entry for a key that has none.  The caller holds the lock in exclusive mode. */
static StatEntry *
add_entry(const StatKey *key)
{
	int *chain = chain_of(key);
	StatEntry *entry;

	if (Statistics->vacant < 0)
	{
		remove_entry(find_victim());
		Statistics->evicted++;
	}
	entry = &Statistics->entries[Statistics->vacant];
	Statistics->vacant = entry->next;
	entry->next = *chain;
	*chain = (int) (entry - Statistics->entries);
	entry->usage = 1;
	/* nobody reads the record before it is used */
	memset(&entry->record, 0, sizeof(StatRecord));
	entry->record.key = *key;
	entry->record.since = GetCurrentTimestamp();
	set_used(entry, true);
	return entry;
}

/* Add two times (us).  What is too much stays at the maximum: users choose how long rows wait. */
static int64
sum_times(int64 a, int64 b)
{
	int64 sum;

	return pg_add_s64_overflow(a, b, &sum) ? PG_INT64_MAX : sum;
}

static void
add_times(StatTimes *sum, const StatTimes *more)
{
	int i;

	sum->total = sum_times(sum->total, more->total);
	sum->max = Max(sum->max, more->max);
	for (i = 0; i < STAT_BUCKETS; i++)
		sum->buckets[i] += more->buckets[i];
}

static void
add_counts(StatEntry *entry, const StatCounts *more)
{
	StatCounts *sum = &entry->record.counts;
	int i;

	SpinLockAcquire(&entry->mutex);
	entry->usage = Min(entry->usage + 1, USAGE_MAX);
	for (i = 0; i < STAT_COUNTERS; i++)
		sum->counters[i] += more->counters[i];
	add_times(&sum->wait, &more->wait);
	add_times(&sum->run, &more->run);
	SpinLockRelease(&entry->mutex);
}

/* ---- what this process counts ---- */

/* How many bytes of the name of a queue are kept: no part of a character. */
int
statistics_clip(const char *queue, Size length)
{
	if (length <= TASK_QUEUE_MAX)
		return (int) length;
	return pg_mbcliplen(queue, TASK_QUEUE_MAX + 1, TASK_QUEUE_MAX);
}

static void
set_key(StatKey *key, Oid database, Oid role, const char *queue)
{
	memset(key, 0, sizeof(StatKey));
	key->database = database;
	key->role = role;
	memcpy(key->queue, queue, statistics_clip(queue, strlen(queue)));
}

/*
 * Return the counts of this process to add to.  They are flushed later.  A name that is too long
 * for a key gets a new entry of this process each time.
 */
StatCounts *
statistics_of(Oid database, Oid role, const char *queue)
{
	StatKey key;
	int i;

	for (i = 0; i < local.count; i++)
	{
		LocalEntry *entry = &local.entries[(local.last + i) % local.count];

		if (entry->key.role == role && entry->key.database == database &&
			strncmp(entry->key.queue, queue, TASK_QUEUE_MAX) == 0)
		{
			local.last = (int) (entry - local.entries);
			return &entry->counts;
		}
	}
	if (local.count == LOCAL_MAX)
		(void) statistics_flush(true);
	set_key(&key, database, role, queue);
	local.last = local.count++;
	local.entries[local.last].key = key;
	memset(&local.entries[local.last].counts, 0, sizeof(StatCounts));
	return &local.entries[local.last].counts;
}

/* Add a time (us). */
void
statistics_add_time(StatTimes *times, int64 us)
{
	uint64 bucket = (uint64) us / STAT_BUCKET_US;

	Assert(us >= 0);
	times->total = sum_times(times->total, us);
	times->max = Max(times->max, us);
	bucket = bucket == 0 ? 0 : (uint64) pg_leftmost_one_pos64(bucket) + 1;
	times->buckets[Min(bucket, STAT_BUCKETS - 1)]++;
}

/*
 * Add what this process has counted to the entries that exist, or, in exclusive mode, to all.
 * Returns false if others hold the lock, unless it may "wait" for it.
 */
static bool
add_local(LWLockMode mode, bool wait)
{
	int left = 0;
	int i;

	if (wait)
		LWLockAcquire(Statistics->lock, mode);
	else if (!LWLockConditionalAcquire(Statistics->lock, mode))
		return false;
	for (i = 0; i < local.count; i++)
	{
		StatEntry *entry = find_entry(&local.entries[i].key);

		if (entry == NULL && mode == LW_EXCLUSIVE)
			entry = add_entry(&local.entries[i].key);
		if (entry)
			add_counts(entry, &local.entries[i].counts);
		else if (i != left++)
			local.entries[left - 1] = local.entries[i];
	}
	local.count = left;
	local.last = 0;
	LWLockRelease(Statistics->lock);
	return true;
}

/*
 * Add what this process has counted to the shared entries.  Returns false if something is left,
 * because others hold the lock: never if it may "wait".  Raises no error.
 */
bool
statistics_flush(bool wait)
{
	if (local.count == 0)
		return true;
	if (!add_local(LW_SHARED, wait))
		return false;
	return local.count == 0 || add_local(LW_EXCLUSIVE, wait);
}

/* ---- all entries ---- */

/* Make an entry as it was kept in the file.  Returns false if all are in use. */
bool
statistics_insert(const StatRecord *record)
{
	if (Statistics->vacant < 0)
		return false;
	if (find_entry(&record->key) == NULL)
		add_entry(&record->key)->record = *record;
	return true;
}

/*
 * Return a copy of all entries, in the current memory context.  One that is removed and made again
 * meanwhile may be there twice, or not at all.  The postmaster calls this, too, when no other
 * process is left; it could not wait for a lock.
 */
StatRecord *
statistics_read(int *count)
{
	StatRecord *records = palloc_array(StatRecord, Statistics->size);
	int i;

	*count = 0;
	for (i = 0; i < Statistics->size; i++)
	{
		StatEntry *entry = &Statistics->entries[i];

		SpinLockAcquire(&entry->mutex);
		if (entry->used)
			records[(*count)++] = entry->record;
		SpinLockRelease(&entry->mutex);
	}
	return records;
}

/* Read how many entries have made way for others, and since when that is counted. */
void
statistics_totals(int64 *evicted, TimestampTz *reset)
{
	LWLockAcquire(Statistics->lock, LW_SHARED);
	*evicted = Statistics->evicted;
	*reset = Statistics->reset;
	LWLockRelease(Statistics->lock);
}

/* Remove the entries of a database, a role and a queue; each may be NULL: of all of them. */
void
statistics_reset(const Oid *database, const Oid *role, const char *queue)
{
	int i;

	LWLockAcquire(Statistics->lock, LW_EXCLUSIVE);
	if (database == NULL && role == NULL && queue == NULL)
		clear_table();
	for (i = 0; i < Statistics->size; i++)
	{
		StatEntry *entry = &Statistics->entries[i];
		const StatKey *key = &entry->record.key;

		if (entry->used && (database == NULL || key->database == *database) &&
			(role == NULL || key->role == *role) &&
			(queue == NULL || strcmp(key->queue, queue) == 0))
			remove_entry(entry);
	}
	LWLockRelease(Statistics->lock);
}
