/*
 * rate.c
 *		How many tasks of a queue may start within a time: a sliding window, or a token bucket.
 *
 * A task that was chosen may begin at any time until it is known to have begun: until then it is
 * pending, and counts as beginning now.  A task that has begun counts from a moment at which its
 * first statement had ended, or had been running for a while (rate_counts_from).  So when a task is
 * chosen, each one that was chosen before it counts from a moment that is not earlier than its real
 * start, and of the tasks in any window the one that was chosen last has seen all the others.
 *
 * Times are those of the monotonic clock: steps of the wall clock change nothing while the process
 * lives.  What is written down (rate_write) has times of the wall clock.
 *
 * The scheduler decides by it; a session only foresees (rate_foresee).
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.
 */
#include "postgres.h"

#include "port/pg_bswap.h"
#include "utils/memutils.h"

#include "task/rate.h"

/*
 * While its first statement runs, a task may read the clock: it counts as beginning now.  After
 * this part of the window, or this time if that is longer, it counts from then.  A new process
 * has much to load, so it gets more time.
 */
#define GRACE_PART 128
#define GRACE_MIN_US (10 * INT64CONST(1000))
#define GRACE_NEW_US (250 * INT64CONST(1000))
#define GRACE_MAX_US USECS_PER_SEC

/*
 * What rate_write writes begins with this number.  rate_read also takes the format before it, which
 * has no pause; and no more pending tasks and entries than these.
 */
#define RATE_FORMAT 2
#define RATE_FORMAT_1 1
#define PENDING_MAX 1000000
#define ENTRIES_MAX 10000

#define NS_PER_US INT64CONST(1000)

static bool
has_bucket(const RateState *state)
{
	return state->rule.burst > 0;
}

/* The time in which a token bucket gets one token (ns), rounded up. */
static int64
token_ns(const RateRule *rule)
{
	return (rule->per * NS_PER_US + rule->rate - 1) / rule->rate;
}

/* "count" times the time of one token, at most RATE_PER_MAX. */
static int64
tokens_ns(const RateRule *rule, int64 count)
{
	int64 each = token_ns(rule);
	int64 most = RATE_PER_MAX * NS_PER_US / each;

	return each * Min(count, most);
}

/* How far the bucket may be from full when one more token is taken. */
static int64
debt_max(const RateRule *rule)
{
	return tokens_ns(rule, (int64) rule->burst - 1);
}

/* Round up to a step of the window, if not each start is remembered by its time. */
static MonoTime
round_up(const RateRule *rule, MonoTime at)
{
	int64 step;

	if (rule->rate <= RATE_STEPS)
		return at;
	step = (rule->per + RATE_STEPS - 1) / RATE_STEPS;
	return (MonoTime){(at.us + step - 1) / step * step};
}

/*
 * Return the rule that a row of the queue table means, which has a rate.  A "per" or a "burst" that
 * is negative was not given.
 */
RateRule
rate_rule(int rate, int64 per, int burst)
{
	return (RateRule){
		.rate = rate,
		.per = per < 0 ? USECS_PER_SEC : Max(Min(per, RATE_PER_MAX), 1),
		.burst = Max(burst, 0),
	};
}

void
rate_init(RateState *state, MemoryContext context, RateRule rule)
{
	Assert(rule.rate >= 0 && rule.burst >= 0);
	Assert(rule.per > 0 && rule.per <= RATE_PER_MAX);
	memset(state, 0, sizeof(RateState));
	state->context = context;
	state->rule = rule;
}

void
rate_free(RateState *state)
{
	if (state->starts)
		pfree(state->starts);
	state->starts = NULL;
	state->first = state->end = state->size = state->total = 0;
}

/*
 * Make room for this number of entries.  Nothing else here allocates memory; after an error the
 * state is as before.
 */
