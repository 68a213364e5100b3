/*
 * result_set.c
 *		The rows that a function returns to SQL.
 *
 * The columns of a function are declared by the extension's script, and the library knows them,
 * too.  Between an update of the library and ALTER EXTENSION ... UPDATE, which the scheduler
 * executes, the two may differ.
 */
#include "postgres.h"

#include "funcapi.h"

#include "session/result_set.h"

/* Fail unless the function is declared with as many columns as its rows have. */
static void
check_columns(TupleDesc desc, int columns)
{
	if (desc->natts == columns)
		return;
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the function was declared by another version of pg_task"),
					errhint("ALTER EXTENSION pg_task UPDATE")));
}

/* The caller returns a set of rows, in a tuplestore that lives as long as the query. */
ReturnSetInfo *
result_set_begin(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	check_columns(result->setDesc, columns);
	return result;
}

/* The caller returns one row: return the description of it. */
TupleDesc
result_row_desc(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(desc, columns);
	return BlessTupleDesc(desc);
}
