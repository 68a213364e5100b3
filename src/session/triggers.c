/*
 * triggers.c
 *		The triggers on the task table, but for that of a row that is removed (after.c).
 *
 * BEFORE triggers guard the id of a row, bind the row to its role, and write the times of a row
 * that is stopped or planned again; that of a new row checks it, too.  A changed row is checked by
 * an AFTER trigger.  Both record what the scheduler must know after the commit.
 *
 * What is checked stands in row_check.c.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "session/after.h"
#include "session/notices.h"
#include "session/pending.h"
#include "session/row_check.h"
#include "session/table_access.h"
#include "session/trigger_row.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/task.h"
#include "task/home.h"
#include "task/owner.h"
#include "task/queue_table.h"
#include "task/repeat.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/schedule.h"

COMPAT_FUNCTION(pg_task_bound);
COMPAT_FUNCTION(pg_task_timed);
COMPAT_FUNCTION(pg_task_planned);
COMPAT_FUNCTION(pg_task_numbered);
COMPAT_FUNCTION(pg_task_watched);

/* What a trigger is called with, which must stand where it was made for. */
static TriggerData *
trigger_data(FunctionCallInfo fcinfo, TriggerEvent event, const char *rule)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TriggerEvent bits = TRIGGER_EVENT_OPMASK | TRIGGER_EVENT_ROW | TRIGGER_EVENT_TIMINGMASK;

	if (!CALLED_AS_TRIGGER(fcinfo) || (data->tg_event & bits) != event)
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), errmsg("%s", rule)));
	return data;
}

/* The row that a trigger finds in a tuple and its slot. */
static TriggerRow
row_of(const TriggerData *data, HeapTuple tuple, TupleTableSlot *slot)
{
	TriggerRow row = {.rel = data->tg_relation, .tuple = tuple, .slot = slot};

	return row;
}

/* ---- warnings ---- */

/* The roles of which the statement has warned: one warning is enough for all rows of a role. */
static Notices warned;
static int64 warned_roles[NOTICES_MAX];

/* Has this statement warned of the role, or of so many others that it warns no more? */
static bool
has_warned(int64 role_id)
{
	int count = notices_told(&warned);
	int i;

	for (i = 0; i < count; i++)
		if (warned_roles[i] == role_id)
			return true;
	return count == NOTICES_MAX;
}

/* Do sessions take the tasks of the queue of this row?  Nothing runs as its role then. */
static bool
is_taken(const TriggerRow *row)
{
	Oid table = trigger_root_table(row->rel);
	bool isnull;
	Datum queue = trigger_value(row, COLUMN_QUEUE, &isnull);

	return !isnull && Shared && table_access_known() == table &&
		   queue_rules_find(queue_rules_load(table, relation_owner(table)),
							TextDatumGetCString(queue))
				   ->taker > 0;
}

/*
 * Warn whoever plans a task that its role cannot run now: the insert would succeed, and nothing
 * else would tell.
 */
static void
warn_of_role(const TriggerRow *row)
{
	int64 role_id = trigger_role_id(row);
	bool isnull;
	Datum name = trigger_value(row, COLUMN_ROLE, &isnull);
	Role role;

	if (isnull || SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ||
		has_warned(role_id) ||
		roles_startable(trigger_table_owner(row->rel), NameStr(*DatumGetName(name)), role_id,
						&role) ||
		is_taken(row))
		return;
	if (role.sqlstate == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE)
		warned.told = NOTICES_MAX; /* no other task of this database will, either */
	else
		warned_roles[warned.told++] = role_id;
	ereport(WARNING, (errcode(role.sqlstate), errmsg("this task will not start: %s", role.error),
					  role.hint ? errhint("%s.", role.hint) : 0));
}

/*
 * Warn of a row that a trigger of a user inserts where rows are replicated: it is taken for a
 * replicated one, which has what it has.  Those are inserted outside of triggers.
 */
static void
warn_of_replica(const TriggerRow *row)
{
	static TimestampTz told; /* the transaction: one warning is enough */

	if (SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA ||
		DatumGetInt32(DirectFunctionCall1(pg_trigger_depth, (Datum) 0)) < 2 ||
		told == GetCurrentTransactionStartTimestamp() || !trigger_is_null(row, COLUMN_WAITS) ||
		(trigger_is_null(row, COLUMN_AFTER) && trigger_is_null(row, COLUMN_NEEDS) &&
		 trigger_is_null(row, COLUMN_CRON)))
		return;
	told = GetCurrentTransactionStartTimestamp();
	ereport(WARNING,
			(errmsg("\"after\", \"needs\" and \"cron\" of this task are not heeded: it runs at"
					" its \"dt\""),
			 errdetail("A trigger has inserted it where \"session_replication_role\" is replica, as"
					   " in an apply worker."),
			 errhint("Have the trigger plan a task that inserts it.")));
}

