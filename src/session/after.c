/*
 * after.c
 *		The tasks for which a row waits: checks the column "after", and chooses the first task
 *		that the row watches.
 *
 * A user may wait for rows that he sees.  They are read with the rights of the current user, as by
 * a query of his.  No row is locked: what ends or is removed meanwhile, the scheduler finds when
 * the transaction has committed.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "compat.h"
#include "session/after.h"

/* A row waits for this many tasks at most. */
#define AFTER_MAX 16384

/* The ids in the column "after". */
typedef struct After
{
	int count;
	int64 *ids;
	ArrayType *array;
} After;

/*
 * The statement that reads the tasks.  Static, because it is kept from one row to the next: with
 * the plan an INSERT of many rows takes half of the time.
 */
static struct
{
	char *rows; /* the table, in SQL; NULL: there is no plan */
	SPIPlanPtr plan;
	int64 watched; /* what the last row watches, if this transaction has inserted it: */
	LocalTransactionId inserted;
} reader;

static void
reject_after(const TriggerRow *row, const char *rule)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));

	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION), errmsg("\"after\" of a task must %s", rule),
					errdetail("The row has id " INT64_FORMAT ".", id),
					errtablecol(row->rel, trigger_column(row->rel, COLUMN_AFTER))));
}

/* Read the column.  Returns false if it is NULL or empty. */
static bool
read_after(const TriggerRow *row, After *after)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_AFTER, &isnull);
	int64 id;
	int i;

	if (isnull)
		return false;
	after->array = DatumGetArrayTypeP(value);
	after->count = ArrayGetNItems(ARR_NDIM(after->array), ARR_DIMS(after->array));
	if (after->count == 0)
		return false;
	if (ARR_NDIM(after->array) != 1)
		reject_after(row, "have one dimension");
	if (array_contains_nulls(after->array))
		reject_after(row, "contain no NULL");
	if (after->count > AFTER_MAX)
		reject_after(row, "name at most " CppAsString2(AFTER_MAX) " tasks");
	after->ids = (int64 *) ARR_DATA_PTR(after->array);
	id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));
	for (i = 0; i < after->count; i++)
		if (!isnull && after->ids[i] == id)
			reject_after(row, "not name the task itself");
	return true;
}

/* Prepare the statement for this table, unless that was done for the row before. */
static void
prepare_reader(Relation rel)
{
	Oid types[] = {INT8ARRAYOID};
	Oid root = trigger_root_table(rel);
	char *name =
		quote_qualified_identifier(get_namespace_name(get_rel_namespace(root)), get_rel_name(root));
	char *rows = psprintf("%s%s", get_rel_relkind(root) == RELKIND_RELATION ? "ONLY " : "", name);
	SPIPlanPtr plan;

	if (reader.rows && strcmp(reader.rows, rows) == 0)
		return;
	if (reader.plan)
		SPI_freeplan(reader.plan);
	reader.plan = NULL;
	plan = SPI_prepare(psprintf("SELECT t.id, t.state OPERATOR(pg_catalog.=)"
								"       ANY (ARRAY['PLAN'::pg_catalog.text, 'WORK']), t.xmin"
								"  FROM %s AS t"
								" WHERE t.id OPERATOR(pg_catalog.=) ANY ($1)",
								rows),
					   1, types);
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement on %s", rows);
	if (reader.rows)
		pfree(reader.rows);
	reader.rows = NULL;
	reader.rows = MemoryContextStrdup(TopMemoryContext, rows);
	SPI_keepplan(plan);
	reader.plan = plan;
}

/* A task in "after" that the current user sees. */
typedef struct SeenTask
{
	int64 id;
	bool unended;
	bool inserted; /* by this transaction */
} SeenTask;

static int
compare_seen(const void *a, const void *b)
{
	int64 left = ((const SeenTask *) a)->id;
	int64 right = ((const SeenTask *) b)->id;

	return left < right ? -1 : left > right;
}

/* Read those of the tasks that the current user sees, in the order of their ids. */
static int
read_tasks(Relation rel, const After *after, SeenTask **tasks)
{
	Datum value = PointerGetDatum(after->array);
	bool isnull;
	int count;
	int i;

	prepare_reader(rel);
	if (SPI_execute_plan(reader.plan, &value, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read tasks");
	count = (int) SPI_processed;
	*tasks = palloc((count + 1) * sizeof(SeenTask));
	for (i = 0; i < count; i++)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;

		(*tasks)[i].id = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		(*tasks)[i].unended = DatumGetBool(SPI_getbinval(tuple, desc, 2, &isnull)) && !isnull;
		(*tasks)[i].inserted = TransactionIdIsCurrentTransactionId(
			DatumGetTransactionId(SPI_getbinval(tuple, desc, 3, &isnull)));
	}
	if (count > 1)
		qsort(*tasks, count, sizeof(SeenTask), compare_seen);
	return count;
}

/*
 * Check that the current user sees all tasks in "after".  Returns the last of them that has not
 * ended, or the last one.
 */
static int64
check_tasks(const TriggerRow *row, const After *after)
{
	int watched = after->count - 1;
	bool unended = false;
	SeenTask *tasks;
	int count;
	int i;

	SPI_connect();
	count = read_tasks(row->rel, after, &tasks);
	for (i = after->count - 1; i >= 0; i--)
	{
		SeenTask key = {.id = after->ids[i]};
		SeenTask *task =
			count > 0 ? bsearch(&key, tasks, count, sizeof(SeenTask), compare_seen) : NULL;

		if (task == NULL)
			ereport(ERROR, (errcode(ERRCODE_FOREIGN_KEY_VIOLATION),
							errmsg("there is no task " INT64_FORMAT " for which this one could"
								   " wait",
								   after->ids[i]),
							errdetail("It is not in the table, or you do not see it."),
							errtablecol(row->rel, trigger_column(row->rel, COLUMN_AFTER))));
		if (i == after->count - 1 || (task->unended && !unended))
		{
			watched = i;
			reader.watched = task->id;
			reader.inserted = task->inserted ? COMPAT_LOCAL_XID : InvalidLocalTransactionId;
		}
		unended |= task->unended;
	}
	SPI_finish();
	return after->ids[watched];
}

/*
 * Has this transaction inserted, or changed, this task, which the row before watches?  Then nobody
 * else ends it before the commit.
 */
bool
after_inserted_here(int64 id)
{
	return reader.watched == id && reader.inserted == COMPAT_LOCAL_XID;
}

/*
 * Which task does this row watch first?  Returns false if it waits for none.  "check": the tasks
 * must exist, and the current user must see them.  Among several the last one is watched: tasks
 * mostly end in the order in which they were planned.
 */
bool
after_watch(const TriggerRow *row, bool check, int64 *watched)
{
	After after;

	reader.inserted = InvalidLocalTransactionId;
	if (!read_after(row, &after))
		return false;
	*watched = check ? check_tasks(row, &after) : after.ids[after.count - 1];
	return true;
}
