/*
 * retry.c
 *		pg_task_cancel, pg_task_resume_flow and pg_task_retry: stop tasks, or run them again that
 *		were stopped or have failed, if the caller may UPDATE them; pg_task_interrupt: end one run,
 *		if they may signal its process.
 *
 * Rows are planned again in batches, each in a subtransaction: a key may be taken by a row that the
 * caller cannot see, so only the unique index knows.  A batch that it refuses is halved, until the
 * row is found; that row is skipped.
 *
 * The trigger writes the times (pg_task_timed).  In SQL the functions have a fixed search_path, so
 * their statements need no schema for operators.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "session/notices.h"
#include "session/result_set.h"
#include "session/table_access.h"
#include "shared/slots.h"
#include "task/relation.h"
#include "task/subtransaction.h"

COMPAT_FUNCTION(pg_task_cancel);
COMPAT_FUNCTION(pg_task_interrupt);
COMPAT_FUNCTION(pg_task_resume_flow);
COMPAT_FUNCTION(pg_task_retry);
COMPAT_FUNCTION(pg_task_retry_all);
COMPAT_FUNCTION(pg_task_retry_dependents);

/* Rows that one statement plans again. */
#define BATCH_MAX 1000

/* Why nothing has changed, if it is none of the reasons that are known. */
#define KEPT "a policy or a trigger of the table keeps it as it is"

/* A run of a schedule that has failed: the next one, which is planned, has its key. */
#define KEY_TAKEN "another task has its key"

/* Runs of a schedule that are looked at, to find the one that waits or runs. */
#define CHAIN_MAX 1000

/* ---- why nothing has changed ---- */

/* Static, because a statement may call a function for many tasks. */
static Notices unchanged;

/*
 * Tell why a function has not changed a task.  "reason" is an expression of its row t, as the
 * current user sees it; if that is NULL, it is "otherwise".  "hint" may be NULL.
 */
static void
tell_unchanged(const TableAccess *access, int64 id, const char *what, const char *reason,
			   const char *otherwise, const char *hint)
{
	char *sql = psprintf("SELECT (%s)::text FROM %s AS t WHERE t.id = $1", reason, access->rows);
	SPIExecuteOptions options = {.params = table_access_param(INT8OID, Int64GetDatum(id))};
	const char *told = "you see no such task";

	if (notices_told(&unchanged) == NOTICES_MAX)
		return;
	if (table_access_execute(access, sql, options, SPI_OK_SELECT) > 0)
		told = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (told == NULL)
		told = otherwise;
	notices_raise(&unchanged, psprintf("task " INT64_FORMAT " is not %s: %s", id, what, told),
				  strcmp(told, KEY_TAKEN) == 0
					  ? "To run it now, use pg_task_run_now for a schedule, or UPDATE the \"dt\" of"
						" that task."
					  : hint);
}

/* ---- pg_task_cancel ---- */

/*
 * The schedule of a task that has ended may go on, as a later row: return a hint that names it, if
 * the caller sees it, or NULL.
 */
