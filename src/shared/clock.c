/*
 * clock.c
 *		The two clocks: a monotonic one for intervals, and the wall clock.
 */
#include "postgres.h"

#include <limits.h>
#include <time.h>

#include "utils/timestamp.h"

#include "shared/clock.h"

/*
 * The monotonic clock may start at 0 when the machine boots.  This is added to it, so that
 * CLOCK_LONG_AGO is long before any value.
 */
#define CENTURY_US (INT64CONST(36525) * USECS_PER_DAY)

MonoTime
clock_mono(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (MonoTime){CENTURY_US + (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000};
}

ClockNow
clock_now(void)
{
	return (ClockNow){clock_mono(), GetCurrentTimestamp()};
}

/*
 * Convert a time of the wall clock, assuming that the clock is not set until then.  A past time
 * is converted to "now".
 */
MonoTime
clock_of_wall(ClockNow now, TimestampTz moment)
{
	if (moment <= now.wall)
		return now.mono;
	if (moment - CENTURY_US >= now.wall)
		return CLOCK_NEVER;
	return (MonoTime){now.mono.us + (moment - now.wall)};
}

/* Return how long to sleep until a moment (ms), rounded up so as not to wake before it. */
long
clock_ms_until(MonoTime now, MonoTime moment)
{
	if (moment.us <= now.us)
		return 0;
	if (moment.us - now.us >= (int64) INT_MAX * 1000)
		return INT_MAX;
	return (long) ((moment.us - now.us + 999) / 1000);
}
