/*
 * commands.c
 *		What is done before and after commands, of all sessions, that concern pg_task.
 *
 * A command that needs a database for itself (DROP, RENAME, SET TABLESPACE, CREATE DATABASE with a
 * template) first holds it: the scheduler and the idle executors there exit, and none starts until
 * the end of the transaction.
 *
 * A command that changes databases, roles or their settings is recorded after it has succeeded, and
 * other processes are notified at the commit.  DROP DATABASE forgets what was counted there.
 *
 * In the server that pg_upgrade has started nothing of this happens.  There the task tables that
 * come along are told that they are at home in the new system: otherwise they would be held back,
 * as in a copy.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "nodes/parsenodes.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "session/commands.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/statistics.h"
#include "shared/takers.h"
#include "shared/waiters.h"
#include "task/home.h"

/*
 * What commands of this transaction have done.  Static, because it collects from all of them; the
 * end of the transaction clears it.
 */
static struct
{
	bool holds;		 /* a database is held, also after a rollback to a savepoint */
	bool supervisor; /* wake the supervisor: databases or roles have changed */
	List *settings;	 /* databases and roles whose settings were changed, InvalidOid for all of
					  * them; in TopTransactionContext */
} changed;

/*
 * Record that this transaction changes settings of a database or role; InvalidOid: of all of them.
 * Their counters are incremented at the commit.
 */
static void
add_settings(Oid object)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	changed.settings = list_append_unique_oid(changed.settings, object);
	MemoryContextSwitchTo(old);
}

/* This database has a task table now: after the commit, a scheduler that has found none returns. */
void
commands_database_changed(void)
{
	add_settings(MyDatabaseId);
	changed.supervisor = true;
}

/* Nothing here may raise an error: after a commit, the server would panic. */
void
commands_transaction_ended(XactEvent event)
{
	ListCell *cell;

	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (changed.holds)
		hold_release();
	/* of a subtransaction that was rolled back, too, which changes nothing for their tasks */
	if (event == XACT_EVENT_COMMIT)
		foreach(cell, changed.settings)
			shared_settings_changed(lfirst_oid(cell));
	if (event == XACT_EVENT_COMMIT && changed.supervisor)
		shared_databases_changed();
	memset(&changed, 0, sizeof(changed));
}

/* Return the value of an option of a command, or NULL. */
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

/* Return the oid of a database if the current user owns it, else InvalidOid. */
static Oid
find_own_database(const char *name)
{
	Oid database = name ? get_database_oid(name, true) : InvalidOid;

	if (OidIsValid(database) && compat_owns_database(database, GetUserId()))
		return database;
	return InvalidOid;
}

static bool
may_create_database(void)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	bool may = superuser();

	if (HeapTupleIsValid(tuple))
	{
		may |= ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
		ReleaseSysCache(tuple);
	}
	return may;
}

/*
 * Return the template of CREATE DATABASE if the current user may copy it, else InvalidOid.  Any
 * user with CREATEDB may copy a database that is marked as a template.
 */
static Oid
find_template(List *options)
{
	const char *name = option_value(options, "template");
	Oid database = get_database_oid(name ? name : "template1", true);
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool may_copy;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	may_copy = may_create_database() && (((Form_pg_database) GETSTRUCT(tuple))->datistemplate ||
										 compat_owns_database(database, GetUserId()));
	ReleaseSysCache(tuple);
	return may_copy ? database : InvalidOid;
}

/*
 * Return the database that a command needs for itself, or InvalidOid.
 *
 * InvalidOid also if the command will fail, so that it ends no process: the user has no right to
 * it, or this is a transaction block, where only RENAME is allowed.
 */
static Oid
database_needed(Node *statement, ProcessUtilityContext context)
{
	Oid database = InvalidOid;

	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			database = find_own_database(((DropdbStmt *) statement)->dbname);
			break;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				return find_own_database(((RenameStmt *) statement)->subname);
			break;
		case T_CreatedbStmt:
			database = find_template(((CreatedbStmt *) statement)->options);
			break;
		case T_AlterDatabaseStmt:
			if (option_value(((AlterDatabaseStmt *) statement)->options, "tablespace"))
				database = find_own_database(((AlterDatabaseStmt *) statement)->dbname);
			break;
		default:
			break;
	}
	if (OidIsValid(database) && IsInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL))
		return InvalidOid;
	return database;
}