static const char *
hint_of_next_run(const TableAccess *access, int64 id)
{
	const char *sql =
		"WITH RECURSIVE c (id, state, next, n) AS ("
		"SELECT t.id, t.state, t.next, 1 FROM %s AS t"
		" WHERE t.id = $1 AND t.state NOT IN ('PLAN', 'WORK')"
		" UNION ALL SELECT r.id, r.state, r.next, c.n + 1"
		"  FROM c CROSS JOIN LATERAL (SELECT t.id, t.state, t.next FROM %s AS t"
		"                              WHERE t.id = c.next LIMIT 1) AS r"
		" WHERE c.state NOT IN ('PLAN', 'WORK') AND c.n < %d) "
		"SELECT CASE WHEN c.state IN ('PLAN', 'WORK')"
		"            THEN format('Its schedule goes on: the next run is task %%s.', c.id)"
		"            WHEN c.n = %d AND c.next IS NOT NULL"
		"            THEN 'If its schedule goes on, pg_task_repeating() has the next run.' END"
		"  FROM c ORDER BY c.n DESC LIMIT 1";
	SPIExecuteOptions options = {.params = table_access_param(INT8OID, Int64GetDatum(id))};

	if (notices_told(&unchanged) == NOTICES_MAX ||
		!table_access_reads(access->relid, COLUMN_NEXT) ||
		table_access_execute(access,
							 psprintf(sql, access->rows, access->rows, CHAIN_MAX, CHAIN_MAX),
							 options, SPI_OK_SELECT) == 0)
		return NULL;
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

/*
 * pg_task_cancel(id): stop a waiting or running task of this database that the caller may UPDATE.
 * Returns false, with a NOTICE, if there is no such task that the caller may see.
 */
Datum
pg_task_cancel(PG_FUNCTION_ARGS)
{
	TableAccess access = table_access_open(ACCESS_ROWS);
	const char *sql = "UPDATE %s AS t SET state = 'STOP'"
					  " WHERE t.id = $1 AND t.state IN ('PLAN', 'WORK')%s";
	SPIExecuteOptions options = {.params = table_access_param(INT8OID, PG_GETARG_DATUM(0))};
	bool stopped;

	table_access_check_update(&access, COLUMN_STATE, "stop");
	SPI_connect();
	stopped = table_access_execute(&access, psprintf(sql, access.table, access.condition), options,
								   SPI_OK_UPDATE) > 0;
	if (!stopped)
		tell_unchanged(
			&access, PG_GETARG_INT64(0), "stopped",
			"CASE WHEN t.state = 'STOP' THEN 'it was stopped before'"
			"     WHEN t.state NOT IN ('PLAN', 'WORK') THEN 'it has ended, ' || t.state END",
			KEPT, hint_of_next_run(&access, PG_GETARG_INT64(0)));
	SPI_finish();
	PG_RETURN_BOOL(stopped);
}

/* ---- pg_task_interrupt ---- */

/* May the caller interrupt a run of this role: as its process, or as the owner of the table? */
static bool
may_interrupt(Oid role, Oid relid)
{
	Oid caller = GetUserId();

	if (superuser_arg(role))
		return superuser();
	return has_privs_of_role(caller, role) || has_privs_of_role(caller, ROLE_PG_SIGNAL_BACKEND) ||
		   has_privs_of_role(caller, relation_owner(relid));
}

/*
 * pg_task_interrupt(id, attempt): interrupt the run of a task of this database, if it runs in this
 * attempt, or (NULL) in any.  Returns whether there was one; of runs that the caller may not
 * interrupt nothing is told.
 */
Datum
pg_task_interrupt(PG_FUNCTION_ARGS)
{
	bool interrupted = false;
	int attempt = PG_ARGISNULL(1) ? -1 : PG_GETARG_INT32(1);
	Oid relid;
	int64 id;
	int i;

	shared_require();
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	id = PG_GETARG_INT64(0);
	relid = table_access_known();
	for (i = 0; i < Shared->nexecutors && OidIsValid(relid); i++)
	{
		SharedExecutor *slot = &Shared->executors[i];
		Oid role = executor_slot_interrupt(slot, relid, id, attempt, InvalidOid);

		if (OidIsValid(role) && may_interrupt(role, relid))
			interrupted |= executor_slot_interrupt(slot, relid, id, attempt, role) == role;
	}
	if (!interrupted)
		notices_raise(&unchanged,
					  psprintf("task " INT64_FORMAT
							   " is not interrupted: it does not run, or you may"
							   " not interrupt it",
							   id),
					  NULL);
	PG_RETURN_BOOL(interrupted);
}

/* ---- pg_task_resume_flow ---- */

#define GIVEN_UP "t.state = 'GONE' AND t.sqlstate = 'TK005'"

/*
 * pg_task_resume_flow(flow): plan the tasks of a flow again that were stopped, and what is GONE
 * because it waited for them.  What is GONE for another end will be so again: a NOTICE tells of
 * each.  Returns how many.
 *
 * Others may be given up while the rows are written: they are looked for again, until there are
 * none.  From then on none is, for the scheduler gives up nothing for a row that is locked.  Each
 * statement takes its locks in the order of ids, so that fewer callers meet in a deadlock.
 */
Datum
pg_task_resume_flow(PG_FUNCTION_ARGS)
{
	TableAccess access = table_access_open(ACCESS_ROWS);
	const char *sql = "WITH l AS MATERIALIZED (SELECT t.id FROM %s AS t WHERE t.flow = $1"
					  "    AND (%s)%s ORDER BY t.id FOR NO KEY UPDATE OF t),"
					  " n AS (UPDATE %s AS t SET state = 'PLAN' FROM l"
					  "        WHERE t.id = l.id AND (%s)%s RETURNING t.state) "
					  "SELECT FROM n WHERE n.state = 'PLAN'";
	const char *states = "t.state = 'STOP' OR " GIVEN_UP;
	const char *failed = "SELECT t.id, concat('task ', t.id, ' (step ' || to_json(t.step) || ')',"
						 "       ' is ', t.state, ': ' || left(t.error, 200)) FROM %s AS t"
						 " WHERE t.flow = $1 AND (t.state = 'FAIL'"
						 "       OR t.state = 'GONE' AND t.sqlstate <> 'TK005')"
						 " ORDER BY t.id LIMIT 16";
	SPIExecuteOptions options = {.params = table_access_param(TEXTOID, PG_GETARG_DATUM(0))};
	uint64 resumed = 0;
	uint64 count;
	uint64 i;

	table_access_check_update(&access, COLUMN_STATE, "change");
	SPI_connect();
	do
	{
		count = table_access_execute(&access,
									 psprintf(sql, access.table, states, access.condition,
											  access.table, states, access.condition),
									 options, SPI_OK_SELECT);
		resumed += count;
		states = GIVEN_UP; /* what is stopped meanwhile stays so */
	} while (count > 0);
	count = table_access_execute(&access, psprintf(failed, access.rows), options, SPI_OK_SELECT);
	if (resumed + count == 0)
		notices_raise(&unchanged,
					  psprintf("no task of workflow \"%s\" is stopped that you may resume",
							   text_to_cstring(PG_GETARG_TEXT_PP(0))),
					  NULL);
	for (i = 0; i < count; i++)
		notices_raise(&unchanged, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2),
					  psprintf("SELECT pg_task_retry_dependents(%s) runs it again, and what waited"
							   " for it.",
							   SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1)));
	SPI_finish();
	PG_RETURN_INT64((int64) resumed);
}

