/*
 * rows_sql.h
 *		The text of every statement on task rows, for rows.c only.
 */
#ifndef PG_TASK_ROWS_SQL_H
#define PG_TASK_ROWS_SQL_H

#include "postgres.h"

#include "catalog/pg_type.h"

#include "shared/shared.h"
#include "shared/task.h"
#include "task/statement.h"

typedef enum RowStatement
{
	STATEMENT_SCAN,
	STATEMENT_PEEK,
	STATEMENT_UNLOCKED,
	STATEMENT_CLAIM,
	STATEMENT_CLAIM_PARTITIONED,
	STATEMENT_RELEASE,
	STATEMENT_REPLAN,
	STATEMENT_END,
	STATEMENT_WORK,
	STATEMENT_RUNS,
	STATEMENT_ISOLATED,
	STATEMENT_REFUSE,
	STATEMENT_ROLE_GONE,
	STATEMENT_BIND,
	STATEMENT_EXPIRED,
	STATEMENT_EXPIRE,
	STATEMENT_EXPIRY,
	STATEMENT_REQUEST,
	STATEMENT_FINISH,
	STATEMENT_DELETE,
	STATEMENT_REPEAT,
	STATEMENT_RETRY,
	STATEMENT_RETRY_UNLOCKED,
	STATEMENT_INSERT_NEXT,
	STATEMENTS
} RowStatement;

/* The columns of the index on waiting rows.  The expressions must match those of the index. */
#define G_QUEUE "t.queue COLLATE \"C\""
#define G_MAX "coalesce(t.max, 2147483647)"
#define G_ROLE "t.role::text"
#define G_ALL G_QUEUE ", " G_MAX ", t.priority, " G_ROLE ", t.role_id"

/*
 * Excludes rows with a NULL in one of these columns: a table that its owner created may allow
 * them, but such rows have no position.  Written with IS NOT TRUE so that the planner does not use
 * the condition with the index, where it would displace a better condition.
 */
#define COMPLETE                                                                    \
	"(t.queue IS NULL OR t.priority IS NULL OR t.role IS NULL OR t.role_id IS NULL" \
	" OR t.dt IS NULL) IS NOT TRUE"

/*
 * The trigger bounds the length of these values, but a row may have bypassed the trigger.  A
 * longer value is not kept, and substr does not read all of it.
 */
#define SHORT_QUEUE(queue) \
	"CASE WHEN octet_length(" queue ") <= " CppAsString2(TASK_QUEUE_MAX) " THEN " queue " END"

/* The time that the task was first planned for: a retry changes dt, not this. */
#define PLANNED "coalesce(t.planned, t.dt)"

/*
 * When a task expires, as a timestamp in UTC: that makes the expression immutable, so it can be
 * indexed.
 */
#define EXPIRY "(" PLANNED " AT TIME ZONE 'UTC') + t.active"
#define EXPIRES "t.state = 'PLAN' AND t.active < interval '100 years'"

/* clang-format off */
/* Has a task expired, where "seconds" is the default of "active"; 0: no limit. */
#define ACTIVE(seconds) "coalesce(t.active, nullif(" seconds ", 0) * interval '1 s')"
#define EXPIRED(seconds, now) \
	"(" ACTIVE(seconds) " < interval '100 years'" \
	" AND (" PLANNED " AT TIME ZONE 'UTC') + " ACTIVE(seconds) " < (" now " AT TIME ZONE 'UTC'))"

#define SET_GONE \
	"SET state = 'GONE', stop = clock_timestamp(), error = 'the task was not started in time'," \
	"    sqlstate = '57014', response = 'ERROR:  the task was not started in time'"

/* The time of the claim.  The owner of the table may have set the column to NULL. */
#define CLAIMED(alias) "coalesce(" alias ".start, '-infinity')"

/*
 * Identifies a row that the same statement has locked.  The id is not compared, so that the
 * planner does not start with all rows, through the index on the id.
 */
#define IS_LOCKED_ROW "t.tableoid = c.oid AND t.ctid = c.tid"