/* ---- what BEFORE triggers write ---- */

/* Columns that a BEFORE trigger writes. */
typedef struct Columns
{
	int count;
	int numbers[16];
	Datum values[16];
	bool isnull[16];
} Columns;

/* Have a column written, in place of what was to be written into it before. */
static void
set_column(Columns *columns, const TriggerRow *row, TaskColumn which, Datum value, bool isnull)
{
	int number = trigger_column(row->rel, which);
	int i;

	for (i = 0; i < columns->count && columns->numbers[i] != number; i++)
		continue;
	Assert(i < (int) lengthof(columns->numbers));
	columns->count = Max(columns->count, i + 1);
	columns->numbers[i] = number;
	columns->values[i] = value;
	columns->isnull[i] = isnull;
}

/* Return the tuple of a row with these columns.  The slot has been taken apart already. */
static HeapTuple
write_columns(const TriggerRow *row, Columns *columns)
{
	TupleDesc desc = RelationGetDescr(row->rel);
	Datum *values;
	bool *isnull;

	if (columns->count == 0)
		return row->tuple;
	values = palloc(desc->natts * sizeof(Datum));
	isnull = palloc(desc->natts * sizeof(bool));
	slot_getallattrs(row->slot);
	memcpy(values, row->slot->tts_values, desc->natts * sizeof(Datum));
	memcpy(isnull, row->slot->tts_isnull, desc->natts * sizeof(bool));
	for (int i = 0; i < columns->count; i++)
	{
		values[columns->numbers[i] - 1] = columns->values[i];
		isnull[columns->numbers[i] - 1] = columns->isnull[i];
	}
	return heap_form_tuple(desc, values, isnull);
}

/*
 * Write the columns that were set, into a slot other than the "given" one, which drop_row frees.
 */
static void
write_row(TriggerRow *row, Columns *columns, const TupleTableSlot *given)
{
	HeapTuple tuple = write_columns(row, columns);
	TupleTableSlot *slot = row->slot;

	if (slot == given)
		slot = MakeSingleTupleTableSlot(RelationGetDescr(row->rel), &TTSOpsHeapTuple);
	ExecStoreHeapTuple(tuple, slot, false);
	slot_getallattrs(slot);
	columns->count = 0;
	*row = (TriggerRow){.rel = row->rel, .tuple = tuple, .slot = slot};
}

static void
drop_row(const TriggerRow *row, const TupleTableSlot *given)
{
	if (row->slot != given)
		ExecDropSingleTupleTableSlot(row->slot);
}

/* ---- ids ---- */

/*
 * Without the rights of the owner, a role may not choose ids, see trigger_check_id, and may not
 * change one.  An AFTER trigger would be too late: the statement may take any time.
 */
static void
check_new_id(const TriggerRow *row)
{
	Oid root = trigger_root_table(row->rel);
	bool isnull;
	int64 id;

	if (owner_acts() || row_check_owner(row->rel))
		return;
	id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));
	if (!isnull)
		trigger_check_id(root, id, root != RelationGetRelid(row->rel));
}

/* Trigger, BEFORE UPDATE OF id, FOR EACH STATEMENT. */
Datum
pg_task_numbered(PG_FUNCTION_ARGS)
{
	TriggerData *data =
		trigger_data(fcinfo, TRIGGER_EVENT_UPDATE | TRIGGER_EVENT_BEFORE,
					 "pg_task_numbered must be called BEFORE UPDATE, FOR EACH STATEMENT");

	if (!owner_acts() && !row_check_owner(data->tg_relation))
		row_check_forbid(COLUMN_ID, "Insert another task.");
	return PointerGetDatum(NULL);
}

/* ---- the role that a new row belongs to, and the time for which cron plans it ---- */

/* The time zone in which the cron expression of a row is read: that of the row, or of its role. */
static pg_tz *
find_zone(const TriggerRow *row)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_TIMEZONE, &isnull);
	SettingsTask settings;
	Oid role;

	if (!isnull)
		return row_check_zone(TextDatumGetCString(value));
	value = trigger_value(row, COLUMN_ROLE, &isnull);
	role = isnull ? InvalidOid : roles_bound(NameStr(*DatumGetName(value)), trigger_role_id(row));
	settings = roles_settings(role);
	return repeat_zone(&settings, NULL);
}

