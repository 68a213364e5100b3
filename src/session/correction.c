/*
 * correction.c
 *		Corrects a row of the task table after an INSERT or UPDATE: which role it is bound to, for
 *		when its cron expression plans it, and when a running task is to run again.
 *
 * A statement of its own changes the row, with the rights of the user: another trigger has written
 * what is wrong in it, or it is an UPDATE, for which a trigger BEFORE each row costs more.
 *
 * This file checks no values.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "session/correction.h"
#include "session/kept_plan.h"
#include "session/times.h"
#include "task/owner.h"
#include "task/roles.h"

/* What the trigger writes into a row that is there already, and why, for an error message. */
typedef struct Correction
{
	bool binds;
	int64 role_id;
	bool plans;
	TimestampTz dt;
	const char *purpose;
} Correction;

/*
 * The table through which a row is updated, in SQL: the root of a partition, where a new time moves
 * the row, and on which a user has rights.  One who has them on the partition only updates that.
 */
static char *
table_of_row(Relation rel, Oid *relid)
{
	Oid root = trigger_root_table(rel);
	bool through_root =
		root != RelationGetRelid(rel) &&
		(pg_class_aclcheck(root, GetUserId(), ACL_UPDATE) == ACLCHECK_OK ||
		 pg_attribute_aclcheck_all(root, GetUserId(), ACL_UPDATE, ACLMASK_ANY) == ACLCHECK_OK);

	*relid = through_root ? root : RelationGetRelid(rel);
	return psprintf("%s%s", through_root ? "" : "ONLY ",
					quote_qualified_identifier(get_namespace_name(get_rel_namespace(*relid)),
											   get_rel_name(*relid)));
}

/* The UPDATE that corrects a row, in SQL.  Sets *relid to the table that it names. */
static char *
correcting_sql(const TriggerRow *row, const Correction *correction, Oid *relid)
{
	bool keeps_planned = trigger_is_null(row, COLUMN_PLANNED) || trigger_has_state(row, "WORK");
	const char *anchor = TIMESTAMP_IS_NOEND(correction->dt) ? ", anchor = $4" : "";
	const char *plan = psprintf("dt = $3%s%s", anchor, keeps_planned ? "" : ", planned = NULL");

	return psprintf("UPDATE %s AS t SET %s%s%s"
					" WHERE t.ctid OPERATOR(pg_catalog.=) $1"
					" AND t.tableoid OPERATOR(pg_catalog.=) $5",
					table_of_row(row->rel, relid), correction->binds ? "role_id = $2" : "",
					correction->binds && correction->plans ? ", " : "",
					correction->plans ? plan : "");
}

/*
 * The plan of the last such statement.  Static, because each row is a call of the trigger, and the
 * statement is nearly always the same.
 */
static KeptPlan corrector;

/*
 * Correct a row after an INSERT or UPDATE.  Uses the rights of the current user; users other than
 * the owner cannot change what binds a row.
 */
static void
correct_row(const TriggerRow *row, const Correction *correction)
{
	Oid types[] = {TIDOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, OIDOID};
	Datum values[] = {PointerGetDatum(&row->tuple->t_self), Int64GetDatum(correction->role_id),
					  TimestampTzGetDatum(correction->dt), TimestampTzGetDatum(PgStartTime),
					  ObjectIdGetDatum(RelationGetRelid(row->rel))};
	Oid relid;
	const char *sql = correcting_sql(row, correction, &relid);
	int code;

	SPI_connect();
	code = kept_plan_execute(&corrector, sql, relid, false, lengthof(types), types, values);
	if (code != SPI_OK_UPDATE || SPI_processed != 1)
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("could not %s", correction->purpose),
						errdetail("The row was changed again by a trigger, or is hidden by a"
								  " policy.")));
	SPI_finish();
}

/*
 * A new row, or one whose role was changed, must be bound to the role that has its name now.  It is
 * not if a trigger of the owner ran after ours, or the owner has changed the column.
 */
static void
check_binding(const TriggerRow *old, const TriggerRow *new, Correction *correction)
{
	bool isnull;
	Datum role = trigger_value(new, COLUMN_ROLE, &isnull);

	if (isnull || (old && trigger_same_value(old, new, COLUMN_ROLE) &&
				   trigger_same_value(old, new, COLUMN_ROLE_ID)))
		return;
	correction->role_id = roles_bind(NameStr(*DatumGetName(role)));
	correction->binds = correction->role_id != trigger_role_id(new);
	if (correction->binds)
		correction->purpose = "bind a task to its role";
}