/*
 * Select and lock those of the runs in three arrays whose rows are still these runs and are not
 * locked by anybody.  LATERAL keeps the planner from starting with all rows of the table, as it
 * would for a table that was empty when the plan was made.
 */
#define RUNS_NOT_LOCKED(state) \
	"SELECT n.*" \
	"  FROM ROWS FROM (unnest($1), unnest($2), unnest($3)) AS a (id, attempt, claimed)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT r.id, r.attempt, " CLAIMED("r") " AS claimed, r.tableoid AS oid, r.ctid AS tid" \
	"         FROM %1$s AS r" \
	"        WHERE r.id = a.id AND r.attempt = a.attempt" \
	"          AND " CLAIMED("r") " = a.claimed AND r.state = " state \
	"          FOR NO KEY UPDATE OF r SKIP LOCKED) AS n"

/*
 * Select and lock those of the rows with these ids that wait, have this role and are not locked by
 * anybody.
 */
#define ROWS_OF_ROLE \
	"SELECT n.*" \
	"  FROM unnest($1) AS c (id) CROSS JOIN LATERAL (" \
	"       SELECT t.tableoid AS oid, t.ctid AS tid" \
	"         FROM %1$s AS t" \
	"        WHERE t.id = c.id AND t.state = $2 AND t.role = $3::name AND t.role_id = $4" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"

/* What decides whether a run is retried. */
#define RETRY \
	"SELECT coalesce(t.failed, 0), coalesce(t.crashed, 0), coalesce(t.retry, -1)," \
	"       coalesce(t.backoff, -1)::float8," \
	"       (CASE WHEN t.delay IS NULL THEN -1" \
	"             ELSE least(extract(epoch FROM t.delay), 3600) * 1000000 END)::int8," \
	"       " PLANNED "," \
	"       ((" PLANNED " AT TIME ZONE 'UTC')" \
	"        + CASE WHEN t.active < interval '100 years' THEN t.active END) AT TIME ZONE 'UTC'," \
	"       t.repeat IS NOT NULL, coalesce(t.role::text, ''), coalesce(t.role_id, 0)" \
	"  FROM %1$s AS t" \
	" WHERE t.id = $1 AND t.attempt = $2 AND " CLAIMED("t") " = $3 AND t.state = 'WORK'" \
	"   FOR NO KEY UPDATE OF t"

/*
 * A row that has moved to another group meanwhile, or that somebody has locked, is not claimed.
 * The state is an argument, so that the planner does not use the index on waiting rows to find an
 * id.
 */
#define CLAIM_TYPES \
	{INT8ARRAYOID, TEXTARRAYOID, INT4ARRAYOID, INT4ARRAYOID, TEXTARRAYOID, INT4ARRAYOID, \
	 TIMESTAMPTZOID, TEXTOID, FLOAT8ARRAYOID, BOOLARRAYOID, TIMESTAMPTZARRAYOID, INT8ARRAYOID, \
	 TIMESTAMPTZOID}
#define CLAIM(claimable) \
	"WITH c AS MATERIALIZED (" \
	"SELECT n.id, n.oid, n.tid, c.pid" \
	"  FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6)," \
	"                  unnest($9), unnest($10), unnest($11), unnest($12))" \
	"       AS c (id, queue, max, priority, role, pid, active, isolated, dt, role_id)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT t.id, t.tableoid AS oid, t.ctid AS tid" \
	"         FROM %1$s AS t" \
	"        WHERE t.id = c.id AND t.state = $8 AND t.dt = c.dt AND t.dt <= $7" \
	"          AND t.queue = c.queue AND " G_MAX " = c.max AND t.priority = c.priority" \
	"          AND t.role = c.role::name AND t.role_id = c.role_id" \
	"          AND (coalesce(t.crashed, 0) = 0 OR c.isolated)" \
	"          AND " EXPIRED("c.active", "$7") " IS NOT TRUE" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n" \
	") UPDATE %1$s AS t" \
	"    SET state = 'WORK', attempt = t.attempt + 1, start = $13, stop = NULL, pid = c.pid" \
	"   FROM " claimable \
	"  WHERE " IS_LOCKED_ROW \
	" RETURNING t.id, t.attempt," \
	"           CASE WHEN t.timeout < interval '100 years'" \
	"                THEN (extract(epoch FROM t.timeout) * 1000000)::int8 END," \
	"           t.repeat IS NOT NULL, t.delete, substr(t.format, 1, 8)," \
	"           CASE WHEN octet_length(t.request) <= " CppAsString2(SHARED_REQUEST) \
	"                THEN t.request END, t.role::text, t.role_id"

