/*
 * pg_task.c
 *		The library's entry point, as a table of contents.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "session/commands.h"
#include "session/functions.h"
#include "session/pending.h"
#include "settings.h"
#include "shared/crash.h"
#include "shared/shared.h"
#include "supervisor/supervisor.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	/* loaded by a call of a function: those that need no shared memory work */
	if (!process_shared_preload_libraries_in_progress)
		return;

	settings_define();

	/* during pg_upgrade no task may run */
	if (IsBinaryUpgrade)
		return;

	shared_define();
	crash_define();
	pending_define();
	commands_define();
	functions_define();
	supervisor_register();
}