static void
reserve_entries(RateState *state, int entries)
{
	int size = Max(state->size, 4);
	RateStart *starts;

	if (state->size >= entries)
		return;
	while (size < entries)
		size *= 2;
	starts = MemoryContextAlloc(state->context, size * sizeof(RateStart));
	if (state->end > state->first)
		memcpy(starts, state->starts + state->first,
			   (state->end - state->first) * sizeof(RateStart));
	if (state->starts)
		pfree(state->starts);
	state->starts = starts;
	state->size = size;
	state->end -= state->first;
	state->first = 0;
}

/* Remove the starts that have left the window. */
static void
leave_window(RateState *state, MonoTime now)
{
	while (state->first < state->end &&
		   now.us - state->starts[state->first].at.us >= state->rule.per)
		state->total -= state->starts[state->first++].count;
	if (state->first == state->end)
		state->first = state->end = 0;
}

/* Make the unused entries those at the end. */
static void
compact_entries(RateState *state)
{
	memmove(state->starts, state->starts + state->first,
			(state->end - state->first) * sizeof(RateStart));
	state->end -= state->first;
	state->first = 0;
}

/*
 * Add starts at this time to the window, which has room for one more entry.  They come nearly in
 * order, so the loop ends soon.
 */
static void
add_to_window(RateState *state, MonoTime at, int count)
{
	int i;

	at = round_up(&state->rule, at);
	for (i = state->end; i > state->first && clock_is_before(at, state->starts[i - 1].at); i--)
		;
	state->total += count;
	if (i > state->first && state->starts[i - 1].at.us == at.us)
	{
		state->starts[i - 1].count += count;
		return;
	}
	if (state->end == state->size)
	{
		i -= state->first;
		compact_entries(state);
	}
	Assert(state->end < state->size);
	memmove(state->starts + i + 1, state->starts + i, (state->end - i) * sizeof(RateStart));
	state->starts[i] = (RateStart){at, count};
	state->end++;
}

static void
add_to_bucket(RateState *state, MonoTime at, int count)
{
	if (state->rule.rate > 0)
		state->full_at =
			Min(Max(state->full_at, at.us * NS_PER_US) + tokens_ns(&state->rule, count),
				(at.us + 2 * RATE_PER_MAX) * NS_PER_US);
}

/* There is room for one more entry. */
static void
add_starts(RateState *state, MonoTime at, int count)
{
	if (has_bucket(state))
		add_to_bucket(state, at, count);
	else
		add_to_window(state, at, count);
}

/* Count the tokens that are missing in the bucket. */
static int
missing_tokens(const RateState *state, MonoTime now)
{
	int64 debt = state->full_at - now.us * NS_PER_US;
	int64 each;

	if (debt <= 0 || state->rule.rate == 0)
		return 0;
	each = token_ns(&state->rule);
	return (int) Min((debt + each - 1) / each, PG_INT32_MAX / 2);
}

static bool
rules_are_equal(const RateRule *a, const RateRule *b)
{
	return a->rate == b->rate && a->per == b->per && a->burst == b->burst;
}

/*
 * The rule has changed.  What is remembered of the starts stays: the starts in the window of the
 * old rule, or the tokens that miss in its bucket, as starts of now.  After an error the state is
 * as before.
 */
void
rate_set_rule(RateState *state, RateRule rule, MonoTime now)
{
	RateState new;
	int i;

	if (rules_are_equal(&rule, &state->rule))
		return;
	if (!has_bucket(state))
		leave_window(state, now);
	rate_init(&new, state->context, rule);
	new.pending = state->pending;
	new.doubt = state->doubt;
	if (rule.burst == 0)
		reserve_entries(&new, state->end - state->first + state->pending + state->doubt + 1);
	if (has_bucket(state) && missing_tokens(state, now) > 0)
		add_starts(&new, now, missing_tokens(state, now));
	for (i = state->first; i < state->end; i++)
		add_starts(&new, state->starts[i].at, state->starts[i].count);
	rate_free(state);
	*state = new;
}

/* When "count" starts have left the window; the pending ones count as starts of now. */
static MonoTime
window_moment(const RateState *state, int count, MonoTime now)
{
	int i;

	for (i = state->first; i < state->end && count > 0; i++)
		if ((count -= state->starts[i].count) <= 0)
			return (MonoTime){state->starts[i].at.us + state->rule.per};
	return (MonoTime){now.us + state->rule.per};
}

