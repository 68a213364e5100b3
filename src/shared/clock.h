/*
 * clock.h
 *		The two clocks: one measures intervals, the other says what time it is.
 *
 * The wall clock (TimestampTz) may be set, forward or back, at any moment.  It is for
 * what is compared with data in rows, written into rows, or shown.  All else (pauses,
 * deadlines, idle times, how long a run took) is measured by a clock that only ever goes
 * forward, at one pace (MonoTime).  They are different types, lest they are mixed.
 */
#ifndef PG_TASK_CLOCK_H
#define PG_TASK_CLOCK_H

#include "postgres.h"

#include "datatype/timestamp.h"

/*
 * Microseconds, the same in all processes of a machine, and of no meaning after it was
 * started again.  0, as in memory that was just allocated, is long ago.
 */
typedef struct MonoTime
{
	int64 us;
} MonoTime;

#define CLOCK_NEVER ((MonoTime){PG_INT64_MAX})
#define CLOCK_LONG_AGO ((MonoTime){0})

/* One moment by both clocks. */
typedef struct ClockNow
{
	MonoTime mono;
	TimestampTz wall;
} ClockNow;

extern MonoTime clock_mono(void);
extern ClockNow clock_now(void);
extern MonoTime clock_of_wall(ClockNow now, TimestampTz moment);
extern long clock_ms_until(MonoTime now, MonoTime moment);

static inline MonoTime
clock_plus_ms(MonoTime moment, int64 ms)
{
	return (MonoTime){moment.us + ms * 1000};
}

/* Has so much time passed since then? */
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

#endif /* PG_TASK_CLOCK_H */
