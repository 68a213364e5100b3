/*
 * owner_code.h
 *		Finds code of a table's owner that a write to the table could run.
 */
#ifndef PG_TASK_OWNER_CODE_H
#define PG_TASK_OWNER_CODE_H

#include "postgres.h"

extern char *owner_code_find(Oid relid, bool writes);
extern void owner_code_define(void);
extern int owner_code_bar(int sqlstate);

#endif /* PG_TASK_OWNER_CODE_H */
