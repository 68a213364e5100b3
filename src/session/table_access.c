/*
 * table_access.c
 *		The task table of this database, for a function that SQL calls, on behalf of its caller.
 *
 * It is the table of the scheduler.  Where there is none, because pg_task.enabled is off or the
 * database is not named in pg_task.database, it is the one that a scheduler would find.  Never a
 * table that just anybody has made.
 *
 * The owner of the table decides what its statements execute: policies, triggers, expressions of
 * indexes, constraints and columns.  With a plain SELECT that runs with the rights of whoever
 * reads.  By a function of ours nobody runs it with rights that its owner could want:
 *
 * - the owner, and a role that has privileges in its database alone, use their own rights, and row
 *   security applies; after SET ROLE in a security-restricted operation, which keeps the session
 *   user out of reach;
 * - whoever has the rights of the owner, as a superuser does, uses the table as the owner, in a
 *   security-restricted operation, and sees all rows;
 * - any other role with a right beyond its database (an attribute, a predefined role) does the
 *   same, and sees the rows of roles that it may act as, by the rule of our own policy.
 *
 * What was checked is what is used: the table is locked first, its names must mean it when a
 * statement is parsed, and results are compared by type.
 *
 * pg_task_create makes the table that a scheduler would make.  This file knows no statement.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "rewrite/rowsecurity.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/syscache.h"

#include "compat.h"
#include "session/commands.h"
#include "session/table_access.h"
#include "settings.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "task/create.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/relation.h"
#include "task/roles.h"
#include "task/table.h"

COMPAT_FUNCTION(pg_task_create);
COMPAT_FUNCTION(pg_task_change_owner);

/* ---- which table ---- */

/* Is this the task table of the role, as far as can be seen from outside? */
static bool
is_task_table(Form_pg_class form, Oid user, const char *schema)
{
	return form->relowner == user && !form->relispartition &&
		   (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_PARTITIONED_TABLE) &&
		   (schema == NULL || form->relnamespace == get_namespace_oid(schema, true)) &&
		   OidIsValid(get_trigger_oid(form->oid, "pg_task_planned", true));
}

/* Find the table that a scheduler of this database would find; InvalidOid unless there is one. */
static Oid
find_table(void)
{
	Location where = location_of(get_database_name(MyDatabaseId));
	Oid user = service_here().user;
	CatCList *relations = SearchSysCacheList1(RELNAMENSP, CStringGetDatum(where.table));
	Oid found = InvalidOid;
	int count = 0;
	int i;

	for (i = 0; i < relations->n_members; i++)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(&relations->members[i]->tuple);

		if (!is_task_table(form, user, where.schema))
			continue;
		found = form->oid;
		count++;
	}
	ReleaseCatCacheList(relations);
	return count == 1 ? found : InvalidOid;
}

/*
 * Return the task table that the scheduler serves.  While it prepares the table, or sleeps, that is
 * the one that it has served, unless somebody else owns it by now, whose triggers would run with
 * the rights of the caller.  InvalidOid if none is known.
 */
Oid
table_access_known(void)
{
	Oid relid = Shared ? shared_scheduler_relid(MyDatabaseId, false) : InvalidOid;
	SharedFindings found;

	if (Shared == NULL || OidIsValid(relid))
		return relid;
	found = shared_database_found(MyDatabaseId);
	if (OidIsValid(found.owner) && relation_owner(found.relid) != found.owner)
		return InvalidOid;
	return found.relid;
}

/*
 * Return the task table of this database.  Raises an error if the library is not preloaded, or it
 * is not clear which table is meant.
 */
Oid
table_access_find(void)
{
	Oid relid;

	shared_require();
	relid = table_access_known();
	if (!OidIsValid(relid) || get_rel_name(relid) == NULL)
		relid = find_table();
	if (!OidIsValid(relid))
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("no task table of this database is known"),
			 errhint(
				 "If it was just restored, or its owner has changed, try again in a few seconds."
				 " If there is none, SELECT pg_task_create() makes it. Otherwise check the"
				 " settings \"pg_task.enabled\" and \"pg_task.database\", or UPDATE the table"
				 " yourself.")));
	return relid;
}

