/*
 * rows_claim.c
 *		The claim: waiting rows are read, and become runs.
 *
 * Rows of a plain table are claimed by direct.c, whose may_claim says the same as CLAIM here.
 */
#include "postgres.h"

#include "shared/shared.h"
#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* Read the positions that the last statement returned; allocated in the context "where". */
int
rows_returned_places(MemoryContext where, uint64 count, TaskPlace **places)
{
	uint64 i;

	*places = MemoryContextAlloc(where, Max(count, 1) * sizeof(TaskPlace));
	for (i = 0; i < count; i++)
	{
		(*places)[i].dt = statement_time(i, 1);
		(*places)[i].id = statement_int64(i, 2);
	}
	return (int) count;
}

/* clang-format off */
static const Statement read_groups = {.sql =
	"SELECT n.dt, n.id, a.number::int4"
	"  FROM ROWS FROM (unnest($queues), unnest($maxes), unnest($priorities), unnest($roles),"
	"                  unnest($role_ids), unnest($dts), unnest($ids)) WITH ORDINALITY"
	"       AS a (queue, max, priority, role, role_id, dt, id, number)"
	" CROSS JOIN LATERAL ("
	"       SELECT t.dt, t.id"
	"         FROM {rows} AS t"
	"        WHERE " WAITING
	"          AND " G_QUEUE " = a.queue AND " G_MAX " = a.max AND t.priority = a.priority"
	"          AND t.role = a.role::name AND t.role_id = a.role_id"
	"          AND (t.dt, t.id) > (a.dt, a.id)"
	"        ORDER BY t.dt, t.id"
	"        LIMIT $limit) AS n"};
/* clang-format on */

/* Add the groups and read positions: parallel arrays, one for each column. */
static void
arg_peeks(StatementArgs *args, const RowsPeek *peeks, int count)
{
	Datum *queues = arg_array(args, "queues", TEXTOID, count);
	Datum *maxes = arg_array(args, "maxes", INT4OID, count);
	Datum *priorities = arg_array(args, "priorities", INT4OID, count);
	Datum *roles = arg_array(args, "roles", TEXTOID, count);
	Datum *role_ids = arg_array(args, "role_ids", INT8OID, count);
	Datum *dts = arg_array(args, "dts", TIMESTAMPTZOID, count);
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = peeks[i].group;

		queues[i] = CStringGetTextDatum(group->queue);
		maxes[i] = Int32GetDatum(group->max);
		priorities[i] = Int32GetDatum(group->priority);
		roles[i] = CStringGetTextDatum(group->role);
		role_ids[i] = Int64GetDatum(group->role_id);
		dts[i] = TimestampTzGetDatum(peeks[i].after.dt);
		ids[i] = Int64GetDatum(peeks[i].after.id);
	}
}

/*
 * Read the next waiting rows of groups after a position in each, in order, due or not: up to
 * "limit" of each group.
 */
void
rows_peek_groups(const TaskTable *table, RowsPeek *peeks, int count, int limit)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	TaskPlace *places;
	uint64 nrows;
	uint64 i;

	statement_begin(&args);
	arg_peeks(&args, peeks, count);
	arg_int64(&args, "limit", limit);
	nrows = statement_execute(&read_groups, table, &args);
	(void) rows_returned_places(caller, nrows, &places);
	for (i = 0; i < (uint64) count; i++)
		peeks[i].count = 0;
	for (i = 0; i < nrows; i++)
	{
		RowsPeek *peek = &peeks[statement_int32(i, 3) - 1];

		/* the rows of each group are together, in order */
		if (peek->count++ == 0)
			peek->places = &places[i];
		Assert(peek->places + peek->count == &places[i + 1]);
	}
	statement_end();
}

/* clang-format off */

/*
 * A row that has moved to another group meanwhile, or that somebody has locked, is not claimed.
 * The state is an argument, so that the planner does not use the index on waiting rows to find an
 * id.
 */
