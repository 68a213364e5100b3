/*
 * order.h
 *		The order in which the groups start tasks.
 */
#ifndef PG_TASK_ORDER_H
#define PG_TASK_ORDER_H

#include "postgres.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "scheduler/groups.h"
#include "shared/clock.h"
#include "shared/task.h"

/* A role that has waiting rows. */
typedef struct GroupRole
{
	char *name;
	int nlanes;				/* all of its lanes */
	pairingheap lanes;		/* those that are ready */
	pairingheap_node order; /* in the heap of roles, if it is ready */
	bool ready;
	dlist_node skipped_node; /* in the list of skipped roles ... */
	bool skipped;			 /* ... if it starts no more task in this round */
} GroupRole;

typedef enum LaneState
{
	LANE_AT_REST, /* no group of it is ready */
	LANE_READY,	  /* in the heap of its role */
	LANE_PARKED	  /* at its queue, because that may not start a task */
} LaneState;

/* A lane: the groups of one queue and one role. */
typedef struct GroupLane
{
	QueueState *queue;
	GroupRole *role;
	int ngroups; /* all of its groups */
	LaneState state;
	pairingheap groups;		/* those that are ready */
	pairingheap_node order; /* in the heap of its role, or of the parked lanes with a time */
	dlist_node queue_node;	/* in the list of all lanes of the queue */
	dlist_node parked_node; /* in the list of its parked lanes */
	MonoTime parked_until;
} GroupLane;

extern void order_create(MemoryContext context);
extern GroupLane *order_find_or_add_lane(QueueState *queue, const char *name);
extern void order_release_lane(GroupLane *lane);
extern void order_attach(QueueGroup *group);
extern void order_detach(QueueGroup *group);
extern void order_begin_round(ClockNow now);
extern QueueGroup *order_first(ClockNow now);
extern QueueGroup *order_first_of_role(GroupRole *role, ClockNow now);
extern bool order_is_first_of_queue(const QueueGroup *group);
extern void order_skip(QueueGroup *group);
extern void order_skip_role(GroupRole *role);
extern void order_unpark(QueueState *queue);
extern void order_unpark_all(void);
extern MonoTime order_due_at(ClockNow now);
extern int order_compare_places(const TaskPlace *a, const TaskPlace *b);

#endif /* PG_TASK_ORDER_H */
