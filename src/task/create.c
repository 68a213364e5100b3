/*
 * create.c
 *		Makes and completes the task table and the tables beside it: for the scheduler, and for
 *		pg_task_create.
 *
 * What is missing is one query of catalogs, pg_task_missing; its rows are the statements that are
 * executed.  So a table that is whole is not locked.  The statements run as the owner of the table,
 * or as the role for which the scheduler works, in a security-restricted operation.
 *
 * The extension is created and updated by the superuser that the scheduler starts as; no other
 * statement of pg_task needs a superuser.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "settings.h"
#include "task/create.h"
#include "task/home.h"
#include "task/owner.h"
#include "task/relation.h"
#include "task/subtransaction.h"

/* If somebody else makes the same table, what is missing is looked up again, so many times. */
#define ATTEMPTS 3

/* Longest wait of the scheduler for the locks of a table beside the task table, which is made. */
#define SIDE_LOCK_TIMEOUT "200ms"

/* A table that is made or completed. */
typedef struct Making
{
	SideKind kind; /* SIDE_TABLES: the task table */
	Oid schema;
	const char *relname;
	Oid relid; /* InvalidOid: not made yet */
} Making;

/*
 * The table of which something was made and was gone or broken at once.  It is not made again by
 * this process: it might fill the disk.
 */
static Oid spoiled = InvalidOid;

static void
execute(const char *sql)
{
	int code = SPI_execute(sql, false, 0);

	if (code < 0)
		elog(ERROR, "could not execute \"%s\": %s", sql, SPI_result_code_string(code));
}

/*
 * Raise an error if this library is too old for the extension that is in the database, or the other
 * way round, and no script leads from the one to the other.  Is the extension to be updated?  One
 * that is newer is left as it is, if its files are here: it was updated before the server has
 * restarted with the new library.
 */
static bool
is_older_extension(Oid extension)
{
	Oid types[] = {OIDOID, TEXTOID};
	Datum values[] = {ObjectIdGetDatum(extension), CStringGetTextDatum(PG_TASK_VERSION)};
	char *version;
	char *way;

	if (SPI_execute_with_args(
			"SELECT e.extversion, CASE WHEN e.extversion = $2 THEN 'same' ELSE"
			"       (SELECT CASE WHEN p.source = $2 THEN 'newer' ELSE 'older' END"
			"          FROM pg_catalog.pg_extension_update_paths('pg_task') AS p"
			"         WHERE p.path IS NOT NULL"
			"           AND (p.source, p.target) IN ((e.extversion, $2), ($2, e.extversion))"
			"         ORDER BY p.source = $2 DESC LIMIT 1) END"
			"  FROM pg_catalog.pg_extension AS e WHERE e.oid = $1",
			2, types, values, NULL, true, 1) != SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "could not read the version of the extension");
	version = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	way = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
	if (way == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library of pg_task is of version %s, the extension of version %s",
						PG_TASK_VERSION, version),
				 errdetail("No script here leads from the one to the other: tasks wait."),
				 errhint("Install the files of the newer of them, or of a later version, and"
						 " restart the server.")));
	return strcmp(way, "older") == 0;
}

/* Create the extension, or update it to the version of this library. */
static void
create_extension(void)
{
	Oid extension = get_extension_oid("pg_task", true);

	if (!OidIsValid(extension))
		execute("CREATE EXTENSION pg_task VERSION '" PG_TASK_VERSION "'");
	else if (is_older_extension(extension))
		execute("ALTER EXTENSION pg_task UPDATE TO '" PG_TASK_VERSION "'");
}

/* ---- where ---- */

/*
 * The search_path that a session of this user in this database would have; NULL if neither the
 * role nor the database has a setting for it.
 */
