/*
 * hooks.c
 *		The transaction callbacks and the ProcessUtility hook of all sessions.
 *
 * After a commit, when other sessions can see the rows, the scheduler gets the hint (the groups in
 * which rows wait) and is woken.  Nothing is written to shared memory before, so a rollback costs
 * nothing, and a commit waits for nobody.
 *
 * Commands that need a database for themselves (DROP, RENAME, copying it as a template) take a
 * hold first: our idle processes leave the database until the end of the transaction.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "session/hooks.h"
#include "settings.h"
#include "shared/hold.h"
#include "shared/shared.h"

/* How long a command waits for our processes to leave a database (ms). */
#define VACATE_MS 5000

/* A database or role whose settings were changed; InvalidOid: all of them. */
typedef struct ChangedSettings
{
	Oid object;
	int nest_level; /* of the (sub)transaction whose commit it depends on */
} ChangedSettings;

/* What this transaction must notify other processes of when it commits. */
static struct
{
	Oid relid;	 /* the task table; the root if it is partitioned */
	Oid ignored; /* a table with our triggers that is not the task table */
	int count;
	SharedHint hints[SHARED_HINTS];
	int events;		 /* SharedEvents */
	bool several;	 /* more than one table that may be the task table was written */
	bool supervisor; /* wake the supervisor: databases or roles have changed */
	int nsettings;
	int settings_size;
	ChangedSettings *settings; /* in TopTransactionContext */
	char gid[GIDSIZE];		   /* of PREPARE TRANSACTION; empty: none */
	int hold_level; /* nesting level of the outermost transaction that holds a database; 0: none */
} pending;

static ProcessUtility_hook_type next_utility_hook = NULL;

/*
 * Is this not the task table?  Anybody may put our triggers on a table of their own, so compare
 * with the table that the scheduler serves, if known.
 */
static bool
is_another(Oid relid)
{
	Oid known = shared_scheduler_relid(MyDatabaseId);

	return OidIsValid(known) && known != relid;
}

/*
 * Record events (SharedEvents) of a table; its scheduler is notified after the commit.  Returns
 * false if no scheduler serves the table.
 */
bool
hooks_add_events(Oid relid, int events)
{
	if (pending.relid != relid)
	{
		if (pending.ignored == relid || is_another(relid))
		{
			pending.ignored = relid;
			return false;
		}
		pending.several |= OidIsValid(pending.relid);
		pending.relid = relid;
	}
	pending.events |= events;
	return true;
}

/*
 * Record that rows wait in a group of a table; its scheduler gets the hint after the commit.
 * NULL: the group is unknown, and the scheduler must scan.
 */
void
hooks_add_hint(Oid relid, const SharedHint *hint)
{
	if (hooks_add_events(relid, 0) &&
		(hint == NULL || !shared_hint_merge(pending.hints, &pending.count, SHARED_HINTS, hint)))
		pending.events |= SHARED_SCAN;
}

/*
 * Publish the changed settings of this transaction at its commit.  At PREPARE, store them for
 * COMMIT PREPARED.
 */
static void
count_changes(XactEvent event)
{
	Oid *objects = NULL;
	int i;

	for (i = 0; i < pending.nsettings && event == XACT_EVENT_COMMIT; i++)
		shared_settings_changed(pending.settings[i].object);
	if (event == XACT_EVENT_PREPARE && pending.nsettings > 0)
	{
		/*
		 * convert in place: the array is used only here, and each oid is written to an entry
		 * already read
		 */
		objects = (Oid *) pending.settings;
		for (i = 0; i < pending.nsettings; i++)
			objects[i] = pending.settings[i].object;
		shared_prepared_add(pending.gid, objects, pending.nsettings);
	}
	pending.settings = NULL;
	pending.nsettings = pending.settings_size = 0;
}

/* Nothing here may raise an error: a commit cannot be undone. */
static void
transaction_ended(XactEvent event, void *arg pg_attribute_unused())
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (event == XACT_EVENT_COMMIT && OidIsValid(pending.relid))
	{
		if (pending.several)
			pending.events |= SHARED_SCAN | SHARED_RECONCILE | SHARED_EXPIRY;
		shared_scheduler_hint(MyDatabaseId, pending.several ? InvalidOid : pending.relid,
							  pending.hints, pending.count, pending.events);
	}
	if (pending.hold_level > 0)
		hold_release();
	count_changes(event);
	if (pending.supervisor && event == XACT_EVENT_COMMIT)
		shared_wake_supervisor();
	pending.relid = pending.ignored = InvalidOid;
	pending.count = pending.events = pending.hold_level = 0;
	pending.several = pending.supervisor = false;
	pending.gid[0] = '\0';
}

