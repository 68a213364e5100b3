/*
 * context.h
 *		The line that says which task a message in the server's log belongs to.
 */
#ifndef PG_TASK_CONTEXT_H
#define PG_TASK_CONTEXT_H

#include "postgres.h"

#include "shared/shared.h"

extern void context_begin(ErrorContextCallback *callback, const SharedTask *task);
extern void context_end(const ErrorContextCallback *callback);
extern char *context_cut(char *context, const SharedTask *task);

#endif /* PG_TASK_CONTEXT_H */