static char *
user_search_path(Oid user)
{
	Oid types[] = {OIDOID, OIDOID};
	Datum values[] = {ObjectIdGetDatum(MyDatabaseId), ObjectIdGetDatum(user)};
	int code;

	code = SPI_execute_with_args("SELECT pg_catalog.substr(c, 13)"
								 "  FROM pg_catalog.pg_db_role_setting AS s,"
								 "       pg_catalog.unnest(s.setconfig) AS c"
								 " WHERE s.setdatabase IN (0, $1)"
								 "   AND s.setrole IN (0, $2)"
								 "   AND pg_catalog.starts_with(c, 'search_path=')"
								 " ORDER BY s.setrole = 0, s.setdatabase = 0",
								 2, types, values, NULL, true, 1);
	if (code != SPI_OK_SELECT)
		elog(ERROR, "could not read the settings of a role: %s", SPI_result_code_string(code));
	if (SPI_processed == 0)
		return NULL;
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

/*
 * The schema in which CREATE TABLE by this user, who acts, would put a table; InvalidOid if there
 * is none.
 */
static Oid
default_schema(Oid user)
{
	const char *path = user_search_path(user);
	int nest_level = NewGUCNestLevel();
	List *schemas;

	/* a session has another value if its own role has one */
	if (path == NULL && user_search_path(GetSessionUserId()) == NULL)
		path = GetConfigOptionResetString("search_path");
	(void) set_config_option("search_path", path ? path : "\"$user\", public", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	schemas = fetch_search_path(false);
	AtEOXact_GUC(false, nest_level);
	return schemas == NIL || isAnyTempNamespace(linitial_oid(schemas)) ? InvalidOid
																	   : linitial_oid(schemas);
}

/* Find the configured schema; create it if it is missing and "create". */
static Oid
find_schema(const Location *where, Oid user, bool create)
{
	Oid schema = where->schema ? get_namespace_oid(where->schema, true) : default_schema(user);

	if (OidIsValid(schema) && isAnyTempNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_SCHEMA_NAME),
				 errmsg("the task table cannot be in the temporary schema \"%s\"", where->schema),
				 errhint("Set \"pg_task.schema_name\" for this database.")));
	if (OidIsValid(schema) || !create)
		return schema;
	if (where->schema == NULL)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_SCHEMA),
						errmsg("no schema has been selected to create the task table in"),
						errhint("Set \"pg_task.schema_name\" for this database.")));
	execute(psprintf("CREATE SCHEMA %s", quote_identifier(where->schema)));
	return get_namespace_oid(where->schema, false);
}

/* ---- what is missing ---- */

/* The tables, as pg_task_missing calls them, by SideKind. */
static const char *const table_kinds[] = {"queue", "rate", "task"};

/* The statements that are missing, in their order. */
static List *
find_missing(const Making *making)
{
	List *statements = NIL;
	uint64 i;

	if (SPI_execute(psprintf("SELECT * FROM pg_catalog.pg_task_missing('%s', %u, %s)",
							 table_kinds[making->kind], making->schema,
							 quote_literal_cstr(making->relname)),
					false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not find out what is missing");
	for (i = 0; i < SPI_processed; i++)
		statements =
			lappend(statements, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
	return statements;
}

/*
 * The statement that is next names the table: raise an error unless the names mean it, and the
 * current user owns it.  Others may rename schemas at any moment.
 */
static void
check_name(Making *making)
{
	char *schema = get_namespace_name(making->schema);
	Oid relid = get_relname_relid(making->relname, making->schema);

	if (!OidIsValid(making->relid))
		making->relid = relid;
	if (relid != making->relid || schema == NULL ||
		get_namespace_oid(schema, true) != making->schema ||
		(OidIsValid(relid) && relation_owner(relid) != GetUserId()))
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED),
						errmsg("table \"%s\" has changed", making->relname)));
}

/*
 * Execute what is missing.  Returns false if nothing is, or nothing that this process may make.
 *
 * If something that was made is missing "again", whatever has taken it away would do so at every
 * try.  The scheduler goes on without it, however slow that is.
 */
static bool
make_missing(Making *making, bool again)
{
	bool made = false;
	ListCell *cell;

	foreach(cell, find_missing(making))
	{
		const char *sql = lfirst(cell);

		check_name(making);
		if (strncmp(sql, "CREATE ", 7) == 0 && OidIsValid(making->relid))
		{
			if (spoiled == making->relid)
				continue;
			if (again)
			{
				spoiled = making->relid;
				ereport(
					WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("an index, trigger or policy of table \"%s\" is not what it was made"
							" to be",
							making->relname),
					 errdetail("It was to be made by: %s.  It is not made again.", sql),
					 errhint("Look for event triggers and for invalid indexes, remove them, and"
							 " reload.")));
				continue;
			}
		}
		execute(sql);
		CommandCounterIncrement();
		made = true;
	}
	return made;
}

/* Make and complete a table, as the current user, who owns it. */
static void
complete(void *arg)
{
	Making *making = arg;

	SPI_connect();
	/* what a new table has been given by default privileges is seen when it is there */
	if (make_missing(making, false) && make_missing(making, true))
		(void) make_missing(making, true);
	check_name(making);
	SPI_finish();
}

/* Call that in a subtransaction.  Returns NULL, or the error. */
static ErrorData *
try_to_complete(Making *making)
{
	Making begun = *making;
	ErrorData *error = NULL;
	int i;

	for (i = 0; i < ATTEMPTS; i++)
	{
		*making = begun;
		error = subtransaction_try(complete, making, true);
		/* somebody else has made it in the meantime */
		if (error == NULL || (error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION &&
							  error->sqlerrcode != ERRCODE_DUPLICATE_TABLE &&
							  error->sqlerrcode != ERRCODE_DUPLICATE_OBJECT &&
							  error->sqlerrcode != ERRCODE_DUPLICATE_COLUMN))
			break;
		AcceptInvalidationMessages();
	}
	return error;
}

