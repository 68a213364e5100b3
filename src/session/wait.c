/*
 * wait.c
 *		pg_task_wait and pg_task_wait_for: wait until tasks have ended.  pg_task_drain: until
 *		nothing is due.
 *
 * The caller is woken by the commits that end tasks, one of its tasks after the other, and looks at
 * the rows each time, with a snapshot of its own and the rights of the caller.  A lock that a look
 * takes is released before the caller sleeps: the procedure commits, the function rolls back the
 * subtransaction in which it has looked.  The function runs in a statement, which keeps its
 * snapshot, so it waits for a short time only.  A session whose client is gone ends soon.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "nodes/parsenodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "session/result_set.h"
#include "session/table_access.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/waiters.h"
#include "task/subtransaction.h"

COMPAT_FUNCTION(pg_task_wait);
COMPAT_FUNCTION(pg_task_wait_for);
COMPAT_FUNCTION(pg_task_drain);

/* The most rows that one statement reads. */
#define LOOK_ROWS 1000

/*
 * The longest wait of the function, in seconds, and its default.  So long its statement keeps a
 * snapshot, and VACUUM from removing rows.
 */
#define FUNCTION_SECONDS 10

/*
 * Look again after this time (ms), whatever happens: no commit tells of a table that was dropped,
 * of its rows if its triggers are disabled, or of rows that the caller does not see any more.
 */
#define LOOK_MS 60000

/* So often (ms) pg_task_drain looks which tasks it waits for: one may have been put off. */
#define DRAIN_LOOK_MS 1000

/* The owner of the table may have dropped the check of the column: longer ones are cut. */
typedef char TaskState[8];

/* Tasks that are waited for, in their order. */
typedef struct TaskWait
{
	int count;
	int64 *ids;
	TaskState *states; /* as they were last seen; "": there is no row */
	int ended;		   /* so many of the first have ended */
	bool mine;		   /* the next one was written by this transaction */
	MonoTime until;	   /* CLOCK_NEVER: without end */
	uint32 wait_event;
	MemoryContext scratch; /* of one look */
} TaskWait;

/* Of a partitioned table several rows may have the id: then one that has not ended counts. */
static const char look_sql[] =
	"SELECT s.state, s.writer FROM pg_catalog.unnest($1) WITH ORDINALITY AS a (id, n)"
	"  LEFT JOIN LATERAL (SELECT t.state::pg_catalog.text, %s AS writer FROM %s AS t"
	"                      WHERE t.id OPERATOR(pg_catalog.=) a.id"
	"                      ORDER BY t.state OPERATOR(pg_catalog.=) ANY"
	"                               (ARRAY['PLAN'::pg_catalog.text, 'WORK']) DESC"
	"                      LIMIT 1) AS s ON true"
	" ORDER BY a.n";

/* ---- a look ---- */

/* Read the states of some tasks.  Returns how many of the first have ended. */
static int
look(TaskWait *wait, int first, int count)
{
	/* a right to the system column is needed only where it can matter */
	const char *writer =
		TransactionIdIsValid(GetTopTransactionIdIfAny()) ? "t.xmin" : "NULL::pg_catalog.xid";
	MemoryContext old = MemoryContextSwitchTo(wait->scratch);
	Datum *ids = palloc(count * sizeof(Datum));
	int front = -1;
	TableAccess access;
	Datum value;
	int i;

	for (i = 0; i < count; i++)
		ids[i] = Int64GetDatum(wait->ids[first + i]);
	value = PointerGetDatum(
		construct_array(ids, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	PushActiveSnapshot(GetTransactionSnapshot());
	access = table_access_open(ACCESS_ROWS);
	if (table_access_execute(&access, psprintf(look_sql, writer, access.rows),
							 (SPIExecuteOptions){.params = table_access_param(INT8ARRAYOID, value)},
							 SPI_OK_SELECT) != (uint64) count)
		elog(ERROR, "could not read the states of tasks");
	PopActiveSnapshot();
	for (i = 0; i < count; i++)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		const char *state = SPI_getvalue(tuple, SPI_tuptable->tupdesc, 1);
		bool isnull;
		Datum xmin = SPI_getbinval(tuple, SPI_tuptable->tupdesc, 2, &isnull);

		strlcpy(wait->states[first + i], state ? state : "", sizeof(TaskState));
		if (front >= 0 || (strcmp(wait->states[first + i], "PLAN") != 0 &&
						   strcmp(wait->states[first + i], "WORK") != 0))
			continue;
		front = i;
		wait->mine = !isnull && TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
	}
	SPI_freetuptable(SPI_tuptable);
	MemoryContextSwitchTo(old);
	MemoryContextReset(wait->scratch);
	return front < 0 ? count : front;
}

/*
 * Look at the tasks of a TaskWait from the first that had not ended.  Twice as many each time that
 * all have, so each is looked at a few times, however many are waited for and in whichever order
 * they end.
 */
static void
look_on(void *arg)
{
	TaskWait *wait = arg;
	int chunk = 1;
	int front;
	int count;

	do
	{
		CHECK_FOR_INTERRUPTS();
		count = Min(chunk, wait->count - wait->ended);
		front = look(wait, wait->ended, count);
		wait->ended += front;
		chunk = Min(chunk * 2, LOOK_ROWS);
	} while (front == count && wait->ended < wait->count);
}

/* Look at the tasks of a TaskWait that have not ended when the time is over. */
static void
look_at_rest(void *arg)
{
	TaskWait *wait = arg;
	int i;

	for (i = wait->ended; i < wait->count; i += LOOK_ROWS)
		(void) look(wait, i, Min(LOOK_ROWS, wait->count - i));
}

/* ---- the wait ---- */

/* Refuse what would never end: the next task has not ended, and the caller would sleep. */
static void
check_next(const TaskWait *wait)
{
	int64 id = wait->ids[wait->ended];

	if (id == Settings.task_id && id != SETTINGS_NO_TASK)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("task " INT64_FORMAT " cannot wait for itself", id)));
	if (wait->mine)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("task " INT64_FORMAT " cannot end before this transaction", id),
						errdetail("This transaction has inserted it or changed it."),
						errhint("COMMIT before you wait for it.")));
}

