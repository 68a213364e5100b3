/*
 * rows.c
 *		Every SQL statement on task rows: one function, one statement.
 *
 * This file knows neither processes nor latches, and it formats nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "task/rows.h"
#include "task/rows_sql.h"

/* Free all plans: the table has changed, or it is a different one. */
void
rows_forget_plans(void)
{
	int i;

	for (i = 0; i < STATEMENTS; i++)
		statement_forget(&statements[i]);
}

static uint64
execute(RowStatement which, const TaskTable *table, Datum *values, const char *nulls)
{
	return statement_execute(&statements[which], table, values, nulls);
}

/* Set $1 to $3: parallel arrays of the ids, attempts and claim times of some runs. */
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

/* Set $1 to $3 of a statement on one run. */
static void
run_values(TaskRun run, Datum *values)
{
	values[0] = Int64GetDatum(run.id);
	values[1] = Int32GetDatum(run.attempt);
	values[2] = TimestampTzGetDatum(run.claimed);
}

/*
 * Read the next groups after "after" that have waiting rows, in order, with the first row of each.
 */
int
rows_scan(const TaskTable *table, const TaskGroup *after, int limit, GroupHead **heads)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[6];
	uint64 count;
	uint64 i;

	SPI_connect();
	values[0] = CStringGetTextDatum(after->queue);
	values[1] = Int32GetDatum(after->max);
	values[2] = Int32GetDatum(after->priority);
	values[3] = CStringGetTextDatum(after->role);
	values[4] = Int64GetDatum(after->role_id);
	values[5] = Int64GetDatum(limit);
	count = execute(STATEMENT_SCAN, table, values, NULL);
	*heads = MemoryContextAllocHuge(caller, Max(count, 1) * sizeof(GroupHead));
	for (i = 0; i < count; i++)
	{
		GroupHead *head = &(*heads)[i];

		head->group.queue = statement_text(caller, i, 1);
		head->group.max = DatumGetInt32(statement_value(i, 2));
		head->group.priority = DatumGetInt32(statement_value(i, 3));
		head->group.role = statement_text(caller, i, 4);
		head->place.dt = DatumGetTimestampTz(statement_value(i, 5));
		head->place.id = DatumGetInt64(statement_value(i, 6));
		head->group.role_id = DatumGetInt64(statement_value(i, 7));
		head->too_long = DatumGetBool(statement_value(i, 8));
	}
	SPI_finish();
	return (int) count;
}

/* Read the positions that the last statement returned; allocated in the context "where". */
static int
returned_places(MemoryContext where, uint64 count, TaskPlace **places)
{
	uint64 i;

	*places = MemoryContextAlloc(where, Max(count, 1) * sizeof(TaskPlace));
	for (i = 0; i < count; i++)
	{
		(*places)[i].dt = DatumGetTimestampTz(statement_value(i, 1));
		(*places)[i].id = DatumGetInt64(statement_value(i, 2));
	}
	return (int) count;
}

/* Read the next waiting rows of a group after a position, in order, due or not. */
int
rows_peek(const TaskTable *table, const TaskGroup *group, TaskPlace after, int limit,
		  TaskPlace **places)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[8];
	int count;

	SPI_connect();
	values[0] = CStringGetTextDatum(group->queue);
	values[1] = Int32GetDatum(group->max);
	values[2] = Int32GetDatum(group->priority);
	values[3] = CStringGetTextDatum(group->role);
	values[4] = TimestampTzGetDatum(after.dt);
	values[5] = Int64GetDatum(after.id);
	values[6] = Int64GetDatum(limit);
	values[7] = Int64GetDatum(group->role_id);
	count = returned_places(caller, execute(STATEMENT_PEEK, table, values, NULL), places);
	SPI_finish();
	return count;
}

