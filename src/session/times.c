/*
 * times.c
 *		When a cron expression or an interval runs a task: the SQL functions pg_task_next.
 *
 * They compute.  They read no clock, no table and no setting; the defaults of their arguments do.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "compat.h"
#include "session/times.h"
#include "shared/task.h"
#include "task/schedule.h"
#include "settings.h"

COMPAT_FUNCTION(pg_task_next);
COMPAT_FUNCTION(pg_task_next_cron);

/* A literal without a type is taken for an expression, even if it is meant as an interval. */
#define INTERVAL_HINT \
	"If it is an interval, cast it, as in pg_task_schedule(interval '1 day', ...)."

/*
 * Parse a cron expression; one that is malformed or never matches is an error, with this hint, or,
 * for NULL, one that fits.
 */
Cron
times_parse(const char *text, const char *hint)
{
	CronError error;
	Cron cron;

	if (strlen(text) > TASK_KEY_MAX)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("a cron expression must be at most %d bytes long", TASK_KEY_MAX)));
	if (!cron_parse(text, &cron, &error))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid cron expression: \"%s\"", text), errdetail("%s", error.detail),
				 error.hint || hint ? errhint("%s", hint ? hint : error.hint) : 0));
	return cron;
}

/* Find a time zone; a name that is not known is an error. */
pg_tz *
times_zone(const char *name)
{
	pg_tz *zone = zone_find(name);

	if (zone == NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("time zone \"%s\" not recognized", name),
						errhint("The view pg_timezone_names has the names.")));
	return zone;
}

/*
 * pg_task_next(planned, repeat, drift, ended, timezone): when a repeating task with these times
 * runs next; NULL: never.
 */
Datum
pg_task_next(PG_FUNCTION_ARGS)
{
	TimestampTz planned = PG_GETARG_TIMESTAMPTZ(0);
	TimestampTz ended = PG_GETARG_TIMESTAMPTZ(3);
	pg_tz *zone = times_zone(text_to_cstring(PG_GETARG_TEXT_PP(4)));
	TimestampTz anchor = planned;
	TimestampTz next;

	if (!schedule_next(&anchor, planned, PG_GETARG_INTERVAL_P(1), PG_GETARG_BOOL(2), ended, ended,
					   zone, &next))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(next);
}

/*
 * pg_task_next(cron, after, timezone): the first moment later than "after" that the expression
 * names; NULL: there is none.
 */
Datum
pg_task_next_cron(PG_FUNCTION_ARGS)
{
	char *expression = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Cron cron = times_parse(expression, strchr(expression, '*') ? NULL : INTERVAL_HINT);
	TimestampTz after = PG_GETARG_TIMESTAMPTZ(1);
	TimestampTz next;

	if (!schedule_next_cron(&cron, after, times_zone(text_to_cstring(PG_GETARG_TEXT_PP(2))), &next))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(next);
}
