/*
 * rate_table.c
 *		The rate table: the last claims of tasks of the queues that have a rate or a pause.
 *
 * The scheduler writes it with its claims, so that a rate holds across restarts and crashes.  It is
 * beside the task table, and has the same owner.
 * The table has times of the wall clock, its callers those of the monotonic one.
 *
 * Every function but rate_row_find runs inside a transaction of the caller, as the owner of the
 * task table.  This file decides nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "libpq/pqformat.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "task/rate_table.h"
#include "task/statement.h"

/* clang-format off */

static const Statement read_rows = {.sql =
	"SELECT r.queue, r.until, r.image FROM {rows} AS r"};

static const Statement write_rows = {.sql =
	"INSERT INTO {table} AS r (queue, until, image)"
	" SELECT n.queue, n.until, n.image"
	"   FROM ROWS FROM (unnest($queues), unnest($untils), unnest($images))"
	"        AS n (queue, until, image)"
	" ON CONFLICT (queue) DO UPDATE SET until = excluded.until, image = excluded.image"};

static const Statement remove_rows = {.sql =
	"DELETE FROM {rows} AS r WHERE r.until < $before"};

/* clang-format on */

/* The bytes of one claim in an image: its time, and the number of tasks. */
#define CLAIM_BYTES (sizeof(int64) + sizeof(int32))

static Datum
make_image(const RateRow *row, ClockNow now)
{
	StringInfoData image;
	int i;

	pq_begintypsend(&image);
	for (i = 0; i < row->count; i++)
	{
		if (row->claims[i].count == 0)
			continue;
		pq_sendint64(&image, (uint64) (now.wall + (row->claims[i].at.us - now.mono.us)));
		pq_sendint32(&image, (uint32) row->claims[i].count);
	}
	return PointerGetDatum(pq_endtypsend(&image));
}

/*
 * Read the claims of a row into the current memory context.  There are none in what make_image has
 * not made, which only the owner of the table can have written.
 */
static void
read_image(Datum value, TimestampTz until, ClockNow now, RateRow *row)
{
	bytea *bytes = DatumGetByteaPP(value);
	int length = (int) VARSIZE_ANY_EXHDR(bytes);
	int count = length / (int) CLAIM_BYTES;
	StringInfoData image = {.data = VARDATA_ANY(bytes), .len = length, .maxlen = length};
	TimestampTz last = 0;

	row->claims = palloc(Max(count, 1) * sizeof(RateClaim));
	row->count = 0;
	if (length % CLAIM_BYTES != 0 || count > RATE_CLAIMS_MAX)
		return;
	for (; row->count < count; row->count++)
	{
		TimestampTz at = pq_getmsgint64(&image);
		int tasks = (int) pq_getmsgint(&image, sizeof(int32));

		if (!IS_VALID_TIMESTAMP(at) || at < last || tasks <= 0 || !IS_VALID_TIMESTAMP(until))
			break;
		/* what is in the future was written before the clock was set back: it counts as now */
		row->claims[row->count].at.us = Max(now.mono.us - Max(now.wall - at, 0), 0);
		row->claims[row->count].count = tasks;
		last = at;
	}
	if (row->count < count)
		row->count = 0;
	row->keep = Min(Max(until - last, 0), RATE_KEEP_MAX);
}

/* Read all rows into the current memory context.  Returns their number. */
int
rate_rows_read(const TaskTable *rates, ClockNow now, RateRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;
	int i;

	statement_begin(&args);
	count = (int) statement_execute(&read_rows, rates, &args);
	MemoryContextSwitchTo(caller);
	*rows = palloc0(Max(count, 1) * sizeof(RateRow));
	for (i = 0; i < count; i++)
	{
		(*rows)[i].queue = statement_text(caller, i, 1);
		read_image(statement_value(i, 3, BYTEAOID), statement_time(i, 2), now, &(*rows)[i]);
	}
	statement_end();
	return count;
}

/* Write these rows, of different queues.  Each has a claim. */
void
rate_rows_write(const TaskTable *rates, const RateRow *rows, int count, ClockNow now)
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
		int64 last = rows[i].claims[rows[i].count - 1].at.us;

		queues[i] = CStringGetTextDatum(rows[i].queue);
		untils[i] = TimestampTzGetDatum(now.wall + (last - now.mono.us) + rows[i].keep);
		images[i] = make_image(&rows[i], now);
	}
	(void) statement_execute(&write_rows, rates, &args);
	statement_end();
}

/* Remove the rows of which nothing counted any more at this time.  Reads the whole table. */
void
rate_rows_remove(const TaskTable *rates, TimestampTz before)
{
	StatementArgs args;

	statement_begin(&args);
	arg_timestamp(&args, "before", before);
	(void) statement_execute(&remove_rows, rates, &args);
	statement_end();
}

/* Find the row of a queue in a table that is open and locked.  Reads the whole table. */
static bool
find_row(Relation rel, const char *queue, ClockNow now, RateRow *row)
{
	TupleDesc desc = RelationGetDescr(rel);
	AttrNumber queue_number = get_attnum(RelationGetRelid(rel), "queue");
	AttrNumber until_number = get_attnum(RelationGetRelid(rel), "until");
	AttrNumber image_number = get_attnum(RelationGetRelid(rel), "image");
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;
	bool no_until = true;
	bool no_image = true;

	ScanKeyEntryInitialize(&key, 0, queue_number, BTEqualStrategyNumber, InvalidOid,
						   TupleDescAttr(desc, queue_number - 1)->attcollation, F_TEXTEQ,
						   CStringGetTextDatum(queue));
	scan = systable_beginscan(rel, InvalidOid, false, GetActiveSnapshot(), 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum until = heap_getattr(tuple, until_number, desc, &no_until);
		Datum image = heap_getattr(tuple, image_number, desc, &no_image);

		if (!no_until && !no_image)
			read_image(image, DatumGetTimestampTz(until), now, row);
	}
	systable_endscan(scan);
	return !no_until && !no_image;
}

/*
 * For a user's session: read the claims of a queue from the table beside this task table.  False if
 * there are none.  Reads the table itself, so no policy, rule or function of anybody runs, and the
 * rights of the caller do not matter: the caller decides what is told.
 */
bool
rate_row_find(Oid relid, Oid owner, const char *queue, ClockNow now, RateRow *row)
{
	const char *fault;
	Relation rel = side_table_open(SIDE_RATE, relid, owner, true, &fault);
	bool found;

	if (rel == NULL)
		return false;
	memset(row, 0, sizeof(RateRow));
	row->queue = queue;
	found = find_row(rel, queue, now, row);
	relation_close(rel, NoLock);
	return found;
}
