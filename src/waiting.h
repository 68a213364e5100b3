/*
 * waiting.h
 *		The scheduler's memory of what waits, and of what runs in each queue.
 */
#ifndef PG_TASK_WAITING_H
#define PG_TASK_WAITING_H

#include "postgres.h"

#include "lib/ilist.h"

#include "task.h"

/* A queue: how many of its tasks are running, and how long they take. */
typedef struct WaitingQueue
{
	char *name;
	int running;
	int groups; /* that refer to it */
	TimestampTz last_start;
	TimestampTz paused_until; /* the longest pause that a task asked for */
	double average;			  /* microseconds; negative: not known yet */
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
} WaitingGroup;

extern void waiting_create(void);
extern void waiting_clear(void);
extern WaitingGroup *waiting_group(const TaskGroup *key);
extern WaitingQueue *waiting_queue(const char *name);

extern void waiting_note(const TaskGroup *key, TaskPlace place);
extern void waiting_look(void);
extern void waiting_head(const TaskGroup *key, TaskPlace place);
extern void waiting_looked(TimestampTz now);

extern WaitingGroup *waiting_unread(TimestampTz now);
extern void waiting_read(WaitingGroup *group, const TaskPlace *places, int count, int limit);

extern void waiting_order(TimestampTz now);
extern WaitingGroup *waiting_next(TimestampTz now);
extern TaskPlace waiting_take(TimestampTz now);
extern void waiting_pass(void);
extern bool waiting_due(const WaitingGroup *group, TimestampTz now);
extern bool waiting_drop(WaitingGroup *group, TimestampTz now, TaskPlace *place);
extern bool waiting_ready(TimestampTz now);
extern int waiting_startable(const WaitingGroup *group, TimestampTz now);

extern void waiting_ended(WaitingQueue *queue);
extern void waiting_learn(WaitingQueue *queue, uint32 elapsed);
extern TimestampTz waiting_until(TimestampTz now);

#endif /* PG_TASK_WAITING_H */
