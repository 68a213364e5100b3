/*
 * failure.h
 *		The response of a task that has failed, if no executor has formatted it; and failures as
 *		JSON.
 */
#ifndef PG_TASK_FAILURE_H
#define PG_TASK_FAILURE_H

#include "postgres.h"

/* Why a task has failed, or did not start. */
typedef struct Failure
{
	const char *severity; /* ERROR or FATAL */
	const char *error;
	const char *detail; /* NULL: none */
	const char *hint;	/* NULL: none */
	const char *sqlstate;
} Failure;

extern char *failure_text(const Failure *failure);
extern char *failure_json(const Failure *failure);
extern char *failure_error_json(const ErrorData *error, int limit);

#endif /* PG_TASK_FAILURE_H */
