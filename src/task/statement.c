/*
 * statement.c
 *		Executes the statements on task rows, and reads their results.
 *
 * A plan is saved for the life of the process, or until the table changes.  It is made under fixed
 * planner settings, and is used only for the table that was checked.  At the first execution the
 * names in the text are replaced by the name of the table and the numbers of the arguments.
 *
 * The texts are beside the functions that execute them; this file knows no column of the table.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "task/owner.h"
#include "task/statement.h"
#include "task/table.h"

/* A prepared statement.  In TopMemoryContext. */
typedef struct SavedPlan
{
	const Statement *statement;
	char *text; /* with names and numbers filled in */
	SPIPlanPtr plan;
} SavedPlan;

/*
 * Static, because plans live as long as the process, or until the table changes: making one takes
 * longer than most tasks.
 */
static List *plans; /* of SavedPlan */

/* Free all plans: the table has changed, or it is a different one. */
void
statement_forget_plans(void)
{
	List *old = plans;
	ListCell *cell;

	plans = NIL;
	foreach(cell, old)
	{
		const SavedPlan *saved = lfirst(cell);

		if (saved->plan)
			SPI_freeplan(saved->plan);
		pfree(saved->text);
	}
	list_free_deep(old);
}

/*
 * Lock the table of which this process keeps the description in *kept, in TopMemoryContext, so that
 * its definition cannot change until the end of the transaction.  If it may have changed before
 * that, or is another one, read its description and lock it again.  False: it is gone.
 */
bool
statement_lock_table(TaskTable **kept, Oid relid, LOCKMODE mode)
{
	for (;;)
	{
		TaskTable *old = *kept;

		if (old && old->relid == relid)
		{
			table_lock(old, mode);
			if (!watch_changed())
				return true;
		}
		CHECK_FOR_INTERRUPTS();
		statement_forget_plans();
		*kept = NULL; /* also if the next lines raise an error */
		if (old)
			MemoryContextDelete(old->context);
		*kept = table_find(relid, TopMemoryContext);
		if (*kept == NULL)
			return false;
	}
}

/* Find what stands in a statement behind "{" or "$" among these names. */
static int
find_name(const char *const *names, int count, const char *found, int length)
{
	int i;

	for (i = 0; i < count; i++)
		if ((int) strlen(names[i]) == length && strncmp(names[i], found + 1, length) == 0)
			return i;
	elog(ERROR, "a statement contains %.*s", length + 1, found);
}

/* Fill names and numbers into the text of a statement.  The result is in TopMemoryContext. */
static char *
fill_in(const char *sql, const TaskTable *table, const StatementArgs *args)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
	static const char *const names[] = {"rows", "table", "inherited", "own"};
	const char *const parts[] = {table->rows, table->name, table->inherited, table->own};
	StringInfoData text;
	char *result;

	initStringInfo(&text);
	for (;;)
	{
		int plain = (int) strcspn(sql, "{$");
		int length;

		appendBinaryStringInfo(&text, sql, plain);
		sql += plain;
		if (*sql == '\0')
			break;
		length = (int) strspn(sql + 1, letters);
		if (*sql == '{')
			appendStringInfoString(&text, parts[find_name(names, lengthof(names), sql, length)]);
		else
			appendStringInfo(&text, "$%d", find_name(args->names, args->count, sql, length) + 1);
		sql += length + (*sql == '{' ? 2 : 1);
	}
	result = MemoryContextStrdup(TopMemoryContext, text.data);
	pfree(text.data);
	return result;
}

/* Find what is saved of a statement. */
static SavedPlan *
find_plan(const Statement *statement, const TaskTable *table, const StatementArgs *args)
{
	SavedPlan new = {.statement = statement};
	MemoryContext old;
	ListCell *cell;

	foreach(cell, plans)
		if (((SavedPlan *) lfirst(cell))->statement == statement)
			return lfirst(cell);
	new.text = fill_in(statement->sql, table, args);
	old = MemoryContextSwitchTo(TopMemoryContext);
	plans = lappend(plans, memcpy(palloc(sizeof(new)), &new, sizeof(new)));
	MemoryContextSwitchTo(old);
	return llast(plans);
}

/* The type of an argument. */
static Oid
argument_type(const StatementArgs *args, int number)
{
	return args->lengths[number] < 0 ? args->types[number] : get_array_type(args->types[number]);
}

