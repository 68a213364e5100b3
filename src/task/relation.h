/*
 * relation.h
 *		Checks what kind of relation the task table is, and which relations belong to it.
 */
#ifndef PG_TASK_RELATION_H
#define PG_TASK_RELATION_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/rel.h"

/*
 * Raised when the task table has changed: the caller repeats its work, and reports no error.  No
 * request and no trigger can raise this: RAISE takes upper-case letters only.
 */
#define ERRCODE_TABLE_CHANGED MAKE_SQLSTATE('p', 't', '0', '0', '1')

extern Oid relation_root(Oid relid);
extern List *relation_members(Relation rel);
extern List *relation_parents(Oid relid);
extern bool relation_is_owned_by(Oid relid, Oid owner);
extern char *relation_fault(Relation rel, List *members, List *parents);
extern bool relation_changed_here(Oid relid);

#endif /* PG_TASK_RELATION_H */
