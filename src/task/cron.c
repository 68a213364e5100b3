/*
 * cron.c
 *		Cron expressions: parsed, and the times that they name.
 *
 * An expression matches local times.  A time zone makes moments of them, and where the clock is set
 * forward or back that needs a rule.  If the field of the hour begins with "*", the expression
 * follows the clock: local times that occur twice match twice, those that do not occur match
 * nothing.  Otherwise each local time is meant once: one that occurs twice matches when it occurs
 * first, and all that do not occur match the first moment after them.
 *
 * A day matches as in crontab(5): by the day of the month or the day of the week, if neither field
 * begins with "*"; otherwise by both.
 *
 * Every function depends only on its arguments.  This file knows no clock, no setting, no time zone
 * of the server and no row; errors are returned, not raised.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "utils/datetime.h"

#include "task/cron.h"

#define DAY_SECONDS INT64CONST(86400)

/* A calendar repeats after 400 years, with the days of the week. */
#define CYCLE_YEARS 400

/* No zone was ever set back by more than this (s). */
#define MAX_SHIFT (3 * DAY_SECONDS)

#define SATURDAY 6

/* What separates fields. */
#define BLANKS " \t\n\r"

static const struct
{
	const char *name;
	int low;
	int high;
	const char *words; /* names of the values, three letters each */
	int first;		   /* the value of the first of them */
} Fields[CRON_FIELDS] = {
	[CRON_SECOND] = {"second", 0, 59, "", 0},
	[CRON_MINUTE] = {"minute", 0, 59, "", 0},
	[CRON_HOUR] = {"hour", 0, 23, "", 0},
	[CRON_DAY] = {"day of month", 1, 31, "", 0},
	[CRON_MONTH] = {"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec", 1},
	[CRON_WEEKDAY] = {"day of week", 0, 7, "sunmontuewedthufrisat", 0},
};

static const struct
{
	const char *name;
	const char *text; /* NULL: at the start of the server */
} Nicknames[] = {
	{"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 1 *"}, {"@monthly", "0 0 1 * *"},
	{"@weekly", "0 0 * * 0"}, {"@daily", "0 0 * * *"},	  {"@midnight", "0 0 * * *"},
	{"@hourly", "0 * * * *"}, {"@reboot", NULL},
};

typedef struct Parser
{
	const char *text; /* the whole expression */
	const char *at;	  /* what is read next */
	CronField field;
	Cron *cron;
	CronError *error;
} Parser;

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Refuse the current field at this place; always false. */
static bool
refuse_field(Parser *parser, const char *at, const char *hint, const char *problem)
{
	snprintf(parser->error->detail, sizeof(parser->error->detail),
			 "At character %d, in the %s: %s.", (int) (at - parser->text) + 1,
			 Fields[parser->field].name, problem);
	parser->error->hint = hint;
	return false;
}

/* Read a number.  One that is too large for any field is 9999. */
static bool
read_number(Parser *parser, int *value)
{
	if (!is_digit(*parser->at))
		return false;
	for (*value = 0; is_digit(*parser->at); parser->at++)
		*value = Min(*value * 10 + (*parser->at - '0'), 9999);
	return true;
}

/* Read the name of a month or a weekday, in any case. */
static bool
read_word(Parser *parser, int *value)
{
	const char *words = Fields[parser->field].words;
	int i;

	for (i = 0; words[i * 3] != '\0'; i++)
		if (pg_strncasecmp(parser->at, words + i * 3, 3) == 0)
		{
			*value = Fields[parser->field].first + i;
			parser->at += 3;
			return true;
		}
	return false;
}

