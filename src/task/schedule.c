/*
 * schedule.c
 *		Computes when a repeating task runs next, by an interval or by a cron expression in a zone.
 *
 * Every function depends only on its arguments: no clock, no session time zone, no settings, no
 * catalogs.  The caller passes the time zone, and the time that it takes for now.
 */
#include "postgres.h"

#include "common/int.h"
#include "utils/datetime.h"

#include "task/schedule.h"

/* The epoch of timestamps, in seconds since 1970. */
#define EPOCH_SECONDS ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY)

/* Add months to a broken-down time; the day is clipped to the length of the month. */
static bool
add_months(struct pg_tm *tm, int64 months)
{
	int64 month = (int64) tm->tm_year * MONTHS_PER_YEAR + (tm->tm_mon - 1) + months;
	int64 year = month / MONTHS_PER_YEAR;

	month %= MONTHS_PER_YEAR;
	if (month < 0)
	{
		month += MONTHS_PER_YEAR;
		year--;
	}
	if (year > JULIAN_MAXYEAR || year < JULIAN_MINYEAR)
		return false;
	tm->tm_year = (int) year;
	tm->tm_mon = (int) month + 1;
	tm->tm_mday = Min(tm->tm_mday, day_tab[isleap(tm->tm_year)][tm->tm_mon - 1]);
	return true;
}

/*
 * *result = from + times * interval, in the zone: first the months, then the days, both in local
 * time, then the time part, in elapsed seconds.  "timestamptz + interval" does the same in a
 * session of that time zone.  Returns false if the result is out of range.
 */
static bool
add_interval(TimestampTz from, const Interval *interval, int64 times, pg_tz *zone,
			 TimestampTz *result)
{
	TimestampTz moment = from;
	int64 months;
	int64 days;
	int64 time;

	if (pg_mul_s64_overflow(interval->month, times, &months) ||
		pg_mul_s64_overflow(interval->day, times, &days) ||
		pg_mul_s64_overflow(interval->time, times, &time))
		return false;
	if (months > PG_INT32_MAX || months < -PG_INT32_MAX || days > PG_INT32_MAX ||
		days < -PG_INT32_MAX)
		return false;
	if (months != 0 || days != 0)
	{
		struct pg_tm tm;
		fsec_t fsec;
		int64 julian;
		int offset;

		if (timestamp2tm(moment, &offset, &tm, &fsec, NULL, zone) != 0)
			return false;
		if (!add_months(&tm, months))
			return false;
		julian = date2j(tm.tm_year, tm.tm_mon, tm.tm_mday) + days;
		if (julian < 0 || julian > PG_INT32_MAX)
			return false;
		j2date((int) julian, &tm.tm_year, &tm.tm_mon, &tm.tm_mday);
		offset = DetermineTimeZoneOffset(&tm, zone);
		if (tm2timestamp(&tm, fsec, &offset, &moment) != 0)
			return false;
	}
	if (pg_add_s64_overflow(moment, time, &moment) || !IS_VALID_TIMESTAMP(moment))
		return false;
	*result = moment;
	return true;
}

/*
 * The first anchor + n * repeat (n > 0) that is later than "now".  Estimates n from the
 * approximate length of the interval, then corrects it: month lengths and DST changes shift it by
 * a few per cent at most.
 */
static bool
next_planned(TimestampTz anchor, const Interval *repeat, TimestampTz now, pg_tz *zone,
			 TimestampTz *next)
{
	double length = (double) repeat->time +
					((double) repeat->day + repeat->month * (DAYS_PER_YEAR / MONTHS_PER_YEAR)) *
						(double) USECS_PER_DAY;
	double behind = (double) now - (double) anchor;
	int64 low = 0;
	int64 high = 1;
	TimestampTz moment;

	if (length < 1)
		return false;
	if (behind > length)
	{
		low = (int64) (behind / length * 0.9);
		if (low > 0 && (!add_interval(anchor, repeat, low, zone, &moment) || moment > now))
			low = 0;
		high = low + 1;
	}
	/* low is not later than now; double the step until high is later than now or out of range */
	while (add_interval(anchor, repeat, high, zone, &moment) && moment <= now)
		if (pg_add_s64_overflow(high, high - low, &high))
			return false;
	while (high - low > 1)
	{
		int64 middle = low + (high - low) / 2;

		if (!add_interval(anchor, repeat, middle, zone, &moment) || moment > now)
			high = middle;
		else
			low = middle;
	}
	return add_interval(anchor, repeat, high, zone, next);
}

