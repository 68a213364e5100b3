/*
 * relation.c
 *		Checks what kind of relation the task table is, and which relations belong to it.
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
#include "access/table.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "task/relation.h"

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

/* Is there such a relation, of this owner?  Takes no lock. */
bool
relation_is_owned_by(Oid relid, Oid owner)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool owned = false;

	if (HeapTupleIsValid(tuple))
	{
		owned = ((Form_pg_class) GETSTRUCT(tuple))->relowner == owner;
		ReleaseSysCache(tuple);
	}
	return owned;
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
 * Why can this relation, with these partitions and parents, not be served as a task table?  NULL:
 * it can, if it has the columns.
 */
char *
relation_fault(Relation rel, List *members, List *parents)
{
	char *fault = kind_fault(rel->rd_rel);
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
		if (!relation_is_owned_by(member, owner))
			return psprintf("Its partition \"%s\" has another owner.", get_rel_name(member));
	}
	foreach(cell, parents)
		if (!relation_is_owned_by(lfirst_oid(cell), owner))
			return psprintf("The table \"%s\", which it inherits from, has another owner.",
							get_rel_name(lfirst_oid(cell)));
	managed = find_managed(lcons_oid(RelationGetRelid(rel), list_copy(members)));
	if (OidIsValid(managed))
		return psprintf("Citus manages \"%s\": it is in pg_dist_partition.", get_rel_name(managed));
	return NULL;
}

/*
 * Has this transaction changed the relation's row in pg_class, or one of its columns: created the
 * relation, changed or dropped a column, changed the owner, or the like?
 */
bool
relation_changed_here(Oid relid)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool here = false;
	int i;

	for (i = 1; HeapTupleIsValid(tuple) && !here; i++)
	{
		here = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
		ReleaseSysCache(tuple);
		tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(relid), Int16GetDatum(i));
	}
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return here;
}
