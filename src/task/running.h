/*
 * running.h
 *		What the running task of this process is given, and what it asks for.
 */
#ifndef PG_TASK_RUNNING_H
#define PG_TASK_RUNNING_H

#include "postgres.h"

#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "shared/task.h"

extern void running_begin(MemoryContext context, const Jsonb *input);
extern void running_end(TaskResult *result);
extern const Jsonb *running_input(void);
extern bool running_ask_again(TimestampTz at, const Jsonb *input);

/* For pg_task.c. */
extern void running_level_ended(int level, bool committed);

#endif /* PG_TASK_RUNNING_H */
