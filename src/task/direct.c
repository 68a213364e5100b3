/*
 * direct.c
 *		Writes rows of the task table without a statement: DONE here, the claim in direct_claim.c.
 *
 * These UPDATEs run for every task.  Three quarters of their processor time went into what is the
 * same each time: the plan is started, all indexes are opened, their conditions are copied, planned
 * and compiled.  Here the conditions are compiled once, and an index is opened only if the row gets
 * an entry in it.
 *
 * It is an addition to the statements (row_finish, rows_claim), never their replacement: it writes
 * only rows of tables that need nothing but heap_update and entries in B-tree indexes, and only if
 * nobody has changed the row meanwhile.  Otherwise it writes nothing, and the caller executes the
 * statement, which fires triggers, checks constraints, waits, and reports conflicts.
 *
 * Nothing that belongs to a transaction is kept: no relation, no buffer, no snapshot.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type_d.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "task/columns.h"
#include "task/direct.h"
#include "task/owner.h"
#include "task/statement.h"

/* The columns that are written, at a claim or at the end. */
static const TaskColumn written[] = {COLUMN_START,	 COLUMN_STOP,	  COLUMN_PID,
									 COLUMN_ATTEMPT, COLUMN_STATE,	  COLUMN_RESPONSE,
									 COLUMN_ERROR,	 COLUMN_SQLSTATE, COLUMN_NOTICE};

/* An index of the table. */
typedef struct DirectIndex
{
	Oid oid;
	IndexInfo *info;
	ExprState *condition; /* of a partial index; NULL: none */
	bool unchanged;		  /* what is written changes no key of it */
	bool runs_users;	  /* a comparison may call functions of users */
} DirectIndex;

/*
 * What is kept of one table, as long as the process lives or until the table changes.  Static,
 * because callbacks (callbacks.c) write it.
 */
static struct
{
	bool complete; /* the rest describes the table as it is ... */
	bool writing;  /* ... and nobody was interrupted while using it */
	Oid relid;
	bool plain; /* rows can be written; otherwise the rest is not set */
	MemoryContext context;
	EState *estate;
	Oid id_index; /* unique, on the id alone */
	DirectIndex *indexes;
	int nindexes;
	AttrNumber numbers[TASK_COLUMNS]; /* of the columns that are read or written */
} direct;

/*
 * A relation has changed.  InvalidOid stands for all relations.  While the description is made, not
 * all indexes are known, so everything counts.
 */
void
direct_relation_invalidated(Oid relid)
{
	int i;

	if (!direct.complete)
		direct.relid = InvalidOid;
	if (relid == direct.relid || relid == InvalidOid)
		direct.complete = false;
	for (i = 0; direct.complete && i < direct.nindexes; i++)
		if (relid == direct.indexes[i].oid)
			direct.complete = false;
}

/* Forget the table. */
static void
forget_table(void)
{
	direct.complete = direct.writing = false;
	direct.nindexes = 0;
	direct.indexes = NULL;
	direct.id_index = InvalidOid;
	if (direct.context)
		MemoryContextDelete(direct.context);
	direct.context = NULL;
}

/*
 * After an error in the middle, free what it has left: the owner's index expressions may have taken
 * much memory.
 */
void
direct_transaction_ended(XactEvent event)
{
	if (event == XACT_EVENT_ABORT && direct.writing)
		forget_table();
}

/* Does a trigger other than ours fire for an UPDATE?  Ours do nothing for this one. */
static bool
has_triggers(const TriggerDesc *triggers)
{
	int i;

	if (triggers == NULL)
		return false;
	for (i = 0; i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (TRIGGER_FOR_UPDATE(trigger->tgtype) &&
			!statement_trigger_calls(trigger, "pg_task_timed") &&
			!statement_trigger_calls(trigger, "pg_task_planned") &&
			!statement_trigger_calls(trigger, "pg_task_numbered"))
			return true;
	}
	return false;
}

/* Must an UPDATE check a row, or compute a column of it? */
static bool
has_constraints(const TupleConstr *constraints)
{
	return constraints && (constraints->num_check > 0 || constraints->has_generated_stored);
}

/*
 * Would the server change what is written into one of these columns, or refuse it because of the
 * definition of the column?
 */
