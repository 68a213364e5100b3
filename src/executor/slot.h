/*
 * slot.h
 *		The executor's own slot, and what others see of the task in it.
 */
#ifndef PG_TASK_SLOT_H
#define PG_TASK_SLOT_H

#include "postgres.h"

#include "settings.h"
#include "shared/slots.h"
#include "task/events.h"
#include "task/rows.h"

/* The running task, or the one that has run last. */
static inline SharedTask *
slot_running(void)
{
	return &MyExecutor->ring[(MyExecutor->taken - 1) % SHARED_RING];
}

/*
 * Has the scheduler cancelled the running task?  "cancelled" is read without the lock, because the
 * SIGINT handler calls this.  It is never reset while the task is in the ring.
 */
static inline bool
slot_is_cancelled(void)
{
	return slot_running()->cancelled;
}

/* Return the timeout of the task (us), its own or the setting; 0: none.  It covers all tries. */
static inline int64
slot_timeout(const SharedTask *task)
{
	return task->timeout >= 0 ? task->timeout : (int64) Settings.timeout * 1000;
}

extern RowRequest slot_copy_request(const SharedTask *task);
extern void slot_set_failure(int sqlstate, const char *error, TaskLeft left);
extern void slot_wait(long ms);

extern void show_labels(const SharedTask *task);
extern void show_meta(const Jsonb *meta);
extern void show_task(const SharedTask *task, TimestampTz started);
extern void show_event(const SharedTask *task, EventKind kind, TimestampTz from, TimestampTz to);

extern void context_begin(ErrorContextCallback *callback, const SharedTask *task);
extern char *context_cut(char *context, const SharedTask *task);

#endif /* PG_TASK_SLOT_H */