/* The cron expression of a row; NULL if it has none, or one that is too long. */
static char *
cron_or_null(const TriggerRow *row)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_CRON, &isnull);

	if (isnull || toast_raw_datum_size(value) - VARHDRSZ > TASK_KEY_MAX)
		return NULL;
	return TextDatumGetCString(value);
}

/* Is this a schedule that runs when the server starts?  An invalid expression is no error here. */
static bool
runs_at_start(const TriggerRow *row)
{
	const char *expression = cron_or_null(row);
	CronError error;
	Cron cron;

	return expression && cron_parse(expression, &cron, &error) && cron.at_start;
}

/* Is a row on hold until the server starts? */
static bool
waits_for_start(const TriggerRow *row)
{
	bool isnull;
	Datum hold = trigger_value(row, COLUMN_HOLD, &isnull);

	return !isnull && strcmp(TextDatumGetCString(hold), REPEAT_AT_START) == 0;
}

/*
 * Plan a row for the first moment later than "after" at which its cron expression runs it, if there
 * is one.  One that runs when the server is started is on hold until then, if it is not on hold for
 * another reason, and its anchor says that it is not this start; so does its dt, which stays the
 * same when the schedule is set up again.  Returns false if nothing is written.
 */
static bool
set_first_time(const TriggerRow *row, Columns *columns, TimestampTz after)
{
	const char *expression = cron_or_null(row);
	TimestampTz dt;
	Cron cron;

	if (expression == NULL)
		return false;
	cron = row_check_cron(expression, NULL);
	if (!cron.at_start)
	{
		if (!schedule_next_cron(&cron, after, find_zone(row), &dt))
			return false;
		set_column(columns, row, COLUMN_DT, TimestampTzGetDatum(dt), false);
		return true;
	}
	set_column(columns, row, COLUMN_DT, TimestampTzGetDatum(PgStartTime), false);
	if (trigger_is_null(row, COLUMN_HOLD) || waits_for_start(row))
		set_column(columns, row, COLUMN_HOLD, CStringGetTextDatum(REPEAT_AT_START), false);
	set_column(columns, row, COLUMN_ANCHOR, TimestampTzGetDatum(PgStartTime), false);
	return true;
}

/* A number made of the text in a column; 0 for NULL. */
static uint32
hash_of(const TriggerRow *row, TaskColumn which)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);
	text *found;

	if (isnull)
		return 0;
	found = DatumGetTextPP(value);
	return hash_bytes((unsigned char *) VARDATA_ANY(found), VARSIZE_ANY_EXHDR(found));
}

/*
 * Replace each "H" in the cron expression of a row, so that the schedules of many do not begin at
 * once: by what identifies the schedule, its queue and its key, or else its request.
 */
static void
set_spread(const TriggerRow *row, Columns *columns)
{
	char spread[TASK_KEY_MAX * CRON_SPREAD + 1];
	bool isnull;
	Datum value = trigger_value(row, COLUMN_CRON, &isnull);
	TaskColumn name = trigger_is_null(row, COLUMN_KEY) ? COLUMN_REQUEST : COLUMN_KEY;

	if (isnull || toast_raw_datum_size(value) - VARHDRSZ > TASK_KEY_MAX || owner_acts())
		return;
	if (cron_spread(TextDatumGetCString(value), hash_of(row, COLUMN_QUEUE) ^ hash_of(row, name),
					spread))
		set_column(columns, row, COLUMN_CRON, CStringGetTextDatum(spread), false);
}

/*
 * A new row with a cron expression is planned for the first match at or after "dt", or for the next
 * start of the server, whatever "dt" is.  A row that was retried keeps its time: it comes from a
 * dump.  So does a replicated row; and one for a start of the server that "was_bound", because it
 * may come from another partition.
 */
static void
plan_new_row(const TriggerRow *row, Columns *columns, bool was_bound)
{
	bool isnull;
	TimestampTz dt;

	if (trigger_is_null(row, COLUMN_CRON))
		return;
	dt = DatumGetTimestampTz(trigger_value(row, COLUMN_DT, &isnull));
	if (!isnull && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		trigger_has_state(row, "PLAN") && trigger_is_null(row, COLUMN_PLANNED) &&
		!(was_bound && runs_at_start(row)))
		(void) set_first_time(row, columns, TIMESTAMP_NOT_FINITE(dt) ? dt : dt - 1);
}

/*
 * Set the task that a new row watches, whatever the INSERT sets, and the tasks whose steps it
 * needs. "check": the tasks must be there.  One that is inserted as ended, from a dump, is not
 * checked.  A replicated row has what it has.
 */