/* Read a value of the field.  At the end of a range Sunday is 7. */
static bool
read_value(Parser *parser, bool ends_range, int *value)
{
	const char *at = parser->at;
	char problem[80];

	if (read_word(parser, value))
	{
		if (ends_range && parser->field == CRON_WEEKDAY && *value == 0)
			*value = 7;
		return true;
	}
	if (!read_number(parser, value))
		return refuse_field(parser, at, NULL,
							*Fields[parser->field].words ? "a number, a name or \"*\" was expected"
														 : "a number or \"*\" was expected");
	if (*value >= Fields[parser->field].low && *value <= Fields[parser->field].high)
		return true;
	snprintf(problem, sizeof(problem), "a value must be between %d and %d",
			 Fields[parser->field].low, Fields[parser->field].high);
	return refuse_field(parser, at, NULL, problem);
}

/* How many values the field has; Sunday counts once. */
static int
count_values(CronField field)
{
	return field == CRON_WEEKDAY ? 7 : Fields[field].high - Fields[field].low + 1;
}

/* Read "/step", if it is there, and add the values of the range. */
static bool
read_step(Parser *parser, int low, int high)
{
	const char *at;
	int step = 1;

	if (*parser->at == '/')
	{
		at = ++parser->at;
		if (!read_number(parser, &step))
			return refuse_field(parser, at, NULL, "a step, which is a number, was expected");
		if (step == 0)
			return refuse_field(parser, at, NULL, "a step must not be 0");
		if (step > count_values(parser->field))
			return refuse_field(parser, at,
								"A step counts within its field only and begins anew with the next"
								" hour, day, month or year.",
								"the step is larger than the range of the field");
	}
	for (; low <= high; low += step)
	{
		int value = parser->field == CRON_WEEKDAY ? low % 7 : low;

		parser->cron->values[parser->field] |= UINT64CONST(1) << value;
	}
	return true;
}

/* Read what may follow a value: "-value", "/step", and "W", "L" or "#n" for days. */
static bool
read_after_value(Parser *parser, int low)
{
	const char *at = parser->at;
	int high = low;

	if (parser->field == CRON_DAY && (*at == 'W' || *at == 'w'))
	{
		parser->at++;
		parser->cron->nearest_workdays |= 1u << low;
		return true;
	}
	if (parser->field == CRON_WEEKDAY && (*at == 'L' || *at == 'l'))
	{
		parser->at++;
		parser->cron->last_weekdays |= 1u << (low % 7);
		return true;
	}
	if (parser->field == CRON_WEEKDAY && *at == '#')
	{
		int n;

		at = ++parser->at;
		if (!read_number(parser, &n) || n < 1 || n > 5)
			return refuse_field(parser, at, NULL,
								"a number between 1 and 5 was expected after \"#\"");
		parser->cron->nth_weekdays |= UINT64CONST(1) << (7 * (n - 1) + low % 7);
		return true;
	}
	if (*at == '-')
	{
		at = ++parser->at;
		if (!read_value(parser, true, &high))
			return false;
		if (high < low)
			return refuse_field(parser, at, "Write two ranges, separated by a comma.",
								"a range must not end before it begins");
	}
	else if (*at == '/')
		high = Max(low, Fields[parser->field].low + count_values(parser->field) - 1);
	return read_step(parser, low, high);
}

/* Read one element of a field's list. */
static bool
read_element(Parser *parser)
{
	int low = Fields[parser->field].low;
	char c = *parser->at;

	if (c == '*')
	{
		parser->at++;
		return read_step(parser, low, low + count_values(parser->field) - 1);
	}
	if (c == 'H' || c == 'h')
		return refuse_field(
			parser, parser->at,
			"Write \"H\", \"H(low-high)\", and \"/step\" behind either; in the row of"
			" a task a value replaces it.",
			"\"H\" was not expected");
	if (c == '?')
		return refuse_field(parser, parser->at, "Write \"*\" instead.", "\"?\" is not supported");
	if (parser->field == CRON_DAY && c == '$')
		return refuse_field(parser, parser->at, "The last day of the month is \"L\".",
							"\"$\" is not supported");
	if (parser->field == CRON_DAY && (c == 'L' || c == 'l'))
	{
		parser->at++;
		parser->cron->last_day = true;
		return true;
	}
	return read_value(parser, false, &low) && read_after_value(parser, low);
}

