/*
 * triggers.c
 *		The triggers on the task table.
 *
 * The trigger pg_task_planned checks what a user writes into a row, and records the group of a
 * waiting row for the hint.  The checks are here and not in CHECK constraints: the server reads
 * these from the catalog again for every statement, which costs a fifth of the time of each task.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "session/hooks.h"
#include "session/numbering.h"
#include "shared/shared.h"
#include "task/columns.h"
#include "task/owner.h"
#include "task/roles.h"
#include "task/schedule.h"

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

/* The row that the trigger is called for. */
typedef struct Row
{
	Relation rel;
	HeapTuple tuple;
} Row;

/*
 * The number of a column.  The number found last is used if it still fits.  The type is checked
 * every time, because anybody may put this trigger on any table.
 */
static int
column_number(TupleDesc desc, TaskColumn which)
{
	static int remembered[TASK_COLUMNS];
	const char *name = task_columns[which].name;
	int number = remembered[which];

	if (number < 1 || number > desc->natts ||
		strcmp(NameStr(TupleDescAttr(desc, number - 1)->attname), name) != 0)
		number = SPI_fnumber(desc, name);
	if (number < 1 || TupleDescAttr(desc, number - 1)->atttypid != task_columns[which].type)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("the table of this trigger is not a task table"),
						errdetail("It has no column \"%s\" of type %s.", name,
								  format_type_be(task_columns[which].type))));
	return remembered[which] = number;
}

static Datum
row_value(const Row *row, TaskColumn which, bool *isnull)
{
	TupleDesc desc = RelationGetDescr(row->rel);

	return SPI_getbinval(row->tuple, desc, column_number(desc, which), isnull);
}

/* The role_id that the row is bound to; 0: none. */
static int64
row_role_id(const Row *row)
{
	bool isnull;
	Datum value = row_value(row, COLUMN_ROLE_ID, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

/* ---- values that a user may write ---- */

static void
reject_value(const Row *row, TaskColumn which, const char *rule)
{
	bool isnull;
	int64 id = DatumGetInt64(row_value(row, COLUMN_ID, &isnull));

	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
					errmsg("\"%s\" of a task must be %s", task_columns[which].name, rule),
					errdetail("The row has id " INT64_FORMAT ".", id),
					errtablecol(row->rel, column_number(RelationGetDescr(row->rel), which))));
}

/* Check that an interval is NULL, or greater than zero, or (if allowed) zero. */
static void
check_interval(const Row *row, TaskColumn which, bool zero_allowed)
{
	Interval zero = {0};
	bool isnull;
	Datum value = row_value(row, which, &isnull);
	int comparison;

	if (isnull)
		return;
	comparison = DatumGetInt32(DirectFunctionCall2(interval_cmp, value, IntervalPGetDatum(&zero)));
	if (comparison < 0 || (comparison == 0 && !zero_allowed))
		reject_value(row, which, zero_allowed ? "zero or more" : "greater than zero");
}

/* Check that a number is NULL, or zero or more. */
static void
check_count(const Row *row, TaskColumn which)
{
	bool isnull;
	Datum value = row_value(row, which, &isnull);

	if (!isnull && DatumGetInt32(value) < 0)
		reject_value(row, which, "zero or more");
}

/* Check that a column is not NULL, even if the table allows it. */
static void
check_present(const Row *row, TaskColumn which)
{
	bool isnull;

	(void) row_value(row, which, &isnull);
	if (isnull)
		reject_value(row, which, "something, not NULL");
}

/* Check that a time is NULL, infinite, or early enough for "active" to be added. */
static void
check_time(const Row *row, TaskColumn which)
{
	bool isnull;
	TimestampTz value = DatumGetTimestampTz(row_value(row, which, &isnull));

	if (!isnull && !TIMESTAMP_NOT_FINITE(value) && !schedule_in_range(value))
		reject_value(row, which, "before the year " CppAsString2(SCHEDULE_LAST_YEAR));
}