static void
watch_new_row(const TriggerRow *row, Columns *columns, bool check)
{
	bool names = !trigger_is_null(row, COLUMN_AFTER) || !trigger_is_null(row, COLUMN_WAITS);
	bool needs = !trigger_is_null(row, COLUMN_NEEDS);
	bool waits;
	bool unended;
	int64 watched;
	Datum after;

	if (!(names || needs) || SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return;
	waits = trigger_has_state(row, "PLAN");
	unended = waits || trigger_has_state(row, "STOP");
	if (needs && unended && after_needs(row, &after, &watched))
		set_column(columns, row, COLUMN_AFTER, after, false);
	else if (!names)
		return;
	else if (unended && !after_watch(row, check, &watched))
		waits = false;
	set_column(columns, row, COLUMN_WAITS, waits ? Int64GetDatum(watched) : (Datum) 0, !waits);
}

/* ---- the times of a row that is stopped, or planned again ---- */

/* Does an UPDATE set this column, to whatever value? */
static bool
sets(const TriggerRow *old, const TriggerRow *new, const Bitmapset *updated, TaskColumn which)
{
	return bms_is_member(trigger_column(new->rel, which) - FirstLowInvalidHeapAttributeNumber,
						 updated) ||
		   !trigger_same_value(old, new, which);
}

/*
 * A program that saves all columns of a row as it has read it before the last claim would undo
 * that, and ask for a run: refuse it, whoever the user is.  "attempt" is the version of the row.
 */
static void
check_attempt(const TriggerRow *old, const TriggerRow *new, const Bitmapset *updated)
{
	bool isnull;

	if (trigger_same_value(old, new, COLUMN_ATTEMPT) ||
		!(sets(old, new, updated, COLUMN_STATE) || sets(old, new, updated, COLUMN_DT)))
		return;
	ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					errmsg("task " INT64_FORMAT " has been started since it was read",
						   DatumGetInt64(trigger_value(old, COLUMN_ID, &isnull))),
					errdetail("The UPDATE sets \"state\" or \"dt\", and writes another \"attempt\""
							  " than %d, which the row has.",
							  DatumGetInt32(trigger_value(old, COLUMN_ATTEMPT, &isnull))),
					errhint("Read the row again, or write only the columns that you change.")));
}

/*
 * Has a column the same time in both rows, but for less than a millisecond?  Some drivers know no
 * shorter times, and write so what they have read.
 */
static bool
is_same_time(const TriggerRow *old, const TriggerRow *new, TaskColumn which)
{
	bool isnull[2];
	TimestampTz was = DatumGetTimestampTz(trigger_value(old, which, &isnull[0]));
	TimestampTz is = DatumGetTimestampTz(trigger_value(new, which, &isnull[1]));

	if (isnull[0] || isnull[1] || was == is)
		return isnull[0] == isnull[1];
	return Max(was, is) - 1000 < Min(was, is);
}

/* A time of a run that an UPDATE leaves the same but for less than a millisecond, stays. */
static void
keep_times(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	static const TaskColumn times[] = {COLUMN_START, COLUMN_STOP, COLUMN_PLANNED, COLUMN_ANCHOR};
	int i;

	for (i = 0; i < (int) lengthof(times); i++)
		if (!trigger_same_value(old, new, times[i]) && is_same_time(old, new, times[i]))
		{
			bool isnull;
			Datum value = trigger_value(old, times[i], &isnull);

			set_column(columns, new, times[i], value, isnull);
		}
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
	bool same = is_same_time(old, new, COLUMN_DT);

	if (isnull || trigger_repeats(new) || (same && dt > now))
		return;
	if (same)
		set_column(columns, new, COLUMN_DT, TimestampTzGetDatum(now), false);
	if (is_same_time(old, new, COLUMN_PLANNED))
		set_column(columns, new, COLUMN_PLANNED, (Datum) 0, true);
}

/* Has the task ended, and not by STOP? */
static bool
has_ended(const TriggerRow *row)
{
	return !trigger_is_unended(row) && !trigger_has_state(row, "STOP");
}

/* Does the owner end a task by hand, and does not say when it has ended? */
static bool
ends_by_hand(const TriggerRow *old, const TriggerRow *new)
{
	if (trigger_same_value(old, new, COLUMN_STATE) || !has_ended(new))
		return false;
	return trigger_is_null(new, COLUMN_STOP) ||
		   (trigger_has_state(old, "PLAN") && trigger_same_value(old, new, COLUMN_STOP));
}

/* Of statements that would have stopped tasks which have ended; that have planned some on hold. */
static Notices ended;
static Notices held;

/*
 * STOP is for a task that waits or runs.  Of one that has ended, the state stays, which says how;
 * the rest of the UPDATE takes place.
 */
