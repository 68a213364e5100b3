/*
 * request.c
 *		Parses a request and runs its statements through SPI, in the caller's
 *		transaction and with the rights the caller has.
 *
 * This room does not know the task table.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "storage/proc.h"
#include "tcop/cmdtag.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "compat.h"
#include "request.h"

/*
 * The statement that is running, for request_explain: its text, and how many
 * characters of the request come before it.
 */
static const char *current_text = NULL;
static int current_offset = 0;

/* The part of the request that is one statement, or all of it. */
static const char *
statement_text(const char *request, const RawStmt *statement, bool only)
{
	int length = statement->stmt_len;

	if (only)
		return request;
	if (length == 0)
		length = strlen(request + statement->stmt_location);
	return pnstrdup(request + statement->stmt_location, length);
}

static void
put_command_tag(ResultText *result, Node *statement)
{
	CommandTag tag = CreateCommandTag(statement);
	char *text;

	if (IsA(statement, CreateTableAsStmt))
		tag = CMDTAG_SELECT;
	text = pstrdup(GetCommandTagName(tag));
	if (command_tag_display_rowcount(tag))
		text =
			psprintf("%s%s " UINT64_FORMAT, text, tag == CMDTAG_INSERT ? " 0" : "", SPI_processed);
	result_put_tag(result, text);
}

static void
check_code(int code, Node *statement)
{
	if (code >= 0)
		return;
	if (code == SPI_ERROR_COPY)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("cannot COPY to or from the client in a task"),
						errdetail("A task has no client.")));
	if (code == SPI_ERROR_TRANSACTION)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("%s is not supported in a task",
							   GetCommandTagName(CreateCommandTag(statement))),
						errdetail("A task is one transaction.")));
	elog(ERROR, "could not run a statement: %s", SPI_result_code_string(code));
}

/* Run one statement; statement_timeout counts for each, as in psql. */
static void
run_statement(const char *text, RawStmt *raw, ResultReceiver *receiver, ResultText *result)
{
	SPIExecuteOptions options = {0};
	bool needs_snapshot = analyze_requires_snapshot(raw);
	int code;

	if (StatementTimeout > 0)
		enable_timeout_after(STATEMENT_TIMEOUT, StatementTimeout);
	if (needs_snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	options.dest = result_destination(receiver);
	code = SPI_execute_extended(text, &options);
	check_code(code, raw->stmt);
	if (needs_snapshot)
		PopActiveSnapshot();
	if (StatementTimeout > 0)
		disable_timeout(STATEMENT_TIMEOUT, false);
	if (!result_received(receiver))
		put_command_tag(result, raw->stmt);
}

/*
 * Run all statements of a request, in order, and put what they return into
 * the result.  An error is thrown; everything is then rolled back with the
 * caller's transaction.
 */
void
request_run(const char *request, ResultText *result)
{
	ResultReceiver *receiver = result_receiver(result);
	List *statements;
	ListCell *cell;

	current_text = NULL;
	current_offset = 0;
	statements = pg_parse_query(request);
	SPI_connect();
	foreach(cell, statements)
	{
		RawStmt *raw = lfirst_node(RawStmt, cell);

		current_text = statement_text(request, raw, list_length(statements) == 1);
		if (list_length(statements) > 1)
			current_offset = pg_mbstrlen_with_len(request, raw->stmt_location);
		run_statement(current_text, raw, receiver, result);
	}
	SPI_finish();
	current_text = NULL;
}

/* Take the line off the end of a context that says in which statement it was. */
static void
strip_context(ErrorData *error)
{
	char *line = psprintf(_("SQL statement \"%s\""), current_text);
	int keep;

	if (error->context == NULL)
		return;
	keep = strlen(error->context) - strlen(line);
	if (keep < 0 || strcmp(error->context + keep, line) != 0)
		return;
	if (keep == 0)
		error->context = NULL;
	else if (error->context[keep - 1] == '\n')
		error->context[keep - 1] = '\0';
}

/*
 * Make an error look as if the request had been sent by a client: to SPI the
 * statement is an internal one, and its position counts from its own start.
 */
void
request_explain(ErrorData *error)
{
	if (current_text == NULL)
		return;
	if (error->internalquery && strcmp(error->internalquery, current_text) == 0)
	{
		error->cursorpos = error->internalpos;
		error->internalpos = 0;
		error->internalquery = NULL;
	}
	if (error->cursorpos > 0)
		error->cursorpos += current_offset;
	strip_context(error);
	current_text = NULL;
}
