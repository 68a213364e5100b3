/*
 * kept_request.c
 *		Keeps the plans of requests that run again and again.
 *
 * Tasks that differ only in "input" have the same request, a call of a function, and to parse and
 * plan that is more work than to begin and end its execution.  So the plan of a request is kept
 * when it comes twice in a row, if it is a single SELECT that reads no table: its plan
 * depends on no statistics, no policy and no size of a table.
 *
 * A run by a plan that is kept must not differ from one that is planned anew.  So a request is not
 * kept if it has a constant that is read by the clock or by settings, as 'today'::date, or calls a
 * function of a user's that the planner may call itself, replace by its text or give arguments to;
 * or if it has a value of a row type, the columns of which may change.  And all plans are forgotten
 * when anything changes that names are looked up in.  Settings are always those with which the
 * executor has connected: the session is reset after each task.
 *
 * This file runs nothing.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type_d.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "executor/kept_request.h"

/* A request is kept if it is at most so long, and was planned with so much memory (bytes). */
#define LENGTH_MAX 1024
#define PLAN_MAX (256 * 1024)

/*
 * The last request that was planned, and its plan if that may be kept.  Static, because it is for
 * all tasks of this process, and a callback writes it.
 */
static struct
{
	KeptRequest last;
	bool stale; /* catalogs have changed */
} kept;

/* A catalog has changed that names are looked up in. */
void
kept_request_invalidated(void)
{
	kept.stale = true;
}

/* Begin anew with this text, or none. */
static void
begin_request(const char *text)
{
	if (kept.last.context)
		MemoryContextDelete(kept.last.context);
	kept.last = (KeptRequest){0};
	kept.stale = false;
	if (text == NULL)
		return;
	kept.last.context =
		AllocSetContextCreate(TopMemoryContext, "pg_task kept request", ALLOCSET_SMALL_SIZES);
	kept.last.text = MemoryContextStrdup(kept.last.context, text);
}

/* Return the request with its plan, until the next call; NULL: that is not kept. */
const KeptRequest *
kept_request_find(const char *text)
{
	if (kept.stale)
		begin_request(NULL);
	return kept.last.plans && strcmp(kept.last.text, text) == 0 ? &kept.last : NULL;
}

/*
 * Can the planner call this function, replace it by its text, or add arguments, which may be calls
 * of such functions?  Those of the server do not count.
 */
static bool
is_planned_away(Oid function, void *context pg_attribute_unused())
{
	HeapTuple tuple;
	bool away = true;

	if (function < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

		away = form->provolatile == PROVOLATILE_IMMUTABLE || form->prolang == SQLlanguageId ||
			   form->pronargdefaults > 0;
		ReleaseSysCache(tuple);
	}
	return away;
}

/* Has this constant been read from a text in a way that depends on more than the text? */
static bool
may_differ(const Const *constant)
{
	Oid input;
	Oid parameter;

	if (constant->constisnull)
		return false;
	getTypeInputInfo(constant->consttype, &input, &parameter);
	return input >= FirstNormalObjectId || func_volatile(input) != PROVOLATILE_IMMUTABLE;
}

/*
 * Is this a value of a row type with a name, or a column of a row?  A plan that was made for other
 * columns would read such a value wrongly.  Expressions that pass on a value are not listed.
 */
static bool
has_columns(Node *node)
{
	Oid type;

	switch (nodeTag(node))
	{
		case T_FieldSelect:
			return true;
		case T_Const:
		case T_FuncExpr:
		case T_OpExpr:
		case T_RowExpr:
		case T_CoerceViaIO:
		case T_SubscriptingRef:
			type = exprType(node);
			return type != RECORDOID && type_is_rowtype(type);
		default:
			return false;
	}
}

/* Does this have a part that must be planned anew each time? */
static bool
must_plan(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (has_columns(node))
		return true;
	if (IsA(node, Const))
		return may_differ((Const *) node);
	return IsA(node, CoerceToDomain) || check_functions_in_node(node, is_planned_away, context) ||
		   expression_tree_walker(node, COMPAT_WALKER(must_plan), context);
}

/* May the plan of this statement be kept? */
static bool
may_keep(Query *query)
{
	return query->commandType == CMD_SELECT && query->rtable == NIL && query->cteList == NIL &&
		   !query->hasSubLinks && !query_tree_walker(query, COMPAT_WALKER(must_plan), NULL, 0);
}

/* Plan a statement of a request.  Sets "may" to whether the plan may be kept. */
static List *
plan_statement(RawStmt *raw, const char *text, bool *may)
{
	bool needs_snapshot = analyze_requires_snapshot(raw);
	List *queries;
	List *plans;

	if (needs_snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	queries = pg_analyze_and_rewrite_fixedparams(raw, text, NULL, 0, NULL);
	*may = list_length(queries) == 1 && may_keep(linitial_node(Query, queries));
	plans = pg_plan_queries(queries, text, CURSOR_OPT_PARALLEL_OK, NULL);
	if (needs_snapshot)
		PopActiveSnapshot();
	return plans;
}

/* Keep a plan of the last request. */
static void
keep_plan(RawStmt *raw, List *plans)
{
	MemoryContext old = MemoryContextSwitchTo(kept.last.context);

	kept.last.statements = list_make1(copyObject(raw));
	kept.last.plans = copyObject(plans);
	MemoryContextSwitchTo(old);
}

/*
 * Plan a statement of a request, and keep the plan if it may be kept and the last request was the
 * same.  "alone": the request has no other statement.
 */
List *
kept_request_plan(RawStmt *raw, const char *text, bool alone)
{
	bool again = kept.last.text && strcmp(kept.last.text, text) == 0;
	RawStmt *copy;
	List *plans;
	Size memory;
	bool may;

	if (!alone || strlen(text) > LENGTH_MAX || !IsA(raw->stmt, SelectStmt))
		return plan_statement(raw, text, &may);
	/* the analysis changes it */
	copy = again && !kept.last.refused ? copyObject(raw) : NULL;
	/* the planner may have computed a value of any size */
	memory = MemoryContextMemAllocated(CurrentMemoryContext, true);
	plans = plan_statement(raw, text, &may);
	may = may && MemoryContextMemAllocated(CurrentMemoryContext, true) <= memory + PLAN_MAX;
	if (!again)
		begin_request(text);
	else if (may && copy && !kept.stale)
		keep_plan(copy, plans);
	kept.last.refused = !may;
	return plans;
}