/* Make the plan of a statement, and keep it until statement_forget_plans. */
static void
prepare_statement(SavedPlan *saved, const TaskTable *table, const StatementArgs *args)
{
	Oid types[STATEMENT_ARGUMENTS];
	SPIPlanPtr plan;
	int i;

	for (i = 0; i < args->count; i++)
		types[i] = argument_type(args, i);
	plan = SPI_prepare_cursor(saved->text, args->count, types, CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement on %s: %s", table->name,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	saved->plan = plan;
}

#ifdef USE_ASSERT_CHECKING
/* Does the plan take these arguments? */
static bool
plan_takes(SPIPlanPtr plan, const StatementArgs *args)
{
	int i;

	if (SPI_getargcount(plan) != args->count)
		return false;
	for (i = 0; i < args->count; i++)
		if (SPI_getargtypeid(plan, i) != argument_type(args, i))
			return false;
	return true;
}
#endif

/*
 * Make the planner use indexes only, as bitmaps if "bitmaps", at a level of settings of its own,
 * which is returned.  The table may be empty when a plan is made, and it grows while the plan is
 * kept: an INSERT of many rows would read all of them for each.
 */
int
statement_fix_planner(bool bitmaps)
{
	const char *const fixed[][2] = {
		{"enable_indexscan", "on"},	 {"enable_nestloop", "on"},
		{"enable_seqscan", "off"},	 {"enable_bitmapscan", bitmaps ? "on" : "off"},
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

/* Put the elements of each array argument together, now that the caller has filled them. */
static void
build_arrays(StatementArgs *args)
{
	int i;

	for (i = 0; i < args->count; i++)
	{
		Datum *elements = (Datum *) DatumGetPointer(args->values[i]);
		int16 length;
		bool by_value;
		char align;

		if (args->lengths[i] < 0)
			continue;
		get_typlenbyvalalign(args->types[i], &length, &by_value, &align);
		args->values[i] = PointerGetDatum(
			construct_array(elements, args->lengths[i], args->types[i], length, by_value, align));
	}
}

/*
 * Execute a statement, between statement_begin and statement_end, as the owner of the table
 * (owner_become).  The caller has locked the table (table_lock).  Returns the number of rows.
 */
uint64
statement_execute(const Statement *statement, const TaskTable *table, StatementArgs *args)
{
	SavedPlan *saved = find_plan(statement, table, args);
	volatile int nest_level = 0;
	volatile int code = 0;
	NamedTable outer;

	Assert(owner_acts() && GetUserId() == table->owner);
	Assert(compat_relation_locked(table->relid));
	Assert(ActiveSnapshotSet());
	owner_pin_path();
	if (args->has_arrays)
		build_arrays(args);
	outer = named_table_expect((NamedTable){saved->text, table->relid, table->partitioned});
	PG_TRY();
	{
		if (saved->plan == NULL || !SPI_plan_is_valid(saved->plan) ||
			plan_cache_mode != PLAN_CACHE_MODE_AUTO)
			nest_level = statement_fix_planner(statement->bitmaps);
		if (saved->plan == NULL)
			prepare_statement(saved, table, args);
		Assert(plan_takes(saved->plan, args));
		code = SPI_execute_plan(saved->plan, args->values, args->nulls, false, 0);
	}
	PG_FINALLY();
	{
		(void) named_table_expect(outer);
	}
	PG_END_TRY();
	if (nest_level > 0)
		AtEOXact_GUC(false, nest_level);
	if (code < 0)
		elog(ERROR, "could not execute a statement on %s: %s", table->name,
			 SPI_result_code_string(code));
	return SPI_processed;
}

/* Add an array of "count" elements.  The caller fills the elements, which are returned. */
Datum *
arg_array(StatementArgs *args, const char *name, Oid element_type, int count)
{
	Datum *elements = palloc(count * sizeof(Datum));

	arg_add(args, name, element_type, PointerGetDatum(elements));
	args->lengths[args->count - 1] = count;
	args->has_arrays = true;
	return elements;
}

/* Add an array of ids. */
void
arg_ids(StatementArgs *args, const char *name, const int64 *ids, int count)
{
	Datum *elements = arg_array(args, name, INT8OID, count);
	int i;

	for (i = 0; i < count; i++)
		elements[i] = Int64GetDatum(ids[i]);
}

/* Add runs that must be in this state: parallel arrays of their ids, attempts and claim times. */
void
arg_runs(StatementArgs *args, const TaskRun *runs, int count, const char *state)
{
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	Datum *attempts = arg_array(args, "attempts", INT4OID, count);
	Datum *claims = arg_array(args, "claims", TIMESTAMPTZOID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(runs[i].id);
		attempts[i] = Int32GetDatum(runs[i].attempt);
		claims[i] = TimestampTzGetDatum(runs[i].claimed);
	}
	arg_text(args, "state", state);
}

/*
 * A column of a row of the last result, which has this type.  Raises an error for NULL, and for
 * another type: a trigger of the owner's may have changed the table since it was checked.
 */
Datum
statement_value(uint64 row, int number, Oid type)
{
	TupleDesc desc = SPI_tuptable->tupdesc;
	bool isnull;
	Datum value = SPI_getbinval(SPI_tuptable->vals[row], desc, number, &isnull);

	if (SPI_gettypeid(desc, number) != type)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of a task has another type", SPI_fname(desc, number))));
	if (isnull)
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("column \"%s\" of a task is null", SPI_fname(desc, number))));
	return value;
}

/* A text column of the last result, allocated in the context "where". */
char *
statement_text(MemoryContext where, uint64 row, int number)
{
	Datum value = statement_value(row, number, TEXTOID);
	MemoryContext old = MemoryContextSwitchTo(where);
	char *result = TextDatumGetCString(value);

	MemoryContextSwitchTo(old);
	return result;
}

/* A jsonb column of the last result, allocated in the context "where"; NULL for NULL. */
Jsonb *
statement_json_or_null(MemoryContext where, uint64 row, int number)
{
	MemoryContext old;
	Jsonb *result;

	if (statement_is_null(row, number))
		return NULL;
	old = MemoryContextSwitchTo(where);
	result = DatumGetJsonbPCopy(statement_value(row, number, JSONBOID));
	MemoryContextSwitchTo(old);
	return result;
}
