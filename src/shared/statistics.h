/*
 * statistics.h
 *		What has become of tasks, per database, queue and role: the figures of pg_stat_task.
 */
#ifndef PG_TASK_STATISTICS_H
#define PG_TASK_STATISTICS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "shared/task.h"

/* What is counted. */
typedef enum StatCounter
{
	STAT_PLANNED, /* rows that came to wait */
	STAT_STARTED, /* runs */
	STAT_DONE,
	STAT_FAILED,
	STAT_RETRIED,
	STAT_STOPPED,
	STAT_GONE,
	STAT_TIMED_OUT, /* of the failed and retried */
	STAT_CRASHED,	/* the same */
	STAT_COUNTERS
} StatCounter;

/*
 * A histogram: bucket 0 has times below STAT_BUCKET_US, each of the next ones those below twice as
 * much, and the last one all that is longer (STAT_BUCKET_US * 2^26, more than two hours).
 */
#define STAT_BUCKETS 28
#define STAT_BUCKET_US 125

typedef struct StatTimes
{
	int64 total; /* us */
	int64 max;	 /* us */
	int64 buckets[STAT_BUCKETS];
} StatTimes;

typedef struct StatCounts
{
	int64 counters[STAT_COUNTERS];
	StatTimes wait; /* of runs that have started */
	StatTimes run;	/* of runs that have ended */
} StatCounts;

/* Compared byte by byte: what is behind the name is 0. */
typedef struct StatKey
{
	Oid database;
	Oid role; /* InvalidOid: it is gone */
	char queue[TASK_QUEUE_MAX + 1];
} StatKey;

/* What is kept over a restart. */
typedef struct StatRecord
{
	StatKey key;
	TimestampTz since; /* when it was made, or reset */
	StatCounts counts;
} StatRecord;

/*
 * An entry.  "next" changes under the lock in exclusive mode, "used" under that and the spinlock.
 * While it is used, "record.key" does not change, and the counts change under the lock in shared or
 * exclusive mode and the spinlock; so the spinlock is enough to read the record.
 */
typedef struct StatEntry
{
	bool used;
	int next; /* in its chain, or in the list of free ones; -1: the last one */
	slock_t mutex;
	int usage; /* see find_victim */
	StatRecord record;
} StatEntry;

/* The entries, in shared memory. */
typedef struct StatTable
{
	LWLock *lock;
	int size;	 /* never changes, as the next two */
	int *chains; /* the first entry of each chain, -1: none; as many as entries */
	StatEntry *entries;
	int vacant;		   /* the first free entry; -1: none */
	int hand;		   /* where find_victim goes on */
	int64 evicted;	   /* entries that made way for others, since the last reset of all */
	TimestampTz reset; /* that reset */
} StatTable;

/* NULL if the library was not preloaded. */
extern StatTable *Statistics;

extern Size statistics_size(void);
extern void statistics_create(void *memory, LWLock *lock);
extern int statistics_clip(const char *queue, Size length);
extern StatCounts *statistics_of(Oid database, Oid role, const char *queue);
extern void statistics_add_time(StatTimes *times, int64 us);
extern bool statistics_flush(bool wait);
extern bool statistics_insert(const StatRecord *record);
extern StatRecord *statistics_read(int *count);
extern void statistics_totals(int64 *evicted, TimestampTz *reset);
extern void statistics_reset(const Oid *database, const Oid *role, const char *queue);

/* statistics_file.c */
extern void statistics_load(void);
extern void statistics_save(void);

#endif /* PG_TASK_STATISTICS_H */
