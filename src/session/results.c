/*
 * results.c
 *		pg_task_result and pg_task_results: what tasks have returned, as values of SQL.
 *
 * Rows are read with the rights of the caller: privileges on the table, and row security.  This
 * file writes nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "session/served.h"
#include "settings.h"
#include "shared/task.h"
#include "task/roles.h"
#include "task/running.h"

PGDLLEXPORT Datum pg_task_result(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_results(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_result);
PG_FUNCTION_INFO_V1(pg_task_results);

/* A row that the last statement has read: response, format, role, role_id. */
static char *
read_column(int number)
{
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, number);
}

/* Is the response of that row one JSON document? */
static bool
is_json(void)
{
	const char *format = read_column(2);
	const char *role = read_column(3);
	bool isnull;
	Datum role_id = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 4, &isnull);

	if (format)
		return strcmp(format, "json") == 0;
	return role && !isnull &&
		   roles_format_in_session(roles_bound(role, DatumGetInt64(role_id))) == RESULT_JSON;
}

/* A text as a JSON string. */
static Datum
json_string(char *text)
{
	JsonbValue value;

	value.type = jbvString;
	value.val.string.val = text;
	value.val.string.len = (int) strlen(text);
	return JsonbPGetDatum(JsonbValueToJsonb(&value));
}

/*
 * pg_task_result(id): the response of a task that is DONE.  NULL if the caller sees no such task,
 * or if it has no response.
 */
Datum
pg_task_result(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid types[] = {INT8OID};
	Datum values[] = {PG_GETARG_DATUM(0)};
	char *response = NULL;
	MemoryContext old;
	Datum result = (Datum) 0;
	Oid relid;
	char *sql;

	sql = psprintf("SELECT t.response, t.format, t.role, t.role_id FROM %s AS t"
				   " WHERE t.id OPERATOR(pg_catalog.=) $1"
				   "   AND t.state OPERATOR(pg_catalog.=) 'DONE'::pg_catalog.text",
				   served_rows(&relid));
	SPI_connect();
	if (SPI_execute_with_args(sql, 1, types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read the result of a task");
	if (SPI_processed > 0)
		response = read_column(1);
	if (response)
	{
		old = MemoryContextSwitchTo(caller);
		result = is_json() ? DirectFunctionCall1(jsonb_in, CStringGetDatum(response))
						   : json_string(response);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	if (response == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(result);
}

/*
 * pg_task_results(by_step): the responses of all tasks for which the task waited that calls this:
 * a list in the order of "after", or an object by the names of steps.  NULL: no task calls this.
 */
Datum
pg_task_results(PG_FUNCTION_ARGS)
{
	static const char list[] =
		"SELECT pg_catalog.jsonb_agg(pg_catalog.pg_task_result(a.id) ORDER BY a.n) FROM %s AS t"
		" CROSS JOIN pg_catalog.unnest(t.after) WITH ORDINALITY AS a (id, n)"
		" WHERE t.id OPERATOR(pg_catalog.=) $1";
	static const char object[] =
		"SELECT pg_catalog.jsonb_object_agg(s.step, pg_catalog.pg_task_result(s.id)) FROM %s AS t"
		" CROSS JOIN pg_catalog.unnest(t.after) AS a (id)"
		"  JOIN %s AS s ON s.id OPERATOR(pg_catalog.=) a.id AND s.step IS NOT NULL"
		" WHERE t.id OPERATOR(pg_catalog.=) $1";
	MemoryContext caller = CurrentMemoryContext;
	bool by_step = PG_GETARG_BOOL(0);
	Oid types[] = {INT8OID};
	Datum values[] = {Int64GetDatum(Settings.task_id)};
	char *result;
	Oid relid;
	char *rows;

	if (!running_is_task())
		PG_RETURN_NULL();
	rows = served_rows(&relid);
	SPI_connect();
	if (SPI_execute_with_args(by_step ? psprintf(object, rows, rows) : psprintf(list, rows), 1,
							  types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read the results of tasks");
	result = read_column(1);
	if (result)
		result = MemoryContextStrdup(caller, result);
	SPI_finish();
	if (result == NULL)
		result = by_step ? "{}" : "[]";
	PG_RETURN_DATUM(DirectFunctionCall1(jsonb_in, CStringGetDatum(result)));
}
