/*
 * slot.h
 *		The executor's own slot.
 */
#ifndef PG_TASK_SLOT_H
#define PG_TASK_SLOT_H

#include "postgres.h"

#include "shared/shared.h"
#include "task/rows.h"

/* Set once, when the executor attaches. */
extern SharedExecutor *MyExecutor;

extern bool slot_take(SharedTask *task);
extern RowRequest slot_copy_request(const SharedTask *task);
extern int slot_count_waiting(void);
extern const SharedTask *slot_take_member(bool (*wanted)(const SharedTask *task));
extern void slot_untake(int count);
extern bool slot_may_exit(bool idle_too_long);
extern void slot_report(MonoTime started);
extern void slot_report_batch(const int64 *elapsed, int count);
extern bool slot_is_cancelled(void);
extern void slot_set_failure(int sqlstate, const char *error, TaskLeft left);

#endif /* PG_TASK_SLOT_H */
