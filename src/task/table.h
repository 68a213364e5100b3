/*
 * table.h
 *		The task table of a database.
 */
#ifndef PG_TASK_TABLE_H
#define PG_TASK_TABLE_H

#include "postgres.h"

#include "settings.h"

/* A task table that was found fit for use. */
typedef struct TaskTable
{
	MemoryContext context; /* all of it is in here */
	Oid relid;
	Oid owner;
	char *name;		 /* quoted and qualified */
	char *rows;		 /* the same, to read and change its rows by: without those of children */
	char *inherited; /* quoted columns that the next row of a repeat takes over */
	bool whole;		 /* fit for use: it has all its columns, of their types, and one owner */
	bool partitioned;
	int nmembers; /* its partitions, in the order in which they are locked */
	Oid *members;
} TaskTable;

/* Thrown when the table is not what it was: the work begins anew, and nothing is reported. */
#define ERRCODE_TABLE_CHANGED MAKE_SQLSTATE('P', 'T', '0', '0', '1')

/* What table_become changed. */
typedef struct TableScope
{
	Oid user;
	int context;
	int nest_level;
} TableScope;

extern TaskTable *table_prepare(const SettingsTable *where, Oid user, MemoryContext context);
extern TaskTable *table_find(Oid relid, MemoryContext context);
extern void table_keep(TaskTable *table);
extern bool table_changed_here(void);
extern void table_free(TaskTable *table);

extern void table_fire_deferred(void);
extern void table_become(Oid user, TableScope *scope);
extern void table_return(const TableScope *scope);
extern void table_stop_acting(const TableScope *scope);
extern void table_abandon(void);
extern bool table_acts(void);

extern void table_lock(const TaskTable *table);
extern bool table_changed(void);
extern bool table_is_member(Oid relid);

#endif /* PG_TASK_TABLE_H */
