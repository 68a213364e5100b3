/*
 * pg_task.c
 *		The library's entry point, as a table of contents, and the callbacks and hooks of which
 *		pg_task has one for all of its files.
 *
 * The server has few places for callbacks in each process (ten for changes of relations), and other
 * libraries need them, too.  So each kind is registered once, when the library is loaded, and here
 * stands who is told, in which order.  Processes of a server that has preloaded the library inherit
 * that.  Each part does nothing in a process that has not begun to use it.
 *
 * This file decides nothing.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/inval.h"
#include "utils/syscache.h"

#include "executor/cleanup.h"
#include "executor/request.h"
#include "session/commands.h"
#include "session/pending.h"
#include "session/take.h"
#include "session/trigger_row.h"
#include "settings.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "shared/waiters.h"
#include "shared/worker.h"
#include "task/owner_code.h"
#include "task/roles.h"
#include "task/running.h"
#include "task/table.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

/* The caches that are watched. */
static const int caches[] = {AUTHOID, AUTHMEMROLEMEM, DATABASEOID, NAMESPACEOID,	PROCOID,
							 OPEROID, TYPEOID,		  COLLOID,	   CASTSOURCETARGET};

/* Static, because hooks take no argument of ours. */
static struct
{
	shmem_request_hook_type request;
	shmem_startup_hook_type startup;
	ProcessUtility_hook_type utility;
	ExecutorStart_hook_type start;
} next_hook;

/* A relation has changed.  InvalidOid stands for all relations. */
static void
relation_invalidated(Datum arg pg_attribute_unused(), Oid relid)
{
	watch_invalidated(relid);
	trigger_relation_invalidated(relid);
}

/*
 * A row of a catalog has changed, or any of them may have.  Also called outside transactions.
 */
static void
catalog_invalidated(Datum arg pg_attribute_unused(), int cache, uint32 hash pg_attribute_unused())
{
	if (cache == AUTHOID || cache == AUTHMEMROLEMEM || cache == DATABASEOID)
		roles_invalidated();
	if (cache == NAMESPACEOID)
		watch_invalidated(InvalidOid);
	if (cache != DATABASEOID)
		request_plan_invalidated();
}

/* A transaction ends.  After a commit, nothing here may raise an error: the server would panic. */
static void
transaction_ended(XactEvent event, void *arg pg_attribute_unused())
{
	/* what this process knows of itself, then what others are told */
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE || event == XACT_EVENT_ABORT)
		running_level_ended(1, event != XACT_EVENT_ABORT);
	pending_transaction_ended(event);
	commands_transaction_ended(event);
	take_transaction_ended(event);
	waiters_transaction_ended(event);
}

static void
subtransaction_ended(SubXactEvent event, SubTransactionId mine pg_attribute_unused(),
					 SubTransactionId parent pg_attribute_unused(), void *arg pg_attribute_unused())
{
	bool committed = event == SUBXACT_EVENT_COMMIT_SUB;

	if (!committed && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	running_level_ended(GetCurrentTransactionNestLevel(), committed);
	take_level_ended(GetCurrentTransactionNestLevel(), committed);
}

static void
request_memory(void)
{
	if (next_hook.request)
		next_hook.request();
	shared_request_memory();
}

static void
attach_memory(void)
{
	if (next_hook.startup)
		next_hook.startup();
	shared_attach_memory();
}

static void
process_command(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *environment,
				DestReceiver *destination, QueryCompletion *completion)
{
	Node *statement = pstmt->utilityStmt;
	bool discards =
		IsA(statement, DiscardStmt) && ((DiscardStmt *) statement)->target == DISCARD_ALL;

	cleanup_note_command(statement);
	commands_process(next_hook.utility ? next_hook.utility : standard_ProcessUtility, pstmt, query,
					 read_only_tree, context, params, environment, destination, completion);
	/* a pooler says so when a client is gone */
	if (discards)
		take_session_ended();
}

static void
start_plan(QueryDesc *query, int flags)
{
	crash_note_parallel_worker();
	named_table_check_plan(query);
	if (next_hook.start)
		next_hook.start(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

void
_PG_init(void)
{
	int i;

	CacheRegisterRelcacheCallback(relation_invalidated, (Datum) 0);
	for (i = 0; i < (int) lengthof(caches); i++)
		CacheRegisterSyscacheCallback(caches[i], catalog_invalidated, (Datum) 0);

	/*
	 * Loaded by LOAD, by CREATE EXTENSION, by a trigger on a task table, or by a call of a
	 * function: those that need no shared memory work.
	 */
	if (!process_shared_preload_libraries_in_progress)
	{
		if (!IsBinaryUpgrade && !IsParallelWorker())
			ereport(WARNING, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
							  errmsg("pg_task is not running on this server: tasks wait"),
							  errhint("Add pg_task to \"shared_preload_libraries\" in"
									  " postgresql.conf, and restart the server.")));
		return;
	}

	settings_define();
	next_hook.utility = ProcessUtility_hook;
	ProcessUtility_hook = process_command;

	/* during pg_upgrade no task may run */
	if (IsBinaryUpgrade)
		return;

	RegisterXactCallback(transaction_ended, NULL);
	RegisterSubXactCallback(subtransaction_ended, NULL);
	next_hook.request = shmem_request_hook;
	shmem_request_hook = request_memory;
	next_hook.startup = shmem_startup_hook;
	shmem_startup_hook = attach_memory;
	next_hook.start = ExecutorStart_hook;
	ExecutorStart_hook = start_plan;
	named_table_define();
	owner_code_define();
	worker_register_supervisor();
}
