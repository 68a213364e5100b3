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
typedef struct QueueState
{
	char *name;
	int running;
	int groups; /* that refer to it */
	MonoTime last_start;
	MonoTime paused_until; /* the longest pause that a task asked for */
	double average;		   /* microseconds; negative: not known yet */
} QueueState;

/*
 * A group: the next rows in its line, as far as they were read.  Every
 * waiting row that is not in "places" is behind "mark", or will be noted.
 */
typedef struct QueueGroup
{
	TaskGroup key; /* strings owned by the group */
	QueueState *queue;
	dlist_node node;
	dlist_node unread_node;
	bool unread;	   /* in the list of those that must be read on */
	int size;		   /* of places */
	TaskPlace *places; /* read, not taken yet: [next, count) */
	int next;
	int count;
	TaskPlace mark; /* how far it was read */
	bool exhausted; /* there was nothing behind the mark */
	uint32 seen;	/* the last complete scan that found it */

	/* when rows of it could not be claimed, for somebody had locked them */
	int misses;			 /* so many in a row */
	bool locked;		 /* too many: which are not locked is found out before they are read */
	TaskPlace head;		 /* then: its first row, as a scan found it */
	MonoTime rest_until; /* it is left alone until then */
} QueueGroup;

extern void groups_create(void);
extern void groups_clear(void);
extern QueueGroup *groups_get(const TaskGroup *key);
extern QueueState *groups_queue(const char *name);

extern void groups_hint(const TaskGroup *key, TaskPlace place);
extern void groups_scan_begin(void);
extern void groups_scan_found(const TaskGroup *key, TaskPlace place);
extern void groups_scan_end(MonoTime now);

extern QueueGroup *groups_unread(ClockNow now);
extern void groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit);

extern void groups_claimed(QueueGroup *group);
extern void groups_missed(QueueGroup *group);
extern void groups_rest(QueueGroup *group, MonoTime until);
extern void groups_read_unlocked(QueueGroup *group, const TaskPlace *places, int count,
								 TaskPlace mark, bool exhausted);
extern void groups_unlocked(QueueGroup *group);

extern void groups_order(ClockNow now);
extern QueueGroup *groups_next(ClockNow now);
extern TaskPlace groups_take(ClockNow now);
extern void groups_skip(void);
extern bool groups_due_now(const QueueGroup *group, ClockNow now);
extern bool groups_drop(QueueGroup *group, ClockNow now, TaskPlace *place);
extern bool groups_ready(ClockNow now);
extern int groups_startable(const QueueGroup *group, ClockNow now);

extern void groups_task_ended(QueueState *queue);
extern void groups_learn(QueueState *queue, uint32 elapsed);
extern MonoTime groups_until(ClockNow now);

#endif /* PG_TASK_GROUPS_H */