/* When the bucket would be full if the pending tasks began now (ns). */
static int64
full_with_pending(const RateState *state, MonoTime now)
{
	return Max(state->full_at, now.us * NS_PER_US) +
		   tokens_ns(&state->rule, (int64) state->pending + state->doubt);
}

/*
 * When may one more task be chosen?  CLOCK_LONG_AGO: now.  Otherwise not before the moment that is
 * returned, and perhaps not then, so ask again.  CLOCK_NEVER if the rate is 0.
 */
MonoTime
rate_next_start(RateState *state, MonoTime now)
{
	int64 over;

	if (state->rule.rate == 0)
		return CLOCK_NEVER;
	if (has_bucket(state))
	{
		int64 moment = full_with_pending(state, now) - debt_max(&state->rule);

		return moment <= now.us * NS_PER_US ? CLOCK_LONG_AGO
											: (MonoTime){(moment + NS_PER_US - 1) / NS_PER_US};
	}
	leave_window(state, now);
	over = (int64) state->total + state->pending + state->doubt - state->rule.rate + 1;
	if (over <= 0)
		return CLOCK_LONG_AGO;
	return window_moment(state, (int) Min(over, PG_INT32_MAX), now);
}

/* How many tasks may be chosen now? */
int
rate_room(RateState *state, MonoTime now)
{
	int64 room;

	if (clock_is_before(CLOCK_LONG_AGO, rate_next_start(state, now)))
		return 0;
	if (!has_bucket(state))
		return state->rule.rate - state->total - state->pending - state->doubt;
	room = debt_max(&state->rule) - (full_with_pending(state, now) - now.us * NS_PER_US);
	return (int) Min(room / token_ns(&state->rule), PG_INT32_MAX - 1) + 1;
}

/* A task was chosen: it counts as beginning now until it is known when it began. */
void
rate_chosen(RateState *state)
{
	/* so that rate_begun and rate_settle need no memory: one entry for each, and one for both */
	if (!has_bucket(state))
		reserve_entries(state, state->end - state->first + state->pending + 2 + (state->doubt > 0));
	state->pending++;
}

/* A chosen task will not begin. */
void
rate_released(RateState *state)
{
	Assert(state->pending > 0);
	state->pending--;
}

/*
 * From when does a task count whose first statement began at this time, and has ended if "ended" is
 * not CLOCK_NEVER?
 */
MonoTime
rate_counts_from(const RateState *state, MonoTime began, MonoTime ended, bool new_process)
{
	const RateRule *rule = &state->rule;
	int64 time = rule->burst > 0 && rule->rate > 0 ? rule->per / rule->rate : rule->per;
	int64 grace = Max(Min(time / GRACE_PART, GRACE_MAX_US), GRACE_MIN_US);

	if (new_process)
		grace = Max(grace, GRACE_NEW_US);
	return clock_min(ended, (MonoTime){began.us + grace});
}

/* A chosen task has begun, and counts from this moment. */
void
rate_begun(RateState *state, MonoTime from)
{
	rate_released(state);
	add_starts(state, from, 1);
}

/* A task that an earlier scheduler has chosen has not begun: it is one of those in doubt. */
void
rate_adopt(RateState *state)
{
	rate_chosen(state);
	if (state->doubt > 0)
		state->doubt--;
}

/* The tasks that are still in doubt have begun by now, or will not begin. */
void
rate_settle(RateState *state, MonoTime now)
{
	if (state->doubt == 0)
		return;
	if (!has_bucket(state))
		reserve_entries(state, state->end - state->first + state->pending + 2);
	add_starts(state, now, state->doubt);
	state->doubt = 0;
}

/* When is nothing left to remember, if no task begins until then?  CLOCK_NEVER with pending ones.
 */
MonoTime
rate_idle_at(const RateState *state)
{
	if (state->pending > 0 || state->doubt > 0)
		return CLOCK_NEVER;
	if (has_bucket(state))
		return (MonoTime){(state->full_at + NS_PER_US - 1) / NS_PER_US};
	if (state->first == state->end)
		return CLOCK_LONG_AGO;
	return (MonoTime){state->starts[state->end - 1].at.us + state->rule.per};
}

