/*
 * queue.c
 *		Every SQL statement on task rows: one function, one statement.
 *
 * This room knows neither processes nor latches, and it formats nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "queue.h"
#include "shared.h"
#include "statement.h"

typedef enum QueueStatement
{
	STATEMENT_LOOK,
	STATEMENT_PEEK,
	STATEMENT_CLAIM,
	STATEMENT_RELEASE,
	STATEMENT_REPLAN,
	STATEMENT_END,
	STATEMENT_WORK,
	STATEMENT_APART,
	STATEMENT_REFUSE,
	STATEMENT_EXPIRE,
	STATEMENT_EXPIRE_THESE,
	STATEMENT_EXPIRY,
	STATEMENT_REQUEST,
	STATEMENT_FINISH,
	STATEMENT_DELETE,
	STATEMENT_REPEAT,
	STATEMENT_RETRY,
	STATEMENT_RETRY_UNLOCKED,
	STATEMENT_INSERT_NEXT,
	STATEMENTS
} QueueStatement;

/* The columns of the index of waiting rows: these expressions match it. */
#define G_QUEUE "t.queue COLLATE \"C\""
#define G_MAX "coalesce(t.max, 2147483647)"
#define G_ROLE "t.role::text"
#define G_ALL G_QUEUE ", " G_MAX ", t.priority, " G_ROLE

/* What is planned is planned for this moment, however often it was tried. */
#define PLANNED "coalesce(t.planned, t.dt)"

/* When a task expires, as a timestamp of UTC: so the expression is immutable, and has an index. */
#define EXPIRY "(" PLANNED " AT TIME ZONE 'UTC') + t.active"
#define EXPIRES "t.state = 'PLAN' AND t.active < interval '100 years'"

/* Has a task expired, that has a default in seconds, 0: none? */
#define ACTIVE(seconds) "coalesce(t.active, nullif(" seconds ", 0) * interval '1 s')"
#define EXPIRED(seconds, now)                                                \
	"(" ACTIVE(seconds) " < interval '100 years'"                            \
						" AND (" PLANNED                                     \
						" AT TIME ZONE 'UTC') + " ACTIVE(seconds) " < (" now \
																  " AT TIME ZONE 'UTC'))"

#define SET_GONE                                                                                \
	"SET state = 'GONE', stop = clock_timestamp(), error = 'the task was not started in time'," \
	"    sqlstate = '57014', response = 'ERROR:  the task was not started in time'"

/* When a row was claimed; an owner may have removed that. */
#define CLAIMED(alias) "coalesce(" alias ".start, '-infinity')"

/* Of the runs in three arrays, those that still are, and that nobody locks. */
#define RUNS_NOT_LOCKED                                                                 \
	"SELECT r.id"                                                                       \
	"  FROM ROWS FROM (unnest($1), unnest($2), unnest($3)) AS a (id, attempt, claimed)" \
	"  JOIN %1$s AS r ON r.id = a.id AND r.attempt = a.attempt AND " CLAIMED(           \
		"r") " = a.claimed"                                                             \
			 "   AND r.state = 'WORK'"                                                  \
			 "   FOR NO KEY UPDATE OF r SKIP LOCKED"

/* What decides whether a run is tried again. */
#define RETRY                                                                                                                \
	"SELECT coalesce(t.failed, 0), coalesce(t.crashed, 0), coalesce(t.retry, -1), coalesce(t.backoff, -1)::float8,"          \
	"       (CASE WHEN t.delay IS NULL THEN -1 ELSE least(extract(epoch FROM t.delay), 3600) * 1000000 END)::int8, " PLANNED \
	","                                                                                                                      \
	"       ((" PLANNED " AT TIME ZONE 'UTC')"                                                                               \
	"        + CASE WHEN t.active < interval '100 years' THEN t.active END) AT TIME ZONE 'UTC',"                             \
	"       t.repeat IS NOT NULL, t.role::text"                                                                              \
	"  FROM %1$s AS t"                                                                                                       \
	" WHERE t.id = $1 AND t.attempt = $2 AND " CLAIMED("t") " = $3 AND t.state = 'WORK'"                                     \
															"   FOR NO KEY UPDATE OF t"

