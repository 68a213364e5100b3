/*
 * table.c
 *		Finds, checks, creates and completes the task table.
 *
 * The extension is created and updated by the superuser that the scheduler starts as; no other
 * statement of pg_task needs a superuser.  All other statements run in a security-restricted
 * context as the table's owner, or as the user for whom the scheduler works.
 *
 * The scheduler does all of this; an executor only finds the table.  This file claims nothing and
 * runs no request.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "settings.h"
#include "task/columns.h"
#include "task/ddl.h"
#include "task/home.h"
#include "task/indexes.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/relation.h"
#include "task/table.h"
#include "task/watch.h"

/* The version of the extension that has the functions of this library. */
#define EXTENSION_VERSION "1.0"

/*
 * Each row is written three times.  On a page with space for its next version that needs a third
 * less WAL: no lock of the version that stays behind, and only the bytes that differ, which are the
 * last ones (see columns.h).  docs/architecture.md has the numbers for this and other values.
 */
#define TABLE_FILLFACTOR 60

/*
 * Create the extension, or update it to the version of this library.  One that is newer is left as
 * it is: it was updated before the server has restarted with the new library.
 */
static void
prepare_extension(void)
{
	Oid extension = get_extension_oid("pg_task", true);

	if (!OidIsValid(extension))
		ddl_run("CREATE EXTENSION pg_task VERSION '" EXTENSION_VERSION "'");
	else if (ddl_row_exists("SELECT FROM pg_catalog.pg_extension AS e"
							" WHERE e.oid = $1 AND e.extversion <> $2 AND NOT EXISTS (SELECT"
							"   FROM pg_catalog.pg_extension_update_paths('pg_task') AS p"
							"  WHERE p.source = $2 AND p.target = e.extversion"
							"    AND p.path IS NOT NULL)",
							extension, EXTENSION_VERSION))
		ddl_run("ALTER EXTENSION pg_task UPDATE TO '" EXTENSION_VERSION "'");
}

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
								 "   AND c LIKE 'search\\_path=%'"
								 " ORDER BY s.setrole = 0, s.setdatabase = 0",
								 2, types, values, NULL, true, 1);
	if (code != SPI_OK_SELECT)
		elog(ERROR, "could not read the settings of a role: %s", SPI_result_code_string(code));
	if (SPI_processed == 0)
		return NULL;
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

/* The schema in which CREATE TABLE by this user would put a table.  InvalidOid: none, if allowed.
 */
static Oid
default_schema(Oid user, bool missing_ok)
{
	const char *path = user_search_path(user);
	int nest_level = NewGUCNestLevel();
	List *schemas;

	if (path == NULL)
		path = GetConfigOptionResetString("search_path");
	(void) set_config_option("search_path", path, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
							 0, false);
	schemas = fetch_search_path(false);
	AtEOXact_GUC(false, nest_level);
	if (schemas != NIL && !isAnyTempNamespace(linitial_oid(schemas)))
		return linitial_oid(schemas);
	if (missing_ok)
		return InvalidOid;
	ereport(ERROR, (errcode(ERRCODE_UNDEFINED_SCHEMA),
					errmsg("no schema has been selected to create the task table in"),
					errhint("Set \"pg_task.schema_name\" for this database.")));
}

/* Is there a relation where the task table should be? */
static bool
has_table(const Location *where, Oid user)
{
	OwnerScope scope;
	Oid schema;
	bool found;

	owner_become(user, &scope);
	schema = where->schema ? get_namespace_oid(where->schema, true) : default_schema(user, true);
	found = OidIsValid(schema) && OidIsValid(get_relname_relid(where->table, schema));
	owner_return(&scope);
	return found;
}

/* Find the configured schema; create it if it is missing. */
static Oid
find_schema(const Location *where, Oid user)
{
	Oid schema;

	if (where->schema == NULL)
		return default_schema(user, false);
	schema = get_namespace_oid(where->schema, true);
	if (OidIsValid(schema) && isAnyTempNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_SCHEMA_NAME),
				 errmsg("the task table cannot be in the temporary schema \"%s\"", where->schema),
				 errhint("Set \"pg_task.schema_name\" for this database.")));
	if (!OidIsValid(schema))
	{
		ddl_run(psprintf("CREATE SCHEMA %s", quote_identifier(where->schema)));
		schema = get_namespace_oid(where->schema, false);
	}
	return schema;
}

