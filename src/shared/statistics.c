/*
 * statistics.c
 *		What has become of tasks, per database and queue, in shared memory of a fixed size.
 *
 * Each process counts for itself, for one queue at a time, and adds that to the shared record when
 * it comes to another queue, and from time to time (statistics_flush).  When all records are in
 * use, queues without one are counted together until the next reset.
 *
 * The lock is held for one record at a time, and always in exclusive mode: any user may read all
 * records in a loop, in many sessions, and readers that share a lock could keep a commit from
 * adding its counts, which cannot be cancelled.
 *
 * This file reads no setting but the number of records, and no catalog.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/int.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/statistics.h"

/*
 * The records, in shared memory, in no order.  All is guarded by the lock, in exclusive mode.  The
 * first one is for the queues that came when all others were in use.
 */
static struct StatTable
{
	LWLock *lock;
	int count;		/* in use */
	uint32 *hashes; /* of the keys of the records */
	StatRecord *records;
} * table;

/* What this process has counted and not added yet, all for one queue. */
static struct
{
	bool counted;
	StatCounts counts;
	char queue[TASK_QUEUE_MAX + 1];
} local;

/* Records of queues, and the one for all others. */
static int
table_size(void)
{
	return Settings.stat_max + 1;
}

Size
statistics_size(void)
{
	Size size = MAXALIGN(sizeof(struct StatTable));

	size = add_size(size, mul_size(table_size(), sizeof(StatRecord)));
	return add_size(size, mul_size(table_size(), sizeof(uint32)));
}

/* Make the table, empty, in this memory, which is zero.  The postmaster calls this. */
void
statistics_create(void *memory, LWLock *lock)
{
	table = memory;
	table->lock = lock;
	table->count = 1;
	table->records = (StatRecord *) ((char *) memory + MAXALIGN(sizeof(struct StatTable)));
	table->hashes = (uint32 *) &table->records[table_size()];
}

static uint32
hash_queue(const char *queue)
{
	return hash_bytes((const unsigned char *) queue, (int) strlen(queue)) ^ MyDatabaseId;
}

/*
 * Return the record of a queue of this database; NULL: there is none.  The loop is short for some
 * thousands of records, which is why there cannot be more of them.
 */
static StatRecord *
find_record(const char *queue)
{
	uint32 hash = hash_queue(queue);
	int i;

	Assert(LWLockHeldByMeInMode(table->lock, LW_EXCLUSIVE));
	for (i = 1; i < table->count; i++)
	{
		StatRecord *record = &table->records[i];

		if (table->hashes[i] == hash && record->database == MyDatabaseId &&
			strcmp(record->queue, queue) == 0)
			return record;
	}
	return NULL;
}

/* The same, but make it; if all are in use, return that of the others. */
static StatRecord *
get_record(const char *queue)
{
	StatRecord *record = find_record(queue);

	if (record)
		return record;
	record = &table->records[0];
	if (table->count < table_size())
	{
		table->hashes[table->count] = hash_queue(queue);
		record = &table->records[table->count++];
		memset(record, 0, sizeof(StatRecord));
		record->database = MyDatabaseId;
		strlcpy(record->queue, queue, sizeof(record->queue));
	}
	if (record->since == 0)
		record->since = GetCurrentTimestamp();
	return record;
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
	for (i = 0; i < STAT_BUCKETS; i++)
		sum->buckets[i] += more->buckets[i];
}

/* Add what this process has counted to the shared record.  Raises no error. */
void
statistics_flush(void)
{
	StatCounts *sum;
	int i;

	if (!local.counted)
		return;
	LWLockAcquire(table->lock, LW_EXCLUSIVE);
	sum = &get_record(local.queue)->counts;
	for (i = 0; i < STAT_COUNTERS; i++)
		sum->counters[i] += local.counts.counters[i];
	add_times(&sum->wait, &local.counts.wait);
	add_times(&sum->run, &local.counts.run);
	sum->last_start = Max(sum->last_start, local.counts.last_start);
	LWLockRelease(table->lock);
	local.counted = false;
}

/* How many bytes of the name of a queue are kept: no part of a character. */
int
statistics_clip(const char *queue, Size length)
{
	if (length <= TASK_QUEUE_MAX)
		return (int) length;
	return pg_mbcliplen(queue, TASK_QUEUE_MAX + 1, TASK_QUEUE_MAX);
}

/* Return the counts of this process for a queue, to add to.  They are flushed later. */
StatCounts *
statistics_of(const char *queue)
{
	int length;

	if (local.counted && strcmp(local.queue, queue) == 0)
		return &local.counts;
	statistics_flush();
	length = statistics_clip(queue, strlen(queue));
	memset(&local.counts, 0, sizeof(StatCounts));
	memcpy(local.queue, queue, length);
	local.queue[length] = '\0';
	local.counted = true;
	return &local.counts;
}

/* Add a time (us). */
void
statistics_add_time(StatTimes *times, int64 us)
{
	uint64 bucket = (uint64) us / STAT_BUCKET_US;

	Assert(us >= 0);
	times->total = sum_times(times->total, us);
	bucket = bucket == 0 ? 0 : (uint64) pg_leftmost_one_pos64(bucket) + 1;
	times->buckets[Min(bucket, STAT_BUCKETS - 1)]++;
}

/*
 * Copy the record with this number, from 0 on; "since" is 0 if nothing is counted there.  False:
 * there are no more.  One that is moved meanwhile by a reset may be read twice, or not at all.
 */
bool
statistics_read(int number, StatRecord *record)
{
	bool found;

	LWLockAcquire(table->lock, LW_EXCLUSIVE);
	found = number < table->count;
	if (found)
		*record = table->records[number];
	LWLockRelease(table->lock);
	return found;
}

/* When a task of a queue of this database has last begun; 0: never, or it has no record. */
TimestampTz
statistics_last_start(const char *queue)
{
	char name[TASK_QUEUE_MAX + 1];
	StatRecord *record;
	TimestampTz result;

	strlcpy(name, queue, statistics_clip(queue, strlen(queue)) + 1);
	LWLockAcquire(table->lock, LW_EXCLUSIVE);
	record = find_record(name);
	result = record ? record->counts.last_start : 0;
	LWLockRelease(table->lock);
	return result;
}

/*
 * Remove the records of a database and a queue; each may be NULL: of all of them.  If both are, so
 * is what was counted together.
 */
void
statistics_reset(const Oid *database, const char *queue)
{
	int i;

	LWLockAcquire(table->lock, LW_EXCLUSIVE);
	for (i = table->count - 1; i > 0; i--)
	{
		const StatRecord *record = &table->records[i];

		if ((database && record->database != *database) ||
			(queue && strcmp(record->queue, queue) != 0))
			continue;
		/* the last one takes its place */
		table->count--;
		table->hashes[i] = table->hashes[table->count];
		table->records[i] = table->records[table->count];
	}
	if (database == NULL && queue == NULL)
		memset(&table->records[0], 0, sizeof(StatRecord));
	LWLockRelease(table->lock);
}
