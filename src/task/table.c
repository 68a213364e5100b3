/*
 * table.c
 *		Finds, describes and locks the task table, watches it for changes of its definition, and
 *		checks that the names in our statements mean it.  The scheduler has it made and completed
 *		before (create.c), and finds the tables beside it.
 *
 * The server reports changes by invalidation messages.  A process receives them when it takes a
 * lock on a relation: the caller locks the table first (table_lock), then asks.
 *
 * This file claims nothing and runs no request.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "settings.h"
#include "task/create.h"
#include "task/home.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/relation.h"
#include "task/table.h"

/*
 * What this process watches: one table.  Static, because callbacks (pg_task.c) write it.
 */
static struct
{
	Oid relid;
	List *relatives; /* oids of partitions, of parents, of the tables beside it */
	bool changed;	 /* any of them may have changed since the watch began */
	uint32 changes;	 /* how often that was reported, since this process began */
} watch;

/* Hooks take no argument: what they check is here. */
static NamedTable expected;
static post_parse_analyze_hook_type next_analyze;

/* ---- the watch ---- */

/*
 * A relation has changed.  InvalidOid stands for all relations, and for a schema, which may have
 * been renamed: that does not invalidate the relations in it.
 */
void
watch_invalidated(Oid relid)
{
	if (relid == watch.relid || relid == InvalidOid || list_member_oid(watch.relatives, relid))
	{
		watch.changed = true;
		watch.changes++;
	}
}

/*
 * Watch a table, and no longer the table before: from now on watch_changed returns whether it may
 * have changed.  The caller holds a lock on the table, and reads the catalogs after this, so a
 * change that it does not see is reported.
 */
static void
begin_watch(Oid relid)
{
	Assert(compat_relation_locked(relid));
	watch.relid = relid;
	list_free(watch.relatives);
	watch.relatives = NIL;
	watch.changed = false;
}

/* Watch a table as well that belongs to the watched one; InvalidOid: none. */
static void
watch_relative(Oid relid)
{
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);

	if (OidIsValid(relid))
		watch.relatives = list_append_unique_oid(watch.relatives, relid);
	MemoryContextSwitchTo(caller);
}

/* May the watched table have changed, or one that belongs to it, since the watch began? */
bool
watch_changed(void)
{
	return watch.changed;
}

/*
 * A counter of the changes that were reported to this process.  It also tells of those between the
 * last call of watch_changed and the next begin_watch.
 */
uint32
watch_changes(void)
{
	return watch.changes;
}

/*
 * Has this transaction changed the row in pg_class, or a column, of the watched table or of one
 * that belongs to it: created it, changed or dropped a column, changed the owner, or the like?
 * Called when the table cannot be served any more.
 */
bool
watch_changed_here(void)
{
	bool here = false;
	ListCell *cell;

	foreach(cell, lcons_oid(watch.relid, list_copy(watch.relatives)))
	{
		Datum relid = ObjectIdGetDatum(lfirst_oid(cell));
		HeapTuple tuple = SearchSysCache1(RELOID, relid);
		int i;

		for (i = 1; HeapTupleIsValid(tuple); i++)
		{
			here |= TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
			ReleaseSysCache(tuple);
			tuple = SearchSysCache2(ATTNUM, relid, Int16GetDatum(i));
		}
	}
	return here;
}

/* ---- the names in our statements ---- */

/*
 * Raise an error if a query of ours uses another table that is not the server's own.
 *
 * The query contains the name of a table that we have locked and checked.  The lock keeps its name,
 * but not that of its schema, and the server resolves names when it parses a statement and again
 * whenever it makes a new plan.  If another relation has the name by then, the statement must not
 * run: it may be a view of an owner, who can rename schemas, in the place of the table.
 */
static bool
check_tables(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *entry = (RangeTblEntry *) node;

		if (entry->rtekind == RTE_RELATION && entry->relid != expected.relid &&
			entry->relid >= FirstNormalObjectId)
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, COMPAT_WALKER(check_tables), context,
								 QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, COMPAT_WALKER(check_tables), context);
}

/* post_parse_analyze hook. */
static void
check_analyzed_statement(ParseState *pstate, Query *query, COMPAT_JUMBLE_STATE *jumble)
{
	if (expected.text && strcmp(pstate->p_sourcetext, expected.text) == 0)
		(void) check_tables((Node *) query, NULL);
	if (next_analyze)
		next_analyze(pstate, query, jumble);
}

