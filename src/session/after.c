/*
 * after.c
 *		The tasks for which a row waits: checks the column "after", or finds the tasks of the
 *		steps in "needs", and chooses the first task that the row watches.  Marks the rows that wait
 *		for a task which is removed before it is DONE.  With the same rights as tasks by their ids,
 *		it finds a chain that a new row would double.
 *
 * A user may wait for visible rows.  They are read with the rights of the current user, as by any
 * query, and those that are not DONE are locked as by a foreign key: who removes one waits
 * for the end of this transaction, and then sees the row that waits for it.  What ends meanwhile,
 * the scheduler finds when the transaction has committed.
 *
 * As a foreign key with an action would, a DELETE changes the rows that wait for the task: its id
 * in "after" becomes NULL, and the row watches it, so that the scheduler judges it.  That is done
 * as the owner of the table, whatever the user sees or may write, and with what is committed now,
 * whatever the snapshot of the transaction is.
 *
 * This file decides nothing about rows that wait.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "session/after.h"
#include "session/notices.h"
#include "session/pending.h"
#include "session/table_access.h"
#include "shared/shared.h"
#include "shared/waiters.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/rows.h"
#include "task/statement.h"
#include "task/table.h"

COMPAT_FUNCTION(pg_task_removed);

/*
 * A row waits for this many tasks at most: to judge it, the scheduler may have to read all of them,
 * and nothing starts meanwhile.
 */
#define AFTER_MAX 10000

/* ---- statements ---- */

/* A statement on a task table, whose plan is kept while it is valid. */
typedef struct KeptPlan
{
	const char *text; /* the table, which stands for the %s, is the only one that it names */
	int count;		  /* of its arguments */
	Oid types[2];

	/* all zero: none is kept */
	char *sql; /* in TopMemoryContext; NULL: there is no plan */
	Oid relid; /* the only table that it names */
	SPIPlanPtr plan;
	Oid user;		   /* who executed it last; InvalidOid: nobody has */
	bool row_security; /* the setting at that time */
	bool busy;		   /* it is being executed: what runs meanwhile does not replace it */
} KeptPlan;

