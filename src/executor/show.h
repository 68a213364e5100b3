/*
 * show.h
 *		What others see of the running task.
 */
#ifndef PG_TASK_SHOW_H
#define PG_TASK_SHOW_H

#include "postgres.h"

#include "shared/shared.h"
#include "task/events.h"

extern int64 show_timeout(const SharedTask *task);
extern void show_id_and_flow(const SharedTask *task);
extern void show_settings(const SharedTask *task);
extern void show_activity(const SharedTask *task, TimestampTz started);
extern TaskEvent show_event(const SharedTask *task, EventKind kind, int64 elapsed);
extern void show_started(const SharedTask *task, TimestampTz started);
extern void show_done(const SharedTask *task, TimestampTz started, TimestampTz stop);

extern void context_begin(ErrorContextCallback *callback, const SharedTask *task);
extern void context_end(const ErrorContextCallback *callback);
extern char *context_cut(char *context, const SharedTask *task);

#endif /* PG_TASK_SHOW_H */
