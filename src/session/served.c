/*
 * served.c
 *		The task table of this database, for functions that SQL calls.
 *
 * It is the table of the scheduler.  Where there is none, because pg_task.enabled is off or the
 * database is not named in pg_task.database, it is the one that a scheduler would find.  Never a
 * table that just anybody has made.  pg_task_create makes the one that a scheduler would make.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "session/pending.h"
#include "session/served.h"
#include "settings.h"
#include "shared/shared.h"
#include "task/create.h"
#include "task/relation.h"

PGDLLEXPORT Datum pg_task_create(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_create);

/* Return the role for which a scheduler of this database would work; InvalidOid: there is none. */
static Oid
find_user(const char *database)
{
	const Target *target = targets_find(settings_targets(), database);
	Oid owner = InvalidOid;
	HeapTuple tuple;

	if (target && target->role)
		return get_role_oid(target->role, true);
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_database) GETSTRUCT(tuple))->datdba;
		ReleaseSysCache(tuple);
	}
	return owner;
}

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
	const char *database = get_database_name(MyDatabaseId);
	Location where = location_of(database);
	Oid user = find_user(database);
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
served_known(void)
{
	Oid owner;
	Oid relid;

	if (Shared == NULL)
		return InvalidOid;
	relid = shared_database_relid(MyDatabaseId, &owner);
	if (OidIsValid(owner) && !relation_is_owned_by(relid, owner))
		return InvalidOid;
	return relid;
}

/*
 * Return the task table of this database.  Raises an error if the library is not preloaded, or it
 * is not clear which table is meant.
 */
Oid
served_table(void)
{
	Oid relid;

	shared_require();
	relid = served_known();
	if (!OidIsValid(relid) || get_rel_name(relid) == NULL)
		relid = find_table();
	if (!OidIsValid(relid))
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("no task table of this database is known"),
			 errhint("Check the settings \"pg_task.enabled\" and \"pg_task.database\"; or UPDATE"
					 " the table yourself.")));
	return relid;
}

/* Return the name of the table for SQL, qualified and quoted. */
char *
served_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/*
 * Raise an error unless the current user may update this column of the table.  The server's own
 * would come with a statement of ours as its context, and without what helps.
 */
void
served_check_update(Oid relid, TaskColumn which, const char *purpose)
{
	AttrNumber column = get_attnum(relid, task_columns[which].name);

	if (pg_class_aclcheck(relid, GetUserId(), ACL_UPDATE) == ACLCHECK_OK ||
		pg_attribute_aclcheck(relid, column, GetUserId(), ACL_UPDATE) == ACLCHECK_OK)
		return;
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("you may not %s tasks in table %s", purpose, get_rel_name(relid)),
					errhint("GRANT UPDATE ON %s TO %s", served_name(relid),
							quote_identifier(GetUserNameFromId(GetUserId(), false)))));
}

/*
 * pg_task_create(): make or complete the task table of this database and those beside it, as the
 * scheduler would, and return it.  Whoever calls it must have the rights of the role to which they
 * belong; everything is done as that role.
 */
Datum
pg_task_create(PG_FUNCTION_ARGS)
{
	const char *database = get_database_name(MyDatabaseId);
	Created created;
	Location where;
	const char *name;
	SideKind kind;
	Oid known;
	Oid user;

	PreventCommandIfReadOnly("pg_task_create()");
	shared_require();
	where = location_of(database);
	user = find_user(database);
	if (!OidIsValid(user))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("the role that is to own the task table does not exist"),
						errhint("Check the setting \"pg_task.database\".")));
	/* where that is, depends on settings of its role, which a session cannot always know */
	known = where.schema ? InvalidOid : served_known();
	name = OidIsValid(known) ? get_rel_name(known) : NULL;
	if (name == NULL || strcmp(name, where.table) != 0)
		known = InvalidOid;
	SPI_connect();
	created = create_tables(&where, user, GetUserId(), known);
	if (created.away)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("the task table comes from another database or server"),
						errhint("SELECT pg_task_release() first, when its tasks may run here.")));
	for (kind = 0; kind < SIDE_TABLES; kind++)
		if (created.fault[kind])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" cannot be used", side_table_name(kind, created.relid)),
					 errdetail_internal("%s", created.fault[kind])));
	SPI_finish();
	if (created.made)
	{
		/* a scheduler that has found no table comes back */
		pending_add_settings(MyDatabaseId);
		pending_wake_supervisor();
	}
	PG_RETURN_OID(created.relid);
}
