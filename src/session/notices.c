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
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
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

/* May the statement raise one more notice?  The last one says that it is the last. */
static bool
may_tell(void)
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
	if (others < 0 || !may_read_ids(new->rel) || !may_tell())
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

/* Does a task that the current user sees have the key of this one? */
#define KEY_IS_TAKEN                                                                      \
	"EXISTS (SELECT FROM %s AS k WHERE k.queue OPERATOR(pg_catalog.=) t.queue"            \
	"           AND k.key OPERATOR(pg_catalog.=) t.key"                                   \
	"           AND k.id OPERATOR(pg_catalog.<>) t.id AND k.state OPERATOR(pg_catalog.=)" \
	"               ANY (ARRAY['PLAN'::pg_catalog.text, 'WORK'::pg_catalog.text]))"

/*
 * Read the state of a task, as it is now and as the current user sees it, in the memory context of
 * SPI; and unless key_taken is NULL, whether a task that he sees has its key, for which he needs
 * more rights.  Returns NULL if he sees no such task.
 */
static char *
read_state(const TableAccess *access, int64 id, bool *key_taken)
{
	static const Oid columns[] = {TEXTOID, BOOLOID, InvalidOid};
	const char *sql = "SELECT t.state, %s FROM %s AS t WHERE t.id OPERATOR(pg_catalog.=) $1";
	const char *key = key_taken ? psprintf(KEY_IS_TAKEN, access->rows) : "false";
	AccessStatement statement = {.sql = psprintf(sql, key, access->rows),
								 .count = 1,
								 .types = (const Oid[]){INT8OID},
								 .values = (const Datum[]){Int64GetDatum(id)}};
	bool isnull;

	if (table_access_read(access, &statement, columns) == 0)
		return NULL;
	if (key_taken)
		*key_taken =
			DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

static void
tell_unchanged(int64 id, const char *what, const char *reason, const char *hint)
{
	ereport(NOTICE, (errmsg("task " INT64_FORMAT " is not %s: %s", id, what, reason),
					 last_notice() ? errdetail_internal("%s", last_notice()) : 0,
					 hint ? errhint("%s", hint) : 0));
}

/* Tell why pg_task_cancel has not stopped this task.  Called within SPI. */
void
notices_not_stopped(const TableAccess *access, int64 id)
{
	const char *reason = "a policy or a trigger of the table keeps it as it is";
	char *state;

	if (!may_tell())
		return;
	state = read_state(access, id, NULL);
	if (state == NULL)
		reason = "you see no such task";
	else if (strcmp(state, "STOP") == 0)
		reason = "it was stopped before";
	else if (strcmp(state, "PLAN") != 0 && strcmp(state, "WORK") != 0)
		reason = psprintf("it has ended, %s", state);
	tell_unchanged(id, "stopped", reason, NULL);
}

/*
 * Tell why pg_task_retry does not run this task again.  "sqlerrcode" is the error that has kept it
 * from that, or 0.  Called within SPI.
 */
void
notices_not_retried(const TableAccess *access, int64 id, int sqlerrcode)
{
	const char *reason = "a policy or a trigger of the table keeps it as it is";
	const char *hint = NULL;
	bool key_taken = false;
	char *state;

	if (!may_tell())
		return;
	state = read_state(access, id, &key_taken);
	if (state == NULL)
		reason = "you see no such task";
	else if (strcmp(state, "PLAN") == 0)
	{
		reason = "it is planned already";
		hint = psprintf("SELECT pg_task_why(" INT64_FORMAT ") says for what it waits.", id);
	}
	else if (strcmp(state, "WORK") == 0)
		reason = "it runs";
	else if (strcmp(state, "DONE") == 0)
	{
		reason = "it is DONE";
		hint = "UPDATE it, SET state = 'PLAN', to run it once more.";
	}
	else if (sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		reason = "another transaction has locked its row, or uses its key";
	else if (key_taken || sqlerrcode == ERRCODE_UNIQUE_VIOLATION)
		reason = "another task has its key";
	tell_unchanged(id, "run again", reason, hint);
}
