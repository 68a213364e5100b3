/*
 * request.c
 *		Runs the statements of a request as a client's simple query would be run.
 *
 * The rules are those of the manual's "Multiple Statements in a Simple Query": the statements are
 * one transaction, unless BEGIN, COMMIT or ROLLBACK are among them.  A statement that must be at
 * top level must be the only one.
 *
 * Other single statements run in an implicit block if the caller asks for it.  Some extensions
 * check for a transaction block to decide whether what the statement does on other servers is
 * committed at once, or with our transaction.
 *
 * log_statement, log_duration, log_min_duration_statement and log sampling mean for a request what
 * they mean for a simple query.
 *
 * Each statement goes through a portal, from PortalStart to PortalRun, so procedures may commit
 * and VACUUM may have its transactions.
 *
 * Tasks that differ only in "input" have the same request, a call of a function, and to parse and
 * plan that is more work than to begin and end its execution.  So the plan of a request is kept
 * when it comes twice in a row, if it is a single SELECT that reads no table: its plan depends on
 * no statistics, no policy and no size of a table.  A run by a plan that is kept must not differ
 * from one that is planned anew: see must_plan.  All is forgotten when anything changes that names
 * are looked up in.  Settings are always those with which the executor has connected: the session
 * is reset after each task.
 *
 * This file does not know the task table.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "pgstat.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "executor/request.h"
#include "executor/response.h"

/* ---- the server's log: the messages of a simple query, so that log analyzers understand them ----
 */

/* Called before the request runs: log its text if log_statement applies to one of its statements.
 */
static bool
log_statement_text(const char *request, List *statements)
{
	bool applies = log_statement == LOGSTMT_ALL;
	ListCell *cell;

	if (!applies && log_statement != LOGSTMT_NONE)
		foreach(cell, statements)
			applies |= (int) GetCommandLogLevel(lfirst(cell)) <= log_statement;
	if (applies)
		ereport(LOG, (errmsg("statement: %s", request), errhidestmt(true)));
	return applies;
}

/* Called after the commit of the outcome: log the time since the start of its transaction. */
void
request_log_duration(const Request *request)
{
	char duration[32];
	int which = check_log_duration(duration, request->logged);

	if (which == 1)
		ereport(LOG, (errmsg("duration: %s ms", duration), errhidestmt(true)));
	else if (which == 2)
		ereport(LOG, (errmsg("duration: %s ms  statement: %s", duration, request->text),
					  errhidestmt(true)));
}

/* ---- plans ---- */

/* A request is kept if it is at most so long, and was planned with so much memory (bytes). */
#define LENGTH_MAX 1024
#define PLAN_MAX (256 * 1024)

/*
 * The last request that was a single SELECT, and its plan if that is kept.  Static, because it is
 * for all tasks of this process, and a callback writes it.
 */
static struct
{
	char text[LENGTH_MAX + 1];
	MemoryContext context; /* of the plan; NULL: none is kept */
	List *plans;		   /* one PlannedStmt, which must not be changed; NIL: none is kept */
	bool stale;			   /* catalogs have changed */
} kept;

/* A catalog has changed that names are looked up in. */
void
request_plan_invalidated(void)
{
	kept.stale = true;
}

/* Forget the last request, and remember this one. */
static void
remember_request(const char *text)
{
	if (kept.context)
		MemoryContextDelete(kept.context);
	kept.context = NULL;
	kept.plans = NIL;
	kept.stale = false;
	strlcpy(kept.text, text, sizeof(kept.text));
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

	getTypeInputInfo(constant->consttype, &input, &parameter);
	return !constant->constisnull && func_volatile(input) != PROVOLATILE_IMMUTABLE;
}

/*
 * Does this have a part that must be planned anew each time: a constant that is read by the clock
 * or by settings, as 'today'::date; a function of a user's that is planned away; a value of a
 * user's type, which may change; or anything that is not known here?
 */
static bool
must_plan(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_List:
		case T_FromExpr:
		case T_TargetEntry:
			break;
		case T_BoolExpr:
		case T_CaseExpr:
		case T_CoalesceExpr:
		case T_CoerceViaIO:
		case T_Const:
		case T_FuncExpr:
		case T_NamedArgExpr:
		case T_NullTest:
		case T_OpExpr:
		case T_RelabelType:
			if (exprType(node) >= FirstNormalObjectId)
				return true;
			break;
		default:
			return true;
	}
	return (IsA(node, Const) && may_differ((Const *) node)) ||
		   check_functions_in_node(node, is_planned_away, context) ||
		   expression_tree_walker(node, COMPAT_WALKER(must_plan), context);
}