/* Why no task of this database runs; NULL: it is served, or will be. */
const char *
table_access_service(void)
{
	SharedFindings found = shared_database_found(MyDatabaseId);

	if (RecoveryInProgress())
		return "the server is a standby: tasks run on the primary";
	if (crash_holds(MyDatabaseId))
		return "it is held back, because the scheduler of this database has crashed the server:"
			   " see pg_task_release";
	if (!service_here().wanted)
		return "no scheduler serves this database: pg_task.database does not name it";
	/* of the server, read without the lock; the session may have an older one of the database */
	if (!Shared->enabled || shared_database_is_disabled(MyDatabaseId, &found))
		return "pg_task.enabled is off";
	if (found.absent && !OidIsValid(found.user))
		return "no scheduler serves this database: the role that pg_task.database names does not"
			   " exist";
	return NULL;
}

/* ---- whose rights ---- */

/* Has this role, by an attribute or as a predefined role, rights beyond its database? */
static bool
role_is_mighty(Oid role)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	Form_pg_authid form;
	bool mighty;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_authid) GETSTRUCT(tuple);
	mighty = form->rolsuper || form->rolcreaterole || form->rolcreatedb || form->rolreplication ||
			 form->rolbypassrls || role < FirstNormalObjectId;
	ReleaseSysCache(tuple);
	return mighty;
}

/* Has the role, or one that it may become, rights beyond its database? */
static bool
has_might(Oid role)
{
	List *roles = list_make1_oid(role);
	int next;
	int i;

	for (next = 0; next < list_length(roles); next++)
	{
		Oid member = list_nth_oid(roles, next);
		CatCList *memberships;

		if (role_is_mighty(member))
			return true;
		memberships = SearchSysCacheList1(AUTHMEMMEMROLE, ObjectIdGetDatum(member));
		for (i = 0; i < memberships->n_members; i++)
			roles = list_append_unique_oid(
				roles, ((Form_pg_auth_members) GETSTRUCT(&memberships->members[i]->tuple))->roleid);
		ReleaseCatCacheList(memberships);
	}
	return false;
}

/* Has the table a policy that hides rows?  It is not asked: then the rows are not shown at all. */
static bool
has_restrictive_policy(Relation rel)
{
	ListCell *cell;

	foreach(cell, rel->rd_rsdesc ? rel->rd_rsdesc->policies : NIL)
		if (!((RowSecurityPolicy *) lfirst(cell))->permissive)
			return true;
	return false;
}

/* As a condition on a row t: may the caller act as its role? */
static const char *
own_rows(Oid caller)
{
	return psprintf("pg_catalog.pg_task_own(t.role, t.role_id, '%u'::pg_catalog.oid)", caller);
}

/* Have statements executed as the owner, for a caller who sees some rows. */
static void
limit_rows(TableAccess *access, Relation rel, Oid caller)
{
	if (pg_class_aclcheck(access->relid, caller, ACL_SELECT) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, RelationGetRelationName(rel));
	access->user = access->owner;
	if (check_enable_rls(access->relid, caller, false) != RLS_ENABLED)
		return;
	if (has_restrictive_policy(rel))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("table \"%s\" has a restrictive policy", RelationGetRelationName(rel)),
				 errdetail("The policies of others are not executed for a role with rights"
						   " beyond its database.")));
	access->condition = psprintf(" AND %s", own_rows(caller));
	access->rows =
		psprintf("(SELECT t.*, t.tableoid, t.ctid, t.xmin, t.xmax FROM %s AS t WHERE true%s)",
				 access->table, access->condition);
}

/* Have statements executed as the owner, for a caller who sees figures of all rows. */
static void
hide_texts(TableAccess *access, Relation rel, Oid caller)
{
	access->user = access->owner;
	access->sees_all = true;
	if (pg_class_aclcheck(access->relid, caller, ACL_SELECT) != ACLCHECK_OK ||
		has_restrictive_policy(rel))
		access->readable = "false";
	else if (check_enable_rls(access->relid, caller, true) == RLS_ENABLED)
		access->readable = own_rows(caller);
}

/* Decide with whose rights the table is used, and what the caller sees. */
static void
decide_rights(TableAccess *access, Relation rel, AccessKind kind)
{
	Oid caller = GetUserId();

	/* else the owner's code could return to another user */
	bool alone = caller == GetSessionUserId() && caller == GetAuthenticatedUserId();

	access->sees_all = check_enable_rls(access->relid, caller, true) != RLS_ENABLED;
	if (caller == access->owner && alone)
		return;
	if (access->sees_all && has_privs_of_role(caller, access->owner))
		access->user = access->owner;
	else if (kind == ACCESS_FIGURES && has_privs_of_role(caller, ROLE_PG_READ_ALL_STATS))
		hide_texts(access, rel, caller);
	else if (has_might(caller))
		limit_rows(access, rel, caller);
	else if (!alone)
		access->user = caller;
}

