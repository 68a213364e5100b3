/*
 * trigger_hints.c
 *		Records what the scheduler must know of the rows that a transaction inserts, changes or
 *		removes: hints, events, counts.
 *
 * Consecutive rows mostly are of one group.  Each row of a large INSERT pays for what is done here,
 * so the row is compared with the hint of the one before, and nothing of it is copied.
 *
 * This file checks no row and changes none.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "session/after.h"
#include "session/pending.h"
#include "session/planned.h"
#include "session/trigger_hints.h"
#include "shared/shared.h"
#include "task/owner.h"

/* What a hint says of a row.  The strings are those of the row. */
typedef struct RowHint
{
	const text *queue;
	const NameData *role;
	int64 role_id;
	int32 max;
	int32 priority;
	TaskPlace place;
} RowHint;

/* Read the group and the position of a row.  Returns false if they do not fit into a hint. */
static bool
read_row(const TriggerRow *row, RowHint *hint)
{
	bool isnull[5];
	bool max_isnull;
	Datum max;
	Datum role;
	Datum queue;

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
	hint->role = DatumGetName(role);
	hint->role_id = trigger_role_id(row);
	hint->queue = DatumGetTextPP(queue);
	return true;
}

/* Is the row of the group of this hint? */
static bool
is_of_group(const RowHint *row, const SharedHint *hint)
{
	Size length = VARSIZE_ANY_EXHDR(row->queue);

	return hint->role_id == row->role_id && hint->max == row->max &&
		   hint->priority == row->priority &&
		   memcmp(hint->queue, VARDATA_ANY(row->queue), length) == 0 &&
		   hint->queue[length] == '\0' && strcmp(NameStr(hint->role), NameStr(*row->role)) == 0;
}

static void
add_group(Oid table, const RowHint *row)
{
	SharedHint hint = {.role = *row->role,
					   .role_id = row->role_id,
					   .max = row->max,
					   .priority = row->priority,
					   .place = row->place};

	text_to_cstring_buffer(row->queue, hint.queue, NAMEDATALEN);
	pending_add_hint(table, &hint);
}

/* Record that a row waits. */
static void
add_hint(Oid table, const TriggerRow *row)
{
	SharedHint *last = pending_last_hint(table);
	RowHint found;

	if (!read_row(row, &found))
		pending_add_hint(table, NULL);
	else if (last && is_of_group(&found, last))
		shared_hint_add_place(last, &found.place);
	else
		add_group(table, &found);
}

/*
 * Record for which tasks a row waits: the one that it watches, or, by the rule "any", all of them.
 * What the scheduler has written itself, it knows.
 */
static void
add_watched(Oid table, const TriggerRow *row)
{
	bool isnull;
	Datum rule;
	After after;
	int i;

	if (owner_acts())
		return;
	pending_add_watched(table, DatumGetInt64(trigger_value(row, COLUMN_WAITS, &isnull)));
	rule = trigger_value(row, COLUMN_RULE, &isnull);
	if (isnull || !trigger_is_word(rule, "any") || !after_read(row, &after))
		return;
	if (after.count > SHARED_IDS || after.removed)
		pending_add_events(table, SHARED_DEPENDENTS);
	else
		for (i = 0; i < after.count; i++)
			pending_add_watched(table, after.ids[i]);
}

/* Is the task one that has not ended? */
static bool
is_unended(const TriggerRow *row)
{
	return trigger_has_state(row, "PLAN") || trigger_has_state(row, "WORK");
}

/* Record that a user has ended or removed a task for which others may wait. */
void
trigger_add_ended(Oid table, const TriggerRow *row)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));

	if (!isnull)
		pending_add_ended(table, id);
}

/*
 * Count for pg_stat_task a row that is planned, or that a user stops while it waits.  A retry is
 * counted where it is written.
 */
static void
count_row(Oid table, const TriggerRow *old, const TriggerRow *new, bool planned)
{
	bool counts = planned && trigger_newly_planned(old, new);
	bool stops = old && trigger_has_state(old, "PLAN") && trigger_has_state(new, "STOP");
	bool isnull;
	Datum queue;

	if (!(counts || stops) || (old && owner_acts()) || !pending_add_events(table, 0))
		return;
	queue = trigger_value(new, COLUMN_QUEUE, &isnull);
	if (!isnull)
		planned_count(DatumGetTextPP(queue), counts ? STAT_PLANNED : STAT_STOPPED);
}

/* Record what the scheduler must know of a new or changed row when the transaction has committed.
 */
void
trigger_add_pending(const TriggerRow *old, const TriggerRow *new)
{
	Oid table = trigger_root_table(new->rel);
	bool planned = trigger_has_state(new, "PLAN");
	bool waits = planned && trigger_is_null(new, COLUMN_WAITS);

	count_row(table, old, new, planned);
	if (planned && !waits)
		add_watched(table, new);
	if (old && is_unended(old) && !is_unended(new))
		trigger_add_ended(table, new);
	if (waits)
		add_hint(table, new);
	if (waits && !trigger_is_null(new, COLUMN_ACTIVE))
		pending_add_events(table, SHARED_EXPIRY);
	if (!planned && !trigger_is_null(new, COLUMN_KEEP))
		pending_add_events(table, SHARED_HISTORY);
	if (old && trigger_has_state(old, "WORK") && !owner_acts())
		pending_add_events(table, SHARED_RECONCILE);
}