/* clang-format off */
static Statement statements[STATEMENTS] = {
	/* from group to group, one descent of the index each */
	[STATEMENT_LOOK] = {.sql =
		"WITH RECURSIVE g (queue, max, priority, role, dt, id) AS ("
		"(SELECT " G_ALL ", t.dt, t.id"
		"   FROM %1$s AS t"
		"  WHERE t.state = 'PLAN'"
		"  ORDER BY " G_ALL ", t.dt, t.id"
		"  LIMIT 1)"
		" UNION ALL"
		" SELECT n.*"
		"   FROM g CROSS JOIN LATERAL ("
		"        SELECT " G_ALL ", t.dt, t.id"
		"          FROM %1$s AS t"
		"         WHERE t.state = 'PLAN'"
		"           AND (" G_ALL ") > (g.queue, g.max, g.priority, g.role)"
		"         ORDER BY " G_ALL ", t.dt, t.id"
		"         LIMIT 1) AS n"
		") SELECT queue, max, priority, role, dt, id FROM g"},

	[STATEMENT_PEEK] = {.nargs = 7, .types = {TEXTOID, INT4OID, INT4OID, TEXTOID, TIMESTAMPTZOID, INT8OID, INT8OID}, .sql =
		"SELECT t.dt, t.id"
		"  FROM %1$s AS t"
		" WHERE t.state = 'PLAN'"
		"   AND " G_QUEUE " = $1 AND " G_MAX " = $2 AND t.priority = $3 AND " G_ROLE " = $4"
		"   AND (t.dt, t.id) > ($5, $6)"
		" ORDER BY t.dt, t.id"
		" LIMIT $7"},

	/*
	 * A row that moved to another group meanwhile, or that somebody locks, is
	 * not taken.  The state is an argument lest the planner take the index of
	 * waiting rows, to look for an id in it.
	 */
	[STATEMENT_CLAIM] = {.nargs = 10, .types = {INT8ARRAYOID, TEXTARRAYOID, INT4ARRAYOID,
		 INT4ARRAYOID, TEXTARRAYOID, INT4ARRAYOID, TIMESTAMPTZOID, TEXTOID, FLOAT8ARRAYOID,
		 BOOLARRAYOID}, .sql =
		"WITH c AS MATERIALIZED ("
		"SELECT t.id, c.pid"
		"  FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6),"
		"                  unnest($9), unnest($10))"
		"       AS c (id, queue, max, priority, role, pid, active, apart)"
		"  JOIN %1$s AS t ON t.id = c.id AND t.state = $8 AND t.dt <= $7"
		"   AND t.queue = c.queue AND " G_MAX " = c.max AND t.priority = c.priority"
		"   AND t.role = c.role::name AND (coalesce(t.crashed, 0) = 0 OR c.apart)"
		"   AND " EXPIRED("c.active", "$7") " IS NOT TRUE"
		"   FOR NO KEY UPDATE OF t SKIP LOCKED"
		") UPDATE %1$s AS t"
		"    SET state = 'WORK', attempt = t.attempt + 1, start = $7, stop = NULL, pid = c.pid"
		"   FROM c"
		"  WHERE t.id = c.id"
		" RETURNING t.id, t.attempt,"
		"           CASE WHEN t.timeout < interval '100 years'"
		"                THEN (extract(epoch FROM t.timeout) * 1000000)::int8 END,"
		"           t.repeat IS NOT NULL, t.delete, t.format,"
		"           CASE WHEN octet_length(t.request) <= " CppAsString2(SHARED_REQUEST)
		"                THEN t.request END"},

	/* the scheduler waits for nobody's row locks */
	[STATEMENT_RELEASE] = {.nargs = 3, .types = {INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID}, .sql =
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
		" UPDATE %1$s AS t"
		"    SET state = 'PLAN', attempt = t.attempt - 1, start = NULL, pid = NULL"
		"   FROM c"
		"  WHERE t.id = c.id"
		" RETURNING t.id"},

	[STATEMENT_REPLAN] = {.nargs = 5, .types = {INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID,
		 TEXTOID, TEXTOID}, .sql =
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
		" UPDATE %1$s AS t"
		"    SET state = 'PLAN', stop = clock_timestamp(), error = $4, sqlstate = $5,"
		"        response = 'FATAL:  ' || $4, notice = NULL"
		"   FROM c"
		"  WHERE t.id = c.id"
		" RETURNING t.id"},

	/* how a run ends that is not DONE */
	[STATEMENT_END] = {.nargs = 14, .types = {INT8OID, INT4OID, TIMESTAMPTZOID, TEXTOID,
		 TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, INT4OID,
		 TIMESTAMPTZOID, TEXTOID}, .sql =
		"UPDATE %1$s AS t"
		"   SET state = $4, start = $5, stop = $6, response = $7, error = $8, sqlstate = $9,"
		"       notice = $10, failed = coalesce(t.failed, 0) + $11, crashed = coalesce(t.crashed, 0) + $12,"
		"       planned = CASE WHEN $13 IS NULL THEN t.planned ELSE " PLANNED " END,"
		"       dt = coalesce($13, t.dt)"
		" WHERE t.id = $1 AND t.attempt = $2 AND " CLAIMED("t") " = $3 AND t.state = $14"},

	[STATEMENT_WORK] = {.sql =
		"SELECT t.id, t.attempt, " CLAIMED("t") ", t.queue"
		"  FROM %1$s AS t"
		" WHERE t.state = 'WORK'"},

	/* the condition is that of one index alone */
	[STATEMENT_APART] = {.nargs = 1, .types = {TEXTOID}, .sql =
		"SELECT t.id"
		"  FROM %1$s AS t"
		" WHERE (t.state = 'WORK' OR (t.state = 'PLAN' AND t.crashed > 0))"
		"   AND t.state = $1 AND t.crashed > 0"},

	[STATEMENT_REFUSE] = {.nargs = 4, .types = {INT8OID, TEXTOID, TEXTOID, TEXTOID}, .sql =
		"UPDATE %1$s AS t"
		"   SET state = 'FAIL', stop = clock_timestamp(), error = $2, sqlstate = $3, response = $4"
		" WHERE t.id = (SELECT r.id"
		"                 FROM %1$s AS r"
		"                WHERE r.id = $1 AND r.state = 'PLAN'"
		"                  FOR NO KEY UPDATE SKIP LOCKED)"},

	[STATEMENT_EXPIRE] = {.nargs = 2, .types = {TIMESTAMPTZOID, INT8OID}, .sql =
		"WITH c AS MATERIALIZED ("
		"SELECT t.id"
		"  FROM %1$s AS t"
		" WHERE " EXPIRES " AND " EXPIRY " < ($1 AT TIME ZONE 'UTC')"
		" ORDER BY " EXPIRY
		" LIMIT $2"
		"   FOR NO KEY UPDATE OF t SKIP LOCKED"
		") UPDATE %1$s AS t " SET_GONE
		"   FROM c"
		"  WHERE t.id = c.id"
		" RETURNING t.id"},

	[STATEMENT_EXPIRE_THESE] = {.nargs = 4, .types = {TIMESTAMPTZOID, INT8ARRAYOID, FLOAT8ARRAYOID,
		 TEXTOID}, .sql =
		"WITH c AS MATERIALIZED ("
		"SELECT t.id"
		"  FROM ROWS FROM (unnest($2), unnest($3)) AS c (id, active)"
		"  JOIN %1$s AS t ON t.id = c.id AND t.state = $4 AND " EXPIRED("c.active", "$1") " IS TRUE"
		"   FOR NO KEY UPDATE OF t SKIP LOCKED"
		") UPDATE %1$s AS t " SET_GONE
		"   FROM c"
		"  WHERE t.id = c.id"
		" RETURNING t.id"},

	[STATEMENT_EXPIRY] = {.sql =
		"SELECT (" EXPIRY ") AT TIME ZONE 'UTC'"
		"  FROM %1$s AS t"
		" WHERE " EXPIRES
		" ORDER BY " EXPIRY
		" LIMIT 1"},

	[STATEMENT_REQUEST] = {.nargs = 3, .types = {INT8OID, INT4OID, TIMESTAMPTZOID}, .sql =
		"SELECT t.request"
		"  FROM %1$s AS t"
		" WHERE t.id = $1 AND t.attempt = $2 AND t.start = $3 AND t.state = 'WORK'"},

	[STATEMENT_FINISH] = {.nargs = 7, .types = {INT8OID, INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		 TIMESTAMPTZOID, TEXTOID, TEXTOID}, .sql =
		"UPDATE %1$s AS t"
		"   SET state = 'DONE', start = $4, stop = $5, response = $6, notice = $7, error = NULL,"
		"       sqlstate = NULL"
		" WHERE t.id = $1 AND t.attempt = $2 AND t.start = $3 AND t.state = 'WORK'"},

	[STATEMENT_DELETE] = {.nargs = 4, .types = {INT8OID, INT4OID, TIMESTAMPTZOID, TEXTOID}, .sql =
		"DELETE FROM %1$s AS t"
		" WHERE t.id = $1 AND t.attempt = $2 AND t.start = $3 AND t.state = $4"},

	[STATEMENT_REPEAT] = {.nargs = 1, .types = {INT8OID}, .sql =
		"SELECT " PLANNED ", t.repeat, t.drift, t.timezone FROM %1$s AS t WHERE t.id = $1"},

	[STATEMENT_RETRY] = {.nargs = 3, .types = {INT8OID, INT4OID, TIMESTAMPTZOID}, .sql = RETRY},

	[STATEMENT_RETRY_UNLOCKED] = {.nargs = 3, .types = {INT8OID, INT4OID, TIMESTAMPTZOID},
		 .sql = RETRY " SKIP LOCKED"},

	[STATEMENT_INSERT_NEXT] = {.nargs = 2, .types = {INT8OID, TIMESTAMPTZOID}, .sql =
		"INSERT INTO %1$s (parent, dt, %2$s)"
		" SELECT t.id, $2, %2$s FROM %1$s AS t WHERE t.id = $1"},
};
/* clang-format on */

