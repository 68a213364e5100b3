/*
 * triggers.c
 *		The triggers on the task table.
 *
 * BEFORE triggers guard the id of a row and bind the row to its role.  AFTER triggers check the row
 * (trigger_checks.c), and record for the scheduler what it must know once the transaction has
 * committed.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "session/pending.h"
#include "session/numbering.h"
#include "session/trigger_checks.h"
#include "session/trigger_row.h"
#include "shared/shared.h"
#include "task/owner.h"
#include "task/roles.h"

PGDLLEXPORT Datum pg_task_bound(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_planned(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_numbered(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_removed(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_watched(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_bound);
PG_FUNCTION_INFO_V1(pg_task_planned);
PG_FUNCTION_INFO_V1(pg_task_numbered);
PG_FUNCTION_INFO_V1(pg_task_removed);
PG_FUNCTION_INFO_V1(pg_task_watched);

/* ---- ids ---- */

/*
 * Trigger, BEFORE INSERT, FOR EACH ROW, and BEFORE UPDATE OF id, FOR EACH STATEMENT.
 *
 * Without the rights of the owner, a role may not insert an id that the sequence has not given
 * yet, and may not change an id.  Otherwise a session that is given the same id by the sequence
 * would wait for that role's transaction.  An AFTER trigger would be too late: the statement may
 * take any time.
 */
Datum
pg_task_numbered(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	bool inserts;
	bool isnull;
	int64 id;
	TriggerRow row;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(data->tg_event) || TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) ||
		TRIGGER_FIRED_BY_INSERT(data->tg_event) != (TRIGGER_FIRED_FOR_ROW(data->tg_event) != 0))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_numbered must be called BEFORE INSERT, FOR EACH ROW, or"
							   " BEFORE UPDATE, FOR EACH STATEMENT")));
	inserts = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	row.rel = data->tg_relation;
	row.tuple = inserts ? data->tg_trigtuple : NULL;
	if (owner_acts() || has_privs_of_role(GetUserId(), trigger_table_owner(row.rel)))
		return PointerGetDatum(row.tuple);
	if (!inserts)
		trigger_forbid(COLUMN_ID, NULL);
	id = DatumGetInt64(trigger_value(&row, COLUMN_ID, &isnull));
	if (!isnull && numbering_is_ahead(trigger_root_table(row.rel), id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only the owner of the task table may set \"id\" ahead of its sequence"),
				 errhint("Leave out \"id\", and the row is given the next one.")));
	return PointerGetDatum(row.tuple);
}

/* ---- the role that a row belongs to ---- */

/*
 * Bind a row to its role after an INSERT or UPDATE that left it with another role_id: a trigger of
 * the owner ran after ours, or the owner has changed the column.  Uses the rights of the current
 * user; users other than the owner cannot change either column.
 */
static void
bind_row(const TriggerRow *row, int64 role_id)
{
	Oid types[] = {INT8OID, TIDOID};
	Datum values[] = {Int64GetDatum(role_id), PointerGetDatum(&row->tuple->t_self)};
	char *name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(row->rel)),
											RelationGetRelationName(row->rel));

	SPI_connect();
	if (SPI_execute_with_args(psprintf("UPDATE ONLY %s AS t SET role_id = $1"
									   " WHERE t.ctid OPERATOR(pg_catalog.=) $2",
									   name),
							  2, types, values, NULL, false, 0) != SPI_OK_UPDATE ||
		SPI_processed != 1)
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("could not bind a task to its role"),
						errdetail("The row was changed again by a trigger, or is hidden by a"
								  " policy.")));
	SPI_finish();
}

/*
 * Make sure that a new row, or one whose role was changed, is bound to the role that has its name
 * now.
 */
static void
check_binding(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	Datum role = trigger_value(new, COLUMN_ROLE, &isnull);
	int64 role_id;

	if (isnull || (old && trigger_same_value(old, new, COLUMN_ROLE) &&
				   trigger_same_value(old, new, COLUMN_ROLE_ID)))
		return;
	role_id = roles_bind(NameStr(*DatumGetName(role)));
	if (role_id != trigger_role_id(new))
		bind_row(new, role_id);
}

/*
 * Trigger, BEFORE INSERT, FOR EACH ROW.  Binds the row to the role that has its name now, whatever
 * the INSERT sets.  Exception: the next row of a repeating task keeps the role_id of the previous
 * row.
 */
