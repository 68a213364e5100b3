/*
 * after.c
 *		The tasks for which a row waits: checks the column "after", or finds the tasks of the
 *		steps in "needs", and chooses the first task that the row watches.
 *
 * A user may wait for rows that he sees.  They are read with the rights of the current user, as by
 * a query of his, and those that are not DONE are locked as by a foreign key: who removes one waits
 * for the end of this transaction, and then sees the row that waits for it (removal.c).  What ends
 * meanwhile, the scheduler finds when the transaction has committed.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "session/after.h"
#include "session/kept_plan.h"
#include "task/rows.h"

/*
 * A row waits for this many tasks at most: to judge it, the scheduler may have to read all of them,
 * and nothing starts meanwhile.
 */
#define AFTER_MAX 10000

/*
 * The statements that read the tasks by their ids, and by their steps.  Static, because they are
 * kept from one row to the next: with the plan an INSERT of many rows takes half of the time.
 */
static KeptPlan reader;
static KeptPlan step_reader;

/* ---- the tasks, as the current user sees them ---- */

/* What is read of a task: the first column is an id, or the name of a step. */
enum
{
	READ_KEY = 1,
	READ_ID,
	READ_UNENDED,
	READ_DONE,
	READ_XMIN,
	READ_TABLE,
	READ_TID
};

#define READ_COLUMNS                                                                     \
	"t.id, t.state OPERATOR(pg_catalog.=) ANY (ARRAY['PLAN'::pg_catalog.text, 'WORK'])," \
	" t.state OPERATOR(pg_catalog.=) 'DONE'::pg_catalog.text, t.xmin, t.tableoid, t.ctid"

/* A column of a task that was read; 0 if it is NULL. */
static Datum
task_value(uint64 i, int column)
{
	bool isnull;

	return SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, column, &isnull);
}

/*
 * Lock a task that was read, so that nobody removes it before the end of this transaction.  Returns
 * false if it was removed, or is in another place: then it must be read again.
 */
static bool
lock_task(Oid relid, ItemPointer tid)
{
	bool fixed = IsolationUsesXactSnapshot();
	Relation rel = table_open(relid, RowShareLock);
	TupleTableSlot *slot;
	TM_FailureData failure;
	TM_Result result;

	/* our trigger may be on a foreign table, or on a table with such a partition */
	if (rel->rd_tableam == NULL)
	{
		table_close(rel, NoLock);
		return true;
	}
	slot = table_slot_create(rel, NULL);
	result = table_tuple_lock(rel, tid, GetTransactionSnapshot(), slot, GetCurrentCommandId(true),
							  LockTupleKeyShare, LockWaitBlock,
							  TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS |
								  (fixed ? 0 : TUPLE_LOCK_FLAG_FIND_LAST_VERSION),
							  &failure);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	if (fixed && (result == TM_Updated || result == TM_Deleted))
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("could not serialize access due to concurrent delete")));
	return result == TM_Ok || result == TM_SelfModified;
}

/*
 * Lock the tasks that were read.  Left out are those that are DONE, which may be removed, and those
 * that this transaction has written: nobody else can remove them.
 */
static bool
lock_tasks(void)
{
	uint64 i;

	for (i = 0; i < SPI_processed; i++)
	{
		Oid relid = DatumGetObjectId(task_value(i, READ_TABLE));

		if (OidIsValid(relid) && !DatumGetBool(task_value(i, READ_DONE)) &&
			!TransactionIdIsCurrentTransactionId(DatumGetTransactionId(task_value(i, READ_XMIN))) &&
			!lock_task(relid, (ItemPointer) DatumGetPointer(task_value(i, READ_TID))))
			return false;
	}
	return true;
}

/*
 * Read tasks and lock them, by a statement on the table that a user names, for kept_plan_execute.
 * Returns the number of rows.
 */
static int
read_tasks(KeptPlan *kept, Relation rel, const char *sql, int count, Oid *types, Datum *values)
{
	int found;

	do
		found = kept_plan_execute(kept, sql, trigger_root_table(rel), count, types, values);
	while (!lock_tasks());
	return found;
}

/* ---- the column "after" ---- */

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
bool
after_read(const TriggerRow *row, After *after)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_AFTER, &isnull);

	if (isnull)
		return false;
	after->array = DatumGetArrayTypeP(value);
	after->count = ArrayGetNItems(ARR_NDIM(after->array), ARR_DIMS(after->array));
	if (after->count == 0)
		return false;
	after->removed = array_contains_nulls(after->array);
	after->ids = (int64 *) ARR_DATA_PTR(after->array);
	return true;
}