/* Free the plans: the table is another, or has changed. */
void
queue_forget(void)
{
	int i;

	for (i = 0; i < STATEMENTS; i++)
		statement_forget(&statements[i]);
}

static uint64
execute(QueueStatement which, const TaskTable *table, Datum *values, const char *nulls)
{
	return statement_execute(&statements[which], table, values, nulls);
}

/* Three parallel arrays: the ids, attempts and claims of some runs. */
static void
run_arrays(const TaskRun *runs, int count, Datum *values)
{
	Datum *ids = palloc(count * sizeof(Datum));
	Datum *attempts = palloc(count * sizeof(Datum));
	Datum *claimed = palloc(count * sizeof(Datum));
	int i;

	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(runs[i].id);
		attempts[i] = Int32GetDatum(runs[i].attempt);
		claimed[i] = TimestampTzGetDatum(runs[i].claimed);
	}
	values[0] = statement_array(ids, count, INT8OID);
	values[1] = statement_array(attempts, count, INT4OID);
	values[2] = statement_array(claimed, count, TIMESTAMPTZOID);
}

/* The arguments $1 to $3 of a statement on one run. */
static void
run_values(TaskRun run, Datum *values)
{
	values[0] = Int64GetDatum(run.id);
	values[1] = Int32GetDatum(run.attempt);
	values[2] = TimestampTzGetDatum(run.claimed);
}

