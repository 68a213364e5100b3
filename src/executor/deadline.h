/*
 * deadline.h
 *		The timers of an executor.
 */
#ifndef PG_TASK_DEADLINE_H
#define PG_TASK_DEADLINE_H

#include "postgres.h"

#include "shared/clock.h"

extern void deadline_define(void);
extern void deadline_set(MonoTime started, int64 limit);
extern void deadline_start(void);
extern void deadline_stop(void);
extern bool deadline_passed(void);

extern void yield_begin(void);
extern void yield_end(void);
extern bool yield_is_cause(int sqlerrcode);

#endif /* PG_TASK_DEADLINE_H */