/*
 * Sleep until the next task may have ended since "ends" were counted, or the time is over.  Returns
 * false if it is.
 */
static bool
sleep_for_next(TaskWait *wait, uint32 ends)
{
	MonoTime now = clock_mono();
	MonoTime again = clock_plus_ms(now, LOOK_MS);

	if (!clock_is_before(now, wait->until))
		return false;
	waiters_sleep(wait->ids[wait->ended], ends, clock_ms_until(now, clock_min(again, wait->until)),
				  wait->wait_event);
	return true;
}

/* Look at the tasks in a subtransaction that is rolled back: so it leaves no lock. */
static void
look_and_undo(void (*call)(void *arg), TaskWait *wait)
{
	ErrorData *error = subtransaction_try(call, wait, false);

	if (error)
		ReThrowError(error);
}

/*
 * Wait until all tasks have ended, or the time is over.  "commits": the transaction is ours to end.
 * Each task is looked at after its ends were counted, with a snapshot that is taken then; one that
 * has ended earlier is not missed, and one that ends later wakes us.
 */
static void
wait_for_end(TaskWait *wait, bool commits)
{
	bool goes_on = wait->count > 0;

	while (goes_on)
	{
		int before = wait->ended;
		uint32 ends = waiters_count_ends(wait->ids[before]);

		if (commits)
		{
			look_on(wait);
			SPI_commit();
		}
		else
			look_and_undo(look_on, wait);
		if (wait->ended == wait->count)
			break;
		if (wait->ended > before)
			continue; /* the next one belongs to another condition variable */
		if (clock_is_before(clock_mono(), wait->until))
			check_next(wait);
		goes_on = sleep_for_next(wait, ends);
	}
}

/* ---- the arguments ---- */

/* How long a timeout is from now, in microseconds; PG_INT64_MAX: without end. */
static int64
length_of(const Interval *timeout)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz end = DatumGetTimestampTz(DirectFunctionCall2(
		timestamptz_pl_interval, TimestampTzGetDatum(now), IntervalPGetDatum(timeout)));

	if (end < now)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the timeout must not be negative")));
	return TIMESTAMP_IS_NOEND(end) ? PG_INT64_MAX : end - now;
}

/*
 * Begin a wait with the timeout in the second argument, in the current memory context.  "longest":
 * the longest timeout, which is the default, in microseconds.
 */
static TaskWait
begin_wait(FunctionCallInfo fcinfo, int64 longest)
{
	TaskWait wait = {.until = CLOCK_NEVER, .wait_event = COMPAT_WAIT_EVENT("PgTaskWait")};
	int64 length = longest;

	shared_require();
	if (RecoveryInProgress())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("a standby cannot wait for tasks"),
						errhint("Wait on the primary, where they run.")));
	if (!PG_ARGISNULL(1))
		length = length_of(PG_GETARG_INTERVAL_P(1));
	if (length > longest)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("pg_task_wait waits for %d seconds at most", FUNCTION_SECONDS),
						errhint("Call it again while tasks have not ended, or CALL"
								" pg_task_wait_for outside of a transaction block.")));
	if (length < PG_INT64_MAX)
		wait.until.us = clock_mono().us + length;
	wait.scratch =
		AllocSetContextCreate(CurrentMemoryContext, "pg_task wait", ALLOCSET_DEFAULT_SIZES);
	return wait;
}

/* The same, for the tasks in the first argument. */
static TaskWait
read_arguments(FunctionCallInfo fcinfo, int64 longest)
{
	TaskWait wait = begin_wait(fcinfo, longest);
	ArrayType *array;

	if (PG_ARGISNULL(0))
		return wait;
	array = DatumGetArrayTypePCopy(PG_GETARG_DATUM(0));
	if (array_contains_nulls(array))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the ids of tasks must not be null")));
	wait.count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	wait.ids = (int64 *) ARR_DATA_PTR(array);
	wait.states = palloc0(wait.count * sizeof(TaskState) + 1);
	return wait;
}