/* All groups that have waiting rows, with the first row of each. */
int
queue_look(const TaskTable *table, QueueHead **heads)
{
	MemoryContext caller = CurrentMemoryContext;
	uint64 count;
	uint64 i;

	SPI_connect();
	count = execute(STATEMENT_LOOK, table, NULL, NULL);
	*heads = MemoryContextAllocHuge(caller, Max(count, 1) * sizeof(QueueHead));
	for (i = 0; i < count; i++)
	{
		QueueHead *head = &(*heads)[i];

		head->group.queue = statement_text(caller, i, 1);
		head->group.max = DatumGetInt32(statement_value(i, 2));
		head->group.priority = DatumGetInt32(statement_value(i, 3));
		head->group.role = statement_text(caller, i, 4);
		head->place.dt = DatumGetTimestampTz(statement_value(i, 5));
		head->place.id = DatumGetInt64(statement_value(i, 6));
	}
	SPI_finish();
	return (int) count;
}

/* The next waiting rows of a group behind a place, in order, whether due or not. */
int
queue_peek(const TaskTable *table, const TaskGroup *group, TaskPlace after, int limit,
		   TaskPlace **places)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[7];
	uint64 count;
	uint64 i;

	SPI_connect();
	values[0] = CStringGetTextDatum(group->queue);
	values[1] = Int32GetDatum(group->max);
	values[2] = Int32GetDatum(group->priority);
	values[3] = CStringGetTextDatum(group->role);
	values[4] = TimestampTzGetDatum(after.dt);
	values[5] = Int64GetDatum(after.id);
	values[6] = Int64GetDatum(limit);
	count = execute(STATEMENT_PEEK, table, values, NULL);
	*places = MemoryContextAlloc(caller, Max(count, 1) * sizeof(TaskPlace));
	for (i = 0; i < count; i++)
	{
		(*places)[i].dt = DatumGetTimestampTz(statement_value(i, 1));
		(*places)[i].id = DatumGetInt64(statement_value(i, 2));
	}
	SPI_finish();
	return (int) count;
}