static bool
changes_values(TupleDesc desc, const TaskColumn *columns, int count)
{
	int i;

	for (i = 0; i < count; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, direct.numbers[columns[i]] - 1);

		if (column_rounds(att) || att->attgenerated != '\0' ||
			att->attidentity == ATTRIBUTE_IDENTITY_ALWAYS)
			return true;
	}
	return false;
}

/*
 * Is all that an UPDATE of the table does to write a tuple into a heap, and to insert it into
 * indexes?  And may its owner, who acts, write it?  Tuples of other access methods look otherwise.
 * The triggers are copied, because the functions are looked up.
 */
static bool
is_plain(Relation rel)
{
	if (rel->rd_rel->relkind != RELKIND_RELATION || rel->rd_rel->relispartition || rel->rd_rules ||
		rel->rd_tableam != GetHeapamTableAmRoutine() ||
		changes_values(RelationGetDescr(rel), written, lengthof(written)) ||
		has_constraints(RelationGetDescr(rel)->constr) ||
		has_triggers(CopyTriggerDesc(rel->trigdesc)))
		return false;
	return pg_class_aclmask(RelationGetRelid(rel), GetUserId(), ACL_SELECT | ACL_UPDATE,
							ACLMASK_ALL) == (ACL_SELECT | ACL_UPDATE);
}

/* Is this a function that a user has created? */
static bool
is_users(Oid function, void *context pg_attribute_unused())
{
	return function >= FirstNormalObjectId;
}

/*
 * Does an expression call a function that a user has created?  What is compiled of it must not be
 * kept.  Neither must the constraints of a domain, which may call one: when they change, no
 * relation does.
 */
static bool
calls_users(Node *node, void *context)
{
	if (node == NULL)
		return false;
	return IsA(node, CoerceToDomain) || check_functions_in_node(node, is_users, context) ||
		   expression_tree_walker(node, COMPAT_WALKER(calls_users), context);
}

/* Is it unchanged by what is written, so that the index already has an entry with the same key? */
static bool
is_unchanged(const IndexInfo *info)
{
	Bitmapset *keys = NULL;
	int i;

	for (i = 0; i < info->ii_NumIndexKeyAttrs; i++)
		if (info->ii_IndexAttrNumbers[i] != 0)
			keys = bms_add_member(keys, info->ii_IndexAttrNumbers[i] -
											FirstLowInvalidHeapAttributeNumber);
	pull_varattnos((Node *) info->ii_Expressions, 1, &keys);
	for (i = 0; i < (int) lengthof(written); i++)
		if (bms_is_member(direct.numbers[written[i]] - FirstLowInvalidHeapAttributeNumber, keys))
			return false;
	return true;
}

/*
 * Has an expression values of a type that a user has created?  The server's functions for arrays
 * and rows call those of the operator classes of their elements.
 */
static bool
has_users_type(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if ((IsA(node, Var) || IsA(node, Const) || IsA(node, RelabelType)) &&
		exprType(node) >= FirstNormalObjectId)
		return true;
	return expression_tree_walker(node, COMPAT_WALKER(has_users_type), context);
}

/*
 * May a function that a user has created be called when a row gets an entry?  That is for the
 * comparison of keys, above all, and it runs as the owner.
 */
static bool
runs_users(Relation index, const IndexInfo *info)
{
	int i;

	for (i = 0; i < info->ii_NumIndexKeyAttrs; i++)
		if (TupleDescAttr(RelationGetDescr(index), i)->atttypid >= FirstNormalObjectId ||
			index_getprocid(index, i + 1, BTORDER_PROC) >= FirstNormalObjectId)
			return true;
	return has_users_type((Node *) info->ii_Expressions, NULL) ||
		   has_users_type((Node *) info->ii_Predicate, NULL);
}