/*
 * The anchor of a chain: the planned time of its first run, from which all others are counted.  A
 * run that was planned for none of these times begins another count: somebody has planned it anew,
 * or has changed the interval or the zone.
 */
static TimestampTz
find_anchor(TimestampTz anchor, TimestampTz planned, const Interval *repeat, pg_tz *zone)
{
	TimestampTz counted;

	if (!TIMESTAMP_NOT_FINITE(anchor) && !TIMESTAMP_NOT_FINITE(planned) &&
		next_planned(anchor, repeat, planned - 1, zone, &counted) && counted == planned)
		return anchor;
	return planned;
}

/*
 * When a task that was planned at "planned" and ended at "ended" runs next.
 *
 * With drift: at the first anchor + n * repeat that is later than "now" and "planned"; missed runs
 * are skipped, and month ends and local times that do not occur shift no later run.  *anchor
 * becomes the one that counts for this run and those that follow.  Without drift: one interval
 * after the end, or at "now" if that is later.  Returns false if there is no such time: infinite,
 * out of range, or an interval that does not advance.
 */
bool
schedule_next(TimestampTz *anchor, TimestampTz planned, const Interval *repeat, bool drift,
			  TimestampTz ended, TimestampTz now, pg_tz *zone, TimestampTz *next)
{
	if (!drift)
	{
		if (!add_interval(ended, repeat, 1, zone, next) || *next <= ended)
			return false;
		*next = Max(*next, now);
		return true;
	}
	*anchor = find_anchor(*anchor, planned, repeat, zone);
	if (TIMESTAMP_NOT_FINITE(*anchor) || TIMESTAMP_NOT_FINITE(planned))
		return false;
	return next_planned(*anchor, repeat, Max(now, planned), zone, next) && *next > planned;
}

/* Find the offset of a zone at a moment.  Returns what pg_next_dst_boundary does. */
static int
find_boundary(const pg_tz *zone, pg_time_t moment, CronSpan *span)
{
	pg_time_t boundary;
	long before_offset;
	long after_offset;
	int before_dst;
	int after_dst;
	int found = pg_next_dst_boundary(&moment, &before_offset, &before_dst, &boundary, &after_offset,
									 &after_dst, zone);

	if (found >= 0)
		span->offset = before_offset;
	span->end = found > 0 ? boundary : PG_INT64_MAX;
	return found;
}

/*
 * Find how long a zone keeps the offset that it has at a moment: a CronZone.  At exactly the last
 * change in the table of the zone, and each 400 years later, the server finds no further change,
 * although there is one: it extrapolates for the seconds after that.
 */
static bool
find_zone_span(const void *zone, int64 moment, CronSpan *span)
{
	int found = find_boundary(zone, moment, span);

	if (found == 0)
		(void) find_boundary(zone, moment + 1, span);
	return found >= 0;
}

/*
 * Find the first moment later than "after" that a cron expression names in the zone.  Returns false
 * if there is none in range.
 */
bool
schedule_next_cron(const Cron *cron, TimestampTz after, pg_tz *zone, TimestampTz *next)
{
	int64 seconds;

	if (TIMESTAMP_NOT_FINITE(after))
		return false;
	seconds = after / USECS_PER_SEC - (after % USECS_PER_SEC < 0) + EPOCH_SECONDS;
	if (!cron_next(cron, seconds, find_zone_span, zone, &seconds))
		return false;
	*next = (seconds - EPOCH_SECONDS) * USECS_PER_SEC;
	return schedule_in_range(*next);
}

/*
 * May a task be planned for this moment?  If it were later, dt + active might exceed the range of
 * timestamps, and the index on the expiry could not contain it.
 */
bool
schedule_in_range(TimestampTz moment)
{
	int64 days = date2j(SCHEDULE_LAST_YEAR, 1, 1) - POSTGRES_EPOCH_JDATE;

	return moment < days * USECS_PER_DAY;
}