/* When is the longest pause over, and nothing left to remember of it? */
MonoTime
rate_pause_end(const RatePause *pause)
{
	return pause->longest > 0 ? clock_plus_ms(pause->last_start, pause->longest) : CLOCK_LONG_AGO;
}

static void
put_int32(StringInfo out, uint32 value)
{
	value = pg_hton32(value);
	appendBinaryStringInfo(out, (const char *) &value, sizeof(value));
}

static void
put_int64(StringInfo out, int64 value)
{
	uint64 bytes = pg_hton64((uint64) value);

	appendBinaryStringInfo(out, (const char *) &bytes, sizeof(bytes));
}

/* The time of the wall clock, assuming that it was not set in between. */
static TimestampTz
wall_of(ClockNow now, MonoTime at)
{
	return now.wall + (at.us - now.mono.us);
}

/*
 * The moment of a time of the wall clock.  What is in the future was written before the clock was
 * set back, except for what a rule itself may put there: "ahead".
 */
static MonoTime
mono_of(ClockNow now, TimestampTz at, int64 ahead)
{
	int64 age = now.wall - at;

	if (age < -ahead)
		return (MonoTime){now.mono.us + ahead};
	return (MonoTime){Max(now.mono.us - Min(age, RATE_PER_MAX), 0)};
}

/* Append what is to be durable: the rule, the starts, the number of pending tasks, the pause. */
void
rate_write(const RateState *state, const RatePause *pause, ClockNow now, StringInfo out)
{
	MonoTime full = {(state->full_at + NS_PER_US - 1) / NS_PER_US};
	int i;

	/* not before now: for a bucket that is full that is the same, and a reader learns the time */
	full = clock_max(full, now.mono);
	put_int32(out, RATE_FORMAT);
	put_int32(out, state->rule.rate);
	put_int64(out, state->rule.per);
	put_int32(out, state->rule.burst);
	put_int32(out, state->pending + state->doubt);
	put_int64(out, wall_of(now, full));
	put_int32(out, state->end - state->first);
	for (i = state->first; i < state->end; i++)
	{
		put_int64(out, wall_of(now, state->starts[i].at));
		put_int32(out, state->starts[i].count);
	}
	put_int64(out, wall_of(now, pause->last_start));
	put_int64(out, pause->longest);
}

/* What rate_read has not read yet. */
typedef struct RateInput
{
	const char *data;
	int left;
	bool short_of; /* it has ended too early */
} RateInput;

static uint32
get_int32(RateInput *in)
{
	uint32 value = 0;

	in->short_of |= in->left < (int) sizeof(value);
	if (in->short_of)
		return 0;
	memcpy(&value, in->data, sizeof(value));
	in->data += sizeof(value);
	in->left -= sizeof(value);
	return pg_ntoh32(value);
}

static int64
get_int64(RateInput *in)
{
	uint64 high = get_int32(in);

	return (int64) (high << 32 | get_int32(in));
}

/* Read the header.  False if there is something wrong with it. */
static bool
read_header(RateInput *in, RateState *state, uint32 *format, TimestampTz *full, int *entries)
{
	RateRule rule = {0};
	uint32 pending;

	*format = get_int32(in);
	rule.rate = (int) get_int32(in);
	rule.per = get_int64(in);
	rule.burst = (int) get_int32(in);
	pending = get_int32(in);
	*full = get_int64(in);
	*entries = (int) get_int32(in);
	if (in->short_of || (*format != RATE_FORMAT && *format != RATE_FORMAT_1) ||
		pending > PENDING_MAX || rule.rate < 0 || rule.burst < 0 || rule.per <= 0 ||
		rule.per > RATE_PER_MAX || !IS_VALID_TIMESTAMP(*full) || *entries < 0 ||
		*entries > ENTRIES_MAX)
		return false;
	state->rule = rule;
	state->doubt = (int) pending;
	return true;
}

