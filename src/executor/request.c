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
 * This file does not know the task table.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "tcop/cmdtag.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "compat.h"
#include "executor/client.h"
#include "executor/kept_request.h"
#include "executor/request.h"
#include "executor/response.h"
#include "executor/result.h"
#include "executor/slot.h"
#include "settings.h"

/* ---- the server's log: the messages of a simple query, so that log analyzers understand them ----
 */

/* Does log_statement apply to one of these statements? */
static bool
log_statement_applies(List *statements)
{
	ListCell *cell;

	if (log_statement == LOGSTMT_NONE)
		return false;
	if (log_statement == LOGSTMT_ALL)
		return true;
	foreach(cell, statements)
		if ((int) GetCommandLogLevel(lfirst(cell)) <= log_statement)
			return true;
	return false;
}

/* Called before the request runs.  Returns true if its text was logged. */
static bool
log_statement_text(const char *request, List *statements)
{
	if (!log_statement_applies(statements))
		return false;
	ereport(LOG, (errmsg("statement: %s", request), errhidestmt(true)));
	return true;
}

/* Called after the commit of the outcome: log the time since the start of its transaction. */
void
request_log_duration(const char *request, bool logged)
{
	char duration[32];

	switch (check_log_duration(duration, logged))
	{
		case 1:
			ereport(LOG, (errmsg("duration: %s ms", duration), errhidestmt(true)));
			break;
		case 2:
			ereport(LOG, (errmsg("duration: %s ms  statement: %s", duration, request),
						  errhidestmt(true)));
			break;
		default:
			break;
	}
}

/* ---- statements ---- */

/* Check the options of COPY to or from the client: the response is text, and nothing sends data. */
static void
check_copy_options(CopyStmt *copy)
{
	ListCell *cell;

	if (copy->is_from)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("cannot COPY FROM STDIN in a task"),
				 errdetail("A task has no client.")));
	foreach(cell, copy->options)
	{
		DefElem *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "encoding") == 0 && option->arg)
			client_set_copy_encoding(pg_char_to_encoding(defGetString(option)));
		else if (strcmp(option->defname, "format") == 0 && option->arg &&
				 strcmp(defGetString(option), "binary") == 0)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("cannot COPY TO STDOUT in binary format in a task"),
							errdetail("The response is text.")));
	}
}

/* If the statement is a COPY to or from the client, check it, and prepare for the data it sends. */
static void
check_client_copy(Node *statement)
{
	client_set_copy_encoding(-1);
	if (IsA(statement, CopyStmt) && ((CopyStmt *) statement)->filename == NULL)
		check_copy_options((CopyStmt *) statement);
}

/* In JSON: the command tag of a statement that returned no rows, and the end of a COPY. */
static void
put_command(ResponseText *response, const QueryCompletion *completion)
{
	CommandTag tag = completion->commandTag;
	char *rows = "";

	if (command_tag_display_rowcount(tag))
		rows = psprintf(",\"rows\":" UINT64_FORMAT, completion->nprocessed);
	if (!response->open && tag != CMDTAG_UNKNOWN)
	{
		document_begin_result(response, psprintf("{\"command\":\"%s\"", GetCommandTagName(tag)));
		document_end_result(response, psprintf("%s}", rows));
	}
	document_end_result(response, psprintf("\"%s}", rows));
}

/* Show the command tag of a statement that returned no rows (text format only). */
static void
put_command_tag(ResponseText *response, const QueryCompletion *completion)
{
	CommandTag tag = completion->commandTag;

	if (command_tag_display_rowcount(tag))
		response_put_line(response,
						  psprintf("%s%s " UINT64_FORMAT, GetCommandTagName(tag),
								   tag == CMDTAG_INSERT ? " 0" : "", completion->nprocessed));
	else if (tag != CMDTAG_UNKNOWN)
		response_put_line(response, GetCommandTagName(tag));
}

/* The plan of a statement, which may have been kept. */
static List *
plan_statement(RawStmt *raw, const Request *request)
{
	if (request->kept)
		return request->kept->plans;
	return kept_request_plan(raw, request->text, request->single);
}