/* Keep what is needed of an index.  Returns false if it is of a kind that is not served here. */
static bool
keep_index(Relation index, DirectIndex *kept)
{
	Form_pg_index form = index->rd_index;
	bool is_id = form->indisunique && form->indisvalid && form->indnkeyatts == 1 &&
				 form->indkey.values[0] == direct.numbers[COLUMN_ID];

	/* one of kind GIN is on "after", and has no row that is written here */
	if ((index->rd_rel->relam != BTREE_AM_OID &&
		 (index->rd_rel->relam != GIN_AM_OID || index->rd_opfamily[0] >= FirstNormalObjectId)) ||
		!form->indimmediate || form->indisexclusion)
		return false;
	kept->oid = RelationGetRelid(index);
	kept->info = BuildIndexInfo(index);
	if (calls_users((Node *) kept->info->ii_Predicate, NULL) ||
		calls_users((Node *) kept->info->ii_Expressions, NULL))
		return false;
	if (kept->info->ii_Predicate)
		kept->condition = ExecPrepareQual(kept->info->ii_Predicate, direct.estate);
	kept->unchanged = is_unchanged(kept->info);
	kept->runs_users = runs_users(index, kept->info);
	if (is_id && kept->condition == NULL)
		direct.id_index = kept->oid;
	return true;
}

/* Keep what is needed of all indexes. */
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
 * Describe the table.  A change that is reported meanwhile leaves "relid" invalid, so that the
 * next run describes it again.
 */
static void
describe_table(Relation rel)
{
	MemoryContext old;
	int i;

	owner_pin_path();
	forget_table();
	direct.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task direct", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(direct.context);
	direct.relid = RelationGetRelid(rel);
	for (i = 0; i < TASK_COLUMNS; i++)
		direct.numbers[i] = get_attnum(RelationGetRelid(rel), task_columns[i].name);
	direct.estate = CreateExecutorState();
	direct.plain =
		columns_complete(rel, task_columns, TASK_COLUMNS) && is_plain(rel) && keep_indexes(rel);
	direct.complete = OidIsValid(direct.relid);
	MemoryContextSwitchTo(old);
}

/* A column of a row. */
Datum
direct_value(TupleTableSlot *slot, TaskColumn column, bool *isnull)
{
	return slot_getattr(slot, direct.numbers[column], isnull);
}

bool
direct_is_null(TupleTableSlot *slot, TaskColumn column)
{
	return slot_attisnull(slot, direct.numbers[column]);
}

/* Is a column of type text exactly this? */
bool
direct_is_text(TupleTableSlot *slot, TaskColumn column, const char *wanted)
{
	bool isnull;
	Datum value = direct_value(slot, column, &isnull);
	const text *string;

	if (isnull)
		return false;
	string = DatumGetTextPP(value);
	return VARSIZE_ANY_EXHDR(string) == strlen(wanted) &&
		   memcmp(VARDATA_ANY(string), wanted, strlen(wanted)) == 0;
}

/* Find the row with this id, as the snapshot sees it: rows->old, which keeps its buffer pinned. */
bool
direct_find(DirectRows *rows, int64 id)
{
	ScanKeyData key;

	if (rows->scan == NULL)
	{
		/* what is told of the table when the index is locked may have it read conditions again */
		owner_pin_path();
		rows->index = index_open(direct.id_index, RowExclusiveLock);
		rows->scan = COMPAT_INDEX_BEGINSCAN(rows->rel, rows->index, GetActiveSnapshot(), 1);
	}
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	index_rescan(rows->scan, &key, 1, NULL, 0);
	return index_getnext_slot(rows->scan, ForwardScanDirection, rows->old);
}

/* Find a row where it was read or written; the caller sees whether it is that row. */
bool
direct_find_at(DirectRows *rows, ItemPointerData tid)
{
	/* VACUUM may have cut it off before this transaction has locked the table */
	if (rows->blocks == 0)
		rows->blocks = RelationGetNumberOfBlocks(rows->rel);
	return ItemPointerGetBlockNumber(&tid) < rows->blocks &&
		   table_tuple_fetch_row_version(rows->rel, &tid, GetActiveSnapshot(), rows->old);
}

/*
 * Has the page of the row room for a new version?  A look without a lock, as the server takes it
 * before it prunes a page.
 */
static bool
has_room(const TupleTableSlot *slot)
{
	const BufferHeapTupleTableSlot *old = (const BufferHeapTupleTableSlot *) slot;

	Assert(TTS_IS_BUFFERTUPLE(slot));
	return PageGetHeapFreeSpace(BufferGetPage(old->buffer)) >= 2 * old->base.tuple->t_len;
}