static void
reject_table(const char *name, const char *why)
{
	ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("%s is not a task table", name),
					errdetail_internal("%s", why),
					errhint("Mend or rename it, or give the task table another name with"
							" \"pg_task.table_name\".")));
}

/* Raise an error if the relation is not a task table; then it is not touched. */
static void
check_table(Relation rel, const char *name)
{
	char *fault =
		relation_fault(rel, relation_members(rel), relation_parents(RelationGetRelid(rel)));

	if (fault == NULL)
		fault = columns_fault(rel, task_columns, TASK_COLUMNS);
	if (fault)
		reject_table(name, fault);
}

/* Add the columns that the table does not have. */
static void
add_columns(Oid relid, const char *name)
{
	TaskColumn which;

	for (which = 0; which < TASK_COLUMNS; which++)
		if (!column_exists(relid, &task_columns[which]))
		{
			ddl_run(column_add(name, &task_columns[which]));
			ddl_run(column_comment(name, &task_columns[which]));
		}
}

/*
 * Set a default that calls a function of the extension, unless the column has another one of the
 * user's: DROP EXTENSION ... CASCADE removes it.
 */
static void
set_default(Oid relid, const char *name, const ColumnDefinition *column)
{
	if (ddl_row_exists("SELECT FROM pg_catalog.pg_attribute AS a"
					   " WHERE a.attrelid = $1 AND a.attname = $2 AND NOT a.atthasdef"
					   "   AND a.attidentity = ''",
					   relid, column->name))
		ddl_run(psprintf("ALTER TABLE %s ALTER COLUMN %s SET %s", name,
						 quote_identifier(column->name), column->rest));
}

/* Most writes of pg_task itself fire none of them: see pg_task_watched. */
static const struct
{
	const char *name;
	const char *function;
	const char *event;
	const char *level;
} triggers[] = {
	{"pg_task_renumbered", "pg_task_numbered", "BEFORE UPDATE OF id", "FOR EACH STATEMENT"},
	{"zz_pg_task_bound", "pg_task_bound", "BEFORE INSERT", "FOR EACH ROW"},
	{"pg_task_timed", "pg_task_timed",
	 "BEFORE UPDATE OF state, dt, role, role_id, cron, timezone, after, rule, waits",
	 "FOR EACH ROW"},
	{"pg_task_planned", "pg_task_planned", "AFTER UPDATE",
	 "FOR EACH ROW WHEN (pg_catalog.pg_task_watched(NEW.state))"},
	{"pg_task_removed", "pg_task_removed", "AFTER DELETE",
	 "FOR EACH ROW WHEN (OLD.state <> 'DONE' AND pg_catalog.pg_task_watched(OLD.state))"},
	{"pg_task_truncated", "pg_task_removed", "AFTER TRUNCATE", "FOR EACH STATEMENT"},
};

/* Create the triggers that the table does not have. */
static void
add_triggers(Oid relid, const char *name)
{
	int i;

	for (i = 0; i < (int) lengthof(triggers); i++)
		ddl_add_trigger(relid, name, triggers[i].name,
						psprintf("%s ON %%s %s EXECUTE FUNCTION pg_catalog.%s()", triggers[i].event,
								 triggers[i].level, triggers[i].function));
}

/* Row security: users other than the owner see only their own tasks. */
static void
add_policy(Oid relid, const char *name)
{
	ddl_add_policy(relid, name, "pg_task_own", "pg_catalog.pg_task_own(role, role_id)");
}

/* The name of the table for SQL: quoted, with the schema. */
static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* Copy a list of oids into a memory context. */
static Oid *
copy_oids(const List *list, MemoryContext context)
{
	Oid *oids = MemoryContextAlloc(context, Max(list_length(list), 1) * sizeof(Oid));
	ListCell *cell;

	foreach(cell, list)
		oids[foreach_current_index(cell)] = lfirst_oid(cell);
	return oids;
}

