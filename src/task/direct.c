/*
 * direct.c
 *		Claims rows, sets them to DONE, and inserts the next runs of tasks that repeat, without a
 *		statement.
 *
 * This runs for every task.  A statement would start a plan, open all indexes and compile their
 * conditions each time, and the claim would lock each row before it writes it, because the server
 * has no UPDATE that skips locked rows.  Here the conditions are compiled once, an index is opened
 * only if the row gets an entry in it, and a row is written at once.
 *
 * This is an addition to the statements (rows_claim, finish_run), never their replacement: it
 * writes only rows of tables that need nothing but heap_update and entries in B-tree indexes, in
 * which no code of a user can run, and only if nobody has locked or changed the row meanwhile.
 * Otherwise it writes nothing, and the caller executes the statement, which fires triggers, checks
 * constraints, waits, and reports conflicts.  A condition that is added to one of the statements
 * must be added here, too; test/t/direct_differential.pl compares what both have written.
 *
 * Nothing that belongs to a transaction is kept: no relation, no buffer, no snapshot.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace_d.h"
#include "catalog/pg_trigger.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "rewrite/rewriteHandler.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/shared.h"
#include "task/owner.h"
#include "task/relation.h"
#include "task/repeat.h"
#include "task/rows.h"
#include "task/table.h"

/* The columns that are written, at the claim or at the end. */
static const TaskColumn written[] = {COLUMN_NEXT,	  COLUMN_START,	 COLUMN_STOP,	  COLUMN_PID,
									 COLUMN_ATTEMPT,  COLUMN_STATE,	 COLUMN_RESPONSE, COLUMN_ERROR,
									 COLUMN_SQLSTATE, COLUMN_NOTICE, COLUMN_LEASE};

/* An index of the table. */
typedef struct DirectIndex
{
	Oid oid;
	IndexInfo *info;
	ExprState *condition; /* of a partial index; NULL: none */
	bool unchanged;		  /* what is written changes no key of it */
} DirectIndex;

/*
 * What is kept of one table, until a change of it is reported (table.c) or the process ends.
 * Static, because all transactions of the process use it.
 */
static struct
{
	Oid relid;		/* InvalidOid: nothing is known */
	uint32 changes; /* as watch_changes counted them when this was described */
	bool plain;		/* rows can be written; otherwise the rest is not set */
	MemoryContext context;
	EState *estate;
	Oid id_index; /* unique, on the id alone */
	DirectIndex *indexes;
	int nindexes;
	AttrNumber numbers[TASK_COLUMNS];

	/* the next run of a task that repeats */
	bool inserts;			 /* its row can be inserted; otherwise the rest is not set */
	Oid sequence;			 /* of the id */
	bool *inherited;		 /* of each column: it has what the row before it has, or else ... */
	NullableDatum *defaults; /* ... this */
} direct;

/* The rows of a table, one at a time. */
typedef struct Rows
{
	Relation rel;
	Relation index; /* on the id */
	IndexScanDesc scan;
	TupleTableSlot *old; /* the row that was found, with all its columns */
	TupleTableSlot *new;
} Rows;

/* ---- which tables are written ---- */

/*
 * Does a trigger fire for one of these events, other than ours?  All are copied, because functions
 * are looked up.
 */
static bool
has_triggers(Relation rel, int events)
{
	const TriggerDesc *triggers = CopyTriggerDesc(rel->trigdesc);
	int i;

	for (i = 0; triggers && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];
		char *function;

		if ((trigger->tgtype & events) == 0)
			continue;
		/* nobody but a superuser creates functions there */
		function = get_func_name(trigger->tgfoid);
		if (get_func_namespace(trigger->tgfoid) != PG_CATALOG_NAMESPACE || function == NULL ||
			strncmp(function, "pg_task_", strlen("pg_task_")) != 0)
			return true;
	}
	return false;
}

/*
 * Would the server change what is written, compute a column of it, or refuse it because of a
 * column?  Those that are written may be set to NULL.
 */