/* What is read of a task, which is named by its id or by its step; all else is NULL for none. */
enum
{
	READ_NAME = 1,
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

/* clang-format off */

/*
 * The rows that wait for a task, in two indexes.  By other rules than "any", it is enough to know
 * that one was removed: many that are removed do not change a row as often.
 */
#define DEPENDENTS \
	" WHERE t.state = 'PLAN'" \
	"   AND (t.waits = $1" \
	"        OR ((t.waits IS NOT NULL) IS TRUE AND cardinality(t.after) > 1" \
	"            AND t.after @> ARRAY[$1]))" \
	"   AND (t.rule = 'any' OR array_position(t.after, NULL) IS NULL)"

/*
 * The statements that read the tasks by their ids and steps, find a schedule by its key, and find
 * and mark rows that wait for a removed task.  Static, because the plans are kept from one row to
 * the next: with them an INSERT of many rows takes half of the time.
 */
static KeptPlan reader = {.count = 1, .types = {INT8ARRAYOID}, .text =
	"SELECT n.id, " READ_COLUMNS
	"  FROM pg_catalog.unnest($1) WITH ORDINALITY AS n (id, n)"
	"  LEFT JOIN %s AS t ON t.id OPERATOR(pg_catalog.=) n.id"
	" ORDER BY n.n"};
static KeptPlan step_reader = {.count = 2, .types = {TEXTOID, TEXTARRAYOID}, .text =
	"SELECT n.step, " READ_COLUMNS
	"  FROM pg_catalog.unnest($2) WITH ORDINALITY AS n (step, n)"
	"  LEFT JOIN %s AS t ON t.flow OPERATOR(pg_catalog.=) $1"
	"   AND t.step OPERATOR(pg_catalog.=) n.step"
	" ORDER BY n.n"};
static KeptPlan chain_reader = {.count = 2, .types = {TEXTOID, TEXTOID}, .text =
	"SELECT pg_catalog.format('task %%s of queue \"%%s\"', t.id, t.queue)"
	"  FROM %s AS t"
	" WHERE t.key OPERATOR(pg_catalog.=) $1"
	"   AND t.queue OPERATOR(pg_catalog.<>) $2"
	"   AND t.state OPERATOR(pg_catalog.=)"
	"       ANY (ARRAY['PLAN'::pg_catalog.text, 'WORK'])"
	"   AND (t.repeat IS NOT NULL OR t.cron IS NOT NULL) AND t.next IS NULL LIMIT 1"};
static KeptPlan finder = {.count = 1, .types = {INT8OID}, .text =
	"SELECT FROM %s AS t" DEPENDENTS " LIMIT 1"};
static KeptPlan marker = {.count = 1, .types = {INT8OID}, .text =
	"UPDATE %s AS t SET waits = $1, after = array_replace(t.after, $1, NULL)" DEPENDENTS};

/* clang-format on */

static SPIPlanPtr
prepare(KeptPlan *kept, const char *sql)
{
	SPIPlanPtr plan = SPI_prepare_cursor(sql, kept->count, kept->types, CURSOR_OPT_GENERIC_PLAN);

	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", sql, SPI_result_code_string(SPI_result));
	return plan;
}

/*
 * Keep a plan of this statement instead of the one that is kept.  Whatever an error interrupts, a
 * plan that is kept belongs to the text beside it.
 */
static void
keep_plan(KeptPlan *kept, const char *sql, Oid relid)
{
	SPIPlanPtr plan = prepare(kept, sql);
	char *copy = MemoryContextStrdup(TopMemoryContext, sql);

	Assert(!kept->busy);
	if (kept->sql)
	{
		pfree(kept->sql);
		kept->sql = NULL;
		SPI_freeplan(kept->plan);
	}
	SPI_keepplan(plan);
	kept->plan = plan;
	kept->user = InvalidOid;
	kept->relid = relid;
	kept->sql = copy;
}

/* Fill the name of a table, and of nothing below it, into a statement, for the %s. */
static char *
fill_in(const char *text, Oid relid)
{
	char *name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
											get_rel_name(relid));

	return psprintf(text,
					get_rel_relkind(relid) == RELKIND_RELATION ? psprintf("ONLY %s", name) : name);
}

/*
 * Execute a statement on a task table, connected to SPI.  "latest": it sees what is committed now,
 * in any isolation.  Returns the number of rows.
 */
static int
execute_kept(KeptPlan *kept, Oid relid, Datum *values, bool latest)
{
	bool busy = kept->busy;
	/* a plan is valid until the table, or its schema, has perhaps been renamed */
	bool fresh =
		busy || kept->sql == NULL || kept->relid != relid || !SPI_plan_is_valid(kept->plan);
	const char *sql = fresh ? fill_in(kept->text, relid) : kept->sql;
	NamedTable outer = named_table_expect((NamedTable){.text = sql, .relid = relid});
	volatile int code = 0;

	PG_TRY();
	{
		SPIPlanPtr plan;
		int nest_level = 0;

		/* the server plans again for who has other policies */
		if (fresh || kept->user != GetUserId() || kept->row_security != row_security)
			nest_level = statement_fix_planner(true);
		if (fresh && !busy)
			keep_plan(kept, sql, relid);
		plan = busy ? prepare(kept, sql) : kept->plan;
		kept->busy = true;
		code = SPI_execute_snapshot(plan, values, NULL,
									latest && IsolationUsesXactSnapshot() ? GetLatestSnapshot()
																		  : InvalidSnapshot,
									InvalidSnapshot, false, true, 0);
		kept->user = GetUserId();
		kept->row_security = row_security;
		if (nest_level > 0)
			AtEOXact_GUC(true, nest_level);
	}
	PG_FINALLY();
	{
		(void) named_table_expect(outer);
		kept->busy = busy;
	}
	PG_END_TRY();
	if (code < 0)
		elog(ERROR, "could not execute \"%s\"", kept->text);
	return (int) SPI_processed;
}

