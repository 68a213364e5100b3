/*
 * slot.h
 *		The executor's own slot.
 */
#ifndef PG_TASK_SLOT_H
#define PG_TASK_SLOT_H

#include "postgres.h"

#include "shared/shared.h"

/* Set once, when the executor attaches. */
extern SharedExecutor *MyExecutor;

extern bool slot_take(SharedTask *task);
extern void slot_untake(void);
extern bool slot_may_exit(bool idle_too_long);
extern void slot_begin(void);
extern void slot_begun(void);
extern void slot_report(MonoTime started, bool done);
extern bool slot_is_cancelled(void);
extern void slot_set_failure(int sqlstate, const char *error, bool unwritten);

#endif /* PG_TASK_SLOT_H */