static void
candidate_arrays(const QueueCandidate *candidates, int count, Datum *values)
{
	static const Oid types[] = {INT8OID, TEXTOID, INT4OID,	 INT4OID,
								TEXTOID, INT4OID, FLOAT8OID, BOOLOID};
	Datum *elements[lengthof(types)];
	int ntypes = lengthof(types);
	int i;

	for (i = 0; i < ntypes; i++)
		elements[i] = palloc(count * sizeof(Datum));
	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = candidates[i].group;

		elements[0][i] = Int64GetDatum(candidates[i].id);
		elements[1][i] = CStringGetTextDatum(group->queue);
		elements[2][i] = Int32GetDatum(group->max);
		elements[3][i] = Int32GetDatum(group->priority);
		elements[4][i] = CStringGetTextDatum(group->role);
		elements[5][i] = Int32GetDatum(candidates[i].pid);
		elements[6][i] = Float8GetDatum(candidates[i].active / 1000.0);
		elements[7][i] = BoolGetDatum(candidates[i].apart);
	}
	for (i = 0; i < ntypes; i++)
		values[i < 6 ? i : i + 2] = statement_array(elements[i], count, types[i]);
}

/*
 * Claim those of the candidates that still wait where they were seen: they
 * are WORK, and a new attempt, from the commit on.  In no particular order.
 */
