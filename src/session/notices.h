/*
 * notices.h
 *		What users are told of a statement, by a NOTICE, a WARNING or NOTIFY.
 */
#ifndef PG_TASK_NOTICES_H
#define PG_TASK_NOTICES_H

#include "postgres.h"

#include "session/trigger_row.h"

extern void notices_tell_stopped(const TriggerRow *old, const TriggerRow *new);
extern void notices_warn_of_role(const TriggerRow *row);
extern void notices_notify_end(const TriggerRow *old, const TriggerRow *new);
extern bool notices_may_tell(void);
extern void
notices_tell_unchanged(int64 id, const char *what, const char *reason, const char *hint);

#endif /* PG_TASK_NOTICES_H */
