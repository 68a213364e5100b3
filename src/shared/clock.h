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

#include "datatype/timestamp.h"

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

extern MonoTime clock_mono(void);
extern ClockNow clock_now(void);
extern MonoTime clock_of_wall(ClockNow now, TimestampTz moment);
extern long clock_ms_until(MonoTime now, MonoTime moment);

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