/*
 * End of a subtransaction: what it did now depends on its parent, or is discarded.  Hints of an
 * aborted subtransaction are kept: the scheduler then looks for rows that do not exist.
 */
static void
subtransaction_ended(SubXactEvent event, SubTransactionId mine pg_attribute_unused(),
					 SubTransactionId parent pg_attribute_unused(), void *arg pg_attribute_unused())
{
	int level = GetCurrentTransactionNestLevel();
	bool aborted = event == SUBXACT_EVENT_ABORT_SUB;

	if (!aborted && event != SUBXACT_EVENT_COMMIT_SUB)
		return;
	if (pending.hold_level >= level)
	{
		if (aborted)
			hold_release();
		pending.hold_level = aborted ? 0 : level - 1;
	}
	/* the array is sorted by level */
	if (aborted)
		while (pending.nsettings > 0 && pending.settings[pending.nsettings - 1].nest_level >= level)
			pending.nsettings--;
	else
		for (int i = pending.nsettings; i > 0 && pending.settings[i - 1].nest_level >= level; i--)
			pending.settings[i - 1].nest_level = level - 1;
}

/* May the current user create a database? */
static bool
may_create_database(void)
{
	HeapTuple tuple;
	bool may = superuser();

	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (HeapTupleIsValid(tuple))
	{
		may |= ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
		ReleaseSysCache(tuple);
	}
	return may;
}

static bool
is_template(Oid database)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool result = false;

	if (HeapTupleIsValid(tuple))
	{
		result = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
		ReleaseSysCache(tuple);
	}
	return result;
}

static char *
option_value(List *options, const char *name)
{
	ListCell *cell;

	foreach(cell, options)
	{
		DefElem *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg)
			return defGetString(option);
	}
	return NULL;
}

/* The oid of a database that the current user owns, or InvalidOid. */
static Oid
own_database(const char *name)
{
	Oid database = name ? get_database_oid(name, true) : InvalidOid;

	if (OidIsValid(database) && compat_owns_database(database, GetUserId()))
		return database;
	return InvalidOid;
}

static Oid
template_database(List *options)
{
	const char *name = option_value(options, "template");
	Oid database = get_database_oid(name ? name : "template1", true);

	if (OidIsValid(database) && may_create_database() &&
		(is_template(database) || compat_owns_database(database, GetUserId())))
		return database;
	return InvalidOid;
}

/*
 * The database that a command needs for itself.
 *
 * InvalidOid if it needs none, or if the command will fail and must not disturb anybody: the user
 * has no right to it, or it is not allowed in a transaction block (all but RENAME are not) and
 * this is one.
 */
static Oid
database_needed(Node *statement, ProcessUtilityContext context)
{
	if (!IsA(statement, RenameStmt) && !IsA(statement, DropdbStmt) &&
		!IsA(statement, CreatedbStmt) && !IsA(statement, AlterDatabaseStmt))
		return InvalidOid;
	if (!IsA(statement, RenameStmt) && IsInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL))
		return InvalidOid;
	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			return own_database(((DropdbStmt *) statement)->dbname);
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				return own_database(((RenameStmt *) statement)->subname);
			return InvalidOid;
		case T_CreatedbStmt:
			return template_database(((CreatedbStmt *) statement)->options);
		case T_AlterDatabaseStmt:
			if (option_value(((AlterDatabaseStmt *) statement)->options, "tablespace"))
				return own_database(((AlterDatabaseStmt *) statement)->dbname);
			return InvalidOid;
		default:
			return InvalidOid;
	}
}

/* Does the command change which databases should have a scheduler? */
static bool
concerns_supervisor(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_AlterDatabaseStmt:
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_DropRoleStmt:
			return true;
		case T_RenameStmt:
			return ((RenameStmt *) statement)->renameType == OBJECT_DATABASE ||
				   ((RenameStmt *) statement)->renameType == OBJECT_ROLE;
		case T_AlterOwnerStmt:
			return ((AlterOwnerStmt *) statement)->objectType == OBJECT_DATABASE;
		default:
			return false;
	}
}

static bool
is_transaction_statement(Node *statement, TransactionStmtKind kind)
{
	return IsA(statement, TransactionStmt) && ((TransactionStmt *) statement)->kind == kind;
}

