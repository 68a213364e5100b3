/*
 * port.h
 *		The connection to a client that a background process does not have.
 *
 * For every process that runs users' functions: executors and schedulers.
 */
#ifndef PG_TASK_PORT_H
#define PG_TASK_PORT_H

#include "postgres.h"

extern void port_describe(void);
extern const char *port_database(void);

#endif /* PG_TASK_PORT_H */