/* ---- the tasks, as the current user sees them ---- */

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
 * Read tasks and lock them, by a statement on the table that a user names, for execute_kept.
 * Returns the number of rows.
 */
static int
read_tasks(KeptPlan *kept, Relation rel, Datum *values)
{
	int found;

	do
		found = execute_kept(kept, trigger_root_table(rel), values, false);
	while (!lock_tasks());
	return found;
}

/* ---- the column "after" ---- */

/* Check a list of tasks, or of steps, that is not empty. */
static void
check_list(const TriggerRow *row, TaskColumn which, ArrayType *list, bool may_have_nulls)
{
	if (ARR_NDIM(list) != 1)
		trigger_reject(row, which, "have one dimension");
	if (!may_have_nulls && array_contains_nulls(list))
		trigger_reject(row, which, "contain no NULL");
	if (ArrayGetNItems(1, ARR_DIMS(list)) > AFTER_MAX)
		trigger_reject(row, which,
					   which == COLUMN_AFTER ? "name at most " CppAsString2(AFTER_MAX) " tasks"
											 : "name at most " CppAsString2(AFTER_MAX) " steps");
}

/* Check what a user has written.  A NULL stays that mark_waiting has written. */
static void
check_after(const TriggerRow *row, const AfterIds *after, bool check)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));
	int i;

	check_list(row, COLUMN_AFTER, after->array, !check);
	for (i = 0; i < after->count && !after->removed; i++)
		if (!isnull && after->ids[i] == id)
			trigger_reject(row, COLUMN_AFTER, "not name the task itself");
}

/* Raise an error: one of the tasks for which a row is to wait is not there. */
static void
reject_missing(const TriggerRow *row, TaskColumn which, const char *name)
{
	bool by_id = which == COLUMN_AFTER;

	ereport(ERROR, (errcode(ERRCODE_FOREIGN_KEY_VIOLATION),
					by_id ? errmsg("there is no task %s for which this one could wait", name)
						  : errmsg("there is no step \"%s\" of the same flow", name),
					by_id ? errdetail("It is not in the table, or you do not see it.")
						  : errdetail("No row with this \"step\" was inserted before, or you do not"
									  " see it."),
					errtablecol(row->rel, trigger_column(row->rel, which))));
}

/*
 * Which of the tasks that were read, in their order, does a row watch first?  The last one that has
 * not ended, or the last one: tasks mostly end in the order in which they were planned.  Raises an
 * error if one is not there, if "check".
 */
static int64
choose_watched(const TriggerRow *row, TaskColumn which, int count, bool check)
{
	int column = which == COLUMN_AFTER ? READ_NAME : READ_ID; /* one that is not there has no id */
	int64 watched = 0;
	bool any = false;
	int i;

	for (i = 0; i < count; i++)
	{
		bool unended = DatumGetBool(task_value(i, READ_UNENDED));

		if (check && !OidIsValid(DatumGetObjectId(task_value(i, READ_TABLE))))
			reject_missing(row, which,
						   SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, READ_NAME));
		if (unended || !any)
			watched = DatumGetInt64(task_value(i, column));
		any |= unended;
	}
	return watched;
}

/*
 * Which task does this row watch first?  Returns false if it waits for none.  "check": the tasks
 * must exist, and the current user must see them.
 */
bool
after_watch(const TriggerRow *row, bool check, int64 *watched)
{
	AfterIds after;
	int count;

	if (!trigger_after(row, &after))
		return false;
	check_after(row, &after, check);
	*watched = WAITS_REMOVED;
	if (after.removed)
		return true;
	SPI_connect();
	count = read_tasks(&reader, row->rel, (Datum[]){PointerGetDatum(after.array)});
	*watched = choose_watched(row, COLUMN_AFTER, count, check);
	SPI_finish();
	return true;
}

/* ---- the column "key" ---- */

/*
 * Find a task that repeats, waits or runs, and has the key of this row, but another queue, as the
 * current user sees it.  Returns both in words; NULL: there is none.
 */
