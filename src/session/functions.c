/*
 * functions.c
 *		Functions that SQL calls and that use no row: those that a task calls about itself
 *		(pg_task_time, pg_task_input, pg_task_again), the defaults of columns (pg_task_id,
 *		pg_task_flow), the function of the row security policy; and pg_task.id in a parallel worker.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "session/functions.h"
#include "settings.h"
#include "shared/shared.h"
#include "task/roles.h"
#include "task/running.h"
#include "task/schedule.h"

PGDLLEXPORT Datum pg_task_own(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_time(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_id(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_flow(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_input(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_again(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_own);
PG_FUNCTION_INFO_V1(pg_task_time);
PG_FUNCTION_INFO_V1(pg_task_id);
PG_FUNCTION_INFO_V1(pg_task_flow);
PG_FUNCTION_INFO_V1(pg_task_input);
PG_FUNCTION_INFO_V1(pg_task_again);

/*
 * pg_task_own(role, role_id, who): may the current user, or this one, act as the role of this row?
 * Used by the row security policy of the task table.
 */
Datum
pg_task_own(PG_FUNCTION_ARGS)
{
	Oid who = PG_NARGS() > 2 ? PG_GETARG_OID(2) : GetUserId();

	PG_RETURN_BOOL(roles_may_act(who, NameStr(*PG_GETARG_NAME(0)), PG_GETARG_INT64(1)));
}

/* Find the task that this process runs, or whose parallel worker it is. */
static bool
find_own_task(int64 *id, TimestampTz *planned)
{
	const PGPROC *proc = MyProc->lockGroupLeader ? MyProc->lockGroupLeader : MyProc;

	return Shared && shared_task_of((int) (proc - ProcGlobal->allProcs), id, planned);
}

/*
 * pg_task_time(): the time for which the task was planned that calls this; retries and late starts
 * do not change it.  NULL: no task calls this.
 */
Datum
pg_task_time(PG_FUNCTION_ARGS)
{
	int64 id;
	TimestampTz planned;

	if (!find_own_task(&id, &planned))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(planned);
}

/*
 * pg_task_id(): what pg_task.id shows: the task that calls this, also from its parallel workers.
 * NULL: no task calls this.  The default of "parent".
 */
Datum
pg_task_id(PG_FUNCTION_ARGS)
{
	int64 id = settings_task_id();

	if (id == SETTINGS_NO_TASK)
		PG_RETURN_NULL();
	PG_RETURN_INT64(id);
}

/*
 * pg_task_flow(): the setting pg_task.flow: the label of the workflow that the task belongs to that
 * calls this, unless it was set otherwise.  NULL: none.  The default of "flow".
 */
Datum
pg_task_flow(PG_FUNCTION_ARGS)
{
	const char *flow = Settings.flow;

	if (flow == NULL)
		flow = GetConfigOption("pg_task.flow", true, false);

	if (flow == NULL || flow[0] == '\0')
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(flow));
}

/*
 * pg_task_input(): the arguments of the request that calls this.  NULL: it has none, or no task
 * calls this.
 */
Datum
pg_task_input(PG_FUNCTION_ARGS)
{
	const Jsonb *input = running_input();

	if (input == NULL)
		PG_RETURN_NULL();
	PG_RETURN_JSONB_P(input);
}

/*
 * pg_task_again(at, input): when the task that calls this is done, it waits to be run again at this
 * time, with this input; NULL: with the one that it has.
 */
Datum
pg_task_again(PG_FUNCTION_ARGS)
{
	TimestampTz at;

	if (!running_is_task())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("pg_task_again can only be called by a task")));
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the time of pg_task_again must not be null")));
	at = PG_GETARG_TIMESTAMPTZ(0);
	if (!TIMESTAMP_NOT_FINITE(at) && !schedule_in_range(at))
		ereport(ERROR, (errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
						errmsg("the time of pg_task_again must be before the year " CppAsString2(
							SCHEDULE_LAST_YEAR))));
	running_ask_again(at, PG_ARGISNULL(1) ? NULL : PG_GETARG_JSONB_P(1));
	PG_RETURN_VOID();
}

/* The id that pg_task.id shows in a parallel worker: the one of the task that its leader runs. */
static int64
task_of_leader(void)
{
	int64 id;
	TimestampTz planned;

	return IsParallelWorker() && find_own_task(&id, &planned) ? id : SETTINGS_NO_TASK;
}

/* Called only if the library was preloaded. */
void
functions_define(void)
{
	Settings.find_task_id = task_of_leader;
}