static void
keep_end(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	bool isnull;

	if (!trigger_has_state(new, "STOP") || !has_ended(old))
		return;
	set_column(columns, new, COLUMN_STATE, trigger_value(old, COLUMN_STATE, &isnull), false);
	if (notices_told(&ended) == 0)
		notices_raise(&ended, "a task that has ended keeps its state",
					  "STOP is for tasks that are PLAN or WORK.");
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
	if (!has_ended(old) || !trigger_has_state(new, "PLAN") || trigger_is_null(old, COLUMN_HOLD) ||
		!trigger_same_value(old, new, COLUMN_HOLD))
		return;
	/* in its place the next run of its schedule is on hold */
	if (!trigger_is_null(old, COLUMN_NEXT))
		set_column(columns, new, COLUMN_HOLD, (Datum) 0, true);
	else
		notices_raise(&held,
					  psprintf("task " INT64_FORMAT " is planned, but on hold as it was",
							   DatumGetInt64(trigger_value(new, COLUMN_ID, &isnull))),
					  "SELECT pg_task_resume(...) lets it run.");
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
 * A row whose role the owner has changed is bound to the role that has its name now.  Users other
 * than the owner may not change what binds a row.
 */
static void
set_binding(const TriggerRow *old, TriggerRow *new, Columns *columns)
{
	bool isnull;
	Datum role = trigger_value(new, COLUMN_ROLE, &isnull);

	if (isnull ||
		(trigger_same_value(old, new, COLUMN_ROLE) &&
		 trigger_same_value(old, new, COLUMN_ROLE_ID)) ||
		!row_check_owner(new->rel))
		return;
	new->role_id = roles_bind(NameStr(*DatumGetName(role)));
	new->binds = true;
	set_column(columns, new, COLUMN_ROLE_ID, Int64GetDatum(new->role_id), false);
}

/*
 * An UPDATE that changes the cron expression of a waiting row, or the zone in which it is read, and
 * not the planned time, plans the row anew: for the first match from now on.  So does one that
 * changes it and lets the row wait again.  A task that runs when the server starts, and waits
 * again, waits for a start after this one, not after the one under which it was planned before.
 * With another time it runs at that time.
 */
static void
set_cron_time(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	bool waited = waits_for_start(new) && trigger_same_value(old, new, COLUMN_HOLD);
	bool isnull;
	TimestampTz dt = DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull));

	if (!trigger_has_state(new, "PLAN"))
		return;
	if (waited &&
		!(runs_at_start(new) && (is_same_time(old, new, COLUMN_DT) || TIMESTAMP_IS_NOEND(dt))))
		set_column(columns, new, COLUMN_HOLD, (Datum) 0, true);
	if (trigger_is_null(new, COLUMN_CRON) || !trigger_same_value(old, new, COLUMN_DT))
		return;
	if (!trigger_same_value(old, new, COLUMN_CRON) ||
		!trigger_same_value(old, new, COLUMN_TIMEZONE) ||
		(trigger_is_null(new, COLUMN_TIMEZONE) && !trigger_same_value(old, new, COLUMN_ROLE)))
	{
		if (set_first_time(new, columns, GetCurrentTimestamp()))
			set_column(columns, new, COLUMN_PLANNED, (Datum) 0, true);
	}
	else if (waited && !trigger_has_state(old, "PLAN"))
		set_column(columns, new, COLUMN_ANCHOR, TimestampTzGetDatum(PgStartTime), false);
}

/*
 * An UPDATE that changes the planned time of a running task asks for one more run after this one.
 * The executor sees that by a time later than the claim, which is in "start"; so an earlier time
 * becomes the first moment after it.  The now() of a transaction that began before the claim is
 * earlier.  One that leaves the time the same, as programs do that save all columns, asks for none;
 * but any time after the claim does, so that nobody is missed who writes clock_timestamp().
 */
static void
set_time_of_run(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	bool isnull[2];
	TimestampTz claimed = DatumGetTimestampTz(trigger_value(old, COLUMN_START, &isnull[0]));
	TimestampTz dt = DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull[1]));

	if (!trigger_has_state(old, "WORK") || !trigger_has_state(new, "WORK") || isnull[0] ||
		isnull[1] || dt > claimed)
		return;
	if (!is_same_time(old, new, COLUMN_DT))
		set_column(columns, new, COLUMN_DT, TimestampTzGetDatum(claimed + 1), false);
	else if (!trigger_same_value(old, new, COLUMN_DT))
		set_column(columns, new, COLUMN_DT, trigger_value(old, COLUMN_DT, &isnull[0]), false);
}

