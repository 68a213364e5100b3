/*
 * rows_unstarted.c
 *		Statements of the scheduler on waiting rows that it does not start, because their role may
 *		not run them; and what statements on rows have in common that end without a run.
 *
 * None of these waits for a row that somebody has locked.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/shared.h"
#include "task/roles.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/*
 * Add why tasks have failed: for FAILURE_RESPONSE, and as $error and $sqlstate.  Their column
 * "format" may be NULL; then the settings of the role count, or those of the database if there is
 * none.
 */
void
arg_failure(StatementArgs *args, const Failure *failure, Oid role)
{
	bool json = roles_settings(role).format == RESULT_JSON;

	arg_text(args, "error", failure->error);
	arg_text(args, "sqlstate", failure->sqlstate);
	arg_text(args, "text", failure_text(failure));
	arg_text(args, "json", failure_json(failure));
	arg_text(args, "format", json ? "json" : "text");
}

/*
 * The shortest "keep" of the rows of the last result, which follows the columns UNSTARTED (s);
 * negative: none has one.
 */
double
unstarted_keep(uint64 count)
{
	double shortest = -1;
	uint64 i;

	for (i = 0; i < count; i++)
	{
		double keep = statement_float8(i, UNSTARTED_COLUMNS + 1);

		if (keep >= 0 && (shortest < 0 || keep < shortest))
			shortest = keep;
	}
	return shortest;
}

/*
 * Note for a row of the last result, which begins with the columns UNSTARTED, that the task has
 * ended without a run.  "error" and "sqlstate" may be NULL.
 */
void
note_unstarted_row(uint64 i, EventKind kind, const char *error, const char *sqlstate)
{
	TaskEvent event = {
		.kind = kind,
		.id = statement_int64(i, 1),
		.attempt = statement_int32(i, 4),
		.queue = statement_text(CurrentMemoryContext, i, 3),
		.role_name = statement_text(CurrentMemoryContext, i, 2),
		.elapsed = -1,
		.sqlstate = sqlstate,
		.error = error,
	};

	event_note(&event);
}

/* The same for all rows. */
void
note_unstarted(uint64 count, EventKind kind, const char *error, const char *sqlstate)
{
	uint64 i;

	for (i = 0; i < count; i++)
		note_unstarted_row(i, kind, error, sqlstate);
}

/* clang-format off */

static const Statement fail_rows = {.sql =
	"WITH c AS MATERIALIZED (" WAITING_ROWS ")"
	" UPDATE {rows} AS t"
	"    SET state = 'FAIL', stop = clock_timestamp(), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW
	" RETURNING " UNSTARTED ", " KEEP ", " NOTIFY_END("t.state")};

static const Statement refuse_row = {.sql =
	"WITH c AS MATERIALIZED (" WAITING_ROWS ")"
	" UPDATE {rows} AS t"
	"    SET dt = $next, planned = CASE WHEN $waits THEN " PLANNED " END,"
	"        anchor = coalesce($anchor, t.anchor), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW " AND " REPEATS};

/* clang-format on */

/* Add what WAITING_ROWS needs: rows of a role, as their columns name it. */
void
arg_waiting_rows(StatementArgs *args, const char *role, int64 role_id, const TaskPlace *places,
				 int count)
{
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	Datum *dts = arg_array(args, "dts", TIMESTAMPTZOID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(places[i].id);
		dts[i] = TimestampTzGetDatum(places[i].dt);
	}
	arg_text(args, "state", "PLAN");
	arg_text(args, "role", role);
	arg_int64(args, "role_id", role_id);
}

/*
 * Set waiting tasks of a role that cannot be started to FAIL; a repeating task does not repeat.
 * Those that somebody has locked are left.  Sets *keep to the shortest "keep" of those that are
 * FAIL.
 */
void
rows_fail(const TaskTable *table, const TaskGroup *group, const TaskPlace *places, int count,
		  const Failure *why, double *keep)
{
	StatementArgs args;
	uint64 failed;

	statement_begin(&args);
	arg_waiting_rows(&args, group->role, group->role_id, places, count);
	arg_failure(&args, why, roles_bound(group->role, group->role_id));
	failed = statement_execute(&fail_rows, table, &args);
	*keep = unstarted_keep(failed);
	note_unstarted(failed, EVENT_FAILED, why->error, why->sqlstate);
	statement_end();
}

/* The same for one task. */
void
row_fail(const TaskTable *table, const RowRefusal *refusal, double *keep)
{
	TaskGroup group = {.role = refusal->row.role, .role_id = refusal->role_id};
	TaskPlace place = {refusal->dt, refusal->row.id};
	Failure why = {"ERROR", refusal->error, NULL, refusal->hint, refusal->sqlstate};

	rows_fail(table, &group, &place, 1, &why, keep);
}

/*
 * Record in the row of a waiting task that repeats why it cannot be started, and plan it for
 * another time.  If it "waits" to run for the time that it was planned for, that stays in the row.
 */
void
row_refuse(const TaskTable *table, const RowRefusal *refusal, const RowNext *next, bool waits)
{
	TaskPlace place = {refusal->dt, refusal->row.id};
	Failure why = {"ERROR", refusal->error, NULL, refusal->hint, refusal->sqlstate};
	StatementArgs args;

	statement_begin(&args);
	arg_waiting_rows(&args, refusal->row.role, refusal->role_id, &place, 1);
	arg_failure(&args, &why, roles_bound(refusal->row.role, refusal->role_id));
	arg_timestamp(&args, "next", next->dt);
	arg_bool(&args, "waits", waits);
	if (next->has_anchor)
		arg_timestamp(&args, "anchor", next->anchor);
	else
		arg_null(&args, "anchor", TIMESTAMPTZOID);
	statement_execute(&refuse_row, table, &args);
	statement_end();
}
