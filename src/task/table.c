/*
 * table.c
 *		Finds and describes the task table.  The scheduler has it made and completed before
 *		(create.c), and finds the tables beside it.
 *
 * This file claims nothing and runs no request.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "settings.h"
#include "task/columns.h"
#include "task/create.h"
#include "task/home.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/relation.h"
#include "task/table.h"
#include "task/watch.h"

/* The name of the table for SQL: quoted, with the schema. */
static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* Copy a list of oids into a memory context. */
static Oid *
copy_oids(const List *list, MemoryContext context)
{
	Oid *oids = MemoryContextAlloc(context, Max(list_length(list), 1) * sizeof(Oid));
	ListCell *cell;

	foreach(cell, list)
		oids[foreach_current_index(cell)] = lfirst_oid(cell);
	return oids;
}

/* Find an object of a table or of its partitions, which are locked, with code of the owner's. */
static char *
find_code(Oid relid, const List *members)
{
	char *code = owner_code_find(relid, true);
	ListCell *cell;

	foreach(cell, members)
		if (code == NULL)
			code = owner_code_find(lfirst_oid(cell), true);
	return code;
}

/*
 * The same for the tables beside the task table of this owner, as far as they exist.  One that is
 * locked is left out: the scheduler, which runs no code of tenants, writes it, or a session that
 * looks for itself (removal.c).
 */
static char *
find_side_code(Oid relid, Oid owner)
{
	char *code = NULL;
	SideKind kind;

	for (kind = 0; kind < SIDE_TABLES && code == NULL; kind++)
	{
		Oid side = side_table_find(kind, relid);

		if (!OidIsValid(side) || !relation_is_owned_by(side, owner) ||
			!ConditionalLockRelationOid(side, AccessShareLock))
			continue;
		if (relation_is_owned_by(side, owner))
			code = owner_code_find(side, true);
	}
	return code;
}

/*
 * For a user's session: find an object of a task table, or of a table beside it, with code of the
 * owner's.  Executes none of it.
 */
char *
table_find_code(Oid relid, Oid owner)
{
	Relation rel = try_relation_open(relid, AccessShareLock);
	char *code;

	if (rel == NULL)
		return NULL;
	code = find_code(relid, relation_members(rel));
	relation_close(rel, NoLock);
	return code ? code : find_side_code(relid, owner);
}

/*
 * Describe the task table "relid", in a memory context of its own below "parent".  Returns NULL if
 * there is no such relation.  Must be called in a transaction.
 *
 * The table is watched from here on.  The watch begins before the catalogs are read, so a change
 * made meanwhile is reported by watch_changed.  After an error, everything allocated here goes
 * with the current memory context.
 */
TaskTable *
table_find(Oid relid, MemoryContext parent)
{
	Relation rel = try_relation_open(relid, AccessShareLock);
	MemoryContext context;
	List *members;
	List *parents;
	TaskTable *table;
	ListCell *cell;

	if (rel == NULL)
		return NULL;
	context = AllocSetContextCreate(CurrentMemoryContext, "pg_task table", ALLOCSET_SMALL_SIZES);
	watch_begin(relid);
	members = relation_members(rel);
	parents = relation_parents(relid);
	foreach(cell, list_concat_copy(members, parents))
		watch_also(lfirst_oid(cell));
	table = MemoryContextAlloc(context, sizeof(TaskTable));
	table->context = context;
	table->relid = relid;
	table->owner = rel->rd_rel->relowner;
	table->partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	table->name = MemoryContextStrdup(context, qualified_name(relid));
	table->rows = MemoryContextStrdup(
		context, psprintf("%s%s", table->partitioned ? "" : "ONLY ", table->name));
	table->inherited = MemoryContextStrdup(context, columns_inherited(rel));
	table->members = copy_oids(members, context);
	table->nmembers = list_length(members);
	table->whole = relation_fault(rel, members, parents) == NULL &&
				   columns_complete(rel, task_columns, TASK_COLUMNS);
	table->code = find_code(relid, members);
	if (table->code)
		table->code = MemoryContextStrdup(context, table->code);
	table->created = table->away = false;
	memset(table->side, 0, sizeof(table->side));
	memset(table->side_fault, 0, sizeof(table->side_fault));
	relation_close(rel, AccessShareLock);
	MemoryContextSetParent(context, parent);
	return table;
}

