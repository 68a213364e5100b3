/*
 * roles.c
 *		What has to be known of a role before a task is started as it, or before
 *		somebody may see, change or plan its tasks.
 *
 * Rights are asked of the catalogs each time.  The limit of a role is a
 * setting of it; it is remembered until such settings change.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_db_role_setting.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "roles.h"
#include "settings.h"
#include "shared.h"

#define LIMIT_SETTING "pg_task.role_executors="

/* A role's limit, as it was when settings had changed so often. */
typedef struct RoleLimit
{
	Oid role; /* hash key */
	uint32 settings;
	int limit;
} RoleLimit;

static HTAB *limits = NULL;

/* The setting in an array of "name=value", or -1. */
static int
limit_in(Datum config)
{
	Datum *entries;
	int count;
	int limit = -1;
	int i;

	deconstruct_array(DatumGetArrayTypeP(config), TEXTOID, -1, false, TYPALIGN_INT, &entries, NULL,
					  &count);
	for (i = 0; i < count; i++)
	{
		char *entry = TextDatumGetCString(entries[i]);

		if (strncmp(entry, LIMIT_SETTING, strlen(LIMIT_SETTING)) == 0 &&
			!parse_int(entry + strlen(LIMIT_SETTING), &limit, 0, NULL))
			limit = -1;
	}
	return limit;
}

/* What ALTER ROLE ... [IN DATABASE ...] SET says, or -1. */
static int
read_limit(Oid database, Oid role)
{
	Relation rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple tuple;
	int limit = -1;

	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(database));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	scan = systable_beginscan(rel, DbRoleSettingDatidRolidIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool isnull;
		Datum config =
			heap_getattr(tuple, Anum_pg_db_role_setting_setconfig, RelationGetDescr(rel), &isnull);

		if (!isnull)
			limit = limit_in(config);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return limit;
}

/* How many executors a role may have: its setting in the database, its setting, the default. */
static int
find_limit(Oid role)
{
	HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(RoleLimit)};
	uint32 settings = pg_atomic_read_u32(&Shared->settings);
	RoleLimit *entry;
	bool found;

	if (limits == NULL)
		limits = hash_create("pg_task role limits", 16, &ctl, HASH_ELEM | HASH_BLOBS);
	entry = hash_search(limits, &role, HASH_ENTER, &found);
	if (!found || entry->settings != settings)
	{
		entry->settings = settings - 1; /* in case of an error */
		entry->limit = read_limit(MyDatabaseId, role);
		if (entry->limit < 0)
			entry->limit = read_limit(InvalidOid, role);
		entry->settings = settings;
	}
	if (entry->limit >= 0)
		return entry->limit > 0 ? entry->limit : INT_MAX;
	return settings_role_executors > 0 ? settings_role_executors : INT_MAX;
}

/* May a session of "user" act as the role of this name?  Not if there is none. */
bool
roles_may_act(Oid user, const char *name)
{
	Oid role = get_role_oid(name, true);

	return OidIsValid(role) && compat_may_become(user, role);
}

/* May the owner of a task table have tasks run as the role of this name, here and now? */
Role
roles_check(Oid owner, const char *name)
{
	Role role = {.oid = get_role_oid(name, true), .sqlstate = ERRCODE_UNDEFINED_OBJECT};
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role.oid));
	bool may_log_in;

	if (!HeapTupleIsValid(tuple))
	{
		role.error = psprintf("role \"%s\" does not exist", name);
		return role;
	}
	may_log_in = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin || COMPAT_NOLOGIN_WORKER;
	ReleaseSysCache(tuple);
	role.sqlstate = ERRCODE_INSUFFICIENT_PRIVILEGE;
	if (!compat_may_become(owner, role.oid))
		role.error = psprintf("the owner of the task table may not run tasks as role \"%s\"", name);
	else if (!compat_may_connect(MyDatabaseId, role.oid))
		role.error = psprintf("role \"%s\" may not connect to this database", name);
	else if (!may_log_in)
	{
		role.sqlstate = ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION;
		role.error = psprintf("role \"%s\" is not permitted to log in", name);
	}
	else
		role.max_executors = find_limit(role.oid);
	return role;
}