static bool
has_unusual_columns(TupleDesc desc)
{
	int i;

	if (desc->constr && desc->constr->num_check > 0)
		return true;
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attgenerated || (att->attnotnull && !COMPAT_NOT_NULL(desc, i)))
			return true;
	}
	for (i = 0; i < (int) lengthof(written); i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, direct.numbers[written[i]] - 1);
		bool required = (task_columns[written[i]].flags & COLUMN_NOT_NULL) != 0;

		if (column_rounds(att) || att->attidentity || att->attnotnull != required)
			return true;
	}
	return false;
}

/*
 * Is all that the server does for a row to write a tuple of a heap, and to insert it into indexes?
 * Our triggers do nothing for what is written.
 */
static bool
is_plain(Relation rel)
{
	const AclMode needed = ACL_SELECT | ACL_INSERT | ACL_UPDATE | ACL_DELETE;

	return rel->rd_rel->relkind == RELKIND_RELATION && !rel->rd_rel->relispartition &&
		   !rel->rd_rules && rel->rd_tableam == GetHeapamTableAmRoutine() &&
		   !has_unusual_columns(RelationGetDescr(rel)) &&
		   !has_triggers(rel, TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE) &&
		   pg_class_aclmask(RelationGetRelid(rel), GetUserId(), needed, ACLMASK_ALL) == needed;
}

/* Is this a function that a user has created? */
static bool
is_users(Oid function, void *context pg_attribute_unused())
{
	return function >= FirstNormalObjectId;
}

/* May an expression call such a function? */
static bool
calls_users(Node *node, void *context)
{
	return node && (IsA(node, CoerceToDomain) || check_functions_in_node(node, is_users, context) ||
					expression_tree_walker(node, COMPAT_WALKER(calls_users), context));
}

/*
 * Keep what is needed of an index.  Returns false if its kind is unusual, or if it runs code of a
 * user, also in C: only a statement is executed with our search_path.  The server's functions for
 * ranges, rows and arrays call those of a user's type.
 */
static bool
keep_index(Relation index, DirectIndex *kept)
{
	Form_pg_index form = index->rd_index;
	IndexInfo *info = BuildIndexInfo(index);
	int i;
	int j;

	/* one of kind GIN is on "after", and has no row that is written here */
	if ((index->rd_rel->relam != BTREE_AM_OID && index->rd_rel->relam != GIN_AM_OID) ||
		!form->indimmediate || form->indisexclusion ||
		calls_users((Node *) info->ii_Expressions, NULL) ||
		calls_users((Node *) info->ii_Predicate, NULL))
		return false;
	for (i = 0; i < RelationGetDescr(index)->natts; i++)
		if (TupleDescAttr(RelationGetDescr(index), i)->atttypid >= FirstNormalObjectId)
			return false;
	for (i = 0; i < info->ii_NumIndexKeyAttrs; i++)
		if (index->rd_opfamily[i] >= FirstNormalObjectId)
			return false;
	*kept = (DirectIndex){RelationGetRelid(index), info, NULL, true};
	for (i = 0; i < info->ii_NumIndexKeyAttrs; i++)
		for (j = 0; j < (int) lengthof(written); j++)
			if (form->indkey.values[i] == 0 || form->indkey.values[i] == direct.numbers[written[j]])
				kept->unchanged = false;
	if (info->ii_Predicate)
		kept->condition = ExecPrepareQual(info->ii_Predicate, direct.estate);
	else if (form->indisunique && form->indisvalid && form->indnkeyatts == 1 &&
			 form->indkey.values[0] == direct.numbers[COLUMN_ID])
		direct.id_index = kept->oid;
	return true;
}

/* Keep what is needed of all indexes.  Returns false if one cannot be kept, or none is on the id.
 */
static bool
keep_indexes(Relation rel)
{
	List *all = RelationGetIndexList(rel);
	ListCell *cell;

	direct.indexes = palloc0(Max(list_length(all), 1) * sizeof(DirectIndex));
	foreach(cell, all)
	{
		Relation index = index_open(lfirst_oid(cell), AccessShareLock);
		bool kept = keep_index(index, &direct.indexes[direct.nindexes++]);

		index_close(index, NoLock);
		if (!kept)
			return false;
	}
	return OidIsValid(direct.id_index);
}

/*
 * Keep what the next row of a task that repeats has in each column.  Returns false if the server
 * would do more than that for an INSERT: our trigger fires, and nothing is computed but the id. The
 * times are written as they are, and a row may have no anchor.
 */