/* Keep the description until table_free, or for the life of the process. */
void
table_keep(TaskTable *table)
{
	MemoryContextSetParent(table->context, TopMemoryContext);
}

/* Free the description; NULL is allowed. */
void
table_free(TaskTable *table)
{
	if (table)
		MemoryContextDelete(table->context);
}

/*
 * Lock a table and its partitions until the end of the transaction.  With AccessShareLock the table
 * keeps its name, and nobody can change the owner of a partition; with RowExclusiveLock nobody adds
 * a trigger, either.  Call watch_changed after this, to find out whether the table changed before.
 */
void
table_lock(const TaskTable *table, LOCKMODE mode)
{
	int i;

	Assert(IsTransactionState());
	LockRelationOid(table->relid, mode);
	for (i = 0; i < table->nmembers; i++)
		LockRelationOid(table->members[i], mode);
}

/*
 * Describe a table beside the task table for statement_execute.  It is watched from now on, also if
 * it cannot be used: then NULL, and *fault says why.
 */
static TaskTable *
find_side(SideKind kind, TaskTable *task, const char **fault)
{
	TaskTable *table;
	Relation rel;

	watch_also(side_table_find(kind, task->relid));
	rel = side_table_open(kind, task->relid, task->owner, false, fault);
	if (rel == NULL)
		return NULL;
	if (task->code == NULL && (task->code = owner_code_find(RelationGetRelid(rel), true)) != NULL)
		task->code = MemoryContextStrdup(task->context, task->code);
	table = MemoryContextAllocZero(task->context, sizeof(TaskTable));
	table->relid = RelationGetRelid(rel);
	table->owner = task->owner;
	table->name = MemoryContextStrdup(task->context, qualified_name(table->relid));
	table->rows = MemoryContextStrdup(task->context, psprintf("ONLY %s", table->name));
	table->inherited = "";
	table->whole = true;
	relation_close(rel, NoLock);
	return table;
}

/*
 * Make sure that the task table of this database and those beside it exist and are complete, and
 * describe them in a child of the given memory context.  Returns NULL if there is none, and none is
 * to be created; then nothing is changed.  Runs in a transaction of the scheduler, as a superuser.
 */
TaskTable *
table_prepare(const Location *where, Oid user, MemoryContext context)
{
	Created created = {0};
	TaskTable *table = NULL;
	SideKind kind;

	Assert(superuser() && !owner_acts());
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (create_may_find(where, user))
	{
		create_extension();
		created = create_tables(where, user, InvalidOid, InvalidOid);
	}
	PopActiveSnapshot();
	if (OidIsValid(created.relid))
	{
		/* it may have been renamed or moved before it was locked; from here on it cannot be */
		table = table_find(created.relid, context);
		if (table == NULL || strcmp(get_rel_name(created.relid), where->table) != 0)
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		table->created = created.made;
		/* again: of a mark that was set before the watch began, watch_changed does not tell */
		table->away = created.away || home_find(created.relid) == HOME_AWAY;
		for (kind = 0; kind < SIDE_TABLES && !table->away; kind++)
		{
			const char *fault = created.fault[kind];
			const char *unusable;

			table->side_name[kind] = MemoryContextStrdup(
				table->context,
				quote_qualified_identifier(get_namespace_name(get_rel_namespace(table->relid)),
										   side_table_name(kind, table->relid)));
			table->side[kind] = find_side(kind, table, &unusable);
			fault = fault ? fault : unusable;
			table->side_fault[kind] = fault ? MemoryContextStrdup(table->context, fault) : NULL;
			if (fault)
				table->side[kind] = NULL;
		}
	}
	SPI_finish();
	return table;
}
