/*
 * dispatch.h
 *		One round: choose tasks, claim them in one commit, and assign them to executors.
 */
#ifndef PG_TASK_DISPATCH_H
#define PG_TASK_DISPATCH_H

#include "postgres.h"

#include "scheduler/round.h"

extern void dispatch_begin(DispatchRound *round);
extern bool dispatch_round(DispatchRound *round, ClockNow now);
extern void dispatch_publish(const DispatchRound *round);
extern void dispatch_publish_none(void);
extern void dispatch_abandon(DispatchRound *round);

#endif /* PG_TASK_DISPATCH_H */
