/*
 * times.h
 *		When a cron expression runs a task, for users' sessions.
 */
#ifndef PG_TASK_TIMES_H
#define PG_TASK_TIMES_H

#include "postgres.h"

#include "session/trigger_row.h"
#include "task/cron.h"

extern Cron times_parse(const char *text, const char *hint);
extern void times_check_zone(const TriggerRow *row);
extern bool times_of_row(const TriggerRow *row, TimestampTz after, TimestampTz *next);

#endif /* PG_TASK_TIMES_H */
