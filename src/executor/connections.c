/*
 * connections.c
 *		Closes the connections to other servers that a task has left open.
 *
 * postgres_fdw and dblink keep connections for later statements of the session, and the remote
 * server keeps the state of its session.  If an executor keeps one of these libraries because of
 * pg_task.keep_libraries, it closes their connections after each task, with the functions that the
 * libraries offer to SQL.  Connections of a preloaded library are not closed.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/elog.h"

#include "compat.h"
#include "executor/connections.h"

typedef enum Library
{
	POSTGRES_FDW,
	DBLINK,
	LIBRARIES
} Library;

static const char *const names[LIBRARIES] = {"postgres_fdw", "dblink"};

/* Has a task loaded the library?  Static, because the process keeps a library until it exits. */
static bool loaded[LIBRARIES];

/* Record that a task has loaded this file of the server's library directory. */
void
connections_add_library(const char *file)
{
	int i;

	for (i = 0; i < LIBRARIES; i++)
		loaded[i] |= strncmp(file, names[i], strlen(names[i])) == 0 &&
					 strcmp(file + strlen(names[i]), DLSUFFIX) == 0;
}

/* Call a function of a library, with one argument or none.  Returns 0 for NULL. */
static Datum
call_library(Library library, const char *function, const Datum *argument)
{
	LOCAL_FCINFO(fcinfo, 1);
	PGFunction address =
		load_external_function(psprintf("$libdir/%s", names[library]), function, true, NULL);
	Datum result;

	InitFunctionCallInfoData(*fcinfo, NULL, argument ? 1 : 0, InvalidOid, NULL, NULL);
	if (argument)
	{
		fcinfo->args[0].value = *argument;
		fcinfo->args[0].isnull = false;
	}
	result = address(fcinfo);
	return fcinfo->isnull ? (Datum) 0 : result;
}

/* Close the named connections of dblink. */
static void
close_named_connections(void)
{
	Datum list = call_library(DBLINK, "dblink_get_connections", NULL);
	Datum *elements;
	int count;
	int i;

	if (list == (Datum) 0)
		return;
	deconstruct_array(DatumGetArrayTypeP(list), TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL,
					  &count);
	for (i = 0; i < count; i++)
		(void) call_library(DBLINK, "dblink_disconnect", &elements[i]);
}

/*
 * Close all connections.  The unnamed one of dblink comes last: dblink_disconnect raises an error
 * if there is none.
 */
static void
close_connections(void)
{
	if (loaded[POSTGRES_FDW])
		(void) call_library(POSTGRES_FDW, "postgres_fdw_disconnect_all", NULL);
	if (!loaded[DBLINK])
		return;
	close_named_connections();
	(void) call_library(DBLINK, "dblink_disconnect", NULL);
}

/* May a task have left connections open that connections_close would close? */
bool
connections_may_be_kept(void)
{
	return loaded[POSTGRES_FDW] || loaded[DBLINK];
}

/*
 * Between tasks: close the connections that the last task left open.  Returns false if that is not
 * possible: the process must exit.
 */
bool
connections_close(void)
{
	MemoryContext old = CurrentMemoryContext;
	volatile bool closed = true;

	Assert(!IsTransactionState());
	if (!connections_may_be_kept())
		return true;
	StartTransactionCommand();
	PG_TRY();
	{
		close_connections();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		closed = geterrcode() == ERRCODE_CONNECTION_DOES_NOT_EXIST;
		if (!closed)
			EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	return closed;
}