/* Called once, before any process starts. */
void
named_table_define(void)
{
	Assert(post_parse_analyze_hook != check_analyzed_statement);
	next_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = check_analyzed_statement;
}

/*
 * A plan is about to be executed: check it, if it is that of our statement.  A partition that was
 * attached after the watch began must not be in it: the statement would fire its triggers.
 */
void
named_table_check_plan(const QueryDesc *query)
{
	ListCell *cell;

	if (!expected.text || !expected.partitioned || strcmp(query->sourceText, expected.text) != 0)
		return;
	foreach(cell, query->plannedstmt->rtable)
	{
		const RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

		if (entry->rtekind == RTE_RELATION && entry->relid != watch.relid &&
			!list_member_oid(watch.relatives, entry->relid) &&
			relation_root(entry->relid) == watch.relid)
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
	}
}

/*
 * The caller executes this statement, which may use no table but this one.  Afterwards, also after
 * an error, it calls this with the result.
 */
NamedTable
named_table_expect(NamedTable table)
{
	NamedTable outer = expected;

	expected = table;
	return outer;
}

/* ---- its description ---- */

/* The name of the table for SQL: quoted, with the schema. */
static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* The definition of a column that is ours; NULL: it is the owner's. */
static const ColumnDefinition *
find_definition(const char *name)
{
	TaskColumn which;

	for (which = 0; which < TASK_COLUMNS; which++)
		if (strcmp(name, task_columns[which].name) == 0)
			return &task_columns[which];
	return NULL;
}

/*
 * List, for SQL, the columns that are copied to the next row of a repeating task, each after a
 * comma: all that have none of these flags, but what belongs to one run.  Those that the owner has
 * added have none.
 */
static char *
list_inherited(Relation rel, int without)
{
	TupleDesc desc = RelationGetDescr(rel);
	StringInfoData list;
	int i;

	initStringInfo(&list);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const ColumnDefinition *ours = find_definition(NameStr(att->attname));
		int flags = ours ? ours->flags : 0;

		if (att->attisdropped || att->attgenerated || att->attidentity || (flags & without) ||
			(ours && (flags & COLUMN_INHERITED) == 0))
			continue;
		appendStringInfo(&list, ", %s", quote_identifier(NameStr(att->attname)));
	}
	return list.data;
}

/*
 * The same of the columns that one more run of a schedule has in common with it.  The caller has
 * locked the table.
 */
char *
table_columns_of_run(Oid relid)
{
	Relation rel = relation_open(relid, NoLock);
	char *list = list_inherited(rel, COLUMN_OF_SCHEDULE & ~COLUMN_INHERITED);

	relation_close(rel, NoLock);
	return list;
}

/*
 * Describe the task table "relid", in a memory context of its own below "parent".  Returns NULL if
 * there is no such relation.  Must be called in a transaction.
 *
 * The table is watched from here on.  The watch begins before the catalogs are read, so a change
 * made meanwhile is reported by watch_changed.  After an error, everything allocated here goes
 * with the current memory context.
 */
TaskTable *
table_find(Oid relid, MemoryContext parent)
{
	Relation rel = try_relation_open(relid, AccessShareLock);
	MemoryContext context;
	List *members;
	TaskTable *table;
	ListCell *cell;

	if (rel == NULL)
		return NULL;
	context = AllocSetContextCreate(CurrentMemoryContext, "pg_task table", ALLOCSET_SMALL_SIZES);
	begin_watch(relid);
	members = relation_members(rel);
	foreach(cell, list_concat_copy(members, relation_parents(relid)))
		watch_relative(lfirst_oid(cell));
	table = MemoryContextAllocZero(context, sizeof(TaskTable));
	table->context = context;
	table->relid = relid;
	table->owner = rel->rd_rel->relowner;
	table->partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	table->name = MemoryContextStrdup(context, qualified_name(relid));
	table->rows = MemoryContextStrdup(
		context, psprintf("%s%s", table->partitioned ? "" : "ONLY ", table->name));
	table->inherited = MemoryContextStrdup(context, list_inherited(rel, 0));
	table->own = MemoryContextStrdup(context, list_inherited(rel, COLUMN_INHERITED));
	table->members = MemoryContextAlloc(context, (list_length(members) + 1) * sizeof(Oid));
	foreach(cell, members)
		table->members[table->nmembers++] = lfirst_oid(cell);
	table->whole = relation_fault(rel, task_columns, TASK_COLUMNS) == NULL &&
				   columns_fault(rel, task_columns, TASK_COLUMNS, true) == NULL;
	table->code = owner_code_find(relid, true);
	if (table->code)
		table->code = MemoryContextStrdup(context, table->code);
	relation_close(rel, AccessShareLock);
	MemoryContextSetParent(context, parent);
	return table;
}