/* May the plan of this statement be kept? */
static bool
may_keep(Query *query)
{
	return query->commandType == CMD_SELECT && query->rtable == NIL && query->cteList == NIL &&
		   !query->hasSubLinks && !query_tree_walker(query, COMPAT_WALKER(must_plan), NULL, 0);
}

/* Plan a statement of a request, and keep the plan if it may be and the last request was the same.
 */
static List *
plan_statement(RawStmt *raw, const Request *request)
{
	bool kind =
		request->single && IsA(raw->stmt, SelectStmt) && strlen(request->text) <= LENGTH_MAX;
	bool keep = kind && strcmp(kept.text, request->text) == 0;
	Size memory = MemoryContextMemAllocated(CurrentMemoryContext, true);
	bool needs_snapshot = analyze_requires_snapshot(raw);
	MemoryContext old;
	List *queries;
	List *plans;

	if (needs_snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	queries = pg_analyze_and_rewrite_fixedparams(raw, request->text, NULL, 0, NULL);
	keep = keep && list_length(queries) == 1 && may_keep(linitial_node(Query, queries));
	plans = pg_plan_queries(queries, request->text, CURSOR_OPT_PARALLEL_OK, NULL);
	if (needs_snapshot)
		PopActiveSnapshot();
	if (!kind)
		return plans;
	/* the planner may have computed a value of any size */
	keep = keep && !kept.stale &&
		   MemoryContextMemAllocated(CurrentMemoryContext, true) <= memory + PLAN_MAX;
	remember_request(request->text);
	if (keep)
	{
		kept.context =
			AllocSetContextCreate(TopMemoryContext, "pg_task kept plan", ALLOCSET_SMALL_SIZES);
		old = MemoryContextSwitchTo(kept.context);
		kept.plans = copyObject(plans);
		MemoryContextSwitchTo(old);
	}
	return plans;
}

/*
 * The statements of a request.  All that is asked of one whose plan is kept is that it is a SELECT.
 */
static List *
parse_request(Request *request)
{
	RawStmt *raw;
	List *statements;

	if (kept.stale)
		remember_request("");
	request->kept = kept.plans && strcmp(kept.text, request->text) == 0;
	if (request->kept)
	{
		raw = makeNode(RawStmt);
		raw->stmt = (Node *) makeNode(SelectStmt);
		statements = list_make1(raw);
	}
	else
		statements = pg_parse_query(request->text);
	request->single = list_length(statements) == 1;
	return statements;
}

/* ---- statements ---- */

/*
 * If the statement is a COPY to or from the client, check it, and prepare for the data it sends:
 * the response is text, and nothing sends data.
 */
static void
check_client_copy(Node *statement, Response *response)
{
	CopyStmt *copy = (CopyStmt *) statement;
	ListCell *cell;

	response->copy_encoding = -1;
	if (!IsA(statement, CopyStmt) || copy->filename)
		return;
	if (copy->is_from)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("cannot COPY FROM STDIN in a task"),
				 errdetail("A task has no client.")));
	foreach(cell, copy->options)
	{
		DefElem *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "encoding") == 0 && option->arg)
			response->copy_encoding = pg_char_to_encoding(defGetString(option));
		else if (strcmp(option->defname, "format") == 0 && option->arg &&
				 strcmp(defGetString(option), "binary") == 0)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("cannot COPY TO STDOUT in binary format in a task"),
							errdetail("The response is text.")));
	}
}

/* Run one statement.  statement_timeout applies to each. */
static void
run_statement(RawStmt *raw, const Request *request, DestReceiver *destination)
{
	QueryCompletion completion;
	Portal portal;

	Assert(IsTransactionState());
	check_client_copy(raw->stmt, request->response);
	if (StatementTimeout > 0)
		enable_timeout_after(STATEMENT_TIMEOUT, StatementTimeout);
	portal = CreatePortal("", true, true);
	portal->visible = false;
	PortalDefineQuery(portal, NULL, request->text, CreateCommandTag(raw->stmt),
					  request->kept ? kept.plans : plan_statement(raw, request), NULL);
	PortalStart(portal, NULL, 0, InvalidSnapshot);
	InitializeQueryCompletion(&completion);
	(void) COMPAT_PORTAL_RUN(portal, FETCH_ALL, true, destination, destination, &completion);
	PortalDrop(portal, false);
	/* the statement may have set statement_timeout itself */
	if (get_timeout_active(STATEMENT_TIMEOUT))
		disable_timeout(STATEMENT_TIMEOUT, false);
	response_end_statement(request->response, &completion);
}