static bool
read_field(Parser *parser)
{
	for (;;)
	{
		if (!read_element(parser))
			return false;
		if (strchr(BLANKS, *parser->at)) /* or the end */
			return true;
		if (*parser->at != ',')
			return refuse_field(parser, parser->at, NULL, "this character was not expected");
		parser->at++;
	}
}

/* How many fields has an expression that begins here? */
static int
count_fields(const char *at)
{
	int count = 0;

	for (; *at != '\0'; count++)
	{
		at += strcspn(at, BLANKS);
		at += strspn(at, BLANKS);
	}
	return count;
}

/* Read the five or six fields of an expression. */
static bool
read_fields(Parser *parser)
{
	bool day_any = false;
	int count = count_fields(parser->at);

	if (count != 5 && count != 6)
	{
		snprintf(parser->error->detail, sizeof(parser->error->detail),
				 "The expression has %d fields instead of 5 or 6.", count);
		parser->error->hint = "The fields are minute, hour, day of month, month and day of week; a"
							  " field of seconds may stand before them. For a time between two"
							  " runs, such as 30 seconds, set \"repeat\" instead.";
		return false;
	}
	parser->field = count == 6 ? CRON_SECOND : CRON_MINUTE;
	if (count == 5)
		parser->cron->values[CRON_SECOND] = 1;
	for (; parser->field < CRON_FIELDS; parser->field++)
	{
		parser->at += strspn(parser->at, BLANKS);
		if (parser->field == CRON_HOUR)
			parser->cron->follows_clock = *parser->at == '*';
		if (parser->field == CRON_DAY || parser->field == CRON_WEEKDAY)
			day_any |= *parser->at == '*';
		if (!read_field(parser))
			return false;
	}
	parser->cron->both_days = day_any;
	return true;
}

/* Read a nickname, such as @daily, behind which nothing stands. */
static bool
read_nickname(Parser *parser)
{
	int i;

	for (i = 0; i < (int) lengthof(Nicknames); i++)
	{
		size_t length = strlen(Nicknames[i].name);

		if (pg_strncasecmp(parser->at, Nicknames[i].name, length) != 0 ||
			parser->at[length + strspn(parser->at + length, BLANKS)] != '\0')
			continue;
		if (Nicknames[i].text == NULL)
		{
			parser->cron->at_start = true;
			return true;
		}
		parser->at = Nicknames[i].text;
		return read_fields(parser);
	}
	snprintf(parser->error->detail, sizeof(parser->error->detail),
			 "The nickname at character %d is not recognized.",
			 (int) (parser->at - parser->text) + 1);
	parser->error->hint = "Nicknames are @yearly, @annually, @monthly, @weekly, @daily, @midnight,"
						  " @hourly and @reboot.";
	return false;
}

/*
 * Read "H", "H(low-high)", and "/step" behind either, as the scheduler of Jenkins has them, and
 * write what stands for it.  Returns what follows; or NULL if this is something else, or malformed.
 */
static const char *
spread_element(char **out, const char *at, CronField field, uint32 seed)
{
	Parser parser = {.at = at + 1};
	int low = Fields[field].low;
	int high = field == CRON_DAY ? 28 : low + count_values(field) - 1;
	int first = low;
	int last = high;
	int step = 0;
	uint32 hash = murmurhash32(seed + field);

	if (*at != 'H' && *at != 'h')
		return NULL;
	if (*parser.at == '(')
	{
		parser.at++;
		if (!read_number(&parser, &first) || *parser.at++ != '-' || !read_number(&parser, &last) ||
			*parser.at++ != ')' || first < low || last < first || last > Fields[field].high)
			return NULL;
	}
	if (*parser.at == '/')
	{
		parser.at++;
		if (!read_number(&parser, &step) || step == 0 || step > last - first + 1)
			return NULL;
	}
	if (*parser.at != ',' && !strchr(BLANKS, *parser.at))
		return NULL;
	if (step > 0)
		*out +=
			snprintf(*out, CRON_SPREAD + 1, "%d-%d/%d", first + (int) (hash % step), last, step);
	else
		*out += snprintf(*out, CRON_SPREAD + 1, "%d", first + (int) (hash % (last - first + 1)));
	return parser.at;
}

