/*
 * rates.c
 *		How many tasks of a queue may be claimed within a time: the claims in a sliding window.
 *
 * A queue has a QueueRate from the moment when its rule is first asked for its rate, a group of it
 * with a negative "max" waits, or the scheduler reads what an earlier one has claimed; until the
 * queue is forgotten.  A pause is a window in which one claim may be.
 *
 * Claims at about the same time are one entry, which counts until the last of them has left the
 * window.  So there are some 100 entries at most, no window ever has too many claims, and a task
 * may wait longer by a hundredth of the window, or by 10 ms.
 *
 * Times are those of the monotonic clock: steps of the wall clock change nothing while the process
 * lives.  This file is plain memory: no SPI, no shared memory, and it reads no clock.  What is
 * durable of it is written by side_tables.c.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/rates.h"

/* Claims within this part of the window, or within this time (us), are one entry. */
#define STEPS 100
#define STEP_MIN_US (10 * INT64CONST(1000))

/* Static, because claims are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of the claims */
	MemoryContext members; /* of QueueRate alone */
	int count;
	bool held;	 /* no task of a queue with a rate starts: see rates_hold */
	bool pauses; /* the pauses that earlier schedulers have begun are known */
} rates;

void
rates_create(MemoryContext context)
{
	memset(&rates, 0, sizeof(rates));
	rates.context = context;
	rates.members =
		SlabContextCreate(context, "pg_task rates", SLAB_DEFAULT_BLOCK_SIZE, sizeof(QueueRate));
	rates.held = true;
}

/* How many queues have a rate, or had one? */
int
rates_count(void)
{
	return rates.count;
}

/*
 * What earlier schedulers have claimed is known, as far as it can be.  Tasks with a negative "max"
 * may start from now on, and those of queues with a rate while there is a table, to write down what
 * is claimed ("held" is false).  The caller makes the order look again at all queues.
 */
void
rates_hold(bool held)
{
	rates.held = held;
	rates.pauses = true;
}

static QueueRate *
find_or_add_rate(QueueClaims *queue)
{
	if (queue->rate == NULL)
	{
		queue->rate = MemoryContextAllocZero(rates.members, sizeof(QueueRate));
		rates.count++;
	}
	return queue->rate;
}

static void
remove_first(QueueRate *rate, int count)
{
	rate->before += count;
	rate->count -= count;
	memmove(rate->claims, rate->claims + count, rate->count * sizeof(RateClaim));
}

/* Make room for one more.  After an error the rate is as before. */
static void
reserve_claim(QueueRate *rate)
{
	int size = Max(rate->size * 2, 2);

	if (rate->count < rate->size)
		return;
	/* so many only after changes of the rule: the two oldest count as one */
	if (rate->count == RATE_CLAIMS_MAX)
	{
		rate->claims[1].count =
			(int) Min((int64) rate->claims[0].count + rate->claims[1].count, PG_INT32_MAX);
		remove_first(rate, 1);
		return;
	}
	if (rate->claims)
		rate->claims = repalloc(rate->claims, size * sizeof(RateClaim));
	else
		rate->claims = MemoryContextAlloc(rates.context, size * sizeof(RateClaim));
	rate->size = size;
}

static void
add_claim(QueueRate *rate, MonoTime at)
{
	int64 step = Max((rate->limited ? rate->per : rate->pause) / STEPS, STEP_MIN_US);
	RateClaim *last = rate->count > 0 ? &rate->claims[rate->count - 1] : NULL;

	if (last && last->at.us / step == at.us / step)
	{
		last->at = clock_max(last->at, at);
		last->count += last->count < PG_INT32_MAX;
		return;
	}
	reserve_claim(rate);
	rate->claims[rate->count++] = (RateClaim){at, 1};
}

/*
 * Tasks of the queue wait that ask for this pause (ms) after each claim: its claims have to be
 * durable from now on, and so has the last one.
 */
void
rates_want_pause(QueueClaims *queue, int64 pause)
{
	QueueRate *rate = find_or_add_rate(queue);

	if (rate->count == 0 && queue->last.us != CLOCK_LONG_AGO.us)
		add_claim(rate, queue->last);
	rate->pause = Max(rate->pause, pause * 1000);
}

/* Does the rule of the queue have a rate?  Then the queue has one, which is as the rule says. */
static bool
is_limited(QueueClaims *queue, const QueueRule *rule)
{
	bool limited = rule->rate >= 0;

	if (limited)
		find_or_add_rate(queue)->per = rule->per;
	if (queue->rate)
		queue->rate->limited = limited;
	return limited;
}

