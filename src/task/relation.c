/*
 * relation.c
 *		Checks what kind of relation the task table is, which columns it has, and which relations
 *		belong to it; and the tables beside it, the queue table and the rate table, which have its
 *		schema, its owner, and its name with a suffix.
 *
 * The definition of a table is hostile input.  What makes the columns is pg_task_missing, in the
 * script of the extension.  The statements on rows name columns themselves.
 *
 * The owner of the table decides who may put rows and triggers into it.  The owner of a partition
 * can bypass all checks of the root, and the owner of an inheritance parent can change the rows of
 * the child.  Therefore all these relations must have the same owner.
 *
 * This file reads catalogs and changes nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "task/relation.h"

/* ---- columns ---- */

#define COLUMN_DEFINITION(number, name, type, flags) {name, type, flags},

const ColumnDefinition task_columns[TASK_COLUMNS] = {TASK_COLUMN_LIST(COLUMN_DEFINITION)};

const ColumnDefinition queue_columns[QUEUE_COLUMNS] = {QUEUE_COLUMN_LIST(COLUMN_DEFINITION)};

static const ColumnDefinition rate_columns[] = {
	{"queue", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	{"until", TIMESTAMPTZOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	{"image", BYTEAOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
};

/* Why can this column of a relation not be used?  NULL: it can, or it does not exist. */
static char *
column_fault(Relation rel, const ColumnDefinition *column)
{
	TupleDesc desc = RelationGetDescr(rel);
	AttrNumber number = get_attnum(RelationGetRelid(rel), column->name);
	Form_pg_attribute att;

	if (number == InvalidAttrNumber)
		return NULL;
	att = TupleDescAttr(desc, number - 1);
	if (att->atttypid != column->type || ((column->flags & COLUMN_EXACT) && column_rounds(att)))
		return psprintf("The type of its column \"%s\" is another.", column->name);
	if ((column->flags & COLUMN_NOT_NULL) && !COMPAT_NOT_NULL(desc, number - 1))
		return psprintf("Its column \"%s\" may be NULL.", column->name);
	if (att->attgenerated)
		return psprintf("Its column \"%s\" is generated.", column->name);
	if (OidIsValid(att->attcollation) && !get_collation_isdeterministic(att->attcollation))
		return psprintf("The collation of its column \"%s\" is not deterministic.", column->name);
	return NULL;
}

/*
 * Why has a table not all of these columns, as our statements expect them; or, unless "whole", why
 * can it not be completed so that it has?  NULL: it has.  Everything that reads a table checks it
 * by this first, under the lock under which it reads.
 */
char *
columns_fault(Relation rel, const ColumnDefinition *columns, int count, bool whole)
{
	char *fault = NULL;
	int i;

	for (i = 0; i < count && fault == NULL; i++)
	{
		fault = column_fault(rel, &columns[i]);
		if ((whole || (columns[i].flags & COLUMN_REQUIRED)) &&
			get_attnum(RelationGetRelid(rel), columns[i].name) == InvalidAttrNumber)
			fault = psprintf("It has no column \"%s\".", columns[i].name);
	}
	return fault;
}

/* Why can a relation of this kind not be a task table?  NULL: it can. */
static char *
kind_fault(Form_pg_class class)
{
	switch (class->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
			break;
		case RELKIND_FOREIGN_TABLE:
			return "It is not a table, but a foreign table.";
		case RELKIND_VIEW:
			return "It is not a table, but a view.";
		case RELKIND_MATVIEW:
			return "It is not a table, but a materialized view.";
		default:
			return "It is not a table.";
	}
	if (class->relpersistence == RELPERSISTENCE_TEMP)
		return "It is a temporary table.";
	if (class->relispartition)
		return "It is a partition of another table.";
	return NULL;
}

/*
 * Is this a table of the other extension that is called pg_task, by RekGRpth?  Its default name is
 * the same.  All of its versions since 1.0.46 have these columns, ours has none of them so.
 */
bool
relation_is_rekgrpth(Relation rel)
{
	static const ColumnDefinition columns[] = {
		{"plan", TIMESTAMPTZOID, COLUMN_REQUIRED},
		{"input", TEXTOID, COLUMN_REQUIRED},
		{"output", TEXTOID, COLUMN_REQUIRED},
		{"remote", TEXTOID, COLUMN_REQUIRED},
	};
	Oid relid = RelationGetRelid(rel);

	return kind_fault(rel->rd_rel) == NULL &&
		   columns_fault(rel, columns, lengthof(columns), true) == NULL &&
		   type_is_enum(get_atttype(relid, get_attnum(relid, "state")));
}

/* ---- relations ---- */

/* Error context callback: which table could not be locked in time? */
static void
name_locked(void *name)
{
	if (geterrcode() == ERRCODE_LOCK_NOT_AVAILABLE)
		errdetail("Another session has locked table \"%s\".", (const char *) name);
}

/* As LockRelationOid.  The error of a timeout names the table. */
void
relation_lock(Oid relid, LOCKMODE mode)
{
	ErrorContextCallback callback = {.previous = error_context_stack, .callback = name_locked};

	/* most often nobody is in the way */
	if (ConditionalLockRelationOid(relid, mode))
		return;
	callback.arg = get_rel_name(relid);
	if (callback.arg)
		error_context_stack = &callback;
	LockRelationOid(relid, mode);
	error_context_stack = callback.previous;
}

/*
 * Return the root of the tables that this is a partition of; or itself, if it is none, or one whose
 * DETACH CONCURRENTLY has not ended: that has no ancestors any more.
 */
Oid
relation_root(Oid relid)
{
	List *ancestors = get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;

	return ancestors == NIL ? relid : llast_oid(ancestors);
}

/* Find and lock the partitions of a table, in the server's lock order. */
List *
relation_members(Relation rel)
{
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return NIL;
	/* the first element is the table itself */
	return list_delete_first(find_all_inheritors(RelationGetRelid(rel), AccessShareLock, NULL));
}

/*
 * All inheritance ancestors of a table.  They are not locked: the server locks parents before
 * children, and the caller has locked the child already.
 */
List *
relation_parents(Oid relid)
{
	List *parents = NIL;
	List *open = list_make1_oid(relid);
	Relation catalog = table_open(InheritsRelationId, AccessShareLock);

	while (open != NIL)
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple tuple;

		ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(linitial_oid(open)));
		open = list_delete_first(open);
		scan = systable_beginscan(catalog, InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			Oid parent = ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent;

			if (list_member_oid(parents, parent))
				continue;
			parents = lappend_oid(parents, parent);
			open = lappend_oid(open, parent);
		}
		systable_endscan(scan);
	}
	table_close(catalog, AccessShareLock);
	return parents;
}

/* The owner of a relation; InvalidOid: there is none.  Takes no lock. */
Oid
relation_owner(Oid relid)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid owner = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	return owner;
}

