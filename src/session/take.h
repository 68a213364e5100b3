/*
 * take.h
 *		A session that waits for tasks, and takes them.
 */
#ifndef PG_TASK_TAKE_H
#define PG_TASK_TAKE_H

#include "postgres.h"

#include "access/xact.h"

#include "task/queue_rules.h"

extern void take_session_ended(void);
extern void take_count_waiting(const char *const *queues, const QueueRule *const *rules, int count,
							   const char *request, Oid rights, int *waiting);

/* For pg_task.c. */
extern void take_transaction_ended(XactEvent event);

#endif /* PG_TASK_TAKE_H */
