/*
 * removal.c
 *		Tasks that are removed while others may wait for them: recorded in the table of removed
 *		tasks, unless they are DONE.
 *
 * A DELETE records tasks only if shared memory says that rows may wait.  A session that inserts
 * such a row says so first, and then looks at the tasks for which the row is to wait.  So of two
 * transactions, of which one removes a task while the other one begins to wait for it, one notices
 * the other: the DELETE records the task, or the INSERT finds that it is being removed, and waits
 * for the end of that transaction, as for a foreign key.
 *
 * This file decides nothing about rows that wait.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "session/kept_plan.h"
#include "session/removal.h"
#include "shared/shared.h"
#include "shared/waiters.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/removed_table.h"
#include "task/side_table.h"

PGDLLEXPORT Datum pg_task_awaited(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_awaited);

/*
 * pg_task_awaited(id): the WHEN condition of the trigger for removed tasks.  Returns whether rows
 * may wait for others, and the statement is not one of pg_task itself.  Sessions that wait for this
 * task are woken at the commit, so for them alone no trigger need fire.  Others who call it wake
 * them in vain.
 */
Datum
pg_task_awaited(PG_FUNCTION_ARGS)
{
	if (owner_acts())
		PG_RETURN_BOOL(false);
	if (Shared == NULL)
		PG_RETURN_BOOL(true);
	waiters_end(PG_GETARG_INT64(0));
	PG_RETURN_BOOL(shared_scheduler_watches(MyDatabaseId));
}

/* The statement that records a task.  Static, because each row is a call of the trigger. */
static KeptPlan recorder;

/* The owner of a relation; InvalidOid: there is none. */
static Oid
relation_owner(Oid relid)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid owner = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * Find a relation of this owner and lock it, so that it keeps its name and its owner.  InvalidOid:
 * there is none.
 */
static Oid
lock_relation(const char *name, Oid schema, Oid owner)
{
	Oid relid;

	while (OidIsValid(relid = get_relname_relid(name, schema)))
	{
		if (relation_owner(relid) != owner)
			return InvalidOid;
		LockRelationOid(relid, RowExclusiveLock);
		if (get_relname_relid(name, schema) == relid)
			break;
		UnlockRelationOid(relid, RowExclusiveLock);
	}
	return relid;
}

/*
 * Raise an error if a write to the table, which is locked for that, could run code of its owner's
 * in this session, and the session has perhaps run code of somebody else: what that has compiled
 * would run as the owner.
 */
static void
check_code(Oid relid, Oid owner)
{
	char *code = owner_code_is_barred(owner) ? owner_code_find(relid, true) : NULL;

	if (code)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only the owner of the task table may remove tasks at present"),
				 errdetail("Tasks wait for others, so removed ones are recorded, and code of the"
						   " owner's would run: %s.",
						   code),
				 errhint("The owner can drop it.")));
}

/*
 * Return the name, for SQL, of the table of removed tasks beside this task table, and its owner.
 * NULL if the scheduler has not made one, or it belongs to somebody else.
 */
static char *
find_table(Oid root, Oid *owner, Oid *found)
{
	char *name = side_table_name(root, REMOVED_SUFFIX);
	Oid schema = get_rel_namespace(root);
	Oid relid = lock_relation(name, schema, relation_owner(root));
	AttrNumber number;

	if (!OidIsValid(relid))
		return NULL;
	number = get_attnum(relid, "id");
	*owner = relation_owner(relid);
	if (!OidIsValid(*owner) || *owner != relation_owner(root) ||
		get_rel_relkind(relid) != RELKIND_RELATION || number == InvalidAttrNumber ||
		get_atttype(relid, number) != INT8OID)
		return NULL;
	*found = relid;
	check_code(relid, *owner);
	return quote_qualified_identifier(get_namespace_name(schema), name);
}

/*
 * Execute a statement, which has a %s for the table of removed tasks, as the owner of that.
 */
