/*
 * kept_request.h
 *		The plans of requests that run again and again.
 */
#ifndef PG_TASK_KEPT_REQUEST_H
#define PG_TASK_KEPT_REQUEST_H

#include "postgres.h"

#include "nodes/parsenodes.h"

/* A request of one statement, and its plan.  They must not be changed. */
typedef struct KeptRequest
{
	MemoryContext context; /* of all of it; NULL: there is none */
	char *text;
	bool refused;	  /* its plan may not be kept */
	List *statements; /* one RawStmt */
	List *plans;	  /* one PlannedStmt; NIL: not kept */
} KeptRequest;

extern void kept_request_invalidated(void); /* for pg_task.c */
extern const KeptRequest *kept_request_find(const char *text);
extern List *kept_request_plan(RawStmt *raw, const char *text, bool alone);

#endif /* PG_TASK_KEPT_REQUEST_H */
