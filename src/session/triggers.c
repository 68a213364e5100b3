/*
 * triggers.c
 *		The triggers on the task table.
 *
 * BEFORE triggers guard the id of a row, bind the row to its role, and write the times of a row
 * that is stopped or planned again.  AFTER triggers check the row (trigger_checks.c), correct it
 * (correction.c), and record what the scheduler must know once the transaction has committed.  For
 * new rows the BEFORE trigger does that, too, if nothing changes them afterwards (trigger_order.c).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
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

#include "session/after.h"
#include "session/correction.h"
#include "session/notices.h"
#include "session/notify.h"
#include "session/numbering.h"
#include "session/pending.h"
#include "session/planned.h"
#include "session/removal.h"
#include "session/times.h"
#include "session/trigger_checks.h"
#include "session/trigger_hints.h"
#include "session/trigger_row.h"
#include "shared/shared.h"
#include "shared/waiters.h"
#include "task/owner.h"
#include "task/roles.h"

PGDLLEXPORT Datum pg_task_bound(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_timed(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_planned(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_numbered(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_removed(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_watched(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_bound);
PG_FUNCTION_INFO_V1(pg_task_timed);
PG_FUNCTION_INFO_V1(pg_task_planned);
PG_FUNCTION_INFO_V1(pg_task_numbered);
PG_FUNCTION_INFO_V1(pg_task_removed);
PG_FUNCTION_INFO_V1(pg_task_watched);

/* The row that a trigger finds in a tuple and its slot. */
static TriggerRow
row_of(const TriggerData *data, HeapTuple tuple, TupleTableSlot *slot)
{
	TriggerRow row = {.rel = data->tg_relation, .tuple = tuple, .slot = slot};

	return row;
}

/* ---- ids ---- */

/*
 * Without the rights of the owner, a role may not choose ids, see numbering_check, and may not
 * change one.  An AFTER trigger would be too late: the statement may take any time.
 */
static void
check_new_id(const TriggerRow *row)
{
	Oid root = trigger_root_table(row->rel);
	bool isnull;
	int64 id;

	if (owner_acts() || has_privs_of_role(GetUserId(), trigger_table_owner(row->rel)))
		return;
	id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));
	if (!isnull)
		numbering_check(root, id, root != RelationGetRelid(row->rel));
}

/*
 * Trigger, BEFORE UPDATE OF id, FOR EACH STATEMENT.  In a table of an older version also BEFORE
 * INSERT, FOR EACH ROW, until the scheduler has brought the table up to date.
 */
Datum
pg_task_numbered(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TriggerRow row;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(data->tg_event) || TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) ||
		TRIGGER_FIRED_BY_INSERT(data->tg_event) != (TRIGGER_FIRED_FOR_ROW(data->tg_event) != 0))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_numbered must be called BEFORE INSERT, FOR EACH ROW, or"
							   " BEFORE UPDATE, FOR EACH STATEMENT")));
	row = row_of(data, NULL, data->tg_trigslot);
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
	{
		check_new_id(&row);
		return PointerGetDatum(data->tg_trigtuple);
	}
	if (!owner_acts() && !has_privs_of_role(GetUserId(), trigger_table_owner(row.rel)))
		trigger_forbid(COLUMN_ID, "Insert another task.");
	return PointerGetDatum(NULL);
}

/* ---- the role that a new row belongs to, and the time for which cron plans it ---- */

/*
 * Is this a new row with a cron expression?  Then it is planned for the first match at or after
 * "dt", or for the next start of the server, whatever "dt" is.  A row that was retried keeps its
 * time: it comes from a dump.  So does a replicated row.
 */
static bool
plans_new_row(const TriggerRow *row, int64 role_id, TimestampTz *next)
{
	bool isnull;
	TimestampTz dt;

	if (trigger_is_null(row, COLUMN_CRON))
		return false;
	dt = DatumGetTimestampTz(trigger_value(row, COLUMN_DT, &isnull));
	return !isnull && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		   trigger_has_state(row, "PLAN") && trigger_is_null(row, COLUMN_PLANNED) &&
		   times_of_row(row, trigger_bound_role(row, role_id),
						TIMESTAMP_NOT_FINITE(dt) ? dt : dt - 1, next);
}

