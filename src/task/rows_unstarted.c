/*
 * rows_unstarted.c
 *		Statements of the scheduler on waiting rows that it does not start: they have expired,
 *		their role may not run them, they must be bound to a role first, or they have waited for
 *		the server to start.
 *
 * None of these waits for a row that somebody has locked, but the last one.
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

/* The shortest "keep" of the rows of the last result (s); negative: none has one. */
static double
shortest_keep(uint64 count, int column)
{
	double shortest = -1;
	uint64 i;

	for (i = 0; i < count; i++)
	{
		double keep = statement_float8(i, column);

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

/* Set to GONE those candidates that meet a condition on the columns of "c". */
#define GIVE_UP(condition) \
	"WITH c AS MATERIALIZED (" \
	"SELECT n.oid, n.tid" \
	"  FROM ROWS FROM (unnest($ids), unnest($dts), unnest($actives), unnest($missed))" \
	"       AS c (id, dt, active, missed)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT t.tableoid AS oid, t.ctid AS tid" \
	"         FROM {rows} AS t" \
	"        WHERE t.id = c.id AND t.dt = c.dt AND t.state = $state AND t.waits IS NULL" \
	"          AND " condition " IS TRUE" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n" \
	") UPDATE {rows} AS t" \
	"    SET state = 'GONE', stop = clock_timestamp(), error = $error, sqlstate = $sqlstate," \
	"        response = " FAILURE_RESPONSE \
	"   FROM c" \
	"  WHERE " IS_LOCKED_ROW \
	" RETURNING " UNSTARTED ", " KEEP ", " NOTIFY_END("t.state")

static const Statement expire_rows = {.sql = GIVE_UP(EXPIRED("c.active", "$now"))};
static const Statement miss_rows = {.sql = GIVE_UP(MISSED("c.missed", "$serving"))};

/* clang-format on */

/* Add the candidates: parallel arrays, one for each column. */
static void
arg_unstarted(StatementArgs *args, const Candidate *candidates, int count)
{
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	Datum *dts = arg_array(args, "dts", TIMESTAMPTZOID, count);
	Datum *actives = arg_array(args, "actives", FLOAT8OID, count);
	Datum *words = arg_array(args, "missed", TEXTOID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(candidates[i].place.id);
		dts[i] = TimestampTzGetDatum(candidates[i].place.dt);
		actives[i] = Float8GetDatum(candidates[i].active / 1000.0);
		words[i] = CStringGetTextDatum(settings_missed_word(candidates[i].missed));
	}
}

/*
 * Set those of these candidates to GONE that have expired; or, if "missed", the runs of repeating
 * tasks that were missed before this server ran tasks, and are not to be made up for.  Returns the
 * rows that were written, and sets *keep to their shortest "keep".
 */
int
rows_expire(const TaskTable *table, bool missed, TimestampTz now, const Candidate *candidates,
			int count, RowKey **rows, double *keep)
{
	static const Failure too_late = {"ERROR", "the task was not started in time", NULL, NULL,
									 TASK_ERROR_EXPIRED};
	static const Failure was_missed = {
		"ERROR", "this run was missed before the server was started or promoted", NULL, NULL,
		TASK_ERROR_MISSED};
	const Failure *why = missed ? &was_missed : &too_late;
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int i;

	statement_begin(&args);
	arg_unstarted(&args, candidates, count);
	arg_timestamp(&args, "now", now);
	arg_timestamp(&args, "serving", shared_serving_since());
	arg_text(&args, "state", "PLAN");
	arg_failure(&args, why, InvalidOid);
	count = (int) statement_execute(missed ? &miss_rows : &expire_rows, table, &args);
	*rows = MemoryContextAlloc(caller, Max(count, 1) * sizeof(RowKey));
	for (i = 0; i < count; i++)
		(*rows)[i] = (RowKey){statement_int64(i, 1), statement_text(caller, i, 2)};
	*keep = shortest_keep(count, UNSTARTED_COLUMNS + 1);
	note_unstarted(count, EVENT_GONE, why->error, why->sqlstate);
	statement_end();
	return count;
}

/* clang-format off */

/* Select and lock those of these rows of a role that still wait and that nobody has locked. */
#define WAITING_ROWS \
	"SELECT n.*" \
	"  FROM ROWS FROM (unnest($ids), unnest($dts)) AS c (id, dt) CROSS JOIN LATERAL (" \
	"       SELECT t.tableoid AS oid, t.ctid AS tid" \
	"         FROM {rows} AS t" \
	"        WHERE t.id = c.id AND t.dt = c.dt AND t.role = $role::name AND t.role_id = $role_id" \
	"          AND t.state = $state AND t.waits IS NULL" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"

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

/* Waiting rows whose "role" is not the current name of their role, or that are not bound. */
static const Statement bind_rows = {.sql =
	"WITH c AS MATERIALIZED (" WAITING_ROWS ")"
	" UPDATE {rows} AS t"
	"    SET role = $new_role::name, role_id = $new_role_id"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW};

/* clang-format on */

/* Add what WAITING_ROWS needs: rows of a role, as their columns name it. */
static void
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
	*keep = shortest_keep(failed, UNSTARTED_COLUMNS + 1);
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

/*
 * Bind waiting tasks of a group to a role, and set its current name.  Those that somebody has
 * locked are left.
 */
void
rows_bind(const TaskTable *table, const TaskGroup *group, const TaskPlace *places, int count,
		  const char *role, int64 role_id)
{
	StatementArgs args;

	statement_begin(&args);
	arg_waiting_rows(&args, group->role, group->role_id, places, count);
	arg_text(&args, "new_role", role);
	arg_int64(&args, "new_role_id", role_id);
	(void) statement_execute(&bind_rows, table, &args);
	statement_end();
}

/* clang-format off */

/*
 * Rows that wait for a start of the server after the one under which they were planned: by
 * "anchor", which identifies a start, and is not compared with any clock.  Of the index of waiting
 * rows all entries are read, of the table only these rows.
 */
#define WAITS_FOR_START \
	"t.waits IS NULL AND t.dt = 'infinity' AND t.anchor IS DISTINCT FROM $started" \
	" AND lower(btrim(t.cron, E' \\t\\n\\r') COLLATE \"C\") = '@reboot'"

static const Statement find_reboot = {.sql =
	"SELECT t.dt, t.id FROM {rows} AS t WHERE t.state = 'PLAN' AND " WAITS_FOR_START
	" LIMIT $limit"};

static const Statement plan_reboot = {.sql =
	"UPDATE {rows} AS t"
	"   SET dt = $now, anchor = $started"
	"  FROM unnest($ids) AS a (id)"
	" WHERE t.id = a.id AND t.state = $state AND " WAITS_FOR_START};

/* clang-format on */

/* Find up to "limit" rows that wait for a start of the server after theirs. */
int
rows_reboot(const TaskTable *table, TimestampTz started, int limit, TaskPlace **places)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;

	statement_begin(&args);
	arg_timestamp(&args, "started", started);
	arg_int64(&args, "limit", limit);
	count = rows_returned_places(caller, statement_execute(&find_reboot, table, &args), places);
	statement_end();
	return count;
}

/*
 * Plan those of these rows for "now" that still wait for it.  Waits for locked ones.  Returns the
 * number that was written.
 */
int
rows_plan_reboot(const TaskTable *table, const TaskPlace *places, int count, TimestampTz now,
				 TimestampTz started)
{
	StatementArgs args;
	Datum *ids;
	int i;

	statement_begin(&args);
	ids = arg_array(&args, "ids", INT8OID, count);
	for (i = 0; i < count; i++)
		ids[i] = Int64GetDatum(places[i].id);
	arg_text(&args, "state", "PLAN");
	arg_timestamp(&args, "now", now);
	arg_timestamp(&args, "started", started);
	count = (int) statement_execute(&plan_reboot, table, &args);
	statement_end();
	return count;
}
