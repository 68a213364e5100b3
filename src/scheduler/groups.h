/*
 * groups.h
 *		The scheduler's memory of the waiting rows.
 */
#ifndef PG_TASK_GROUPS_H
#define PG_TASK_GROUPS_H

#include "postgres.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "scheduler/queues.h"
#include "shared/clock.h"
#include "shared/task.h"

/*
 * As many groups are remembered at most: 100,000 queues and what runs beside them.  One in a queue
 * of its own takes about 750 bytes.
 */
#define GROUPS_LIMIT 125000

struct GroupLane;

/* Where a group is remembered: see order.c. */
typedef enum QueueGroupState
{
	GROUP_AT_REST, /* no row of it waits, as far as is known */
	GROUP_READY,   /* in its lane: its next row is due, or has to be read */
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
	struct GroupLane *lane;
	dlist_node node;		/* in the list of all: see groups.c */
	pairingheap_node order; /* in the heap of its state */
	dlist_node skipped;		/* in the list of skipped groups */
	QueueGroupState state;

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

/* The position of the next row of the group, or one before it. */
static inline TaskPlace
group_next_place(const QueueGroup *group)
{
	return group_knows_row(group) ? group->places[group->next] : group->read_position;
}

extern void groups_create(int limit, int64 aging);
extern void groups_clear(void);

extern void groups_hint(const TaskGroup *key, TaskPlace place, bool several);
extern QueueGroup *groups_find(const TaskGroup *key);
extern void groups_scan_begin(void);
extern void
groups_scan_found(const TaskGroup *key, const TaskPlace *places, int count, bool complete);
extern void groups_scan_end(void);
extern bool groups_forget_unseen(MonoTime now, int limit);
extern bool groups_lack(void);
extern uint64 groups_displaced(void);

extern int groups_read_ahead(QueueGroup **batch, int limit, ClockNow now);
extern void groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit);

extern bool groups_ready(ClockNow now);
extern QueueGroup *groups_next(ClockNow now);
extern TaskPlace groups_choose_first(QueueGroup *group, ClockNow now);
extern void groups_skip(QueueGroup *group);
extern void groups_skip_role(QueueGroup *group);
extern bool groups_due_now(const QueueGroup *group, ClockNow now);
extern bool groups_drop_first(QueueGroup *group, ClockNow now, TaskPlace *place);

extern void groups_task_started(QueueState *queue);
extern void groups_task_ended(QueueState *queue);
extern void groups_rewind(QueueGroup *group, TaskPlace place);
extern void groups_claimed(QueueGroup *group, TaskPlace place, bool claimed);
extern void groups_queue_changed(QueueState *queue);
extern void groups_rule_changed(const char *name);
extern MonoTime groups_due_at(ClockNow now);

#endif /* PG_TASK_GROUPS_H */
