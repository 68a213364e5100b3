/*
 * upgrade.c
 *		A ProcessUtility hook for the server that pg_upgrade has started: it tells the task tables
 *		that come along that they are at home in the new system.  Otherwise they would be held back,
 *		as in a copy.
 *
 * Nothing else of pg_task happens in such a server.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"

#include "session/upgrade.h"
#include "task/home.h"

/* Set once.  Static, because a hook has no argument for it. */
static ProcessUtility_hook_type next_utility_hook = NULL;

/* The statement to execute instead, or the same. */
static PlannedStmt *
replace_comment(PlannedStmt *pstmt)
{
	PlannedStmt *copy;
	char *comment;

	if (!home_is_set_by(pstmt->utilityStmt))
		return pstmt;
	comment = home_upgraded(((CommentStmt *) pstmt->utilityStmt)->comment);
	if (comment == NULL)
		return pstmt;
	copy = copyObject(pstmt);
	((CommentStmt *) copy->utilityStmt)->comment = comment;
	return copy;
}

/* ProcessUtility hook. */
static void
process_command(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *environment,
				DestReceiver *destination, QueryCompletion *completion)
{
	pstmt = replace_comment(pstmt);
	if (next_utility_hook)
		next_utility_hook(pstmt, query, read_only_tree, context, params, environment, destination,
						  completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, environment,
								destination, completion);
}

/* Install the hook.  Called only if the library was preloaded, during pg_upgrade. */
void
upgrade_define(void)
{
	Assert(IsBinaryUpgrade);
	next_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_command;
}