/*
 * Lock a table and its partitions until the end of the transaction.  With AccessShareLock the table
 * keeps its name, and nobody can change the owner of a partition; with RowExclusiveLock nobody adds
 * a trigger, either.  Call watch_changed after this, to find out whether the table changed before.
 */
void
table_lock(const TaskTable *table, LOCKMODE mode)
{
	int i;

	Assert(IsTransactionState());
	relation_lock(table->relid, mode);
	for (i = 0; i < table->nmembers; i++)
		relation_lock(table->members[i], mode);
}

/*
 * Describe a table beside the task table for statement_execute.  It is watched from now on, also if
 * it cannot be used: then NULL, and *fault says why.
 */
static TaskTable *
find_side(SideKind kind, TaskTable *task, const char **fault)
{
	TaskTable *table;
	Relation rel;

	watch_relative(side_table_find(kind, task->relid));
	rel = side_table_open(kind, task->relid, task->owner, false, fault);
	if (rel == NULL)
		return NULL;
	if (task->code == NULL && (task->code = owner_code_find(RelationGetRelid(rel), true)) != NULL)
		task->code = MemoryContextStrdup(task->context, task->code);
	table = MemoryContextAllocZero(task->context, sizeof(TaskTable));
	table->relid = RelationGetRelid(rel);
	table->owner = task->owner;
	table->name = MemoryContextStrdup(task->context, qualified_name(table->relid));
	table->rows = MemoryContextStrdup(task->context, psprintf("ONLY %s", table->name));
	table->inherited = "";
	table->own = "";
	table->whole = true;
	relation_close(rel, NoLock);
	return table;
}

/*
 * Make sure that the task table of this database and those beside it exist and are complete, and
 * describe them in a child of the given memory context.  Returns NULL if there is none, and none is
 * to be created; then nothing is changed.  Runs in a transaction of the scheduler, as a superuser.
 */
TaskTable *
table_prepare(const Location *where, Oid user, MemoryContext context)
{
	uint32 changes = watch_changes();
	Created created;
	TaskTable *table = NULL;
	SideKind kind;

	Assert(superuser() && !owner_acts());
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	created = create_tables(where, user, InvalidOid, InvalidOid);
	PopActiveSnapshot();
	if (OidIsValid(created.relid))
	{
		/*
		 * It may have been renamed or moved before it was locked; from here on it cannot be.  One
		 * that belongs to it may have changed before the watch began.
		 */
		table = table_find(created.relid, context);
		if (table == NULL || strcmp(get_rel_name(created.relid), where->table) != 0 ||
			(!table->whole && !created.away))
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		/*
		 * What has changed since it was asked what is missing is looked at again, if it was watched
		 * before.  What was made here is reported after the commit.
		 */
		watch.changed |= !created.completed && watch_changes() != changes;
		table->created = created.made;
		/* again: of a mark that was set before the watch began, watch_changed does not tell */
		table->away = created.away || home_find(created.relid) == HOME_AWAY;
		for (kind = 0; kind < SIDE_TABLES && !table->away; kind++)
		{
			const char *fault = created.fault[kind];
			const char *unusable;

			table->side_name[kind] = MemoryContextStrdup(
				table->context,
				quote_qualified_identifier(get_namespace_name(get_rel_namespace(table->relid)),
										   side_table_name(kind, table->relid)));
			table->side[kind] = find_side(kind, table, &unusable);
			fault = fault ? fault : unusable;
			table->side_fault[kind] = fault ? MemoryContextStrdup(table->context, fault) : NULL;
			if (fault)
				table->side[kind] = NULL;
		}
	}
	SPI_finish();
	return table;
}
