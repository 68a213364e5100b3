/*
 * queue_trigger.c
 *		The trigger on the queue table, and the function of its row security policy.
 *
 * What is written is checked by the constraints of the table.  Anybody may put the trigger on any
 * table.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "session/pending.h"
#include "session/served.h"
#include "session/table_access.h"
#include "shared/shared.h"
#include "task/queue_table.h"

PGDLLEXPORT Datum pg_task_queue_changed(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_queue_own(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_queue_changed);
PG_FUNCTION_INFO_V1(pg_task_queue_own);

/*
 * Trigger, AFTER INSERT OR UPDATE OR DELETE, FOR EACH ROW, or AFTER TRUNCATE.  Has the
 * scheduler read the table again when the transaction has committed.
 */
Datum
pg_task_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(!TRIGGER_FIRED_FOR_ROW(data->tg_event) && !TRIGGER_FIRED_BY_TRUNCATE(data->tg_event)))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_queue_changed must be called AFTER INSERT OR UPDATE OR"
							   " DELETE, FOR EACH ROW, or AFTER TRUNCATE")));
	if (Shared)
		pending_add_queues(RelationGetRelid(data->tg_relation));
	return PointerGetDatum(NULL);
}

/* ---- row security ---- */

/*
 * pg_task_queue_own(queue): has the current user, as far as he may see tasks, one in state PLAN or
 * WORK in a queue that this name or pattern is for?  Used by the row security policy of the queue
 * table.  The table of tasks is not part of the policy, or it could not be dropped.
 */
Datum
pg_task_queue_own(PG_FUNCTION_ARGS)
{
	const char *pattern = text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *matches = queue_is_pattern(pattern) ? "~~" : "=";
	Oid relid = served_known();
	TableAccess access;
	char *rows;
	char *sql;
	bool own;

	/* a pattern that LIKE would refuse, in one row, is no reason to show no row */
	if (!OidIsValid(relid) || get_rel_name(relid) == NULL ||
		pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK ||
		(queue_is_pattern(pattern) && !queue_pattern_is_valid(pattern)))
		PG_RETURN_BOOL(false);
	access = table_access_open(ACCESS_ROWS);
	rows = psprintf("SELECT FROM %s AS t"
					" WHERE t.queue OPERATOR(pg_catalog.%s) $1 COLLATE pg_catalog.\"C\" AND t.state"
					" OPERATOR(pg_catalog.=)",
					access.rows, matches);
	/* each condition on the state is that of an index */
	sql = psprintf("SELECT WHERE EXISTS (%s 'PLAN'::pg_catalog.text"
				   "                     AND t.waits IS NULL)"
				   " OR EXISTS (%s 'WORK'::pg_catalog.text)",
				   rows, rows);
	SPI_connect();
	own = table_access_read(&access, sql, table_access_arguments(fcinfo), true) > 0;
	SPI_finish();
	PG_RETURN_BOOL(own);
}
