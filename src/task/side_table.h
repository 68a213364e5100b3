/*
 * side_table.h
 *		The tables beside the task table.
 */
#ifndef PG_TASK_SIDE_TABLE_H
#define PG_TASK_SIDE_TABLE_H

#include "postgres.h"

#include "utils/rel.h"

typedef enum SideKind
{
	SIDE_QUEUE,
	SIDE_RATE,
	SIDE_TABLES
} SideKind;

extern char *side_table_name(SideKind kind, Oid task);
extern Oid side_table_find(SideKind kind, Oid task);
extern Relation side_table_open(SideKind kind, Oid task, Oid owner, bool wait, const char **fault);
extern void side_table_close(Relation rel);

#endif /* PG_TASK_SIDE_TABLE_H */
