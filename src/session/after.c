/*
 * after.c
 *		The tasks for which a row waits: checks the column "after", or finds the tasks of the
 *		steps in "needs", and chooses the first task that the row watches.
 *
 * A user may wait for rows that he sees.  They are read with the rights of the current user, as by
 * a query of his.  No row is locked: what ends meanwhile, the scheduler finds when the transaction
 * has committed.  For a transaction that is removing one, this one waits.
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
#include "utils/rel.h"

#include "compat.h"
#include "session/after.h"
#include "session/kept_plan.h"
#include "session/removal.h"

/*
 * A row waits for this many tasks at most: to judge it, the scheduler may have to read all of them,
 * and nothing starts meanwhile.
 */
#define AFTER_MAX 10000

/* The ids in the column "after". */
typedef struct After
{
	int count;
	int64 *ids;
	ArrayType *array;
} After;

/*
 * The statements that read the tasks by their ids, and by their steps.  Static, because they are
 * kept from one row to the next: with the plan an INSERT of many rows takes half of the time.
 */
static KeptPlan reader;
static KeptPlan step_reader;

/* What the last row watches, if this transaction has inserted that.  Static, as the plans. */
static struct
{
	int64 watched;
	LocalTransactionId inserted;
} last_row;

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

#define UNENDED "t.state OPERATOR(pg_catalog.=) ANY (ARRAY['PLAN'::pg_catalog.text, 'WORK'])"

/*
 * Execute a statement on the table that a user names; it has a %s for that.  Returns the number of
 * rows.
 */
static int
execute_reader(KeptPlan *kept, Relation rel, const char *sql, int count, Oid *types, Datum *values)
{
	Oid root = trigger_root_table(rel);
	char *name =
		quote_qualified_identifier(get_namespace_name(get_rel_namespace(root)), get_rel_name(root));
	char *rows = psprintf("%s%s", get_rel_relkind(root) == RELKIND_RELATION ? "ONLY " : "", name);

	if (kept_plan_execute(kept, psprintf(sql, rows), root, true, count, types, values) !=
		SPI_OK_SELECT)
		elog(ERROR, "could not read %s", rows);
	return (int) SPI_processed;
}

/*
 * The columns of a task that tell whether somebody has changed, locked or removed it since; the
 * first of them has this number.
 */
#define VERSION "t.tableoid, t.ctid, t.xmax"

/*
 * Wait until no other transaction is removing a task that was read.  Returns false if the tasks
 * must be read again.  A row that nobody has changed since it was inserted is there, unless an old
 * snapshot shows it.
 */
static bool
await_removal(HeapTuple tuple, TupleDesc desc, int first)
{
	bool isnull;
	Oid relid = DatumGetObjectId(SPI_getbinval(tuple, desc, first, &isnull));
	ItemPointerData tid;

	if (isnull || (!TransactionIdIsValid(
					   DatumGetTransactionId(SPI_getbinval(tuple, desc, first + 2, &isnull))) &&
				   !IsolationUsesXactSnapshot()))
		return true;
	tid = *(ItemPointer) DatumGetPointer(SPI_getbinval(tuple, desc, first + 1, &isnull));
	return removal_wait(relid, &tid);
}

/* The same for all tasks that the last statement has read. */
static bool
await_removals(int first)
{
	uint64 i;

	for (i = 0; i < SPI_processed; i++)
		if (!await_removal(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, first))
			return false;
	return true;
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
	Oid types[] = {INT8ARRAYOID};
	Datum value = PointerGetDatum(after->array);
	bool isnull;
	int count;
	int i;

	do
		count = execute_reader(&reader, rel,
							   "SELECT t.id, " UNENDED ", t.xmin, " VERSION " FROM %s AS t"
							   " WHERE t.id OPERATOR(pg_catalog.=) ANY ($1)",
							   1, types, &value);
	while (!await_removals(4));
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
			last_row.watched = task->id;
			last_row.inserted = task->inserted ? COMPAT_LOCAL_XID : InvalidLocalTransactionId;
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
	return last_row.watched == id && last_row.inserted == COMPAT_LOCAL_XID;
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

	last_row.inserted = InvalidLocalTransactionId;
	if (!read_after(row, &after))
		return false;
	removal_expect_waiting(trigger_root_table(row->rel));
	*watched = check ? check_tasks(row, &after) : after.ids[after.count - 1];
	return true;
}

