/*
 * table.h
 *		The task table of a database, and the watch for changes of its definition.
 */
#ifndef PG_TASK_TABLE_H
#define PG_TASK_TABLE_H

#include "postgres.h"

#include "executor/execdesc.h"
#include "storage/lockdefs.h"

#include "settings.h"
#include "task/relation.h"

/* The description of a task table. */
typedef struct TaskTable
{
	MemoryContext context; /* contains the whole description */
	Oid relid;
	Oid owner;
	char *name;		 /* quoted and qualified */
	char *rows;		 /* the name in FROM and UPDATE; with ONLY unless partitioned */
	char *inherited; /* quoted columns that the next run inherits, each after a comma */
	char *own;		 /* those of them that the owner has added */
	bool whole;		 /* usable: has all columns, with their types, and a single owner */
	bool partitioned;
	char *code;	  /* an object with code of the owner's (owner_code.c); NULL: there is none */
	bool away;	  /* from home: it has not been completed, and its tasks are held back */
	bool created; /* by the table_prepare that has returned this */
	struct TaskTable *side[SIDE_TABLES]; /* for a scheduler; NULL: it cannot be used ... */
	const char *side_fault[SIDE_TABLES]; /* ... because of this */
	const char *side_name[SIDE_TABLES];
	int nmembers; /* partitions, in lock order */
	Oid *members;
} TaskTable;

extern TaskTable *table_prepare(const Location *where, Oid user, MemoryContext context);
extern TaskTable *table_find(Oid relid, MemoryContext context);
extern char *table_columns_of_run(Oid relid);
extern void table_lock(const TaskTable *table, LOCKMODE mode);

/* A statement that is being executed, and the only table that it may name. */
typedef struct NamedTable
{
	const char *text; /* NULL: there is none */
	Oid relid;
	bool partitioned; /* the watched table: its partitions were checked together with it */
} NamedTable;

extern void named_table_define(void);
extern void named_table_check_plan(const QueryDesc *query); /* for pg_task.c */
extern NamedTable named_table_expect(NamedTable table);

extern bool watch_changed(void);
extern uint32 watch_changes(void);
extern bool watch_changed_here(void);
extern void watch_invalidated(Oid relid); /* for pg_task.c */

#endif /* PG_TASK_TABLE_H */