static bool
keep_defaults(Relation rel)
{
	TupleDesc desc = RelationGetDescr(rel);
	NextValueExpr *id = (NextValueExpr *) build_column_default(rel, direct.numbers[COLUMN_ID]);
	Form_pg_attribute anchor = TupleDescAttr(desc, direct.numbers[COLUMN_ANCHOR] - 1);
	int i;

	if (has_triggers(rel, TRIGGER_TYPE_INSERT) || id == NULL || !IsA(id, NextValueExpr) ||
		column_rounds(TupleDescAttr(desc, direct.numbers[COLUMN_DT] - 1)) ||
		column_rounds(anchor) || anchor->attnotnull)
		return false;
	direct.sequence = id->seqid;
	direct.inherited = palloc(desc->natts * sizeof(bool));
	direct.defaults = palloc(desc->natts * sizeof(NullableDatum));
	memset(direct.inherited, true, desc->natts * sizeof(bool));
	for (i = 0; i < TASK_COLUMNS; i++)
		direct.inherited[direct.numbers[i] - 1] = (task_columns[i].flags & COLUMN_INHERITED) != 0;
	for (i = 0; i < desc->natts; i++)
	{
		bool chosen = i == direct.numbers[COLUMN_ID] - 1 || i == direct.numbers[COLUMN_DT] - 1 ||
					  i == direct.numbers[COLUMN_PARENT] - 1 ||
					  i == direct.numbers[COLUMN_ANCHOR] - 1;
		Const *value;

		direct.defaults[i].isnull = true;
		if (TupleDescAttr(desc, i)->attisdropped || chosen)
			continue;
		if (direct.inherited[i] && TupleDescAttr(desc, i)->attidentity)
			return false;
		if (direct.inherited[i])
			continue;
		value = (Const *) build_column_default(rel, i + 1);
		if (value && !IsA(value, Const))
			return false;
		if (value)
			direct.defaults[i] = (NullableDatum){value->constvalue, value->constisnull};
		else if (i == direct.numbers[COLUMN_FAILED] - 1 || i == direct.numbers[COLUMN_CRASHED] - 1)
			direct.defaults[i] = (NullableDatum){Int32GetDatum(0), false}; /* as the trigger does */
		if (direct.defaults[i].isnull && TupleDescAttr(desc, i)->attnotnull)
			return false;
	}
	return true;
}

/*
 * Describe the table.  A change that is reported meanwhile has the next run describe it again.  To
 * read conditions may evaluate parts of them.
 */
static void
describe_table(Relation rel)
{
	MemoryContext old;
	int i;

	owner_pin_path();
	if (direct.context)
		MemoryContextDelete(direct.context);
	memset(&direct, 0, sizeof(direct));
	direct.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task direct", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(direct.context);
	direct.changes = watch_changes();
	for (i = 0; i < TASK_COLUMNS; i++)
		direct.numbers[i] = get_attnum(RelationGetRelid(rel), task_columns[i].name);
	direct.estate = CreateExecutorState();
	direct.plain = columns_fault(rel, task_columns, TASK_COLUMNS, true) == NULL && is_plain(rel) &&
				   keep_indexes(rel);
	direct.inserts = direct.plain && keep_defaults(rel);
	direct.relid = RelationGetRelid(rel);
	MemoryContextSwitchTo(old);
}

/* ---- the columns of a row ---- */

static Datum
value_of(const TupleTableSlot *slot, TaskColumn column)
{
	return slot->tts_values[direct.numbers[column] - 1];
}

static bool
is_null(const TupleTableSlot *slot, TaskColumn column)
{
	return slot->tts_isnull[direct.numbers[column] - 1];
}

/* Is a column of type text exactly this? */
static bool
is_text(const TupleTableSlot *slot, TaskColumn column, const char *wanted)
{
	return !is_null(slot, column) && value_is_word(value_of(slot, column), wanted);
}

/* A text; NULL for NULL. */
static char *
text_or_null(const TupleTableSlot *slot, TaskColumn column)
{
	return is_null(slot, column) ? NULL : TextDatumGetCString(value_of(slot, column));
}