/* Check that a text is NULL, or one of these words. */
static void
check_word(const Row *row, TaskColumn which, const char *const *words, const char *rule)
{
	bool isnull;
	Datum value = row_value(row, which, &isnull);
	char *word;

	if (isnull)
		return;
	word = TextDatumGetCString(value);
	for (; *words; words++)
		if (strcmp(word, *words) == 0)
			return;
	reject_value(row, which, rule);
}

/* Check that a text is NULL, or at most this many bytes long: processes keep it in memory. */
static void
check_length(const Row *row, TaskColumn which, int most)
{
	bool isnull;
	Datum value = row_value(row, which, &isnull);

	if (!isnull && toast_raw_datum_size(value) - VARHDRSZ > (Size) most)
		reject_value(row, which, psprintf("at most %d bytes long", most));
}

/*
 * Check the bounds that protect other users.  The next row of a repeating task is not checked: a
 * row that has bypassed this trigger must still be able to end and to repeat.
 */
static void
check_bounds(const Row *row)
{
	Interval least = {.time = TASK_REPEAT_MIN_MS * INT64CONST(1000)};
	bool isnull;
	Datum repeat = row_value(row, COLUMN_REPEAT, &isnull);

	if (!isnull &&
		DatumGetBool(DirectFunctionCall2(interval_lt, repeat, IntervalPGetDatum(&least))))
		reject_value(row, COLUMN_REPEAT, "at least " CppAsString2(TASK_REPEAT_MIN_MS) " ms");
	check_length(row, COLUMN_QUEUE, TASK_QUEUE_MAX);
	check_length(row, COLUMN_KEY, TASK_KEY_MAX);
	check_length(row, COLUMN_TIMEZONE, TASK_ZONE_MAX);
	check_length(row, COLUMN_CRON, TASK_KEY_MAX);
	check_length(row, COLUMN_NOTIFY, NAMEDATALEN - 1);
}

static void
check_row(const Row *row)
{
	static const char *const states[] = {"PLAN", "WORK", "DONE", "FAIL", "STOP", "GONE", NULL};
	static const char *const formats[] = {"text", "csv", "json", NULL};
	bool isnull;
	Datum value;

	check_present(row, COLUMN_QUEUE);
	check_present(row, COLUMN_PRIORITY);
	check_present(row, COLUMN_DT);
	check_time(row, COLUMN_DT);
	check_time(row, COLUMN_PLANNED);
	check_word(row, COLUMN_STATE, states, "PLAN, WORK, DONE, FAIL, STOP or GONE");
	check_word(row, COLUMN_FORMAT, formats, "text, csv or json");
	value = row_value(row, COLUMN_REQUEST, &isnull);
	if (!isnull && toast_raw_datum_size(value) <= VARHDRSZ)
		reject_value(row, COLUMN_REQUEST, "some SQL");
	check_count(row, COLUMN_RETRY);
	check_count(row, COLUMN_FAILED);
	value = row_value(row, COLUMN_BACKOFF, &isnull);
	if (!isnull && !(DatumGetFloat4(value) >= 0))
		reject_value(row, COLUMN_BACKOFF, "zero or more");
	check_interval(row, COLUMN_DELAY, true);
	check_interval(row, COLUMN_TIMEOUT, false);
	check_interval(row, COLUMN_ACTIVE, false);
	check_interval(row, COLUMN_REPEAT, false);
	if (!owner_acts())
		check_bounds(row);
	(void) row_value(row, COLUMN_REMOTE, &isnull);
	if (!isnull)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("tasks on other servers are not supported yet"),
						errhint("Leave the column \"remote\" empty.")));
}

/* The table that the scheduler knows: the root, if this is a partition. */
static Oid
root_table(Relation rel)
{
	if (!rel->rd_rel->relispartition)
		return RelationGetRelid(rel);
	return llast_oid(get_partition_ancestors(RelationGetRelid(rel)));
}

