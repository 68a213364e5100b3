/*
 * retry.c
 *		pg_task_retry: runs tasks again that have failed, if the caller may UPDATE them.
 *
 * Rows are planned again in batches, each in a subtransaction: a key may be taken by a row that the
 * caller cannot see, so only the unique index knows.  A batch that it refuses is tried again in
 * smaller ones, until the row is found; that row is skipped.
 *
 * The trigger writes the times (pg_task_timed).  In SQL the functions have a fixed search_path, so
 * the statements here need no schema for operators.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupdesc.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "session/notices.h"
#include "session/result_set.h"
#include "session/served.h"
#include "session/table_access.h"
#include "task/subtransaction.h"

PGDLLEXPORT Datum pg_task_retry(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_retry_all(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_retry);
PG_FUNCTION_INFO_V1(pg_task_retry_all);

/* Rows that one statement plans again, and rows that it plans after a key of those was taken. */
#define BATCH_MAX 1000
#define SMALL_BATCH_MAX 32

/* A call of one of the functions. */
typedef struct Retry
{
	TableAccess access;
	const char *states; /* in which a row is planned again, in SQL */
	bool is_owner;		/* the caller has the rights of the owner of the table */
	int refused;		/* the SQLSTATE for which the last rows were not planned; 0: none */
} Retry;

static Retry
begin_retry(const char *states)
{
	Retry retry = {.access = table_access_open(ACCESS_ROWS), .states = states};

	served_check_update(retry.access.relid, COLUMN_STATE, "retry");
	served_check_update(retry.access.relid, COLUMN_FAILED, "retry");
	retry.is_owner = has_privs_of_role(GetUserId(), retry.access.owner);
	return retry;
}

/*
 * Plan these rows again.  Of several with the same key only the last one is, and none whose key is
 * taken by a row that the caller sees.  Returns their number.
 */
static int
plan_rows(const Retry *retry, const Datum *ids, int count)
{
	const char *rows = retry->access.rows;
	Datum value = PointerGetDatum(
		construct_array((Datum *) ids, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, 'd'));
	AccessStatement plan = {.count = 1, .types = (const Oid[]){INT8ARRAYOID}, .values = &value};

	plan.sql = psprintf(
		"UPDATE %s AS t SET state = 'PLAN', failed = 0%s"
		"  FROM (SELECT DISTINCT ON (c.queue, c.key, CASE WHEN c.key IS NULL THEN c.id END) c.id"
		"          FROM %s AS c"
		"         WHERE c.id = ANY ($1) AND c.state IN (%s)"
		"           AND (c.key IS NULL"
		"                OR NOT EXISTS (SELECT FROM %s AS k"
		"                                WHERE k.queue = c.queue AND k.key = c.key"
		"                                  AND k.state IN ('PLAN', 'WORK')))"
		"         ORDER BY c.queue, c.key, CASE WHEN c.key IS NULL THEN c.id END, c.id DESC) AS n"
		" WHERE t.id = n.id AND t.state IN (%s)%s",
		retry->access.table, retry->is_owner ? ", crashed = 0" : "", rows, retry->states, rows,
		retry->states, retry->access.condition);
	return (int) table_access_write(&retry->access, &plan);
}

/* What plan_rows is called with, and returns. */
typedef struct Attempt
{
	const Retry *retry;
	const Datum *ids;
	int count;
	int planned;
} Attempt;

static void
plan_attempt(void *arg)
{
	Attempt *attempt = arg;

	attempt->planned = plan_rows(attempt->retry, attempt->ids, attempt->count);
}

/*
 * The same in a subtransaction.  Returns -1 if a row that the caller does not see, or that another
 * session has just written, has one of the keys, or if lock_timeout has ended the wait for another
 * transaction: then nothing was written.
 */
