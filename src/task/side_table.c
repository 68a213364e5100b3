/*
 * side_table.c
 *		The tables beside the task table: the check of all of them; and those that pg_task alone
 *		writes, found by name and created.
 *
 * Each has the schema and the owner of the task table, and its name with a suffix.  Every function
 * but side_table_fault, side_table_name and side_table_open runs inside a transaction of the
 * caller, as that owner.
 * This file knows no column of them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "compat.h"
#include "task/ddl.h"
#include "task/owner.h"
#include "task/relation.h"
#include "task/side_table.h"
#include "task/watch.h"

static char other_owner[] = "It has another owner than the task table.";

/* Return the name of the table with this suffix beside a task table, without its schema. */
char *
side_table_name(Oid relid, const char *suffix)
{
	return makeObjectName(get_rel_name(relid), suffix, NULL);
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

/*
 * Why can this relation not be a table with these columns beside a task table of this owner?  The
 * first column is to be unique.  NULL: it can, once it has those that are not required.
 */
char *
side_table_fault(Relation rel, Oid owner, const ColumnDefinition *columns, int count)
{
	char *fault = relation_fault(rel, NIL, relation_parents(RelationGetRelid(rel)));

	if (fault)
		return fault;
	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		return "It is not a plain table.";
	if (rel->rd_rel->relowner != owner)
		return other_owner;
	fault = columns_fault(rel, columns, count);
	if (fault == NULL && !has_unique_index(rel, get_attnum(RelationGetRelid(rel), columns[0].name)))
		fault = psprintf("Its column \"%s\" is not unique.", columns[0].name);
	return fault;
}

/*
 * Take away what the owner's default privileges give: they are meant for tables that others use.
 * The loop is bounded by the roles that they name.
 */
static void
revoke_grants(const char *name)
{
	SPITupleTable *grants;
	uint64 i;

	ddl_run(psprintf("SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC'"
					 "                ELSE quote_ident(pg_get_userbyid(a.grantee)) END"
					 "  FROM pg_class AS c, aclexplode(c.relacl) AS a"
					 " WHERE c.oid = %s::regclass AND a.grantee <> c.relowner",
					 quote_literal_cstr(name)));
	grants = SPI_tuptable;
	for (i = 0; i < grants->numvals; i++)
		ddl_run(psprintf("REVOKE ALL ON %s FROM %s", name,
						 SPI_getvalue(grants->vals[i], grants->tupdesc, 1)));
}

/* A table that is to be created. */
typedef struct Creation
{
	const SideTable *side;
	const char *name;
} Creation;

static void
create_table(void *arg)
{
	const Creation *creation = arg;
	int i;

	SPI_connect();
	for (i = 0; i < creation->side->ndefinitions; i++)
		ddl_run(psprintf(creation->side->definitions[i], creation->name));
	revoke_grants(creation->name);
	SPI_finish();
}

/* Create it, if the owner may.  Returns NULL, or why it does not exist. */
static char *
try_to_create(const SideTable *side, Oid schema, const char *name)
{
	Creation creation = {side, name};
	char *fault;

	if (!compat_may_create_in(schema, GetUserId()))
		return psprintf("%s does not exist, and the owner of the task table may not create it.",
						name);
	fault = ddl_try(create_table, &creation);
	return fault ? psprintf("%s does not exist. %s", name, fault) : NULL;
}

/* Describe the table for statement_execute. */
static TaskTable *
describe_table(Relation rel, const char *name, MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "pg_task table", ALLOCSET_SMALL_SIZES);
	TaskTable *table = MemoryContextAllocZero(context, sizeof(TaskTable));

	table->context = context;
	table->relid = RelationGetRelid(rel);
	table->owner = rel->rd_rel->relowner;
	table->name = MemoryContextStrdup(context, name);
	table->rows = MemoryContextStrdup(context, psprintf("ONLY %s", name));
	table->inherited = "";
	table->whole = true;
	return table;
}

/*
 * Find the table, or create it, and describe it in a child of the memory context.  From now on
 * watch_changed reports its changes, too.  NULL if it cannot be used: *fault says why.  A relation
 * of another owner is not even locked: he may keep it locked.  So its changes are not reported.
 */
TaskTable *
side_table_prepare(const SideTable *side, const TaskTable *table, MemoryContext context,
				   char **fault)
{
	Oid schema = get_rel_namespace(table->relid);
	char *relname = side_table_name(table->relid, side->suffix);
	char *name = quote_qualified_identifier(get_namespace_name(schema), relname);
	TaskTable *result = NULL;
	Relation rel;
	Oid relid;

	Assert(owner_acts() && GetUserId() == table->owner);
	*fault = NULL;
	if (!OidIsValid(get_relname_relid(relname, schema)))
		*fault = try_to_create(side, schema, name);
	if (*fault)
		return NULL;
	CommandCounterIncrement();
	relid = get_relname_relid(relname, schema);
	if (get_rel_relkind(relid) != '\0' && !relation_is_owned_by(relid, table->owner))
	{
		*fault = psprintf("%s is not usable. %s", name, other_owner);
		return NULL;
	}
	rel = try_relation_open(relid, AccessShareLock);
	if (rel == NULL)
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("%s has changed", name)));
	watch_also(RelationGetRelid(rel));
	*fault = side_table_fault(rel, table->owner, side->columns, side->ncolumns);
	if (*fault)
		*fault = psprintf("%s is not usable. %s", name, *fault);
	else
		result = describe_table(rel, name, context);
	relation_close(rel, NoLock);
	return result;
}

/*
 * For a user's session: open the table beside a task table of this owner, for reading.  NULL if
 * there is none that side_table_prepare takes.  The caller executes no code of anybody, and decides
 * what the user is told.
 */
Relation
side_table_open(const SideTable *side, Oid relid, Oid owner)
{
	Oid found = get_relname_relid(side_table_name(relid, side->suffix), get_rel_namespace(relid));
	Relation rel = NULL;

	if (OidIsValid(found) && relation_is_owned_by(found, owner))
		rel = try_relation_open(found, AccessShareLock);
	if (rel == NULL || side_table_fault(rel, owner, side->columns, side->ncolumns) == NULL)
		return rel;
	relation_close(rel, AccessShareLock);
	return NULL;
}