/* Does an UPDATE change when the cron expression of a row matches? */
static bool
changes_matches(const TriggerRow *old, const TriggerRow *new)
{
	return !trigger_same_value(old, new, COLUMN_CRON) ||
		   !trigger_same_value(old, new, COLUMN_TIMEZONE) ||
		   (trigger_is_null(new, COLUMN_TIMEZONE) && !trigger_same_value(old, new, COLUMN_ROLE));
}

/*
 * Does an UPDATE let a task that runs when the server starts wait again?  It waits for a start
 * after this one, not after the one under which it was planned before it was stopped.
 */
static bool
waits_again(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	TimestampTz dt = DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull));

	return !isnull && TIMESTAMP_IS_NOEND(dt) && !trigger_has_state(old, "PLAN");
}

/*
 * An UPDATE that changes the cron expression of a waiting row, or the zone in which it is read, and
 * not the planned time, plans the row anew: for the first match from now on.  So does one that
 * changes it and lets the row wait again.  A replicated row was planned elsewhere.  The zone of a
 * new row is checked as well.
 */
static void
check_planned_time(const TriggerRow *old, const TriggerRow *new, Correction *correction)
{
	int64 role_id = correction->binds ? correction->role_id : trigger_role_id(new);
	bool changed;

	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return;
	if (old == NULL || !trigger_same_value(old, new, COLUMN_TIMEZONE))
		times_check_zone(new);
	if (trigger_is_null(new, COLUMN_CRON))
		return;
	changed = old == NULL || changes_matches(old, new);
	if (old == NULL || !(changed || waits_again(old, new)) || !trigger_has_state(new, "PLAN") ||
		!trigger_same_value(old, new, COLUMN_DT) ||
		!times_of_row(new, trigger_bound_role(new, role_id), GetCurrentTimestamp(),
					  &correction->dt) ||
		!(changed || TIMESTAMP_IS_NOEND(correction->dt)))
		return;
	correction->plans = true;
	if (!correction->binds)
		correction->purpose = "plan a task by its cron expression";
}

/* Does an UPDATE set the planned time of a running task, to whatever value? */
static bool
sets_time_of_run(const TriggerRow *old, const TriggerRow *new, const Bitmapset *updated)
{
	int number = trigger_column(new->rel, COLUMN_DT);

	return trigger_has_state(old, "WORK") && trigger_has_state(new, "WORK") &&
		   SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		   (bms_is_member(number - FirstLowInvalidHeapAttributeNumber, updated) ||
			!trigger_same_value(old, new, COLUMN_DT));
}

/*
 * An UPDATE that sets the planned time of a running task asks for one more run after this one.  The
 * executor sees that by a time later than the claim, which is in "start"; so an earlier time
 * becomes the first moment after it.  The now() of a transaction that began before the claim is
 * earlier.
 */
static void
check_run_again(const TriggerRow *old, const TriggerRow *new, const Bitmapset *updated,
				Correction *correction)
{
	bool isnull;
	TimestampTz claimed;

	if (old == NULL || !sets_time_of_run(old, new, updated))
		return;
	claimed = DatumGetTimestampTz(trigger_value(new, COLUMN_START, &isnull));
	if (isnull || DatumGetTimestampTz(trigger_value(new, COLUMN_DT, &isnull)) > claimed)
		return;
	correction->plans = true;
	correction->dt = claimed + 1;
	if (!correction->binds)
		correction->purpose = "plan a running task again";
}

/*
 * Correct a new or changed row where it needs it.  "old" is NULL for an INSERT; "updated" are the
 * columns that an UPDATE sets.  Returns whether the row was bound to another role.
 */
bool
correction_apply(const TriggerRow *old, const TriggerRow *new, const Bitmapset *updated)
{
	Correction correction = {0};

	Assert(!owner_acts());
	check_binding(old, new, &correction);
	check_planned_time(old, new, &correction);
	check_run_again(old, new, updated, &correction);
	if (correction.binds || correction.plans)
		correct_row(new, &correction);
	return correction.binds;
}
