/*
 * result_set.c
 *		The rows that a function returns to SQL.
 *
 * The columns of a function are declared by the extension's script, and the library knows them,
 * too.  Between an update of the library and ALTER EXTENSION ... UPDATE, which the scheduler
 * executes, the two may differ.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "compat.h"
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

/* All columns of the row are NULL. */
void
result_row_begin(ResultRow *row)
{
	memset(row->nulls, true, sizeof(row->nulls));
}

void
result_row_set(ResultRow *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* A name of a database or a role; NULL: it is gone by now. */
void
result_row_set_name(ResultRow *row, int column, const char *name)
{
	if (name)
		result_row_set(row, column, DirectFunctionCall1(namein, CStringGetDatum(name)));
}

/* The row is complete. */
void
result_row_end(ResultRow *row, const ReturnSetInfo *result)
{
	Assert(result->setDesc->natts <= RESULT_ROW_MAX);
	tuplestore_putvalues(result->setResult, result->setDesc, row->values, row->nulls);
}

/* False: it was dropped. */
bool
result_database_find(Oid oid, ResultDatabase *database)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(oid));
	Form_pg_database form;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_database) GETSTRUCT(tuple);
	database->name = form->datname;
	database->encoding = form->encoding;
	database->is_open = has_privs_of_role(GetUserId(), form->datdba) ||
						has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	ReleaseSysCache(tuple);
	return true;
}

/* Replace what is not ASCII by question marks. */
static text *
ascii_text(const char *string, int length)
{
	text *result = cstring_to_text_with_len(string, length);
	int i;

	for (i = 0; i < length; i++)
		if (IS_HIGHBIT_SET(VARDATA(result)[i]))
			VARDATA(result)[i] = '?';
	return result;
}

/*
 * Return text of another database in the encoding of this one.  If it cannot be converted as a
 * whole, only what is ASCII in it is shown: one name must not make the function fail.
 */
text *
result_text(const char *string, int encoding)
{
	int length = (int) strlen(string);
	int mine = GetDatabaseEncoding();
	Size size = length * MAX_CONVERSION_GROWTH + 1;
	char *converted;
	Oid procedure;

	if (encoding == mine)
		return cstring_to_text_with_len(string, length);
	if (encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(mine, string, length, true)
				   ? cstring_to_text_with_len(string, length)
				   : ascii_text(string, length);
	/* a client of a database without an encoding may not be able to read what is not ASCII */
	procedure = mine == PG_SQL_ASCII ? InvalidOid : FindDefaultConversionProc(encoding, mine);
	if (!OidIsValid(procedure))
		return ascii_text(string, length);
	converted = palloc(size);
	if (pg_do_encoding_conversion_buf(procedure, encoding, mine, (unsigned char *) string, length,
									  (unsigned char *) converted, (int) size, true) < length)
		return ascii_text(string, length);
	return cstring_to_text(converted);
}
