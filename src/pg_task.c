/*
 * pg_task.c
 *		The library's entry point, as a table of contents.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "callbacks.h"
#include "session/commands.h"
#include "session/functions.h"
#include "session/upgrade.h"
#include "settings.h"
#include "shared/crash.h"
#include "supervisor/supervisor.h"
#include "task/named_table.h"
#include "task/owner_code.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

/* The library was loaded by LOAD, by CREATE EXTENSION, or by a trigger on a task table. */
static void
warn_not_preloaded(void)
{
	if (IsBinaryUpgrade || IsParallelWorker())
		return;
	ereport(WARNING, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					  errmsg("pg_task is not running on this server: tasks wait"),
					  errhint("Add pg_task to \"shared_preload_libraries\" in postgresql.conf, and"
							  " restart the server.")));
}

void
_PG_init(void)
{
	callbacks_define();

	/* loaded by a call of a function: those that need no shared memory work */
	if (!process_shared_preload_libraries_in_progress)
	{
		warn_not_preloaded();
		return;
	}

	/* in this order: the second one removes all other settings of this prefix */
	location_define();
	settings_define();

	/* during pg_upgrade no task may run */
	if (IsBinaryUpgrade)
	{
		upgrade_define();
		return;
	}

	callbacks_define_shared();
	functions_define();
	named_table_define();
	owner_code_define();
	supervisor_register();
}
