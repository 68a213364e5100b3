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

/* Why a role is set aside that has due tasks and no executor; see role_line.c. */
typedef enum RoleLine
{
	ROLE_LINE_OPEN,	  /* no executor can be started at present */
	ROLE_LINE_FULL,	  /* the connection limit of the database is reached */
	ROLE_LINE_BARRED, /* its connection limit, or that of the database, is 0 */
	ROLE_LINES
} RoleLine;

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
	dlist_node skipped_node; /* in the list of skipped roles ... */
	bool skipped;			 /* ... if it starts no more task in this round */

	/* see role_line.c */
	bool aside;				/* it is skipped until it is called, and is not in that list */
	RoleLine which;			/* the line in which it is then, or was last ... */
	pairingheap_node line;	/* ... and its node there */
	MonoTime since;			/* its place in the line ... */
	uint64 number;			/* ... among those with the same time */
	bool called;			/* it was called, and not looked at yet */
	dlist_node called_node; /* in the list of those */
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
extern void lanes_bring_back(GroupRole *role);

#endif /* PG_TASK_LANES_H */