/* ---- values that only the owner of the table may write ---- */

static Oid
table_owner(Relation rel)
{
	HeapTuple tuple;
	Oid owner;

	if (!rel->rd_rel->relispartition)
		return rel->rd_rel->relowner;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(root_table(rel)));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", root_table(rel));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

static void
forbid(TaskColumn which, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("only the owner of the task table may set \"%s\"", task_columns[which].name),
			 hint ? errhint("%s", hint) : 0));
}

static bool
is_state(const Row *row, const char *state)
{
	bool isnull;
	Datum value = row_value(row, COLUMN_STATE, &isnull);

	return !isnull && strcmp(TextDatumGetCString(value), state) == 0;
}

static bool
is_null(const Row *row, TaskColumn which)
{
	bool isnull;

	(void) row_value(row, which, &isnull);
	return isnull;
}

static bool
is_same_state(const Row *old, const Row *new)
{
	bool isnull;
	Datum value = row_value(old, COLUMN_STATE, &isnull);

	return !isnull && is_state(new, TextDatumGetCString(value));
}

/*
 * Does a column (of a fixed-length type) have the same value in two rows?  "old" may be NULL
 * (INSERT): then compare with the column's default, which is 0 for attempt and crashed, else NULL.
 */
static bool
is_same(const Row *old, const Row *new, TaskColumn which)
{
	int number = column_number(RelationGetDescr(new->rel), which);
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(new->rel), number - 1);
	bool old_isnull = true;
	bool new_isnull;
	Datum old_value = old ? row_value(old, which, &old_isnull) : (Datum) 0;
	Datum new_value = row_value(new, which, &new_isnull);

	if (old == NULL && (which == COLUMN_ATTEMPT || which == COLUMN_CRASHED))
		return DatumGetInt32(new_value) == 0;
	if (old_isnull || new_isnull)
		return old_isnull == new_isnull;
	return datumIsEqual(old_value, new_value, att->attbyval, att->attlen);
}

/*
 * Only the server may set a task to WORK.  A restored or replicated row may be in state WORK,
 * because it was running elsewhere.
 */
static void
check_state(const Row *old, const Row *new)
{
	if (old && is_state(new, "WORK") && !is_state(old, "WORK") &&
		SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
						errmsg("\"state\" of a task becomes WORK when it starts, not before"),
						errhint("Set it to PLAN, and it starts.")));
}

/*
 * Users other than the owner may plan tasks for roles that they may become, and may not change
 * what the server has written about a run.  "old" is NULL for an INSERT.
 */