/*
 * May the tuple of a new row be changed in place?  If it belongs to the slot, what the server goes
 * on with is that tuple.  Else the slot has other values, or it is a copy that nobody looks at.
 */
static bool
belongs_to_slot(const TriggerRow *row)
{
	return TTS_SHOULDFREE(row->slot) &&
		   (TTS_IS_HEAPTUPLE(row->slot) || TTS_IS_BUFFERTUPLE(row->slot)) &&
		   ((HeapTupleTableSlot *) row->slot)->tuple == row->tuple;
}

/*
 * Return where in the tuple the value of role_id is, which is not NULL.  If the tuple belongs to
 * the slot, that knows where "role" is, and role_id comes next in a table that pg_task has made.
 */
static char *
find_role_id(const TriggerRow *row, HeapTuple tuple, int number)
{
	TupleDesc desc = RelationGetDescr(row->rel);
	char *values = (char *) tuple->t_data + tuple->t_data->t_hoff;
	int role = trigger_column(row->rel, COLUMN_ROLE);
	uint32 offset = 0;
	int i = 0;
	bool isnull;
	Datum name = trigger_value(row, COLUMN_ROLE, &isnull);

	if (tuple == row->tuple && role < number && !isnull)
	{
		offset = (char *) DatumGetPointer(name) - values;
		i = role - 1;
	}
	for (; i < number; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (HeapTupleHasNulls(tuple) && att_isnull(i, tuple->t_data->t_bits))
			continue;
		offset = att_align_pointer(offset, att->attalign, att->attlen, values + offset);
		if (i < number - 1)
			offset = att_addlength_pointer(offset, att->attlen, values + offset);
	}
	return values + offset;
}

/*
 * Return the tuple with the row's new role_id.  The column is of fixed length and not NULL, so the
 * value is written over the other, in place if possible: then the server need not take the row
 * apart again, which costs more than all else that is done here.
 */
static HeapTuple
write_role_id(const TriggerRow *row)
{
	bool in_place = belongs_to_slot(row);
	HeapTuple tuple = in_place ? row->tuple : heap_copytuple(row->tuple);
	int number = trigger_column(row->rel, COLUMN_ROLE_ID);
	char *value = find_role_id(row, tuple, number);

	memcpy(value, &row->role_id, sizeof(row->role_id));
	if (in_place && row->slot->tts_nvalid >= number)
		row->slot->tts_values[number - 1] =
			fetchatt(TupleDescAttr(RelationGetDescr(row->rel), number - 1), value);
	return tuple;
}

/*
 * Return the tuple with the row's new role_id and, unless dt is NULL, this planned time.  One that
 * is infinite is the next start of the server: the anchor says that it is not this one.
 */
static HeapTuple
bind_tuple(const TriggerRow *row, const TimestampTz *dt)
{
	int numbers[] = {trigger_column(row->rel, COLUMN_ROLE_ID), trigger_column(row->rel, COLUMN_DT),
					 trigger_column(row->rel, COLUMN_ANCHOR)};
	Datum values[] = {Int64GetDatum(row->role_id), dt ? TimestampTzGetDatum(*dt) : (Datum) 0,
					  TimestampTzGetDatum(PgStartTime)};
	bool isnull[] = {false, false, false};
	int count = dt == NULL ? 1 : TIMESTAMP_IS_NOEND(*dt) ? 3 : 2;
	bool unbound;
	int64 found = DatumGetInt64(trigger_value(row, COLUMN_ROLE_ID, &unbound));

	if (dt == NULL && !unbound)
		return found == row->role_id ? row->tuple : write_role_id(row);
	return heap_modify_tuple_by_cols(row->tuple, RelationGetDescr(row->rel), count, numbers, values,
									 isnull);
}

/* Return the tuple with the tasks whose steps the row needs, and the one that it watches. */
static HeapTuple
needs_tuple(const TriggerRow *row, HeapTuple tuple, Datum after, const int64 *watched)
{
	int numbers[] = {trigger_column(row->rel, COLUMN_AFTER),
					 trigger_column(row->rel, COLUMN_WAITS)};
	Datum values[] = {after, watched ? Int64GetDatum(*watched) : (Datum) 0};
	bool isnull[] = {false, watched == NULL};

	return heap_modify_tuple_by_cols(tuple, RelationGetDescr(row->rel), 2, numbers, values, isnull);
}