/* The length of an interval (us), in years of so many days: comparisons have 360, epochs 365.25. */
static double
interval_us(const Interval *interval, double year)
{
	return interval->time +
		   (interval->day + interval->month % 12 * 30 + interval->month / 12 * year) *
			   USECS_PER_DAY;
}

/* Is another run planned when this one has ended?  REPEATS in rows_sql.h. */
static bool
repeats(const TupleTableSlot *slot)
{
	return (!is_null(slot, COLUMN_REPEAT) || !is_null(slot, COLUMN_CRON)) &&
		   is_null(slot, COLUMN_NEXT);
}

static void
set(Rows *rows, TaskColumn column, Datum value)
{
	rows->new->tts_values[direct.numbers[column] - 1] = value;
	rows->new->tts_isnull[direct.numbers[column] - 1] = false;
}

static void
set_null(Rows *rows, TaskColumn column)
{
	rows->new->tts_isnull[direct.numbers[column] - 1] = true;
}

/* Set a text; NULL for NULL. */
static void
set_text(Rows *rows, TaskColumn column, const char *value)
{
	if (value)
		set(rows, column, CStringGetTextDatum(value));
	else
		set_null(rows, column);
}

/* ---- rows ---- */

/*
 * Begin to find and write rows of a table, until end_rows.  Returns false if the table needs
 * statements.  The caller acts as its owner, and has locked it.
 */