/* ---- the task table ---- */

/* Raise an error unless the caller of pg_task_create has the rights of this role. */
static void
check_caller(Oid caller, Oid role)
{
	if (OidIsValid(caller) && !has_privs_of_role(caller, role))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("you may not create the task table"),
						errdetail("It belongs to role \"%s\", of which you are not a member.",
								  GetUserNameFromId(role, false))));
}

/* Raise an error if the user may not create the task table: the server's own would be long. */
static void
check_may_create(Oid schema, Oid user)
{
	const char *name = quote_identifier(get_namespace_name(schema));
	char *role = GetUserNameFromId(user, false);

	if (!compat_may_create_in(schema, user))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not create the task table in schema \"%s\"", role,
						get_namespace_name(schema)),
				 errhint("GRANT CREATE ON SCHEMA %s TO %s, or set \"pg_task.schema_name\" for this"
						 " database.",
						 name, quote_identifier(role))));
}

/*
 * Lock an existing relation, raise an error if it is not a task table, and mark where it is at
 * home.  Returns its owner; InvalidOid if it is away: it is left as it is, because a restore that
 * goes on will create what is missing.
 */
static Oid
claim_table(Oid relid, Oid caller)
{
	Relation rel;
	Oid owner;
	char *fault;

	relation_lock(relid, AccessShareLock);
	rel = relation_open(relid, NoLock);
	owner = rel->rd_rel->relowner;
	fault = relation_fault(rel, task_columns, TASK_COLUMNS);
	if (fault)
	{
		bool other = relation_is_rekgrpth(rel);

		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("%s is not a task table",
						quote_qualified_identifier(get_namespace_name(rel->rd_rel->relnamespace),
												   RelationGetRelationName(rel))),
				 errdetail_internal("%s", other ? "It is a table of the other pg_task (RekGRpth)."
												: fault),
				 other ? errhint("Convert it with pg_task_convert_rekgrpth.sql, or give the task"
								 " table another name with \"pg_task.table_name\".")
					   : errhint("Mend or rename it, or give the task table another name with"
								 " \"pg_task.table_name\".")));
	}
	relation_close(rel, NoLock);
	check_caller(caller, owner);
	return home_claim(relid, OidIsValid(caller)) == HOME_AWAY ? InvalidOid : owner;
}

/* ---- the tables beside it ---- */

/* May others than the owner be the cause of an error?  Then the task table is used without it. */
static bool
is_caused_by_others(int sqlstate, bool exists)
{
	int category = ERRCODE_TO_CATEGORY(sqlstate);

	return category != ERRCODE_INSUFFICIENT_RESOURCES && category != ERRCODE_SYSTEM_ERROR &&
		   category != ERRCODE_OPERATOR_INTERVENTION && sqlstate != ERRCODE_TABLE_CHANGED &&
		   !(exists && sqlstate == ERRCODE_LOCK_NOT_AVAILABLE);
}

/*
 * Make or complete a table beside the task table, as its owner, unless it is "whole".  Returns
 * NULL, or why it cannot be used.  One of another owner is not even locked: it may be kept locked.
 */