/* Check what a user has written.  A NULL stays that removal.c has written. */
static void
check_after(const TriggerRow *row, const After *after, bool check)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));
	int i;

	if (ARR_NDIM(after->array) != 1)
		reject_after(row, "have one dimension");
	if (after->removed && check)
		reject_after(row, "contain no NULL");
	if (after->count > AFTER_MAX)
		reject_after(row, "name at most " CppAsString2(AFTER_MAX) " tasks");
	for (i = 0; i < after->count && !after->removed; i++)
		if (!isnull && after->ids[i] == id)
			reject_after(row, "not name the task itself");
}

/* A task in "after" that the current user sees. */
typedef struct SeenTask
{
	int64 id;
	bool unended;
} SeenTask;

static int
compare_seen(const void *a, const void *b)
{
	int64 left = ((const SeenTask *) a)->id;
	int64 right = ((const SeenTask *) b)->id;

	return left < right ? -1 : left > right;
}

/*
 * Read the tasks in "after".  Returns the last of them that has not ended, or the last one.
 * "check": the current user must see all of them.
 */
static int64
choose_watched(const TriggerRow *row, const After *after, bool check)
{
	Oid types[] = {INT8ARRAYOID};
	Datum value = PointerGetDatum(after->array);
	int watched = -1;
	SeenTask *tasks;
	int count;
	int i;

	SPI_connect();
	count = read_tasks(&reader, row->rel,
					   "SELECT NULL, " READ_COLUMNS " FROM %s AS t"
					   " WHERE t.id OPERATOR(pg_catalog.=) ANY ($1)",
					   1, types, &value);
	tasks = palloc((count + 1) * sizeof(SeenTask));
	for (i = 0; i < count; i++)
		tasks[i] = (SeenTask){DatumGetInt64(task_value(i, READ_ID)),
							  DatumGetBool(task_value(i, READ_UNENDED))};
	qsort(tasks, count, sizeof(SeenTask), compare_seen);
	for (i = after->count - 1; i >= 0; i--)
	{
		SeenTask key = {.id = after->ids[i]};
		SeenTask *task = bsearch(&key, tasks, count, sizeof(SeenTask), compare_seen);

		if (task == NULL && check)
			ereport(ERROR, (errcode(ERRCODE_FOREIGN_KEY_VIOLATION),
							errmsg("there is no task " INT64_FORMAT " for which this one could"
								   " wait",
								   after->ids[i]),
							errdetail("It is not in the table, or you do not see it."),
							errtablecol(row->rel, trigger_column(row->rel, COLUMN_AFTER))));
		if (watched < 0 && task && task->unended)
			watched = i;
	}
	SPI_finish();
	return after->ids[watched < 0 ? after->count - 1 : watched];
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

	if (!after_read(row, &after))
		return false;
	check_after(row, &after, check);
	*watched = after.removed ? WAITS_REMOVED : choose_watched(row, &after, check);
	return true;
}

/* ---- the column "needs" ---- */

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

/*
 * Find the tasks of the steps that a new row needs: rows of its flow that the current user sees,
 * inserted before.  Returns false if it needs none, or "after" says for which tasks it waits, as in
 * a row from a dump.  Sets *after to the tasks, and *watched to the one that the row watches first.
 */
bool
after_needs(const TriggerRow *row, Datum *after, int64 *watched)
{
	Oid types[] = {TEXTOID, TEXTARRAYOID};
	MemoryContext caller = CurrentMemoryContext;
	bool any = false;
	bool isnull;
	Datum flow = trigger_value(row, COLUMN_FLOW, &isnull);
	Datum needs = trigger_value(row, COLUMN_NEEDS, &isnull);
	Datum *ids;
	int count;
	int i;

	if (isnull || !trigger_is_null(row, COLUMN_AFTER))
		return false;
	needs = PointerGetDatum(DatumGetArrayTypeP(needs));
	if (count_needs(row, DatumGetArrayTypeP(needs)) == 0)
		return false;
	SPI_connect();
	count = read_tasks(&step_reader, row->rel,
					   "SELECT n.step, " READ_COLUMNS
					   "  FROM pg_catalog.unnest($2) WITH ORDINALITY AS n (step, n)"
					   "  LEFT JOIN %s AS t ON t.flow OPERATOR(pg_catalog.=) $1"
					   "   AND t.step OPERATOR(pg_catalog.=) n.step"
					   " ORDER BY n.n",
					   2, types, (Datum[]){flow, needs});
	ids = palloc(Max(count, 1) * sizeof(Datum));
	for (i = 0; i < count; i++)
	{
		bool unended = DatumGetBool(task_value(i, READ_UNENDED));

		if (SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, READ_ID) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FOREIGN_KEY_VIOLATION),
					 errmsg("there is no step \"%s\" of the same flow",
							SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, READ_KEY)),
					 errdetail("No row with this \"step\" was inserted before, or you do not see"
							   " it."),
					 errtablecol(row->rel, trigger_column(row->rel, COLUMN_NEEDS))));
		ids[i] = task_value(i, READ_ID);
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
