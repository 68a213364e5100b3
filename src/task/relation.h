/*
 * relation.h
 *		Checks what kind of relation the task table is, and those beside it.
 */
#ifndef PG_TASK_RELATION_H
#define PG_TASK_RELATION_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/rel.h"

#include "task/columns.h"

/*
 * Raised when the task table has changed: the caller repeats its work, and reports no error.  No
 * request and no trigger can raise this: RAISE takes upper-case letters only.
 */
#define ERRCODE_TABLE_CHANGED MAKE_SQLSTATE('p', 't', '0', '0', '1')

extern Oid relation_root(Oid relid);
extern List *relation_members(Relation rel);
extern List *relation_parents(Oid relid);
extern bool relation_is_owned_by(Oid relid, Oid owner);
extern char *relation_fault(Relation rel, List *members, List *parents,
							const ColumnDefinition *columns, int count);

/* The tables beside the task table. */
typedef enum SideKind
{
	SIDE_QUEUE,
	SIDE_RATE,
	SIDE_TABLES
} SideKind;

extern char *side_table_name(SideKind kind, Oid task);
extern Oid side_table_find(SideKind kind, Oid task);
extern Relation side_table_open(SideKind kind, Oid task, Oid owner, bool wait, const char **fault);

#endif /* PG_TASK_RELATION_H */
