/*
 * queue.c
 *		Every SQL statement on task rows: one function, one statement.
 *
 * The plans are saved for the life of the process, or until the table
 * changes.  This room knows neither processes nor latches, and it formats
 * nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "queue.h"
#include "shared.h"

#define MAX_ARGUMENTS 10

typedef enum QueueStatement
{
	STATEMENT_LOOK,
	STATEMENT_PEEK,
	STATEMENT_CLAIM,
	STATEMENT_RELEASE,
	STATEMENT_REPLAN,
	STATEMENT_FAIL,
	STATEMENT_WORK,
	STATEMENT_REFUSE,
	STATEMENT_REQUEST,
	STATEMENT_FINISH,
	STATEMENT_DELETE,
	STATEMENT_REPEAT,
	STATEMENT_INSERT_NEXT,
	STATEMENTS
} QueueStatement;

typedef struct Statement
{
	int nargs;
	Oid types[MAX_ARGUMENTS];
	const char *sql; /* %1$s: the table, %2$s: its inherited columns */
} Statement;

/* The columns of the index of waiting rows: these expressions match it. */
#define G_QUEUE "t.queue COLLATE \"C\""
#define G_MAX "coalesce(t.max, 2147483647)"
#define G_ROLE "t.role::text"
#define G_ALL G_QUEUE ", " G_MAX ", t.priority, " G_ROLE

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

