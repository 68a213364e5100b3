/*
 * commands.h
 *		What is done before and after commands that concern pg_task.
 */
#ifndef PG_TASK_COMMANDS_H
#define PG_TASK_COMMANDS_H

#include "postgres.h"

#include "access/xact.h"
#include "tcop/utility.h"

extern void commands_database_changed(void);

/* For pg_task.c. */
extern void commands_transaction_ended(XactEvent event);
extern void commands_process(ProcessUtility_hook_type next, PlannedStmt *pstmt, const char *query,
							 bool read_only_tree, ProcessUtilityContext context,
							 ParamListInfo params, QueryEnvironment *environment,
							 DestReceiver *destination, QueryCompletion *completion);

#endif /* PG_TASK_COMMANDS_H */