/* Find an object of a table or of its partitions, which are locked, with code of the owner's. */
static char *
find_code(Oid relid, const List *members)
{
	char *code = owner_code_find(relid, true);
	ListCell *cell;

	foreach(cell, members)
		if (code == NULL)
			code = owner_code_find(lfirst_oid(cell), true);
	return code;
}

/*
 * The same for the tables beside the task table of this owner, as far as they exist.  "watch": the
 * task table is watched, and they are from now on.  One that is locked is left out: the scheduler,
 * which runs no code of tenants, writes it, or a session that looks for itself (removal.c).
 */
static char *
find_side_code(Oid relid, Oid owner, bool watch)
{
	static const char *const suffixes[] = {"queue", "rate"};
	char *code = NULL;
	int i;

	for (i = 0; i < (int) lengthof(suffixes) && code == NULL; i++)
	{
		char *name = makeObjectName(get_rel_name(relid), NULL, suffixes[i]);
		Oid side = get_relname_relid(name, get_rel_namespace(relid));
		Relation rel = NULL;

		if (OidIsValid(side) && relation_is_owned_by(side, owner) &&
			ConditionalLockRelationOid(side, AccessShareLock))
			rel = try_relation_open(side, NoLock);
		if (rel == NULL)
			continue;
		if (watch)
			watch_also(side);
		code = owner_code_find(side, true);
		relation_close(rel, NoLock);
	}
	return code;
}

/*
 * For a user's session: find an object of a task table, or of a table beside it, with code of the
 * owner's.  Executes none of it.
 */
char *
table_find_code(Oid relid, Oid owner)
{
	Relation rel = try_relation_open(relid, AccessShareLock);
	char *code;

	if (rel == NULL)
		return NULL;
	code = find_code(relid, relation_members(rel));
	relation_close(rel, NoLock);
	return code ? code : find_side_code(relid, owner, false);
}

/*
 * Describe the task table "relid", in a memory context of its own below "parent".  Returns NULL if
 * there is no such relation.  Must be called in a transaction.
 *
 * The table is watched from here on.  The watch begins before the catalogs are read, so a change
 * made meanwhile is reported by watch_changed.  After an error, everything allocated here goes
 * with the current memory context.
 */
TaskTable *
table_find(Oid relid, MemoryContext parent)
{
	Relation rel = try_relation_open(relid, AccessShareLock);
	MemoryContext context;
	List *members;
	List *parents;
	TaskTable *table;

	if (rel == NULL)
		return NULL;
	context = AllocSetContextCreate(CurrentMemoryContext, "pg_task table", ALLOCSET_SMALL_SIZES);
	watch_begin(relid);
	members = relation_members(rel);
	parents = relation_parents(relid);
	watch_relatives(list_concat_copy(members, parents));
	table = MemoryContextAlloc(context, sizeof(TaskTable));
	table->context = context;
	table->relid = relid;
	table->owner = rel->rd_rel->relowner;
	table->partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	table->name = MemoryContextStrdup(context, qualified_name(relid));
	table->rows = MemoryContextStrdup(
		context, psprintf("%s%s", table->partitioned ? "" : "ONLY ", table->name));
	table->inherited = MemoryContextStrdup(context, columns_inherited(rel));
	table->members = copy_oids(members, context);
	table->nmembers = list_length(members);
	table->whole = relation_fault(rel, members, parents) == NULL &&
				   columns_complete(rel, task_columns, TASK_COLUMNS);
	table->code = find_code(relid, members);
	if (table->code)
		table->code = MemoryContextStrdup(context, table->code);
	table->created = table->away = false;
	relation_close(rel, AccessShareLock);
	MemoryContextSetParent(context, parent);
	return table;
}

/* Keep the description until table_free, or for the life of the process. */
void
table_keep(TaskTable *table)
{
	MemoryContextSetParent(table->context, TopMemoryContext);
}

/* Free the description; NULL is allowed. */
void
table_free(TaskTable *table)
{
	if (table)
		MemoryContextDelete(table->context);
}