static Statement statements[STATEMENTS] = {
	/* a loose index scan from group to group: one descent of the index for each */
	[STATEMENT_SCAN] = {.nargs = 6, .types = {TEXTOID, INT4OID, INT4OID, TEXTOID, INT8OID,
		 INT8OID}, .sql =
		"WITH RECURSIVE g (queue, max, priority, role, role_id, dt, id) AS ("
		"(SELECT " G_ALL ", t.dt, t.id"
		"   FROM %1$s AS t"
		"  WHERE t.state = 'PLAN' AND " COMPLETE
		"    AND (" G_ALL ") > ($1, $2, $3, $4, $5)"
		"  ORDER BY " G_ALL ", t.dt, t.id"
		"  LIMIT 1)"
		" UNION ALL"
		" SELECT n.*"
		"   FROM g CROSS JOIN LATERAL ("
		"        SELECT " G_ALL ", t.dt, t.id"
		"          FROM %1$s AS t"
		"         WHERE t.state = 'PLAN' AND " COMPLETE
		"           AND (" G_ALL ") > (g.queue, g.max, g.priority, g.role, g.role_id)"
		"         ORDER BY " G_ALL ", t.dt, t.id"
		"         LIMIT 1) AS n"
		") SELECT substr(g.queue, 1, " CppAsString2(TASK_QUEUE_MAX) " + 1), max, priority, role, dt, id,"
		"         role_id, octet_length(g.queue) > " CppAsString2(TASK_QUEUE_MAX)
		"    FROM g LIMIT $6"},

	[STATEMENT_PEEK] = {.nargs = 8, .types = {TEXTOID, INT4OID, INT4OID, TEXTOID, TIMESTAMPTZOID,
		 INT8OID, INT8OID, INT8OID}, .sql =
		"SELECT t.dt, t.id"
		"  FROM %1$s AS t"
		" WHERE t.state = 'PLAN'"
		"   AND " G_QUEUE " = $1 AND " G_MAX " = $2 AND t.priority = $3 AND " G_ROLE " = $4"
		"   AND t.role_id = $8"
		"   AND (t.dt, t.id) > ($5, $6)"
		" ORDER BY t.dt, t.id"
		" LIMIT $7"},

	[STATEMENT_UNLOCKED] = {.nargs = 2, .types = {INT8ARRAYOID, TEXTOID}, .sql =
		"SELECT n.id"
		"  FROM unnest($1) AS a (id) CROSS JOIN LATERAL ("
		"       SELECT t.id"
		"         FROM %1$s AS t"
		"        WHERE t.id = a.id AND t.state = $2"
		"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"},

	[STATEMENT_CLAIM] = {.nargs = 13, .types = CLAIM_TYPES, .sql = CLAIM("c")},

	/*
	 * of rows with equal ids claim only one: a run is identified by id, attempt and time of the
	 * claim
	 */
	[STATEMENT_CLAIM_PARTITIONED] = {.nargs = 13, .types = CLAIM_TYPES, .sql =
		 CLAIM("(SELECT DISTINCT ON (c.id) c.* FROM c) AS c")},

	/* the scheduler never waits for row locks */
	[STATEMENT_RELEASE] = {.nargs = 4, .types = {INT8ARRAYOID, INT4ARRAYOID,
		 TIMESTAMPTZARRAYOID, TEXTOID}, .sql =
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED("$4") ")"
		" UPDATE %1$s AS t"
		"    SET state = 'PLAN', attempt = t.attempt - 1, start = NULL, pid = NULL"
		"   FROM c"
		"  WHERE " IS_LOCKED_ROW
		" RETURNING c.id, c.attempt, c.claimed"},

	[STATEMENT_REPLAN] = {.nargs = 6, .types = {INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID,
		 TEXTOID, TEXTOID, TEXTOID}, .sql =
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED("$6") ")"
		" UPDATE %1$s AS t"
		"    SET state = 'PLAN', stop = clock_timestamp(), error = $4, sqlstate = $5,"
		"        response = 'FATAL:  ' || $4, notice = NULL"
		"   FROM c"
		"  WHERE " IS_LOCKED_ROW
		" RETURNING c.id, c.attempt, c.claimed"},

	/* the outcome of a run that is not DONE */
	[STATEMENT_END] = {.nargs = 14, .types = {INT8OID, INT4OID, TIMESTAMPTZOID, TEXTOID,
		 TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, INT4OID,
		 TIMESTAMPTZOID, TEXTOID}, .sql =
		"UPDATE %1$s AS t"
		"   SET state = $4, start = $5, stop = $6, response = $7, error = $8, sqlstate = $9,"
		"       notice = $10, failed = least(coalesce(t.failed, 0), 2147483646) + $11,"
		"       crashed = coalesce(t.crashed, 0) + $12,"
		"       planned = CASE WHEN $13 IS NULL THEN t.planned ELSE " PLANNED " END,"
		"       dt = coalesce($13, t.dt)"
		" WHERE t.id = $1 AND t.attempt = $2 AND " CLAIMED("t") " = $3 AND t.state = $14"},

	[STATEMENT_WORK] = {.nargs = 1, .types = {INT8OID}, .sql =
		"SELECT t.id, t.attempt, " CLAIMED("t") ", coalesce(" SHORT_QUEUE("t.queue") ", '')"
		"  FROM %1$s AS t"
		" WHERE t.state = 'WORK' AND t.id IS NOT NULL AND t.attempt IS NOT NULL"
		" LIMIT $1"},

	/* the state is an argument, so that the planner does not use the index on running rows */
	[STATEMENT_RUNS] = {.nargs = 4, .types = {INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID,
		 TEXTOID}, .sql =
		"SELECT n.*"
		"  FROM ROWS FROM (unnest($1), unnest($2), unnest($3)) AS a (id, attempt, claimed)"
		" CROSS JOIN LATERAL ("
		"       SELECT t.id, t.attempt, " CLAIMED("t") ", coalesce(" SHORT_QUEUE("t.queue") ", '')"
		"         FROM %1$s AS t"
		"        WHERE t.id = a.id AND t.attempt = a.attempt"
		"          AND " CLAIMED("t") " = a.claimed AND t.state = $4"
		"       OFFSET 0) AS n"},

	/* the first condition matches exactly one index */
	[STATEMENT_ISOLATED] = {.nargs = 1, .types = {TEXTOID}, .sql =
		"SELECT t.id"
		"  FROM %1$s AS t"
		" WHERE (t.state = 'WORK' OR (t.state = 'PLAN' AND t.crashed > 0))"
		"   AND t.state = $1 AND t.crashed > 0"},

	[STATEMENT_REFUSE] = {.nargs = 6, .types = {INT8OID, TEXTOID, TEXTOID, TEXTOID,
		 TEXTOID, TEXTOID}, .sql =
		"WITH c AS MATERIALIZED ("
		"SELECT t.tableoid AS oid, t.ctid AS tid"
		"  FROM %1$s AS t"
		" WHERE t.id = $1 AND t.role = $5::name AND t.state = $6"
		"   FOR NO KEY UPDATE OF t SKIP LOCKED"
		") UPDATE %1$s AS t"
		"   SET state = 'FAIL', stop = clock_timestamp(), error = $2, sqlstate = $3, response = $4"
		"  FROM c"
		" WHERE " IS_LOCKED_ROW},

	/* waiting rows whose role was dropped; a repeating task does not repeat */
	[STATEMENT_ROLE_GONE] = {.nargs = 7, .types = {INT8ARRAYOID, TEXTOID, TEXTOID, INT8OID, TEXTOID,
		 TEXTOID, TEXTOID}, .sql =
		"WITH c AS MATERIALIZED (" ROWS_OF_ROLE ")"
		" UPDATE %1$s AS t"
		"    SET state = 'FAIL', stop = clock_timestamp(), error = $5, sqlstate = $6, response = $7"
		"   FROM c"
		"  WHERE " IS_LOCKED_ROW},

	/* waiting rows whose "role" is not the current name of their role, or that are not bound */
	[STATEMENT_BIND] = {.nargs = 6, .types = {INT8ARRAYOID, TEXTOID, TEXTOID, INT8OID, TEXTOID,
		 INT8OID}, .sql =
		"WITH c AS MATERIALIZED (" ROWS_OF_ROLE ")"
		" UPDATE %1$s AS t"
		"    SET role = $5::name, role_id = $6"
		"   FROM c"
		"  WHERE " IS_LOCKED_ROW},

	[STATEMENT_EXPIRED] = {.nargs = 2, .types = {TIMESTAMPTZOID, INT8OID}, .sql =
		"SELECT t.dt, t.id"
		"  FROM %1$s AS t"
		" WHERE " EXPIRES " AND " EXPIRY " < ($1 AT TIME ZONE 'UTC')"
		" ORDER BY " EXPIRY
		" LIMIT $2"
		"   FOR NO KEY UPDATE OF t SKIP LOCKED"},

	[STATEMENT_EXPIRE] = {.nargs = 5, .types = {TIMESTAMPTZOID, INT8ARRAYOID, FLOAT8ARRAYOID,
		 TEXTOID, TIMESTAMPTZARRAYOID}, .sql =
		"WITH c AS MATERIALIZED ("
		"SELECT n.oid, n.tid"
		"  FROM ROWS FROM (unnest($2), unnest($3), unnest($5)) AS c (id, active, dt)"
		" CROSS JOIN LATERAL ("
		"       SELECT t.tableoid AS oid, t.ctid AS tid"
		"         FROM %1$s AS t"
		"        WHERE t.id = c.id AND t.dt = c.dt AND t.state = $4"
		"          AND " EXPIRED("c.active", "$1") " IS TRUE"
		"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"
		") UPDATE %1$s AS t " SET_GONE
		"   FROM c"
		"  WHERE " IS_LOCKED_ROW
		" RETURNING t.id, t.role::text"},

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

	[STATEMENT_REPEAT] = {.nargs = 2, .types = {INT8OID, TEXTOID}, .sql =
		"SELECT " PLANNED ", t.repeat, t.drift,"
		"       substr(t.timezone, 1, " CppAsString2(TASK_ZONE_MAX) " + 1),"
		"       coalesce(t.role_id, 0)"
		"  FROM %1$s AS t"
		" WHERE t.id = $1 AND t.role = $2::name"
		" LIMIT 1"},

	[STATEMENT_RETRY] = {.nargs = 3, .types = {INT8OID, INT4OID, TIMESTAMPTZOID}, .sql = RETRY},

	[STATEMENT_RETRY_UNLOCKED] = {.nargs = 3, .types = {INT8OID, INT4OID, TIMESTAMPTZOID},
		 .sql = RETRY " SKIP LOCKED"},

	[STATEMENT_INSERT_NEXT] = {.nargs = 3, .types = {INT8OID, TIMESTAMPTZOID, TEXTOID}, .sql =
		"INSERT INTO %2$s (parent, dt, %3$s)"
		" SELECT t.id, $2, %3$s FROM %1$s AS t WHERE t.id = $1 AND t.role = $3::name LIMIT 1"},
};
/* clang-format on */

#endif /* PG_TASK_ROWS_SQL_H */
