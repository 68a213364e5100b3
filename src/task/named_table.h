/*
 * named_table.h
 *		The names in a statement of ours mean the table that was checked.
 */
#ifndef PG_TASK_NAMED_TABLE_H
#define PG_TASK_NAMED_TABLE_H

#include "postgres.h"

/* A statement that is being executed, and the only table that it may name. */
typedef struct NamedTable
{
	const char *text; /* NULL: there is none */
	Oid relid;
} NamedTable;

extern void named_table_define(void);
extern NamedTable named_table_expect(const char *text, Oid relid);
extern void named_table_restore(NamedTable outer);

#endif /* PG_TASK_NAMED_TABLE_H */
