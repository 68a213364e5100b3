/*
 * take.h
 *		A session that waits for tasks, and takes them.  The runs that sessions and programs hold.
 */
#ifndef PG_TASK_TAKE_H
#define PG_TASK_TAKE_H

#include "postgres.h"

#include "access/xact.h"

#include "shared/takers.h"
#include "task/events.h"
#include "task/queue_rules.h"
#include "task/table.h"

/* A handle: the number of an entry, and the run.  With it, scanf and printf name the same. */
#define HELD_HANDLE "%d." INT64_FORMAT ".%d." INT64_FORMAT

extern void held_check_session(const char *function);
extern void
held_call_as_owner(Oid relid, void (*call)(const TaskTable *table, void *arg), void *arg);
extern void held_ended(TakenRef ref, const TaskEvent *event);
extern bool held_has_ended(TaskRun run);

extern void take_session_ended(void);
extern void take_count_waiting(const char *const *queues, const QueueRule *const *rules, int count,
							   const char *request, Oid rights, int *waiting);

/* For pg_task.c. */
extern void take_transaction_ended(XactEvent event);
extern void take_level_ended(int level, bool committed);

#endif /* PG_TASK_TAKE_H */