/* ---- pg_task_retry ---- */

/* A call of one of the functions. */
typedef struct Retry
{
	TableAccess access;
	const char *states; /* in which a row is planned again, in SQL */
	bool is_owner;		/* the caller has the rights of the owner of the table */
	int refused;		/* the SQLSTATE for which the last rows were not planned; 0: none */
	/* of the statement that runs */
	Datum *ids;
	int count;
	int planned;
} Retry;

static Retry
begin_retry(const char *states)
{
	Retry retry = {.access = table_access_open(ACCESS_ROWS), .states = states};

	table_access_check_update(&retry.access, COLUMN_STATE, "retry");
	table_access_check_update(&retry.access, COLUMN_FAILED, "retry");
	retry.is_owner = has_privs_of_role(GetUserId(), retry.access.owner);
	return retry;
}

/*
 * Plan the rows of a Retry again.  Of several with the same key only the last one is, and none
 * whose key is taken by a row that the caller sees.
 */
static void
plan_rows(void *arg)
{
	Retry *retry = arg;
	const TableAccess *access = &retry->access;
	ArrayType *ids =
		construct_array(retry->ids, retry->count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, 'd');
	const char *sql =
		"UPDATE %s AS t SET state = 'PLAN', failed = 0%s"
		"  FROM (SELECT DISTINCT ON (c.queue, c.key, CASE WHEN c.key IS NULL THEN c.id END) c.id"
		"          FROM %s AS c"
		"         WHERE c.id = ANY ($1) AND c.state IN (%s)"
		"           AND (c.key IS NULL"
		"                OR NOT EXISTS (SELECT FROM %s AS k"
		"                                WHERE k.queue = c.queue AND k.key = c.key"
		"                                  AND k.state IN ('PLAN', 'WORK')))"
		"         ORDER BY c.queue, c.key, CASE WHEN c.key IS NULL THEN c.id END, c.id DESC) AS n"
		" WHERE t.id = n.id AND t.state IN (%s)%s";

	sql = psprintf(sql, access->table, retry->is_owner ? ", crashed = 0, lost = NULL" : "",
				   access->rows, retry->states, access->rows, retry->states, access->condition);
	retry->planned = (int) table_access_execute(
		access, sql,
		(SPIExecuteOptions){.params = table_access_param(INT8ARRAYOID, PointerGetDatum(ids))},
		SPI_OK_UPDATE);
}

