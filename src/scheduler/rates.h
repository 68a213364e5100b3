/*
 * rates.h
 *		The last claims of each queue that has a rate or a pause.
 */
#ifndef PG_TASK_RATES_H
#define PG_TASK_RATES_H

#include "postgres.h"

#include "shared/clock.h"
#include "task/queue_table.h"
#include "task/rate_table.h"

/* The claims of a queue, until the window of its rate and its longest pause are over. */
typedef struct QueueRate
{
	int64 per;		   /* the window of its rate (us) */
	int64 pause;	   /* the longest pause that a task of it has asked for (us); 0: none has */
	uint64 before;	   /* claims that were removed from the front of the array */
	RateClaim *claims; /* in the order of time; those that were undone have a count of 0 */
	int count;
	int size;
	bool limited; /* its rule says that it has a rate */
} QueueRate;

/* What is known of the claims of a queue, as a part of its QueueState. */
typedef struct QueueClaims
{
	MonoTime last;	 /* when a task of it was claimed last */
	QueueRate *rate; /* NULL: no claim of it has to be durable */
} QueueClaims;

extern void rates_create(MemoryContext context);
extern int rates_count(void);
extern void rates_hold(bool held);

extern void rates_want_pause(QueueClaims *queue, int64 pause);
extern MonoTime
rates_blocked_until(QueueClaims *queue, const QueueRule *rule, int max, MonoTime now);
extern int rates_room(QueueClaims *queue, const QueueRule *rule, MonoTime now);
extern uint64 rates_add(QueueClaims *queue, MonoTime now);
extern void rates_undo(QueueClaims *queue, uint64 number);
extern void rates_delay(QueueClaims *queue, uint64 number, MonoTime now);
extern bool rates_is_idle(const QueueClaims *queue, MonoTime now);

extern void rates_restore(QueueClaims *queue, const RateRow *row);
extern void rates_forget(QueueClaims *queue);

/* For how long does a claim count (us)? */
static inline int64
rate_keep_time(const QueueRate *rate)
{
	return Max(rate->per, rate->pause);
}

/* Return what is to be durable of a queue that has a rate, and a claim. */
static inline RateRow
rates_row(const QueueClaims *queue, const char *name)
{
	const QueueRate *rate = queue->rate;

	return (RateRow){name, rate_keep_time(rate), rate->count, rate->claims};
}

#endif /* PG_TASK_RATES_H */
