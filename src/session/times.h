/*
 * times.h
 *		When a cron expression runs a task, for users' sessions.
 */
#ifndef PG_TASK_TIMES_H
#define PG_TASK_TIMES_H

#include "postgres.h"

#include "pgtime.h"

#include "task/cron.h"

extern Cron times_parse(const char *text, const char *hint);
extern pg_tz *times_zone(const char *name);

#endif /* PG_TASK_TIMES_H */
