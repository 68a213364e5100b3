/*
 * locked.h
 *		Waiting rows that other sessions have locked.
 */
#ifndef PG_TASK_LOCKED_H
#define PG_TASK_LOCKED_H

#include "postgres.h"

#include "scheduler/dispatch.h"
#include "scheduler/groups.h"
#include "shared/clock.h"
#include "task/table.h"

/*
 * What lasts longer than a round: the pauses after checks.  Each kind has its own: however many
 * groups are locked, roles are checked as well.
 */
typedef struct LockChecks
{
	MonoTime groups_not_before; /* no locked group is read before this */
	MonoTime roles_not_before;	/* nor is the first task of a role checked before this */
	bool wanted;				/* the last round had a role to check */
} LockChecks;

extern void locked_read_group(const TaskTable *table, QueueGroup *group, ClockNow now);
extern void locked_begin_round(DispatchRound *round);
extern bool locked_add(DispatchRound *round, QueueGroup *group, Oid role);
extern bool locked_check(DispatchRound *round, const TaskTable *table);
extern void locked_mark(DispatchRound *round, const TaskTable *table);
extern void locked_learn(const DispatchEntry *entry);
extern MonoTime locked_until(void);

#endif /* PG_TASK_LOCKED_H */
