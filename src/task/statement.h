/*
 * statement.h
 *		A statement on task rows, its arguments, and access to its result.
 *
 * A statement is executed between statement_begin and statement_end:
 *
 *		StatementArgs args;
 *
 *		statement_begin(&args);
 *		arg_int64(&args, "id", id);
 *		count = statement_execute(&find_row, table, &args);
 *		... statement_int64(0, 1) ...
 *		statement_end();
 *
 * What is allocated in between is freed by statement_end.
 */
#ifndef PG_TASK_STATEMENT_H
#define PG_TASK_STATEMENT_H

#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "shared/task.h"
#include "task/table.h"

/*
 * In the text, $name is an argument.  {rows} is the table in FROM, UPDATE and DELETE, {table} in
 * INSERT; {inherited} are the columns that the next row of a repeating task inherits, {own} those
 * of them that the owner has added, each after a comma.
 */
typedef struct Statement
{
	const char *sql;
	bool bitmaps; /* it reads the index on "after", which can only be read as a bitmap */
} Statement;

#define STATEMENT_ARGUMENTS 20

/* The arguments of one execution. */
typedef struct StatementArgs
{
	int count;
	bool has_arrays;
	const char *names[STATEMENT_ARGUMENTS];
	Oid types[STATEMENT_ARGUMENTS];	  /* of an array: the type of its elements */
	int lengths[STATEMENT_ARGUMENTS]; /* -1: no array */
	Datum values[STATEMENT_ARGUMENTS];
	char nulls[STATEMENT_ARGUMENTS]; /* as SPI_execute_plan wants them */
} StatementArgs;

extern int statement_fix_planner(bool bitmaps);
extern void statement_forget_plans(void);
extern bool statement_lock_table(TaskTable **kept, Oid relid, LOCKMODE mode);

extern uint64
statement_execute(const Statement *statement, const TaskTable *table, StatementArgs *args);

/*
 * The last result: "row" counts from 0, "number" of a column from 1.  What comes from a table is
 * read by these alone: they raise an error for another type, and for a NULL unless the name says
 * that there may be one.
 */
extern Datum statement_value(uint64 row, int number, Oid type);
extern char *statement_text(MemoryContext where, uint64 row, int number);
extern Jsonb *statement_json_or_null(MemoryContext where, uint64 row, int number);

static inline bool
statement_is_null(uint64 row, int number)
{
	bool isnull;

	(void) SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, &isnull);
	return isnull;
}

static inline char *
statement_text_or_null(MemoryContext where, uint64 row, int number)
{
	return statement_is_null(row, number) ? NULL : statement_text(where, row, number);
}

static inline bool
statement_bool(uint64 row, int number)
{
	return DatumGetBool(statement_value(row, number, BOOLOID));
}

static inline int32
statement_int32(uint64 row, int number)
{
	return DatumGetInt32(statement_value(row, number, INT4OID));
}

static inline int64
statement_int64(uint64 row, int number)
{
	return DatumGetInt64(statement_value(row, number, INT8OID));
}

static inline double
statement_float8(uint64 row, int number)
{
	return DatumGetFloat8(statement_value(row, number, FLOAT8OID));
}

static inline TimestampTz
statement_time(uint64 row, int number)
{
	return DatumGetTimestampTz(statement_value(row, number, TIMESTAMPTZOID));
}

static inline void
statement_begin(StatementArgs *args)
{
	SPI_connect();
	args->count = 0;
	args->has_arrays = false;
}

static inline void
statement_end(void)
{
	SPI_finish();
}

/* Add an argument.  The first statement that is executed with it says what its type is. */
static inline void
arg_add(StatementArgs *args, const char *name, Oid type, Datum value)
{
	int i = args->count++;

	Assert(i < STATEMENT_ARGUMENTS);
	args->names[i] = name;
	args->types[i] = type;
	args->lengths[i] = -1;
	args->values[i] = value;
	args->nulls[i] = ' ';
}

static inline void
arg_bool(StatementArgs *args, const char *name, bool value)
{
	arg_add(args, name, BOOLOID, BoolGetDatum(value));
}

static inline void
arg_null(StatementArgs *args, const char *name, Oid type)
{
	arg_add(args, name, type, (Datum) 0);
	args->nulls[args->count - 1] = 'n';
}

static inline void
arg_int32(StatementArgs *args, const char *name, int32 value)
{
	arg_add(args, name, INT4OID, Int32GetDatum(value));
}

static inline void
arg_int64(StatementArgs *args, const char *name, int64 value)
{
	arg_add(args, name, INT8OID, Int64GetDatum(value));
}

static inline void
arg_timestamp(StatementArgs *args, const char *name, TimestampTz value)
{
	arg_add(args, name, TIMESTAMPTZOID, TimestampTzGetDatum(value));
}

/* Add a text.  A NULL pointer is a NULL. */
static inline void
arg_text(StatementArgs *args, const char *name, const char *value)
{
	if (value)
		arg_add(args, name, TEXTOID, CStringGetTextDatum(value));
	else
		arg_null(args, name, TEXTOID);
}

/* Add a jsonb.  A NULL pointer is a NULL. */
static inline void
arg_json(StatementArgs *args, const char *name, const struct varlena *value)
{
	if (value)
		arg_add(args, name, JSONBOID, PointerGetDatum(value));
	else
		arg_null(args, name, JSONBOID);
}

/* Add a run: what the fence of a statement on its row compares. */
static inline void
arg_run(StatementArgs *args, TaskRun run)
{
	arg_int64(args, "id", run.id);
	arg_int32(args, "attempt", run.attempt);
	arg_timestamp(args, "claimed", run.claimed);
}

extern Datum *arg_array(StatementArgs *args, const char *name, Oid element_type, int count);
extern void arg_ids(StatementArgs *args, const char *name, const int64 *ids, int count);
extern void arg_runs(StatementArgs *args, const TaskRun *runs, int count, const char *state);

#endif /* PG_TASK_STATEMENT_H */
