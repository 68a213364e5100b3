/*
 * request.h
 *		Runs the SQL of a task.
 */
#ifndef PG_TASK_REQUEST_H
#define PG_TASK_REQUEST_H

#include "postgres.h"

#include "executor/response.h"

/* One execution of a request. */
typedef struct Request
{
	const char *text;
	Response *response; /* what the statements return is appended */
	bool wants_block;	/* run a single statement in an implicit block, if it may be in one */
	bool in_block;		/* such a statement is running; stays set when it raises an error */
	bool batched;		/* run it in a subtransaction of the caller's */
	bool logged;		/* the text is in the server's log */
	bool single;		/* it is one statement ... */
	bool kept;			/* ... with a plan that is kept */
	bool all_committed; /* it has ended with a commit: nothing of it can be rolled back */
} Request;

extern void request_plan_invalidated(void); /* for pg_task.c */
extern void request_log_duration(const Request *request);
extern void request_run(Request *request);

#endif /* PG_TASK_REQUEST_H */
