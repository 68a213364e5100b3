/*
 * rate_table.h
 *		The rate table: the last claims of tasks of the queues that have a rate or a pause.
 */
#ifndef PG_TASK_RATE_TABLE_H
#define PG_TASK_RATE_TABLE_H

#include "postgres.h"

#include "shared/clock.h"
#include "task/table.h"

/* More than these of one queue are never written. */
#define RATE_CLAIMS_MAX 128

/* Nothing counts for longer (us): 100 years. */
#define RATE_KEEP_MAX (INT64CONST(36525) * USECS_PER_DAY)

/* Claims at about the same time: all of them count until the latest, which was then, is over. */
typedef struct RateClaim
{
	MonoTime at;
	int count;
} RateClaim;

/* A row: the claims of one queue, in the order of time, and how long the last one counts (us). */
typedef struct RateRow
{
	const char *queue;
	int64 keep;
	int count;
	RateClaim *claims;
} RateRow;

/*
 * When may a task be claimed, by these claims, if "rate" may be in any time of the length "per"?
 * The claims may be older than that.
 */
static inline MonoTime
rate_free_at(const RateClaim *claims, int count, int rate, int64 per)
{
	if (rate == 0)
		return CLOCK_NEVER;
	while (count > 0 && (rate -= claims[--count].count) > 0)
		;
	return rate > 0 ? CLOCK_LONG_AGO : (MonoTime){claims[count].at.us + per};
}

extern int rate_rows_read(const TaskTable *rates, ClockNow now, RateRow **rows);
extern void rate_rows_write(const TaskTable *rates, const RateRow *rows, int count, ClockNow now);
extern void rate_rows_remove(const TaskTable *rates, TimestampTz before);
extern bool rate_row_find(Oid relid, Oid owner, const char *queue, ClockNow now, RateRow *row);

#endif /* PG_TASK_RATE_TABLE_H */
