/*
 * request.h
 *		Runs the SQL of a task.
 */
#ifndef PG_TASK_REQUEST_H
#define PG_TASK_REQUEST_H

#include "postgres.h"

#include "executor/result.h"

extern bool request_run(const char *request, MemoryContext context, ResultFormat format,
						ResponseText *result, bool block);
extern bool request_in_block(void);

#endif /* PG_TASK_REQUEST_H */
