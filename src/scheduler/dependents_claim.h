/*
 * dependents_claim.h
 *		Dependent rows that are freed by their claim.
 */
#ifndef PG_TASK_DEPENDENTS_CLAIM_H
#define PG_TASK_DEPENDENTS_CLAIM_H

#include "postgres.h"

#include "scheduler/dependents.h"
#include "scheduler/dispatch.h"
#include "shared/clock.h"
#include "task/table.h"

extern bool dependents_claim_due(MonoTime now);
extern bool dependents_claim_flows(MonoTime now);
extern MonoTime dependents_claim_judge_until(const Dependents *dependents);
extern bool dependents_claim_may_judge(MonoTime now);
extern void dependents_claim_judged(MonoTime begun, MonoTime ended);
extern void dependents_claim_forget(void);
extern void dependents_claim_reset(void);
extern void dependents_claim_choose(DispatchRound *round, const TaskTable *table);
extern void dependents_claim_end(const DispatchRound *round);
extern void dependents_claim_failed(MonoTime now);

#endif /* PG_TASK_DEPENDENTS_CLAIM_H */
