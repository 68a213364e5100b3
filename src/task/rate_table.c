/*
 * rate_table.c
 *		The rate table: what is remembered of the starts in queues with a rate.
 *
 * The scheduler writes it with its claims, so that a rate holds across restarts and crashes.  It is
 * beside the task table, has the same owner, and is created when the first queue gets a rate.
 *
 * Every function but rate_row_find runs inside a transaction of the caller, as the owner of the
 * task table.  This file does not know what is remembered, and decides nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "task/rate_table.h"
#include "task/side_table.h"
#include "task/statement.h"

static const ColumnDefinition columns[] = {
	{"queue", TEXTOID, "", COLUMN_REQUIRED | COLUMN_NOT_NULL, NULL},
	{"until", TIMESTAMPTZOID, "", COLUMN_REQUIRED | COLUMN_NOT_NULL, NULL},
	{"image", BYTEAOID, "", COLUMN_REQUIRED | COLUMN_NOT_NULL, NULL}};

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

static const SideTable rate_table = {"rate", lengthof(columns), columns, lengthof(definitions),
									 definitions};

/*
 * Find the rate table, or create it, and describe it in a child of the memory context.  NULL if it
 * cannot be used: *fault says why.
 */
TaskTable *
rate_table_prepare(const TaskTable *table, MemoryContext context, char **fault)
{
	return side_table_prepare(&rate_table, table, context, fault);
}

/* Copy an image into the context "where". */
static void
copy_image(MemoryContext where, Datum value, RateRow *copy)
{
	bytea *image = DatumGetByteaPP(value);

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
		(*rows)[i].until = statement_time(i, 2);
		copy_image(caller, statement_value(i, 3, BYTEAOID), &(*rows)[i]);
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

/*
 * Return the index of the primary key, if it is one by this column of text as the server makes it.
 * InvalidOid: there is none, and the whole table has to be read.
 */
static Oid
find_index(Relation rel, AttrNumber column)
{
	Relation index;
	bool usable;
	Oid relid;

	list_free(RelationGetIndexList(rel)); /* finds rd_pkindex, too */
	relid = rel->rd_pkindex;
	if (!OidIsValid(relid))
		return InvalidOid;
	index = index_open(relid, AccessShareLock);
	usable = index->rd_index->indisvalid && index->rd_index->indkey.values[0] == column &&
			 index->rd_opfamily[0] == TEXT_BTREE_FAM_OID;
	index_close(index, AccessShareLock);
	return usable ? relid : InvalidOid;
}

/* Find the row of a queue in a table that is open and locked. */
static bool
find_row(Relation rel, const char *queue, RateRow *row)
{
	AttrNumber queue_number = get_attnum(RelationGetRelid(rel), "queue");
	AttrNumber image_number = get_attnum(RelationGetRelid(rel), "image");
	Oid collation = TupleDescAttr(RelationGetDescr(rel), queue_number - 1)->attcollation;
	Oid index = find_index(rel, queue_number);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;
	bool isnull = true;

	ScanKeyEntryInitialize(&key, 0, queue_number, BTEqualStrategyNumber, InvalidOid, collation,
						   F_TEXTEQ, CStringGetTextDatum(queue));
	scan = systable_beginscan(rel, index, OidIsValid(index), GetActiveSnapshot(), 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum image = heap_getattr(tuple, image_number, RelationGetDescr(rel), &isnull);

		if (!isnull)
			copy_image(CurrentMemoryContext, image, row);
	}
	systable_endscan(scan);
	return !isnull;
}

/*
 * For a user's session: read the image of a queue from the table beside this task table.  False if
 * there is none.  Reads the table itself, so no policy, rule or function of anybody runs, and the
 * rights of the caller do not matter: the caller decides what he is told.
 */
bool
rate_row_find(Oid relid, Oid owner, const char *queue, RateRow *row)
{
	Relation rel = side_table_open(&rate_table, relid, owner);
	bool found;

	if (rel == NULL)
		return false;
	memset(row, 0, sizeof(RateRow));
	row->queue = queue;
	found = find_row(rel, queue, row);
	relation_close(rel, AccessShareLock);
	return found;
}