/*
 * Must code of this owner's not run with those rights when somebody writes rows in this session?
 * So it is if that one has not the owner's rights anyway, unless the owner of the database has
 * allowed it.
 */
bool
table_access_bars_code(Oid owner)
{
	if (Shared && shared_database_found(MyDatabaseId).owner_code)
		return false;
	return !has_privs_of_role(GetUserId(), owner) || !has_privs_of_role(GetSessionUserId(), owner);
}

/* ---- the table ---- */

/*
 * Find the task table of this database and lock it until the end of the transaction, as SELECT
 * does.  Check that it is still one: its owner may have changed it, and no scheduler has looked
 * since.  Raises an error if the caller may see nothing of it; privileges of a caller whose
 * rights are used are checked by the server.
 */
TableAccess
table_access_open(AccessKind kind)
{
	TableAccess access = {.relid = table_access_find(), .condition = "", .readable = "true"};
	Relation rel = try_relation_open(access.relid, AccessShareLock);
	const char *fault = rel ? relation_fault(rel, task_columns, TASK_COLUMNS) : "It was dropped.";

	if (fault)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("the task table of this database cannot be used"),
						errdetail_internal("%s", fault)));
	access.owner = rel->rd_rel->relowner;
	access.caller = GetUserId();
	access.name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(access.relid)),
											 get_rel_name(access.relid));
	access.table = psprintf(
		"%s%s", rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ", access.name);
	access.rows = access.table;
	decide_rights(&access, rel, kind);
	relation_close(rel, NoLock);
	return access;
}

/* As a condition on a row t: may the caller plan tasks for its role? */
const char *
table_access_own(const TableAccess *access)
{
	return has_privs_of_role(access->caller, access->owner) ? "true" : own_rows(access->caller);
}

/* Raise an error: the caller has not this privilege. */
static void
forbid(const TableAccess *access, const char *privilege, const char *purpose)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("you may not %s tasks in table %s", purpose, get_rel_name(access->relid)),
			 errhint("GRANT %s ON %s TO %s", privilege, access->name,
					 quote_identifier(GetUserNameFromId(access->caller, false)))));
}

/*
 * Raise an error unless the caller may UPDATE this column of the table.  The server's own would
 * come with a statement of ours as its context, and without what helps.
 */
void
table_access_check_update(const TableAccess *access, TaskColumn which, const char *purpose)
{
	Oid relid = access->relid;
	AttrNumber column = get_attnum(relid, task_columns[which].name);

	if (pg_class_aclcheck(relid, GetUserId(), ACL_UPDATE) != ACLCHECK_OK &&
		pg_attribute_aclcheck(relid, column, GetUserId(), ACL_UPDATE) != ACLCHECK_OK)
		forbid(access, "UPDATE", purpose);
}

/*
 * Is this column there, and may the current user SELECT it?  For what is told beside the result,
 * which needs no privilege for that.
 */
bool
table_access_reads(Oid relid, TaskColumn which)
{
	AttrNumber column = get_attnum(relid, task_columns[which].name);

	return column != InvalidAttrNumber &&
		   (pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
			pg_attribute_aclcheck(relid, column, GetUserId(), ACL_SELECT) == ACLCHECK_OK);
}

/* Raise an error unless the caller may INSERT all columns. */
void
table_access_check_insert(const TableAccess *access, const char *purpose)
{
	Oid relid = access->relid;

	if (pg_class_aclcheck(relid, GetUserId(), ACL_INSERT) != ACLCHECK_OK &&
		pg_attribute_aclcheck_all(relid, GetUserId(), ACL_INSERT, ACLMASK_ALL) != ACLCHECK_OK)
		forbid(access, "INSERT", purpose);
}

/* ---- statements ---- */

/* Of the statement that is being executed.  Static, because a function of SQL asks. */
static const TableAccess *current;

/* For a function that such a statement calls.  NULL: none is executed. */
const TableAccess *
table_access_current(void)
{
	return current;
}