/*
 * Write an expression in which each "H" is a value that the seed determines: so the same one never
 * moves, and many of them do not match at once.  What is not understood stays.  "out" has room for
 * CRON_SPREAD times the length of the text.  False: there is no "H".
 */
bool
cron_spread(const char *text, uint32 seed, char *out)
{
	const char *at = text + strspn(text, BLANKS);
	CronField field = count_fields(at) == 6 ? CRON_SECOND : CRON_MINUTE;
	bool begins = true; /* an element */
	bool found = false;

	if (*at == '@' || strpbrk(at, "Hh") == NULL)
		return false;
	while (*at != '\0' && field < CRON_FIELDS)
	{
		const char *behind = begins ? spread_element(&out, at, field, seed) : NULL;

		begins = false;
		if (behind)
		{
			found = true;
			at = behind;
			continue;
		}
		begins = *at == ',';
		if (strchr(BLANKS, *at))
		{
			begins = true;
			field++;
			at += strspn(at, BLANKS) - 1;
		}
		*out++ = *at++;
	}
	strcpy(out, at);
	return found;
}

/* Return the lowest bit that is set, "from" or higher, or -1. */
static int
next_bit(uint64 bits, int from)
{
	if (from > 63 || bits >> from == 0)
		return -1;
	return from + pg_rightmost_one_pos64(bits >> from);
}

/* Return the workday nearest to a day of the month, within the month. */
static int
nearest_workday(int day, int weekday, int length)
{
	if (weekday == SATURDAY)
		return day > 1 ? day - 1 : day + 2;
	if (weekday == 0)
		return day < length ? day + 1 : day - 2;
	return day;
}

/* Return the days of a month on which the expression matches: bit n is day n. */
static uint32
match_days(const Cron *cron, int year, int month)
{
	int weekday = j2day(date2j(year, month, 1));
	int length = day_tab[isleap(year)][month - 1];
	uint32 days = (uint32) cron->values[CRON_DAY];
	uint32 weekdays = 0;
	int day;

	if (cron->last_day)
		days |= 1u << length;
	for (day = 1; day <= length; day++, weekday = (weekday + 1) % 7)
	{
		if (cron->nearest_workdays & (1u << day))
			days |= 1u << nearest_workday(day, weekday, length);
		if ((cron->values[CRON_WEEKDAY] & (1u << weekday)) ||
			(cron->nth_weekdays & (UINT64CONST(1) << (7 * ((day - 1) / 7) + weekday))) ||
			(day + 7 > length && (cron->last_weekdays & (1u << weekday))))
			weekdays |= 1u << day;
	}
	days = cron->both_days ? days & weekdays : days | weekdays;
	return days & (uint32) ((UINT64CONST(1) << (length + 1)) - 1);
}

/*
 * Find the first matching day, this one or later.  A calendar repeats after CYCLE_YEARS: if no day
 * of that many years matches, none ever does.
 */
static bool
find_day(const Cron *cron, int *year, int *month, int *day)
{
	int last = Min(*year + CYCLE_YEARS, CRON_LAST_YEAR - 1);
	int from = *day;

	for (; *year <= last; (*year)++, *month = 1)
	{
		for (; *month <= MONTHS_PER_YEAR; (*month)++, from = 1)
		{
			if ((cron->values[CRON_MONTH] & (1u << *month)) == 0)
				continue;
			*day = next_bit(match_days(cron, *year, *month), from);
			if (*day >= 0)
				return true;
		}
	}
	return false;
}