static void
candidate_arrays(const Candidate *candidates, int count, Datum *values)
{
	static const Oid types[] = {INT8OID, TEXTOID,	INT4OID, INT4OID,		 TEXTOID,
								INT4OID, FLOAT8OID, BOOLOID, TIMESTAMPTZOID, INT8OID};
	Datum *elements[lengthof(types)];
	int ntypes = lengthof(types);
	int i;

	for (i = 0; i < ntypes; i++)
		elements[i] = palloc(count * sizeof(Datum));
	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = candidates[i].group;

		elements[0][i] = Int64GetDatum(candidates[i].place.id);
		elements[1][i] = CStringGetTextDatum(group->queue);
		elements[2][i] = Int32GetDatum(group->max);
		elements[3][i] = Int32GetDatum(group->priority);
		elements[4][i] = CStringGetTextDatum(group->role);
		elements[5][i] = Int32GetDatum(candidates[i].pid);
		elements[6][i] = Float8GetDatum(candidates[i].active / 1000.0);
		elements[7][i] = BoolGetDatum(candidates[i].isolated);
		elements[8][i] = TimestampTzGetDatum(candidates[i].place.dt);
		elements[9][i] = Int64GetDatum(group->role_id);
	}
	for (i = 0; i < ntypes; i++)
		values[i < 6 ? i : i + 2] = statement_array(elements[i], count, types[i]);
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
	MemoryContext caller = CurrentMemoryContext;
	Datum values[13];
	uint64 found;
	uint64 i;

	SPI_connect();
	candidate_arrays(candidates, count, values);
	values[6] = TimestampTzGetDatum(now);
	values[7] = CStringGetTextDatum("PLAN");
	values[12] = TimestampTzGetDatum(claimed);
	found = execute(table->partitioned ? STATEMENT_CLAIM_PARTITIONED : STATEMENT_CLAIM, table,
					values, NULL);
	*claims = MemoryContextAlloc(caller, Max(found, 1) * sizeof(Claim));
	for (i = 0; i < found; i++)
	{
		Claim *claim = &(*claims)[i];

		claim->run.id = DatumGetInt64(statement_value(i, 1));
		claim->run.attempt = DatumGetInt32(statement_value(i, 2));
		claim->run.claimed = claimed;
		claim->timeout = statement_is_null(i, 3) ? -1 : DatumGetInt64(statement_value(i, 3));
		claim->repeats = DatumGetBool(statement_value(i, 4));
		claim->deletes = DatumGetBool(statement_value(i, 5));
		claim->format = statement_text(caller, i, 6);
		claim->request = statement_text(caller, i, 7);
		claim->role = statement_text(caller, i, 8);
		claim->role_id = DatumGetInt64(statement_value(i, 9));
	}
	SPI_finish();
	return (int) found;
}

/* Comparator for qsort and bsearch: ids in ascending order. */
int
rows_compare_ids(const void *a, const void *b)
{
	int64 left = *(const int64 *) a;
	int64 right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/* Read the ids that the last statement returned; allocated in the context "where". */
static int
returned_ids(MemoryContext where, uint64 count, int64 **ids)
{
	uint64 i;

	*ids = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(int64));
	for (i = 0; i < count; i++)
		(*ids)[i] = DatumGetInt64(statement_value(i, 1));
	return (int) count;
}

/* Read the runs that the last statement returned; allocated in the context "where". */
static int
returned_runs(MemoryContext where, uint64 count, TaskRun **runs)
{
	uint64 i;

	*runs = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(TaskRun));
	for (i = 0; i < count; i++)
	{
		(*runs)[i].id = DatumGetInt64(statement_value(i, 1));
		(*runs)[i].attempt = DatumGetInt32(statement_value(i, 2));
		(*runs)[i].claimed = DatumGetTimestampTz(statement_value(i, 3));
	}
	return (int) count;
}

/*
 * Lock those of these waiting rows that nobody else has locked, until the end of the transaction.
 * Returns their ids, in ascending order.
 */
int
rows_unlocked(const TaskTable *table, const TaskPlace *places, int count, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum *elements = palloc((count + 1) * sizeof(Datum));
	Datum values[2];
	int i;

	for (i = 0; i < count; i++)
		elements[i] = Int64GetDatum(places[i].id);
	SPI_connect();
	values[0] = statement_array(elements, count, INT8OID);
	values[1] = CStringGetTextDatum("PLAN");
	count = returned_ids(caller, execute(STATEMENT_UNLOCKED, table, values, NULL), ids);
	SPI_finish();
	qsort(*ids, count, sizeof(int64), rows_compare_ids);
	return count;
}

/*
 * Undo the claim of runs that never began.  Returns the runs for which that was done: the rows of
 * the others no longer belong to these runs, or somebody has locked them.
 */
int
rows_release(const TaskTable *table, const TaskRun *runs, int count, TaskRun **done)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[4];

	SPI_connect();
	run_arrays(runs, count, values);
	values[3] = CStringGetTextDatum("WORK");
	count = returned_runs(caller, execute(STATEMENT_RELEASE, table, values, NULL), done);
	SPI_finish();
	return count;
}

/*
 * Plan again, due at once, the runs of a process that has exited, and record the reason.  Returns
 * the runs for which that was done, as rows_release does.
 */
int
rows_replan(const TaskTable *table, const TaskRun *runs, int count, const TaskFailure *why,
			TaskRun **done)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[6];

	SPI_connect();
	run_arrays(runs, count, values);
	values[3] = CStringGetTextDatum(why->error);
	values[4] = CStringGetTextDatum(why->sqlstate);
	values[5] = CStringGetTextDatum("WORK");
	count = returned_runs(caller, execute(STATEMENT_REPLAN, table, values, NULL), done);
	SPI_finish();
	return count;
}

