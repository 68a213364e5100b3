/*
 * request_log.c
 *		Logs requests to the server's log, as the settings of the role demand.
 *
 * log_statement, log_duration, log_min_duration_statement and log sampling mean for a request what
 * they mean for a client's simple query.  The messages are the same, so that log analyzers
 * understand them.
 *
 * This file runs nothing.
 */
#include "postgres.h"

#include "nodes/parsenodes.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"

#include "executor/request_log.h"

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
bool
request_log_statement(const char *request, List *statements)
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
