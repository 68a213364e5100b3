/*
 * errors.h
 *		Errors that end an iteration of the scheduler.
 */
#ifndef PG_TASK_ERRORS_H
#define PG_TASK_ERRORS_H

#include "postgres.h"

#include "shared/clock.h"
#include "shared/report.h"

/* What was logged: an error is compared with those of earlier iterations. */
typedef struct ErrorLog
{
	Reports messages;
	MonoTime since; /* start of the interval after which all are logged again */
} ErrorLog;

extern bool errors_of_row(int sqlstate);
extern bool errors_reported(const char *database, const char *message, MonoTime now);
extern void errors_forget(void);

#endif /* PG_TASK_ERRORS_H */
