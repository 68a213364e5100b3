/*
 * on_failure.c
 *		The task that is planned when another one has failed for good, or was given up: its request
 *		is the column "on_failure" of that row, or else the setting of that name.
 *
 * It is inserted in the transaction that writes the failure.  Nobody's text runs as somebody else:
 * that of a row and that of a role run as the role of the row, that of the database or of the
 * configuration as the owner of the table (roles_on_failure).  Its own column "on_failure" is
 * empty, so none follows when it fails itself, nor when what it inserts fails (set_labels).
 */
#include "postgres.h"

#include "task/on_failure.h"
#include "task/relation.h"
#include "task/roles.h"
#include "task/rows_sql.h"
#include "task/statement.h"
#include "task/subtransaction.h"

/* clang-format off */

/* Texts that are longer are cut: the row has them. */
#define CUT(column) "left(" column ", 8000)"

static const Statement insert_task = {.sql =
	"INSERT INTO {table} (parent, queue, role, role_id, request, on_failure, meta, input{own})"
	" SELECT t.id, '" TASK_ON_FAILURE_QUEUE "',"
	"        CASE WHEN t.on_failure IS NULL THEN coalesce($as_role::name, t.role) ELSE t.role END,"
	"        CASE WHEN t.on_failure IS NULL THEN coalesce($as_role_id, t.role_id)"
	"             ELSE t.role_id END,"
	"        coalesce(t.on_failure, $request), '', t.meta,"
	"        jsonb_build_object('id', t.id, 'queue', t.queue, 'key', t.key, 'role', t.role,"
	"               'flow', t.flow, 'step', t.step, 'dt', " PLANNED ", 'attempt', t.attempt,"
	"               'state', t.state, 'sqlstate', t.sqlstate, 'error', " CUT("t.error") ","
	"               'request', " CUT("t.request") ", 'next', t.next,"
	"               'hold', (SELECT n.hold FROM {rows} AS n"
	"                         WHERE n.id = t.next AND n.parent = t.id LIMIT 1)){own}"
	"   FROM {rows} AS t"
	"  WHERE t.id = $id AND t.role = $role::name AND t.sqlstate IS NOT NULL"
	"  LIMIT 1"};
/* clang-format on */

/* What is inserted. */
typedef struct Inserting
{
	const TaskTable *table;
	RowKey row;
	RoleOnFailure role;
	bool inserted; /* the result; false: a trigger of the owner's has kept it */
} Inserting;

static void
insert(void *arg)
{
	Inserting *inserting = arg;
	const RoleOnFailure *role = &inserting->role;
	StatementArgs args;

	statement_begin(&args);
	arg_int64(&args, "id", inserting->row.id);
	arg_text(&args, "role", inserting->row.role);
	arg_text(&args, "request", role->request);
	arg_text(&args, "as_role", role->as_name);
	if (role->as_name)
		arg_int64(&args, "as_role_id", role->as_id);
	else
		arg_null(&args, "as_role_id", INT8OID);
	inserting->inserted = statement_execute(&insert_task, inserting->table, &args) > 0;
	statement_end();
}

/*
 * Is this an error of the transaction, which may succeed when it is tried again?  Others are those
 * of the new row, such as a constraint of the owner's that it breaks, or a trigger.
 */
static bool
is_of_transaction(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
		case ERRCODE_INTERNAL_ERROR:
			return true;
		default:
			return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE || sqlstate == ERRCODE_TABLE_CHANGED;
	}
}

/*
 * The task of this row has failed for good: plan what its column "on_failure" "says", which the
 * caller has read, or else the setting of its role.  The failure is written in any case: if the new
 * row is refused, a WARNING says so.
 */
void
on_failure_plan(const TaskTable *table, RowKey row, int64 role_id, OnFailure says)
{
	Inserting inserting = {.table = table, .row = row};
	ErrorData *error;

	if (says == ON_FAILURE_NOTHING)
		return;
	if (says == ON_FAILURE_DEFAULT &&
		!roles_on_failure(table->owner, roles_bound(row.role, role_id), &inserting.role))
		return;
	error = subtransaction_try(insert, &inserting, true);
	if (error && is_of_transaction(error->sqlerrcode))
		ReThrowError(error);
	if (!inserting.inserted)
		ereport(WARNING, (errcode(error ? error->sqlerrcode : ERRCODE_TRIGGERED_ACTION_EXCEPTION),
						  errmsg("nobody is told that task " INT64_FORMAT " has failed", row.id),
						  errdetail_log("Its \"on_failure\" could not be planned: %s.",
										error ? error->message : "a trigger has kept the row")));
}
