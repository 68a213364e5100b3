/*
 * groups.h
 *		The scheduler's memory of the waiting rows, and of what runs in each queue.
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
	int running; /* changed by groups_task_started and groups_task_ended alone */
	int groups;	 /* groups of this queue */
	MonoTime last_start;
	MonoTime paused_until; /* end of the longest pause that a group asked for */
	double average;		   /* average duration (us); negative: not known yet */
} QueueState;

/*
 * A group: its next rows, as far as they were read.  Every waiting row of the group that is not in
 * "places" is behind the read position, or a hint or a scan will name it.
 */
typedef struct QueueGroup
{
	TaskGroup key; /* the strings belong to the group */
	QueueState *queue;
	dlist_node node;
	dlist_node unread_node;
	bool unread;	   /* in the list of groups whose next row is not known */
	int size;		   /* allocated length of "places" */
	TaskPlace *places; /* rows that were read; [next, count) are not chosen yet */
	int next;
	int count;
	TaskPlace read_position; /* rows up to here were read */
	bool exhausted;			 /* there were no rows behind the read position */
	uint32 seen;			 /* number of the last scan that found it */

	/* for groups of which rows could not be claimed because they were locked */
	int misses;			   /* claims in a row that failed */
	bool locked;		   /* too many failed: read only rows that are not locked */
	TaskPlace head;		   /* if locked: its first row, as the last scan found it */
	MonoTime paused_until; /* no task of it starts before this */
} QueueGroup;

extern void groups_create(void);
extern void groups_clear(void);
extern QueueState *groups_queue(const char *name);

extern void groups_hint(const TaskGroup *key, TaskPlace place);
extern void groups_scan_begin(void);
extern void groups_scan_found(const TaskGroup *key, TaskPlace place);
extern void groups_scan_end(MonoTime now);

extern QueueGroup *groups_unread(ClockNow now);
extern void groups_read(QueueGroup *group, const TaskPlace *places, int count, int limit);

extern void groups_claimed(QueueGroup *group);
extern void groups_missed(QueueGroup *group);
extern void groups_pause(QueueGroup *group, MonoTime until);
extern void groups_read_unlocked(QueueGroup *group, const TaskPlace *places, int count,
								 TaskPlace read_position, bool exhausted);
extern void groups_unlocked(QueueGroup *group);

extern void groups_order(ClockNow now);
extern QueueGroup *groups_next(ClockNow now);
extern TaskPlace groups_choose_first(ClockNow now);
extern void groups_skip(void);
extern bool groups_due_now(const QueueGroup *group, ClockNow now);
extern bool groups_drop_first(QueueGroup *group, ClockNow now, TaskPlace *place);
extern bool groups_ready(ClockNow now);
extern int groups_startable(const QueueGroup *group, ClockNow now);

extern void groups_task_started(QueueState *queue);
extern void groups_task_ended(QueueState *queue);
extern void groups_learn(QueueState *queue, uint32 elapsed);
extern MonoTime groups_due_at(ClockNow now);

#endif /* PG_TASK_GROUPS_H */
