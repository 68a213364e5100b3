/*
 * roles.c
 *		What must be known of a role before a task is started as that role, or before a user may
 *		see, change or plan its tasks.
 *
 * Privileges are read from the catalogs each time.  The settings of a role are cached until
 * settings that may affect the role change.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_db_role_setting.h"
#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h" /* get_database_name, from 19 on */
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "shared/shared.h"
#include "task/home.h"
#include "task/roles.h"
#include "task/statement.h"

/* Roles whose settings are remembered; all are forgotten when there is one more. */
#define ROLES_MAX 50000

/* The settings of a role, as of a value of the change counter of settings (shared_settings). */
typedef struct RoleEntry
{
	Oid role; /* hash key */
	uint32 settings;
	SettingsTask values;
} RoleEntry;

/*
 * What this process has read of roles, kept for the life of the process: reading it takes longer
 * than checking that it is still valid.
 */
static struct
{
	bool defined;
	SettingsTask configured; /* the values of the configuration, as of roles_define */
	HTAB *settings;			 /* of RoleEntry, by the oid of the role; NULL: none yet */

	uint32
		changes; /* how often roles_invalidated was called: what was read meanwhile is not kept */
	bool startable; /* the last role for which roles_startable returned true */
	Oid startable_owner;
	int64 startable_id;
	TimestampTz startable_reload; /* PgReloadTime then */
} known;

/* In an executor: the session user, and the row of pg_authid that it had when this one connected.
 */
static struct
{
	Oid role; /* InvalidOid in other processes */
	FormData_pg_authid row;
	uint32 checked; /* the value of "known.changes" up to which it had not changed */
} session;

