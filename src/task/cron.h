/*
 * cron.h
 *		Cron expressions: parsed, and the times that they name.  All functions are pure.
 */
#ifndef PG_TASK_CRON_H
#define PG_TASK_CRON_H

#include "postgres.h"

/* No time in this year or later is found. */
#define CRON_LAST_YEAR 294000

/* The fields, in the order of an expression of six; one of five begins with the minute. */
typedef enum CronField
{
	CRON_SECOND,
	CRON_MINUTE,
	CRON_HOUR,
	CRON_DAY,
	CRON_MONTH,
	CRON_WEEKDAY,
	CRON_FIELDS
} CronField;

/* What cron_spread returns is at most so many times as long as the expression. */
#define CRON_SPREAD 8

/* A parsed expression: plain data, without pointers. */
typedef struct Cron
{
	uint64 values[CRON_FIELDS]; /* bit n: the field matches n; Sunday is 0 */
	uint32 nearest_workdays;	/* bit n: "nW" */
	uint64 nth_weekdays;		/* bit 7 * (n - 1) + w: "w#n" */
	uint8 last_weekdays;		/* bit w: "wL" */
	bool last_day;				/* "L" */
	bool both_days;				/* a day must match its day of the month and of the week */
	bool follows_clock;			/* the field of the hour begins with "*" */
	bool at_start;				/* "@reboot": it names no time */
} Cron;

/* Why an expression was refused. */
typedef struct CronError
{
	char detail[160]; /* a sentence */
	const char *hint; /* a sentence, or NULL */
} CronError;

/* In a zone, from the moment that was asked for until before "end", the offset is the same. */
typedef struct CronSpan
{
	int64 end;	  /* seconds since 1970 UTC; PG_INT64_MAX: never */
	int64 offset; /* local time minus UTC (s) */
} CronSpan;

/*
 * Returns the span that contains a moment (seconds since 1970 UTC), or false if the moment is out
 * of range.
 */
typedef bool (*CronZone)(const void *zone, int64 moment, CronSpan *span);

extern bool cron_spread(const char *text, uint32 seed, char *out);
extern bool cron_parse(const char *text, Cron *cron, CronError *error);
extern bool
cron_next(const Cron *cron, int64 after, CronZone find_span, const void *zone, int64 *next);

#endif /* PG_TASK_CRON_H */
