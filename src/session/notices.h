/*
 * notices.h
 *		What a user is told, by a NOTICE, of a statement that does more or less than he may think.
 */
#ifndef PG_TASK_NOTICES_H
#define PG_TASK_NOTICES_H

#include "postgres.h"

#include "session/trigger_row.h"

extern void notices_tell_stopped(const TriggerRow *old, const TriggerRow *new);
extern bool notices_may_tell(void);
extern void
notices_tell_unchanged(int64 id, const char *what, const char *reason, const char *hint);

#endif /* PG_TASK_NOTICES_H */
