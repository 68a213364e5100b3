/*
 * notices.c
 *		What a user is told, by a NOTICE, of a statement that does more or less than he may think:
 *		a STOP that ends the schedule of a task, and a call of pg_task_cancel or pg_task_retry that
 *		changes nothing.
 *
 * A statement of a client raises a bounded number of notices, however many rows it changes or
 * functions it calls, and none of rows that the current user does not see.  This file changes
 * nothing.
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

/* Most notices that one statement of a client raises. */
#define NOTICES_MAX 16

/* Static, because each call of a trigger or a function is a part of the statement. */
static struct
{
	TimestampTz statement; /* of the client; what follows belongs to it */
	int told;			   /* notices that it has raised */
} notices;

/* May the statement raise one more notice, as it then does?  The last one says that it is. */
bool
notices_may_tell(void)
{
	if (notices.statement != GetCurrentStatementStartTimestamp())
		notices.told = 0;
	notices.statement = GetCurrentStatementStartTimestamp();
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
