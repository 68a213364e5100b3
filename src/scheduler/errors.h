/*
 * errors.h
 *		Errors that end an iteration of the scheduler.
 */
#ifndef PG_TASK_ERRORS_H
#define PG_TASK_ERRORS_H

#include "postgres.h"

#include "scheduler/refused.h"
#include "shared/clock.h"

extern bool errors_of_row(int sqlstate);
extern BatchFailure errors_end_iteration(MonoTime now);
extern void errors_forget(void);

#endif /* PG_TASK_ERRORS_H */
