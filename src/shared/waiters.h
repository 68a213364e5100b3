/*
 * waiters.h
 *		Sessions that wait until tasks have ended.
 */
#ifndef PG_TASK_WAITERS_H
#define PG_TASK_WAITERS_H

#include "postgres.h"

#include "access/xact.h"

extern void waiters_transaction_ended(XactEvent event); /* for pg_task.c */

/* Who ends tasks. */
extern void waiters_end(int64 id);
extern void waiters_end_all(void);

/* Who waits. */
extern uint32 waiters_count_ends(int64 id);
extern void waiters_sleep(int64 id, uint32 ends, long ms, uint32 wait_event);

#endif /* PG_TASK_WAITERS_H */
