/*
 * clock.h
 *		The two clocks: a monotonic one for intervals, and the wall clock.
 *
 * The wall clock (TimestampTz) may be set forward or back at any moment.  It is for times that are
 * compared with data in rows, written into rows, or shown.  Everything else (pauses, deadlines,
 * idle times, how long a run took) uses the monotonic clock (MonoTime).  They are different types,
 * so that the compiler rejects a mixture.
 */
#ifndef PG_TASK_CLOCK_H
#define PG_TASK_CLOCK_H

#include "postgres.h"

#include <limits.h>
#include <time.h>

#include "utils/timestamp.h"

/*
 * Microseconds.  The same in all processes of a machine, and without meaning after a reboot.  0, as
 * in zeroed memory, is long ago.
 */
typedef struct MonoTime
{
	int64 us;
} MonoTime;

#define CLOCK_NEVER ((MonoTime){PG_INT64_MAX})
#define CLOCK_LONG_AGO ((MonoTime){0})

/* One moment on both clocks. */
typedef struct ClockNow
{
	MonoTime mono;
	TimestampTz wall;
} ClockNow;

/*
 * The monotonic clock may start at 0 when the machine boots.  This is added to it, so that
 * CLOCK_LONG_AGO is long before any value.
 */
#define CLOCK_CENTURY_US (INT64CONST(36525) * USECS_PER_DAY)

static inline MonoTime
clock_mono(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (MonoTime){CLOCK_CENTURY_US + (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000};
}

static inline ClockNow
clock_now(void)
{
	return (ClockNow){clock_mono(), GetCurrentTimestamp()};
}

/*
 * Convert a time of the wall clock, assuming that the clock is not set until then.  A past time
 * is converted to "now".
 */
static inline MonoTime
clock_of_wall(ClockNow now, TimestampTz moment)
{
	if (moment <= now.wall)
		return now.mono;
	if (moment - CLOCK_CENTURY_US >= now.wall)
		return CLOCK_NEVER;
	return (MonoTime){now.mono.us + (moment - now.wall)};
}

/* Return how long to sleep until a moment (ms), rounded up so as not to wake before it. */
static inline long
clock_ms_until(MonoTime now, MonoTime moment)
{
	if (moment.us <= now.us)
		return 0;
	if (moment.us - now.us >= (int64) INT_MAX * 1000)
		return INT_MAX;
	return (long) ((moment.us - now.us + 999) / 1000);
}

static inline MonoTime
clock_plus_ms(MonoTime moment, int64 ms)
{
	return (MonoTime){moment.us + ms * 1000};
}

/* Have at least "ms" milliseconds passed since then? */
static inline bool
clock_exceeds(MonoTime since, MonoTime now, int64 ms)
{
	return now.us - since.us >= ms * 1000;
}

static inline bool
clock_is_before(MonoTime a, MonoTime b)
{
	return a.us < b.us;
}

static inline MonoTime
clock_min(MonoTime a, MonoTime b)
{
	return a.us < b.us ? a : b;
}

static inline MonoTime
clock_max(MonoTime a, MonoTime b)
{
	return a.us > b.us ? a : b;
}

/*
 * When may work go on that lasted from "begun" to "ended", if it is to pause for "share" times as
 * long, but for "most" milliseconds at most?  So it takes 1/(share + 1) of the time.
 */
static inline MonoTime
clock_after_share(MonoTime begun, MonoTime ended, int share, int most)
{
	return (MonoTime){ended.us + Min((ended.us - begun.us) * share, (int64) most * 1000)};
}

#endif /* PG_TASK_CLOCK_H */
