/*
 * running.h
 *		What the running task of this process is given, and what it asks for.
 */
#ifndef PG_TASK_RUNNING_H
#define PG_TASK_RUNNING_H

#include "postgres.h"

#include "access/xact.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

extern void running_begin(MemoryContext context, const Jsonb *input);
extern bool running_end(TimestampTz *at, const Jsonb **input);
extern bool running_is_task(void);
extern const Jsonb *running_input(void);
extern void running_ask_again(TimestampTz at, const Jsonb *input);

/* For pg_task.c. */
extern void running_transaction_ended(XactEvent event);
extern void running_subtransaction_ended(SubXactEvent event);

#endif /* PG_TASK_RUNNING_H */