static int
compare_work(const void *a, const void *b)
{
	return task_compare_runs(((const WorkingRow *) a)->run, ((const WorkingRow *) b)->run);
}

/* Read the rows that the last statement returned, and sort them by run. */
static int
returned_work(MemoryContext where, uint64 count, WorkingRow **rows)
{
	uint64 i;

	*rows = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(WorkingRow));
	for (i = 0; i < count; i++)
	{
		WorkingRow *row = &(*rows)[i];

		row->run.id = DatumGetInt64(statement_value(i, 1));
		row->run.attempt = DatumGetInt32(statement_value(i, 2));
		row->run.claimed = DatumGetTimestampTz(statement_value(i, 3));
		row->queue = statement_text(where, i, 4);
	}
	qsort(*rows, count, sizeof(WorkingRow), compare_work);
	return (int) count;
}

/* Read up to "limit" rows in state WORK, in no particular order. */
int
rows_working(const TaskTable *table, int limit, WorkingRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[1] = {Int64GetDatum(limit)};
	int count;

	SPI_connect();
	count = returned_work(caller, execute(STATEMENT_WORK, table, values, NULL), rows);
	SPI_finish();
	return count;
}

/* Find those of these runs that still have their row in state WORK, sorted by run. */
int
rows_of_runs(const TaskTable *table, const TaskRun *runs, int count, WorkingRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[4];

	SPI_connect();
	run_arrays(runs, count, values);
	values[3] = CStringGetTextDatum("WORK");
	count = returned_work(caller, execute(STATEMENT_RUNS, table, values, NULL), rows);
	SPI_finish();
	return count;
}

/*
 * Find the row of this run among the rows that rows_working or rows_of_runs returned; or NULL.
 * Without rows the pointer may be NULL, which bsearch does not allow.
 */
const WorkingRow *
rows_contain(const WorkingRow *rows, int count, TaskRun run)
{
	WorkingRow key = {.run = run};

	if (count == 0)
		return NULL;
	return bsearch(&key, rows, count, sizeof(WorkingRow), compare_work);
}

/*
 * Find the waiting tasks that are suspects: the server may have crashed because of them, and they
 * must be run isolated.
 */
int
rows_isolated(const TaskTable *table, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[1] = {CStringGetTextDatum("PLAN")};
	int count;

	SPI_connect();
	count = returned_ids(caller, execute(STATEMENT_ISOLATED, table, values, NULL), ids);
	SPI_finish();
	return count;
}

/*
 * Find up to "limit" waiting tasks that have expired by their column "active"; the earliest expiry
 * comes first.  Defaults of roles are not considered.
 */
int
rows_expired(const TaskTable *table, TimestampTz now, int limit, TaskPlace **places)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[2] = {TimestampTzGetDatum(now), Int64GetDatum(limit)};
	int count;

	SPI_connect();
	count = returned_places(caller, execute(STATEMENT_EXPIRED, table, values, NULL), places);
	SPI_finish();
	return count;
}

/* Set those of these candidates to GONE that have expired. */
int
rows_expire(const TaskTable *table, TimestampTz now, const Candidate *candidates, int count,
			RowKey **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum *elements[3] = {palloc(count * sizeof(Datum)), palloc(count * sizeof(Datum)),
						  palloc(count * sizeof(Datum))};
	Datum values[5];
	int i;

	SPI_connect();
	for (i = 0; i < count; i++)
	{
		elements[0][i] = Int64GetDatum(candidates[i].place.id);
		elements[2][i] = TimestampTzGetDatum(candidates[i].place.dt);
		elements[1][i] = Float8GetDatum(candidates[i].active / 1000.0);
	}
	values[0] = TimestampTzGetDatum(now);
	values[1] = statement_array(elements[0], count, INT8OID);
	values[2] = statement_array(elements[1], count, FLOAT8OID);
	values[3] = CStringGetTextDatum("PLAN");
	values[4] = statement_array(elements[2], count, TIMESTAMPTZOID);
	count = (int) execute(STATEMENT_EXPIRE, table, values, NULL);
	*rows = MemoryContextAlloc(caller, Max(count, 1) * sizeof(RowKey));
	for (i = 0; i < count; i++)
	{
		(*rows)[i].id = DatumGetInt64(statement_value(i, 1));
		(*rows)[i].role = statement_text(caller, i, 2);
	}
	SPI_finish();
	return count;
}

/* When the next waiting task expires; DT_NOEND if none does. */
TimestampTz
rows_next_expiry(const TaskTable *table)
{
	TimestampTz expiry = DT_NOEND;

	SPI_connect();
	if (execute(STATEMENT_EXPIRY, table, NULL, NULL) > 0)
		expiry = DatumGetTimestampTz(statement_value(0, 1));
	SPI_finish();
	return expiry;
}

