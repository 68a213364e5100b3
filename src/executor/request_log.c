/*
 * request_log.c
 *		Requests in the server's log, as the settings of the role want them.
 *
 * log_statement, log_duration, log_min_duration_statement and their samples mean for a
 * request what they mean for the simple query of a client, with the same messages, so that
 * tools that read logs understand them.  The server fills user and database into a line of the
 * log for client sessions alone; a context line says them here.
 *
 * This file runs nothing.
 */
#include "postgres.h"

#include "nodes/parsenodes.h"
#include "postmaster/bgworker.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"

#include "executor/request_log.h"
#include "settings.h"

/* Which task this is, and the executor's database and role, as the process is called. */
#define CONTEXT \
	errcontext("task " INT64_FORMAT " in \"%s\"", settings_task_id, MyBgworkerEntry->bgw_name)

/* Does log_statement ask for one of these statements? */
static bool
is_wanted(List *statements)
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

/* Before the request runs.  True: its text is in the log. */
bool
request_log_statement(const char *request, List *statements)
{
	if (!is_wanted(statements))
		return false;
	ereport(LOG, (errmsg("statement: %s", request), errhidestmt(true), CONTEXT));
	return true;
}

/* After the commit of its outcome: how long that took since the start of its transaction. */
void
request_log_duration(const char *request, bool logged)
{
	char duration[32];

	switch (check_log_duration(duration, logged))
	{
		case 1:
			ereport(LOG, (errmsg("duration: %s ms", duration), errhidestmt(true), CONTEXT));
			break;
		case 2:
			ereport(LOG, (errmsg("duration: %s ms  statement: %s", duration, request),
						  errhidestmt(true), CONTEXT));
			break;
		default:
			break;
	}
}
