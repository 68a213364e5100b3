/*
 * side_table.h
 *		The tables beside the task table: the check of all of them, and those that pg_task alone
 *		writes.
 */
#ifndef PG_TASK_SIDE_TABLE_H
#define PG_TASK_SIDE_TABLE_H

#include "postgres.h"

#include "utils/rel.h"

#include "task/columns.h"
#include "task/table.h"

/* What the table is to be.  Its first column is unique. */
typedef struct SideTable
{
	const char *suffix;
	int ncolumns;
	const ColumnDefinition *columns;
	int ndefinitions;
	const char *const *definitions; /* each has a %s for the name of the table */
} SideTable;

extern char *side_table_fault(Relation rel, Oid owner, const ColumnDefinition *columns, int count);
extern char *side_table_name(Oid relid, const char *suffix);
extern TaskTable *side_table_prepare(const SideTable *side, const TaskTable *table,
									 MemoryContext context, char **fault);
extern Relation side_table_open(const SideTable *side, Oid relid, Oid owner);

#endif /* PG_TASK_SIDE_TABLE_H */
