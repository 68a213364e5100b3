/*
 * errors.c
 *		Errors that end an iteration of the scheduler: whose fault they are, and whether they
 *		are in the log already.
 *
 * Plain memory of the scheduler's.  This file catches nothing.
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "scheduler/errors.h"
#include "task/table.h"

/* Different messages that are logged, and the length by which they are told apart (bytes). */
#define REPORTED_MAX 16
#define REPORTED_LENGTH 1024

/* Interval after which the same message is logged again (ms). */
#define REPORT_AGAIN_MS (10 * 60 * 1000)

static List *reported = NIL; /* messages that were logged, in TopMemoryContext */

/* The causes are gone: an error that comes now is logged. */
void
errors_forget(void)
{
	list_free_deep(reported);
	reported = NIL;
}

/*
 * Does an error come from what is in a row, or from what the owner has put on the table (a
 * trigger, a constraint, an index), rather than from locks, resources or an interrupt?
 */
bool
errors_of_row(int sqlstate)
{
	int category = ERRCODE_TO_CATEGORY(sqlstate);

	return sqlstate != ERRCODE_TABLE_CHANGED && sqlstate != ERRCODE_LOCK_NOT_AVAILABLE &&
		   category != ERRCODE_INSUFFICIENT_RESOURCES && category != ERRCODE_SYSTEM_ERROR &&
		   (category != ERRCODE_OPERATOR_INTERVENTION || sqlstate == ERRCODE_QUERY_CANCELED);
}

/*
 * Was this message logged before, and is its cause perhaps the same?  It is from now on.
 * When there are too many, it is said that no more are logged.
 */
bool
errors_reported(const char *database, const char *whole, MonoTime now)
{
	static MonoTime since = {0};
	MemoryContext old;
	const char *message = pnstrdup(whole, REPORTED_LENGTH);
	ListCell *cell;

	if (clock_exceeds(since, now, REPORT_AGAIN_MS))
	{
		errors_forget();
		since = now;
	}
	foreach(cell, reported)
		if (strcmp(lfirst(cell), message) == 0)
			return true;
	if (list_length(reported) > REPORTED_MAX)
		return true;
	old = MemoryContextSwitchTo(TopMemoryContext);
	reported = lappend(reported, pstrdup(message));
	MemoryContextSwitchTo(old);
	if (list_length(reported) <= REPORTED_MAX)
		return false;
	ereport(LOG, (errmsg("pg_task has more errors in database \"%s\" than are logged", database),
				  errdetail("Different ones are logged again in ten minutes.")));
	return true;
}
