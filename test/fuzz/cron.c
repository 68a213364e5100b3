/*
 * cron.c
 *		libFuzzer target for cron expressions: the parser, and the next moment of what it accepts.
 *
 * The first 8 bytes of the input choose a moment, the next 16 a zone with four changes of its
 * offset, and the rest is the expression.  A moment that cron_next returns is compared with a walk
 * from second to second, for as long as that is quick.  The module is compiled from its source;
 * of the server it needs two functions of the calendar, which stand here in another way.
 */
#include "postgres.h"

#include "utils/datetime.h"

#include "task/cron.h"

#define CHANGES 4
#define FIRST INT64CONST(-200000000000) /* some centuries after the first timestamp ... */
#define LAST INT64CONST(9000000000000)	/* ... and before the last */
#define WALK (4 * SECS_PER_HOUR)		/* seconds that are walked through */
#define MEMORY (3 * SECS_PER_DAY)		/* how long before that local times are remembered */

int LLVMFuzzerTestOneInput(const uint8 *data, size_t size);

const int day_tab[2][13] = {{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0},
							{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0}};

typedef struct Zone
{
	int64 changes[CHANGES]; /* ascending */
	int64 offsets[CHANGES + 1];
} Zone;

static int64
divide_down(int64 value, int64 by)
{
	return value / by - (value % by < 0);
}

/* Days from 1 January of the year 1 to that of another. */
static int64
days_before(int year)
{
	int64 past = (int64) year - 1;

	return past * 365 + divide_down(past, 4) - divide_down(past, 100) + divide_down(past, 400);
}

int
date2j(int year, int month, int day)
{
	int64 days = days_before(year) + day - 1;
	int i;

	for (i = 1; i < month; i++)
		days += day_tab[isleap(year)][i - 1];
	return (int) (days + 1721426);
}

void
j2date(int julian, int *year, int *month, int *day)
{
	int64 days = (int64) julian - 1721426;

	*year = (int) divide_down(days * 400, 146097) + 1;
	while (days_before(*year) > days)
		(*year)--;
	while (days_before(*year + 1) <= days)
		(*year)++;
	*day = (int) (days - days_before(*year)) + 1;
	for (*month = 1; *day > day_tab[isleap(*year)][*month - 1]; (*month)++)
		*day -= day_tab[isleap(*year)][*month - 1];
}

int
j2day(int julian)
{
	return (int) (((int64) julian + 1) % 7);
}

static bool
find_span(const void *context, int64 moment, CronSpan *span)
{
	const Zone *zone = context;
	int i = 0;

	while (i < CHANGES && zone->changes[i] <= moment)
		i++;
	span->offset = zone->offsets[i];
	span->end = i < CHANGES ? zone->changes[i] : PG_INT64_MAX;
	return true;
}

static int64
local_time(const Zone *zone, int64 moment)
{
	CronSpan span;

	find_span(zone, moment, &span);
	return moment + span.offset;
}

/* The workday of the month that is nearest to a day. */
static int
nearest_workday(int year, int month, int wanted, int length)
{
	int distance;

	for (distance = 0; distance < 3; distance++)
	{
		int day;

		for (day = wanted - distance; day <= wanted + distance; day += Max(2 * distance, 1))
			if (day >= 1 && day <= length && j2day(date2j(year, month, day)) % 6 != 0)
				return day;
	}
	abort();
}

static bool
day_matches(const Cron *cron, int year, int month, int day)
{
	int length = day_tab[isleap(year)][month - 1];
	int weekday = j2day(date2j(year, month, day));
	bool by_day = (cron->values[CRON_DAY] >> day & 1) || (cron->last_day && day == length);
	bool by_weekday = (cron->values[CRON_WEEKDAY] >> weekday & 1) ||
					  (cron->nth_weekdays >> (7 * ((day - 1) / 7) + weekday) & 1) ||
					  ((cron->last_weekdays >> weekday & 1) && day + 7 > length);
	int wanted;

	for (wanted = 1; wanted <= length; wanted++)
		by_day |= (cron->nearest_workdays >> wanted & 1) &&
				  nearest_workday(year, month, wanted, length) == day;
	return cron->both_days ? by_day && by_weekday : by_day || by_weekday;
}

static bool
local_matches(const Cron *cron, int64 local)
{
	int64 days = divide_down(local, SECS_PER_DAY);
	int second = (int) (local - days * SECS_PER_DAY);
	int year;
	int month;
	int day;

	if (!(cron->values[CRON_SECOND] >> (second % 60) & 1) ||
		!(cron->values[CRON_MINUTE] >> (second / 60 % 60) & 1) ||
		!(cron->values[CRON_HOUR] >> (second / 3600) & 1))
		return false;
	j2date((int) (days + UNIX_EPOCH_JDATE), &year, &month, &day);
	return (cron->values[CRON_MONTH] >> month & 1) && day_matches(cron, year, month, day);
}

/* The first match by walking, or PG_INT64_MAX if there is none before the end of the walk. */
static int64
walk_to_match(const Cron *cron, const Zone *zone, int64 after)
{
	int64 reached = local_time(zone, after) + 1; /* local times before this one have occurred */
	int64 moment;
	int64 missing;
	int i;

	for (i = 0; i < CHANGES; i++)
		if (zone->changes[i] > after - MEMORY && zone->changes[i] <= after)
			reached = Max(reached, local_time(zone, zone->changes[i] - 1) + 1);
	for (moment = after + 1; moment <= after + WALK; moment++)
	{
		int64 local = local_time(zone, moment);

		if (cron->follows_clock && local_matches(cron, local))
			return moment;
		for (missing = reached; !cron->follows_clock && missing <= local; missing++)
			if (local_matches(cron, missing))
				return moment;
		reached = Max(reached, local + 1);
	}
	return PG_INT64_MAX;
}

static int64
read_bytes(const uint8 *data, int count)
{
	uint64 value = 0;

	while (count-- > 0)
		value = value << 8 | *data++;
	return (int64) value;
}

/* A zone whose offset changes four times around a moment, by up to 36 hours. */
static Zone
make_zone(const uint8 *data, int64 around)
{
	Zone zone;
	int i;

	around -= SECS_PER_DAY;
	zone.offsets[0] = 0;
	for (i = 0; i < CHANGES; i++, data += 4)
	{
		around += read_bytes(data, 2) * 4 + 1;
		zone.changes[i] = around;
		zone.offsets[i + 1] = zone.offsets[i] + (int16) read_bytes(data + 2, 2) * 2;
	}
	return zone;
}

int
LLVMFuzzerTestOneInput(const uint8 *data, size_t size)
{
	char text[1024];
	CronError error;
	Cron cron;
	Zone zone;
	int64 after;
	int64 wanted;
	int64 next;

	if (size < 24 || size - 24 >= sizeof(text))
		return 0;
	memcpy(text, data + 24, size - 24);
	text[size - 24] = '\0';
	if (!cron_parse(text, &cron, &error))
	{
		if (error.detail[0] == '\0' || strlen(error.detail) >= sizeof(error.detail))
			abort();
		return 0;
	}
	after = FIRST + (int64) ((uint64) read_bytes(data, 8) % (LAST - FIRST));
	zone = make_zone(data + 8, after);
	wanted = cron.at_start ? PG_INT64_MAX : walk_to_match(&cron, &zone, after);
	if (!cron_next(&cron, after, find_span, &zone, &next))
		next = PG_INT64_MAX;
	if (next <= after || (wanted != PG_INT64_MAX ? next != wanted : next <= after + WALK))
		abort();
	return 0;
}