char *
after_find_chain(const TriggerRow *row)
{
	MemoryContext caller = CurrentMemoryContext;
	char *found = NULL;
	Datum values[2];
	bool isnull;

	values[0] = trigger_value(row, COLUMN_KEY, &isnull);
	values[1] = trigger_value(row, COLUMN_QUEUE, &isnull);
	SPI_connect();
	if (execute_kept(&chain_reader, trigger_root_table(row->rel), values, false) > 0)
		found = MemoryContextStrdup(caller,
									SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return found;
}

/* ---- the column "needs" ---- */

/*
 * Find the tasks of the steps that a new row needs: rows of its flow that the current user sees,
 * inserted before.  Returns false if it needs none, or "after" says for which tasks it waits, as in
 * a row from a dump.  Sets *after to the tasks, and *watched to the one that the row watches first.
 */
bool
after_needs(const TriggerRow *row, Datum *after, int64 *watched)
{
	MemoryContext caller = CurrentMemoryContext;
	bool isnull;
	Datum flow = trigger_value(row, COLUMN_FLOW, &isnull);
	Datum value = trigger_value(row, COLUMN_NEEDS, &isnull);
	ArrayType *needs;
	Datum *ids;
	int count;
	int i;

	if (isnull || !trigger_is_null(row, COLUMN_AFTER))
		return false;
	needs = DatumGetArrayTypeP(value);
	if (ArrayGetNItems(ARR_NDIM(needs), ARR_DIMS(needs)) == 0)
		return false;
	check_list(row, COLUMN_NEEDS, needs, false);
	if (trigger_is_null(row, COLUMN_FLOW))
		trigger_reject(row, COLUMN_NEEDS, "be NULL without a \"flow\"");
	SPI_connect();
	count = read_tasks(&step_reader, row->rel, (Datum[]){flow, PointerGetDatum(needs)});
	*watched = choose_watched(row, COLUMN_NEEDS, count, true);
	ids = palloc(Max(count, 1) * sizeof(Datum));
	for (i = 0; i < count; i++)
		ids[i] = task_value(i, READ_ID);
	MemoryContextSwitchTo(caller);
	*after = PointerGetDatum(
		construct_array(ids, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	SPI_finish();
	return true;
}

/* ---- the end of a schedule ---- */

/* Of schedules that were stopped or removed. */
static Notices ended;

/*
 * Tell whoever has stopped or removed this row, if it repeats, that this was the end of its
 * schedule, unless they may not read which task it is.
 */
void
after_tell_end(const TriggerRow *row, bool removed)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));

	if (!trigger_repeats(row) || SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ||
		!table_access_reads(trigger_root_table(row->rel), COLUMN_ID) ||
		notices_told(&ended) == NOTICES_MAX)
		return;
	notices_raise(&ended, psprintf("task " INT64_FORMAT " does not repeat any more", id),
				  removed ? "To pause a schedule instead, use pg_task_hold."
						  : psprintf("To pause a schedule instead, use pg_task_hold."
									 " SELECT pg_task_retry(" INT64_FORMAT ") takes it up again.",
									 id));
}

/* ---- a task that is removed ---- */

/*
 * The table in which this session is marking rows; InvalidOid: none.  Static, because triggers on
 * the table ask.
 */
static Oid marked = InvalidOid;

/*
 * Are rows of this table being marked, so that a trigger leaves them as they are?  Not those of
 * other tables: anybody may put our trigger on another table, whose triggers write others.
 */
bool
after_is_marking(Relation rel)
{
	return OidIsValid(marked) && marked == trigger_root_table(rel);
}

/*
 * Raise an error if a partition has another owner than the table, whose code would run as that
 * of the table.  So does, if "barred", one if a read of the table or, if "writes", a write could
 * run code of its owner's in this session: it has perhaps run code of somebody else, and what that
 * has compiled would run as the owner.  The locks keep others from adding such code, and the owners
 * as they are, until the transaction ends.
 */
