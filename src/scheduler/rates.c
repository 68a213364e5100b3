/*
 * rates.c
 *		The rates of all queues that have one.
 *
 * A queue has a rate from the moment when its rule is first asked for one, a group of it with a
 * negative "max" waits, or the scheduler reads that an earlier one has started tasks in it; until
 * its starts have left the window, and the longest pause after the last one is over.  Beyond
 * RATE_QUEUES_MAX of them, queues wait until others are forgotten.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  What is durable of
 * it is written by rate_store.c.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/rates.h"

/* A queue for which there is no place asks again after this time (us). */
#define FULL_AGAIN_US (5 * USECS_PER_SEC)

/* Static, because rates are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of the starts that are remembered */
	MemoryContext members; /* of QueueRate alone */
	dlist_head all;		   /* of QueueRate; the one that was looked at last is at the end */
	int count;
	bool held;	   /* no task of a queue with a rate starts: see rates_hold */
	bool pauses;   /* the pauses that earlier schedulers have begun are known */
	bool doubtful; /* there may be tasks in doubt: see rates_settle */
} rates;

void
rates_create(MemoryContext context)
{
	memset(&rates, 0, sizeof(rates));
	rates.context = context;
	rates.members =
		SlabContextCreate(context, "pg_task rates", SLAB_DEFAULT_BLOCK_SIZE, sizeof(QueueRate));
	rates.held = rates.doubtful = true;
	dlist_init(&rates.all);
}

/* Give the queue a rate.  The queue is remembered at least as long as its rate. */
static QueueRate *
add_rate(QueueState *queue, RateRule rule)
{
	QueueRate *rate = MemoryContextAllocZero(rates.members, sizeof(QueueRate));

	Assert(queue->rate == NULL);
	rate_init(&rate->state, rates.context, rule);
	rate->queue = queue;
	dlist_push_tail(&rates.all, &rate->node);
	queue_set_rate(queue, rate);
	rates.count++;
	return rate;
}

/* Forget the rate of a queue. */
void
rates_forget(QueueRate *rate)
{
	Assert(rate->state.pending == 0);
	queue_set_rate(rate->queue, NULL);
	dlist_delete(&rate->node);
	rates.count--;
	rate_free(&rate->state);
	pfree(rate);
}

/* Is nothing known of starts by a rule? */
static bool
is_unused(const RateState *state)
{
	return state->pending == 0 && state->doubt == 0 && state->first == state->end &&
		   state->full_at == 0;
}

/* The queue has this rate and pause from an earlier scheduler. */
static void
take_over(QueueRate *rate, RateState *state, const RatePause *pause)
{
	RatePause *own = &rate->queue->pause;

	/* otherwise this one has started tasks already */
	if (is_unused(&rate->state))
	{
		rate_free(&rate->state);
		rate->state = *state;
	}
	else
		rate_free(state);
	own->last_start = clock_max(own->last_start, pause->last_start);
	own->longest = Max(own->longest, pause->longest);
	rate->stored = true;
	rate->stale |= rate->state.doubt > 0;
}

/*
 * Give the queue the rate that an earlier scheduler has written down (rates_write).  False if it
 * has written something else: then the queue is as before.  If memory runs out, it may have a rate
 * of which nothing is known.
 */
bool
rates_restore(QueueState *queue, const char *image, int length, ClockNow now)
{
	bool known = queue->rate != NULL;
	QueueRate *rate = known ? queue->rate : add_rate(queue, (RateRule){.per = 1});
	RateState state;
	RatePause pause;

	if (rate_read(&state, &pause, rates.context, image, length, now))
	{
		take_over(rate, &state, &pause);
		return true;
	}
	rate_free(&state);
	if (!known)
		rates_forget(rate);
	return false;
}

/*
 * Tasks of the queue wait that ask for this pause (ms) after each start: its starts have to be
 * durable from now on.
 */
void
rates_want_pause(QueueState *queue, int64 pause)
{
	queue->pause.longest = Max(queue->pause.longest, pause);
	if (queue->rate == NULL && !rates_are_full())
		(void) add_rate(queue, (RateRule){.per = 1});
}

/*
 * Until when may no task with a negative "max" start, because there is no place to remember its
 * start?
 */
MonoTime
rates_no_place_until(QueueState *queue, MonoTime now)
{
	if (queue->rate == NULL && rates_are_full())
		return (MonoTime){now.us + FULL_AGAIN_US};
	if (queue->rate == NULL)
		(void) add_rate(queue, (RateRule){.per = 1});
	return CLOCK_LONG_AGO;
}

/* Append what is to be durable. */
void
rates_write(const QueueRate *rate, ClockNow now, StringInfo out)
{
	rate_write(&rate->state, &rate->queue->pause, now, out);
}

/* When is nothing left to remember, if no task begins until then?  CLOCK_NEVER with pending ones.
 */
MonoTime
rates_idle_at(const QueueRate *rate)
{
	return clock_max(rate_idle_at(&rate->state), rate_pause_end(&rate->queue->pause));
}

/* Return the rate of a queue as its rule, which has one, says now.  NULL: there is no place for it.
 */