/* Set a waiting task that cannot be started to FAIL.  Returns false if it no longer waits. */
bool
row_fail(const TaskTable *table, RowKey row, const char *error, const char *sqlstate)
{
	Datum values[6];
	bool refused;

	SPI_connect();
	values[0] = Int64GetDatum(row.id);
	values[1] = CStringGetTextDatum(error);
	values[2] = CStringGetTextDatum(sqlstate);
	values[3] = CStringGetTextDatum(psprintf("ERROR:  %s", error));
	values[4] = CStringGetTextDatum(row.role);
	values[5] = CStringGetTextDatum("PLAN");
	refused = execute(STATEMENT_REFUSE, table, values, NULL) > 0;
	SPI_finish();
	return refused;
}

/* Set $1 to $4 of a statement on waiting rows of a group. */
static void
group_values(const TaskGroup *group, const int64 *ids, int count, Datum *values)
{
	Datum *elements = palloc(count * sizeof(Datum));
	int i;

	for (i = 0; i < count; i++)
		elements[i] = Int64GetDatum(ids[i]);
	values[0] = statement_array(elements, count, INT8OID);
	values[1] = CStringGetTextDatum("PLAN");
	values[2] = CStringGetTextDatum(group->role);
	values[3] = Int64GetDatum(group->role_id);
}

/*
 * Set waiting tasks of a group to FAIL, because its role was dropped.  Returns how many were set:
 * the others are locked by somebody.
 */
int
rows_fail_role_gone(const TaskTable *table, const TaskGroup *group, const int64 *ids, int count,
					const char *error, const char *sqlstate)
{
	Datum values[7];

	SPI_connect();
	group_values(group, ids, count, values);
	values[4] = CStringGetTextDatum(error);
	values[5] = CStringGetTextDatum(sqlstate);
	values[6] = CStringGetTextDatum(psprintf("ERROR:  %s", error));
	count = (int) execute(STATEMENT_ROLE_GONE, table, values, NULL);
	SPI_finish();
	return count;
}

/*
 * Bind waiting tasks of a group to a role, and set its current name.  Returns how many were bound:
 * the others are locked by somebody.
 */
int
rows_bind(const TaskTable *table, const TaskGroup *group, const int64 *ids, int count,
		  const char *role, int64 role_id)
{
	Datum values[6];

	SPI_connect();
	group_values(group, ids, count, values);
	values[4] = CStringGetTextDatum(role);
	values[5] = Int64GetDatum(role_id);
	count = (int) execute(STATEMENT_BIND, table, values, NULL);
	SPI_finish();
	return count;
}

/* Read the request of a run; NULL if the row no longer belongs to that run. */
char *
row_request(const TaskTable *table, TaskRun run)
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

/* Set a run to DONE.  Returns false if the row no longer belongs to that run. */
bool
row_finish(const TaskTable *table, TaskRun run, const TaskResult *result)
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
 * Write the outcome of a run that did not end with DONE.  A task that was stopped keeps state
 * STOP, and its row records how the run ended.  Returns false if the row no longer belongs to that
 * run.
 */
bool
row_end(const TaskTable *table, TaskRun run, const TaskResult *result)
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
 * Lock the row of a run, and read what decides whether it is retried.  Returns false if the row no
 * longer belongs to that run, or if somebody has locked it and "wait" is false.
 */
bool
row_retry(const TaskTable *table, TaskRun run, bool wait, RowRetry *retry)
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
		retry->role_id = DatumGetInt64(statement_value(0, 10));
	}
	SPI_finish();
	return found;
}

/*
 * Delete the row of a run that is in this state.  Returns false if the row no longer belongs to
 * that run.
 */
bool
row_delete(const TaskTable *table, TaskRun run, const char *state)
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

/* Read how a task repeats.  Returns false if it does not, or if the row was deleted. */
bool
row_repeat(const TaskTable *table, RowKey row, RowRepeat *repeat)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[2] = {Int64GetDatum(row.id), CStringGetTextDatum(row.role)};
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
		repeat->role_id = DatumGetInt64(statement_value(0, 5));
	}
	SPI_finish();
	return repeats;
}

/* Plan the next run of a repeating task: insert a new row, made from this one. */
void
row_insert_next(const TaskTable *table, RowKey row, TimestampTz dt)
{
	Datum values[3] = {Int64GetDatum(row.id), TimestampTzGetDatum(dt),
					   CStringGetTextDatum(row.role)};

	SPI_connect();
	execute(STATEMENT_INSERT_NEXT, table, values, NULL);
	SPI_finish();
}
