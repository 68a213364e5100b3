/*
 * order.h
 *		Groups, and the order in which they start tasks.
 */
#ifndef PG_TASK_ORDER_H
#define PG_TASK_ORDER_H

#include "postgres.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "scheduler/queues.h"
#include "shared/clock.h"
#include "shared/task.h"

/* Where a group is remembered: see order.c. */
typedef enum QueueGroupState
{
	GROUP_AT_REST, /* no row of it waits, as far as is known */
	GROUP_READY,   /* its next row is due, or has to be read, and it is the first of its queue */
	GROUP_WAITING, /* behind that, or the queue is closed */
	GROUP_YIELDED, /* its role is skipped, and it makes way for others of its queue */
	GROUP_FUTURE,  /* its next row is not due */
	GROUP_SKIPPED  /* until the next round */
} QueueGroupState;

/*
 * A group: its next rows, as far as they were read.  Every waiting row of the group that is not in
 * "places" is behind the read position, or a hint or a scan will name it.
 *
 * What determines its position in the order (the next row, the read position and "exhausted")
 * changes only between order_detach and order_attach.
 */
typedef struct QueueGroup
{
	TaskGroup key; /* the strings belong to the queue and the role; first: groups.c relies on it */
	QueueState *queue;
	struct GroupRole *role;
	dlist_node node; /* in the list of all: see groups.c */
	QueueGroupState state;
	bool has_behind;		/* it is ready, and some of other roles may wait behind it */
	pairingheap_node order; /* in the heap of its state */
	dlist_node listed;		/* in the list of its state, or in "with_behind" of its role */

	int size;		   /* length of "places" */
	TaskPlace *places; /* rows that were read; [next, count) are not chosen yet */
	TaskPlace one;	   /* memory of "places" as long as one suffices */
	int next;
	int count;
	TaskPlace read_position; /* rows up to here were read */
	uint32 seen;			 /* number of the last scan that found it */
	bool exhausted;			 /* there were no rows behind the read position */

	/* rows that could not be claimed, since the group was read from its first row */
	int nmissed;
	TaskPlace missed;	  /* the first of them */
	MonoTime missed_from; /* when it was read from there */
} QueueGroup;

/* Is the next row of the group known? */
static inline bool
group_knows_row(const QueueGroup *group)
{
	return group->next < group->count;
}

/* Is the next row of the group known, and due? */
static inline bool
group_is_due(const QueueGroup *group, ClockNow now)
{
	return group_knows_row(group) && group->places[group->next].dt <= now.wall;
}

/* The position of the next row of the group, or one before it. */
static inline TaskPlace
group_next_place(const QueueGroup *group)
{
	return group_knows_row(group) ? group->places[group->next] : group->read_position;
}

/* The position of a group in the order. */
typedef struct OrderKey
{
	int32 max;		/* it counts within a queue only */
	int32 priority; /* 0 with aging: then it is in "time" */
	int64 time;		/* dt, or the last turn of the queue if that is later; see order_key_at */
	TaskPlace place;
} OrderKey;

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

/* Compare two positions, whatever their "max": positive if "a" comes first. */
static inline int
order_compare_keys(const OrderKey *a, const OrderKey *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority ? 1 : -1;
	if (a->time != b->time)
		return a->time < b->time ? 1 : -1;
	return -order_compare_places(&a->place, &b->place);
}

/* For how long a role starts no task. */
typedef enum RoleSkip
{
	ROLE_NOT_SKIPPED,
	ROLE_SKIPPED,  /* until the next round */
	ROLE_IN_LINE,  /* until it is called: see order.c */
	ROLE_TAKERLESS /* until a session waits for tasks that may take them */
} RoleSkip;

/*
 * A role that has waiting rows.  In queues that have a limit together, or a taker, it is another
 * one than in others, so that all its groups in them are skipped in one step while the limit is
 * reached, or no session takes.
 */
typedef struct GroupRole
{
	char *name;
	QueueLimit *limit;		 /* of all of its queues; NULL: they have none */
	int64 taker;			 /* of all of its queues, as QueueRule has it */
	bool full;				 /* it waits for a place in that: it is not in the heap of roles ... */
	dlist_node full_node;	 /* ... but in the list of the limit */
	int ngroups;			 /* all of its groups */
	pairingheap groups;		 /* those that are ready */
	dlist_head with_behind;	 /* those of them behind which others of the queue wait */
	dlist_head yielded;		 /* those that have made way while it is skipped */
	pairingheap_node order;	 /* in the heap of roles, if one is ready and it is not skipped */
	dlist_node skipped_node; /* in the list of skipped roles, otherwise */
	RoleSkip skip;

	/* while it has no executor, see order.c */
	Oid oid;			 /* InvalidOid: not known yet */
	MonoTime since;		 /* it needs an executor, or has got its last one; 0: neither so far */
	MonoTime not_before; /* it gets none before this */
	int retry_ms;		 /* the pause before that, after its last one could not connect */
	bool limited;		 /* the connection limit of the database concerns it */
} GroupRole;

extern OrderKey order_key_at(const TaskGroup *key, TimestampTz turn, TaskPlace place);
extern int order_compare_keys_in_queue(const OrderKey *a, const OrderKey *b);

extern void order_create(MemoryContext context, int64 aging);
extern GroupRole *order_find_or_add_role(const char *name, QueueLimit *limit, int64 taker);
extern void order_release_role(GroupRole *role);
extern void order_attach(QueueGroup *group);
extern void order_detach(QueueGroup *group);
extern void order_advance(ClockNow now);
extern QueueGroup *order_next(ClockNow now);
extern QueueGroup *order_next_of_role(GroupRole *role, ClockNow now);
extern void order_skip(QueueGroup *group);
extern void order_open(QueueState *queue);
extern void order_rules_changed(void);
extern void order_set_turn(QueueState *queue, TimestampTz turn);
extern void order_task_ended(QueueState *queue);
extern void order_undo_start(QueueState *queue, QueueStart start);
extern void order_skip_role(GroupRole *role, RoleSkip skip);
extern void order_takers_came(void);
extern MonoTime order_due_at(ClockNow now);
extern ClockNow order_now(void);

/*
 * Roles that are called at once.  A round that has demanded executors for as many in vain gives up.
 */
#define ROLE_LINE_CALLED 16

/* The roles in line. */
typedef struct RoleLine
{
	int count;
	bool waits;		/* one may be called now */
	MonoTime until; /* when one may be that could not connect or may have none; or CLOCK_NEVER */
} RoleLine;

/* A role that is not called before this time takes no part in the round of "now", but in the next.
 */
static inline MonoTime
role_line_next_round(MonoTime now)
{
	return (MonoTime){now.us + 1};
}

extern void role_line_add(GroupRole *role, MonoTime not_before);
extern int role_line_call(MonoTime now, bool full);
extern void role_line_recall(void);
extern RoleLine role_line_read(MonoTime now);
extern void role_connection_tried(Oid oid, bool connected, MonoTime now);

#endif /* PG_TASK_ORDER_H */