static const char *
complete_side(SideKind kind, Oid task, Oid owner, bool whole)
{
	Making making = {kind, get_rel_namespace(task), side_table_name(kind, task), InvalidOid};
	const char *fault = NULL;
	ErrorData *error;
	bool exists;

	making.relid = get_relname_relid(making.relname, making.schema);
	exists = OidIsValid(making.relid);
	if (exists)
	{
		Relation rel = side_table_open(kind, task, owner, false, &fault);

		if (rel)
			relation_close(rel, NoLock);
	}
	else if (!compat_may_create_in(making.schema, owner))
		fault = "The owner of the task table may not create it.";
	if (fault || (exists && whole))
		return fault;
	if (!exists && MyBackendType == B_BG_WORKER)
		(void) set_config_option("lock_timeout", SIDE_LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	error = try_to_complete(&making);
	if (error == NULL)
		return NULL;
	if (!is_caused_by_others(error->sqlerrcode, exists))
		ReThrowError(error);
	return psprintf("It could not be %s: %s", exists ? "completed" : "created", error->message);
}

/* ---- all of them ---- */

/* What find_incomplete is called with, and has found. */
typedef struct Incomplete
{
	Oid task;
	Oid owner;
	bool is[SIDE_TABLES + 1]; /* something of this table is missing, or may be */
} Incomplete;

/*
 * Of which tables is something missing?  One query for all: most of the time of pg_task_missing is
 * its planning, and usually nothing is missing.  One of another owner is left out: it or its
 * partitions may be kept locked.
 */
static void
find_incomplete(void *arg)
{
	Incomplete *incomplete = arg;
	Oid schema = get_rel_namespace(incomplete->task);
	StringInfoData tables;
	SideKind kind;
	uint64 i;

	initStringInfo(&tables);
	appendStringInfo(&tables, "(%d, '%s', %s)", SIDE_TABLES, table_kinds[SIDE_TABLES],
					 quote_literal_cstr(get_rel_name(incomplete->task)));
	for (kind = 0; kind < SIDE_TABLES; kind++)
	{
		Oid side = side_table_find(kind, incomplete->task);

		incomplete->is[kind] = !OidIsValid(side) || relation_owner(side) != incomplete->owner;
		if (!incomplete->is[kind])
			appendStringInfo(&tables, ", (%d, '%s', %s)", kind, table_kinds[kind],
							 quote_literal_cstr(side_table_name(kind, incomplete->task)));
	}
	SPI_connect();
	if (SPI_execute(psprintf("SELECT w.kind FROM (VALUES %s) AS w (kind, what, relation), LATERAL"
							 " pg_catalog.pg_task_missing(w.what, %u, w.relation::name)",
							 tables.data, schema),
					false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not find out what is missing");
	for (i = 0; i < SPI_processed; i++)
	{
		bool isnull;
		Datum found = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);

		incomplete->is[DatumGetInt32(found)] = true;
	}
	SPI_finish();
}

/*
 * Call that in a subtransaction, which leaves no lock.  After an error that others may cause all
 * tables are looked at one by one, and each is complained of by itself.
 */
static Incomplete
try_to_find_incomplete(Oid task, Oid owner)
{
	Incomplete incomplete = {.task = task, .owner = owner};
	ErrorData *error = subtransaction_try(find_incomplete, &incomplete, false);

	if (error && !is_caused_by_others(error->sqlerrcode, false))
		ReThrowError(error);
	if (error)
		memset(incomplete.is, true, sizeof(incomplete.is));
	return incomplete;
}

/* Is there a relation where the task table should be, or is it to be created? */
static bool
may_find(const Location *where, Oid user)
{
	OwnerScope scope;
	Oid schema;

	if (where->create)
		return true;
	owner_restrict(user, &scope);
	schema = find_schema(where, user, false);
	owner_restrict_end(&scope);
	return OidIsValid(schema) && OidIsValid(get_relname_relid(where->table, schema));
}

/*
 * Make sure that the task table of this database and those beside it exist and are whole, for this
 * user, unless a table is "known", which is to be completed.  "caller": who calls pg_task_create,
 * and must have the rights of the owner; InvalidOid: the scheduler, for which the extension is
 * made, too, unless no table is to be found or made.  Connected to SPI, in a transaction with a
 * snapshot.
 */
Created
create_tables(const Location *where, Oid user, Oid caller, Oid known)
{
	Making making = {.kind = SIDE_TABLES, .relname = where->table};
	Created result = {0};
	Incomplete incomplete = {0};
	OwnerScope scope;
	Oid owner = user;
	SideKind kind;

	if (!OidIsValid(caller))
	{
		if (!may_find(where, user))
			return result;
		create_extension();
	}
	if (!OidIsValid(known))
		check_caller(caller, user);
	owner_restrict(user, &scope);
	if (OidIsValid(caller))
		(void) is_older_extension(get_extension_oid("pg_task", false));
	making.schema = OidIsValid(known) ? get_rel_namespace(known) : find_schema(where, user, true);
	owner_restrict_end(&scope);
	making.relid = get_relname_relid(where->table, making.schema);
	result.made = !OidIsValid(making.relid);
	/* it was known a moment ago: nobody has asked whether the caller may have another one made */
	if (result.made && OidIsValid(known))
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
	if (result.made)
		check_may_create(making.schema, user);
	else
		owner = claim_table(making.relid, caller);
	if (OidIsValid(owner))
	{
		ErrorData *error = NULL;

		owner_restrict(owner, &scope);
		if (!result.made)
			incomplete = try_to_find_incomplete(making.relid, owner);
		/* who opens a table that is whole looks for itself whether the name still means it */
		if (result.made || incomplete.is[SIDE_TABLES])
			error = try_to_complete(&making);
		if (error)
			ReThrowError(error);
		owner_restrict_end(&scope);
	}
	if (result.made)
		owner = claim_table(making.relid, InvalidOid);
	result.completed = result.made || incomplete.is[SIDE_TABLES];
	result.relid = making.relid;
	result.away = !OidIsValid(owner);
	for (kind = 0; kind < SIDE_TABLES && !result.away; kind++)
	{
		owner_restrict(owner, &scope);
		result.fault[kind] =
			complete_side(kind, result.relid, owner, !result.made && !incomplete.is[kind]);
		result.completed |= incomplete.is[kind] && result.fault[kind] == NULL;
		owner_restrict_end(&scope);
	}
	CommandCounterIncrement();
	return result;
}
