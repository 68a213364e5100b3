/*
 * notify.c
 *		Tells whoever listens that a user has ended a task, by a STOP or, as the owner of the table,
 *		by another state.
 *
 * What pg_task itself ends, its statements tell (NOTIFY_END in task/rows_sql.h): the payload is the
 * same.  This file writes no row.
 */
#include "postgres.h"

#include "commands/async.h"
#include "commands/trigger.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"

#include "session/notify.h"
#include "shared/task.h"

/* Is the task one that has not ended? */
static bool
is_unended(const TriggerRow *row)
{
	return trigger_has_state(row, "PLAN") || trigger_has_state(row, "WORK");
}

/* A text column, at most 255 characters of it; NULL for NULL. */
static char *
short_text(const TriggerRow *row, TaskColumn which)
{
	bool isnull;
	Datum value = trigger_value(row, which, &isnull);

	if (isnull)
		return NULL;
	return TextDatumGetCString(DirectFunctionCall2(text_left, value, Int32GetDatum(255)));
}

/* Append a member of a JSON object, which is not the first one. */
static void
append_text(StringInfo payload, const char *name, const char *value)
{
	appendStringInfo(payload, ", \"%s\" : ", name);
	if (value)
		escape_json(payload, value);
	else
		appendStringInfoString(payload, "null");
}

/* The payload, as json_build_object writes it. */
static char *
make_payload(const TriggerRow *row)
{
	StringInfoData payload;
	bool isnull;

	initStringInfo(&payload);
	appendStringInfo(&payload, "{\"id\" : " INT64_FORMAT,
					 DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull)));
	append_text(&payload, "queue", short_text(row, COLUMN_QUEUE));
	append_text(&payload, "flow", short_text(row, COLUMN_FLOW));
	append_text(&payload, "step", short_text(row, COLUMN_STEP));
	append_text(&payload, "state", short_text(row, COLUMN_STATE));
	appendStringInfoChar(&payload, '}');
	return payload.data;
}

/*
 * If an UPDATE ends a task whose column "notify" is set, notify the channel at the commit.  A
 * replicated row was notified of elsewhere.
 */
void
notify_end(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	Datum value = trigger_value(new, COLUMN_NOTIFY, &isnull);
	char *channel;

	if (isnull || !is_unended(old) || is_unended(new) ||
		SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return;
	channel = TextDatumGetCString(value);
	if (channel[0] == '\0' || strlen(channel) > TASK_CHANNEL_MAX ||
		DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0)) >=
			TASK_NOTIFY_USAGE)
		return;
	Async_Notify(channel, make_payload(new));
}