/*
 * Find a row where a claim has written it.  This saves the way through the index.  A page that is
 * full is not for this: on that way the server prunes it, so that the new version need not be
 * written to another page.
 */
static bool
find_claimed(DirectRows *rows, ItemPointerData tid)
{
	if (!ItemPointerIsValid(&tid))
		return false;
	if (direct_find_at(rows, tid) && has_room(rows->old))
		return true;
	ExecClearTuple(rows->old); /* a page that is pinned is not pruned */
	return false;
}

/* Set a column of the new row. */
void
direct_set(DirectRows *rows, TaskColumn column, Datum value)
{
	rows->new->tts_values[direct.numbers[column] - 1] = value;
	rows->new->tts_isnull[direct.numbers[column] - 1] = false;
}

void
direct_set_null(DirectRows *rows, TaskColumn column)
{
	rows->new->tts_isnull[direct.numbers[column] - 1] = true;
}

/* Set a text; NULL for NULL. */
void
direct_set_text(DirectRows *rows, TaskColumn column, const char *value)
{
	if (value)
		direct_set(rows, column, CStringGetTextDatum(value));
	else
		direct_set_null(rows, column);
}

/*
 * Is a column NULL that must not be?  The statement says so; or it computes the column, which is
 * generated and not stored.
 */
static bool
lacks_value(const TupleTableSlot *slot)
{
	TupleDesc desc = slot->tts_tupleDescriptor;
	int i;

	for (i = 0; i < desc->natts; i++)
		if (slot->tts_isnull[i] && TupleDescAttr(desc, i)->attnotnull)
			return true;
	return false;
}

/* Begin a new row, with the values of the old one. */
void
direct_copy(DirectRows *rows)
{
	TupleDesc desc = rows->old->tts_tupleDescriptor;
	int i;

	slot_getallattrs(rows->old);
	ExecClearTuple(rows->new);
	for (i = 0; i < desc->natts; i++)
	{
		rows->new->tts_values[i] = rows->old->tts_values[i];
		rows->new->tts_isnull[i] = rows->old->tts_isnull[i] || TupleDescAttr(desc, i)->attisdropped;
	}
	ExecStoreVirtualTuple(rows->new);
}

/* Insert the new row into an index. */
static void
insert_entry(Relation rel, const DirectIndex *kept, TupleTableSlot *slot)
{
	Relation index = index_open(kept->oid, RowExclusiveLock);
	Datum values[INDEX_MAX_KEYS];
	bool isnull[INDEX_MAX_KEYS];

	FormIndexDatum(kept->info, slot, direct.estate, values, isnull);
	(void) index_insert(index, values, isnull, &slot->tts_tid, rel,
						kept->info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, kept->unchanged,
						kept->info);
	index_close(index, NoLock);
}

/* Insert the new row into all indexes that it belongs to. */
static void
insert_entries(Relation rel, TupleTableSlot *slot)
{
	ExprContext *context = GetPerTupleExprContext(direct.estate);
	int i;

	context->ecxt_scantuple = slot;
	for (i = 0; i < direct.nindexes; i++)
	{
		const DirectIndex *kept = &direct.indexes[i];

		if (kept->runs_users)
			owner_pin_path();
		if (kept->info->ii_ReadyForInserts && ExecQual(kept->condition, context))
			insert_entry(rel, kept, slot);
	}
	context->ecxt_scantuple = NULL;
	ResetPerTupleExprContext(direct.estate);
}

/*
 * Is the row that was found as free of locks and changes as a new one?  What has ended since may
 * say no, too.
 */
bool
direct_is_free(const DirectRows *rows)
{
	const BufferHeapTupleTableSlot *slot = (const BufferHeapTupleTableSlot *) rows->old;

	Assert(TTS_IS_BUFFERTUPLE(rows->old));
	return (slot->base.tuple->t_data->t_infomask & HEAP_XMAX_INVALID) != 0;
}

/*
 * Write the new row.  Returns false if nothing was written: somebody has changed the old one since
 * the snapshot, or it would have a NULL that is not allowed.  Whoever has only locked it is waited
 * for: heap_update must not be called for a locked row otherwise, and asserts that.
 */
