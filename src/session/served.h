/*
 * served.h
 *		The task table of this database, for functions that SQL calls.
 */
#ifndef PG_TASK_SERVED_H
#define PG_TASK_SERVED_H

#include "postgres.h"

#include "task/columns.h"

extern Oid served_known(void);
extern char *served_name(Oid relid);
extern char *served_rows(Oid *relid);
extern Oid served_owner(Oid relid);
extern void served_check_update(Oid relid, TaskColumn which, const char *purpose);

#endif /* PG_TASK_SERVED_H */