/*
 * Does the owner insert a row that comes from a task table, with a dump above all?  It is bound to
 * a role.  The tasks for which it waits may come after it, or be gone.  Called before the row is
 * bound here.
 */
static bool
comes_from_table(const TriggerRow *row)
{
	return trigger_role_id(row) != 0 &&
		   has_privs_of_role(GetUserId(), trigger_table_owner(row->rel));
}

/* Does the INSERT itself say for which tasks the row waits, or which it watches? */
static bool
names_others(const TriggerRow *row)
{
	return !trigger_is_null(row, COLUMN_AFTER) || !trigger_is_null(row, COLUMN_WAITS);
}

/*
 * Return the tuple with the task that the row watches, whatever the INSERT sets; or the same tuple,
 * if it waits for none.  "check": the tasks must be there.  One that is inserted as ended, from a
 * dump, is not checked.  A replicated row has what it has.
 */
static HeapTuple
watch_tuple(const TriggerRow *row, HeapTuple tuple, bool check)
{
	TupleDesc desc = RelationGetDescr(row->rel);
	int number = trigger_column(row->rel, COLUMN_WAITS);
	int64 watched;
	Datum value;
	bool isnull;
	bool waits;

	if (!names_others(row) && trigger_is_null(row, COLUMN_NEEDS))
		return tuple;
	waits = trigger_has_state(row, "PLAN");
	if (!trigger_is_null(row, COLUMN_NEEDS) &&
		SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		(waits || trigger_has_state(row, "STOP")) && after_needs(row, &value, &watched))
		return needs_tuple(row, tuple, value, waits ? &watched : NULL);
	if (!names_others(row))
		return tuple;
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
	{
		removal_expect_waiting(trigger_root_table(row->rel));
		return tuple;
	}
	isnull = !(waits || trigger_has_state(row, "STOP")) || !after_watch(row, check, &watched);
	isnull |= !waits;
	value = isnull ? (Datum) 0 : Int64GetDatum(watched);
	return heap_modify_tuple_by_cols(tuple, desc, 1, &number, &value, &isnull);
}

/* ---- the times of a row that is stopped, or planned again ---- */

/* Columns that a BEFORE trigger writes. */
typedef struct Columns
{
	int count;
	int numbers[4];
	Datum values[4];
	bool isnull[4];
} Columns;

static void
set_column(Columns *columns, const TriggerRow *row, TaskColumn which, Datum value, bool isnull)
{
	int i = columns->count++;

	Assert(i < (int) lengthof(columns->numbers));
	columns->numbers[i] = trigger_column(row->rel, which);
	columns->values[i] = value;
	columns->isnull[i] = isnull;
}

/*
 * A user plans a row again that has ended or runs.  If its time has passed and was not set, it is
 * now, and "active" counts from now on, or else the row might expire at once.  A chain goes on with
 * the times that it has.
 */
static void
set_planned_time(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	TimestampTz now = GetCurrentTransactionStartTimestamp();
	bool isnull;
	TimestampTz dt = DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull));
	bool same = trigger_same_value(old, new, COLUMN_DT);

	if (isnull || trigger_repeats(new) || (same && dt > now))
		return;
	if (same)
		set_column(columns, new, COLUMN_DT, TimestampTzGetDatum(now), false);
	if (trigger_same_value(old, new, COLUMN_PLANNED))
		set_column(columns, new, COLUMN_PLANNED, (Datum) 0, true);
}

/* Does the owner end a task by hand, and does not say when it has ended? */
static bool
ends_by_hand(const TriggerRow *old, const TriggerRow *new)
{
	if (trigger_same_value(old, new, COLUMN_STATE) ||
		(!trigger_has_state(new, "DONE") && !trigger_has_state(new, "FAIL") &&
		 !trigger_has_state(new, "GONE")))
		return false;
	return trigger_is_null(new, COLUMN_STOP) ||
		   (trigger_has_state(old, "PLAN") && trigger_same_value(old, new, COLUMN_STOP));
}

