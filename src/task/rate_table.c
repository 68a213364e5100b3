/*
 * rate_table.c
 *		The rate table: what is remembered of the starts in queues with a rate.
 *
 * The scheduler writes it with its claims, so that a rate holds across restarts and crashes.  It is
 * beside the task table, has the same owner, and is created when the first queue gets a rate.
 *
 * Every function runs inside a transaction of the caller, as the owner of the task table.  This
 * file does not know what is remembered, and decides nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
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
#include "task/rate_table.h"
#include "task/relation.h"
#include "task/statement.h"
#include "task/watch.h"

static const struct
{
	const char *name;
	Oid type;
} columns[] = {{"queue", TEXTOID}, {"until", TIMESTAMPTZOID}, {"image", BYTEAOID}};

/* clang-format off */

static const char *const definitions[] = {
	"CREATE TABLE %s (queue pg_catalog.text PRIMARY KEY, until pg_catalog.timestamptz NOT NULL,"
	" image pg_catalog.bytea NOT NULL) WITH (fillfactor = 50)",
	"ALTER TABLE %s ALTER COLUMN image SET STORAGE PLAIN",
	"COMMENT ON TABLE %s IS"
	" 'written by pg_task: the last starts in the queues that have a rate'",
};

static const Statement read_rows = {STATEMENT_RATES,
	"SELECT r.queue, r.until, r.image FROM {rows} AS r WHERE r.queue >= $from"
	" ORDER BY r.queue LIMIT $limit"};

static const Statement write_rows = {STATEMENT_WRITE_RATES,
	"INSERT INTO {table} AS r (queue, until, image)"
	" SELECT n.queue, n.until, n.image"
	"   FROM ROWS FROM (unnest($queues), unnest($untils), unnest($images))"
	"        AS n (queue, until, image)"
	" ON CONFLICT (queue) DO UPDATE SET until = excluded.until, image = excluded.image"};

static const Statement remove_rows = {STATEMENT_REMOVE_RATES,
	"DELETE FROM {rows} AS r WHERE r.queue = ANY ($queues)"};

/* clang-format on */

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

