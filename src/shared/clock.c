/*
 * clock.c
 *		The two clocks: one measures intervals, the other says what time it is.
 */
#include "postgres.h"

#include <limits.h>
#include <time.h>

#include "utils/timestamp.h"

#include "shared/clock.h"

/* The clock starts with the machine: this much is added, so that 0 is long ago. */
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

/* When this moment comes, if nobody sets the wall clock until then.  Past ones are now. */
MonoTime
clock_of_wall(ClockNow now, TimestampTz moment)
{
	if (moment <= now.wall)
		return now.mono;
	if (moment - CENTURY_US >= now.wall)
		return CLOCK_NEVER;
	return (MonoTime){now.mono.us + (moment - now.wall)};
}

/* How long to sleep, in milliseconds, so as not to wake before that moment. */
long
clock_ms_until(MonoTime now, MonoTime moment)
{
	if (moment.us <= now.us)
		return 0;
	if (moment.us - now.us >= (int64) INT_MAX * 1000)
		return INT_MAX;
	return (long) ((moment.us - now.us + 999) / 1000);
}
