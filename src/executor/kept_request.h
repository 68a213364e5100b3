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
	uint32 hash;		   /* of a text that was seen last ... */
	bool refused;		   /* ... and cannot be kept */
	MemoryContext context; /* of the rest; NULL: nothing is kept yet */
	char *text;
	List *statements; /* one RawStmt */
	List *plans;	  /* one PlannedStmt */
} KeptRequest;

extern void kept_request_invalidated(void); /* for callbacks.c */
extern const KeptRequest *kept_request_find(const char *text);
extern List *kept_request_plan(RawStmt *raw, const char *text, bool alone);

#endif /* PG_TASK_KEPT_REQUEST_H */
