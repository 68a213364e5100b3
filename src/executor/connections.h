/*
 * connections.h
 *		Closes the connections to other servers that a task has left open.
 */
#ifndef PG_TASK_CONNECTIONS_H
#define PG_TASK_CONNECTIONS_H

#include "postgres.h"

extern void connections_add_library(const char *file);
extern bool connections_may_be_kept(void);
extern bool connections_close(void);

#endif /* PG_TASK_CONNECTIONS_H */
