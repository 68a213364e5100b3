/*
 * rate_check.c
 *		Unit tests of the rates of queues, run in an ordinary backend.
 *
 * src/task/rate.c is plain memory: it is compiled into this library, and the checks call its
 * functions with times of their own.  rate_check(name, seed) runs one check.  It returns NULL if
 * the check holds, otherwise what does not hold.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Countdown to an allocation that fails; 0: none fails. */
static int failing_allocation = 0;

static void
allocate(void)
{
	if (failing_allocation > 0 && --failing_allocation == 0)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
}

#define MemoryContextAlloc(context, size) (allocate(), MemoryContextAlloc(context, size))

#include "task/rate.c"

PG_MODULE_MAGIC;

/* Fail the check unless this holds. */
#define CHECK(condition)                                              \
	do                                                                \
	{                                                                 \
		if (!(condition))                                             \
			return psprintf("line %d: not %s", __LINE__, #condition); \
	} while (0)

#define SECOND USECS_PER_SEC
#define TASKS 20000

/* The moment at which the checks begin. */
static const ClockNow start = {{INT64CONST(3200000000) * SECOND}, INT64CONST(800000000) * SECOND};

static uint64 random_state;

/* No pause, as it is written with what is checked of rates. */
static RatePause pause;

static int64
random_below(int64 limit)
{
	random_state = random_state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (int64) ((random_state >> 33) % (uint64) limit);
}

static MonoTime
at(int64 us)
{
	return (MonoTime){start.mono.us + us};
}

static ClockNow
clock_at(int64 us)
{
	return (ClockNow){at(us), start.wall + us};
}

static bool
may_start(RateState *state, int64 us)
{
	return rate_next_start(state, at(us)).us == CLOCK_LONG_AGO.us;
}

/* One task begins and is known to begin at once; it has ended, so that nothing is added. */
static void
begin_one(RateState *state, int64 us)
{
	rate_chosen(state);
	rate_begun(state, at(us));
}

static const char *
check_window(void)
{
	RateState state;

	rate_init(&state, CurrentMemoryContext, (RateRule){3, SECOND, 0});
	CHECK(may_start(&state, 0));
	CHECK(rate_room(&state, at(0)) == 3);
	begin_one(&state, 0);
	begin_one(&state, 100);
	begin_one(&state, 200);
	CHECK(rate_next_start(&state, at(200)).us == at(SECOND).us);
	CHECK(rate_room(&state, at(200)) == 0);
	CHECK(!may_start(&state, SECOND - 1));
	CHECK(may_start(&state, SECOND));
	begin_one(&state, SECOND + 50);
	CHECK(rate_next_start(&state, at(SECOND + 50)).us == at(SECOND + 100).us);

	/* what has not begun counts as beginning now, however long that takes */
	rate_chosen(&state);
	CHECK(rate_next_start(&state, at(SECOND + 100)).us == at(SECOND + 200).us);
	CHECK(may_start(&state, SECOND + 200));
	rate_chosen(&state);
	rate_chosen(&state);
	CHECK(rate_next_start(&state, at(9 * SECOND)).us == at(10 * SECOND).us);
	rate_released(&state);
	CHECK(may_start(&state, 9 * SECOND));

	/* a running one counts from a little later */
	CHECK(rate_counts_from(&state, at(0), CLOCK_NEVER, false).us == at(10000).us);
	CHECK(rate_counts_from(&state, at(0), CLOCK_NEVER, true).us == at(250000).us);
	CHECK(rate_counts_from(&state, at(0), at(10), true).us == at(10).us);
	rate_begun(&state, at(9 * SECOND + 20));
	rate_begun(&state, at(9 * SECOND + 10));
	CHECK(state.starts[state.end - 1].at.us == at(9 * SECOND + 20).us);
	CHECK(state.starts[state.end - 2].at.us == at(9 * SECOND + 10).us);
	CHECK(rate_idle_at(&state).us == at(10 * SECOND + 20).us);

	rate_set_rule(&state, (RateRule){0, SECOND, 0}, at(11 * SECOND));
	CHECK(rate_next_start(&state, at(99 * SECOND)).us == CLOCK_NEVER.us);
	return NULL;
}

static const char *
check_bucket(void)
{
	RateState state;
	int i;

	rate_init(&state, CurrentMemoryContext, (RateRule){10, SECOND, 5});
	CHECK(rate_room(&state, at(0)) == 5);
	for (i = 0; i < 5; i++)
	{
		CHECK(may_start(&state, 0));
		begin_one(&state, 0);
	}
	CHECK(rate_room(&state, at(0)) == 0);
	CHECK(rate_next_start(&state, at(0)).us == at(SECOND / 10).us);
	CHECK(rate_room(&state, at(SECOND / 4)) == 2);
	CHECK(rate_room(&state, at(9 * SECOND)) == 5);
	CHECK(rate_idle_at(&state).us == at(SECOND / 2).us);

	/* a pending task holds its token until it has begun */
	rate_chosen(&state);
	CHECK(rate_room(&state, at(9 * SECOND)) == 4);
	rate_begun(&state, at(9 * SECOND));
	CHECK(rate_room(&state, at(9 * SECOND)) == 4);
	CHECK(rate_room(&state, at(9 * SECOND + SECOND / 10)) == 5);
	return NULL;
}

static const char *
check_rules(void)
{
	RateState state;
	int i;

	/* a rule that changes: the starts in the window stay */
	rate_init(&state, CurrentMemoryContext, (RateRule){3, SECOND, 0});
	for (i = 0; i < 3; i++)
		begin_one(&state, i);
	rate_set_rule(&state, (RateRule){5, SECOND, 0}, at(10));
	CHECK(rate_room(&state, at(10)) == 2);
	rate_set_rule(&state, (RateRule){2, 2 * SECOND, 0}, at(10));
	CHECK(rate_next_start(&state, at(10)).us == at(2 * SECOND + 1).us);

	/* to a bucket, with a task that has not begun, and back */
	rate_set_rule(&state, (RateRule){10, SECOND, 10}, at(10));
	CHECK(rate_room(&state, at(10)) == 7);
	rate_chosen(&state);
	rate_set_rule(&state, (RateRule){10, SECOND, 0}, at(10));
	CHECK(rate_room(&state, at(10)) == 6);
	rate_begun(&state, at(20 + 7000));
	CHECK(rate_room(&state, at(20)) == 6);
	CHECK(rate_room(&state, at(SECOND + 10)) == 9);

	/* to a rate whose starts are counted in steps */
	rate_set_rule(&state, (RateRule){1000, SECOND, 0}, at(20));
	CHECK(rate_room(&state, at(20)) == 999);
	rate_free(&state);
	return NULL;
}

/* A task of the simulation: chosen, then begun, then known to have begun. */
typedef struct Task
{
	int64 begins;
	int64 ends;
	int64 seen;
	bool counted;
} Task;

static Task tasks[TASKS];

static int
compare_begins(const void *a, const void *b)
{
	int64 left = ((const Task *) a)->begins;
	int64 right = ((const Task *) b)->begins;

	return left < right ? -1 : left > right;
}

/* Check all windows of the starts. */
static const char *
check_starts(int count, RateRule rule)
{
	int i;

	qsort(tasks, count, sizeof(Task), compare_begins);
	for (i = 0; rule.burst == 0 && i + rule.rate < count; i++)
		CHECK(tasks[i + rule.rate].begins - tasks[i].begins >= rule.per);
	if (rule.burst > 0)
	{
		double full_at = 0;
		double each = (double) rule.per / rule.rate;

		for (i = 0; i < count; i++)
		{
			full_at = Max(full_at, (double) tasks[i].begins) + each;
			CHECK(full_at - tasks[i].begins <= each * rule.burst + 0.1);
		}
	}
	return NULL;
}

/* Tell the state what is seen by now of the tasks in [first, count). */
static void
see_tasks(RateState *state, int *first, int count, int64 now)
{
	int i;

	for (i = *first; i < count; i++)
		if (!tasks[i].counted && tasks[i].seen <= now)
		{
			tasks[i].counted = true;
			rate_begun(state, rate_counts_from(state, at(tasks[i].begins),
											   tasks[i].ends <= now ? at(tasks[i].ends) : CLOCK_NEVER,
											   false));
		}
	while (*first < count && tasks[*first].counted)
		(*first)++;
}

/*
 * The scheduler ends, and another reads the state that was written with the last claim.  Some of
 * the pending tasks are adopted, the others have begun.
 */
static const char *
restart(RateState *state, StringInfo image, int *first, int count, int64 now)
{
	int i;

	rate_free(state);
	CHECK(rate_read(state, &pause, CurrentMemoryContext, image->data, image->len, clock_at(now)));
	for (i = *first; i < count; i++)
	{
		if (tasks[i].counted)
			continue;
		if (tasks[i].begins >= now)
			rate_adopt(state);
		else
			tasks[i].counted = true;
	}
	rate_settle(state, at(now));
	see_tasks(state, first, count, now);
	return NULL;
}

/*
 * Start tasks whenever that is allowed.  They begin, are seen to begin and end after random delays
 * of up to "delay"; now and then the scheduler ends, if "restarts".  Returns what does not hold.
 */
static const char *
simulate(RateRule rule, int64 delay, bool restarts, int64 *elapsed, int *started)
{
	RateState state;
	StringInfoData image;
	int64 now = 0;
	int first = 0;
	int count = 0;

	initStringInfo(&image);
	rate_init(&state, CurrentMemoryContext, rule);
	while (count < TASKS && now < 40 * rule.per)
	{
		MonoTime next;

		see_tasks(&state, &first, count, now);
		next = rate_next_start(&state, at(now));
		if (next.us != CLOCK_LONG_AGO.us)
		{
			CHECK(next.us > at(now).us);
			now = next.us - start.mono.us;
			/* what is seen earlier may allow a start earlier, but not before it has begun */
			continue;
		}
		CHECK(rate_room(&state, at(now)) > 0);
		rate_chosen(&state);
		tasks[count].begins = now + random_below(delay);
		tasks[count].ends = tasks[count].begins + random_below(2 * delay);
		tasks[count].seen = tasks[count].begins + random_below(delay);
		tasks[count++].counted = false;
		resetStringInfo(&image);
		rate_write(&state, &pause, clock_at(now), &image);
		if (restarts && random_below(50) == 0)
		{
			const char *result = restart(&state, &image, &first, count, now += random_below(delay));

			if (result)
				return result;
		}
		if (random_below(3) == 0)
			now += random_below(Min(delay, rule.per / rule.rate + 1));
	}
	CHECK(state.size <= 8 * RATE_STEPS);
	*elapsed = now;
	*started = count;
	rate_free(&state);
	return check_starts(count, rule);
}

/* Random rules: no window has too many starts, whatever the delays are. */
static const char *
check_random(void)
{
	int i;

	for (i = 0; i < 60; i++)
	{
		RateRule rule = {1 + random_below(i % 3 == 0 ? 2000 : 40), 1 + random_below(100 * SECOND),
						 i % 4 == 3 ? 1 + random_below(30) : 0};
		int64 elapsed;
		int started;
		const char *result = simulate(rule, 1 + random_below(rule.per / 2 + 1), i % 2 == 0,
									  &elapsed, &started);

		if (result)
			return psprintf("rule %d, %d per %d us, burst %d: %s", i, rule.rate, (int) rule.per,
							rule.burst, result);
		CHECK(rule.burst > 0 || started > rule.rate);
	}
	return NULL;
}

/* With work enough and short delays, the rate is reached within 1 %. */
static const char *
check_reached(void)
{
	int rates[] = {1, 10, 256, 257, 400};
	int i;

	for (i = 0; i < (int) lengthof(rates); i++)
	{
		int64 elapsed;
		int started;
		double wanted;
		const char *result =
			simulate((RateRule){rates[i], 10 * SECOND, 0}, 500, false, &elapsed, &started);

		if (result)
			return result;
		wanted = (double) rates[i] * elapsed / (10 * SECOND);
		if (started < wanted * 0.99)
			return psprintf("rate %d: %d instead of %.0f", rates[i], started, wanted);
	}
	return NULL;
}

/* With rates up to RATE_STEPS, the moment is that of a list of all starts. */
static const char *
check_naive(void)
{
	RateState state;
	RateRule rule = {1 + random_below(12), 100 + random_below(10000), 0};
	int64 begun[3000];
	int64 now = 0;
	int count = 0;
	int i;

	rate_init(&state, CurrentMemoryContext, rule);
	for (count = 0; count < (int) lengthof(begun); now += random_below(rule.per / 2))
	{
		MonoTime next = rate_next_start(&state, at(now));
		int within = 0;

		for (i = 0; i < count; i++)
			within += begun[i] > now - rule.per;
		CHECK((next.us == CLOCK_LONG_AGO.us) == (within < rule.rate));
		CHECK(rate_room(&state, at(now)) == rule.rate - within);
		if (within < rule.rate)
		{
			/* seen late, and not in order */
			begun[count] = now - random_below(Min(now + 1, rule.per / 3 + 1));
			begin_one(&state, begun[count++]);
			continue;
		}
		now = next.us - start.mono.us;
		for (i = 0, within = 0; i < count; i++)
			within += begun[i] > now - rule.per;
		CHECK(within < rule.rate);
		for (i = 0, within = 0; i < count; i++)
			within += begun[i] > now - 1 - rule.per;
		CHECK(within >= rule.rate);
	}
	rate_free(&state);
	return NULL;
}

/* A rate of five in ten seconds, with four starts and a task that has not begun, and its image. */
static void
write_sample(RateState *state, StringInfo image)
{
	int i;

	initStringInfo(image);
	rate_init(state, CurrentMemoryContext, (RateRule){5, 10 * SECOND, 0});
	for (i = 0; i < 4; i++)
		begin_one(state, i * SECOND);
	rate_chosen(state);
	rate_write(state, &pause, clock_at(4 * SECOND), image);
}

static const char *
check_images(void)
{
	RateState state;
	RateState copy;
	StringInfoData image;
	int i;

	write_sample(&state, &image);

	/* read five seconds later, by a machine with another clock */
	CHECK(rate_read(&copy, &pause, CurrentMemoryContext, image.data, image.len,
					(ClockNow){{70 * SECOND}, start.wall + 9 * SECOND}));
	CHECK(copy.rule.rate == 5 && copy.rule.per == 10 * SECOND && copy.rule.burst == 0);
	CHECK(copy.total == 4 && copy.doubt == 1 && copy.pending == 0);
	CHECK(rate_next_start(&copy, (MonoTime){70 * SECOND}).us == 71 * SECOND);
	rate_settle(&copy, (MonoTime){70 * SECOND});
	CHECK(copy.total == 5 && copy.doubt == 0);
	CHECK(rate_idle_at(&copy).us == 80 * SECOND);

	/* one that has not begun, of two in doubt, and one more end of the scheduler */
	rate_chosen(&state);
	resetStringInfo(&image);
	rate_write(&state, &pause, clock_at(4 * SECOND), &image);
	CHECK(rate_read(&copy, &pause, CurrentMemoryContext, image.data, image.len, clock_at(5 * SECOND)));
	CHECK(copy.doubt == 2);
	rate_adopt(&copy);
	CHECK(copy.doubt == 1 && copy.pending == 1);
	resetStringInfo(&image);
	rate_write(&copy, &pause, clock_at(5 * SECOND), &image);
	CHECK(rate_read(&copy, &pause, CurrentMemoryContext, image.data, image.len, clock_at(6 * SECOND)));
	CHECK(copy.doubt == 2 && copy.pending == 0);

	/* the clock was set back by a year: nothing waits longer than the window */
	CHECK(rate_read(&copy, &pause, CurrentMemoryContext, image.data, image.len,
					(ClockNow){at(0), start.wall - 365 * USECS_PER_DAY}));
	CHECK(rate_next_start(&copy, at(0)).us <= at(20 * SECOND).us);

	/* anything else is refused */
	for (i = 0; i < image.len; i++)
		CHECK(!rate_read(&copy, &pause, CurrentMemoryContext, image.data, i, clock_at(0)));
	for (i = 0; i < 200000; i++)
	{
		char *data = pnstrdup(image.data, image.len);
		int changes = 1 + random_below(3);

		while (changes-- > 0)
			data[random_below(image.len)] = (char) random_below(256);
		if (rate_read(&copy, &pause, CurrentMemoryContext, data, image.len, clock_at(5 * SECOND)))
		{
			rate_settle(&copy, at(5 * SECOND));
			(void) rate_next_start(&copy, at(5 * SECOND));
		}
		rate_free(&copy);
		pfree(data);
	}
	return NULL;
}

/* The pause after the last start is as durable as the rate. */
static const char *
check_pauses(void)
{
	RatePause written = {at(SECOND), 5000};
	RatePause copy;
	RateState state;
	RateState other;
	StringInfoData image;

	CHECK(rate_pause_end(&pause).us == CLOCK_LONG_AGO.us);
	CHECK(rate_pause_end(&written).us == at(6 * SECOND).us);
	rate_init(&state, CurrentMemoryContext, (RateRule){.per = 1});
	initStringInfo(&image);
	rate_write(&state, &written, clock_at(2 * SECOND), &image);

	/* read by a machine with another clock, three seconds after the start */
	CHECK(rate_read(&other, &copy, CurrentMemoryContext, image.data, image.len,
					(ClockNow){{70 * SECOND}, start.wall + 4 * SECOND}));
	CHECK(copy.last_start.us == 67 * SECOND && copy.longest == 5000);

	/* the clock was set back: as if the start were now */
	CHECK(rate_read(&other, &copy, CurrentMemoryContext, image.data, image.len,
					(ClockNow){{70 * SECOND}, start.wall - SECOND}));
	CHECK(copy.last_start.us == 70 * SECOND);

	/* the format before had no pause */
	image.data[3] = 1;
	CHECK(!rate_read(&other, &copy, CurrentMemoryContext, image.data, image.len, start));
	CHECK(rate_read(&other, &copy, CurrentMemoryContext, image.data, image.len - 16, start));
	CHECK(copy.longest == 0);

	/* longer than any "max" can ask for */
	resetStringInfo(&image);
	written.longest = INT64CONST(2147483649);
	rate_write(&state, &written, clock_at(2 * SECOND), &image);
	CHECK(!rate_read(&other, &copy, CurrentMemoryContext, image.data, image.len, start));
	return NULL;
}

/* What an image, read at this time, says of the next start by this rule (us); -1: nothing. */
static int64
foresee(const StringInfoData *image, int64 now, RateRule rule)
{
	TimestampTz next = rate_foresee(image->data, image->len, rule, clock_at(now));

	return next == DT_NOBEGIN ? -1 : next - start.wall;
}

/* A session foresees the next start. */
static const char *
check_foresight(void)
{
	RateState state;
	StringInfoData image;

	write_sample(&state, &image);
	/* the pending one counts from when that was written, whenever that is read */
	CHECK(foresee(&image, 5 * SECOND, (RateRule){5, 10 * SECOND, 0}) == 10 * SECOND);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){5, 10 * SECOND, 0}) == 10 * SECOND);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){1, 10 * SECOND, 0}) == 14 * SECOND);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){4, 20 * SECOND, 0}) == 21 * SECOND);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){6, 10 * SECOND, 0}) == -1);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){0, 10 * SECOND, 0}) == -1);
	CHECK(foresee(&image, 10 * SECOND, (RateRule){5, 10 * SECOND, 0}) == -1);
	image.len--;
	CHECK(foresee(&image, 5 * SECOND, (RateRule){5, 10 * SECOND, 0}) == -1);

	/* a bucket that is empty: one of its tokens was missing, and one task is pending */
	rate_init(&state, CurrentMemoryContext, (RateRule){1, 10 * SECOND, 2});
	begin_one(&state, 0);
	rate_chosen(&state);
	resetStringInfo(&image);
	rate_write(&state, &pause, clock_at(4 * SECOND), &image);
	CHECK(foresee(&image, 5 * SECOND, (RateRule){1, 10 * SECOND, 2}) == 10 * SECOND);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){1, 10 * SECOND, 2}) == 10 * SECOND);
	CHECK(foresee(&image, 9 * SECOND, (RateRule){1, 10 * SECOND, 3}) == -1);

	/* one that was full for long when that was written */
	rate_init(&state, CurrentMemoryContext, (RateRule){1, 10 * SECOND, 1});
	rate_chosen(&state);
	resetStringInfo(&image);
	rate_write(&state, &pause, clock_at(40 * SECOND), &image);
	CHECK(foresee(&image, 45 * SECOND, (RateRule){1, 10 * SECOND, 1}) == 50 * SECOND);
	return NULL;
}