/* clang-format off */
static const Statement statements[STATEMENTS] = {
	/* from group to group, one descent of the index each */
	[STATEMENT_LOOK] = {0, {0},
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

	[STATEMENT_PEEK] = {7,
		{TEXTOID, INT4OID, INT4OID, TEXTOID, TIMESTAMPTZOID, INT8OID, INT8OID},
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
	[STATEMENT_CLAIM] = {8,
		{INT8ARRAYOID, TEXTARRAYOID, INT4ARRAYOID, INT4ARRAYOID, TEXTARRAYOID, INT4ARRAYOID,
		 TIMESTAMPTZOID, TEXTOID},
		"WITH c AS MATERIALIZED ("
		"SELECT t.id, c.pid"
		"  FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6))"
		"       AS c (id, queue, max, priority, role, pid)"
		"  JOIN %1$s AS t ON t.id = c.id AND t.state = $8 AND t.dt <= $7"
		"   AND t.queue = c.queue AND " G_MAX " = c.max AND t.priority = c.priority"
		"   AND t.role = c.role::name"
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
	[STATEMENT_RELEASE] = {3, {INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID},
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
		" UPDATE %1$s AS t"
		"    SET state = 'PLAN', attempt = t.attempt - 1, start = NULL, pid = NULL"
		"   FROM c"
		"  WHERE t.id = c.id"},

	[STATEMENT_REPLAN] = {3, {INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID},
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
		" UPDATE %1$s AS t"
		"    SET state = 'PLAN'"
		"   FROM c"
		"  WHERE t.id = c.id"},

	[STATEMENT_FAIL] = {5,
		{INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID, TEXTOID, TEXTOID},
		"WITH c AS MATERIALIZED (" RUNS_NOT_LOCKED ")"
		" UPDATE %1$s AS t"
		"    SET state = 'FAIL', stop = clock_timestamp(), error = $4, sqlstate = $5,"
		"        response = 'FATAL:  ' || $4"
		"   FROM c"
		"  WHERE t.id = c.id"},

	[STATEMENT_WORK] = {0, {0},
		"SELECT t.id, t.attempt, " CLAIMED("t") ", t.queue"
		"  FROM %1$s AS t"
		" WHERE t.state = 'WORK'"},

	[STATEMENT_REFUSE] = {4, {INT8OID, TEXTOID, TEXTOID, TEXTOID},
		"UPDATE %1$s AS t"
		"   SET state = 'FAIL', stop = clock_timestamp(), error = $2, sqlstate = $3, response = $4"
		" WHERE t.id = (SELECT r.id"
		"                 FROM %1$s AS r"
		"                WHERE r.id = $1 AND r.state = 'PLAN'"
		"                  FOR NO KEY UPDATE SKIP LOCKED)"},

	[STATEMENT_REQUEST] = {3, {INT8OID, INT4OID, TIMESTAMPTZOID},
		"SELECT t.request"
		"  FROM %1$s AS t"
		" WHERE t.id = $1 AND t.attempt = $2 AND t.start = $3 AND t.state = 'WORK'"},

	[STATEMENT_FINISH] = {10,
		{INT8OID, INT4OID, TIMESTAMPTZOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID,
		 TEXTOID, TEXTOID},
		"UPDATE %1$s AS t"
		"   SET state = $4, start = $5, stop = $6, response = $7, error = $8, sqlstate = $9,"
		"       notice = $10, pid = pg_backend_pid()"
		" WHERE t.id = $1 AND t.attempt = $2 AND t.start = $3 AND t.state = 'WORK'"},

	[STATEMENT_DELETE] = {4, {INT8OID, INT4OID, TIMESTAMPTZOID, TEXTOID},
		"DELETE FROM %1$s AS t"
		" WHERE t.id = $1 AND t.attempt = $2 AND t.start = $3 AND t.state = $4"},

	[STATEMENT_REPEAT] = {1, {INT8OID},
		"SELECT t.dt, t.repeat, t.drift, t.timezone FROM %1$s AS t WHERE t.id = $1"},

	[STATEMENT_INSERT_NEXT] = {2, {INT8OID, TIMESTAMPTZOID},
		"INSERT INTO %1$s (parent, dt, %2$s)"
		" SELECT t.id, $2, %2$s FROM %1$s AS t WHERE t.id = $1"},
};
/* clang-format on */

static SPIPlanPtr plans[STATEMENTS];
static char *texts[STATEMENTS];

/* Free the plans: the table is another, or has changed. */
void
queue_forget(void)
{
	int i;

	for (i = 0; i < STATEMENTS; i++)
	{
		if (plans[i])
			SPI_freeplan(plans[i]);
		if (texts[i])
			pfree(texts[i]);
		plans[i] = NULL;
		texts[i] = NULL;
	}
}

static void
prepare(QueueStatement which, const TaskTable *table)
{
	const Statement *statement = &statements[which];
	SPIPlanPtr plan;

	plan = SPI_prepare_cursor(texts[which], statement->nargs, (Oid *) statement->types,
							  CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement on %s: %s", table->name,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	plans[which] = plan;
}

/*
 * Let the planner choose nothing but indexes: a plan is made when the table
 * may be empty, and kept while it grows.
 */
static int
fix_planner(void)
{
	static const char *const fixed[][2] = {
		{"enable_indexscan", "on"}, {"enable_nestloop", "on"},
		{"enable_seqscan", "off"},	{"enable_bitmapscan", "off"},
		{"enable_hashjoin", "off"}, {"enable_mergejoin", "off"},
		{"enable_sort", "off"},		{"jit", "off"},
	};
	int nest_level = NewGUCNestLevel();
	int i;

	for (i = 0; i < (int) lengthof(fixed); i++)
		(void) set_config_option(fixed[i][0], fixed[i][1], PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	return nest_level;
}

/* The statement that is being executed, and the only table it may be about. */
static const char *expected_sql = NULL;
static Oid expected_relid = InvalidOid;
static post_parse_analyze_hook_type next_analyze_hook = NULL;

static bool
is_expected(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *entry = (RangeTblEntry *) node;

		if (entry->rtekind == RTE_RELATION && entry->relid != expected_relid)
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, is_expected, context, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, is_expected, context);
}

/*
 * A statement of ours names its table, and the server may look the name up again
 * at any time.  If another table has it by then, the statement must not run: it
 * would do so with the rights of the owner of ours.
 */
static void
check_statement(ParseState *pstate, Query *query, COMPAT_JUMBLE_STATE *jumble)
{
	if (expected_sql && strcmp(pstate->p_sourcetext, expected_sql) == 0)
		(void) is_expected((Node *) query, NULL);
	if (next_analyze_hook)
		next_analyze_hook(pstate, query, jumble);
}

/* Once for a process that executes these statements. */
void
queue_define(void)
{
	next_analyze_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = check_statement;
}

/*
 * Execute a statement between SPI_connect and SPI_finish; the result is in
 * SPI_tuptable.  "nulls" as for SPI_execute_plan.
 */
static uint64
execute(QueueStatement which, const TaskTable *table, Datum *values, const char *nulls)
{
	int nest_level = 0;
	int code;

	if (texts[which] == NULL)
		texts[which] = MemoryContextStrdup(
			TopMemoryContext, psprintf(statements[which].sql, table->name, table->inherited));
	expected_sql = texts[which];
	expected_relid = table->relid;
	if (plans[which] == NULL || !SPI_plan_is_valid(plans[which]))
		nest_level = fix_planner();
	if (plans[which] == NULL)
		prepare(which, table);
	code = SPI_execute_plan(plans[which], values, nulls, false, 0);
	expected_sql = NULL;
	if (nest_level > 0)
		AtEOXact_GUC(false, nest_level);
	if (code < 0)
		elog(ERROR, "could not execute a statement on %s: %s", table->name,
			 SPI_result_code_string(code));
	return SPI_processed;
}

/* A column of a row of the last result; NULL is an error. */
static Datum
column(uint64 row, int number)
{
	bool isnull;
	Datum value = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, &isnull);

	if (isnull)
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("column \"%s\" of a task is null",
							   SPI_fname(SPI_tuptable->tupdesc, number))));
	return value;
}

static bool
column_is_null(uint64 row, int number)
{
	bool isnull;

	(void) SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, &isnull);
	return isnull;
}

/* A text column of the last result, in the context "where"; NULL for NULL. */
static char *
text_column(MemoryContext where, uint64 row, int number)
{
	MemoryContext old;
	char *result;

	if (column_is_null(row, number))
		return NULL;
	old = MemoryContextSwitchTo(where);
	result = TextDatumGetCString(column(row, number));
	MemoryContextSwitchTo(old);
	return result;
}