#define CLAIM(claimable) \
	"WITH c AS MATERIALIZED (" \
	"SELECT n.id, n.oid, n.tid, c.pid, c.lease" \
	"  FROM ROWS FROM (unnest($ids), unnest($dts), unnest($queues), unnest($maxes)," \
	"                  unnest($priorities), unnest($roles), unnest($role_ids), unnest($pids)," \
	"                  unnest($actives), unnest($missed), unnest($isolated)," \
	"                  unnest($first_runs), unnest($leases))" \
	"       AS c (id, dt, queue, max, priority, role, role_id, pid, active, missed, isolated," \
	"             first_run, lease)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT t.id, t.tableoid AS oid, t.ctid AS tid" \
	"         FROM {rows} AS t" \
	"        WHERE t.id = c.id AND t.state = $state AND t.waits IS NULL AND t.dt = c.dt AND t.dt <= $now" \
	"          AND t.queue = c.queue AND " G_MAX " = c.max AND t.priority = c.priority" \
	"          AND t.role = c.role::name AND t.role_id = c.role_id" \
	"          AND (coalesce(t.crashed, 0) = 0 OR c.isolated)" \
	"          AND (coalesce(t.failed, 0) = 0 OR NOT c.first_run)" \
	"          AND " EXPIRED("c.active", "$now") " IS NOT TRUE" \
	"          AND " MISSED("c.missed", "$serving") " IS NOT TRUE" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n" \
	") UPDATE {rows} AS t" \
	"    SET state = 'WORK', attempt = least(t.attempt, 2147483646) + 1, start = $claimed, stop = NULL, pid = c.pid," \
	"        lease = nullif(c.lease, -1)" \
	"   FROM " claimable \
	"  WHERE " IS_LOCKED_ROW \
	" RETURNING t.id, t.attempt," \
	"           " TIMEOUT_OF("t") "," \
	"           substr(t.format, 1, 8)," \
	"           CASE WHEN octet_length(t.request) + coalesce(pg_column_size(t.input), 0)" \
	"                     + coalesce(pg_column_size(t.meta), 0) <= " CppAsString2(SHARED_REQUEST) \
	"                THEN t.request END, t.role::text, t.role_id," \
	"           " PLANNED ", " KEEP "," \
	"           CASE WHEN pg_column_size(t.input) <= " CppAsString2(SHARED_REQUEST) \
	"                THEN t.input END," \
	"           CASE WHEN octet_length(t.flow) <= " CppAsString2(TASK_NAME_MAX) " THEN t.flow END," \
	"           CASE WHEN pg_column_size(t.meta) <= " CppAsString2(SHARED_REQUEST) \
	"                THEN t.meta END," \
	"           coalesce(t.lost, 0)"

static const Statement claim_rows = {.sql = CLAIM("c")};

/*
 * Of rows with equal ids claim only one: a run is identified by id, attempt and time of the claim.
 */
static const Statement claim_partitioned_rows = {.sql =
	CLAIM("(SELECT DISTINCT ON (c.id) c.* FROM c) AS c")};

/* clang-format on */

