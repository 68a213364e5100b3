/*
 * statistics.h
 *		What has become of tasks, per database and queue: the figures of pg_stat_task.
 */
#ifndef PG_TASK_STATISTICS_H
#define PG_TASK_STATISTICS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/lwlock.h"

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
	int64 buckets[STAT_BUCKETS];
} StatTimes;

typedef struct StatCounts
{
	int64 counters[STAT_COUNTERS];
	StatTimes wait; /* of runs that have started */
	StatTimes run;	/* of runs that have ended */
	TimestampTz last_start;
} StatCounts;

/* A queue of a database. */
typedef struct StatRecord
{
	Oid database;	   /* InvalidOid: all queues that have no record of their own */
	TimestampTz since; /* when it was made */
	StatCounts counts;
	char queue[TASK_QUEUE_MAX + 1];
} StatRecord;

extern Size statistics_size(void);
extern void statistics_create(void *memory, LWLock *lock);
extern int statistics_clip(const char *queue, Size length);
extern StatCounts *statistics_of(const char *queue);
extern void statistics_add_time(StatTimes *times, int64 us);
extern void statistics_flush(void);
extern bool statistics_read(int number, StatRecord *record);
extern TimestampTz statistics_last_start(const char *queue);
extern void statistics_reset(const Oid *database, const char *queue);

#endif /* PG_TASK_STATISTICS_H */
