/*
 * rate.h
 *		How many tasks of a queue may start within a time.
 */
#ifndef PG_TASK_RATE_H
#define PG_TASK_RATE_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "shared/clock.h"

/* Longest "per" (us): ten years. */
#define RATE_PER_MAX (INT64CONST(3653) * USECS_PER_DAY)

/*
 * Up to this rate each start is remembered by its time; above it, starts are counted in steps of
 * per / RATE_STEPS.
 */
#define RATE_STEPS 256

/* In a database, what is remembered of the starts of this many queues; of another one none starts.
 */
#define RATE_QUEUES_MAX 100000

/* A rule: at most "rate" starts in any window of "per". */
typedef struct RateRule
{
	int rate;  /* 0: nothing starts */
	int64 per; /* us, from 1 to RATE_PER_MAX */
	int burst; /* > 0: a token bucket of this size that gets "rate" tokens in each "per" */
} RateRule;

/* Starts that count from the same moment. */
typedef struct RateStart
{
	MonoTime at;
	int count;
} RateStart;

/* What is remembered of the starts of one queue. */
typedef struct RateState
{
	MemoryContext context; /* of "starts" */
	RateRule rule;
	int pending; /* tasks that were chosen, and may not have begun */
	int doubt;	 /* the same, of an earlier scheduler; see rate_settle */

	/* a window: [first, end) are the starts in it, in the order of time, "total" in all */
	int total;
	int first;
	int end;
	int size;
	RateStart *starts;

	int64 full_at; /* a token bucket: when it is full again (ns of the monotonic clock) */
} RateState;

/* The last start of a queue in which tasks with a negative "max" wait, or have waited. */
typedef struct RatePause
{
	MonoTime last_start;
	int64 longest; /* the longest pause after it that a task has asked for (ms); 0: none has */
} RatePause;

extern RateRule rate_rule(int rate, int64 per, int burst);
extern void rate_init(RateState *state, MemoryContext context, RateRule rule);
extern void rate_free(RateState *state);
extern void rate_set_rule(RateState *state, RateRule rule, MonoTime now);

extern MonoTime rate_next_start(RateState *state, MonoTime now);
extern int rate_room(RateState *state, MonoTime now);

extern void rate_chosen(RateState *state);
extern void rate_released(RateState *state);
extern MonoTime
rate_counts_from(const RateState *state, MonoTime began, MonoTime ended, bool new_process);
extern void rate_begun(RateState *state, MonoTime from);
extern void rate_adopt(RateState *state);
extern void rate_settle(RateState *state, MonoTime now);

extern MonoTime rate_idle_at(const RateState *state);

extern MonoTime rate_pause_end(const RatePause *pause);

extern void
rate_write(const RateState *state, const RatePause *pause, ClockNow now, StringInfo out);
extern bool rate_read(RateState *state, RatePause *pause, MemoryContext context, const char *data,
					  int length, ClockNow now);
extern TimestampTz rate_foresee(const char *data, int length, RateRule rule, ClockNow now);
extern TimestampTz rate_foresee_pause(const char *data, int length, int64 pause, ClockNow now);

#endif /* PG_TASK_RATE_H */
