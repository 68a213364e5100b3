/*
 * round.h
 *		A round of dispatch: what was chosen, and what has become of it; and what the files that
 *		take part in it do.
 */
#ifndef PG_TASK_ROUND_H
#define PG_TASK_ROUND_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "scheduler/groups.h"
#include "scheduler/handout.h"
#include "scheduler/job.h"
#include "scheduler/pool.h"
#include "shared/clock.h"
#include "shared/shared.h"
#include "task/roles.h"
#include "task/rows.h"

#define DISPATCH_MAX 128 /* maximum number of tasks that one statement claims */

/* A task that was chosen. */
typedef struct DispatchEntry
{
	Candidate candidate; /* its row, for the claim */
	QueueGroup *group;
	PoolExecutor *executor; /* NULL: a session takes it ... */
	Taker taker;			/* ... this one */
	uint32 generation;		/* of the executor's slot, when the executor was chosen */
	bool strict;			/* its queue is strict ... */
	bool kept;				/* ... and it must not be claimed: see strict.c */
	bool trusted;			/* see SharedTask */
	const GroupHead *first; /* the row of its strict queue that is before it; NULL: none */
	Claim *claim;			/* NULL: it was not claimed */
	QueueStart start;		/* of its queue */
} DispatchEntry;

/* One round. */
typedef struct DispatchRound
{
	ClockNow now;
	int limit;	  /* maximum number of tasks that are chosen or failed */
	int failed;	  /* tasks whose role may not run them */
	bool strict;  /* some of the chosen tasks are of strict queues */
	bool dropped; /* tasks were dropped, so there may be more to choose from */
	bool barred;  /* no task may start, see shared_lacks_standby */

	/* see demand.c */
	List *blocked;	/* of BlockedRole */
	int wanted;		/* executors that roles lack which have one */
	int refused;	/* roles that have got no executor, unless it comes from another database */
	bool full;		/* the connection limit of the database keeps roles from getting any */
	Oid wants_role; /* see arbiter_want */

	/* the chosen tasks, in the order of their start; [done, count) count as running */
	int done;
	int count;
	DispatchEntry entries[DISPATCH_MAX];
} DispatchRound;

extern const SchedulerJob dispatch_job;

/* Which role gets another executor, and which executor exits for it: demand.c. */
extern void demand_block(DispatchRound *round, QueueGroup *group, const Role *role);
extern bool demand_for_blocked(DispatchRound *round);
extern void demand_publish(const DispatchRound *round);
extern void demand_yield(void);
extern MonoTime demand_until(const DispatchRound *round);

/* Strict queues, whose first task nothing overtakes: strict.c. */
extern void strict_hold(QueueState *queue, MonoTime now);
extern bool strict_awaits(DispatchRound *round, QueueGroup *group, TaskPlace first);
extern void strict_begin_claim(DispatchRound *round);
extern bool strict_check(DispatchRound *round);
extern void strict_end_round(const DispatchRound *round);

#endif /* PG_TASK_ROUND_H */
