/*
 * rekgrpth.c
 *		Makes the table of the other pg_task, by RekGRpth, by its own make.c, which is compiled into
 *		this library out of the folder of its sources: see test/t/convert_rekgrpth.pl.  What that
 *		file takes from the others is here, in a form that works in a session.
 */
#define LIBPQ_BE_H				/* not needed, and it wants the headers of Kerberos */
#include "make.c"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(make_rekgrpth);
PG_FUNCTION_INFO_V1(lock_rekgrpth);

void
initStringInfoMy(StringInfo buf)
{
	initStringInfo(buf);
}

const char *
init_plan(void)
{
	return "statement_timestamp()";
}

void
exec_simple_query_my(const char *query)
{
	elog(ERROR, "not to be called: %s", query);
}

void
SPI_connect_my(const char *src)
{
	SPI_connect();
}

void
SPI_finish_my(void)
{
	SPI_finish();
}

void
SPI_execute_with_args_my(const char *src, int nargs, Oid *argtypes, Datum *values,
						 const char *nulls, int res)
{
	if (SPI_execute_with_args(src, nargs, argtypes, values, nulls, false, 0) != res)
		elog(ERROR, "another result than expected: %s", src);
}

Datum
SPI_getbinval_my(HeapTuple tuple, TupleDesc tupdesc, const char *fname, bool allow_null, Oid typeid)
{
	bool isnull;

	return SPI_getbinval(tuple, tupdesc, SPI_fnumber(tupdesc, fname), &isnull);
}

/* Make the table "task" in the schema "public". */
Datum
make_rekgrpth(PG_FUNCTION_ARGS)
{
	Shared shared = {.schema = "public", .table = "task", .hash = 1};
	Work work = {.schema = "public",
				 .table = "task",
				 .schema_table = "public.task",
				 .schema_type = "public.state",
				 .shared = &shared};

	make_schema(&work);
	make_type(&work);
	make_table(&work);
	PG_RETURN_VOID();
}

/* Take the lock that its worker has in a database, until the session ends. */
Datum
lock_rekgrpth(PG_FUNCTION_ARGS)
{
	LOCKTAG tag = {MyDatabaseId, GetUserId(), 1, 3, LOCKTAG_USERLOCK, USER_LOCKMETHOD};

	(void) LockAcquire(&tag, AccessExclusiveLock, true, true);
	PG_RETURN_VOID();
}