/* If this is a setting of that name, its value; otherwise NULL. */
static const char *
value_of(const char *entry, const char *name)
{
	size_t length = strlen(name);

	return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

/*
 * Read an integer setting of this name from "name=value"; another name, or a value below "least",
 * leaves *result unchanged.
 */
static void
take_int(const char *entry, const char *name, int flags, int least, int *result)
{
	const char *text = value_of(entry, name);
	int value;

	if (text && parse_int(text, &value, flags, NULL) && value >= least)
		*result = value;
}

/* The time zone that a session has with this setting; an invalid one leaves *zone unchanged. */
static void
take_timezone(const char *value, pg_tz **zone)
{
	int nest_level = NewGUCNestLevel();

	if (set_config_option("TimeZone", value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
						  DEBUG1, false) > 0)
		*zone = session_timezone;
	AtEOXact_GUC(false, nest_level);
}

/* Read how long finished tasks are kept. */
static void
take_keep(const char *entry, SettingsTask *values)
{
	take_int(entry, "pg_task.keep", GUC_UNIT_S, SETTINGS_KEEP_FOR_EVER, &values->keep);
	take_int(entry, "pg_task.keep_failed", GUC_UNIT_S, SETTINGS_KEEP_FOR_EVER,
			 &values->keep_failed);
}

/* Read a setting that matters to tasks from "name=value". */
static void
take_setting(const char *entry, void *arg)
{
	SettingsTask *values = arg;
	const char *text;
	double value;

	take_int(entry, "pg_task.role_executors", 0, 0, &values->max_executors);
	take_int(entry, "pg_task.batch", 0, 1, &values->batch);
	take_int(entry, "pg_task.active", GUC_UNIT_MS, 0, &values->active);
	take_int(entry, "pg_task.retry", 0, 0, &values->retry);
	take_int(entry, "pg_task.hold_after", 0, 0, &values->hold_after);
	take_int(entry, "pg_task.delay", GUC_UNIT_MS, 0, &values->delay);
	take_keep(entry, values);
	if ((text = value_of(entry, "pg_task.backoff")) && parse_real(text, &value, 0, NULL) &&
		value >= 0)
		values->backoff = value;
	else if ((text = value_of(entry, "TimeZone")))
		take_timezone(text, &values->timezone);
	else if ((text = value_of(entry, "pg_task.missed")))
		values->missed = settings_missed(text, values->missed);
	else if ((text = value_of(entry, "pg_task.format")))
		values->format = settings_format(text);
	else if ((text = value_of(entry, "pg_task.timezone")))
		values->task_timezone = zone_find(text);
	else if ((text = value_of(entry, "pg_task.on_failure")))
		values->on_failure |= text[0] != '\0';
}

/* Call "take" for each "name=value" that ALTER ROLE ... [IN DATABASE ...] SET has set. */
static void
read_config(Oid database, Oid role, void (*take)(const char *entry, void *arg), void *arg)
{
	Relation rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple tuple;

	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(database));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	scan = systable_beginscan(rel, DbRoleSettingDatidRolidIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum *elements;
		int count;
		int i;
		bool isnull;
		Datum config =
			heap_getattr(tuple, Anum_pg_db_role_setting_setconfig, RelationGetDescr(rel), &isnull);

		if (isnull)
			continue;
		deconstruct_array(DatumGetArrayTypeP(config), TEXTOID, -1, false, TYPALIGN_INT, &elements,
						  NULL, &count);
		for (i = 0; i < count; i++)
			take(TextDatumGetCString(elements[i]), arg);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/*
 * Overwrite the values with, in order of precedence: those of the role in this database, of the
 * role, of the database, of all roles.
 */
static void
read_role_settings(Oid role, SettingsTask *values)
{
	read_config(InvalidOid, InvalidOid, take_setting, values);
	read_config(MyDatabaseId, InvalidOid, take_setting, values);
	read_config(InvalidOid, role, take_setting, values);
	read_config(MyDatabaseId, role, take_setting, values);
}

/* Called once per process, before it connects. */
void
roles_define(void)
{
	Assert(!OidIsValid(MyDatabaseId));
	known.configured = settings_task();
	known.defined = true;
}

/*
 * In a user's session: what the session has set itself for the times and the format of tasks, or
 * its client, does not count.  So the configuration is what the supervisor has published.
 */
static SettingsTask
settings_in_session(Oid role)
{
	SettingsTask values = settings_task();

	if (Shared)
	{
		SharedConfigured configured;

		LWLockAcquire(Shared->directory, LW_SHARED);
		configured = Shared->configured;
		LWLockRelease(Shared->directory);
		values.format = configured.format;
		values.on_failure = configured.on_failure[0] != '\0';
		values.task_timezone = configured.tasks[0] ? pg_tzset(configured.tasks) : NULL;
		if (configured.sessions[0] && pg_tzset(configured.sessions))
			values.timezone = pg_tzset(configured.sessions);
	}
	read_role_settings(role, &values);
	return values;
}

/* The settings for tasks of a role; those that nothing else sets are of the configuration. */
SettingsTask
roles_settings(Oid role)
{
	HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(RoleEntry)};
	uint32 settings;
	RoleEntry *entry;
	HTAB *old = known.settings;
	bool found;

	if (!known.defined)
		return settings_in_session(role);
	if (old && hash_get_num_entries(old) >= ROLES_MAX &&
		hash_search(old, &role, HASH_FIND, NULL) == NULL)
	{
		known.settings = NULL;
		hash_destroy(old);
	}
	settings = shared_settings(MyDatabaseId, role);
	if (known.settings == NULL)
		known.settings = hash_create("pg_task role settings", 16, &ctl, HASH_ELEM | HASH_BLOBS);
	entry = hash_search(known.settings, &role, HASH_ENTER, &found);
	if (!found || entry->settings != settings)
	{
		entry->settings = settings - 1; /* in case of an error */
		entry->values = known.configured;
		read_role_settings(role, &entry->values);
		entry->settings = settings;
	}
	return entry->values;
}

/* The "role_id" of this role, with the tag of this database; 0: no role. */
static int64
bind_to(Oid role)
{
	return OidIsValid(role) ? (int64) (((uint64) home_tag() << 32) | role) : 0;
}

/* Read pg_task.on_failure from "name=value". */
static void
take_on_failure(const char *entry, void *arg)
{
	const char *found = value_of(entry, "pg_task.on_failure");

	if (found)
		*(const char **) arg = found;
}

/* May the owner of this database act as the owner of its task table? */
static bool
database_owner_may_act(Oid owner)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	Oid user = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		user = ((Form_pg_database) GETSTRUCT(tuple))->datdba;
		ReleaseSysCache(tuple);
	}
	return OidIsValid(user) && has_privs_of_role(user, owner);
}