static int
try_plan_rows(Retry *retry, const Datum *ids, int count)
{
	Attempt attempt = {retry, ids, count, -1};
	ErrorData *error = subtransaction_try(plan_attempt, &attempt);

	if (error == NULL)
		return attempt.planned;
	if (error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION &&
		error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	retry->refused = error->sqlerrcode;
	FreeErrorData(error);
	return -1;
}

/*
 * Plan rows again, in batches of this size.  Returns how many were planned; the others were
 * skipped. Each row is tried three times at most.
 */
static int
plan_batches(Retry *retry, const Datum *ids, int count, int size)
{
	int planned = 0;
	int i;

	for (i = 0; i < count; i += size)
	{
		int batch = Min(size, count - i);
		int done;

		CHECK_FOR_INTERRUPTS();
		done = try_plan_rows(retry, &ids[i], batch);
		if (done < 0 && batch > 1)
			done =
				plan_batches(retry, &ids[i], batch, size > SMALL_BATCH_MAX ? SMALL_BATCH_MAX : 1);
		planned += Max(done, 0);
	}
	return planned;
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
	planned = plan_batches(&retry, &id, 1, 1) > 0;
	if (!planned)
		notices_not_retried(&retry.access, DatumGetInt64(id), retry.refused);
	SPI_finish();
	PG_RETURN_BOOL(planned);
}

/*
 * Plan all rows again whose ids are in the store, of this description: in *planned, how many were.
 */
static void
plan_all(Retry *retry, Tuplestorestate *store, TupleDesc desc, int64 *planned, int64 *skipped)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext batch = AllocSetContextCreate(caller, "pg_task retry", ALLOCSET_DEFAULT_SIZES);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	Datum ids[BATCH_MAX];
	bool isnull;
	int count;

	do
	{
		int done;

		for (count = 0; count < BATCH_MAX && tuplestore_gettupleslot(store, true, false, slot);
			 count++)
			ids[count] = slot_getattr(slot, 1, &isnull);
		MemoryContextSwitchTo(batch);
		done = plan_batches(retry, ids, count, BATCH_MAX);
		*planned += done;
		*skipped += count - done;
		MemoryContextSwitchTo(caller);
		MemoryContextReset(batch);
	} while (count > 0);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(batch);
}

/* Read the ids of the failures with this code and not before this time. */
static void
read_ids(const Retry *retry, const Datum *arguments, Tuplestorestate *store, TupleDesc desc)
{
	AccessStatement read = {
		.count = 2, .types = (const Oid[]){TEXTOID, TIMESTAMPTZOID}, .values = arguments};

	read.sql = psprintf("SELECT t.id FROM %s AS t"
						" WHERE t.state IN (%s) AND t.sqlstate = $1"
						"   AND coalesce(t.stop, t.dt) >= $2"
						" ORDER BY t.id DESC",
						retry->access.rows, retry->states);
	table_access_fill(&retry->access, &read, store, desc);
}

/* Check that this is the code of an error, so that a slip is not taken for "no such task". */
static void
check_sqlstate(const char *code)
{
	if (strlen(code) != 5 || strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("\"%s\" is not a SQLSTATE", code),
				 errhint("It has five digits or upper-case letters, as in the column"
						 " \"sqlstate\".")));
}

/*
 * pg_task_retry(sqlstate, since): run all tasks again that have failed, or were given up, with this
 * code and not before this time.  Returns how many are planned again, and how many were skipped.
 */
Datum
pg_task_retry_all(PG_FUNCTION_ARGS)
{
	Retry retry = begin_retry("'FAIL', 'GONE'");
	Datum arguments[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	bool isnull[2] = {false, false};
	int64 planned = 0;
	int64 skipped = 0;
	Datum values[2];
	TupleDesc desc = result_row_desc(fcinfo, lengthof(values));
	TupleDesc id = BuildDescFromLists(list_make1(makeString("id")), list_make1_oid(INT8OID),
									  list_make1_int(-1), list_make1_oid(InvalidOid));
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);

	check_sqlstate(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	SPI_connect();
	read_ids(&retry, arguments, store, id);
	plan_all(&retry, store, id, &planned, &skipped);
	SPI_finish();
	tuplestore_end(store);
	values[0] = Int64GetDatum(planned);
	values[1] = Int64GetDatum(skipped);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}
