/*
 * direct_claim.c
 *		Claims waiting rows without a statement.
 *
 * A claim by the statement takes 360,000 instructions, and 95,000 for each task, and writes a lock
 * of each row to the log, because the server has no UPDATE that skips locked rows.  Here a row is
 * written at once, unless somebody has locked it.
 *
 * It is an addition to the statement (rows_claim), never its replacement: it claims only rows of
 * which all that the statement asks can be told by comparing values.  All other candidates are left
 * to the statement: rows that have changed, are locked or are not found, suspects, and tasks that
 * repeat or have an interval.  A condition that is added to the statement must be added here, too.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "shared/shared.h"
#include "task/direct.h"

/* A row with a value in one of these columns is left to the statement. */
static const TaskColumn left_columns[] = {COLUMN_TIMEOUT, COLUMN_ACTIVE, COLUMN_REPEAT,
										  COLUMN_CRON,	  COLUMN_KEEP,	 COLUMN_FORMAT};

/* Is an int4 this one?  What NULL stands for is given. */
static bool
is_int32(TupleTableSlot *slot, TaskColumn column, int32 null, int32 wanted)
{
	bool isnull;
	Datum value = direct_value(slot, column, &isnull);

	return (isnull ? null : DatumGetInt32(value)) == wanted;
}

/* Is a column of eight bytes this value? */
static bool
is_int64(TupleTableSlot *slot, TaskColumn column, int64 wanted)
{
	bool isnull;
	Datum value = direct_value(slot, column, &isnull);

	return !isnull && DatumGetInt64(value) == wanted;
}

/* Is the row still in the group? */
static bool
is_in_group(TupleTableSlot *slot, const TaskGroup *group)
{
	bool isnull;
	Datum role = direct_value(slot, COLUMN_ROLE, &isnull);

	return !isnull && strcmp(NameStr(*DatumGetName(role)), group->role) == 0 &&
		   is_int64(slot, COLUMN_ROLE_ID, group->role_id) &&
		   is_int32(slot, COLUMN_MAX, TASK_UNLIMITED, group->max) &&
		   !direct_is_null(slot, COLUMN_PRIORITY) &&
		   is_int32(slot, COLUMN_PRIORITY, 0, group->priority) &&
		   direct_is_text(slot, COLUMN_QUEUE, group->queue);
}

/* Does the row wait, and is there nothing to ask but whether it is due? */
static bool
may_claim(TupleTableSlot *slot, const Candidate *candidate)
{
	int i;

	slot_getallattrs(slot);
	for (i = 0; i < (int) lengthof(left_columns); i++)
		if (!direct_is_null(slot, left_columns[i]))
			return false;
	return direct_is_text(slot, COLUMN_STATE, "PLAN") && is_int32(slot, COLUMN_CRASHED, 0, 0) &&
		   !direct_is_null(slot, COLUMN_ATTEMPT) && !direct_is_null(slot, COLUMN_DELETE) &&
		   is_in_group(slot, candidate->group);
}

/* Is it due where it was read, and does it wait for no task? */
static bool
is_due(TupleTableSlot *slot, const Candidate *candidate, TimestampTz now)
{
	return candidate->active == 0 && candidate->place.dt <= now &&
		   is_int64(slot, COLUMN_DT, candidate->place.dt) && direct_is_null(slot, COLUMN_WAITS);
}

/* Find the row of a candidate.  Returns false if it is left to the statement. */
static bool
find_row(DirectRows *rows, const Candidate *candidate, TimestampTz now)
{
	if (candidate->isolated)
		return false;
	/* a lock that is taken after this look is waited for, as long as lock_timeout allows */
	return direct_find(rows, candidate->place.id) && direct_is_free(rows) &&
		   may_claim(rows->old, candidate) && is_due(rows->old, candidate, now);
}

/* Write the claim into the row.  Returns false if it is left to the statement. */
static bool
write_claim(DirectRows *rows, const Candidate *candidate, TaskRun run)
{
	direct_copy(rows);
	direct_set_text(rows, COLUMN_STATE, "WORK");
	direct_set(rows, COLUMN_ATTEMPT, Int32GetDatum(run.attempt));
	direct_set(rows, COLUMN_START, TimestampTzGetDatum(run.claimed));
	direct_set_null(rows, COLUMN_STOP);
	direct_set(rows, COLUMN_PID, Int32GetDatum(candidate->pid));
	return direct_write(rows);
}

/* Copy the request and its input, if they fit into a ring; otherwise the executor reads them. */
static void
copy_request(TupleTableSlot *slot, Claim *claim)
{
	bool isnull;
	Datum input = direct_value(slot, COLUMN_INPUT, &isnull);
	Size size = isnull ? 0 : toast_datum_size(input);
	Datum request;

	claim->input = !isnull && size <= SHARED_REQUEST ? DatumGetJsonbPCopy(input) : NULL;
	request = direct_value(slot, COLUMN_REQUEST, &isnull);
	claim->request = NULL;
	if (!isnull && toast_raw_datum_size(request) - VARHDRSZ + size <= SHARED_REQUEST)
		claim->request = TextDatumGetCString(request);
}

/* Describe the claim of a row, as it was before. */
static void
fill_claim(TupleTableSlot *slot, const Candidate *candidate, TaskRun run, Claim *claim)
{
	bool isnull;
	Datum flow = direct_value(slot, COLUMN_FLOW, &isnull);

	memset(claim, 0, sizeof(Claim));
	claim->run = run;
	claim->timeout = -1;
	claim->keep = -1;
	if (!isnull && toast_raw_datum_size(flow) - VARHDRSZ <= TASK_NAME_MAX)
		claim->flow = TextDatumGetCString(flow);
	claim->deletes = DatumGetBool(direct_value(slot, COLUMN_DELETE, &isnull));
	claim->notifies = !direct_is_null(slot, COLUMN_NOTIFY);
	claim->planned = DatumGetTimestampTz(direct_value(slot, COLUMN_PLANNED, &isnull));
	if (isnull)
		claim->planned = candidate->place.dt;
	claim->role = pstrdup(candidate->group->role);
	claim->role_id = candidate->group->role_id;
	copy_request(slot, claim);
}

/* Claim the row of a candidate.  Returns false if it is left to the statement. */
static bool
claim_row(DirectRows *rows, const Candidate *candidate, TimestampTz now, TimestampTz claimed,
		  Claim *claim)
{
	TaskRun run = {.id = candidate->place.id, .claimed = claimed};
	bool isnull;
	int32 attempt;

	if (!find_row(rows, candidate, now))
		return false;
	attempt = DatumGetInt32(direct_value(rows->old, COLUMN_ATTEMPT, &isnull));
	run.attempt = Min(attempt, PG_INT32_MAX - 1) + 1;
	if (!write_claim(rows, candidate, run))
		return false;
	fill_claim(rows->old, candidate, run, claim);
	claim->tid = rows->new->tts_tid;
	return true;
}

/*
 * Claim candidates as rows_claim does, which see.  Returns the number of claims; "left" has room
 * for all candidates, and gets those that are left to the statement.
 */
int
direct_claim(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
			 TimestampTz claimed, Claim *claims, Candidate *left, int *nleft)
{
	DirectRows rows;
	bool begun = direct_begin(&rows, table);
	int found = 0;
	int i;

	*nleft = 0;
	for (i = 0; i < count; i++)
	{
		if (begun && claim_row(&rows, &candidates[i], now, claimed, &claims[found]))
			found++;
		else
			left[(*nleft)++] = candidates[i];
	}
	if (begun)
		direct_end(&rows);
	return found;
}