/* Each allocation may fail: the state is as before. */
static const char *
check_memory(void)
{
	RateState state;
	int volatile i;

	rate_init(&state, CurrentMemoryContext, (RateRule){100, SECOND, 0});
	for (i = 0; i < 100; i++)
	{
		volatile bool failed = false;
		MemoryContext context = CurrentMemoryContext;

		failing_allocation = 1;
		PG_TRY();
		{
			rate_chosen(&state);
		}
		PG_CATCH();
		{
			MemoryContextSwitchTo(context);
			FlushErrorState();
			failed = true;
		}
		PG_END_TRY();
		failing_allocation = 0;
		CHECK(state.pending == (failed ? 0 : 1));
		if (failed)
			rate_chosen(&state);
		failing_allocation = 1;
		rate_begun(&state, at(i));
		failing_allocation = 0;
		CHECK(state.total == i + 1);
	}
	rate_free(&state);
	return NULL;
}

PG_FUNCTION_INFO_V1(rate_check);

Datum
rate_check(PG_FUNCTION_ARGS)
{
	static const struct
	{
		const char *name;
		const char *(*check)(void);
	} checks[] = {
		{"window", check_window}, {"bucket", check_bucket},	  {"rules", check_rules},
		{"random", check_random}, {"reached", check_reached}, {"naive", check_naive},
		{"images", check_images}, {"pauses", check_pauses},   {"memory", check_memory},
		{"foresight", check_foresight},
	};
	char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *result = "no such check";
	int i;

	random_state = (uint64) PG_GETARG_INT32(1) * UINT64CONST(2654435769) + 1;
	for (i = 0; i < (int) lengthof(checks); i++)
		if (strcmp(checks[i].name, name) == 0)
			result = checks[i].check();
	PG_RETURN_TEXT_P(cstring_to_text(result ? result : ""));
}
