/*
 * create.h
 *		Makes and completes the task table and the tables beside it.
 */
#ifndef PG_TASK_CREATE_H
#define PG_TASK_CREATE_H

#include "postgres.h"

#include "settings.h"
#include "task/relation.h"

/* What was found, or made. */
typedef struct Created
{
	Oid relid; /* InvalidOid: there is none, and none is to be created */
	bool made;
	bool completed;					/* something was missing, of any of them */
	bool away;						/* from home: nothing was completed */
	const char *fault[SIDE_TABLES]; /* of a table beside it, by SideKind: why it could not be made;
									   or NULL */
} Created;

extern Created create_tables(const Location *where, Oid user, Oid caller, Oid known);

#endif /* PG_TASK_CREATE_H */