/*
 * pg_task_wait(ids, timeout): wait until all these tasks have ended, or the time is over.  Returns
 * them with their states: at their ends, or now of those that have not ended.
 */
Datum
pg_task_wait(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result;
	TaskWait wait;
	int i;

	if (IsolationUsesXactSnapshot())
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("pg_task_wait needs the isolation level READ COMMITTED"),
						errdetail("This transaction sees nothing that ends after its first query."),
						errhint("CALL pg_task_wait_for outside of a transaction block.")));
	result = result_set_begin(fcinfo, 2);
	SPI_connect();
	wait = read_arguments(fcinfo, FUNCTION_SECONDS * USECS_PER_SEC);
	wait_for_end(&wait, false);
	look_and_undo(look_at_rest, &wait);
	for (i = 0; i < wait.count; i++)
	{
		Datum values[] = {Int64GetDatum(wait.ids[i]), (Datum) 0};
		bool isnull[] = {false, wait.states[i][0] == '\0'};

		if (!isnull[1])
			values[1] = CStringGetTextDatum(wait.states[i]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
	}
	SPI_finish();
	return (Datum) 0;
}

/* A procedure that commits begins: connect to SPI. */
static void
begin_procedure(FunctionCallInfo fcinfo, const char *name)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		((CallContext *) fcinfo->context)->atomic)
		ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
						errmsg("%s cannot run inside a transaction block", name),
						errhint("CALL it outside of one, or use the function pg_task_wait.")));
	SPI_connect_ext(SPI_OPT_NONATOMIC);
}

/*
 * pg_task_wait_for(ids, timeout): a procedure that waits until all these tasks have ended, and
 * holds no snapshot and no lock meanwhile.
 */
Datum
pg_task_wait_for(PG_FUNCTION_ARGS)
{
	TaskWait wait;

	begin_procedure(fcinfo, "pg_task_wait_for");
	wait = read_arguments(fcinfo, PG_INT64_MAX);
	SPI_commit();
	wait_for_end(&wait, true);
	if (wait.ended < wait.count)
		ereport(NOTICE, (errmsg("the time is over: %d of %d tasks have not ended or come after"
								" one that has not",
								wait.count - wait.ended, wait.count)));
	SPI_finish();
	PG_RETURN_VOID();
}

/* ---- until nothing is due ---- */

/* The columns of pg_task_remaining. */
#define REMAINING_IDS 1
#define REMAINING_COUNTS 4

/*
 * Wait for the tasks that remain in a queue (NULL: in any) when the procedure was called "since",
 * up to LOOK_ROWS of them.  Set the counts, and commit.
 */
static void
find_remaining(TaskWait *wait, text *queue, TimestampTz since, Datum *counts)
{
	Oid types[] = {TEXTOID, TIMESTAMPTZOID};
	Datum values[] = {PointerGetDatum(queue), TimestampTzGetDatum(since)};
	ArrayType *ids;
	bool isnull;
	int i;

	if (SPI_execute_with_args("SELECT * FROM pg_catalog.pg_task_remaining($1, $2)", 2, types,
							  values, queue ? NULL : "n ", false, 0) != SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "could not read which tasks remain");
	for (i = REMAINING_IDS; i < REMAINING_COUNTS; i++)
		counts[i - REMAINING_IDS] =
			SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1, &isnull);
	ids = DatumGetArrayTypeP(
		SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, REMAINING_IDS, &isnull));
	wait->ended = 0;
	wait->count = Min(ArrayGetNItems(ARR_NDIM(ids), ARR_DIMS(ids)), LOOK_ROWS);
	memcpy(wait->ids, ARR_DATA_PTR(ids), wait->count * sizeof(int64));
	SPI_freetuptable(SPI_tuptable);
	SPI_commit();
}

/*
 * pg_task_drain(queue, timeout): a procedure that waits until no task of a queue is due that the
 * caller sees, and returns how many rows are DONE, have failed, and are due when the time is over.
 */
Datum
pg_task_drain(PG_FUNCTION_ARGS)
{
	TimestampTz since = GetCurrentTimestamp();
	Datum counts[REMAINING_COUNTS - REMAINING_IDS];
	bool isnull[lengthof(counts)] = {false};
	text *queue;
	TaskWait wait;
	MonoTime until;

	begin_procedure(fcinfo, "pg_task_drain");
	wait = begin_wait(fcinfo, PG_INT64_MAX);
	until = wait.until;
	queue = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_P_COPY(0);
	wait.ids = palloc(LOOK_ROWS * sizeof(int64));
	wait.states = palloc(LOOK_ROWS * sizeof(TaskState));
	find_remaining(&wait, queue, since, counts);
	while (wait.count > 0 && clock_is_before(clock_mono(), until))
	{
		wait.until = clock_min(until, clock_plus_ms(clock_mono(), DRAIN_LOOK_MS));
		wait_for_end(&wait, true);
		find_remaining(&wait, queue, since, counts);
	}
	SPI_finish();
	PG_RETURN_DATUM(HeapTupleGetDatum(
		heap_form_tuple(result_row_desc(fcinfo, lengthof(counts)), counts, isnull)));
}
