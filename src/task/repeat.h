/*
 * repeat.h
 *		The next run of a task that repeats.
 *
 * Every function but repeat_zone and repeat_following runs inside a transaction of the caller, as
 * the table's owner (owner_become), with an active snapshot.
 */
#ifndef PG_TASK_REPEAT_H
#define PG_TASK_REPEAT_H

#include "postgres.h"

#include "shared/task.h"
#include "task/rows.h"
#include "task/table.h"

/* A schedule with "@reboot" is on hold until then, and this is why. */
#define REPEAT_AT_START "until the server starts"

extern pg_tz *repeat_zone(const SettingsTask *settings, const char *timezone);
extern bool
repeat_following(const RowRepeat *repeat, TimestampTz after, pg_tz *zone, RowNext *next);
extern bool repeat_find_next(RowKey row, const RowRepeat *repeat, const TaskResult *run,
							 TimestampTz end, RowNext *next);
extern void repeat_expired(const TaskTable *table, RowKey row, TimestampTz now);
extern bool repeat_refused(const TaskTable *table, RowKey row, TimestampTz dt, TimestampTz now,
						   RowNext *next, bool *waits);
extern void repeat_after_run(const TaskTable *table, RowKey row, const TaskResult *result);

#endif /* PG_TASK_REPEAT_H */
