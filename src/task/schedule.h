/*
 * schedule.h
 *		Computes when a repeating task runs next.  All functions are pure.
 */
#ifndef PG_TASK_SCHEDULE_H
#define PG_TASK_SCHEDULE_H

#include "postgres.h"

#include "pgtime.h"
#include "utils/timestamp.h"

#include "task/cron.h"

/* No task is planned for this year or later. */
#define SCHEDULE_LAST_YEAR CRON_LAST_YEAR

extern bool
schedule_next(TimestampTz *anchor, TimestampTz planned, const Interval *repeat, bool drift,
			  TimestampTz ended, TimestampTz now, pg_tz *zone, TimestampTz *next);
extern bool schedule_next_cron(const Cron *cron, TimestampTz after, pg_tz *zone, TimestampTz *next);
extern bool schedule_in_range(TimestampTz moment);

#endif /* PG_TASK_SCHEDULE_H */
