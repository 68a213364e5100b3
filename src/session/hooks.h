/*
 * hooks.h
 *		The transaction callbacks and the ProcessUtility hook of all sessions.
 */
#ifndef PG_TASK_HOOKS_H
#define PG_TASK_HOOKS_H

#include "postgres.h"

#include "shared/shared.h"

extern void hooks_define(void);
extern bool hooks_add_events(Oid relid, int events);
extern void hooks_add_hint(Oid relid, const SharedHint *hint);

#endif /* PG_TASK_HOOKS_H */