int
queue_claim(const TaskTable *table, const QueueCandidate *candidates, int count, TimestampTz now,
			QueueClaim **claims)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[10];
	uint64 claimed;
	uint64 i;

	SPI_connect();
	candidate_arrays(candidates, count, values);
	values[6] = TimestampTzGetDatum(now);
	values[7] = CStringGetTextDatum("PLAN");
	claimed = execute(STATEMENT_CLAIM, table, values, NULL);
	*claims = MemoryContextAlloc(caller, Max(claimed, 1) * sizeof(QueueClaim));
	for (i = 0; i < claimed; i++)
	{
		QueueClaim *claim = &(*claims)[i];

		claim->run.id = DatumGetInt64(statement_value(i, 1));
		claim->run.attempt = DatumGetInt32(statement_value(i, 2));
		claim->run.claimed = now;
		claim->timeout = statement_is_null(i, 3) ? -1 : DatumGetInt64(statement_value(i, 3));
		claim->repeats = DatumGetBool(statement_value(i, 4));
		claim->deletes = DatumGetBool(statement_value(i, 5));
		claim->format = statement_text(caller, i, 6);
		claim->request = statement_text(caller, i, 7);
	}
	SPI_finish();
	return (int) claimed;
}

/* The ids that the last statement returned, in the context "where". */
static int
returned_ids(MemoryContext where, uint64 count, int64 **ids)
{
	uint64 i;

	*ids = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(int64));
	for (i = 0; i < count; i++)
		(*ids)[i] = DatumGetInt64(statement_value(i, 1));
	return (int) count;
}

/*
 * Undo the claim of runs that never began.  Returns the ids of those for which that
 * was done: others are these runs no more, or somebody locks them.
 */
int
queue_release(const TaskTable *table, const TaskRun *runs, int count, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[3];

	SPI_connect();
	run_arrays(runs, count, values);
	count = returned_ids(caller, execute(STATEMENT_RELEASE, table, values, NULL), ids);
	SPI_finish();
	return count;
}

/* Likewise, plan again for now what was running in a process that is gone, and say so. */
int
queue_replan(const TaskTable *table, const TaskRun *runs, int count, const TaskFailure *why,
			 int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[5];

	SPI_connect();
	run_arrays(runs, count, values);
	values[3] = CStringGetTextDatum(why->error);
	values[4] = CStringGetTextDatum(why->sqlstate);
	count = returned_ids(caller, execute(STATEMENT_REPLAN, table, values, NULL), ids);
	SPI_finish();
	return count;
}

static int
compare_work(const void *a, const void *b)
{
	int64 left = ((const QueueWork *) a)->run.id;
	int64 right = ((const QueueWork *) b)->run.id;

	return left < right ? -1 : left > right;
}

/* All rows that are WORK, in the order of their ids. */
int
queue_work(const TaskTable *table, QueueWork **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	uint64 count;
	uint64 i;

	SPI_connect();
	count = execute(STATEMENT_WORK, table, NULL, NULL);
	*rows = MemoryContextAllocHuge(caller, Max(count, 1) * sizeof(QueueWork));
	for (i = 0; i < count; i++)
	{
		QueueWork *row = &(*rows)[i];

		row->run.id = DatumGetInt64(statement_value(i, 1));
		row->run.attempt = DatumGetInt32(statement_value(i, 2));
		row->run.claimed = DatumGetTimestampTz(statement_value(i, 3));
		row->queue = statement_text(caller, i, 4);
	}
	SPI_finish();
	qsort(*rows, count, sizeof(QueueWork), compare_work);
	return (int) count;
}

/* Is this run among the rows that queue_work returned? */
bool
queue_works(const QueueWork *rows, int count, TaskRun run)
{
	QueueWork key = {.run = run};
	const QueueWork *row = bsearch(&key, rows, count, sizeof(QueueWork), compare_work);

	return row && task_same_run(row->run, run);
}

/* The tasks that wait and that the server may have crashed for: to be run apart. */
int
queue_apart(const TaskTable *table, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[1] = {CStringGetTextDatum("PLAN")};
	int count;

	SPI_connect();
	count = returned_ids(caller, execute(STATEMENT_APART, table, values, NULL), ids);
	SPI_finish();
	return count;
}