/*
 * May a statement of this kind be run alone as well as in a block?  The others commit, must be at
 * top level, or have no effect outside a block and report that.
 */
static bool
may_be_in_block(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_SelectStmt:
		case T_InsertStmt:
		case T_UpdateStmt:
		case T_DeleteStmt:
		case T_MergeStmt:
		case T_ExplainStmt:
		case T_CopyStmt:
		case T_CreateTableAsStmt:
		case T_RefreshMatViewStmt:
			return true;
		default:
			return false;
	}
}

/*
 * May all these statements run in a subtransaction?  Not those that commit or must be at top level;
 * nor those, a CALL above all, that would find only at some point that they may not, and could
 * treat that as an error of theirs; nor those that wait for a program: no cancel ends that, and the
 * program may wait for locks of the transaction.
 */
static bool
may_be_batched(List *statements)
{
	ListCell *cell;

	foreach(cell, statements)
	{
		Node *statement = lfirst_node(RawStmt, cell)->stmt;

		/* a SET LOCAL alone is told that it has no effect */
		bool sets = IsA(statement, VariableSetStmt) && list_length(statements) > 1;

		if (!may_be_in_block(statement) && !sets && !IsA(statement, VariableShowStmt))
			return false;
		if (IsA(statement, CopyStmt) && ((CopyStmt *) statement)->is_program)
			return false;
	}
	return true;
}

/*
 * Run all statements of a request, in order, and append what they return to the response.
 *
 * The caller has started a transaction.  One is open when this returns, but not the same one if
 * the request has committed or rolled back itself: then only what came after that can still be
 * rolled back.  After an error, "in_block" says whether a statement in an implicit block was
 * running.  If the request is batched, the caller has begun a subtransaction, which is open when
 * this returns; an error says that a statement cannot run in one, and then none has.
 */
void
request_run(Request *request)
{
	MemoryContext context = CurrentMemoryContext;
	DestReceiver *destination = response_receiver(request->response);
	List *statements = parse_request(request);
	MemoryContext statement_context =
		AllocSetContextCreate(context, "pg_task statement", ALLOCSET_DEFAULT_SIZES);
	bool open = true;
	ListCell *cell;

	Assert(IsTransactionState() && IsTransactionBlock() == request->batched);
	if (request->batched && !may_be_batched(statements))
		elog(ERROR, "a statement cannot run in a batch");
	request->logged = log_statement_text(request->text, statements);
	request->in_block = request->wants_block && !request->batched && request->single &&
						may_be_in_block(linitial_node(RawStmt, statements)->stmt);
	foreach(cell, statements)
	{
		RawStmt *raw = lfirst_node(RawStmt, cell);

		if (!open)
			StartTransactionCommand();
		open = true;
		if ((list_length(statements) > 1 && !request->batched) || request->in_block)
			BeginImplicitTransactionBlock();
		MemoryContextSwitchTo(statement_context);
		CHECK_FOR_INTERRUPTS();
		COMPAT_FORGET_QUERY_ID();
		run_statement(raw, request, destination);
		MemoryContextSwitchTo(context);
		MemoryContextReset(statement_context);
		if (lnext(statements, cell) == NULL && !request->batched)
			EndImplicitTransactionBlock();
		/* its effects may be such that cannot be rolled back */
		if (IsA(raw->stmt, TransactionStmt) ||
			(!IsTransactionBlock() && (MyXactFlags & XACT_FLAGS_NEEDIMMEDIATECOMMIT) != 0))
		{
			CommitTransactionCommand();
			open = false;
		}
		else
			CommandCounterIncrement();
	}
	request->all_committed = !open;
	if (!open)
		StartTransactionCommand();
	MemoryContextSwitchTo(context);
	if (IsTransactionBlock() && !request->batched)
		ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
						errmsg("the request left a transaction open"),
						errdetail("It was rolled back."), errhint("Add COMMIT or ROLLBACK.")));
	request->in_block = false;
}
