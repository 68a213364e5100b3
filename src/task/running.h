/*
 * running.h
 *		What the running task of this process is given, and what it asks for.
 */
#ifndef PG_TASK_RUNNING_H
#define PG_TASK_RUNNING_H

#include "postgres.h"

#include "utils/jsonb.h"
#include "utils/timestamp.h"

extern void running_define(void);
extern void running_begin(MemoryContext context, const Jsonb *input);
extern bool running_end(TimestampTz *at, const Jsonb **input);
extern bool running_is_task(void);
extern const Jsonb *running_input(void);
extern void running_ask_again(TimestampTz at, const Jsonb *input);

#endif /* PG_TASK_RUNNING_H */