static void
check_code(Oid root, bool barred, bool writes)
{
	static struct
	{
		Oid root;
		bool barred;
		LocalTransactionId transaction;
	} checked; /* reads are checked once in a transaction */
	Relation rel;
	ListCell *cell;
	char *code;

	if (!writes && checked.root == root && checked.transaction == COMPAT_LOCAL_XID &&
		(checked.barred || !barred))
		return;
	rel = relation_open(root, RowExclusiveLock);
	foreach(cell, lcons_oid(root, relation_members(rel)))
	{
		LockRelationOid(lfirst_oid(cell), RowExclusiveLock);
		if (relation_owner(lfirst_oid(cell)) != rel->rd_rel->relowner)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("nobody may remove tasks at present"),
					 errdetail("Rows that wait for them are changed, and partition \"%s\" has"
							   " another owner.",
							   get_rel_name(lfirst_oid(cell))),
					 errhint("Stop them instead, or give the table one owner.")));
	}
	code = barred ? owner_code_find(root, writes) : NULL;
	if (code)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("only the owner of the task table may remove tasks at present"),
						errdetail("Rows that wait for them are changed, and code of the owner's"
								  " would run: %s.",
								  code),
						errhint("Stop them instead, or have the owner drop it.")));
	relation_close(rel, NoLock);
	checked.root = root;
	checked.barred = barred;
	checked.transaction = COMPAT_LOCAL_XID;
}

/*
 * This row was removed: mark those that wait for it, unless it was DONE.  A row that an UPDATE
 * moves to another partition is not.
 */
static void
mark_waiting(const TriggerRow *row)
{
	Oid root = trigger_root_table(row->rel);
	Oid owner = trigger_table_owner(row->rel);
	bool isnull;
	Datum id = trigger_value(row, COLUMN_ID, &isnull);
	bool barred = table_access_bars_code(owner);
	Oid marking = marked;
	int outer;
	OwnerScope scope;

	if (isnull || trigger_has_state(row, "DONE") ||
		HeapTupleHeaderIndicatesMovedPartitions(row->tuple->t_data))
		return;
	check_code(root, barred, false);
	/* code that comes without conflicting with our locks is refused when it is called */
	outer = owner_code_bar(barred ? ERRCODE_INSUFFICIENT_PRIVILEGE : 0);
	PG_TRY();
	{
		owner_restrict(owner, &scope);
		SPI_connect();
		if (execute_kept(&finder, root, &id, true) > 0)
		{
			if (barred)
				check_code(root, true, true);
			marked = root;
			(void) execute_kept(&marker, root, &id, true);
		}
		SPI_finish();
		owner_restrict_end(&scope);
	}
	PG_FINALLY();
	{
		marked = marking;
		(void) owner_code_bar(outer);
	}
	PG_END_TRY();
}

/*
 * Trigger, AFTER DELETE, FOR EACH ROW, or AFTER TRUNCATE.  Running tasks may have lost their rows:
 * the scheduler must reconcile when the transaction has committed.  Others may wait for a row that
 * was removed before it was DONE: they are told.
 */
Datum
pg_task_removed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Oid table;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(!TRIGGER_FIRED_BY_DELETE(data->tg_event) && !TRIGGER_FIRED_BY_TRUNCATE(data->tg_event)))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_removed must be called AFTER DELETE or AFTER TRUNCATE")));
	table = trigger_root_table(data->tg_relation);
	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		TriggerRow row = {
			.rel = data->tg_relation, .tuple = data->tg_trigtuple, .slot = data->tg_trigslot};

		mark_waiting(&row);
		if (trigger_is_unended(&row) && !owner_acts() &&
			!HeapTupleHeaderIndicatesMovedPartitions(row.tuple->t_data))
			after_tell_end(&row, true);
		if (Shared && trigger_has_state(&row, "WORK"))
			pending_add_events(table, SHARED_RECONCILE);
		if (Shared)
			pending_add_ended(table, &row);
	}
	else if (Shared)
	{
		pending_add_events(table, SHARED_RECONCILE | SHARED_DEPENDENTS);
		waiters_end_all();
	}
	return PointerGetDatum(NULL);
}