static void
check_rights(const Row *old, const Row *new)
{
	static const TaskColumn fixed[] = {COLUMN_PID,	COLUMN_ATTEMPT, COLUMN_CRASHED, COLUMN_START,
									   COLUMN_STOP, COLUMN_ID,		COLUMN_ROLE,	COLUMN_ROLE_ID};
	int nfixed = old ? (int) lengthof(fixed) : 5; /* new rows: the first five */
	bool isnull;
	Datum role = row_value(new, COLUMN_ROLE, &isnull);
	int64 role_id = row_role_id(new);
	int i;

	if (has_privs_of_role(GetUserId(), table_owner(new->rel)))
		return;
	if (isnull || !roles_may_act(GetUserId(), NameStr(*DatumGetName(role)), role_id))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("cannot plan a task for a role that you may not become")));
	for (i = 0; i < nfixed; i++)
		if (!is_same(old, new, fixed[i]))
			forbid(fixed[i], NULL);
	if (!is_state(new, "PLAN") && !is_state(new, "STOP") && !(old && is_same_state(old, new)))
		forbid(COLUMN_STATE, "You may set it to PLAN or STOP.");
}

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
	Row row;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(data->tg_event) || TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) ||
		TRIGGER_FIRED_BY_INSERT(data->tg_event) != (TRIGGER_FIRED_FOR_ROW(data->tg_event) != 0))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_numbered must be called BEFORE INSERT, FOR EACH ROW, or"
							   " BEFORE UPDATE, FOR EACH STATEMENT")));
	inserts = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	row.rel = data->tg_relation;
	row.tuple = inserts ? data->tg_trigtuple : NULL;
	if (owner_acts() || has_privs_of_role(GetUserId(), table_owner(row.rel)))
		return PointerGetDatum(row.tuple);
	if (!inserts)
		forbid(COLUMN_ID, NULL);
	id = DatumGetInt64(row_value(&row, COLUMN_ID, &isnull));
	if (!isnull && numbering_is_ahead(root_table(row.rel), id))
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
bind_row(const Row *row, int64 role_id)
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
check_binding(const Row *old, const Row *new)
{
	bool isnull;
	Datum role = row_value(new, COLUMN_ROLE, &isnull);
	int64 role_id;

	if (isnull || (old && is_same(old, new, COLUMN_ROLE) && is_same(old, new, COLUMN_ROLE_ID)))
		return;
	role_id = roles_bind(NameStr(*DatumGetName(role)));
	if (role_id != row_role_id(new))
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
	Row row;
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
	role = row_value(&row, COLUMN_ROLE, &isnull);
	if (isnull || (owner_acts() && row_role_id(&row) != 0))
		return PointerGetDatum(row.tuple);
	value = Int64GetDatum(roles_bind(NameStr(*DatumGetName(role))));
	number = column_number(RelationGetDescr(row.rel), COLUMN_ROLE_ID);
	return PointerGetDatum(heap_modify_tuple_by_cols(row.tuple, RelationGetDescr(row.rel), 1,
													 &number, &value, &isnull));
}

/* ---- the hint for a waiting row ---- */

/* Read the group and the position of a row.  Returns false if they do not fit into a hint. */
static bool
read_hint(const Row *row, SharedHint *hint)
{
	bool isnull[5];
	bool max_isnull;
	Datum max;
	Datum role;
	Datum queue;

	memset(hint, 0, sizeof(SharedHint));
	hint->place.id = DatumGetInt64(row_value(row, COLUMN_ID, &isnull[0]));
	hint->place.dt = DatumGetTimestampTz(row_value(row, COLUMN_DT, &isnull[1]));
	hint->priority = DatumGetInt32(row_value(row, COLUMN_PRIORITY, &isnull[2]));
	max = row_value(row, COLUMN_MAX, &max_isnull);
	hint->max = max_isnull ? TASK_UNLIMITED : DatumGetInt32(max);
	role = row_value(row, COLUMN_ROLE, &isnull[3]);
	queue = row_value(row, COLUMN_QUEUE, &isnull[4]);
	if (isnull[0] || isnull[1] || isnull[2] || isnull[3] || isnull[4] ||
		toast_raw_datum_size(queue) - VARHDRSZ >= NAMEDATALEN)
		return false;
	hint->role = *DatumGetName(role);
	hint->role_id = row_role_id(row);
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
	Row row;
	Row old;
	Row *before;
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
	check_rights(before, &row);
	if (!owner_acts())
		check_binding(before, &row);
	check_state(before, &row);
	check_row(&row);
	if (Shared && is_state(&row, "PLAN"))
		hooks_add_hint(root_table(row.rel), read_hint(&row, &hint) ? &hint : NULL);
	if (Shared && is_state(&row, "PLAN") && !is_null(&row, COLUMN_ACTIVE))
		hooks_add_events(root_table(row.rel), SHARED_EXPIRY);
	if (Shared && before && is_state(before, "WORK") && !owner_acts())
		hooks_add_events(root_table(row.rel), SHARED_RECONCILE);
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
		hooks_add_events(root_table(data->tg_relation), SHARED_RECONCILE);
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