/*
 * Set what a change of the state changes.  "stop" of a task that is stopped while it waits, or
 * ended by hand, is now; it has none, or that of its last run, when it waits again.  A run that is
 * stopped has none until it has ended.
 */
static void
set_times(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	bool isnull;
	Datum stop = trigger_value(old, COLUMN_STOP, &isnull);

	if ((trigger_has_state(old, "PLAN") && trigger_has_state(new, "STOP")) ||
		ends_by_hand(old, new))
		set_column(columns, new, COLUMN_STOP, TimestampTzGetDatum(GetCurrentTimestamp()), false);
	else if (trigger_has_state(old, "STOP") && trigger_has_state(new, "PLAN"))
		set_column(columns, new, COLUMN_STOP, stop, isnull || trigger_is_null(new, COLUMN_START));
	if (!trigger_has_state(old, "PLAN") && trigger_has_state(new, "PLAN"))
		set_planned_time(old, new, columns);
}

/*
 * Set the task that the row watches: anew if it is planned again, or waits for others from now on.
 * Otherwise it stays, whatever the user has set.
 */
static void
set_watch(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	bool other = !trigger_same_value(old, new, COLUMN_AFTER);
	bool planned = trigger_has_state(new, "PLAN");
	bool isnull;
	Datum value = trigger_value(old, COLUMN_WAITS, &isnull);
	int64 watched;

	if (other || (planned && !trigger_has_state(old, "PLAN")))
	{
		isnull = !after_watch(new, other, &watched);
		value = isnull ? (Datum) 0 : Int64GetDatum(watched);
	}
	isnull |= !planned;
	if (!isnull || !trigger_is_null(new, COLUMN_WAITS))
		set_column(columns, new, COLUMN_WAITS, value, isnull);
}

/*
 * Trigger, BEFORE UPDATE OF state and OF what a row waits for, FOR EACH ROW.  Writes the times of a
 * row that a user stops or plans again, and the task that it watches.  Replicated rows have what
 * they have.
 */
Datum
pg_task_timed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Columns columns = {0};
	TriggerRow old;
	TriggerRow new;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || !TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_timed must be called BEFORE UPDATE, FOR EACH ROW")));
	old = row_of(data, data->tg_trigtuple, data->tg_trigslot);
	new = row_of(data, data->tg_newtuple, data->tg_newslot);
	if (!owner_acts() && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
	{
		set_times(&old, &new, &columns);
		set_watch(&old, &new, &columns);
		notices_count_stopped(&old, &new);
	}
	if (columns.count > 0)
		new.tuple = heap_modify_tuple_by_cols(new.tuple, RelationGetDescr(new.rel), columns.count,
											  columns.numbers, columns.values, columns.isnull);
	return PointerGetDatum(new.tuple);
}

/* Check what the current user has written into a new or changed row. */
static void
check_row(const TriggerRow *old, const TriggerRow *new)
{
	trigger_check_rights(old, new);
	trigger_check_state(old, new);
	trigger_check_values(old, new);
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

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || TRIGGER_FIRED_BY_DELETE(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("pg_task_planned must be called AFTER INSERT OR UPDATE, FOR EACH ROW")));
	old = row_of(data, data->tg_trigtuple, data->tg_trigslot);
	before = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? &old : NULL;
	row = before ? row_of(data, data->tg_newtuple, data->tg_newslot) : old;
	/* nearly all columns are looked at: take the row apart at once */
	slot_getallattrs(row.slot);
	check_row(before, &row);
	if (!owner_acts() && !correction_apply(before, &row, data->tg_updatedcols) &&
		trigger_has_state(&row, "PLAN") && trigger_newly_planned(before, &row))
		trigger_warn_of_role(&row);
	if (before && !owner_acts())
	{
		notify_end(before, &row);
		notices_tell_stopped(before, &row);
	}
	if (Shared)
		trigger_add_pending(before, &row);
	return PointerGetDatum(NULL);
}

/* ---- a new row ---- */

