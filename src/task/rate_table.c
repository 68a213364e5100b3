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

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "task/rate_table.h"
#include "task/side_table.h"
#include "task/statement.h"

static const SideColumn columns[] = {
	{"queue", TEXTOID}, {"until", TIMESTAMPTZOID}, {"image", BYTEAOID}};

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