/*
 * What is set for all, or for this database, and runs as the "owner" of the table; NULL: nothing.
 * Whoever owns the database may set the latter, and decides what the names in the former mean: so
 * neither counts unless that role may act as the owner of the table.
 */
static const char *
on_failure_of_database(Oid owner)
{
	SharedConfigured configured;
	const char *request;

	if (!database_owner_may_act(owner))
		return NULL;
	LWLockAcquire(Shared->directory, LW_SHARED);
	configured = Shared->configured;
	LWLockRelease(Shared->directory);
	request = pstrdup(configured.on_failure);
	read_config(InvalidOid, InvalidOid, take_on_failure, &request);
	read_config(MyDatabaseId, InvalidOid, take_on_failure, &request);
	return request;
}

/*
 * What do the settings say is to be requested when a task of this role has failed for good?  False:
 * nothing.  Who may set it for the role may act as the role, and it runs as that.
 */
bool
roles_on_failure(Oid owner, Oid role, RoleOnFailure *result)
{
	const char *request = NULL;

	/* "on_failure" only says whether anything is set */
	if (!roles_settings(role).on_failure)
		return false;
	*result = (RoleOnFailure){0};
	if (OidIsValid(role))
	{
		read_config(InvalidOid, role, take_on_failure, &request);
		read_config(MyDatabaseId, role, take_on_failure, &request);
	}
	if (request == NULL)
	{
		request = on_failure_of_database(owner);
		result->as_name = GetUserNameFromId(owner, false);
		result->as_id = bind_to(owner);
	}
	if (request == NULL || request[0] == '\0')
		return false;
	result->request = request;
	/* it may have been written in a database of another encoding */
	if (pg_verifymbstr(request, (int) strlen(request), true))
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			 errmsg("\"pg_task.on_failure\" is no text of the encoding of this database")));
	return false;
}

/* Return the shortest of these times to keep rows; SETTINGS_KEEP_FOR_EVER if all are for ever. */
static int
shorter_keep(int shortest, const SettingsTask *values)
{
	/* as unsigned numbers, for ever is the longest */
	return (int) Min((uint32) shortest, Min((uint32) values->keep, (uint32) values->keep_failed));
}

/* clang-format off */
static const Statement read_keeps = {.sql =
	"SELECT c.setting"
	"  FROM pg_db_role_setting AS s CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)"
	" WHERE s.setdatabase IN (0, $database) AND c.setting LIKE 'pg\\_task.keep%'"};
/* clang-format on */

/*
 * The shortest time that the settings keep the finished tasks of any role in this database
 * (seconds); or SETTINGS_KEEP_FOR_EVER.  There may be very many roles: their other settings are not
 * read, because the process would keep their time zones.  In a transaction of the scheduler.
 */
int
roles_shortest_keep(const TaskTable *table)
{
	int shortest = shorter_keep(SETTINGS_KEEP_FOR_EVER, &known.configured);
	StatementArgs args;
	uint64 count;

	statement_begin(&args);
	arg_add(&args, "database", OIDOID, ObjectIdGetDatum(MyDatabaseId));
	count = statement_execute(&read_keeps, table, &args);
	while (count > 0)
	{
		SettingsTask values = {.keep = SETTINGS_KEEP_FOR_EVER,
							   .keep_failed = SETTINGS_KEEP_FOR_EVER};

		take_keep(statement_text(CurrentMemoryContext, --count, 1), &values);
		shortest = shorter_keep(shortest, &values);
	}
	statement_end();
	return shortest;
}

/* Return the entry for a database: the one that names it, or the one for all; else NULL. */
static const Target *
find_target(const List *targets, const char *database)
{
	const Target *all = NULL;
	ListCell *cell;

	foreach(cell, targets)
	{
		const Target *target = lfirst(cell);

		if (target->database == NULL)
			all = target;
		else if (strcmp(target->database, database) == 0)
			return target;
	}
	return all;
}

/*
 * What does the list pg_task.database say of this row of pg_database?  Templates are only taken by
 * name.  A datconnlimit of -2 marks a database whose DROP was interrupted.
 */
Service
service_find(const List *targets, const FormData_pg_database *database)
{
	const Target *target = find_target(targets, NameStr(database->datname));
	Service service = {.target = target, .user = database->datdba};
	Oid role;

	if (target == NULL)
		return service;
	service.wanted = !target->excluded && database->datallowconn && database->datconnlimit != -2 &&
					 (target->database || !database->datistemplate);
	role = target->role ? get_role_oid(target->role, true) : service.user;
	service.missing = !OidIsValid(role);
	if (!service.missing)
		service.user = role;
	return service;
}

