/*
 * indexes.c
 *		The indexes of the task table: finds existing ones and creates missing ones.
 *
 * An index is recognized by its definition in the catalogs: columns, expressions, collations,
 * operator classes, condition.  Its name and its storage do not matter, nor does the text that
 * pg_get_indexdef prints, which depends on settings and columns.
 *
 * All functions here run as the owner of the table (owner_become).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "commands/defrem.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parse_utilcmd.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "task/ddl.h"
#include "task/indexes.h"
#include "task/owner.h"

/* If there are this many indexes on the same columns, do not create another one. */
#define LOOKALIKES_MAX 3

/*
 * Each INSERT pays for every comparison in a condition here, whatever it is: the server prepares
 * all of them for each statement.  A row that waits for others is in state PLAN, so the conditions
 * on "waits" need not say it; the statements do, for rows that have bypassed the triggers.
 *
 * That of "after" is written so that it does not imply the one of "waits": with old statistics the
 * planner would read all of that index instead.
 */
static const struct
{
	const char *label;
	bool unique;
	const char *definition;
} indexes[] = {
	{"plan", false,
	 "(queue COLLATE \"C\", coalesce(max, 2147483647), priority, role, role_id, dt, id)"
	 " WHERE state = 'PLAN' AND waits IS NULL"},
	{"work", false,
	 "(id) WHERE state = 'WORK' OR (state = 'PLAN' AND crashed > 0)"
	 " OR (state = 'STOP' AND stop IS NULL AND start IS NOT NULL)"},
	{"active", false,
	 "(((coalesce(planned, dt) AT TIME ZONE 'UTC') + active))"
	 " WHERE state = 'PLAN' AND waits IS NULL AND active < interval '100 years'"},
	{"waits", false, "(waits) WHERE waits IS NOT NULL"},
	{"after", false,
	 "USING gin (after) WITH (fastupdate = off)"
	 " WHERE (waits IS NOT NULL) IS TRUE AND cardinality(after) > 1"},
	{"key", true, "(queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')"},
	{"flow", true, "(flow, step) WHERE flow IS NOT NULL"},
};

/*
 * Indexes that this process does not create again, because the created index was not the requested
 * one.  It remembers them for the last table only.
 */
static struct
{
	Oid relid;
	uint32 which; /* a bit for each */
} skipped;

/* Parse and analyze the statement that creates an index. */
static IndexStmt *
analyze_definition(Oid relid, const char *sql)
{
	RawStmt *raw = linitial_node(RawStmt, raw_parser(sql, RAW_PARSE_DEFAULT));

	return transformIndexStmt(relid, castNode(IndexStmt, raw->stmt), sql);
}

/* An expression, or a list of expressions, that pg_index stores for an index; NULL: none. */
static Node *
stored_node(HeapTuple tuple, AttrNumber attribute)
{
	bool isnull;
	Datum value = SysCacheGetAttr(INDEXRELID, tuple, attribute, &isnull);

	return isnull ? NULL : stringToNode(TextDatumGetCString(value));
}

/*
 * Does this key of an index match the wanted one?  It is a column, or the first of the expressions
 * not matched yet.
 */
static bool
is_key(Relation rel, Relation index, int number, const IndexElem *elem, List **expressions)
{
	AttrNumber column = index->rd_index->indkey.values[number];
	Oid collation;
	Oid type;

	if (column != 0)
	{
		if (elem->name == NULL || get_attnum(RelationGetRelid(rel), elem->name) != column)
			return false;
		type = TupleDescAttr(RelationGetDescr(rel), column - 1)->atttypid;
		collation = TupleDescAttr(RelationGetDescr(rel), column - 1)->attcollation;
	}
	else
	{
		Node *expression = linitial(*expressions);

		*expressions = list_delete_first(*expressions);
		if (elem->expr == NULL || !equal(expression, elem->expr))
			return false;
		type = exprType(expression);
		collation = exprCollation(expression);
	}
	if (elem->collation)
		collation = get_collation_oid(elem->collation, false);
	return index->rd_indcollation[number] == collation && index->rd_indoption[number] == 0 &&
		   index->rd_opfamily[number] ==
			   get_opclass_family(GetDefaultOpClass(type, index->rd_rel->relam));
}