static bool
begin_rows(Rows *rows, const TaskTable *table)
{
	Relation rel;

	Assert(owner_acts());
	if (table->partitioned)
		return false;
	/* what the request has written must be seen, and what it has defined, as by any statement */
	CommandCounterIncrement();
	rel = table_open(table->relid, RowExclusiveLock);
	if (direct.relid != table->relid || direct.changes != watch_changes())
		describe_table(rel);
	if (!direct.plain || direct.changes != watch_changes())
	{
		table_close(rel, NoLock);
		return false;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	/* what the indexes compute belongs to the caller */
	GetPerTupleExprContext(direct.estate)->ecxt_per_tuple_memory = CurrentMemoryContext;
	rows->rel = rel;
	rows->index = index_open(direct.id_index, RowExclusiveLock);
	rows->scan = COMPAT_INDEX_BEGINSCAN(rel, rows->index, GetActiveSnapshot(), 1);
	rows->old = table_slot_create(rel, NULL);
	rows->new = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	return true;
}

/* What was written is seen by the next statement. */
static void
end_rows(Rows *rows)
{
	index_endscan(rows->scan);
	index_close(rows->index, NoLock);
	ExecDropSingleTupleTableSlot(rows->old);
	ExecDropSingleTupleTableSlot(rows->new);
	PopActiveSnapshot();
	table_close(rows->rel, NoLock);
	CommandCounterIncrement();
}

/* Find the row with this id, as the snapshot sees it: rows->old, which keeps its buffer pinned. */
static bool
find_row(Rows *rows, int64 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	index_rescan(rows->scan, &key, 1, NULL, 0);
	if (!index_getnext_slot(rows->scan, ForwardScanDirection, rows->old))
		return false;
	slot_getallattrs(rows->old);
	return true;
}

/*
 * Has nobody changed or locked the row that was found?  A lock of a transaction that has ended, as
 * the one that has set a dependent row free, does not count.  What has ended since may say no, too.
 */
static bool
is_free(const Rows *rows)
{
	const HeapTupleHeader row = ((const BufferHeapTupleTableSlot *) rows->old)->base.tuple->t_data;

	Assert(TTS_IS_BUFFERTUPLE(rows->old));
	return (row->t_infomask & HEAP_XMAX_INVALID) != 0 ||
		   (HEAP_XMAX_IS_LOCKED_ONLY(row->t_infomask) &&
			(row->t_infomask & HEAP_XMAX_IS_MULTI) == 0 &&
			!TransactionIdIsInProgress(HeapTupleHeaderGetRawXmax(row)));
}

/* Begin a new row, with the values of the old one. */
static void
copy_row(Rows *rows)
{
	TupleDesc desc = rows->old->tts_tupleDescriptor;
	int i;

	ExecClearTuple(rows->new);
	memcpy(rows->new->tts_values, rows->old->tts_values, desc->natts * sizeof(Datum));
	for (i = 0; i < desc->natts; i++)
		rows->new->tts_isnull[i] = rows->old->tts_isnull[i] || TupleDescAttr(desc, i)->attisdropped;
	ExecStoreVirtualTuple(rows->new);
}

/* Insert the new row, or new version of a row, into all indexes that it belongs to. */
static void
insert_entries(const Rows *rows, bool version)
{
	int i;

	GetPerTupleExprContext(direct.estate)->ecxt_scantuple = rows->new;
	for (i = 0; i < direct.nindexes; i++)
	{
		const DirectIndex *kept = &direct.indexes[i];
		Datum values[INDEX_MAX_KEYS];
		bool isnull[INDEX_MAX_KEYS];
		Relation index;

		if (!kept->info->ii_ReadyForInserts ||
			!ExecQual(kept->condition, GetPerTupleExprContext(direct.estate)))
			continue;
		index = index_open(kept->oid, RowExclusiveLock);
		/* what GIN keeps here refers to the index as it was open */
		kept->info->ii_AmCache = NULL;
		kept->info->ii_Context = CurrentMemoryContext;
		FormIndexDatum(kept->info, rows->new, direct.estate, values, isnull);
		(void) index_insert(index, values, isnull, &rows->new->tts_tid, rows->rel,
							kept->info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
							version && kept->unchanged, kept->info);
		index_close(index, NoLock);
	}
}

/*
 * Write the new row in the place of the old one.  Returns false if that is left to the statement,
 * because somebody has changed the old one since the snapshot.  Whoever has only locked it is
 * waited for: heap_update must not be called for a locked row otherwise, and asserts that.
 */
static bool
write_row(Rows *rows)
{
	COMPAT_UPDATE_INDEXES indexes;
	TM_FailureData failure;
	LockTupleMode mode;

	CheckCmdReplicaIdentity(rows->rel, CMD_UPDATE);
	if (COMPAT_TUPLE_UPDATE(rows->rel, &rows->old->tts_tid, rows->new, GetCurrentCommandId(true),
							GetActiveSnapshot(), &failure, &mode, &indexes) != TM_Ok)
		return false;
	if (indexes)
		insert_entries(rows, true);
	return true;
}

/*
 * Delete the row that was found.  Returns false if that is left to the statement, because somebody
 * has changed it since the snapshot or has locked it.
 */
static bool
delete_row(Rows *rows)
{
	TM_FailureData failure;

	CheckCmdReplicaIdentity(rows->rel, CMD_DELETE);
	return is_free(rows) &&
		   COMPAT_TUPLE_DELETE(rows->rel, &rows->old->tts_tid, GetCurrentCommandId(true),
							   GetActiveSnapshot(), &failure) == TM_Ok;
}

/* ---- the claim ---- */

/* Is the row of a role with this name? */
static bool
is_of_role(const TupleTableSlot *slot, const char *role)
{
	return strcmp(NameStr(*DatumGetName(value_of(slot, COLUMN_ROLE))), role) == 0;
}

/* Does the row wait in this group, and not for other tasks? */
static bool
is_waiting(const TupleTableSlot *slot, const TaskGroup *group)
{
	int32 max =
		is_null(slot, COLUMN_MAX) ? TASK_UNLIMITED : DatumGetInt32(value_of(slot, COLUMN_MAX));

	return is_text(slot, COLUMN_STATE, "PLAN") && is_null(slot, COLUMN_WAITS) &&
		   is_null(slot, COLUMN_HOLD) && is_text(slot, COLUMN_QUEUE, group->queue) &&
		   max == group->max && DatumGetInt32(value_of(slot, COLUMN_PRIORITY)) == group->priority &&
		   is_of_role(slot, group->role) &&
		   DatumGetInt64(value_of(slot, COLUMN_ROLE_ID)) == group->role_id;
}

/* The time that the task was first planned for. */
static TimestampTz
planned_time(const TupleTableSlot *slot)
{
	TaskColumn column = is_null(slot, COLUMN_PLANNED) ? COLUMN_DT : COLUMN_PLANNED;

	return DatumGetTimestampTz(value_of(slot, column));
}

/* Has the task expired at "now"?  EXPIRED in rows_sql.h: an interval is added in UTC. */
static bool
has_expired(const TupleTableSlot *slot, const Candidate *candidate, TimestampTz now)
{
	TimestampTz planned = planned_time(slot);
	Datum active = value_of(slot, COLUMN_ACTIVE);

	if (is_null(slot, COLUMN_ACTIVE))
		return candidate->active != 0 && planned + candidate->active * 1000 < now;
	if (interval_us(DatumGetIntervalP(active), 360) >= 100 * 360.0 * USECS_PER_DAY)
		return false;
	return DatumGetTimestamp(DirectFunctionCall2(timestamp_pl_interval, TimestampGetDatum(planned),
												 active)) < now;
}

/*
 * May the row of a candidate be claimed?  Of a run that may have been missed, and is not to be made
 * up for, the statement decides: MISSED in rows_sql.h.
 */
static bool
may_claim(const TupleTableSlot *slot, const Candidate *candidate, TimestampTz now)
{
	TimestampTz dt = DatumGetTimestampTz(value_of(slot, COLUMN_DT));

	return dt == candidate->place.dt && dt <= now && is_waiting(slot, candidate->group) &&
		   DatumGetInt32(value_of(slot, COLUMN_CRASHED)) == 0 &&
		   (!candidate->first_run || DatumGetInt32(value_of(slot, COLUMN_FAILED)) == 0) &&
		   !has_expired(slot, candidate, now) && !(repeats(slot) && dt < shared_serving_since());
}

/* A jsonb for the ring; NULL for NULL, and if it does not fit.  Adds its size. */
static Jsonb *
json_for_ring(const TupleTableSlot *slot, TaskColumn which, Size *total)
{
	Size size;

	if (is_null(slot, which))
		return NULL;
	size = toast_datum_size(value_of(slot, which));
	*total += size;
	return size <= SHARED_REQUEST ? DatumGetJsonbPCopy(value_of(slot, which)) : NULL;
}

/* Describe the claim of a row.  A request that does not fit into a ring, the executor reads. */
static void
fill_claim(const TupleTableSlot *slot, TaskRun run, Claim *claim)
{
	Datum request = value_of(slot, COLUMN_REQUEST);
	Size total = toast_raw_datum_size(request) - VARHDRSZ;

	*claim = (Claim){
		.run = run,
		.timeout = -1,
		.keep = -1,
		.format = text_or_null(slot, COLUMN_FORMAT),
		.role = pstrdup(NameStr(*DatumGetName(value_of(slot, COLUMN_ROLE)))),
		.role_id = DatumGetInt64(value_of(slot, COLUMN_ROLE_ID)),
		.planned = planned_time(slot),
	};
	if (!is_null(slot, COLUMN_TIMEOUT))
	{
		const Interval *timeout = DatumGetIntervalP(value_of(slot, COLUMN_TIMEOUT));
		double length = interval_us(timeout, 360);

		if (length >= 0 && length < 100 * 360.0 * USECS_PER_DAY)
			claim->timeout = (int64) interval_us(timeout, 365.25);
	}
	if (!is_null(slot, COLUMN_KEEP))
		claim->keep = Max(
			interval_us(DatumGetIntervalP(value_of(slot, COLUMN_KEEP)), 365.25) / USECS_PER_SEC, 0);
	claim->input = json_for_ring(slot, COLUMN_INPUT, &total);
	claim->meta = json_for_ring(slot, COLUMN_META, &total);
	if (total <= SHARED_REQUEST)
		claim->request = TextDatumGetCString(request);
	if (!is_null(slot, COLUMN_LOST))
		claim->lost = DatumGetInt32(value_of(slot, COLUMN_LOST));
	if (!is_null(slot, COLUMN_FLOW) &&
		toast_raw_datum_size(value_of(slot, COLUMN_FLOW)) - VARHDRSZ <= TASK_NAME_MAX)
		claim->flow = text_or_null(slot, COLUMN_FLOW);
}

/* Claim the row of a candidate.  Returns false if it is left to the statement. */
static bool
claim_row(Rows *rows, const Candidate *candidate, TimestampTz now, TimestampTz claimed,
		  Claim *claim)
{
	int32 attempt;

	/* a lock that is taken after this look is waited for, as long as lock_timeout allows */
	if (candidate->isolated || !find_row(rows, candidate->place.id) || !is_free(rows) ||
		!may_claim(rows->old, candidate, now))
		return false;
	attempt = Min(DatumGetInt32(value_of(rows->old, COLUMN_ATTEMPT)), PG_INT32_MAX - 1) + 1;
	copy_row(rows);
	set_text(rows, COLUMN_STATE, "WORK");
	set(rows, COLUMN_ATTEMPT, Int32GetDatum(attempt));
	set(rows, COLUMN_START, TimestampTzGetDatum(claimed));
	set_null(rows, COLUMN_STOP);
	set(rows, COLUMN_PID, Int32GetDatum(candidate->pid));
	if (candidate->lease >= 0)
		set(rows, COLUMN_LEASE, Int32GetDatum(candidate->lease));
	else
		set_null(rows, COLUMN_LEASE);
	if (!write_row(rows))
		return false;
	fill_claim(rows->old, (TaskRun){candidate->place.id, attempt, claimed}, claim);
	return true;
}

/*
 * Claim candidates as rows_claim does, which see.  Returns the number of claims; "left" has room
 * for all candidates, and gets those that are left to the statement.
 */
int
direct_claim(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
			 TimestampTz claimed, Claim *claims, Candidate *left, int *nleft)
{
	Rows rows;
	bool begun = begin_rows(&rows, table);
	int found = 0;
	int i;

	*nleft = 0;
	for (i = 0; i < count; i++)
	{
		if (begun && claim_row(&rows, &candidates[i], now, claimed, &claims[found]))
			found++;
		else
			left[(*nleft)++] = candidates[i];
	}
	if (begun)
		end_rows(&rows);
	return found;
}

/* ---- the end ---- */

/*
 * Is this row that run, which was not planned again meanwhile, and does it notify nobody?  The
 * fence of finish_run.
 */
static bool
is_run(const TupleTableSlot *slot, TaskRun run)
{
	return DatumGetInt64(value_of(slot, COLUMN_ID)) == run.id &&
		   DatumGetInt32(value_of(slot, COLUMN_ATTEMPT)) == run.attempt &&
		   !is_null(slot, COLUMN_START) &&
		   DatumGetTimestampTz(value_of(slot, COLUMN_START)) == run.claimed &&
		   DatumGetTimestampTz(value_of(slot, COLUMN_DT)) <= run.claimed &&
		   is_text(slot, COLUMN_STATE, "WORK") && is_null(slot, COLUMN_NOTIFY);
}

/* Does the row go when it is DONE?  REMOVES in outcome.c. */
static bool
removes(const TupleTableSlot *slot)
{
	return !is_null(slot, COLUMN_KEEP) && is_null(slot, COLUMN_FLOW) &&
		   interval_us(DatumGetIntervalP(value_of(slot, COLUMN_KEEP)), 360) <= 0;
}

/*
 * Find when the task of a row that repeats runs next.  Returns false if never.  READ_REPEAT in
 * outcome.c.
 */
static bool
find_next(const TupleTableSlot *slot, const RowFinish *finish, RowNext *next)
{
	RowRepeat repeat = {
		.dt = planned_time(slot),
		.drift = DatumGetBool(value_of(slot, COLUMN_DRIFT)),
		.timezone = text_or_null(slot, COLUMN_TIMEZONE),
		.role_id = DatumGetInt64(value_of(slot, COLUMN_ROLE_ID)),
		.cron = text_or_null(slot, COLUMN_CRON),
		.missed = text_or_null(slot, COLUMN_MISSED),
		.until = DT_NOEND,
		.runs = PG_INT32_MAX,
	};

	if (!is_null(slot, COLUMN_REPEAT_UNTIL))
		repeat.until = DatumGetTimestampTz(value_of(slot, COLUMN_REPEAT_UNTIL));
	if (!is_null(slot, COLUMN_RUNS_LEFT))
		repeat.runs = DatumGetInt32(value_of(slot, COLUMN_RUNS_LEFT));

	repeat.anchor = is_null(slot, COLUMN_ANCHOR)
						? repeat.dt
						: DatumGetTimestampTz(value_of(slot, COLUMN_ANCHOR));
	if (!is_null(slot, COLUMN_REPEAT))
		repeat.repeat = *DatumGetIntervalP(value_of(slot, COLUMN_REPEAT));
	return repeat_find_next((RowKey){finish->run.id, finish->role}, &repeat, finish->result,
							finish->result->stop, next);
}

/* Insert the row of the next run, made from the one that was found, and fire our trigger. */
static void
insert_next(Rows *rows, int64 id, const RowNext *next)
{
	TupleDesc desc = rows->old->tts_tupleDescriptor;
	ResultRelInfo *result = makeNode(ResultRelInfo);
	EState *estate = CreateExecutorState();
	int i;

	copy_row(rows);
	for (i = 0; i < desc->natts; i++)
		if (!direct.inherited[i])
		{
			rows->new->tts_values[i] = direct.defaults[i].value;
			rows->new->tts_isnull[i] = direct.defaults[i].isnull;
		}
	set(rows, COLUMN_PARENT, value_of(rows->old, COLUMN_ID));
	set(rows, COLUMN_ID, Int64GetDatum(id));
	set(rows, COLUMN_DT, TimestampTzGetDatum(next->dt));
	if (next->has_anchor)
		set(rows, COLUMN_ANCHOR, TimestampTzGetDatum(next->anchor));
	if (!is_null(rows->old, COLUMN_HOLD))
		set(rows, COLUMN_HOLD, value_of(rows->old, COLUMN_HOLD));
	else if (next->hold)
		set(rows, COLUMN_HOLD, CStringGetTextDatum(next->hold));
	if (!is_null(rows->old, COLUMN_RUNS_LEFT))
		set(rows, COLUMN_RUNS_LEFT,
			Int32GetDatum(DatumGetInt32(value_of(rows->old, COLUMN_RUNS_LEFT)) - 1));
	set_null(rows, COLUMN_STREAK);
	InitResultRelInfo(result, rows->rel, 0, NULL, 0);
	if (ExecBRInsertTriggers(estate, result, rows->new))
	{
		table_tuple_insert(rows->rel, rows->new, GetCurrentCommandId(true), 0, NULL);
		insert_entries(rows, false);
	}
	FreeExecutorState(estate);
}

/*
 * Set the row of a run to DONE, or delete it, and plan the next run of one that repeats: its id is
 * drawn first.
 */
static bool
finish_row(Rows *rows, RowFinish *finish)
{
	const TaskResult *result = finish->result;
	bool plans = false;
	int64 id = 0;
	RowNext next;

	if (result->goes_on || !find_row(rows, finish->run.id) || !is_run(rows->old, finish->run))
		return false;
	if (repeats(rows->old))
	{
		/* a row that another role has got meanwhile does not repeat: ENDED_CHAIN */
		if (!direct.inserts || !is_of_role(rows->old, finish->role))
			return false;
		owner_pin_path();
		plans = find_next(rows->old, finish, &next);
		if (plans)
			id = nextval_internal(direct.sequence, false);
	}
	if (removes(rows->old))
	{
		if (!delete_row(rows))
			return false;
	}
	else
	{
		copy_row(rows);
		if (plans)
			set(rows, COLUMN_NEXT, Int64GetDatum(id));
		set_text(rows, COLUMN_STATE, "DONE");
		set(rows, COLUMN_START, TimestampTzGetDatum(result->start));
		set(rows, COLUMN_STOP, TimestampTzGetDatum(result->stop));
		set_text(rows, COLUMN_RESPONSE, result->response);
		set_text(rows, COLUMN_NOTICE, result->notice);
		set_null(rows, COLUMN_ERROR);
		set_null(rows, COLUMN_SQLSTATE);
		set_null(rows, COLUMN_STREAK);
		if (!write_row(rows))
			return false;
	}
	if (plans)
		insert_next(rows, id, &next);
	return true;
}

/*
 * Set runs to DONE, as finish_run does, which see; "finished" says which of them.  The caller acts
 * as the owner of the table, and has locked it.
 */
void
direct_finish(const TaskTable *table, RowFinish *finishes, int count)
{
	Rows rows;
	int i;

	if (!begin_rows(&rows, table))
		return;
	for (i = 0; i < count; i++)
		finishes[i].finished = finish_row(&rows, &finishes[i]);
	end_rows(&rows);
}
