/*
 * queues.h
 *		What the scheduler knows of each queue: its rule, what runs in it, and whether one more task
 * may start.
 */
#ifndef PG_TASK_QUEUES_H
#define PG_TASK_QUEUES_H

#include "postgres.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "scheduler/rates.h"
#include "shared/clock.h"
#include "shared/task.h"
#include "task/queue_rules.h"

struct GroupRole;
struct QueueGroup;

/* A limit that queues have together: the "total" of a pattern. */
typedef struct QueueLimit
{
	char *pattern;
	int total;
	int running;	 /* tasks of its queues */
	int queues;		 /* that have it */
	dlist_head full; /* the roles whose groups wait for a place in it: see order.c */
} QueueLimit;

/* A start of a queue, until it is known that the task begins; see order_undo_start. */
typedef struct QueueStart
{
	uint64 number; /* see rates_add */
	TimestampTz turn;
	TimestampTz turn_before; /* the turn before it */
} QueueStart;

/* A queue: how many of its tasks are running, and how long they take. */
typedef struct QueueState
{
	char *name;
	int running; /* changed by queue_count alone */
	int groups;	 /* groups of this queue */
	QueueClaims claims;
	double average; /* of the tasks that have ended (us); negative: none has; see queue_average */

	/* see order.c */
	struct QueueGroup *first; /* the group that is ready; NULL: none is, or the queue is closed */
	pairingheap waiting;	  /* those that wait behind it */
	struct GroupRole *role;	  /* of all of its groups; NULL: they are, or were, of several */
	bool closed;			  /* it may not start a task before "closed_until" */
	MonoTime closed_until;
	pairingheap_node closed_node;

	bool idle; /* it has no groups and no running tasks */

	/* for a strict queue: see strict.c */
	int held_ms;		 /* for how long it was held last, if that was not known */
	MonoTime held_until; /* no task of it may start before; CLOCK_NEVER: one is being claimed */

	dlist_node idle_node;	/* in the list of idle queues, if it is idle */
	TimestampTz turn;		/* DT_NOBEGIN, or the time of its last start: see order.c */
	const QueueRule *rule;	/* NULL: not looked for; among the rules ... */
	uint32 rule_generation; /* ... of this generation */
	QueueLimit *limit;		/* by that rule; NULL: none */
} QueueState;

extern void queues_create(MemoryContext context);
extern bool queues_set_rules(MemoryContext context, QueueRules *all);
extern QueueRules *queues_rules(void);
extern QueueState *queue_find(const char *name);
extern QueueState *queue_find_or_add(const char *name);
extern void queue_count(QueueState *queue, int groups, int running);
extern MonoTime queue_blocked_until(QueueState *queue, const TaskGroup *group, ClockNow now);
extern int queue_free_places(QueueState *queue, const TaskGroup *group, MonoTime now);
extern TimestampTz queue_next_turn(QueueState *queue, TimestampTz now);
extern void
queues_turn_back(TimestampTz now, int64 step, void (*follow)(QueueState *, TimestampTz));
extern const QueueRule *queue_rule(QueueState *queue);
extern QueueLimit *queue_limit(QueueState *queue);
extern bool queues_limits_changed(void);
extern void queues_forget_limits(void);
extern double queue_average(const QueueState *queue);
extern void queue_learn(QueueState *queue, uint32 elapsed);
extern bool queues_forget_idle(MonoTime now, int limit);

#endif /* PG_TASK_QUEUES_H */