/* Add the candidates: parallel arrays, one for each column. */
static void
arg_candidates(StatementArgs *args, const Candidate *candidates, int count)
{
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	Datum *dts = arg_array(args, "dts", TIMESTAMPTZOID, count);
	Datum *queues = arg_array(args, "queues", TEXTOID, count);
	Datum *maxes = arg_array(args, "maxes", INT4OID, count);
	Datum *priorities = arg_array(args, "priorities", INT4OID, count);
	Datum *roles = arg_array(args, "roles", TEXTOID, count);
	Datum *role_ids = arg_array(args, "role_ids", INT8OID, count);
	Datum *pids = arg_array(args, "pids", INT4OID, count);
	Datum *actives = arg_array(args, "actives", FLOAT8OID, count);
	Datum *missed = arg_array(args, "missed", TEXTOID, count);
	Datum *isolated = arg_array(args, "isolated", BOOLOID, count);
	Datum *first_runs = arg_array(args, "first_runs", BOOLOID, count);
	Datum *leases = arg_array(args, "leases", INT4OID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = candidates[i].group;

		ids[i] = Int64GetDatum(candidates[i].place.id);
		dts[i] = TimestampTzGetDatum(candidates[i].place.dt);
		queues[i] = CStringGetTextDatum(group->queue);
		maxes[i] = Int32GetDatum(group->max);
		priorities[i] = Int32GetDatum(group->priority);
		roles[i] = CStringGetTextDatum(group->role);
		role_ids[i] = Int64GetDatum(group->role_id);
		pids[i] = Int32GetDatum(candidates[i].pid);
		actives[i] = Float8GetDatum(candidates[i].active / 1000.0);
		missed[i] = CStringGetTextDatum(settings_missed_word(candidates[i].missed));
		isolated[i] = BoolGetDatum(candidates[i].isolated);
		first_runs[i] = BoolGetDatum(candidates[i].first_run);
		leases[i] = Int32GetDatum(candidates[i].lease);
	}
}

/* Read the claims that the last statement returned; what they have is allocated in "where". */
static void
returned_claims(MemoryContext where, uint64 count, TimestampTz claimed, Claim *claims)
{
	uint64 i;

	for (i = 0; i < count; i++)
	{
		Claim *claim = &claims[i];

		claim->run.id = statement_int64(i, 1);
		claim->run.attempt = statement_int32(i, 2);
		claim->run.claimed = claimed;
		claim->timeout = statement_is_null(i, 3) ? -1 : statement_int64(i, 3);
		claim->format = statement_text_or_null(where, i, 4);
		claim->request = statement_text_or_null(where, i, 5);
		claim->role = statement_text(where, i, 6);
		claim->role_id = statement_int64(i, 7);
		claim->planned = statement_time(i, 8);
		claim->keep = statement_float8(i, 9);
		claim->input = statement_json_or_null(where, i, 10);
		claim->flow = statement_text_or_null(where, i, 11);
		claim->meta = statement_json_or_null(where, i, 12);
		claim->lost = statement_int32(i, 13);
	}
}

/*
 * Claim by the statement.  The claims are put behind those that there are: there may be more of
 * them than candidates, in a table in which ids are not unique.
 */
static int
claim_by_statement(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
				   TimestampTz claimed, Claim **claims, int nclaims)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	uint64 found;

	statement_begin(&args);
	arg_candidates(&args, candidates, count);
	arg_text(&args, "state", "PLAN");
	arg_timestamp(&args, "now", now);
	arg_timestamp(&args, "claimed", claimed);
	arg_timestamp(&args, "serving", shared_serving_since());
	found =
		statement_execute(table->partitioned ? &claim_partitioned_rows : &claim_rows, table, &args);
	*claims = repalloc(*claims, (nclaims + Max(found, 1)) * sizeof(Claim));
	returned_claims(caller, found, claimed, *claims + nclaims);
	statement_end();
	return (int) found;
}

/*
 * Claim those candidates that still wait at the position where they were read: once the caller
 * commits, they are in state WORK, with a new attempt.  "now" decides what is due.  "claimed" is
 * the time of the claim, which identifies these runs together with id and attempt.  The claims are
 * returned in no particular order.
 */
int
rows_claim(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
		   TimestampTz claimed, Claim **claims)
{
	Candidate *left = palloc(count * sizeof(Candidate));
	int nleft;
	int found;

	Assert(now <= claimed); /* PLANNED_AGAIN compares with the time of the claim */
	*claims = palloc(count * sizeof(Claim));
	found = direct_claim(table, candidates, count, now, claimed, *claims, left, &nleft);
	if (nleft > 0)
		found += claim_by_statement(table, left, nleft, now, claimed, claims, found);
	pfree(left);
	return found;
}