/*
 * Plan rows again, in a subtransaction.  If a row that the caller does not see, or that another
 * session has just written, has one of the keys, or lock_timeout has ended the wait for another
 * transaction, plan each half.  Returns how many were planned; the others were skipped.
 */
static int
plan_batch(Retry *retry, Datum *ids, int count)
{
	ErrorData *error;

	CHECK_FOR_INTERRUPTS();
	retry->ids = ids;
	retry->count = count;
	error = subtransaction_try(plan_rows, retry, true);
	if (error == NULL)
		return retry->planned;
	if (error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION &&
		error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	retry->refused = error->sqlerrcode;
	FreeErrorData(error);
	if (count == 1)
		return 0;
	return plan_batch(retry, ids, count / 2) +
		   plan_batch(retry, &ids[count / 2], count - count / 2);
}

/*
 * Whoever runs tasks again is told how many are GONE because these, or one of those, have not ended
 * as they wanted.  No index has them: they are looked for among these ids and those that follow.
 */
static void
tell_dependents(const TableAccess *access, Datum *ids, int count, const char *whom,
				const char *hint)
{
	const char *sql =
		"WITH RECURSIVE i (id) AS MATERIALIZED (SELECT u.id FROM unnest($1) AS u (id)),"
		" g (id, cause) AS MATERIALIZED ("
		"SELECT t.id, u.id FROM %s AS t CROSS JOIN unnest(t.after) AS u (id)"
		" WHERE t.state = 'GONE' AND t.sqlstate = 'TK005'"
		"   AND t.id BETWEEN (SELECT min(i.id) FROM i)"
		"   AND least((SELECT max(i.id) FROM i), 9223372036854774807) + 1000),"
		" d (id) AS (SELECT i.id FROM i UNION SELECT g.id FROM d JOIN g ON g.cause = d.id) "
		"SELECT (SELECT count(*) FROM d) - (SELECT count(DISTINCT i.id) FROM i)";
	ArrayType *causes;
	const char *found;

	if (notices_told(&unchanged) == NOTICES_MAX || !table_access_reads(access->relid, COLUMN_AFTER))
		return;
	causes = construct_array(ids, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, 'd');
	(void) table_access_execute(
		access, psprintf(sql, access->rows),
		(SPIExecuteOptions){.params = table_access_param(INT8ARRAYOID, PointerGetDatum(causes))},
		SPI_OK_SELECT);
	found = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (strcmp(found, "0") != 0)
		notices_raise(&unchanged, psprintf("%s tasks that waited for %s are GONE", found, whom),
					  hint);
}

/* Tell why pg_task_retry does not run this task again. */
static void
tell_not_retried(const Retry *retry, int64 id)
{
	const char *reason =
		"CASE t.state WHEN 'PLAN' THEN 'it is planned already, see pg_task_why' WHEN 'WORK' THEN"
		" 'it runs' WHEN 'DONE' THEN 'it is DONE; an UPDATE to PLAN runs it once more' ELSE"
		" (SELECT '" KEY_TAKEN "' FROM %s AS k WHERE k.queue = t.queue AND k.key = t.key"
		"     AND k.id <> t.id AND k.state IN ('PLAN', 'WORK') LIMIT 1) END";

	tell_unchanged(&retry->access, id, "run again", psprintf(reason, retry->access.rows),
				   retry->refused == ERRCODE_UNIQUE_VIOLATION ? KEY_TAKEN
				   : retry->refused == ERRCODE_LOCK_NOT_AVAILABLE
					   ? "another transaction has locked its row, or uses its key"
					   : KEPT,
				   NULL);
}

/*
 * pg_task_retry(id): run a task again that has failed, was given up, or was stopped.  Returns
 * false, with a NOTICE, if the caller sees no such task, or if its key is taken.
 */
Datum
pg_task_retry(PG_FUNCTION_ARGS)
{
	Retry retry = begin_retry("'FAIL', 'GONE', 'STOP'");
	Datum id = PG_GETARG_DATUM(0);
	bool planned;

	SPI_connect();
	planned = plan_batch(&retry, &id, 1) > 0;
	if (planned)
		tell_dependents(&retry.access, &id, 1, psprintf("task " INT64_FORMAT, PG_GETARG_INT64(0)),
						psprintf("SELECT pg_task_retry_dependents(" INT64_FORMAT ") runs them"
								 " again.",
								 PG_GETARG_INT64(0)));
	else
		tell_not_retried(&retry, DatumGetInt64(id));
	SPI_finish();
	PG_RETURN_BOOL(planned);
}

/*
 * pg_task_retry_dependents(id): run a task again, unless it was, and all that are GONE because of
 * it, or of one of these.  Returns how many.  As in pg_task_resume_flow, what is given up meanwhile
 * is looked for: behind the rows that were written last.
 */
Datum
pg_task_retry_dependents(PG_FUNCTION_ARGS)
{
	Retry retry = begin_retry("'FAIL', 'GONE', 'STOP'");
	const TableAccess *access = &retry.access;
	const char *first = "WITH n AS (UPDATE %s AS t SET state = 'PLAN', failed = 0"
						"            WHERE t.id = $1 AND t.state IN (%s)%s"
						"        RETURNING t.id, t.state) "
						"SELECT array_agg(n.id)::bigint[], count(*) FROM n WHERE n.state = 'PLAN'";
	const char *before = "SELECT array_agg(r.id)::bigint[], 0::bigint FROM %s AS r"
						 " WHERE r.id = $1 AND r.state NOT IN (%s)";
	const char *behind =
		"WITH RECURSIVE g (id, cause) AS MATERIALIZED ("
		"SELECT r.id, u.id FROM %s AS r CROSS JOIN unnest(r.after) AS u (id)"
		" WHERE r.state = 'GONE' AND r.sqlstate = 'TK005'),"
		" d (id) AS (SELECT u.id FROM unnest($1) AS u (id)"
		"            UNION SELECT g.id FROM d JOIN g ON g.cause = d.id),"
		" l AS MATERIALIZED (SELECT t.id FROM %s AS t WHERE t.id IN (SELECT d.id FROM d)"
		"                       AND " GIVEN_UP "%s ORDER BY t.id FOR NO KEY UPDATE OF t),"
		" n AS (UPDATE %s AS t SET state = 'PLAN', failed = 0 FROM l"
		"        WHERE t.id = l.id AND " GIVEN_UP "%s RETURNING t.id, t.state) "
		"SELECT array_agg(n.id)::bigint[], count(*) FROM n WHERE n.state = 'PLAN'";
	SPIExecuteOptions options = {.params = table_access_param(INT8OID, PG_GETARG_DATUM(0))};
	int64 planned = 0;
	bool isnull;
	Datum ids;

	SPI_connect();
	(void) table_access_execute(access,
								psprintf(first, access->table, retry.states, access->condition),
								options, SPI_OK_SELECT);
	/* with a snapshot of its own: another session may have run it again just now */
	if (SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1) == NULL)
		(void) table_access_execute(access, psprintf(before, access->rows, retry.states), options,
									SPI_OK_SELECT);
	behind = psprintf(behind, access->rows, access->table, access->condition, access->table,
					  access->condition);
	for (;;)
	{
		ids = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
		if (isnull)
			break;
		planned +=
			DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
		options.params = table_access_param(INT8ARRAYOID, ids);
		(void) table_access_execute(access, behind, options, SPI_OK_SELECT);
	}
	SPI_finish();
	PG_RETURN_INT64(planned);
}

