/*
 * statement.c
 *		Executes the statements on task rows, and reads their results.
 *
 * A plan is saved for the life of the process, or until the table changes.  It is made under fixed
 * planner settings, and is used only for the table that was checked.
 *
 * This file knows no column of the table.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "executor/spi.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

#include "compat.h"
#include "task/statement.h"
#include "task/watch.h"

/* Free the plan: the table has changed, or it is a different one. */
void
statement_forget(Statement *statement)
{
	if (statement->plan)
		SPI_freeplan(statement->plan);
	if (statement->text)
		pfree(statement->text);
	statement->plan = NULL;
	statement->text = NULL;
}

static void
prepare(Statement *statement, const TaskTable *table)
{
	SPIPlanPtr plan;

	plan = SPI_prepare_cursor(statement->text, statement->nargs, statement->types,
							  CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement on %s: %s", table->name,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	statement->plan = plan;
}

/*
 * Make the planner use indexes only.  The table may be empty when a plan is made, and it grows
 * while the plan is kept.
 */
static int
fix_planner(void)
{
	static const char *const fixed[][2] = {
		{"enable_indexscan", "on"},	 {"enable_nestloop", "on"},
		{"enable_seqscan", "off"},	 {"enable_bitmapscan", "off"},
		{"enable_hashjoin", "off"},	 {"enable_mergejoin", "off"},
		{"enable_sort", "off"},		 {"enable_material", "off"},
		{"enable_tidscan", "on"},	 {"jit", "off"},
		{"plan_cache_mode", "auto"}, {"max_parallel_workers_per_gather", "0"},
	};
	int nest_level = NewGUCNestLevel();
	int i;

	for (i = 0; i < (int) lengthof(fixed); i++)
		(void) set_config_option(fixed[i][0], fixed[i][1], PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	return nest_level;
}

/* The statement that is being executed, and the only table that it may use. */
static const char *expected_sql = NULL;
static Oid expected_relid = InvalidOid;
static bool expected_members = false; /* the table has partitions */
static post_parse_analyze_hook_type next_analyze_hook = NULL;
static ExecutorStart_hook_type next_executor_hook = NULL;

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
 * post_parse_analyze hook.  Our statements contain the name of the task table, and the server may
 * resolve the name again at any time.  If another table has the name by then, the statement must
 * not run: it would do so with the rights of the owner of the task table.
 */
static void
check_statement(ParseState *pstate, Query *query, COMPAT_JUMBLE_STATE *jumble)
{
	if (expected_sql && strcmp(pstate->p_sourcetext, expected_sql) == 0)
		(void) is_expected((Node *) query, NULL);
	if (next_analyze_hook)
		next_analyze_hook(pstate, query, jumble);
}

/*
 * The partitions were checked together with the table.  If the plan contains a partition that was
 * attached later, the statement must not touch it: it would fire the triggers of that partition.
 */
static void
check_members(const PlannedStmt *plan)
{
	ListCell *cell;

	foreach(cell, plan->rtable)
	{
		const RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

		if (entry->rtekind == RTE_RELATION && !watch_covers(entry->relid))
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
	}
}

static void
start_executor(QueryDesc *query, int flags)
{
	if (expected_sql && expected_members && strcmp(query->sourceText, expected_sql) == 0)
		check_members(query->plannedstmt);
	if (next_executor_hook)
		next_executor_hook(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

/* Called once per process that executes these statements. */
void
statement_define(void)
{
	next_analyze_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = check_statement;
	next_executor_hook = ExecutorStart_hook;
	ExecutorStart_hook = start_executor;
}

/*
 * Execute a statement, between SPI_connect and SPI_finish.  The result is in SPI_tuptable.
 * "nulls" is as for SPI_execute_plan.
 */
uint64
statement_execute(Statement *statement, const TaskTable *table, Datum *values, const char *nulls)
{
	volatile int nest_level = 0;
	volatile int code = 0;

	if (statement->text == NULL)
		statement->text = MemoryContextStrdup(
			TopMemoryContext, psprintf(statement->sql, table->rows, table->name, table->inherited));
	expected_sql = statement->text;
	expected_relid = table->relid;
	expected_members = table->partitioned;
	PG_TRY();
	{
		if (statement->plan == NULL || !SPI_plan_is_valid(statement->plan) ||
			plan_cache_mode != PLAN_CACHE_MODE_AUTO)
			nest_level = fix_planner();
		if (statement->plan == NULL)
			prepare(statement, table);
		code = SPI_execute_plan(statement->plan, values, nulls, false, 0);
	}
	PG_FINALLY();
	{
		expected_sql = NULL;
	}
	PG_END_TRY();
	if (nest_level > 0)
		AtEOXact_GUC(false, nest_level);
	if (code < 0)
		elog(ERROR, "could not execute a statement on %s: %s", table->name,
			 SPI_result_code_string(code));
	return SPI_processed;
}

/* A column of a row of the last result.  Raises an error for NULL. */
Datum
statement_value(uint64 row, int number)
{
	bool isnull;
	Datum value = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, &isnull);

	if (isnull)
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("column \"%s\" of a task is null",
							   SPI_fname(SPI_tuptable->tupdesc, number))));
	return value;
}

bool
statement_is_null(uint64 row, int number)
{
	bool isnull;

	(void) SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, &isnull);
	return isnull;
}

/* A text column of the last result, allocated in the context "where"; NULL for NULL. */
char *
statement_text(MemoryContext where, uint64 row, int number)
{
	MemoryContext old;
	char *result;

	if (statement_is_null(row, number))
		return NULL;
	old = MemoryContextSwitchTo(where);
	result = TextDatumGetCString(statement_value(row, number));
	MemoryContextSwitchTo(old);
	return result;
}

/* Build an array argument. */
Datum
statement_array(Datum *elements, int count, Oid type)
{
	int16 length;
	bool by_value;
	char align;

	get_typlenbyvalalign(type, &length, &by_value, &align);
	return PointerGetDatum(construct_array(elements, count, type, length, by_value, align));
}