/* The text of a column; NULL for NULL. */
static char *
text_or_null(const TriggerRow *row, TaskColumn which)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/*
 * A schedule that runs when the server starts is not on hold any more.  It runs now, if it was on
 * hold until then, or the server was started meanwhile; else it waits for the next start.
 */
static void
set_resumed_at_start(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	bool isnull;
	TimestampTz anchor = DatumGetTimestampTz(trigger_value(new, COLUMN_ANCHOR, &isnull));

	if (waits_for_start(old) || isnull || anchor != PgStartTime)
		set_column(columns, new, COLUMN_DT, TimestampTzGetDatum(GetCurrentTimestamp()), false);
	else
		set_column(columns, new, COLUMN_HOLD, CStringGetTextDatum(REPEAT_AT_START), false);
}

/*
 * A row is not on hold any more: failures in a row are counted anew.  If it is of a schedule, and
 * its time has passed meanwhile, it was missed: with "none" it is planned for the next time.
 */
static void
set_resumed(const TriggerRow *old, const TriggerRow *new, Columns *columns)
{
	RowRepeat repeat = {.until = DT_NOEND, .runs = PG_INT32_MAX};
	SettingsMissed missed;
	TimestampTz now;
	RowNext next;
	RowKey row;
	bool isnull;
	Datum value;

	if (trigger_is_null(old, COLUMN_HOLD) || !trigger_is_null(new, COLUMN_HOLD))
		return;
	set_column(columns, new, COLUMN_STREAK, (Datum) 0, true);
	now = GetCurrentTimestamp();
	repeat.dt = DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull));
	if (isnull || !is_same_time(old, new, COLUMN_DT) || !trigger_has_state(old, "PLAN") ||
		!trigger_has_state(new, "PLAN") || !trigger_is_null(new, COLUMN_PLANNED) ||
		!trigger_repeats(new) || DatumGetInt32(trigger_value(new, COLUMN_ATTEMPT, &isnull)) > 0)
		return;
	if (runs_at_start(new))
	{
		set_resumed_at_start(old, new, columns);
		return;
	}
	if (repeat.dt > now)
		return;
	value = trigger_value(new, COLUMN_ROLE, &isnull);
	row.role = isnull ? "" : NameStr(*DatumGetName(value));
	row.id = DatumGetInt64(trigger_value(new, COLUMN_ID, &isnull));
	repeat.role_id = trigger_role_id(new);
	missed = roles_settings(roles_bound(row.role, repeat.role_id)).missed;
	repeat.missed = text_or_null(new, COLUMN_MISSED);
	if (settings_missed(repeat.missed, missed) != MISSED_NONE)
		return;
	repeat.cron = text_or_null(new, COLUMN_CRON);
	repeat.timezone = text_or_null(new, COLUMN_TIMEZONE);
	value = trigger_value(new, COLUMN_REPEAT, &isnull);
	if (!isnull)
		repeat.repeat = *DatumGetIntervalP(value);
	value = trigger_value(new, COLUMN_DRIFT, &isnull);
	repeat.drift = !isnull && DatumGetBool(value);
	value = trigger_value(new, COLUMN_ANCHOR, &isnull);
	repeat.anchor = isnull ? repeat.dt : DatumGetTimestampTz(value);
	value = trigger_value(new, COLUMN_REPEAT_UNTIL, &isnull);
	if (!isnull)
		repeat.until = DatumGetTimestampTz(value);
	if (!repeat_find_next(row, &repeat, NULL, now, &next))
		return;
	set_column(columns, new, COLUMN_DT, TimestampTzGetDatum(next.dt), false);
	if (next.has_anchor)
		set_column(columns, new, COLUMN_ANCHOR, TimestampTzGetDatum(next.anchor), false);
}

/*
 * Trigger, BEFORE UPDATE of the columns that it looks at, FOR EACH ROW.  Binds a row to its role,
 * lets one that has ended not be stopped, and none be saved as it was before its last claim; writes
 * the times of one that a user stops, plans again or changes, and the task that it watches.
 * Replicated rows have what they have, but for the role.
 */
