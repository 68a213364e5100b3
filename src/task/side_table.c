/*
 * side_table.c
 *		The tables beside the task table: the queue table and the rate table.
 *
 * Each has the schema and the owner of the task table, and its name with a suffix.  This file reads
 * catalogs, and changes nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "task/columns.h"
#include "task/relation.h"
#include "task/side_table.h"

static const struct
{
	const char *suffix;
	const ColumnDefinition *columns; /* of which the first is unique */
	int count;
} sides[] = {
	[SIDE_QUEUE] = {"queue", queue_columns, QUEUE_COLUMNS},
	[SIDE_RATE] = {"rate", rate_columns, RATE_COLUMNS},
};

/* Return the name of the table beside a task table, without its schema. */
char *
side_table_name(SideKind kind, Oid task)
{
	return makeObjectName(get_rel_name(task), NULL, sides[kind].suffix);
}

/* Return what has that name, whatever it is; InvalidOid: nothing. */
Oid
side_table_find(SideKind kind, Oid task)
{
	return get_relname_relid(side_table_name(kind, task), get_rel_namespace(task));
}

/* Is there a unique index on this column alone?  ON CONFLICT needs one. */
static bool
has_unique_index(Relation rel, AttrNumber column)
{
	ListCell *cell;
	bool found = false;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation index = index_open(lfirst_oid(cell), AccessShareLock);

		found |= index->rd_index->indisunique && index->rd_index->indimmediate &&
				 index->rd_index->indisvalid && index->rd_index->indnkeyatts == 1 &&
				 index->rd_index->indkey.values[0] == column &&
				 RelationGetIndexPredicate(index) == NIL;
		index_close(index, NoLock);
	}
	return found;
}

/* Why can this relation not be the table?  NULL: it can, once it has all of its columns. */
static const char *
find_fault(SideKind kind, Relation rel, Oid task)
{
	const char *column = sides[kind].columns[0].name;
	char *fault = relation_fault(rel, NIL, relation_parents(RelationGetRelid(rel)));

	if (RelationGetRelid(rel) == task)
		return "It is the task table: its name is too long.";
	if (fault == NULL && (rel->rd_rel->relkind != RELKIND_RELATION ||
						  rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT))
		fault = "It is not a plain table.";
	if (fault == NULL)
		fault = columns_fault(rel, sides[kind].columns, sides[kind].count);
	if (fault == NULL && !has_unique_index(rel, get_attnum(RelationGetRelid(rel), column)))
		fault = psprintf("Its column \"%s\" is not unique.", column);
	return fault;
}

/*
 * Open the table beside a task table of this owner, and lock it as SELECT does.  NULL if it cannot
 * be used: *fault says why.  A relation of another owner is not even locked: he may keep it locked.
 * Unless "wait", one that is locked is an error.  Executes no code of anybody.
 */
Relation
side_table_open(SideKind kind, Oid task, Oid owner, bool wait, const char **fault)
{
	Oid relid = side_table_find(kind, task);
	Relation rel;

	*fault = NULL;
	if (!OidIsValid(relid) || !relation_is_owned_by(relid, owner))
	{
		*fault =
			OidIsValid(relid) ? "It has another owner than the task table." : "It does not exist.";
		return NULL;
	}
	if (wait)
		LockRelationOid(relid, AccessShareLock);
	else if (!ConditionalLockRelationOid(relid, AccessShareLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not read the %s table, because it is locked", sides[kind].suffix)));
	rel = try_relation_open(relid, NoLock);
	/* with the lock it keeps its name and its owner */
	if (rel == NULL || rel->rd_rel->relowner != owner || side_table_find(kind, task) != relid)
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED),
						errmsg("the %s table has changed", sides[kind].suffix)));
	*fault = find_fault(kind, rel, task);
	if (*fault == NULL)
		return rel;
	relation_close(rel, NoLock);
	return NULL;
}

/* Close the table; NULL is allowed.  It stays locked until the end of the transaction. */
void
side_table_close(Relation rel)
{
	if (rel)
		relation_close(rel, NoLock);
}
