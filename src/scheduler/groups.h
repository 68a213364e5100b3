/*
 * groups.h
 *		The scheduler's memory of what waits, and of what runs in each queue.
 */
#ifndef PG_TASK_GROUPS_H
#define PG_TASK_GROUPS_H

#include "postgres.h"

#include "lib/ilist.h"

#include "shared/clock.h"
#include "shared/task.h"

/* A queue: how many of its tasks are running, and how long they take. */
typedef struct WaitingQueue
{
	char *name;
	int running;
	int groups; /* that refer to it */
	MonoTime last_start;
	MonoTime paused_until; /* the longest pause that a task asked for */
	double average;		   /* microseconds; negative: not known yet */
} WaitingQueue;

/*
 * A group: the next rows in its line, as far as they were read.  Every
 * waiting row that is not in "places" is behind "mark", or will be noted.
 */
typedef struct WaitingGroup
{
	TaskGroup key; /* strings owned by the group */
	WaitingQueue *queue;
	dlist_node node;
	dlist_node unread_node;
	bool unread;	   /* in the list of those that must be read on */
	int size;		   /* of places */
	TaskPlace *places; /* read, not taken yet: [next, count) */
	int next;
	int count;
	TaskPlace mark; /* how far it was read */
	bool exhausted; /* there was nothing behind the mark */
	uint32 seen;	/* the last full look that found it */

	/* when rows of it could not be claimed, for somebody had locked them */
	int misses;			 /* so many in a row */
	bool locked;		 /* too many: which are not locked is found out before they are read */
	TaskPlace head;		 /* then: its first row, as a look found it */
	MonoTime rest_until; /* it is left alone until then */
} WaitingGroup;

extern void waiting_create(void);
extern void waiting_clear(void);
extern WaitingGroup *waiting_group(const TaskGroup *key);
extern WaitingQueue *waiting_queue(const char *name);

extern void waiting_note(const TaskGroup *key, TaskPlace place);
extern void waiting_look(void);
extern void waiting_head(const TaskGroup *key, TaskPlace place);
extern void waiting_looked(MonoTime now);

extern WaitingGroup *waiting_unread(ClockNow now);
extern void waiting_read(WaitingGroup *group, const TaskPlace *places, int count, int limit);

extern void waiting_claimed(WaitingGroup *group);
extern void waiting_missed(WaitingGroup *group);
extern void waiting_rest(WaitingGroup *group, MonoTime until);
extern void waiting_read_unlocked(WaitingGroup *group, const TaskPlace *places, int count,
								  TaskPlace mark, bool exhausted);
extern void waiting_unlocked(WaitingGroup *group);

extern void waiting_order(ClockNow now);
extern WaitingGroup *waiting_next(ClockNow now);
extern TaskPlace waiting_take(ClockNow now);
extern void waiting_pass(void);
extern bool waiting_due(const WaitingGroup *group, ClockNow now);
extern bool waiting_drop(WaitingGroup *group, ClockNow now, TaskPlace *place);
extern bool waiting_ready(ClockNow now);
extern int waiting_startable(const WaitingGroup *group, ClockNow now);

extern void waiting_ended(WaitingQueue *queue);
extern void waiting_learn(WaitingQueue *queue, uint32 elapsed);
extern MonoTime waiting_until(ClockNow now);

#endif /* PG_TASK_GROUPS_H */