bool
direct_write(DirectRows *rows)
{
	COMPAT_UPDATE_INDEXES indexes;
	TM_FailureData failure;
	LockTupleMode mode;

	CheckCmdReplicaIdentity(rows->rel, CMD_UPDATE);
	if (lacks_value(rows->new) ||
		COMPAT_TUPLE_UPDATE(rows->rel, &rows->old->tts_tid, rows->new, GetCurrentCommandId(true),
							GetActiveSnapshot(), &failure, &mode, &indexes) != TM_Ok)
		return false;
	if (indexes)
		insert_entries(rows->rel, rows->new);
	return true;
}

/*
 * Begin to find and write rows of a table, until direct_end.  Returns false if the table needs
 * statements.  The caller acts as its owner, and has locked it.
 */
bool
direct_begin(DirectRows *rows, const TaskTable *table)
{
	Relation rel;

	Assert(owner_acts());
	if (table->partitioned)
		return false;
	/* what the request has written must be seen, and what it has defined, as by any statement */
	CommandCounterIncrement();
	rel = table_open(table->relid, RowExclusiveLock);
	if (!direct.complete || direct.writing || direct.relid != table->relid)
		describe_table(rel);
	if (!direct.complete || !direct.plain)
	{
		table_close(rel, NoLock);
		return false;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	direct.writing = true;
	*rows = (DirectRows){.rel = rel};
	rows->old = table_slot_create(rel, NULL);
	rows->new = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	return true;
}

void
direct_end(DirectRows *rows)
{
	if (rows->scan)
	{
		index_endscan(rows->scan);
		index_close(rows->index, NoLock);
	}
	ExecDropSingleTupleTableSlot(rows->old);
	ExecDropSingleTupleTableSlot(rows->new);
	direct.writing = false;
	PopActiveSnapshot();
	table_close(rows->rel, NoLock);
}

/* Is this row that run, and was it not planned again meanwhile?  The fence of row_finish. */
static bool
is_run(TupleTableSlot *slot, TaskRun run)
{
	bool isnull[4];
	int64 id = DatumGetInt64(direct_value(slot, COLUMN_ID, &isnull[3]));
	int32 attempt = DatumGetInt32(direct_value(slot, COLUMN_ATTEMPT, &isnull[0]));
	TimestampTz claimed = DatumGetTimestampTz(direct_value(slot, COLUMN_START, &isnull[1]));
	TimestampTz dt = DatumGetTimestampTz(direct_value(slot, COLUMN_DT, &isnull[2]));

	return !isnull[3] && id == run.id && !isnull[0] && attempt == run.attempt && !isnull[1] &&
		   claimed == run.claimed && !isnull[2] && dt <= run.claimed &&
		   direct_is_text(slot, COLUMN_STATE, "WORK");
}

/* Make the row as it is to be when the run is DONE. */
static void
make_done(DirectRows *rows, const TaskResult *result)
{
	direct_copy(rows);
	direct_set_text(rows, COLUMN_STATE, "DONE");
	direct_set(rows, COLUMN_START, TimestampTzGetDatum(result->start));
	direct_set(rows, COLUMN_STOP, TimestampTzGetDatum(result->stop));
	direct_set_text(rows, COLUMN_RESPONSE, result->response);
	direct_set_text(rows, COLUMN_NOTICE, result->notice);
	direct_set_null(rows, COLUMN_ERROR);
	direct_set_null(rows, COLUMN_SQLSTATE);
}

/* Find the row of a run, and set it to DONE. */
static bool
finish_row(DirectRows *rows, const RowFinish *finish)
{
	if (!(find_claimed(rows, finish->result->tid) && is_run(rows->old, finish->run)) &&
		!(direct_find(rows, finish->run.id) && is_run(rows->old, finish->run)))
		return false;
	make_done(rows, finish->result);
	return direct_write(rows);
}

/*
 * Set runs to DONE, as row_finish does, which see; "finished" says which of them.  The caller acts
 * as the owner of the table, and has locked it.
 */
void
direct_finish(const TaskTable *table, RowFinish *finishes, int count)
{
	DirectRows rows;
	int i;

	if (!direct_begin(&rows, table))
		return;
	for (i = 0; i < count; i++)
		finishes[i].finished = finish_row(&rows, &finishes[i]);
	direct_end(&rows);
}
