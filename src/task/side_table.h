/*
 * side_table.h
 *		The tables beside the task table that pg_task alone writes.
 */
#ifndef PG_TASK_SIDE_TABLE_H
#define PG_TASK_SIDE_TABLE_H

#include "postgres.h"

#include "utils/rel.h"

#include "task/table.h"

typedef struct SideColumn
{
	const char *name;
	Oid type;
} SideColumn;

/* What the table is to be.  Its first column is unique. */
typedef struct SideTable
{
	const char *suffix;
	int ncolumns;
	const SideColumn *columns;
	int ndefinitions;
	const char *const *definitions; /* each has a %s for the name of the table */
} SideTable;

extern char *side_table_name(Oid relid, const char *suffix);
extern TaskTable *side_table_prepare(const SideTable *side, const TaskTable *table,
									 MemoryContext context, char **fault);
extern Relation side_table_open(const SideTable *side, Oid relid, Oid owner);

#endif /* PG_TASK_SIDE_TABLE_H */
