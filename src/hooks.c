/*
 * hooks.c
 *		What the server calls at the end of a transaction and around utility
 *		commands.
 *
 * After a commit, when others can see the rows, the scheduler is told in which
 * groups rows wait, and woken.  Nothing is done before, so a rollback costs
 * nothing and a commit waits for nobody.
 *
 * Commands that need a database for themselves (DROP, RENAME, being copied as
 * a template) first have our idle processes leave it until the end of the
 * transaction.
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
#include "utils/syscache.h"

#include "compat.h"
#include "hold.h"
#include "hooks.h"
#include "settings.h"
#include "shared.h"

/* How long a command waits for our processes to leave a database. */
#define VACATE_MS 5000

/* So many databases and roles whose settings change are told apart in a transaction. */
#define SETTINGS_MAX 8

/* What this transaction did that others have to be told of. */
static struct
{
	Oid relid;	 /* the task table, the root if it is partitioned */
	Oid ignored; /* a table that only looks like it */
	int count;
	SharedNote notes[SHARED_NOTES];
	int news;		 /* SharedNews */
	bool several;	 /* tables that look like the task table */
	bool supervisor; /* databases or roles changed */
	int nsettings;	 /* whose settings changed: so many databases and roles */
	Oid settings[SETTINGS_MAX];
	bool holds; /* a database is held */
} pending;

static ProcessUtility_hook_type next_utility_hook = NULL;
static bool loaded = false; /* LOAD was used in this process */

/* Was LOAD ever used in this process?  Whatever it loads may change the session. */
bool
hooks_loaded(void)
{
	return loaded;
}

/* Anybody may put our triggers on a table of his own: does the scheduler know another? */
static bool
is_another(Oid relid)
{
	Oid known = shared_scheduler_relid(MyDatabaseId);

	return OidIsValid(known) && known != relid;
}

/*
 * Something happened to a table (SharedNews) that its scheduler is told of after the
 * commit.  False: no scheduler cares.
 */
bool
hooks_tell(Oid relid, int news)
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
	pending.news |= news;
	return true;
}

/*
 * When this transaction has committed, tell the scheduler of a table that rows
 * wait in a group; NULL: somewhere.
 */
void
hooks_remember(Oid relid, const SharedNote *note)
{
	if (hooks_tell(relid, 0) &&
		(note == NULL || !shared_note_merge(pending.notes, &pending.count, note)))
		pending.news |= SHARED_LOOK;
}

/* Nothing here may fail: after a commit there is no way back. */
static void
transaction_ended(XactEvent event, void *arg pg_attribute_unused())
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (event == XACT_EVENT_COMMIT && OidIsValid(pending.relid))
	{
		if (pending.several)
			pending.news |= SHARED_LOOK | SHARED_VERIFY | SHARED_EXPIRY;
		shared_scheduler_note(MyDatabaseId, pending.several ? InvalidOid : pending.relid,
							  pending.notes, pending.count, pending.news);
	}
	if (pending.holds)
		hold_release();
	while (pending.nsettings > 0)
		if (event == XACT_EVENT_COMMIT)
			shared_settings_changed(pending.settings[--pending.nsettings]);
		else
			pending.nsettings = 0;
	if (pending.supervisor && event == XACT_EVENT_COMMIT)
		shared_wake_supervisor();
	pending.relid = pending.ignored = InvalidOid;
	pending.count = pending.news = 0;
	pending.several = pending.supervisor = pending.holds = false;
}

/* May the current user make a database? */
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

/* A database of which the current user is an owner, or InvalidOid. */
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
 * The database that a command needs for itself.  InvalidOid if it needs none,
 * or if the user has no right to the command: then it will fail, and must not
 * disturb anybody.
 */
static Oid
database_needed(Node *statement)
{
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
commits_prepared(Node *statement)
{
	return IsA(statement, TransactionStmt) &&
		   ((TransactionStmt *) statement)->kind == TRANS_STMT_COMMIT_PREPARED;
}

/* When this transaction has committed, settings of this database or role have changed; InvalidOid:
 * of all. */
static void
remember_settings(Oid object)
{
	int i;

	for (i = 0; i < pending.nsettings; i++)
		if (pending.settings[i] == object)
			return;
	if (pending.nsettings == SETTINGS_MAX)
	{
		pending.nsettings = 1;
		pending.settings[0] = InvalidOid;
	}
	else
		pending.settings[pending.nsettings++] = object;
}

/* The connection limit of a database may change, by somebody who may change it. */
static void
remember_limit(const char *name)
{
	Oid database = own_database(name);

	if (OidIsValid(database))
		remember_settings(database);
}

/* The role whose settings a statement changes, or InvalidOid for all. */
static Oid
settings_role(const AlterRoleSetStmt *statement)
{
	return statement->role ? get_rolespec_oid(statement->role, true) : InvalidOid;
}

static void
utility(PlannedStmt *pstmt, const char *query, bool read_only_tree, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *environment, DestReceiver *destination,
		QueryCompletion *completion)
{
	Node *statement = pstmt->utilityStmt;
	bool prepared = commits_prepared(statement);
	Oid database = InvalidOid;

	loaded |= IsA(statement, LoadStmt);
	if (!prepared)
	{
		database = database_needed(statement);
		pending.supervisor |= concerns_supervisor(statement);
		if (IsA(statement, AlterRoleSetStmt))
			remember_settings(settings_role((AlterRoleSetStmt *) statement));
		else if (IsA(statement, AlterDatabaseSetStmt))
			remember_settings(get_database_oid(((AlterDatabaseSetStmt *) statement)->dbname, true));
		else if (IsA(statement, AlterDatabaseStmt))
			remember_limit(((AlterDatabaseStmt *) statement)->dbname);
	}
	if (OidIsValid(database) && hold_take(database))
	{
		pending.holds = true;
		hold_wait(database, VACATE_MS);
	}
	if (next_utility_hook)
		next_utility_hook(pstmt, query, read_only_tree, context, params, environment, destination,
						  completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, environment,
								destination, completion);
	/* what another session prepared may have planned tasks, or changed settings */
	if (prepared)
	{
		shared_settings_changed(InvalidOid);
		shared_scheduler_note(MyDatabaseId, InvalidOid, NULL, 0,
							  SHARED_LOOK | SHARED_VERIFY | SHARED_EXPIRY);
	}
}

/* A parallel worker works for the task that its leader runs. */
static int64
task_of_leader(void)
{
	if (!IsParallelWorker() || MyProc->lockGroupLeader == NULL)
		return 0;
	return shared_task_of((int) (MyProc->lockGroupLeader - ProcGlobal->allProcs));
}

/* Install the callbacks; only where the library was preloaded. */
void
hooks_define(void)
{
	settings_find_task_id = task_of_leader;
	RegisterXactCallback(transaction_ended, NULL);
	next_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility;
}