Datum
pg_task_bound(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TriggerRow row;
	Datum role;
	Datum value;
	bool isnull;
	int number;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || !TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_bound must be called BEFORE INSERT, FOR EACH ROW")));
	row.rel = data->tg_relation;
	row.tuple = data->tg_trigtuple;
	role = trigger_value(&row, COLUMN_ROLE, &isnull);
	if (isnull || (owner_acts() && trigger_role_id(&row) != 0))
		return PointerGetDatum(row.tuple);
	value = Int64GetDatum(roles_bind(NameStr(*DatumGetName(role))));
	number = trigger_column(RelationGetDescr(row.rel), COLUMN_ROLE_ID);
	return PointerGetDatum(heap_modify_tuple_by_cols(row.tuple, RelationGetDescr(row.rel), 1,
													 &number, &value, &isnull));
}

/* ---- the hint for a waiting row ---- */

/* Read the group and the position of a row.  Returns false if they do not fit into a hint. */
static bool
read_hint(const TriggerRow *row, SharedHint *hint)
{
	bool isnull[5];
	bool max_isnull;
	Datum max;
	Datum role;
	Datum queue;

	memset(hint, 0, sizeof(SharedHint));
	hint->place.id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull[0]));
	hint->place.dt = DatumGetTimestampTz(trigger_value(row, COLUMN_DT, &isnull[1]));
	hint->priority = DatumGetInt32(trigger_value(row, COLUMN_PRIORITY, &isnull[2]));
	max = trigger_value(row, COLUMN_MAX, &max_isnull);
	hint->max = max_isnull ? TASK_UNLIMITED : DatumGetInt32(max);
	role = trigger_value(row, COLUMN_ROLE, &isnull[3]);
	queue = trigger_value(row, COLUMN_QUEUE, &isnull[4]);
	if (isnull[0] || isnull[1] || isnull[2] || isnull[3] || isnull[4] ||
		toast_raw_datum_size(queue) - VARHDRSZ >= NAMEDATALEN)
		return false;
	hint->role = *DatumGetName(role);
	hint->role_id = trigger_role_id(row);
	text_to_cstring_buffer(DatumGetTextPP(queue), hint->queue, NAMEDATALEN);
	return true;
}

/*
 * Trigger, AFTER INSERT OR UPDATE, FOR EACH ROW.  Checks the row.  If it waits, adds a hint, which
 * the scheduler gets when the transaction has committed.
 */
Datum
pg_task_planned(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TriggerRow row;
	TriggerRow old;
	TriggerRow *before;
	SharedHint hint;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || TRIGGER_FIRED_BY_DELETE(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("pg_task_planned must be called AFTER INSERT OR UPDATE, FOR EACH ROW")));
	row.rel = data->tg_relation;
	row.tuple = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	old.rel = data->tg_relation;
	old.tuple = data->tg_trigtuple;
	before = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? &old : NULL;
	trigger_check_rights(before, &row);
	if (!owner_acts())
		check_binding(before, &row);
	trigger_check_state(before, &row);
	trigger_check_values(&row);
	if (Shared && trigger_has_state(&row, "PLAN"))
		pending_add_hint(trigger_root_table(row.rel), read_hint(&row, &hint) ? &hint : NULL);
	if (Shared && trigger_has_state(&row, "PLAN") && !trigger_is_null(&row, COLUMN_ACTIVE))
		pending_add_events(trigger_root_table(row.rel), SHARED_EXPIRY);
	if (Shared && before && trigger_has_state(before, "WORK") && !owner_acts())
		pending_add_events(trigger_root_table(row.rel), SHARED_RECONCILE);
	return PointerGetDatum(NULL);
}

/*
 * Trigger, AFTER DELETE, FOR EACH ROW, or AFTER TRUNCATE.  Running tasks may have lost their rows:
 * the scheduler must reconcile when the transaction has committed.
 */
Datum
pg_task_removed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(!TRIGGER_FIRED_BY_DELETE(data->tg_event) && !TRIGGER_FIRED_BY_TRUNCATE(data->tg_event)))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_removed must be called AFTER DELETE or AFTER TRUNCATE")));
	if (Shared)
		pending_add_events(trigger_root_table(data->tg_relation), SHARED_RECONCILE);
	return PointerGetDatum(NULL);
}

/*
 * pg_task_watched(state): the WHEN condition of the triggers.  Returns false only for writes of
 * pg_task itself that leave the row in a state other than PLAN; these need no checks.
 */
Datum
pg_task_watched(PG_FUNCTION_ARGS)
{
	text *state = PG_GETARG_TEXT_PP(0);

	PG_RETURN_BOOL(!owner_acts() ||
				   (VARSIZE_ANY_EXHDR(state) == 4 && memcmp(VARDATA_ANY(state), "PLAN", 4) == 0));
}
