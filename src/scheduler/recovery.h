/*
 * recovery.h
 *		After an error in an iteration of the scheduler.
 */
#ifndef PG_TASK_RECOVERY_H
#define PG_TASK_RECOVERY_H

#include "postgres.h"

#include "scheduler/dispatch.h"

extern void recovery_run(DispatchRound *round);

#endif /* PG_TASK_RECOVERY_H */