Datum
pg_task_timed(PG_FUNCTION_ARGS)
{
	TriggerData *data =
		trigger_data(fcinfo, TRIGGER_EVENT_UPDATE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_BEFORE,
					 "pg_task_timed must be called BEFORE UPDATE, FOR EACH ROW");
	Columns columns = {0};
	TriggerRow old;
	TriggerRow new;
	HeapTuple tuple;

	if (owner_acts())
		return PointerGetDatum(data->tg_newtuple);
	old = row_of(data, data->tg_trigtuple, data->tg_trigslot);
	new = row_of(data, data->tg_newtuple, data->tg_newslot);
	if (!trigger_same_value(&old, &new, COLUMN_CRON))
		set_spread(&new, &columns);
	if (columns.count > 0)
		write_row(&new, &columns, data->tg_newslot);
	set_binding(&old, &new, &columns);
	if (SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA && !after_is_marking(new.rel))
	{
		check_attempt(&old, &new, data->tg_updatedcols);
		keep_times(&old, &new, &columns);
		keep_end(&old, &new, &columns);
		set_times(&old, &new, &columns);
		set_resumed(&old, &new, &columns);
		set_cron_time(&old, &new, &columns);
		set_time_of_run(&old, &new, &columns);
		set_watch(&old, &new, &columns);
	}
	tuple = write_columns(&new, &columns);
	drop_row(&new, data->tg_newslot);
	return PointerGetDatum(tuple);
}

/*
 * Trigger, AFTER UPDATE, FOR EACH ROW.  Checks the row.  If it waits, adds a hint, which the
 * scheduler gets when the transaction has committed.
 */
Datum
pg_task_planned(PG_FUNCTION_ARGS)
{
	TriggerData *data =
		trigger_data(fcinfo, TRIGGER_EVENT_UPDATE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_AFTER,
					 "pg_task_planned must be called AFTER UPDATE, FOR EACH ROW");
	TriggerRow old;
	TriggerRow new;

	old = row_of(data, data->tg_trigtuple, data->tg_trigslot);
	new = row_of(data, data->tg_newtuple, data->tg_newslot);
	/* nearly all columns are looked at: take the row apart at once */
	slot_getallattrs(new.slot);
	if (!owner_acts())
	{
		row_check(&old, &new);
		row_check_until(&old, &new);
		if (trigger_has_state(&new, "PLAN") && trigger_newly_planned(&old, &new))
			warn_of_role(&new);
		if (trigger_has_state(&new, "STOP") && trigger_is_unended(&old))
			after_tell_end(&new, false);
	}
	pending_add_row(&old, &new);
	return PointerGetDatum(NULL);
}

/* ---- a new row ---- */

/* Of rows for which another chain was looked for; NOTICES_MAX: no more are. */
static Notices doubled;

/*
 * A key is unique in its queue: a schedule that is set up again in another queue would run twice.
 * Tell that of the first such row of a statement, among those for which it is looked up.
 */
static void
tell_doubled(const TriggerRow *row)
{
	const char *other;

	if (!trigger_repeats(row) || trigger_is_null(row, COLUMN_KEY) ||
		SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ||
		notices_told(&doubled) == NOTICES_MAX ||
		pg_class_aclcheck(trigger_root_table(row->rel), GetUserId(), ACL_SELECT) != ACLCHECK_OK)
		return;
	doubled.told++;
	other = after_find_chain(row);
	if (other == NULL)
		return;
	doubled.told = NOTICES_MAX;
	ereport(NOTICE,
			(errmsg("another schedule has this key: %s", other),
			 errhint("A key is unique in its queue.  To move a schedule, UPDATE the queue of "
					 "that task, or stop it.")));
}

/*
 * Check a new row, and record what the scheduler must know of it.  One that was bound before may
 * come from a dump.
 */
static void
finish_new_row(const TriggerRow *row, bool was_bound)
{
	if (owner_acts() && !trigger_has_state(row, "PLAN"))
		return;
	if (!owner_acts())
	{
		row_check(NULL, row);
		if (!was_bound)
			row_check_until(NULL, row);
		if (trigger_has_state(row, "PLAN"))
		{
			warn_of_role(row);
			if (!was_bound)
				warn_of_replica(row);
			tell_doubled(row);
		}
	}
	pending_add_row(NULL, row);
}

/*
 * Bind a new row to the role that has its name now, whatever the INSERT sets, and plan it for the
 * first match of its cron expression.
 */
static void
bind_new_row(TriggerRow *row, Columns *columns, bool was_bound)
{
	bool isnull;
	Datum role = trigger_value(row, COLUMN_ROLE, &isnull);

	/* the next row of a repeating task has both from pg_task, and keeps them */
	if (isnull || (owner_acts() && was_bound))
		return;
	row->role_id = roles_bind(NameStr(*DatumGetName(role)));
	if (trigger_role_id(row) != row->role_id)
	{
		row->binds = true;
		set_column(columns, row, COLUMN_ROLE_ID, Int64GetDatum(row->role_id), false);
	}
	if (!owner_acts())
		plan_new_row(row, columns, was_bound);
}

/*
 * A new row has the task that inserts it as "parent", and the "flow" and "meta" of the settings of
 * these names, where it has none: defaults of the columns would cost those who do not use them.  A
 * row that is bound already, from a dump, another server or another partition, has what it has.
 */