/* Read the ids of the failures with this code, which is one, since this time. */
static Datum *
read_ids(const Retry *retry, const char *code, Datum since, int *count)
{
	const char *sql = "SELECT array_agg(t.id ORDER BY t.id DESC)::bigint[] FROM %s AS t"
					  " WHERE t.state IN (%s) AND t.sqlstate = '%s'"
					  "   AND coalesce(t.stop, t.dt) >= $1";
	Datum *ids = NULL;
	bool isnull = true;
	Datum value = (Datum) 0;

	*count = 0;
	if (table_access_execute(
			&retry->access, psprintf(sql, retry->access.rows, retry->states, code),
			(SPIExecuteOptions){.params = table_access_param(TIMESTAMPTZOID, since)},
			SPI_OK_SELECT) > 0)
		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (!isnull)
		deconstruct_array(DatumGetArrayTypeP(value), INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
						  TYPALIGN_DOUBLE, &ids, NULL, count);
	return ids;
}

/*
 * pg_task_retry(sqlstate, since): run all tasks again that have failed, or were given up, with this
 * code and not before this time.  Returns how many are planned again, and how many were skipped.
 */
Datum
pg_task_retry_all(PG_FUNCTION_ARGS)
{
	Retry retry = begin_retry("'FAIL', 'GONE'");
	const char *code = text_to_cstring(PG_GETARG_TEXT_PP(0));
	TupleDesc row = result_row_desc(fcinfo, 2);
	bool isnull[2] = {false, false};
	MemoryContext batch;
	MemoryContext old;
	int64 planned = 0;
	Datum values[2];
	Datum *ids;
	int count;
	int done;

	/* a slip is not to be taken for "no such task" */
	if (strlen(code) != 5 || strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("\"%s\" is not a SQLSTATE", code),
				 errhint("It has five digits or upper-case letters, as in the column"
						 " \"sqlstate\".")));
	SPI_connect();
	ids = read_ids(&retry, code, PG_GETARG_DATUM(1), &count);
	batch = AllocSetContextCreate(CurrentMemoryContext, "pg_task retry", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(batch);
	for (done = 0; done < count; done += BATCH_MAX)
	{
		planned += plan_batch(&retry, &ids[done], Min(BATCH_MAX, count - done));
		MemoryContextReset(batch);
	}
	MemoryContextSwitchTo(old);
	if (planned > 0)
		tell_dependents(&retry.access, ids, count, "these",
						"SELECT * FROM pg_task_retry('TK005', ...) runs them again, and"
						" pg_task_resume_flow those of a workflow.");
	SPI_finish();
	values[0] = Int64GetDatum(planned);
	values[1] = Int64GetDatum(count - planned);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(row, values, isnull)));
}
