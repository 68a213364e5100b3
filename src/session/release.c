/*
 * release.c
 *		pg_task_release: the tasks of a database may run that was copied or restored, or whose
 *		scheduler has crashed the server.
 *
 * This file starts nothing: the scheduler does, when this has committed, or the supervisor.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "session/pending.h"
#include "session/table_access.h"
#include "shared/crash.h"
#include "task/home.h"

PGDLLEXPORT Datum pg_task_release(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_release);

/* Let this database have a scheduler again, at once.  Returns whether that was held back. */
static bool
release_scheduler(void)
{
	shared_require();
	if (!crash_holds(MyDatabaseId))
		return false;
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only a superuser may release a database that has crashed the server")));
	crash_release(MyDatabaseId);
	shared_databases_changed();
	return true;
}

/*
 * pg_task_release(): the task table is at home in this database from now on, so its tasks are no
 * longer held back.  Returns whether they were.  If they are held back because of crashes, that
 * alone ends, whatever the table looks like.
 */
Datum
pg_task_release(PG_FUNCTION_ARGS)
{
	TableAccess access;

	PreventCommandIfReadOnly("pg_task_release()");
	if (release_scheduler())
		PG_RETURN_BOOL(true);
	access = table_access_open(ACCESS_FIGURES);
	if (!has_privs_of_role(GetUserId(), access.owner))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(access.relid));
	if (home_find(access.relid) != HOME_AWAY)
		PG_RETURN_BOOL(false);
	home_set(access.relid);
	(void) pending_add_events(access.relid, SHARED_SCAN);
	PG_RETURN_BOOL(true);
}
