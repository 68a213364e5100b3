/*
 * rate_check.c
 *		Unit tests of the rates of queues, run in an ordinary backend.
 *
 * src/scheduler/rates.c is plain memory: it is compiled into this library, and the checks call its
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
#define MemoryContextAllocZero(context, size) (allocate(), MemoryContextAllocZero(context, size))
#define repalloc(pointer, size) (allocate(), repalloc(pointer, size))

#include "scheduler/rates.c"

PG_MODULE_MAGIC;

/* Fail the check unless this holds. */
#define CHECK(condition)                                              \
	do                                                                \
	{                                                                 \
		if (!(condition))                                             \
			return psprintf("line %d: not %s", __LINE__, #condition); \
	} while (0)

#define SECOND USECS_PER_SEC
#define CLAIMS 20000

static uint64 random_state;

static int64
random_below(int64 limit)
{
	random_state = random_state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (int64) ((random_state >> 33) % (uint64) limit);
}

static MonoTime
at(int64 us)
{
	return (MonoTime){INT64CONST(3200000000) * SECOND + us};
}

static bool
may_start(QueueClaims *queue, const QueueRule *rule, int64 us)
{
	return rates_blocked_until(queue, rule, TASK_UNLIMITED, at(us)).us == CLOCK_LONG_AGO.us;
}

static const char *
check_window(void)
{
	QueueClaims queue = {.rate = NULL};
	QueueRule rule = {.rate = 3, .per = SECOND};
	uint64 last;

	CHECK(may_start(&queue, &rule, 0));
	CHECK(rates_room(&queue, &rule, at(0)) == 3);
	(void) rates_add(&queue, at(0));
	(void) rates_add(&queue, at(20000));
	CHECK(rates_room(&queue, &rule, at(20000)) == 1);
	last = rates_add(&queue, at(40000));
	CHECK(rates_room(&queue, &rule, at(40000)) == 0);
	CHECK(!may_start(&queue, &rule, SECOND - 1));
	CHECK(may_start(&queue, &rule, SECOND));
	CHECK(rates_room(&queue, &rule, at(SECOND)) == 1);
	CHECK(rates_room(&queue, &rule, at(2 * SECOND)) == 3);

	/* one that was not claimed, or has not begun */
	rates_undo(&queue, last);
	CHECK(queue.last.us == at(20000).us);
	CHECK(rates_room(&queue, &rule, at(40000)) == 1);

	/* claims of about the same time count until the last of them does not */
	(void) rates_add(&queue, at(SECOND + 1));
	(void) rates_add(&queue, at(SECOND + 9));
	CHECK(queue.rate->claims[queue.rate->count - 1].count == 2);
	CHECK(!may_start(&queue, &rule, SECOND + 10));
	CHECK(rates_room(&queue, &rule, at(2 * SECOND + 8)) == 1);
	CHECK(rates_room(&queue, &rule, at(2 * SECOND + 9)) == 3);
	CHECK(!rates_is_idle(&queue, at(2 * SECOND + 8)));
	CHECK(rates_is_idle(&queue, at(2 * SECOND + 9)));

	/* nothing starts with a rate of 0, and without a table */
	rule.rate = 0;
	CHECK(rates_blocked_until(&queue, &rule, TASK_UNLIMITED, at(9 * SECOND)).us == CLOCK_NEVER.us);
	rule.rate = 3;
	rates_hold(true);
	CHECK(!may_start(&queue, &rule, 9 * SECOND));
	CHECK(rates_room(&queue, &rule, at(9 * SECOND)) == 0);
	return NULL;
}

/* A rule that changes, or goes, keeps what is known of claims. */
static const char *
check_rules(void)
{
	QueueClaims queue = {.rate = NULL};
	QueueRule rule = {.rate = 2, .per = SECOND};
	QueueRule none = {.rate = -1};
	int i;

	CHECK(may_start(&queue, &rule, 0));
	(void) rates_add(&queue, at(0));
	(void) rates_add(&queue, at(0));
	CHECK(!may_start(&queue, &rule, SECOND / 2));
	rule.per = 3600 * SECOND;
	CHECK(!may_start(&queue, &rule, SECOND));
	CHECK(may_start(&queue, &none, SECOND));
	CHECK(rates_add(&queue, at(SECOND)) == 0);
	rule.rate = 3;
	CHECK(rates_room(&queue, &rule, at(SECOND)) == 1);

	/* a short window beside a long pause: what is remembered is bounded, and counts no less */
	rates_want_pause(&queue, 3600 * 1000);
	rule.per = SECOND;
	for (i = 0; i < 1000; i++)
	{
		(void) may_start(&queue, &rule, SECOND + i * SECOND / 20);
		(void) rates_add(&queue, at(SECOND + i * SECOND / 20));
	}
	CHECK(queue.rate->count <= RATE_CLAIMS_MAX);
	rule.rate = 1003;
	rule.per = 3600 * SECOND;
	CHECK(rates_room(&queue, &rule, at(51 * SECOND)) == 1);
	return NULL;
}

/* The claims of an earlier scheduler, and the pause after the last of them. */
static const char *
check_restored(void)
{
	QueueClaims old = {.rate = NULL};
	QueueClaims queue = {.rate = NULL};
	QueueRule rule = {.rate = 4, .per = 60 * SECOND};
	QueueRule none = {.rate = -1};
	RateRow row;
	int i;

	for (i = 0; i < 4; i++)
	{
		CHECK(may_start(&old, &rule, i * SECOND));
		(void) rates_add(&old, at(i * SECOND));
	}
	row = rates_row(&old, "q");
	CHECK(row.count == 4 && row.keep == 60 * SECOND);
	rates_restore(&queue, &row);
	CHECK(!rates_is_idle(&queue, at(62 * SECOND)));
	CHECK(rates_blocked_until(&queue, &rule, TASK_UNLIMITED, at(5 * SECOND)).us ==
		  at(60 * SECOND).us);
	CHECK(rates_blocked_until(&queue, &none, -10000, at(5 * SECOND)).us == at(13 * SECOND).us);
	rates_forget(&queue);
	rates_forget(&old);
	CHECK(rates_count() == 0);
	return NULL;
}

/* Add a claim.  False if memory runs out. */
static bool
try_to_add(QueueClaims *queue, const QueueRule *rule, int64 us)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = true;

	PG_TRY();
	{
		(void) may_start(queue, rule, us);
		(void) rates_add(queue, at(us));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		done = false;
	}
	PG_END_TRY();
	return done;
}