static void
reject_needs(const TriggerRow *row, const char *rule)
{
	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION), errmsg("\"needs\" of a task must %s", rule),
					errtablecol(row->rel, trigger_column(row->rel, COLUMN_NEEDS))));
}

/* Check the column, and return how many steps it names. */
static int
count_needs(const TriggerRow *row, ArrayType *needs)
{
	int count = ArrayGetNItems(ARR_NDIM(needs), ARR_DIMS(needs));

	if (count == 0)
		return 0;
	if (ARR_NDIM(needs) != 1)
		reject_needs(row, "have one dimension");
	if (array_contains_nulls(needs))
		reject_needs(row, "contain no NULL");
	if (count > AFTER_MAX)
		reject_needs(row, "name at most " CppAsString2(AFTER_MAX) " steps");
	if (trigger_is_null(row, COLUMN_FLOW))
		reject_needs(row, "be NULL without a \"flow\"");
	return count;
}

/* Read the tasks of these steps of the flow of a row, in the order of the steps. */
static int
read_steps(const TriggerRow *row, ArrayType *needs)
{
	Oid types[] = {TEXTOID, TEXTARRAYOID};
	bool isnull;
	Datum values[] = {trigger_value(row, COLUMN_FLOW, &isnull), PointerGetDatum(needs)};

	int count;

	removal_expect_waiting(trigger_root_table(row->rel));
	do
		count = execute_reader(&step_reader, row->rel,
							   "SELECT n.step, t.id, " UNENDED ", " VERSION
							   "  FROM pg_catalog.unnest($2) WITH ORDINALITY AS n (step, n)"
							   "  LEFT JOIN %s AS t ON t.flow OPERATOR(pg_catalog.=) $1"
							   "   AND t.step OPERATOR(pg_catalog.=) n.step"
							   " ORDER BY n.n",
							   2, types, values);
	while (!await_removals(4));
	return count;
}

/*
 * Return the id of the task in a row that read_steps has read; "unended" if the task has not ended.
 */
static Datum
read_step(const TriggerRow *row, int i, bool *unended)
{
	HeapTuple tuple = SPI_tuptable->vals[i];
	TupleDesc desc = SPI_tuptable->tupdesc;
	bool isnull;
	Datum id;

	*unended = DatumGetBool(SPI_getbinval(tuple, desc, 3, &isnull)) && !isnull;
	id = SPI_getbinval(tuple, desc, 2, &isnull);
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_FOREIGN_KEY_VIOLATION),
				 errmsg("there is no step \"%s\" of the same flow", SPI_getvalue(tuple, desc, 1)),
				 errdetail("No row with this \"step\" was inserted before, or you do not see it."),
				 errtablecol(row->rel, trigger_column(row->rel, COLUMN_NEEDS))));
	return id;
}

/*
 * Find the tasks of the steps that a new row needs: rows of its flow that the current user sees,
 * inserted before.  Returns false if it needs none, or "after" says for which tasks it waits, as in
 * a row from a dump.  Sets *after to the tasks, and *watched to the one that the row watches first.
 */
bool
after_needs(const TriggerRow *row, Datum *after, int64 *watched)
{
	MemoryContext caller = CurrentMemoryContext;
	bool any = false;
	bool isnull;
	Datum value = trigger_value(row, COLUMN_NEEDS, &isnull);
	Datum *ids;
	int count;
	int i;

	if (isnull || !trigger_is_null(row, COLUMN_AFTER) ||
		count_needs(row, DatumGetArrayTypeP(value)) == 0)
		return false;
	SPI_connect();
	count = read_steps(row, DatumGetArrayTypeP(value));
	ids = palloc(Max(count, 1) * sizeof(Datum));
	for (i = 0; i < count; i++)
	{
		bool unended;

		ids[i] = read_step(row, i, &unended);
		if (unended || !any)
			*watched = DatumGetInt64(ids[i]);
		any |= unended;
	}
	MemoryContextSwitchTo(caller);
	*after = PointerGetDatum(
		construct_array(ids, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	SPI_finish();
	return true;
}
