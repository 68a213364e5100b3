/*
 * served.h
 *		The task table of this database, for functions that SQL calls.
 */
#ifndef PG_TASK_SERVED_H
#define PG_TASK_SERVED_H

#include "postgres.h"

#include "task/columns.h"

extern Oid served_known(void);
extern Oid served_table(void);
extern char *served_name(Oid relid);
extern void served_check_update(Oid relid, TaskColumn which, const char *purpose);

#endif /* PG_TASK_SERVED_H */