static QueueRate *
find_rate(QueueState *queue, const QueueRule *rule, MonoTime now)
{
	RateRule new = rate_rule(rule->rate, rule->per, rule->burst);

	if (queue->rate == NULL && rates_are_full())
		return NULL;
	if (queue->rate == NULL)
		(void) add_rate(queue, new);
	queue->rate->limited = true;
	rate_set_rule(&queue->rate->state, new, now);
	return queue->rate;
}

/*
 * Until when may no task of the queue start, by its rule?  NULL: it has none.  The result is as
 * that of rate_next_start.
 */
MonoTime
rates_blocked_until(QueueState *queue, const QueueRule *rule, MonoTime now)
{
	if (rule && rule->rate >= 0)
	{
		QueueRate *rate = find_rate(queue, rule, now);

		if (rate == NULL)
			return (MonoTime){now.us + FULL_AGAIN_US};
		return rates.held ? CLOCK_NEVER : rate_next_start(&rate->state, now);
	}
	if (queue->rate)
		queue->rate->limited = false;
	return CLOCK_LONG_AGO;
}

/* How many tasks of the queue may start now, by its rule? */
int
rates_room(QueueState *queue, const QueueRule *rule, MonoTime now)
{
	QueueRate *rate;

	if (rule == NULL || rule->rate < 0)
		return PG_INT32_MAX;
	rate = find_rate(queue, rule, now);
	return rates.held || rate == NULL ? 0 : rate_room(&rate->state, now);
}

/*
 * A task of the queue was chosen.  True if its rate counts it: then the caller calls one of the
 * next functions when it knows more.
 */
bool
rates_task_chosen(QueueState *queue)
{
	if (queue->rate == NULL || !queue->rate->limited)
		return false;
	rate_chosen(&queue->rate->state);
	return true;
}

/* A task that was counted will not begin. */
void
rates_task_released(QueueState *queue)
{
	rate_released(&queue->rate->state);
	queue->rate->stale = true;
}

/*
 * A task that was counted has begun.  False: it counts as beginning now, and the caller calls
 * again.
 */
bool
rates_task_begun(QueueState *queue, const RateBegin *begin, MonoTime now)
{
	RateState *state = &queue->rate->state;
	MonoTime from;

	from = rate_counts_from(state, begin->began, begin->ended, begin->new_process);
	if (clock_is_before(now, from))
		return false;
	rate_begun(state, from);
	queue->rate->stale = true;
	return true;
}

/*
 * A task of the queue that an earlier scheduler has assigned, and that was counted, has not begun.
 * True if its rate counts it.
 */
bool
rates_task_adopted(QueueState *queue)
{
	if (queue->rate == NULL)
		return false;
	rate_adopt(&queue->rate->state);
	return true;
}

/*
 * Start no task of a queue with a rate: it is not known what an earlier scheduler has started, or
 * there is no table to write down what this one starts.
 */
void
rates_hold(void)
{
	rates.held = true;
}

/*
 * Start tasks again.  The caller makes the order look again at the queues of all rates
 * (groups_queue_changed).
 */
void
rates_end_hold(void)
{
	rates.held = false;
	rates.pauses = true;
}

/*
 * There is nothing to read of pauses: tasks with a negative "max" may start.  The caller does the
 * same.
 */
void
rates_end_pause_hold(void)
{
	rates.pauses = true;
}

/* Are the pauses known that earlier schedulers have begun? */
bool
rates_know_pauses(void)
{
	return rates.pauses;
}

int
rates_count(void)
{
	return rates.count;
}

bool
rates_are_full(void)
{
	return rates.count >= RATE_QUEUES_MAX;
}

/*
 * The running tasks of earlier schedulers are known by now: all others that were pending when they
 * ended have begun, or will not.  A walk over all rates, once in the life of the process.
 */
void
rates_settle(MonoTime now)
{
	dlist_iter iter;

	if (!rates.doubtful || rates.held)
		return;
	dlist_foreach(iter, &rates.all)
		rate_settle(&dlist_container(QueueRate, node, iter.cur)->state, now);
	rates.doubtful = false;
}

/* Return the rate after this one, the first one after NULL; NULL after the last one. */
QueueRate *
rates_next(const QueueRate *previous)
{
	const dlist_node *node = previous ? &previous->node : &rates.all.head;

	if (dlist_is_empty(&rates.all) || node->next == &rates.all.head)
		return NULL;
	return dlist_container(QueueRate, node, node->next);
}

/*
 * Look at the next rates, each time at others, until *left of them were seen (at most rates_count),
 * and return one with nothing left to remember; NULL if there is none.
 */
QueueRate *
rates_next_idle(MonoTime now, int *left)
{
	for (; *left > 0 && !dlist_is_empty(&rates.all); (*left)--)
	{
		QueueRate *rate = dlist_head_element(QueueRate, node, &rates.all);

		dlist_delete(&rate->node);
		dlist_push_tail(&rates.all, &rate->node);
		if (!clock_is_before(now, rates_idle_at(rate)))
		{
			(*left)--;
			return rate;
		}
	}
	return NULL;
}