/* Do for a new row, which has its role_id and its time, what pg_task_planned does for others. */
static void
finish_new_row(const TriggerRow *row)
{
	if (owner_acts() && !trigger_has_state(row, "PLAN"))
		return;
	check_row(NULL, row);
	if (!owner_acts())
	{
		if (!trigger_is_null(row, COLUMN_TIMEZONE) &&
			SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
			times_check_zone(row);
		if (trigger_has_state(row, "PLAN"))
			trigger_warn_of_role(row);
	}
	if (Shared)
		trigger_add_pending(NULL, row);
}

/* The same for the row as pg_task_bound has changed it. */
static void
finish_changed_row(const TriggerData *data, HeapTuple tuple)
{
	TupleTableSlot *slot =
		MakeSingleTupleTableSlot(RelationGetDescr(data->tg_relation), &TTSOpsHeapTuple);
	TriggerRow row = row_of(data, tuple, slot);

	ExecStoreHeapTuple(tuple, slot, false);
	finish_new_row(&row);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Bind a new row to the role that has its name now, whatever the INSERT sets.  Returns whether it
 * is planned for another time, which is the first match of its cron expression.
 */
static bool
bind_new_row(TriggerRow *row, TimestampTz *dt)
{
	bool isnull;
	Datum role = trigger_value(row, COLUMN_ROLE, &isnull);

	/* the next row of a repeating task has both from pg_task, and keeps them */
	if (isnull || (owner_acts() && trigger_role_id(row) != 0))
		return false;
	row->role_id = roles_bind(NameStr(*DatumGetName(role)));
	row->binds = true;
	if (owner_acts())
		return false;
	trigger_check_role(row, row->role_id);
	return plans_new_row(row, row->role_id, dt);
}

/*
 * Trigger, BEFORE INSERT, FOR EACH ROW.  Writes role_id, the time for which a cron expression
 * plans the row, and the task that it watches.  Does what is left to do for the row, unless a later
 * trigger may change it.
 */
Datum
pg_task_bound(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TriggerRow row;
	HeapTuple tuple;
	HeapTuple bound;
	bool finishes;
	bool plans;
	bool known;
	TimestampTz dt;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || !TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_bound must be called BEFORE INSERT, FOR EACH ROW")));
	finishes = trigger_takes_over(data);
	row = row_of(data, data->tg_trigtuple, data->tg_trigslot);
	/* most columns are looked at, here or for the indexes: take the row apart at once */
	slot_getallattrs(row.slot);
	check_new_id(&row);
	known = comes_from_table(&row);
	plans = bind_new_row(&row, &dt);
	bound = row.tuple;
	if (row.binds)
		bound = bind_tuple(&row, plans ? &dt : NULL);
	tuple = owner_acts() ? bound : watch_tuple(&row, bound, !known);
	if (finishes && (plans || tuple != bound))
		finish_changed_row(data, tuple);
	else if (finishes)
		finish_new_row(&row);
	return PointerGetDatum(tuple);
}

/* ---- rows that are gone ---- */

/* Record what the scheduler must know of a removed row, or of a truncated table. */
static void
add_removed(TriggerData *data)
{
	Oid table = trigger_root_table(data->tg_relation);
	TriggerRow row = row_of(data, data->tg_trigtuple, data->tg_trigslot);

	if (!TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		pending_add_events(table, SHARED_RECONCILE | SHARED_DEPENDENTS);
		waiters_end_all();
		return;
	}
	if (trigger_has_state(&row, "WORK"))
		pending_add_events(table, SHARED_RECONCILE);
	trigger_add_ended(table, &row);
}

/* Write what a row that waits for others needs to know of a removed row, or of a truncated table.
 */
static void
record_removed(TriggerData *data)
{
	TriggerRow row = row_of(data, data->tg_trigtuple, data->tg_trigslot);

	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
		removal_record(&row);
	else
		removal_forget_all(trigger_root_table(data->tg_relation));
}

/*
 * Trigger, AFTER DELETE, FOR EACH ROW, or AFTER TRUNCATE.  Running tasks may have lost their rows:
 * the scheduler must reconcile when the transaction has committed.  Others may wait for a row that
 * was removed: the table of removed tasks says that it was not DONE.
 */
Datum
pg_task_removed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(!TRIGGER_FIRED_BY_DELETE(data->tg_event) && !TRIGGER_FIRED_BY_TRUNCATE(data->tg_event)))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_removed must be called AFTER DELETE or AFTER TRUNCATE")));
	record_removed(data);
	if (Shared)
		add_removed(data);
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