/* Up to "limit" tasks, those that expired first, are GONE. */
int
queue_expire(const TaskTable *table, TimestampTz now, int limit, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[2] = {TimestampTzGetDatum(now), Int64GetDatum(limit)};
	int count;

	SPI_connect();
	count = returned_ids(caller, execute(STATEMENT_EXPIRE, table, values, NULL), ids);
	SPI_finish();
	return count;
}

/* Of these candidates those that have expired are GONE. */
int
queue_expire_these(const TaskTable *table, TimestampTz now, const QueueCandidate *candidates,
				   int count, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum *elements[2] = {palloc(count * sizeof(Datum)), palloc(count * sizeof(Datum))};
	Datum values[4];
	int i;

	SPI_connect();
	for (i = 0; i < count; i++)
	{
		elements[0][i] = Int64GetDatum(candidates[i].id);
		elements[1][i] = Float8GetDatum(candidates[i].active / 1000.0);
	}
	values[0] = TimestampTzGetDatum(now);
	values[1] = statement_array(elements[0], count, INT8OID);
	values[2] = statement_array(elements[1], count, FLOAT8OID);
	values[3] = CStringGetTextDatum("PLAN");
	count = returned_ids(caller, execute(STATEMENT_EXPIRE_THESE, table, values, NULL), ids);
	SPI_finish();
	return count;
}

/* When the next of the waiting tasks expires; DT_NOEND when none does. */
TimestampTz
queue_expiry(const TaskTable *table)
{
	TimestampTz expiry = DT_NOEND;

	SPI_connect();
	if (execute(STATEMENT_EXPIRY, table, NULL, NULL) > 0)
		expiry = DatumGetTimestampTz(statement_value(0, 1));
	SPI_finish();
	return expiry;
}

/* Fail a waiting task that cannot be started.  False: it waits no more. */
bool
queue_refuse(const TaskTable *table, int64 id, const char *error, const char *sqlstate)
{
	Datum values[4];
	bool refused;

	SPI_connect();
	values[0] = Int64GetDatum(id);
	values[1] = CStringGetTextDatum(error);
	values[2] = CStringGetTextDatum(sqlstate);
	values[3] = CStringGetTextDatum(psprintf("ERROR:  %s", error));
	refused = execute(STATEMENT_REFUSE, table, values, NULL) > 0;
	SPI_finish();
	return refused;
}

/* The request of a run, or NULL when the row is no longer that run. */
char *
queue_request(const TaskTable *table, TaskRun run)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[3];
	char *request = NULL;

	SPI_connect();
	run_values(run, values);
	if (execute(STATEMENT_REQUEST, table, values, NULL) > 0)
		request = statement_text(caller, 0, 1);
	SPI_finish();
	return request;
}

/* A run is DONE.  False: the row is no longer that run. */
bool
queue_finish(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	Datum values[7] = {0};
	char nulls[7] = {' ', ' ', ' ', ' ', ' ', ' ', 'n'};
	bool finished;

	SPI_connect();
	run_values(run, values);
	values[3] = TimestampTzGetDatum(result->start);
	values[4] = TimestampTzGetDatum(result->stop);
	values[5] = CStringGetTextDatum(result->response);
	if (result->notice)
	{
		values[6] = CStringGetTextDatum(result->notice);
		nulls[6] = ' ';
	}
	finished = execute(STATEMENT_FINISH, table, values, nulls) > 0;
	SPI_finish();
	return finished;
}

/*
 * A run ended otherwise.  A task that was stopped stays what it is, and is told
 * how its run ended.  False: the row is no longer that run.
 */