static void
become_user(const TableAccess *access, OwnerScope *scope)
{
	if (access->user == access->owner)
	{
		owner_restrict(access->user, scope);
		return;
	}
	/* names mean what they mean to the caller */
	GetUserIdAndSecContext(&scope->user, &scope->context);
	SetUserIdAndSecContext(access->user, scope->context | SECURITY_LOCAL_USERID_CHANGE |
											 SECURITY_RESTRICTED_OPERATION);
	scope->nest_level = NewGUCNestLevel();
}

/*
 * A statement is executed as the owner for somebody else: raise an error if it could run code of
 * the owner's, whatever pg_task.owner_code says.  Functions that either has compiled in this
 * session under its settings would run for the other.
 */
static void
check_code(const TableAccess *access, bool writes)
{
	char *code = owner_code_find(access->relid, writes);

	if (code)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("code of the owner of the task table must not run in this session"),
				 errdetail("The code belongs to %s.", code),
				 errhint("Connect as the owner; or read or UPDATE the table yourself, which runs"
						 " that code with your rights.")));
}

/* Execute a statement: see table_access_execute. */
static uint64
execute(const TableAccess *access, const char *sql, SPIExecuteOptions options, int expected)
{
	const TableAccess *before = current;
	bool as_owner = access->user == access->owner;
	volatile int code = 0;
	NamedTable outer;
	OwnerScope scope;
	int barred;

	if (as_owner)
		check_code(access, expected != SPI_OK_SELECT);
	outer = named_table_expect((NamedTable){.text = sql, .relid = access->relid});
	barred = owner_code_bar(as_owner ? ERRCODE_INSUFFICIENT_PRIVILEGE : 0);
	current = access;
	PG_TRY();
	{
		if (OidIsValid(access->user))
			become_user(access, &scope);
		code = SPI_execute_extended(sql, &options);
		if (OidIsValid(access->user))
			owner_restrict_end(&scope);
	}
	PG_FINALLY();
	{
		current = before;
		(void) owner_code_bar(barred);
		(void) named_table_expect(outer);
	}
	PG_END_TRY();
	if (code != expected)
		elog(ERROR, "could not use the task table: %s", SPI_result_code_string(code));
	return SPI_processed;
}

/* Take the lines that quote this statement out of the context of an error, in any language. */
static void
forget_statement(ErrorData *error, const char *sql)
{
	char *begin = error->context ? strstr(error->context, sql) : NULL;
	char *end;

	if (begin == NULL)
		return;
	end = strchr(begin + strlen(sql), '\n');
	while (begin > error->context && begin[-1] != '\n')
		begin--;
	if (end)
		memmove(begin, end + 1, strlen(end));
	else if (begin > error->context)
		begin[-1] = '\0';
	else
		error->context = NULL;
}

/*
 * Execute a statement, connected to SPI, which returns this code: SPI_OK_SELECT or SPI_OK_UPDATE.
 * Casts in the statement see to the types.  Returns the number of rows.  After an error, the end of
 * the transaction restores the user and the settings.  What the user gets to see of it is the
 * call, not our statement.
 */
uint64
table_access_execute(const TableAccess *access, const char *sql, SPIExecuteOptions options,
					 int expected)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile uint64 rows = 0;

	PG_TRY();
	{
		rows = execute(access, sql, options, expected);
	}
	PG_CATCH();
	{
		ErrorData *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		forget_statement(error, sql);
		ReThrowError(error);
	}
	PG_END_TRY();
	return rows;
}

/* ---- pg_task_create, pg_task_change_owner ---- */

/* Raise an error if a table beside the task table cannot be used, for this reason. */
static void
check_side(SideKind kind, Oid task, const char *fault)
{
	if (fault)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("table \"%s\" cannot be used", side_table_name(kind, task)),
						errdetail_internal("%s", fault)));
}

/*
 * pg_task_create(): make or complete the task table of this database and those beside it, as the
 * scheduler would, and return it.  Whoever calls it must have the rights of the role to which they
 * belong; everything is done as that role.
 */
