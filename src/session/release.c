/*
 * release.c
 *		pg_task_release: the tasks of a database that was copied or restored may run.
 *
 * This file starts nothing: the scheduler does, when this has committed.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "session/pending.h"
#include "session/served.h"
#include "task/home.h"

PGDLLEXPORT Datum pg_task_release(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_release);

/*
 * pg_task_release(): the task table is at home in this database from now on, so its tasks are no
 * longer held back.  Returns whether they were.
 */
Datum
pg_task_release(PG_FUNCTION_ARGS)
{
	Oid relid;

	PreventCommandIfReadOnly("pg_task_release()");
	(void) served_rows(&relid);
	if (!has_privs_of_role(GetUserId(), served_owner(relid)))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(relid));
	if (home_find(relid) != HOME_AWAY)
		PG_RETURN_BOOL(false);
	home_set(relid);
	(void) pending_add_events(relid, SHARED_SCAN);
	PG_RETURN_BOOL(true);
}