/*
 * Until when may no task of the queue with this "max" be claimed, by the rule of the queue and its
 * pause?  CLOCK_LONG_AGO, or another moment that has passed: one may be now.
 */
MonoTime
rates_blocked_until(QueueClaims *queue, const QueueRule *rule, int max, MonoTime now)
{
	MonoTime until = CLOCK_LONG_AGO;

	if (is_limited(queue, rule))
		until = rates.held
					? CLOCK_NEVER
					: rate_free_at(queue->rate->claims, queue->rate->count, rule->rate, rule->per);
	if (max < 0 && !rates.pauses)
		until = CLOCK_NEVER;
	else if (max < 0)
		until = clock_max(until, clock_plus_ms(queue->last, -(int64) max));
	return clock_is_before(now, until) ? until : CLOCK_LONG_AGO;
}

/* How many tasks of the queue may be claimed now, by its rule? */
int
rates_room(QueueClaims *queue, const QueueRule *rule, MonoTime now)
{
	int room;
	int i;

	if (!is_limited(queue, rule))
		return PG_INT32_MAX;
	room = rates.held ? 0 : rule->rate;
	for (i = queue->rate->count - 1; i >= 0 && room > 0; i--)
		if (now.us - queue->rate->claims[i].at.us < rule->per)
			room -= queue->rate->claims[i].count;
	return Max(room, 0);
}

/*
 * A task of the queue was chosen: it counts as claimed now.  Returns a number for rates_undo; 0 if
 * its time is all that counts.
 */
uint64
rates_add(QueueClaims *queue, MonoTime now)
{
	QueueRate *rate = queue->rate;
	uint64 number = 0;
	int old = 0;

	if (rate && (rate->limited || rate->pause > 0))
	{
		while (old < rate->count && now.us - rate->claims[old].at.us >= rate_keep_time(rate))
			old++;
		if (old > 0)
			remove_first(rate, old);
		add_claim(rate, now);
		number = rate->before + rate->count;
	}
	queue->last = now;
	return number;
}

/*
 * A task that rates_add has counted under this number was not claimed, or was given back before it
 * began: that is no start.  The last start of its queue is that of the last claim that is left.
 */
void
rates_undo(QueueClaims *queue, uint64 number)
{
	QueueRate *rate = queue->rate;
	int i;

	if (rate == NULL || number <= rate->before)
		return;
	rate->claims[number - rate->before - 1].count--;
	for (i = rate->count; i > 0 && rate->claims[i - 1].count == 0; i--)
		;
	queue->last = i > 0 ? rate->claims[i - 1].at : CLOCK_LONG_AGO;
}

/*
 * A task that rates_add has counted is claimed only now, since the claim has waited for a lock or
 * for its commit: it counts from now on, and so do those that are counted with it.
 */
void
rates_delay(QueueClaims *queue, uint64 number, MonoTime now)
{
	QueueRate *rate = queue->rate;

	if (rate == NULL || number <= rate->before)
		return;
	Assert(number == rate->before + rate->count);
	rate->claims[rate->count - 1].at = clock_max(rate->claims[rate->count - 1].at, now);
	queue->last = clock_max(queue->last, now);
}

/* Is nothing left to remember of the claims of the queue? */
bool
rates_is_idle(const QueueClaims *queue, MonoTime now)
{
	const QueueRate *rate = queue->rate;

	return rate == NULL || rate->count == 0 ||
		   now.us - rate->claims[rate->count - 1].at.us >= rate_keep_time(rate);
}

/*
 * An earlier scheduler has claimed these tasks of the queue.  This one may have started some with a
 * pause, while the table could not be read: the last start holds, and no other one is of use.
 */
void
rates_restore(QueueClaims *queue, const RateRow *row)
{
	Size size = row->count * sizeof(RateClaim);
	RateClaim *claims = memcpy(MemoryContextAlloc(rates.context, size), row->claims, size);
	QueueRate *rate = find_or_add_rate(queue);

	Assert(row->count > 0);
	if (rate->claims)
		pfree(rate->claims);
	rate->claims = claims;
	rate->before += rate->count;
	rate->count = rate->size = row->count;
	rate->per = Max(rate->per, row->keep);
	queue->last = clock_max(queue->last, claims[row->count - 1].at);
}

/* The queue is forgotten, and its claims with it. */
void
rates_forget(QueueClaims *queue)
{
	if (queue->rate == NULL)
		return;
	if (queue->rate->claims)
		pfree(queue->rate->claims);
	pfree(queue->rate);
	queue->rate = NULL;
	rates.count--;
}
