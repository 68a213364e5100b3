/*
 * slot.h
 *		The executor's own slot, and what others see of the task in it.
 */
#ifndef PG_TASK_SLOT_H
#define PG_TASK_SLOT_H

#include "postgres.h"

#include "shared/slots.h"
#include "task/events.h"
#include "task/rows.h"

extern RowRequest slot_copy_request(const SharedTask *task);
extern int slot_count_waiting(void);
extern const SharedTask *
slot_take(bool (*wanted)(const SharedTask *task, const void *arg), const void *arg);
extern void slot_untake(int count);
extern void slot_report(const int64 *elapsed, int count);
extern SharedTask *slot_running(void);
extern bool slot_is_cancelled(void);
extern void slot_set_failure(int sqlstate, const char *error, TaskLeft left);
extern void slot_wait(long ms);

extern int64 show_timeout(const SharedTask *task);
extern void show_labels(const SharedTask *task);
extern void show_meta(const Jsonb *meta);
extern void show_task(const SharedTask *task, TimestampTz started);
extern void show_event(const SharedTask *task, EventKind kind, TimestampTz from, TimestampTz to);

extern void context_begin(ErrorContextCallback *callback, const SharedTask *task);
extern char *context_cut(char *context, const SharedTask *task);

#endif /* PG_TASK_SLOT_H */