/*
 * Lock a table and its partitions until the end of the transaction.  With AccessShareLock the table
 * keeps its name, and nobody can change the owner of a partition; with RowExclusiveLock nobody adds
 * a trigger, either.  Call watch_changed after this, to find out whether the table changed before.
 */
void
table_lock(const TaskTable *table, LOCKMODE mode)
{
	int i;

	Assert(IsTransactionState());
	LockRelationOid(table->relid, mode);
	for (i = 0; i < table->nmembers; i++)
		LockRelationOid(table->members[i], mode);
}

/*
 * Complete an existing table, as its owner.  Returns false if it is away from home: it is left as
 * it is, because a restore that goes on will create what is missing.
 */
static bool
complete_table(Oid relid)
{
	Relation rel = relation_open(relid, AccessShareLock);
	char *name = qualified_name(relid);
	OwnerScope scope;

	check_table(rel, name);
	if (home_claim(relid) == HOME_AWAY)
	{
		relation_close(rel, NoLock);
		return false;
	}
	owner_become(rel->rd_rel->relowner, &scope);
	relation_close(rel, NoLock);
	add_columns(relid, name);
	set_default(relid, name, &task_columns[COLUMN_PARENT]);
	set_default(relid, name, &task_columns[COLUMN_FLOW]);
	indexes_complete(relid, name);
	add_triggers(relid, name);
	add_policy(relid, name);
	owner_return(&scope);
	return true;
}

/* Create the table, as the user for whom the scheduler works. */
static void
create_table(Oid schema, const char *table, Oid user)
{
	const char *schema_name = get_namespace_name(schema);
	const char *name = quote_qualified_identifier(schema_name, table);
	TaskColumn which;

	/* the server's own error would come with the whole statement */
	if (!compat_may_create_in(schema, user))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not create the task table in schema \"%s\"",
						GetUserNameFromId(user, false), schema_name),
				 errhint("GRANT CREATE ON SCHEMA %s TO %s, or set \"pg_task.schema_name\" for this"
						 " database.",
						 quote_identifier(schema_name),
						 quote_identifier(GetUserNameFromId(user, false)))));
	ddl_run(psprintf("%s WITH (fillfactor = " CppAsString2(TABLE_FILLFACTOR) ")",
					 columns_create(name, task_columns, TASK_COLUMNS)));
	ddl_run(psprintf("COMMENT ON TABLE %s IS"
					 " 'Tasks: insert a row, and pg_task runs its request in the background'",
					 name));
	for (which = 0; which < TASK_COLUMNS; which++)
		ddl_run(column_comment(name, &task_columns[which]));
}

/*
 * Make sure that the task table of this database exists and is complete, and describe it in a
 * child of the given memory context.  Returns NULL if there is none, and none is to be created;
 * then nothing is changed.  Runs in a transaction of the caller, as a superuser.
 */
TaskTable *
table_prepare(const Location *where, Oid user, MemoryContext context)
{
	TaskTable *table;
	OwnerScope scope;
	Oid schema;
	Oid relid;
	char *code;
	bool created;
	bool away;

	Assert(superuser() && !owner_acts());
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!where->create && !has_table(where, user))
	{
		PopActiveSnapshot();
		SPI_finish();
		return NULL;
	}
	prepare_extension();

	owner_become(user, &scope);
	schema = find_schema(where, user);
	relid = get_relname_relid(where->table, schema);
	created = !OidIsValid(relid);
	if (created)
	{
		create_table(schema, where->table, user);
		CommandCounterIncrement();
		relid = get_relname_relid(where->table, schema);
	}
	owner_return(&scope);

	away = !complete_table(relid);
	PopActiveSnapshot();
	CommandCounterIncrement();
	/* it may have been renamed or moved before it was locked; from here on it cannot be */
	if (get_relname_relid(where->table, schema) != relid)
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
	table = table_find(relid, context);
	table->created = created;
	if (table->code == NULL && (code = find_side_code(relid, table->owner, true)) != NULL)
		table->code = MemoryContextStrdup(table->context, code);
	/* again: of a mark that was set before the watch began, watch_changed does not tell */
	table->away = away || home_find(relid) == HOME_AWAY;
	SPI_finish();
	return table;
}