bool
queue_end(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	static const char *const states[] = {
		[TASK_DONE] = "DONE", [TASK_FAIL] = "FAIL", [TASK_AGAIN] = "PLAN", [TASK_STOPPED] = "STOP"};
	Datum values[14] = {0};
	char nulls[14];
	bool ended;

	SPI_connect();
	memset(nulls, ' ', sizeof(nulls));
	run_values(run, values);
	values[3] = CStringGetTextDatum(states[result->outcome]);
	values[4] = TimestampTzGetDatum(result->start);
	values[5] = TimestampTzGetDatum(result->stop);
	values[6] = CStringGetTextDatum(result->response);
	values[7] = CStringGetTextDatum(result->error);
	values[8] = CStringGetTextDatum(result->sqlstate);
	if (result->notice)
		values[9] = CStringGetTextDatum(result->notice);
	else
		nulls[9] = 'n';
	values[10] = Int32GetDatum(result->failed ? 1 : 0);
	values[11] = Int32GetDatum(result->crashed ? 1 : 0);
	if (result->again != 0)
		values[12] = TimestampTzGetDatum(result->again);
	else
		nulls[12] = 'n';
	values[13] = CStringGetTextDatum(result->outcome == TASK_STOPPED ? "STOP" : "WORK");
	ended = execute(STATEMENT_END, table, values, nulls) > 0;
	SPI_finish();
	return ended;
}

/*
 * What decides whether a run is tried again; its row is locked.  False: it is
 * that run no more, or somebody locks it and "wait" is false.
 */
bool
queue_retry(const TaskTable *table, TaskRun run, bool wait, QueueRetry *retry)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[3];
	bool found;

	SPI_connect();
	run_values(run, values);
	found = execute(wait ? STATEMENT_RETRY : STATEMENT_RETRY_UNLOCKED, table, values, NULL) > 0;
	if (found)
	{
		retry->failed = DatumGetInt32(statement_value(0, 1));
		retry->crashed = DatumGetInt32(statement_value(0, 2));
		retry->retry = DatumGetInt32(statement_value(0, 3));
		retry->backoff = DatumGetFloat8(statement_value(0, 4));
		retry->delay = DatumGetInt64(statement_value(0, 5));
		retry->planned = DatumGetTimestampTz(statement_value(0, 6));
		retry->expires =
			statement_is_null(0, 7) ? DT_NOEND : DatumGetTimestampTz(statement_value(0, 7));
		retry->repeats = DatumGetBool(statement_value(0, 8));
		retry->role = statement_text(caller, 0, 9);
	}
	SPI_finish();
	return found;
}

/* Remove the row of a run that is in a state.  False: the row is no longer that run. */
bool
queue_delete(const TaskTable *table, TaskRun run, const char *state)
{
	Datum values[4];
	bool deleted;

	SPI_connect();
	run_values(run, values);
	values[3] = CStringGetTextDatum(state);
	deleted = execute(STATEMENT_DELETE, table, values, NULL) > 0;
	SPI_finish();
	return deleted;
}

/* How a task repeats.  False: it does not, or the row is gone. */
bool
queue_repeat(const TaskTable *table, int64 id, QueueRepeat *repeat)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[1] = {Int64GetDatum(id)};
	bool repeats;

	SPI_connect();
	repeats = execute(STATEMENT_REPEAT, table, values, NULL) > 0 && !statement_is_null(0, 2);
	if (repeats)
	{
		repeat->dt = DatumGetTimestampTz(statement_value(0, 1));
		repeat->repeat = MemoryContextAlloc(caller, sizeof(Interval));
		*repeat->repeat = *DatumGetIntervalP(statement_value(0, 2));
		repeat->drift = DatumGetBool(statement_value(0, 3));
		repeat->timezone = statement_text(caller, 0, 4);
	}
	SPI_finish();
	return repeats;
}

/* Plan the next run of a repeating task: a new row, made from the row "id". */
void
queue_insert_next(const TaskTable *table, int64 id, TimestampTz dt)
{
	Datum values[2] = {Int64GetDatum(id), TimestampTzGetDatum(dt)};

	SPI_connect();
	execute(STATEMENT_INSERT_NEXT, table, values, NULL);
	SPI_finish();
}