/*
 * The first of these relations that Citus manages, or InvalidOid.  Citus lists them in a catalog
 * of its own, which only a superuser can have created.
 */
static Oid
find_managed(List *relids)
{
	Oid catalog = get_relname_relid("pg_dist_partition", PG_CATALOG_NAMESPACE);
	AttrNumber number = OidIsValid(catalog) ? get_attnum(catalog, "logicalrelid") : 0;
	Oid managed = InvalidOid;
	Relation rel;
	SysScanDesc scan;
	HeapTuple tuple;

	if (number <= 0 || get_rel_relkind(catalog) != RELKIND_RELATION ||
		get_atttype(catalog, number) != REGCLASSOID)
		return InvalidOid;
	rel = table_open(catalog, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (!OidIsValid(managed) && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool isnull;
		Oid relid = DatumGetObjectId(heap_getattr(tuple, number, RelationGetDescr(rel), &isnull));

		if (!isnull && list_member_oid(relids, relid))
			managed = relid;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return managed;
}

/*
 * Why can this relation not be served as a table that is to have these columns?  NULL: it can, once
 * it has all of them.  Locks its partitions.
 */
char *
relation_fault(Relation rel, const ColumnDefinition *columns, int count)
{
	char *fault = kind_fault(rel->rd_rel);
	List *members = relation_members(rel);
	Oid owner = rel->rd_rel->relowner;
	Oid managed;
	ListCell *cell;

	if (fault)
		return fault;
	foreach(cell, members)
	{
		Oid member = lfirst_oid(cell);

		if (get_rel_relkind(member) == RELKIND_FOREIGN_TABLE)
			return psprintf("Its partition \"%s\" is a foreign table.", get_rel_name(member));
		if (relation_owner(member) != owner)
			return psprintf("Its partition \"%s\" has another owner.", get_rel_name(member));
	}
	foreach(cell, relation_parents(RelationGetRelid(rel)))
		if (relation_owner(lfirst_oid(cell)) != owner)
			return psprintf("The table \"%s\", which it inherits from, has another owner.",
							get_rel_name(lfirst_oid(cell)));
	managed = find_managed(lcons_oid(RelationGetRelid(rel), members));
	if (OidIsValid(managed))
		return psprintf("Citus manages \"%s\": it is in pg_dist_partition.", get_rel_name(managed));
	return columns_fault(rel, columns, count, false);
}

/* ---- the tables beside it ---- */

static const struct
{
	const char *suffix;
	const ColumnDefinition *columns; /* of which the first is unique */
	int count;
} sides[] = {
	[SIDE_QUEUE] = {"queue", queue_columns, QUEUE_COLUMNS},
	[SIDE_RATE] = {"rate", rate_columns, lengthof(rate_columns)},
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
side_fault(SideKind kind, Relation rel, Oid task)
{
	Oid relid = RelationGetRelid(rel);
	const char *column = sides[kind].columns[0].name;
	char *fault;

	if (relid == task)
		return "It is the task table: its name is too long.";
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ||
		rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
		return "It is not a plain table.";
	fault = relation_fault(rel, sides[kind].columns, sides[kind].count);
	if (fault == NULL && !has_unique_index(rel, get_attnum(relid, column)))
		fault = psprintf("Its column \"%s\" is not unique.", column);
	return fault;
}

/*
 * Open the table beside a task table of this owner, and lock it as SELECT does.  NULL if it cannot
 * be used: *fault says why.  A relation of another owner is not even locked: it may be kept locked.
 * Unless "wait", one that is locked is an error.  Executes no code of anybody.  The caller closes
 * it and leaves it locked.
 */
Relation
side_table_open(SideKind kind, Oid task, Oid owner, bool wait, const char **fault)
{
	Oid relid = side_table_find(kind, task);
	Relation rel;

	*fault = NULL;
	if (relation_owner(relid) != owner)
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
	*fault = side_fault(kind, rel, task);
	if (*fault == NULL)
		return rel;
	relation_close(rel, NoLock);
	return NULL;
}
