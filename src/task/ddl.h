/*
 * ddl.h
 *		Statements that define the tables of pg_task.
 *
 * The caller has connected to SPI (but for ddl_try), and is the owner of the table or a superuser.
 */
#ifndef PG_TASK_DDL_H
#define PG_TASK_DDL_H

#include "postgres.h"

extern char *ddl_try(void (*create)(void *arg), void *arg);
extern void ddl_run(const char *sql);
extern bool ddl_row_exists(const char *sql, Oid oid, const char *text);
extern void
ddl_add_trigger(Oid relid, const char *table, const char *trigger, const char *definition);
extern void ddl_add_policy(Oid relid, const char *table, const char *policy, const char *condition);

#endif /* PG_TASK_DDL_H */
