/*
 * results.c
 *		pg_task_result and pg_task_results: what tasks have returned, as values of SQL.
 *
 * They show rows that the caller could SELECT.  This file writes nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "session/table_access.h"
#include "settings.h"
#include "shared/task.h"
#include "task/roles.h"
#include "task/running.h"

PGDLLEXPORT Datum pg_task_result(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_results(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_result);
PG_FUNCTION_INFO_V1(pg_task_results);

/* The columns that say what a task has returned, of a table t. */
#define RESULT_COLUMNS "t.response, t.format, t.role, t.role_id"

/* A column of a row that the last statement has read; these four are the first. */
static char *
read_column(uint64 row, int number)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number);
}

/* Is the response of that row one JSON document? */
static bool
is_json(uint64 row)
{
	const char *format = read_column(row, 2);
	const char *role = read_column(row, 3);
	bool isnull;
	Datum role_id = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 4, &isnull);

	if (format)
		return strcmp(format, "json") == 0;
	return role && !isnull &&
		   roles_format_in_session(roles_bound(role, DatumGetInt64(role_id))) == RESULT_JSON;
}

/* What the task of a row has returned, as the text of a JSON document; "null" if nothing. */
static char *
json_text(uint64 row)
{
	char *response = read_column(row, 1);
	StringInfoData string;
	Datum document;

	if (response == NULL)
		return "null";
	if (is_json(row))
	{
		document = DirectFunctionCall1(jsonb_in, CStringGetDatum(response));
		return DatumGetCString(DirectFunctionCall1(jsonb_out, document));
	}
	initStringInfo(&string);
	escape_json(&string, response);
	return string.data;
}

/*
 * pg_task_result(id): the response of a task that is DONE.  NULL if the caller sees no such task,
 * or if it has no response.
 */
Datum
pg_task_result(PG_FUNCTION_ARGS)
{
	static const Oid columns[] = {TEXTOID, TEXTOID, NAMEOID, INT8OID, InvalidOid};
	TableAccess access = table_access_open(ACCESS_ROWS);
	AccessStatement read = {.read_only = true,
							.count = 1,
							.types = (const Oid[]){INT8OID},
							.values = (const Datum[]){PG_GETARG_DATUM(0)}};
	MemoryContext caller = CurrentMemoryContext;
	char *json = NULL;

	read.sql = psprintf("SELECT " RESULT_COLUMNS " FROM %s AS t"
						" WHERE t.id OPERATOR(pg_catalog.=) $1"
						"   AND t.state OPERATOR(pg_catalog.=) 'DONE'::pg_catalog.text LIMIT 1",
						access.rows);
	SPI_connect();
	if (table_access_read(&access, &read, columns) > 0 && read_column(0, 1))
		json = MemoryContextStrdup(caller, json_text(0));
	SPI_finish();
	if (json == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
}

/*
 * The rows that the last statement has read as a JSON document: a list, or an object by the names
 * of steps, which are the fifth column.
 */
static char *
list_results(bool by_step)
{
	StringInfoData list;
	uint64 row;

	initStringInfo(&list);
	appendStringInfoChar(&list, by_step ? '{' : '[');
	for (row = 0; row < SPI_processed; row++)
	{
		const char *step = read_column(row, 5);

		if (by_step && step == NULL)
			continue;
		if (list.len > 1)
			appendStringInfoString(&list, ", ");
		if (by_step)
		{
			escape_json(&list, step);
			appendStringInfoString(&list, ": ");
		}
		appendStringInfoString(&list, json_text(row));
	}
	appendStringInfoChar(&list, by_step ? '}' : ']');
	return list.data;
}

/*
 * pg_task_results(by_step): the responses of all tasks for which the task waited that calls this:
 * a list in the order of "after", or an object by the names of steps.  NULL: no task calls this.
 */
Datum
pg_task_results(PG_FUNCTION_ARGS)
{
	static const Oid columns[] = {TEXTOID, TEXTOID, NAMEOID, INT8OID, TEXTOID, InvalidOid};
	AccessStatement read = {.read_only = true,
							.count = 1,
							.types = (const Oid[]){INT8OID},
							.values = (const Datum[]){Int64GetDatum(Settings.task_id)}};
	MemoryContext caller = CurrentMemoryContext;
	TableAccess access;
	char *json;

	if (!running_is_task())
		PG_RETURN_NULL();
	access = table_access_open(ACCESS_ROWS);
	read.sql = psprintf("SELECT CASE WHEN t.state OPERATOR(pg_catalog.=) 'DONE'::pg_catalog.text"
						"            THEN t.response END, t.format, t.role, t.role_id, t.step"
						"  FROM %s AS w CROSS JOIN pg_catalog.unnest(w.after)"
						"                          WITH ORDINALITY AS a (id, n)"
						"  LEFT JOIN LATERAL (SELECT * FROM %s AS s"
						"                      WHERE s.id OPERATOR(pg_catalog.=) a.id"
						"                      ORDER BY s.state OPERATOR(pg_catalog.=)"
						"                               'DONE'::pg_catalog.text DESC LIMIT 1) AS t"
						"       ON true"
						" WHERE w.id OPERATOR(pg_catalog.=) $1 ORDER BY a.n",
						access.rows, access.rows);
	SPI_connect();
	(void) table_access_read(&access, &read, columns);
	json = MemoryContextStrdup(caller, list_results(PG_GETARG_BOOL(0)));
	SPI_finish();
	PG_RETURN_DATUM(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
}