/* Of the settings of databases nothing is read from a role, not even from all of them. */
static void
warn_of_setting(const AlterRoleSetStmt *set)
{
	const VariableSetStmt *variable = set->setstmt;
	const char *const *name;

	if ((set->role == NULL && set->database) ||
		(variable->kind != VAR_SET_VALUE && variable->kind != VAR_SET_CURRENT))
		return;
	for (name = settings_of_databases; *name; name++)
		if (pg_strcasecmp(variable->name, *name) == 0)
			ereport(WARNING, (errmsg("\"%s\" has no effect as a setting of roles", *name),
							  errhint("Use ALTER DATABASE ... SET.")));
}

/*
 * A command of this kind has succeeded: record what other processes must be notified of at its
 * commit.  Other kinds of statements may be freed by now.
 */
static void
record_command(NodeTag kind, Node *statement)
{
	const AlterRoleSetStmt *set;
	ObjectType type;
	bool wakes = true; /* it may change which databases should have a scheduler */

	switch (kind)
	{
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_ReassignOwnedStmt: /* it may change the owner of the database */
			break;
		case T_DropRoleStmt: /* its settings are gone, its rows are not */
			add_settings(InvalidOid);
			break;
		case T_AlterDatabaseStmt: /* it may change the connection limit */
			add_settings(get_database_oid(((AlterDatabaseStmt *) statement)->dbname, true));
			break;
		case T_AlterDatabaseSetStmt:
			add_settings(get_database_oid(((AlterDatabaseSetStmt *) statement)->dbname, true));
			break;
		case T_RenameStmt:
			type = ((RenameStmt *) statement)->renameType;
			wakes = type == OBJECT_DATABASE || type == OBJECT_ROLE;
			break;
		case T_AlterOwnerStmt:
			wakes = ((AlterOwnerStmt *) statement)->objectType == OBJECT_DATABASE;
			break;
		case T_AlterRoleSetStmt: /* of a role, of all in a database, or of all everywhere */
			set = (AlterRoleSetStmt *) statement;
			if (set->role)
				add_settings(get_rolespec_oid(set->role, true));
			else
				add_settings(set->database ? get_database_oid(set->database, true) : InvalidOid);
			wakes = false;
			warn_of_setting(set);
			break;
		default:
			wakes = false;
			break;
	}
	changed.supervisor |= wakes;
}

/* During pg_upgrade: the statement to execute instead, or the same. */
static PlannedStmt *
replace_comment(PlannedStmt *pstmt)
{
	char *comment = home_upgraded(pstmt->utilityStmt);
	PlannedStmt *copy;

	if (comment == NULL)
		return pstmt;
	copy = copyObject(pstmt);
	((CommentStmt *) copy->utilityStmt)->comment = comment;
	return copy;
}

/* Execute a command by "next". */
void
commands_process(ProcessUtility_hook_type next, PlannedStmt *pstmt, const char *query,
				 bool read_only_tree, ProcessUtilityContext context, ParamListInfo params,
				 QueryEnvironment *environment, DestReceiver *destination,
				 QueryCompletion *completion)
{
	Node *statement = pstmt->utilityStmt;
	NodeTag kind = nodeTag(statement);
	Oid database;
	bool commits;

	if (IsBinaryUpgrade)
	{
		next(replace_comment(pstmt), query, read_only_tree, context, params, environment,
			 destination, completion);
		return;
	}
	commits = kind == T_TransactionStmt &&
			  ((TransactionStmt *) statement)->kind == TRANS_STMT_COMMIT_PREPARED;
	database = database_needed(statement, context);
	if (!OidIsValid(database))
		next(pstmt, query, read_only_tree, context, params, environment, destination, completion);
	else
	{
		changed.holds = true;
		PG_TRY();
		{
			hold_take(database);
			next(pstmt, query, read_only_tree, context, params, environment, destination,
				 completion);
		}
		PG_CATCH();
		{
			/* only a subtransaction may fail: its transaction may go on for long */
			hold_release();
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	/* a procedure may have ended the transaction, and the statement of the CALL may be freed */
	record_command(kind, statement);
	if (commits)
	{
		/* it may have inserted or ended tasks; what it would report was not stored */
		shared_scheduler_wake(MyDatabaseId, SHARED_SCAN | SHARED_RECONCILE | SHARED_EXPIRY |
												SHARED_QUEUES | SHARED_DEPENDENTS);
		waiters_end_all();
	}
	/* its files are gone, and no process is left that counts in it */
	if (kind == T_DropdbStmt && OidIsValid(database))
	{
		statistics_reset(&database, NULL);
		taken_database_dropped(database);
	}
}
