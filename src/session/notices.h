/*
 * notices.h
 *		Bounds what one statement of a client is told, however many rows it changes or functions it
 *		calls.
 */
#ifndef PG_TASK_NOTICES_H
#define PG_TASK_NOTICES_H

#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

/* Most messages of a kind that one statement of a client raises. */
#define NOTICES_MAX 16

/* Those of one kind.  Static, because each call of a trigger or a function is a part of it. */
typedef struct Notices
{
	TimestampTz statement; /* of the client; what follows belongs to it */
	int told;			   /* messages that it has raised */
} Notices;

/* How many messages has the statement raised?  At NOTICES_MAX it raises no more. */
static inline int
notices_told(Notices *notices)
{
	if (notices->statement != GetCurrentStatementStartTimestamp())
		notices->told = 0;
	notices->statement = GetCurrentStatementStartTimestamp();
	return notices->told;
}

/* Raise a message, unless the statement has raised as many.  "hint" may be NULL. */
static inline void
notices_raise(Notices *notices, const char *message, const char *hint)
{
	if (notices_told(notices) == NOTICES_MAX)
		return;
	notices->told++;
	ereport(NOTICE, (errmsg("%s", message),
					 notices->told == NOTICES_MAX
						 ? errdetail("This statement raises no further notices of pg_task.")
						 : 0,
					 hint ? errhint("%s", hint) : 0));
}

#endif /* PG_TASK_NOTICES_H */