/* The same of the database that this process is connected to. */
Service
service_here(void)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	Service service = {0};

	if (HeapTupleIsValid(tuple))
	{
		service = service_find(settings_targets(), (Form_pg_database) GETSTRUCT(tuple));
		ReleaseSysCache(tuple);
	}
	return service;
}

/*
 * The connection limits of a role and of this database apply to executors, too, but executors are
 * counted separately: the server counts only client sessions for these limits, and does not limit
 * background workers.  Superusers have no limit.
 */
static void
read_limits(Role *role, Form_pg_authid form)
{
	HeapTuple tuple;

	role->limit = role->database_limit = -1;
	if (form->rolsuper)
		return;
	role->limit = form->rolconnlimit;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (HeapTupleIsValid(tuple))
	{
		role->database_limit = ((Form_pg_database) GETSTRUCT(tuple))->datconnlimit;
		ReleaseSysCache(tuple);
	}
}

/* A row of pg_authid, pg_auth_members or pg_database has changed: forget the last role. */
void
roles_invalidated(void)
{
	known.startable = false;
	known.changes++;
}

/* A counter: how often roles, or databases, may have changed, as far as this process knows. */
uint32
roles_changes(void)
{
	return known.changes;
}

/* The value of "role_id" that binds a row to the role that has this name now; 0: no such role. */
int64
roles_bind(const char *name)
{
	return bind_to(get_role_oid(name, true));
}

/* Was this "role_id" written in this database? */
static bool
is_bound(int64 id)
{
	return id != 0 && !home_is_elsewhere(id);
}

/*
 * The role of a row with this name and "role_id".  A row that is not bound, or that was bound in
 * another database, belongs to the role that has the name now.  The role may have been dropped.
 */
Oid
roles_bound(const char *name, int64 id)
{
	return is_bound(id) ? (Oid) (uint32) id : get_role_oid(name, true);
}

/* May a session of "user" act as the role of a row?  Not if the role was dropped. */
bool
roles_may_act(Oid user, const char *name, int64 id)
{
	Oid role = roles_bound(name, id);

	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)) && compat_may_become(user, role);
}

/*
 * Find the role of a row, and whether the row's columns agree with it.  Does not fill privileges
 * and settings.
 */
Role
roles_find(const char *name, int64 id)
{
	Role role = {.oid = roles_bound(name, id), .sqlstate = ERRCODE_UNDEFINED_OBJECT};

	role.name = GetUserNameFromId(role.oid, true);
	if (role.name)
		role.id = bind_to(role.oid);
	else if (is_bound(id))
		role.error = psprintf("role \"%s\" of the task was dropped", name);
	else
		role.error = psprintf("role \"%s\" does not exist", name);
	role.settled = role.name && role.id == id && strcmp(role.name, name) == 0;
	return role;
}

/* The role must not run tasks: set the reason, and what the reader of the message can do. */
static void
refuse(Role *role, int sqlstate, const char *error, const char *hint)
{
	role->sqlstate = sqlstate;
	role->error = error;
	role->hint = hint;
}

/* A name as it is written in SQL; allocated, because quote_identifier may return its argument. */
static char *
quoted_role(Oid role)
{
	return pstrdup(quote_identifier(GetUserNameFromId(role, false)));
}

/*
 * What lets the owner of a table run tasks as this role.  Not a grant of a superuser's role: nobody
 * should do that.
 */
static char *
hint_to_grant(Oid owner, Oid role)
{
	if (superuser_arg(role))
		return psprintf("Plan it for a role that is no superuser, such as %s, by the column"
						" \"role\"",
						quoted_role(owner));
	return psprintf("GRANT %s TO %s", quoted_role(role), quoted_role(owner));
}

/*
 * May the owner of a task table have tasks run as the role of a row, in this database, now?  Does
 * not read settings.
 */
