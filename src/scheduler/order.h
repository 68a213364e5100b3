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

/* The position of a group in the order. */
typedef struct OrderKey
{
	int32 max;
	int32 priority; /* 0 with aging: then it is in "time" */
	int64 time;		/* dt, or the last turn of the queue if that is later; see order_key_at */
	TaskPlace place;
} OrderKey;

/* A role that has waiting rows. */
typedef struct GroupRole
{
	char *name;
	int nlanes;				/* all of its lanes ... */
	dlist_head all_lanes;	/* ... and their list */
	int ngroups;			/* all of its groups */
	pairingheap lanes;		/* those that are ready */
	pairingheap_node order; /* in the heap of roles, if it is ready */
	bool ready;
	dlist_node skipped_node; /* in the list of skipped roles ... */
	bool skipped;			 /* ... if it starts no more task in this round */

	/* groups of it that are due may have been forgotten (surplus.c) */
	bool bounded;		 /* no group at or behind this position starts a task ... */
	OrderKey bound;		 /* ... because a forgotten one may come before it */
	bool next_bounded;	 /* the same for the groups that were forgotten ... */
	OrderKey next_bound; /* ... since the last scan began */
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
	dlist_node role_node;	/* in the list of all lanes of the role */
	dlist_node parked_node; /* in the list of its parked lanes */
	MonoTime parked_until;
} GroupLane;

/* Compare two positions of rows: negative if "a" comes first. */
static inline int
order_compare_places(const TaskPlace *a, const TaskPlace *b)
{
	if (a->dt != b->dt)
		return a->dt < b->dt ? -1 : 1;
	if (a->id != b->id)
		return a->id < b->id ? -1 : 1;
	return 0;
}

/* Compare two positions: positive if "a" comes first. */
static inline int
order_compare_keys(const OrderKey *a, const OrderKey *b)
{
	if (a->max != b->max)
		return a->max > b->max ? 1 : -1;
	if (a->priority != b->priority)
		return a->priority < b->priority ? 1 : -1;
	if (a->time != b->time)
		return a->time < b->time ? 1 : -1;
	return -order_compare_places(&a->place, &b->place);
}

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

extern void order_create(MemoryContext context, int64 aging);
#ifdef USE_ASSERT_CHECKING
extern bool order_places_ascend(TaskPlace read_position, const TaskPlace *places, int count);
#endif
extern void order_set_turn(QueueState *queue, TimestampTz turn);
extern OrderKey order_key(const QueueGroup *group);
extern OrderKey order_key_at(const TaskGroup *key, TimestampTz turn, TaskPlace place);
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
extern int order_count_parked(void);
extern void order_unpark_all(void);
extern MonoTime order_due_at(ClockNow now);
extern void order_set_now(ClockNow now);
extern ClockNow order_now(void);

#endif /* PG_TASK_ORDER_H */