Datum
pg_task_create(PG_FUNCTION_ARGS)
{
	Service service;
	Created created;
	Location where;
	const char *name;
	SideKind kind;
	Oid known;

	PreventCommandIfReadOnly("pg_task_create()");
	shared_require();
	where = location_of(get_database_name(MyDatabaseId));
	service = service_here();
	if (service.missing)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("the role that is to own the task table does not exist"),
						errhint("Check the setting \"pg_task.database\".")));
	/* where that is, depends on settings of its role, which a session cannot always know */
	known = where.schema ? InvalidOid : table_access_known();
	name = OidIsValid(known) ? get_rel_name(known) : NULL;
	if (name == NULL || strcmp(name, where.table) != 0)
		known = InvalidOid;
	SPI_connect();
	created = create_tables(&where, service.user, GetUserId(), known);
	if (created.away)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the task table comes from another database or server, or is being restored"),
			 errhint("SELECT pg_task_release() first, when its tasks may run here.")));
	for (kind = 0; kind < SIDE_TABLES; kind++)
		check_side(kind, created.relid, created.fault[kind]);
	SPI_finish();
	if (created.made)
		commands_database_changed();
	PG_RETURN_OID(created.relid);
}

/*
 * What belongs neither to the former owner of the task table nor to the caller or a superuser may
 * have been made by anybody, with grants that stay.
 */
static bool
is_foreign(Oid owner, Oid role, Oid former)
{
	return owner != role && owner != former && owner != GetUserId() && !superuser_arg(owner);
}

/* The statements that give those of these tables that are foreign to the role. */
static char *
alter_foreign(List *tables, Oid role, Oid former)
{
	StringInfoData sql;
	ListCell *cell;

	initStringInfo(&sql);
	foreach(cell, tables)
	{
		Oid relid = lfirst_oid(cell);

		if (is_foreign(relation_owner(relid), role, former))
			appendStringInfo(&sql, "ALTER TABLE %s OWNER TO %s; ",
							 quote_qualified_identifier(
								 get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid)),
							 quote_identifier(GetUserNameFromId(role, false)));
	}
	return sql.data;
}

/*
 * Do what REASSIGN OWNED does, for one of these tables.  What the caller does not own, or is
 * foreign, is not changed.  A table with code of its owner keeps that: it would run with the rights
 * of the new one.
 */
static void
change_owner(Oid relid, List *tables, Oid role, Oid former)
{
	Oid owner = relation_owner(relid);
	char *code;

	if (!has_privs_of_role(GetUserId(), owner))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(relid));
	if (is_foreign(owner, role, former))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("table \"%s\" belongs to another role, \"%s\"", get_rel_name(relid),
							   GetUserNameFromId(owner, false)),
						errhint("%safter a look at its rows, grants and triggers, which stay.",
								alter_foreign(tables, role, former))));
	ATExecChangeOwner(relid, role, false, AccessExclusiveLock);
	CommandCounterIncrement();
	code = owner != role ? owner_code_find(relid, true) : NULL;
	if (code)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("table \"%s\" has code of its owner", get_rel_name(relid)),
						errdetail("The code belongs to %s.", code),
						errhint("Drop it, or use ALTER TABLE ... OWNER TO.")));
}

/*
 * pg_task_change_owner(role): give the task table, its partitions and the tables beside it to this
 * role.
 */
Datum
pg_task_change_owner(PG_FUNCTION_ARGS)
{
	Oid role = get_role_oid(NameStr(*PG_GETARG_NAME(0)), false);
	const char *fault;
	Relation rel;
	Oid side[SIDE_TABLES];
	SideKind kind;
	List *tables;
	ListCell *cell;
	Oid former;
	Oid task;

	PreventCommandIfReadOnly("pg_task_change_owner()");
	shared_require();
	/* also of another owner than the scheduler has found */
	task = shared_database_found(MyDatabaseId).relid;
	if (get_rel_name(task) == NULL)
		task = table_access_find();
	former = relation_owner(task);
	change_owner(task, NIL, role, former);
	rel = relation_open(task, NoLock);
	tables = relation_members(rel);
	relation_close(rel, NoLock);
	for (kind = 0; kind < SIDE_TABLES; kind++)
	{
		side[kind] = side_table_find(kind, task);
		if (OidIsValid(side[kind]))
			tables = lappend_oid(tables, side[kind]);
	}
	foreach(cell, tables)
		change_owner(lfirst_oid(cell), tables, role, former);
	for (kind = 0; kind < SIDE_TABLES; kind++)
	{
		if (!OidIsValid(side[kind]))
			continue;
		rel = side_table_open(kind, task, role, true, &fault);
		check_side(kind, task, fault);
		relation_close(rel, NoLock);
	}
	commands_database_changed();
	PG_RETURN_VOID();
}