/* Find the first matching second of a day, this one or later; -1 if there is none. */
static int
find_second(const Cron *cron, int from)
{
	const uint64 *values = cron->values;
	int hour;
	int minute;

	for (hour = next_bit(values[CRON_HOUR], from / 3600); hour >= 0;
		 hour = next_bit(values[CRON_HOUR], hour + 1), from = 0)
	{
		int second = hour > from / 3600 ? 0 : from;

		for (minute = next_bit(values[CRON_MINUTE], second / 60 % 60); minute >= 0;
			 minute = next_bit(values[CRON_MINUTE], minute + 1))
		{
			int first = minute > second / 60 % 60 ? 0 : second % 60;
			int found = next_bit(values[CRON_SECOND], first);

			if (found >= 0)
				return hour * 3600 + minute * 60 + found;
		}
	}
	return -1;
}

/*
 * Find the first local time that matches, this one or later, in seconds since 1970.  Every day that
 * matches has a time that does, so the second day is good if the rest of the first is not.
 */
static bool
find_local(const Cron *cron, int64 from, int64 *local)
{
	int64 day = from / DAY_SECONDS - (from % DAY_SECONDS < 0);
	int second = (int) (from - day * DAY_SECONDS);
	int tries;

	for (tries = 0; tries < 2; tries++, day++, second = 0)
	{
		int year;
		int month;
		int mday;
		int64 first = day;

		if (day + UNIX_EPOCH_JDATE < 0 || day + UNIX_EPOCH_JDATE > PG_INT32_MAX)
			return false;
		j2date((int) (day + UNIX_EPOCH_JDATE), &year, &month, &mday);
		if (!find_day(cron, &year, &month, &mday))
			return false;
		day = date2j(year, month, mday) - UNIX_EPOCH_JDATE;
		second = find_second(cron, day > first ? 0 : second);
		if (second < 0)
			continue;
		*local = day * DAY_SECONDS + second;
		return true;
	}
	return false;
}

/*
 * Parse an expression of five or six fields, or a nickname.  Returns false and fills in *error if
 * it is malformed or can never match.
 */
bool
cron_parse(const char *text, Cron *cron, CronError *error)
{
	Parser parser = {.text = text, .at = text, .cron = cron, .error = error};
	int year = 2000;
	int month = 1;
	int day = 1;

	memset(cron, 0, sizeof(Cron));
	memset(error, 0, sizeof(CronError));
	parser.at += strspn(text, BLANKS);
	if (!(*parser.at == '@' ? read_nickname(&parser) : read_fields(&parser)))
		return false;
	if (cron->at_start || find_day(cron, &year, &month, &day))
		return true;
	strlcpy(error->detail, "It never matches: there is no such day.", sizeof(error->detail));
	return false;
}

/*
 * Find the first moment later than "after" that matches, both in seconds since 1970 UTC.  Returns
 * false if there is none before CRON_LAST_YEAR, or the zone does not know the time.
 *
 * Walks from one change of the offset to the next.  "reached" is the end of the local times that
 * have occurred: those before it occur again, and those between it and the local time at which the
 * offset changes never occur.  The walk begins early enough to know the former.  It is bounded by
 * the changes until the next match, some hundred in forty years, the longest time between two 29th
 * of February on the same weekday.
 */
bool
cron_next(const Cron *cron, int64 after, CronZone find_span, const void *zone, int64 *next)
{
	int64 moment = cron->follows_clock ? after + 1 : after - MAX_SHIFT;
	int64 reached = PG_INT64_MIN;
	int64 local;
	CronSpan span;

	if (cron->at_start)
		return false;
	while (find_span(zone, moment, &span))
	{
		int64 from = moment + span.offset;

		if (!cron->follows_clock)
		{
			if (reached > PG_INT64_MIN && reached < from && moment > after &&
				find_local(cron, reached, &local) && local < from)
			{
				*next = moment;
				return true;
			}
			from = Max(Max(from, reached), after + 1 + span.offset);
		}
		if (!find_local(cron, from, &local))
			return false;
		if (local - span.offset < span.end)
		{
			*next = local - span.offset;
			return true;
		}
		reached = Max(reached, span.end + span.offset);
		moment = span.end;
	}
	return false;
}
