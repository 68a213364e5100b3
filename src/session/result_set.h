/*
 * result_set.h
 *		The rows that a function returns to SQL.
 *
 * The columns of a function are declared by the extension's script, and the library knows them,
 * too.  Between an update of the library and ALTER EXTENSION ... UPDATE, which the scheduler
 * executes, the two may differ.
 */
#ifndef PG_TASK_RESULT_SET_H
#define PG_TASK_RESULT_SET_H

#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "nodes/execnodes.h"

/* Most columns of a ResultRow. */
#define RESULT_ROW_MAX 38

/* A row whose columns are set by their names; what is not set is NULL. */
typedef struct ResultRow
{
	TupleDesc desc;
	Datum values[RESULT_ROW_MAX];
	bool nulls[RESULT_ROW_MAX];
} ResultRow;

/* Fail unless the function is declared with as many columns as its rows have. */
static inline void
result_check_columns(TupleDesc desc, int columns)
{
	if (desc->natts == columns)
		return;
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the function was declared by another version of pg_task"),
					errhint("ALTER EXTENSION pg_task UPDATE")));
}

/* The caller returns a set of rows, in a tuplestore that lives as long as the query. */
static inline ReturnSetInfo *
result_set_begin(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	result_check_columns(result->setDesc, columns);
	return result;
}

/* The caller returns one row: return the description of it. */
static inline TupleDesc
result_row_desc(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	result_check_columns(desc, columns);
	return BlessTupleDesc(desc);
}

/* All columns of the row are NULL. */
static inline void
result_row_begin(ResultRow *row, TupleDesc desc)
{
	Assert(desc->natts <= RESULT_ROW_MAX);
	row->desc = desc;
	memset(row->nulls, true, sizeof(row->nulls));
}

static inline void
result_row_set(ResultRow *row, const char *column, Datum value)
{
	int number = SPI_fnumber(row->desc, column);

	if (number <= 0)
		elog(ERROR, "the function returns no column \"%s\"", column);
	row->values[number - 1] = value;
	row->nulls[number - 1] = false;
}

#endif /* PG_TASK_RESULT_SET_H */
