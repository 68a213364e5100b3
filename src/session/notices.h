/*
 * notices.h
 *		What a user is told, by a NOTICE, of a statement that does more or less than he may think.
 */
#ifndef PG_TASK_NOTICES_H
#define PG_TASK_NOTICES_H

#include "postgres.h"

#include "session/table_access.h"
#include "session/trigger_row.h"

extern void notices_count_stopped(const TriggerRow *old, const TriggerRow *new);
extern void notices_tell_stopped(const TriggerRow *old, const TriggerRow *new);
extern void notices_not_stopped(const TableAccess *access, int64 id);
extern void notices_not_retried(const TableAccess *access, int64 id, int sqlerrcode);

#endif /* PG_TASK_NOTICES_H */
