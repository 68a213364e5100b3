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

/* What lasts longer than a round: the pause after a check, and how much was found. */
typedef struct LockChecks
{
	MonoTime not_before; /* no check before this */
	bool wanted;		 /* the last round had a group to check */
	int found;			 /* locked rows, since the last scan began */
	int found_before;	 /* and in the same time before that */
} LockChecks;

extern void locked_read_group(const TaskTable *table, QueueGroup *group, ClockNow now);
extern void locked_begin_round(DispatchRound *round);
extern bool locked_add(DispatchRound *round, QueueGroup *group, Oid role);
extern bool locked_check(DispatchRound *round, const TaskTable *table);
extern void locked_learn(const DispatchEntry *entry, bool claimed);
extern MonoTime locked_until(void);
extern void locked_scan_begin(void);
extern int locked_count(void);

#endif /* PG_TASK_LOCKED_H */
