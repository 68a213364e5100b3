/*
 * running.h
 *		What the running task of this process is given, and what it asks for.
 */
#ifndef PG_TASK_RUNNING_H
#define PG_TASK_RUNNING_H

#include "postgres.h"

#include "utils/jsonb.h"

extern void running_begin(const Jsonb *input);
extern void running_end(void);
extern const Jsonb *running_input(void);

#endif /* PG_TASK_RUNNING_H */