static Role
check_privileges(Oid owner, const char *name, int64 id)
{
	Role role = roles_find(name, id);
	HeapTuple tuple;
	bool may_log_in;

	if (!role.settled)
		return role;
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role.oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for role %u", role.oid);
	may_log_in = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin || COMPAT_NOLOGIN_WORKER;
	read_limits(&role, (Form_pg_authid) GETSTRUCT(tuple));
	ReleaseSysCache(tuple);
	if (!compat_may_become(owner, role.oid))
		refuse(&role, ERRCODE_INSUFFICIENT_PRIVILEGE,
			   psprintf("the owner of the task table may not run tasks as role \"%s\"", name),
			   hint_to_grant(owner, role.oid));
	else if (!compat_may_connect(MyDatabaseId, role.oid))
		refuse(&role, ERRCODE_INSUFFICIENT_PRIVILEGE,
			   psprintf("role \"%s\" may not connect to this database", name),
			   psprintf("GRANT CONNECT ON DATABASE %s TO %s",
						quote_identifier(get_database_name(MyDatabaseId)), quoted_role(role.oid)));
	else if (!may_log_in)
		refuse(&role, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
			   psprintf("role \"%s\" is not permitted to log in", name),
			   psprintf("ALTER ROLE %s LOGIN; PostgreSQL 17 and later need no LOGIN for tasks",
						quoted_role(role.oid)));
	return role;
}

/*
 * May the owner of a task table have tasks run as the role of a row, in this database, now?  If so,
 * with the settings of the role, and the lower limit of pg_task.role_executors and CONNECTION
 * LIMIT.  The role of a row that others take ("taken") need not be able to log in, and has no
 * limit: nothing runs as it.
 */
Role
roles_check(Oid owner, const char *name, int64 id, bool taken)
{
	Role role = taken ? roles_find(name, id) : check_privileges(owner, name, id);
	int most;

	if (!role.settled || role.error)
		return role;
	role.settings = roles_settings(role.oid);
	most = role.settings.max_executors;
	if (most > 0 && !taken)
		role.limit = role.limit < 0 ? most : Min(role.limit, most);
	return role;
}

/*
 * For a user's session: can tasks of this role start now?  If not, sets *role, with the reason,
 * which is a missing prerequisite if no task of this database can.  A role that may start tasks and
 * is asked for again costs nothing.
 */
bool
roles_startable(Oid owner, const char *name, int64 id, Role *role)
{
	uint32 changes;

	if (known.startable && known.startable_owner == owner && known.startable_id == id &&
		known.startable_reload == PgReloadTime)
		return true;
	changes = known.changes;
	*role = (Role){0};
	if (Shared && !service_here().wanted)
		refuse(role, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   "\"pg_task.database\" does not name this database",
			   "Name it in postgresql.conf, and reload");
	else
		*role = check_privileges(owner, name, id);
	if (role->error)
		return false;
	known.startable_owner = owner;
	known.startable_id = id;
	known.startable_reload = PgReloadTime;
	known.startable = role->settled && changes == known.changes;
	return true;
}

/* Read the session user's row of pg_authid.  Returns false if there is none. */
static bool
read_session_role(FormData_pg_authid *role)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(session.role));

	if (!HeapTupleIsValid(tuple))
		return false;
	memcpy(role, GETSTRUCT(tuple), sizeof(*role));
	ReleaseSysCache(tuple);
	return true;
}

/*
 * Called once per executor, after it has connected as this role: remember the role's row of
 * pg_authid.  Returns false if the row has changed since the executor began to connect.  A setting
 * of the role ("role") may have changed the current user by now; only the session user counts.
 */
bool
roles_watch_session(Oid role)
{
	bool same;

	Assert(OidIsValid(MyDatabaseId) && !OidIsValid(session.role));
	session.role = role;
	StartTransactionCommand();
	session.checked = known.changes;
	same = read_session_role(&session.row) && session.row.rolsuper == GetSessionUserIsSuperuser();
	CommitTransactionCommand();
	return same;
}

/*
 * Within a transaction: has the session user's row of pg_authid changed since connecting, by ALTER
 * ROLE, DROP ROLE or otherwise?  The password does not count.
 */
bool
roles_session_changed(void)
{
	FormData_pg_authid role;
	uint32 seen = known.changes;

	if (seen == session.checked)
		return false;
	if (!read_session_role(&role) || memcmp(&role, &session.row, sizeof(role)) != 0)
		return true;
	session.checked = seen;
	return false;
}
