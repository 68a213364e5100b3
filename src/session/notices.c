/*
 * notices.c
 *		What users are told of a statement: by a NOTICE or WARNING, that it does more or less than
 *		its user may think; by NOTIFY, that he has ended a task.
 *
 * A statement of a client raises a bounded number of notices, however many rows it changes or
 * functions it calls, and none of rows that the current user does not see.  What pg_task itself
 * ends, its statements notify of (NOTIFY_END in task/rows_sql.h): the payload is the same.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "commands/trigger.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/lsyscache.h"

#include "session/notices.h"
#include "shared/task.h"
#include "task/owner.h"
#include "task/roles.h"

/* Most notices that one statement of a client raises, and most roles of which it warns. */
#define NOTICES_MAX 16

/* Static, because each call of a trigger or a function is a part of the statement. */
static struct
{
	TimestampTz statement; /* of the client; what follows belongs to it */
	int told;			   /* notices that it has raised */
	int warned;
	int64 roles[NOTICES_MAX]; /* the role_id of those of which it has warned */
} notices;

/* Forget what belongs to another statement. */
static void
begin_statement(void)
{
	if (notices.statement != GetCurrentStatementStartTimestamp())
		notices.told = notices.warned = 0;
	notices.statement = GetCurrentStatementStartTimestamp();
}

/* May the statement raise one more notice, as it then does?  The last one says that it is. */
bool
notices_may_tell(void)
{
	begin_statement();
	if (notices.told >= NOTICES_MAX)
		return false;
	notices.told++;
	return true;
}

static const char *
last_notice(void)
{
	return notices.told == NOTICES_MAX ? "This statement raises no further notices of pg_task."
									   : NULL;
}

/* ---- of rows ---- */

/* May the current user read the ids of this table's tasks? */
static bool
may_read_ids(Relation rel)
{
	Oid root = trigger_root_table(rel);
	AttrNumber number = get_attnum(root, task_columns[COLUMN_ID].name);

	return pg_class_aclcheck(root, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
		   pg_attribute_aclcheck(root, number, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/*
 * Tell whoever has stopped a task that repeats that this was the end of its schedule, unless he may
 * not read which task it is.
 */
void
notices_tell_stopped(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(new, COLUMN_ID, &isnull));

	if (!trigger_has_state(new, "STOP") || !trigger_is_unended(old) || !trigger_repeats(new) ||
		SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA || !may_read_ids(new->rel) ||
		!notices_may_tell())
		return;
	ereport(NOTICE,
			(errmsg("task " INT64_FORMAT " does not repeat any more", id),
			 last_notice() ? errdetail_internal("%s", last_notice()) : 0,
			 errhint("To pause a task instead, set \"paused\" of its queue in the queue table."
					 " SELECT pg_task_retry(" INT64_FORMAT ") takes the schedule up again.",
					 id)));
}

/* A function has changed nothing.  "hint" may be NULL. */
void
notices_tell_unchanged(int64 id, const char *what, const char *reason, const char *hint)
{
	ereport(NOTICE, (errmsg("task " INT64_FORMAT " is not %s: %s", id, what, reason),
					 last_notice() ? errdetail_internal("%s", last_notice()) : 0,
					 hint ? errhint("%s", hint) : 0));
}

/* Has this statement warned of the role, or of so many others that it warns no more? */
static bool
has_warned(int64 role_id)
{
	int i;

	begin_statement();
	for (i = 0; i < notices.warned; i++)
		if (notices.roles[i] == role_id)
			return true;
	return notices.warned == NOTICES_MAX;
}

/*
 * Warn whoever plans a task that its role cannot run now: the insert would succeed, and nothing
 * else would tell.
 */
void
notices_warn_of_role(const TriggerRow *row)
{
	int64 role_id = trigger_role_id(row);
	bool isnull;
	Datum name = trigger_value(row, COLUMN_ROLE, &isnull);
	Role role;

	if (isnull || SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ||
		has_warned(role_id) ||
		roles_startable(trigger_table_owner(row->rel), NameStr(*DatumGetName(name)), role_id,
						&role))
		return;
	notices.roles[notices.warned++] = role_id;
	ereport(WARNING, (errcode(role.sqlstate), errmsg("this task will not start: %s", role.error),
					  role.hint ? errhint("%s.", role.hint) : 0));
}

/* ---- by NOTIFY ---- */

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
notices_notify_end(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	Datum value = trigger_value(new, COLUMN_NOTIFY, &isnull);
	char *channel;

	if (isnull || !trigger_is_unended(old) || trigger_is_unended(new) ||
		SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return;
	channel = TextDatumGetCString(value);
	if (channel[0] == '\0' || strlen(channel) > TASK_CHANNEL_MAX ||
		DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0)) >=
			TASK_NOTIFY_USAGE)
		return;
	Async_Notify(channel, make_payload(new));
}