/* Run one statement.  statement_timeout applies to each. */
static void
run_statement(RawStmt *raw, const Request *request, ResultReceiver *receiver)
{
	DestReceiver *destination = result_destination(receiver);
	QueryCompletion completion;
	Portal portal;
	bool received;
	bool copied;

	Assert(IsTransactionState());
	check_client_copy(raw->stmt);
	if (StatementTimeout > 0)
		enable_timeout_after(STATEMENT_TIMEOUT, StatementTimeout);
	portal = CreatePortal("", true, true);
	portal->visible = false;
	PortalDefineQuery(portal, NULL, request->text, CreateCommandTag(raw->stmt),
					  plan_statement(raw, request), NULL);
	PortalStart(portal, NULL, 0, InvalidSnapshot);
	InitializeQueryCompletion(&completion);
	(void) COMPAT_PORTAL_RUN(portal, FETCH_ALL, true, destination, destination, &completion);
	PortalDrop(portal, false);
	/* the statement may have set statement_timeout itself */
	if (get_timeout_active(STATEMENT_TIMEOUT))
		disable_timeout(STATEMENT_TIMEOUT, false);
	received = result_has_received(receiver);
	copied = client_has_received();
	if (request->format == RESULT_JSON && (copied || !received))
		put_command(request->response, &completion);
	else if (!received && !copied && request->format == RESULT_TEXT)
		put_command_tag(request->response, &completion);
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

/* Must this statement be committed at once, because its effects cannot be rolled back? */
static bool
commits_now(Node *statement)
{
	return IsA(statement, TransactionStmt) ||
		   (!IsTransactionBlock() && (MyXactFlags & XACT_FLAGS_NEEDIMMEDIATECOMMIT) != 0);
}

/* Is the request a single statement that is to run in an implicit block, and may? */
static bool
needs_block(const Request *request, List *statements)
{
	return request->wants_block && !request->batched && request->single &&
		   may_be_in_block(linitial_node(RawStmt, statements)->stmt);
}

/*
 * Prepare the request of a task, without its text, and where it puts what it returns, which is
 * allocated in the current memory context.
 */
Request
request_prepare(const SharedTask *task, ResponseText *response, ResponseText *notices)
{
	Request request = {
		.format =
			task->format >= 0 ? (ResultFormat) task->format : (ResultFormat) Settings.task.format,
		.response = response,
	};

	response_init(response, Settings.response_limit);
	response_init(notices, Settings.response_limit);
	response->json = request.format == RESULT_JSON;
	return request;
}

/* The statements of a request. */
static List *
parse_request(Request *request)
{
	List *statements;

	request->kept = kept_request_find(request->text);
	statements = request->kept ? request->kept->statements : pg_parse_query(request->text);
	request->single = list_length(statements) == 1;
	return statements;
}

/*
 * Run all statements of a request, in order, and append what they return to the response.
 *
 * The caller has started a transaction.  One is open when this returns, but not the same one if
 * the request has committed or rolled back itself: then only what came after that can still be
 * rolled back.  After an error, "in_block" says whether a statement in an implicit block was
 * running.  If the request is batched, the caller has begun a subtransaction, which is open when
 * this returns.
 */
void
request_run(Request *request, MemoryContext context)
{
	ResultReceiver *receiver = result_create_receiver(request->response, request->format);
	List *statements = parse_request(request);
	MemoryContext statement_context =
		AllocSetContextCreate(context, "pg_task statement", ALLOCSET_DEFAULT_SIZES);
	bool open = true;
	ListCell *cell;

	Assert(IsTransactionState() && IsTransactionBlock() == request->batched);
	request->refused = request->batched && !may_be_batched(statements);
	if (request->refused)
		return;
	request->logged = log_statement_text(request->text, statements);
	request->in_block = needs_block(request, statements);
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
		run_statement(raw, request, receiver);
		MemoryContextSwitchTo(context);
		MemoryContextReset(statement_context);
		if (lnext(statements, cell) == NULL && !request->batched)
			EndImplicitTransactionBlock();
		if (commits_now(raw->stmt))
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
