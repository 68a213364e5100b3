/*
 * lanes.h
 *		The lanes of queues and roles, and which of them are ready.
 */
#ifndef PG_TASK_LANES_H
#define PG_TASK_LANES_H

#include "postgres.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "scheduler/groups.h"
#include "scheduler/order_key.h"
#include "shared/clock.h"

/* A role that has waiting rows. */
typedef struct GroupRole
{
	char *name;
	int nlanes;				/* all of its lanes ... */
	dlist_head all_lanes;	/* ... and their list */
	pairingheap lanes;		/* those that are ready */
	dlist_head fronts;		/* those that are the front of their queue */
	dlist_head away;		/* those that are put away while it is skipped */
	pairingheap_node order; /* in the heap of roles, if it is ready */
	bool ready;
	dlist_node skipped_node; /* in the list of skipped roles, or of those that are set aside ... */
	bool skipped;			 /* ... if it starts no more task in this round ... */
	bool aside;				 /* ... or until it is called */

	/* see role_line.c */
	Oid oid;			 /* InvalidOid: not known yet */
	MonoTime since;		 /* it needs an executor, or has got its last one; 0: neither so far */
	MonoTime not_before; /* it gets none before this ... */
	bool barred;		 /* ... because it may have none ... */
	int retry_ms;		 /* ... or because its last one could not connect */
	bool limited;		 /* the connection limit of the database concerns it */
} GroupRole;

typedef enum LaneState
{
	LANE_AT_REST, /* no group of it is ready */
	LANE_READY,	  /* in the heap of its role */
	LANE_PARKED,  /* at its queue: behind the front, or the queue is closed */
	LANE_AWAY	  /* in a list of its role, which is skipped */
} LaneState;

/* A lane: the groups of one queue and one role. */
typedef struct GroupLane
{
	QueueState *queue;
	GroupRole *role;
	int ngroups; /* all of its groups */
	LaneState state;
	pairingheap groups;		/* those that are ready */
	pairingheap_node order; /* in the heap of its role, or of the parked lanes of its queue */
	dlist_node queue_node;	/* in the list of all lanes of the queue */
	dlist_node role_node;	/* in the list of all lanes of the role */
	dlist_node ready_node;	/* in the list of the ready lanes of the queue, or those put away */
	dlist_node front_node;	/* in the list of the fronts of the role, if it is one */
} GroupLane;

/* The first group of a lane that has one that is ready. */
static inline QueueGroup *
order_first_group(const GroupLane *lane)
{
	return pairingheap_container(QueueGroup, order, lane->groups.ph_root);
}

/* The first lane of a role that has one that is ready. */
static inline GroupLane *
order_first_lane(const GroupRole *role)
{
	return pairingheap_container(GroupLane, order, role->lanes.ph_root);
}

extern void lanes_create(MemoryContext context);
extern GroupLane *lane_find_or_add(QueueState *queue, const char *name);
extern void lane_release(GroupLane *lane);
extern void lane_add_group(QueueGroup *group);
extern void lane_remove_group(QueueGroup *group);
extern void lane_park(GroupLane *lane, MonoTime until);
extern GroupLane *lane_first_of_queue(GroupLane *lane);
extern void lanes_open(QueueState *queue);
extern void lanes_open_due(MonoTime now);
extern void lanes_open_all(void);
extern MonoTime lanes_closed_until(void);
extern void lanes_set_turn(QueueState *queue, TimestampTz turn);
extern void lanes_undo_start(QueueState *queue, QueueStart *start);
extern bool lanes_have_first(const QueueGroup *group);
extern GroupRole *lanes_first_role(void);
extern void lanes_skip_role(GroupRole *role);
extern void lanes_end_skipping(void);
extern void lanes_set_aside(GroupRole *role);
extern dlist_head *lanes_aside(void);
extern void lanes_bring_back(GroupRole *role);

#endif /* PG_TASK_LANES_H */