/* Read the pause.  False if there is something wrong with it. */
static bool
read_pause(RateInput *in, RatePause *pause, ClockNow now)
{
	TimestampTz last_start = get_int64(in);

	pause->longest = get_int64(in);
	if (in->short_of || !IS_VALID_TIMESTAMP(last_start) || pause->longest < 0 ||
		pause->longest > -(int64) PG_INT32_MIN)
		return false;
	pause->last_start = mono_of(now, last_start, 0);
	return true;
}

/*
 * Read an image: see rate_read.  *full is when the bucket is full; of a window it is when the image
 * was written.
 */
static bool
read_image(RateState *state, RatePause *pause, MemoryContext context, RateInput in, ClockNow now,
		   MonoTime *full)
{
	TimestampTz full_wall;
	uint32 format;
	int64 ahead = 0;
	int entries;
	int i;

	rate_init(state, context, (RateRule){.per = 1});
	*pause = (RatePause){CLOCK_LONG_AGO, 0};
	if (!read_header(&in, state, &format, &full_wall, &entries))
		return false;
	if (has_bucket(state) && state->rule.rate > 0)
		ahead = tokens_ns(&state->rule, state->rule.burst) / NS_PER_US;
	*full = mono_of(now, full_wall, ahead);
	if (has_bucket(state) && state->rule.rate > 0)
		state->full_at = full->us * NS_PER_US;
	reserve_entries(state, entries + 1);
	for (i = 0; i < entries && !in.short_of; i++)
	{
		TimestampTz at = get_int64(&in);
		int count = (int) get_int32(&in);

		if (!IS_VALID_TIMESTAMP(at) || count <= 0 || count > PG_INT32_MAX / 4 - state->total)
			break;
		add_to_window(state, mono_of(now, at, state->rule.per), count);
	}
	if (format == RATE_FORMAT && !read_pause(&in, pause, now))
		return false;
	return i == entries && !in.short_of && in.left == 0;
}

/*
 * Read what rate_write has written.  The pending tasks are in doubt from now on: they may have
 * begun, or not.  False if it is nothing that rate_write writes: then the caller frees the state.
 */
bool
rate_read(RateState *state, RatePause *pause, MemoryContext context, const char *data, int length,
		  ClockNow now)
{
	MonoTime full;

	return read_image(state, pause, context, (RateInput){data, length, false}, now, &full);
}

/*
 * When may one more task be chosen, by what rate_write has written last?  The tasks that were
 * pending then count as begun then, so it may be a little later.  DT_NOBEGIN if that does not say
 * it: the moment has passed, nothing starts by this rule, or the bucket was that of another rule.
 */
TimestampTz
rate_foresee(const char *data, int length, RateRule rule, ClockNow now)
{
	MonoTime next = CLOCK_NEVER;
	RateState state;
	RatePause pause;
	MonoTime full;

	if (read_image(&state, &pause, CurrentMemoryContext, (RateInput){data, length, false}, now,
				   &full) &&
		(!has_bucket(&state) || rules_are_equal(&state.rule, &rule)))
	{
		rate_settle(&state, full);
		rate_set_rule(&state, rule, now.mono);
		next = rate_next_start(&state, now.mono);
	}
	rate_free(&state);
	if (next.us == CLOCK_NEVER.us || !clock_is_before(now.mono, next))
		return DT_NOBEGIN;
	return wall_of(now, next);
}

/*
 * When is a pause of this length (ms) over, by what rate_write has written last?  DT_NOBEGIN if
 * that does not say it, or the moment has passed.
 */
TimestampTz
rate_foresee_pause(const char *data, int length, int64 pause, ClockNow now)
{
	MonoTime end = CLOCK_LONG_AGO;
	RateState state;
	RatePause read;
	MonoTime full;

	if (read_image(&state, &read, CurrentMemoryContext, (RateInput){data, length, false}, now,
				   &full) &&
		read.longest > 0)
		end = clock_plus_ms(read.last_start, pause);
	rate_free(&state);
	return clock_is_before(now.mono, end) ? wall_of(now, end) : DT_NOBEGIN;
}
