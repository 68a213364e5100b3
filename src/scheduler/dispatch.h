/*
 * dispatch.h
 *		One round: choose tasks, claim them in one commit, and assign them to executors.
 */
#ifndef PG_TASK_DISPATCH_H
#define PG_TASK_DISPATCH_H

#include "postgres.h"

#include "shared/clock.h"

/* A row could not be claimed since the last scan began: it is to be scanned for again. */
extern bool dispatch_row_locked;

extern bool dispatch_round(ClockNow now, bool *wants_executor);

#endif /* PG_TASK_DISPATCH_H */