static void
execute_as_owner(Oid root, KeptPlan *kept, const char *sql, int count, Datum *values)
{
	Oid types[] = {INT8OID};
	Oid owner;
	Oid relid;
	char *table = find_table(root, &owner, &relid);
	OwnerScope scope;

	if (table == NULL)
		return;
	owner_restrict(owner, &scope);
	SPI_connect();
	if (kept_plan_execute(kept, psprintf(sql, table), relid, false, count, types, values) < 0)
		elog(ERROR, "could not write %s", table);
	SPI_finish();
	AtEOXact_GUC(true, scope.nest_level);
	SetUserIdAndSecContext(scope.user, scope.context);
}

/*
 * Record that this row was removed, if it was not DONE.  A row that an UPDATE moves to another
 * partition is not.
 */
void
removal_record(const TriggerRow *row)
{
	bool isnull;
	Datum id = trigger_value(row, COLUMN_ID, &isnull);

	if (isnull || trigger_has_state(row, "DONE") ||
		HeapTupleHeaderIndicatesMovedPartitions(row->tuple->t_data) ||
		(Shared && !shared_scheduler_watches(MyDatabaseId)))
		return;
	execute_as_owner(trigger_root_table(row->rel), &recorder,
					 "INSERT INTO %s (id) VALUES ($1) ON CONFLICT DO NOTHING", 1, &id);
}

/* The task table was truncated: no row waits for what was in it, and its ids may come again. */
void
removal_forget_all(Oid root)
{
	static KeptPlan forgetter; /* as the other one */

	execute_as_owner(root, &forgetter, "DELETE FROM ONLY %s", 0, NULL);
}

/*
 * A row of this table is about to wait for others: from now on, and at least until the end of this
 * transaction, a DELETE records the tasks that it removes.
 */
void
removal_expect_waiting(Oid root)
{
	LOCKTAG tag;

	removed_lock_tag(&tag, root);
	(void) LockAcquire(&tag, RowExclusiveLock, false, false);
	if (Shared)
		shared_scheduler_expect_watches(MyDatabaseId, root);
}

/* Has the transaction that wrote this version of a row, which is its last, removed it, too? */
static bool
has_removed_own(TupleTableSlot *slot)
{
	bool should_free;
	HeapTuple tuple = ExecFetchSlotHeapTuple(slot, false, &should_free);
	bool removed = (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0 &&
				   !HeapTupleHeaderIsOnlyLocked(tuple->t_data);

	if (should_free)
		heap_freetuple(tuple);
	return removed;
}

/* Return the transaction that is removing the row; *gone if it is not there any more. */
static TransactionId
find_remover(Relation rel, ItemPointer tid, bool *gone)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ItemPointerData last = *tid;
	SnapshotData dirty;
	TableScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = table_beginscan_tid(rel, &dirty);
	table_tuple_get_latest_tid(scan, &last);
	table_endscan(scan);
	dirty.xmin = dirty.xmax = InvalidTransactionId;
	*gone = !table_tuple_fetch_row_version(rel, &last, &dirty, slot);
	/* of a version that is not committed, "dirty" does not say whether it was removed */
	if (!*gone && TransactionIdIsValid(dirty.xmin) && has_removed_own(slot))
		dirty.xmax = dirty.xmin;
	ExecDropSingleTupleTableSlot(slot);
	return *gone ? InvalidTransactionId : dirty.xmax;
}

/*
 * Wait until no other transaction is removing a row that this one has read.  Returns false if the
 * row must be read again: it was removed, or is in another place.
 */
bool
removal_wait(Oid relid, ItemPointer tid)
{
	Relation rel = table_open(relid, AccessShareLock);
	bool gone;
	TransactionId remover = find_remover(rel, tid, &gone);

	if (TransactionIdIsValid(remover))
		XactLockTableWait(remover, rel, tid, XLTW_FetchUpdated);
	table_close(rel, NoLock);
	if (gone && IsolationUsesXactSnapshot())
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("could not serialize access due to concurrent delete")));
	return !gone && !TransactionIdIsValid(remover);
}
