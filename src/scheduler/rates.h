/*
 * rates.h
 *		The rates of all queues that have one.
 */
#ifndef PG_TASK_RATES_H
#define PG_TASK_RATES_H

#include "postgres.h"

#include "lib/ilist.h"

#include "scheduler/queues.h"
#include "task/queue_table.h"
#include "task/rate.h"

/* The rate of a queue; or only its pauses, if it has no rate. */
typedef struct QueueRate
{
	RateState state;
	QueueState *queue;
	dlist_node node; /* in the list of all rates */
	bool limited;	 /* the rule of the queue says so */
	bool stored;	 /* the rate table has a row for it ... */
	bool stale;		 /* ... or should have; it says less than is known by now */
	bool listed;	 /* while rate_store.c lists those of a round */
} QueueRate;

/* The beginning of a task, as its executor has recorded it. */
typedef struct RateBegin
{
	bool begun; /* these three: see SharedTask */
	MonoTime began;
	MonoTime ended;
	bool new_process; /* the first tasks of the process */
} RateBegin;

extern void rates_create(MemoryContext context);
extern bool rates_restore(QueueState *queue, const char *image, int length, ClockNow now);
extern MonoTime rates_blocked_until(QueueState *queue, const QueueRule *rule, MonoTime now);
extern int rates_room(QueueState *queue, const QueueRule *rule, MonoTime now);

extern void rates_want_pause(QueueState *queue, int64 pause);
extern MonoTime rates_no_place_until(QueueState *queue, MonoTime now);
extern bool rates_task_chosen(QueueState *queue);
extern void rates_task_released(QueueState *queue);
extern bool rates_task_begun(QueueState *queue, const RateBegin *begin, MonoTime now);
extern bool rates_task_adopted(QueueState *queue);

extern void rates_hold(void);
extern void rates_end_hold(void);
extern void rates_end_pause_hold(void);
extern bool rates_know_pauses(void);
extern int rates_count(void);
extern bool rates_are_full(void);
extern void rates_settle(MonoTime now);

extern void rates_write(const QueueRate *rate, ClockNow now, StringInfo out);
extern MonoTime rates_idle_at(const QueueRate *rate);
extern QueueRate *rates_next(const QueueRate *previous);
extern QueueRate *rates_next_idle(MonoTime now, int *left);
extern void rates_forget(QueueRate *rate);

#endif /* PG_TASK_RATES_H */