static void
set_labels(const TriggerRow *row, Columns *columns)
{
	const char *flow = settings_label(Settings.flow, "pg_task.flow");
	const char *meta = settings_label(Settings.meta, "pg_task.meta");
	int64 id = settings_task_id();

	if ((id == SETTINGS_NO_TASK && !flow && !meta) || owner_acts() || trigger_role_id(row) != 0)
		return;
	if (id != SETTINGS_NO_TASK && trigger_is_null(row, COLUMN_PARENT))
		set_column(columns, row, COLUMN_PARENT, Int64GetDatum(id), false);
	if (flow && trigger_is_null(row, COLUMN_FLOW))
		set_column(columns, row, COLUMN_FLOW, CStringGetTextDatum(flow), false);
	/* what tells of a failure, and what that does in its place, does not tell of itself */
	if (id != SETTINGS_NO_TASK && Settings.task_tells && trigger_is_null(row, COLUMN_ON_FAILURE))
		set_column(columns, row, COLUMN_ON_FAILURE, CStringGetTextDatum(""), false);
	if (meta && trigger_is_null(row, COLUMN_META))
		set_column(columns, row, COLUMN_META, DirectFunctionCall1(jsonb_in, CStringGetDatum(meta)),
				   false);
}

/*
 * A new row that waits and was bound in another database was copied from there, by a dump as well,
 * and might have run there: it is on hold.  A row that is replicated is as its publisher has it,
 * and one that comes into a partition may have been moved.
 */
static void
hold_copied_row(const TriggerRow *row, Columns *columns)
{
	if (home_is_elsewhere(trigger_role_id(row)) && !owner_acts() &&
		SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		!row->rel->rd_rel->relispartition &&
		(trigger_is_null(row, COLUMN_HOLD) || waits_for_start(row)) &&
		(trigger_has_state(row, "PLAN") || trigger_has_state(row, "WORK")))
		set_column(columns, row, COLUMN_HOLD, CStringGetTextDatum(HOME_COPIED), false);
}

/* The counts of a new row that has none: defaults of the columns would cost every INSERT more. */
static void
set_counts(const TriggerRow *row, Columns *columns)
{
	static const TaskColumn counts[] = {COLUMN_FAILED, COLUMN_CRASHED};
	int i;

	for (i = 0; i < (int) lengthof(counts); i++)
		if (trigger_is_null(row, counts[i]))
			set_column(columns, row, counts[i], Int32GetDatum(0), false);
}

/*
 * Trigger, BEFORE INSERT, FOR EACH ROW.  Writes role_id, what the row inherits from the task that
 * inserts it, the time for which a cron expression plans it, and the task that it watches.  Checks
 * the row, and adds a hint if it waits.  The name of the trigger has those of users fire before it.
 */
Datum
pg_task_bound(PG_FUNCTION_ARGS)
{
	TriggerData *data =
		trigger_data(fcinfo, TRIGGER_EVENT_INSERT | TRIGGER_EVENT_ROW | TRIGGER_EVENT_BEFORE,
					 "pg_task_bound must be called BEFORE INSERT, FOR EACH ROW");
	Columns columns = {0};
	TriggerRow row;
	HeapTuple tuple;
	bool was_bound;
	bool known;

	row = row_of(data, data->tg_trigtuple, data->tg_trigslot);
	/* most columns are looked at, here or for the indexes: take the row apart at once */
	slot_getallattrs(row.slot);
	check_new_id(&row);
	/* the owner inserts a row from a task table, as a dump does: what it waits for may be gone */
	was_bound = trigger_role_id(&row) != 0;
	known = was_bound && row_check_owner(row.rel);
	hold_copied_row(&row, &columns);
	set_labels(&row, &columns);
	set_spread(&row, &columns);
	if (columns.count > 0)
		write_row(&row, &columns, data->tg_trigslot);
	bind_new_row(&row, &columns, was_bound);
	if (!owner_acts())
		watch_new_row(&row, &columns, !known);
	/* of what is written, "row" knows role_id */
	if (columns.count > row.binds)
		write_row(&row, &columns, data->tg_trigslot);
	finish_new_row(&row, was_bound);
	set_counts(&row, &columns);
	tuple = write_columns(&row, &columns);
	drop_row(&row, data->tg_trigslot);
	return PointerGetDatum(tuple);
}

/*
 * pg_task_watched(state): the WHEN condition of the triggers.  Returns false only for writes of
 * pg_task itself that leave the row in a state other than PLAN; these need no checks.
 */
Datum
pg_task_watched(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(!owner_acts() || value_is_word(PG_GETARG_DATUM(0), "PLAN"));
}