static const char *
check_memory(void)
{
	QueueClaims queue = {.rate = NULL};
	QueueRule rule = {.rate = 100, .per = SECOND};
	int i;

	for (i = 0; i < 50; i++)
	{
		failing_allocation = 1;
		if (!try_to_add(&queue, &rule, i * 10000))
			CHECK(try_to_add(&queue, &rule, i * 10000));
		failing_allocation = 0;
		CHECK(rates_room(&queue, &rule, at(i * 10000)) == 99 - i);
	}
	return NULL;
}

/*
 * Claim as often as a random rule lets, and undo some: no window has more claims than the rate, and
 * each one that waits does so at most as long as the manual says.
 */
static const char *
check_random(void)
{
	static MonoTime claimed[CLAIMS];
	static uint64 numbers[CLAIMS];
	int rate = 1 + (int) random_below(random_below(2) ? 10 : 2000);
	int64 per = 1 + random_below(random_below(2) ? 100000 : 100 * SECOND);
	int64 late = Max(per / STEPS, STEP_MIN_US);
	QueueRule rule = {.rate = rate, .per = per};
	QueueClaims queue = {.rate = NULL};
	int64 now = 0;
	int count = 0;
	int i;

	while (count < CLAIMS)
	{
		int room = rates_room(&queue, &rule, at(now));

		CHECK((room > 0) == may_start(&queue, &rule, now));
		if (room == 0)
		{
			MonoTime until = rates_blocked_until(&queue, &rule, TASK_UNLIMITED, at(now));

			CHECK(until.us > at(now).us);
			CHECK(count >= rate && until.us - claimed[count - rate].us <= per + late);
			now = until.us - at(0).us;
			continue;
		}
		for (i = 1 + (int) random_below(room); i > 0 && count < CLAIMS; i--)
		{
			numbers[count] = rates_add(&queue, at(now));
			claimed[count++] = at(now);
		}
		/* the last ones may not begin, soon or later */
		now += random_below(4) == 0 ? random_below(3 * per / rate + 2) : random_below(100);
		while (count > 0 && random_below(10) == 0)
			rates_undo(&queue, numbers[--count]);
		CHECK(queue.rate->count <= STEPS + 2);
	}
	for (i = 0; i + rate < count; i++)
		CHECK(claimed[i + rate].us - claimed[i].us >= per);
	return NULL;
}

typedef struct Check
{
	const char *name;
	const char *(*run)(void);
} Check;

static const Check checks[] = {
	{"window", check_window}, {"rules", check_rules},	{"restored", check_restored},
	{"memory", check_memory}, {"random", check_random},
};

PG_FUNCTION_INFO_V1(rate_check);
Datum
rate_check(PG_FUNCTION_ARGS)
{
	const char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *result = "no such check";
	int i;

	random_state = (uint64) PG_GETARG_INT32(1);
	failing_allocation = 0;
	rates_create(CurrentMemoryContext);
	rates_hold(false);
	for (i = 0; i < (int) lengthof(checks); i++)
		if (strcmp(checks[i].name, name) == 0)
			result = checks[i].run();
	if (result == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(result));
}