static Datum
array_datum(Datum *elements, int count, Oid type)
{
	int16 length;
	bool by_value;
	char align;

	get_typlenbyvalalign(type, &length, &by_value, &align);
	return PointerGetDatum(construct_array(elements, count, type, length, by_value, align));
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
	values[0] = array_datum(ids, count, INT8OID);
	values[1] = array_datum(attempts, count, INT4OID);
	values[2] = array_datum(claimed, count, TIMESTAMPTZOID);
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

		head->group.queue = text_column(caller, i, 1);
		head->group.max = DatumGetInt32(column(i, 2));
		head->group.priority = DatumGetInt32(column(i, 3));
		head->group.role = text_column(caller, i, 4);
		head->place.dt = DatumGetTimestampTz(column(i, 5));
		head->place.id = DatumGetInt64(column(i, 6));
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
		(*places)[i].dt = DatumGetTimestampTz(column(i, 1));
		(*places)[i].id = DatumGetInt64(column(i, 2));
	}
	SPI_finish();
	return (int) count;
}

static void
candidate_arrays(const QueueCandidate *candidates, int count, Datum *values)
{
	static const Oid types[] = {INT8OID, TEXTOID, INT4OID, INT4OID, TEXTOID, INT4OID};
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
	}
	for (i = 0; i < ntypes; i++)
		values[i] = array_datum(elements[i], count, types[i]);
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
	Datum values[8];
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

		claim->run.id = DatumGetInt64(column(i, 1));
		claim->run.attempt = DatumGetInt32(column(i, 2));
		claim->run.claimed = now;
		claim->timeout = column_is_null(i, 3) ? -1 : DatumGetInt64(column(i, 3));
		claim->repeats = DatumGetBool(column(i, 4));
		claim->deletes = DatumGetBool(column(i, 5));
		claim->format = text_column(caller, i, 6);
		claim->request = text_column(caller, i, 7);
	}
	SPI_finish();
	return (int) claimed;
}

static int
update_runs(QueueStatement which, const TaskTable *table, const TaskRun *runs, int count)
{
	Datum values[3];
	uint64 updated;

	SPI_connect();
	run_arrays(runs, count, values);
	updated = execute(which, table, values, NULL);
	SPI_finish();
	return (int) updated;
}

/*
 * Undo the claim of runs that never began.  Returns how many: others are these
 * runs no more, or somebody locks them.
 */
int
queue_release(const TaskTable *table, const TaskRun *runs, int count)
{
	return update_runs(STATEMENT_RELEASE, table, runs, count);
}

/* Plan again what was running in a process that is gone.  Returns how many. */
int
queue_replan(const TaskTable *table, const TaskRun *runs, int count)
{
	return update_runs(STATEMENT_REPLAN, table, runs, count);
}

/* Fail a run whose process is gone.  False: it is that run no more, or somebody locks it. */
bool
queue_fail(const TaskTable *table, TaskRun run, const TaskFailure *failure)
{
	Datum values[5];
	bool done;

	SPI_connect();
	run_arrays(&run, 1, values);
	values[3] = CStringGetTextDatum(failure->error);
	values[4] = CStringGetTextDatum(failure->sqlstate);
	done = execute(STATEMENT_FAIL, table, values, NULL) > 0;
	SPI_finish();
	return done;
}

/* All rows that are WORK. */
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

		row->run.id = DatumGetInt64(column(i, 1));
		row->run.attempt = DatumGetInt32(column(i, 2));
		row->run.claimed = DatumGetTimestampTz(column(i, 3));
		row->queue = text_column(caller, i, 4);
	}
	SPI_finish();
	return (int) count;
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
		request = text_column(caller, 0, 1);
	SPI_finish();
	return request;
}

/* Write the outcome of a run.  False: the row is no longer that run. */
bool
queue_finish(const TaskTable *table, TaskRun run, const TaskResult *result)
{
	Datum values[10] = {0};
	char nulls[10] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', 'n', 'n', 'n'};
	bool finished;

	SPI_connect();
	run_values(run, values);
	values[3] = CStringGetTextDatum(result->outcome == TASK_DONE ? "DONE" : "FAIL");
	values[4] = TimestampTzGetDatum(result->start);
	values[5] = TimestampTzGetDatum(result->stop);
	values[6] = CStringGetTextDatum(result->response);
	if (result->error)
	{
		values[7] = CStringGetTextDatum(result->error);
		values[8] = CStringGetTextDatum(result->sqlstate);
		nulls[7] = nulls[8] = ' ';
	}
	if (result->notice)
	{
		values[9] = CStringGetTextDatum(result->notice);
		nulls[9] = ' ';
	}
	finished = execute(STATEMENT_FINISH, table, values, nulls) > 0;
	SPI_finish();
	return finished;
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
	repeats = execute(STATEMENT_REPEAT, table, values, NULL) > 0 && !column_is_null(0, 2);
	if (repeats)
	{
		repeat->dt = DatumGetTimestampTz(column(0, 1));
		repeat->repeat = MemoryContextAlloc(caller, sizeof(Interval));
		*repeat->repeat = *DatumGetIntervalP(column(0, 2));
		repeat->drift = DatumGetBool(column(0, 3));
		repeat->timezone = text_column(caller, 0, 4);
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