/* Does an index have the wanted keys and condition? */
static bool
is_wanted(Relation rel, Relation index, const IndexStmt *wanted)
{
	HeapTuple tuple = index->rd_indextuple;
	List *expressions = (List *) stored_node(tuple, Anum_pg_index_indexprs);
	ListCell *cell;

	if (index->rd_rel->relam != get_index_am_oid(wanted->accessMethod, false) ||
		!index->rd_index->indisvalid || (wanted->unique && !index->rd_index->indisunique) ||
		index->rd_index->indnkeyatts != list_length(wanted->indexParams) ||
		!equal(stored_node(tuple, Anum_pg_index_indpred), wanted->whereClause))
		return false;
	foreach(cell, wanted->indexParams)
		if (!is_key(rel, index, foreach_current_index(cell), lfirst_node(IndexElem, cell),
					&expressions))
			return false;
	return true;
}

/* Is an index on the wanted columns, whatever else differs, even if it is invalid? */
static bool
is_lookalike(Relation rel, Relation index, const IndexStmt *wanted)
{
	ListCell *cell;

	if (index->rd_index->indnkeyatts != list_length(wanted->indexParams))
		return false;
	foreach(cell, wanted->indexParams)
	{
		IndexElem *elem = lfirst_node(IndexElem, cell);
		AttrNumber column = elem->name ? get_attnum(RelationGetRelid(rel), elem->name) : 0;

		if (index->rd_index->indkey.values[foreach_current_index(cell)] != column)
			return false;
	}
	return true;
}

/*
 * Find the wanted index of the table, or InvalidOid.  *lookalikes is the number of indexes on the
 * same columns.
 */
static Oid
find_index(Oid relid, const IndexStmt *wanted, int *lookalikes)
{
	Relation rel = relation_open(relid, NoLock);
	List *all = RelationGetIndexList(rel);
	Oid found = InvalidOid;
	ListCell *cell;

	*lookalikes = 0;
	foreach(cell, all)
	{
		Relation index = index_open(lfirst_oid(cell), AccessShareLock);

		*lookalikes += is_lookalike(rel, index, wanted);
		if (!OidIsValid(found) && is_wanted(rel, index, wanted))
			found = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	relation_close(rel, NoLock);
	return found;
}

static void
create_index(Oid relid, int which, const char *name)
{
	char *index = ChooseRelationName(get_rel_name(relid), indexes[which].label, "idx",
									 get_rel_namespace(relid), false);
	char *sql = psprintf("CREATE %s INDEX %s ON %s %s", indexes[which].unique ? "UNIQUE" : "",
						 quote_identifier(index), name, indexes[which].definition);

	ddl_run(sql);
}

/*
 * The created index is not the wanted one, for whatever reason.  If it were created again at every
 * try, it would fill the disk.  The scheduler continues without it, however slow that is.
 */
static void
skip_index(Oid relid, int which, const char *name)
{
	if (skipped.relid != relid)
		skipped.which = 0;
	skipped.relid = relid;
	skipped.which |= 1U << which;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("an index of the task table %s is not what it was made to be", name),
			 errdetail("It was to be %s.  It is not made again.", indexes[which].definition),
			 errhint("Look for event triggers and for invalid indexes, remove them, and reload.")));
}

/* Create the missing ones of the indexes that our statements need.  The caller has locked the
 * table.
 */
void
indexes_complete(Oid relid, const char *name)
{
	bool partitioned = get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE;
	int lookalikes;
	int i;

	Assert(owner_acts());
	Assert(compat_relation_locked(relid));
	for (i = 0; i < (int) lengthof(indexes); i++)
	{
		IndexStmt *wanted;

		/* a unique index would have to contain the partition key */
		if (indexes[i].unique && partitioned)
			continue;
		if (skipped.relid == relid && (skipped.which & (1U << i)) != 0)
			continue;
		wanted = analyze_definition(relid, psprintf("CREATE %s INDEX ON %s %s",
													indexes[i].unique ? "UNIQUE" : "", name,
													indexes[i].definition));
		if (OidIsValid(find_index(relid, wanted, &lookalikes)))
			continue;
		if (lookalikes < LOOKALIKES_MAX)
		{
			create_index(relid, i, name);
			CommandCounterIncrement();
			if (OidIsValid(find_index(relid, wanted, &lookalikes)))
				continue;
		}
		skip_index(relid, i, name);
	}
}
