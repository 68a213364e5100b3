/*
 * kept_request.c
 *		Keeps the plans of requests that run again and again.
 *
 * Tasks that differ only in "input" have the same request, a call of a function, and to parse and
 * plan that is more work than to begin and end its execution.  So the plan of a request is kept
 * when it is seen for the second time, if it is a single SELECT that reads no table: its plan
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
#include "common/hashfn.h"
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

/* So many requests can be kept, of at most so many bytes, and planned with so much memory. */
#define KEPT_REQUESTS 8
#define LENGTH_MAX 1024
#define PLAN_MAX (256 * 1024)

/* Static, because what is kept is for all tasks of this process, and a callback writes it. */
static struct
{
	KeptRequest requests[KEPT_REQUESTS]; /* each text has one place, by its hash */
	bool stale;							 /* catalogs have changed */
} kept;

/* A catalog has changed that names are looked up in. */
void
kept_request_invalidated(void)
{
	kept.stale = true;
}

/* Forget what is kept here, and what was seen. */
static void
forget_request(KeptRequest *request)
{
	MemoryContext context = request->context;

	*request = (KeptRequest){0};
	if (context)
		MemoryContextDelete(context);
}

static uint32
hash_request(const char *text, size_t length)
{
	return hash_bytes((const unsigned char *) text, (int) length);
}

static KeptRequest *
place_of(uint32 hash)
{
	return &kept.requests[hash % KEPT_REQUESTS];
}

/* Return what is kept of the request, until the next call; NULL: it is not kept. */
const KeptRequest *
kept_request_find(const char *text)
{
	const KeptRequest *request = place_of(hash_request(text, strlen(text)));
	int i;

	if (kept.stale)
		for (i = 0; i < KEPT_REQUESTS; i++)
			forget_request(&kept.requests[i]);
	kept.stale = false;
	return request->context && strcmp(request->text, text) == 0 ? request : NULL;
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

/* Keep a plan; what it belongs to must not have been changed by the analysis. */
static void
keep_plan(KeptRequest *request, const char *text, RawStmt *raw, List *plans)
{
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "pg_task kept request", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	KeptRequest made = {.hash = request->hash, .context = context};

	made.text = pstrdup(text);
	made.statements = list_make1(copyObject(raw));
	made.plans = copyObject(plans);
	MemoryContextSwitchTo(old);
	/* another text may have the same hash */
	forget_request(request);
	MemoryContextSetParent(context, TopMemoryContext);
	*request = made;
}

/*
 * Plan a statement of a request, and perhaps keep the plan.  "alone": the request has no other
 * statement.
 */
List *
kept_request_plan(RawStmt *raw, const char *text, bool alone)
{
	size_t length = strlen(text);
	uint32 hash = hash_request(text, length);
	KeptRequest *request = place_of(hash);
	RawStmt *copy = NULL;
	List *plans;
	Size memory;
	bool may;

	if (!alone || length > LENGTH_MAX || !IsA(raw->stmt, SelectStmt))
		return plan_statement(raw, text, &may);
	if (request->hash != hash)
	{
		forget_request(request);
		request->hash = hash;
		return plan_statement(raw, text, &may);
	}
	if (!request->refused)
		copy = copyObject(raw);
	/* the planner may have computed a value of any size */
	memory = MemoryContextMemAllocated(CurrentMemoryContext, true);
	plans = plan_statement(raw, text, &may);
	may = may && MemoryContextMemAllocated(CurrentMemoryContext, true) <= memory + PLAN_MAX;
	if (may && copy)
		keep_plan(request, text, copy, plans);
	request->refused = !may;
	return plans;
}