/* Record that this transaction changes settings of this database or role. */
static void
remember_settings(Oid object)
{
	ChangedSettings change = {object, GetCurrentTransactionNestLevel()};
	int size = pending.settings_size * 2;

	if (pending.nsettings > 0 &&
		memcmp(&pending.settings[pending.nsettings - 1], &change, sizeof(change)) == 0)
		return;
	if (pending.settings == NULL)
	{
		size = 8;
		pending.settings = MemoryContextAlloc(TopTransactionContext, size * sizeof(change));
		pending.settings_size = size;
	}
	else if (pending.nsettings == pending.settings_size)
	{
		pending.settings = repalloc_huge(pending.settings, size * sizeof(change));
		pending.settings_size = size;
	}
	pending.settings[pending.nsettings++] = change;
}

/*
 * The role whose settings a statement changes; the database if it is for all roles there;
 * InvalidOid for all roles everywhere.
 */
static Oid
settings_object(const AlterRoleSetStmt *statement)
{
	if (statement->role)
		return get_rolespec_oid(statement->role, true);
	return statement->database ? get_database_oid(statement->database, true) : InvalidOid;
}

/* A command has succeeded: record what other processes must be notified of at its commit. */
static void
remember_command(Node *statement)
{
	pending.supervisor |= concerns_supervisor(statement);
	if (IsA(statement, AlterRoleSetStmt))
		remember_settings(settings_object((AlterRoleSetStmt *) statement));
	else if (IsA(statement, AlterDatabaseSetStmt))
		remember_settings(get_database_oid(((AlterDatabaseSetStmt *) statement)->dbname, true));
	else if (IsA(statement, AlterDatabaseStmt)) /* it may change the connection limit */
		remember_settings(get_database_oid(((AlterDatabaseStmt *) statement)->dbname, true));
	else if (is_transaction_statement(statement, TRANS_STMT_PREPARE))
		strlcpy(pending.gid, ((TransactionStmt *) statement)->gid, GIDSIZE);
}

/* COMMIT PREPARED or ROLLBACK PREPARED has succeeded.  No transaction is active any more. */
static void
finish_prepared(const SharedPrepared *prepared, bool committed)
{
	shared_prepared_remove(prepared, committed);
	/* the prepared transaction may have planned tasks, too, and its hints are not stored */
	if (committed)
		shared_scheduler_hint(MyDatabaseId, InvalidOid, NULL, 0,
							  SHARED_SCAN | SHARED_RECONCILE | SHARED_EXPIRY);
}

static void
utility(PlannedStmt *pstmt, const char *query, bool read_only_tree, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *environment, DestReceiver *destination,
		QueryCompletion *completion)
{
	Node *statement = pstmt->utilityStmt;
	bool commits = is_transaction_statement(statement, TRANS_STMT_COMMIT_PREPARED);
	bool finishes = commits || is_transaction_statement(statement, TRANS_STMT_ROLLBACK_PREPARED);
	SharedPrepared prepared;
	Oid database = InvalidOid;

	/* look it up now: after the command another prepared transaction may have the same gid */
	if (finishes)
		shared_prepared_find(((TransactionStmt *) statement)->gid, &prepared);
	else
		database = database_needed(statement, context);
	if (OidIsValid(database))
	{
		/*
		 * hold_level is the outermost level: if only a subtransaction inside it is rolled back,
		 * the holds of that one are kept, too
		 */
		if (pending.hold_level == 0)
			pending.hold_level = GetCurrentTransactionNestLevel();
		hold_take(database);
		hold_wait(database, VACATE_MS);
	}
	if (next_utility_hook)
		next_utility_hook(pstmt, query, read_only_tree, context, params, environment, destination,
						  completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, environment,
								destination, completion);
	if (finishes)
		finish_prepared(&prepared, commits);
	else
		remember_command(statement);
}

/* A parallel worker works for the task that its leader runs. */
static int64
task_of_leader(void)
{
	if (!IsParallelWorker() || MyProc->lockGroupLeader == NULL)
		return SETTINGS_NO_TASK;
	return shared_task_of((int) (MyProc->lockGroupLeader - ProcGlobal->allProcs));
}

/* Install the callbacks and the hook.  Called only if the library was preloaded. */
void
hooks_define(void)
{
	Settings.find_task_id = task_of_leader;
	RegisterXactCallback(transaction_ended, NULL);
	RegisterSubXactCallback(subtransaction_ended, NULL);
	next_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility;
}
