/*
 * notices.c
 *		What a user is told, by a NOTICE, of a statement that does more or less than he may think:
 *		a STOP that ends the schedule of a task, and a call of pg_task_cancel or pg_task_retry that
 *		changes nothing.
 *
 * It tells nothing of rows that the current user does not see.  A statement of a client raises a
 * bounded number of notices, however many rows it changes or functions it calls.  This file changes
 * nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "session/notices.h"
#include "task/owner.h"

/* Most notices that one statement of a client raises. */
#define NOTICES_MAX 16

/* Static, because each call of a trigger or a function is a part of the statement. */
static struct
{
	TimestampTz statement; /* of the client; what follows belongs to it */
	int told;			   /* notices that it has raised */
	SubTransactionId subxact;
	int64 stopped; /* repeating tasks that the running UPDATE in "subxact" stops, not yet told of */
} notices;

/* Forget what belongs to another statement, or to a subtransaction that has ended. */
static void
begin_statement(void)
{
	if (notices.statement != GetCurrentStatementStartTimestamp())
	{
		notices.statement = GetCurrentStatementStartTimestamp();
		notices.told = 0;
		notices.subxact = InvalidSubTransactionId;
	}
	if (notices.subxact != GetCurrentSubTransactionId())
	{
		notices.subxact = GetCurrentSubTransactionId();
		notices.stopped = 0;
	}
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

/* ---- a STOP that ends a schedule ---- */

/* Does a user stop a task that would have repeated? */
static bool
ends_schedule(const TriggerRow *old, const TriggerRow *new)
{
	return trigger_has_state(new, "STOP") &&
		   (trigger_has_state(old, "PLAN") || trigger_has_state(old, "WORK")) &&
		   trigger_repeats(new) && !owner_acts() &&
		   SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA;
}

/* Count a row before it is changed: when its statement tells of the first one, all are known. */
void
notices_count_stopped(const TriggerRow *old, const TriggerRow *new)
{
	if (!ends_schedule(old, new))
		return;
	begin_statement();
	notices.stopped++;
}

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
 * After an UPDATE has changed all its rows, tell whoever has stopped tasks that repeat that this
 * was the end of their schedules, unless he may not read which tasks they are.
 */
void
notices_tell_stopped(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	int64 others;
	int64 id;

	if (!ends_schedule(old, new))
		return;
	begin_statement();
	others = notices.stopped - 1;
	notices.stopped = 0;
	if (others < 0 || !may_read_ids(new->rel) || !notices_may_tell())
		return;
	id = DatumGetInt64(trigger_value(new, COLUMN_ID, &isnull));
	ereport(NOTICE,
			(others == 0
				 ? errmsg("task " INT64_FORMAT " does not repeat any more", id)
				 : errmsg("task " INT64_FORMAT " and " INT64_FORMAT " more do not repeat any more",
						  id, others),
			 last_notice() ? errdetail_internal("%s", last_notice()) : 0,
			 errhint("To pause a task instead, set \"paused\" of its queue in the queue table."
					 " SELECT pg_task_retry(" INT64_FORMAT ") takes the schedule up again.",
					 id)));
}

/* ---- a function that has changed nothing ---- */

/* "hint" may be NULL. */
void
notices_tell_unchanged(int64 id, const char *what, const char *reason, const char *hint)
{
	ereport(NOTICE, (errmsg("task " INT64_FORMAT " is not %s: %s", id, what, reason),
					 last_notice() ? errdetail_internal("%s", last_notice()) : 0,
					 hint ? errhint("%s", hint) : 0));
}