/* Why can this relation not be the rate table?  NULL: it can. */
static char *
find_fault(Relation rel, Oid owner)
{
	char *fault = relation_fault(rel, NIL, relation_parents(RelationGetRelid(rel)));
	int i;

	if (fault)
		return fault;
	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		return "It is not a plain table.";
	if (rel->rd_rel->relowner != owner)
		return "It has another owner than the task table.";
	for (i = 0; i < (int) lengthof(columns); i++)
	{
		AttrNumber number = get_attnum(RelationGetRelid(rel), columns[i].name);

		if (number == InvalidAttrNumber)
			return psprintf("It has no column \"%s\".", columns[i].name);
		if (get_atttype(RelationGetRelid(rel), number) != columns[i].type)
			return psprintf("The type of its column \"%s\" is another.", columns[i].name);
	}
	if (!has_unique_index(rel, get_attnum(RelationGetRelid(rel), columns[0].name)))
		return "Its column \"queue\" is not unique.";
	return NULL;
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

/* Create it.  False if the owner may not. */
static bool
create_table(Oid schema, const char *name)
{
	int i;

	if (!compat_may_create_in(schema, GetUserId()))
		return false;
	SPI_connect();
	for (i = 0; i < (int) lengthof(definitions); i++)
		ddl_run(psprintf(definitions[i], name));
	revoke_grants(name);
	SPI_finish();
	return true;
}

/* Describe the table for statement_execute. */
static TaskTable *
describe_table(Relation rel, const char *name, MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "pg_task rates", ALLOCSET_SMALL_SIZES);
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
 * Find the rate table, or create it, and describe it in a child of the memory context.  From now on
 * watch_changed reports its changes, too.  NULL if it cannot be used: *fault says why.
 */
TaskTable *
rate_table_prepare(const TaskTable *table, MemoryContext context, char **fault)
{
	Oid schema = get_rel_namespace(table->relid);
	char *relname = makeObjectName(get_rel_name(table->relid), "rate", NULL);
	char *name = quote_qualified_identifier(get_namespace_name(schema), relname);
	TaskTable *rates = NULL;
	Relation rel;

	Assert(owner_acts() && GetUserId() == table->owner);
	*fault = NULL;
	if (!OidIsValid(get_relname_relid(relname, schema)) && !create_table(schema, name))
	{
		*fault =
			psprintf("%s does not exist, and the owner of the task table may not create it.", name);
		return NULL;
	}
	CommandCounterIncrement();
	rel = try_relation_open(get_relname_relid(relname, schema), AccessShareLock);
	if (rel == NULL)
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the rate table has changed")));
	watch_also(RelationGetRelid(rel));
	*fault = find_fault(rel, table->owner);
	if (*fault)
		*fault = psprintf("%s is not usable. %s", name, *fault);
	else
		rates = describe_table(rel, name, context);
	relation_close(rel, NoLock);
	return rates;
}

/* Copy the image of a row of the last result into the context "where". */
static void
copy_image(MemoryContext where, uint64 row, RateRow *copy)
{
	bytea *image = DatumGetByteaPP(statement_value(row, 3));

	copy->length = (int) VARSIZE_ANY_EXHDR(image);
	copy->image =
		memcpy(MemoryContextAlloc(where, copy->length + 1), VARDATA_ANY(image), copy->length);
}

/*
 * Read rows in the order of their queues, from this one on ("": from the first, which may be that).
 * Returns their number; fewer than the limit mean that there are no more.
 */
int
rate_rows_read(const TaskTable *rates, const char *from, int limit, RateRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;
	int i;

	statement_begin(&args);
	arg_text(&args, "from", from);
	arg_int32(&args, "limit", limit);
	count = (int) statement_execute(&read_rows, rates, &args);
	*rows = MemoryContextAlloc(caller, Max(count, 1) * sizeof(RateRow));
	for (i = 0; i < count; i++)
	{
		(*rows)[i].queue = statement_text(caller, i, 1);
		(*rows)[i].until = DatumGetTimestampTz(statement_value(i, 2));
		copy_image(caller, i, &(*rows)[i]);
	}
	statement_end();
	return count;
}

static Datum
make_bytea(const RateRow *row)
{
	bytea *value = palloc(VARHDRSZ + row->length);

	SET_VARSIZE(value, VARHDRSZ + row->length);
	memcpy(VARDATA(value), row->image, row->length);
	return PointerGetDatum(value);
}

/* Write these rows, of different queues. */
void
rate_rows_write(const TaskTable *rates, const RateRow *rows, int count)
{
	StatementArgs args;
	Datum *queues;
	Datum *untils;
	Datum *images;
	int i;

	statement_begin(&args);
	queues = arg_array(&args, "queues", TEXTOID, count);
	untils = arg_array(&args, "untils", TIMESTAMPTZOID, count);
	images = arg_array(&args, "images", BYTEAOID, count);
	for (i = 0; i < count; i++)
	{
		queues[i] = CStringGetTextDatum(rows[i].queue);
		untils[i] = TimestampTzGetDatum(rows[i].until);
		images[i] = make_bytea(&rows[i]);
	}
	(void) statement_execute(&write_rows, rates, &args);
	statement_end();
}

/* Remove the rows of these queues. */
void
rate_rows_remove(const TaskTable *rates, const RateRow *rows, int count)
{
	StatementArgs args;
	Datum *queues;
	int i;

	statement_begin(&args);
	queues = arg_array(&args, "queues", TEXTOID, count);
	for (i = 0; i < count; i++)
		queues[i] = CStringGetTextDatum(rows[i].queue);
	(void) statement_execute(&remove_rows, rates, &args);
	statement_end();
}
