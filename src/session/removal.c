/*
 * removal.c
 *		Tasks that are removed before they are DONE, while others wait for them.
 *
 * As a foreign key with an action would, a DELETE changes the rows that wait for the task: its id
 * in "after" becomes NULL, and the row watches it, so that the scheduler judges it.  That is done
 * as the owner of the table, whatever the user sees or may write, and with what is committed now,
 * whatever the snapshot of the transaction is.  An INSERT of such a row has locked the task before
 * (after.c): so of the two, the second waits for the first, and sees it.
 *
 * This file decides nothing about rows that wait.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "session/kept_plan.h"
#include "session/removal.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/relation.h"

/* clang-format off */

/*
 * The rows that wait for a task, in two indexes.  By other rules than "any", it is enough to know
 * that one was removed: many that are removed do not change a row as often.
 */
#define DEPENDENTS \
	" WHERE t.state = 'PLAN'" \
	"   AND (t.waits = $1" \
	"        OR ((t.waits IS NOT NULL) IS TRUE AND cardinality(t.after) > 1" \
	"            AND t.after @> ARRAY[$1]))" \
	"   AND (t.rule = 'any' OR array_position(t.after, NULL) IS NULL)"

static const char find_dependents[] = "SELECT FROM %s AS t" DEPENDENTS " LIMIT 1";
static const char mark_dependents[] =
	"UPDATE %s AS t SET waits = $1, after = array_replace(t.after, $1, NULL)" DEPENDENTS;

/* clang-format on */

/* Their plans.  Static, because each row is a call of the trigger. */
static KeptPlan finder = {.latest = true};
static KeptPlan marker = {.latest = true};

/*
 * The table in which this session is marking rows; InvalidOid: none.  Static, because triggers on
 * the table ask.
 */
static Oid marked = InvalidOid;

/*
 * Are rows of this table being marked, so that a trigger leaves them as they are?  Not those of
 * other tables: anybody may put our trigger on a table of his own, whose triggers write others.
 */
bool
removal_marks(Relation rel)
{
	return OidIsValid(marked) && marked == trigger_root_table(rel);
}

/*
 * Raise an error if a partition belongs to somebody else than the table: his code would run as the
 * owner.  So does, if "barred", one if a read of the table or, if "writes", a write could run code
 * of its owner's in this session: it has perhaps run code of somebody else, and what that has
 * compiled would run as the owner.  The locks keep others from adding such code, and the owners as
 * they are, until the transaction ends.
 */
static void
check_code(Oid root, bool barred, bool writes)
{
	static Oid checked_root;
	static bool checked_barred;
	static LocalTransactionId checked;
	Relation rel;
	ListCell *cell;

	if (!writes && checked_root == root && checked == COMPAT_LOCAL_XID &&
		(checked_barred || !barred))
		return;
	rel = relation_open(root, RowExclusiveLock);
	foreach(cell, lcons_oid(root, relation_members(rel)))
	{
		char *code;

		LockRelationOid(lfirst_oid(cell), RowExclusiveLock);
		if (!relation_is_owned_by(lfirst_oid(cell), rel->rd_rel->relowner))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("nobody may remove tasks at present"),
					 errdetail("Rows that wait for them are changed, and partition \"%s\" has"
							   " another owner.",
							   get_rel_name(lfirst_oid(cell))),
					 errhint("Stop them instead, or give the table one owner.")));
		code = barred ? owner_code_find(lfirst_oid(cell), writes) : NULL;
		if (code)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("only the owner of the task table may remove tasks at present"),
					 errdetail("Rows that wait for them are changed, and code of the owner's would"
							   " run: %s.",
							   code),
					 errhint("Stop them instead, or have the owner drop it.")));
	}
	relation_close(rel, NoLock);
	checked_root = root;
	checked_barred = barred;
	checked = COMPAT_LOCAL_XID;
}

/* Mark the rows that wait for this task. */
static void
mark(Oid root, Datum id)
{
	Oid types[] = {INT8OID};
	Oid outer = marked;

	marked = root;
	PG_TRY();
	{
		(void) kept_plan_execute(&marker, mark_dependents, root, 1, types, &id);
	}
	PG_FINALLY();
	{
		marked = outer;
	}
	PG_END_TRY();
}

/*
 * This row was removed: mark those that wait for it, unless it was DONE.  A row that an UPDATE
 * moves to another partition is not.
 */
void
removal_mark(const TriggerRow *row)
{
	Oid root = trigger_root_table(row->rel);
	Oid owner = trigger_table_owner(row->rel);
	bool isnull;
	Datum id = trigger_value(row, COLUMN_ID, &isnull);
	bool barred = owner_code_is_barred(owner);
	Oid types[] = {INT8OID};
	int outer;
	OwnerScope scope;

	if (isnull || trigger_has_state(row, "DONE") ||
		HeapTupleHeaderIndicatesMovedPartitions(row->tuple->t_data))
		return;
	check_code(root, barred, false);
	/* code that comes without conflicting with our locks is refused when it is called */
	outer = owner_code_bar(barred ? ERRCODE_INSUFFICIENT_PRIVILEGE : 0);
	PG_TRY();
	{
		owner_restrict(owner, &scope);
		SPI_connect();
		if (kept_plan_execute(&finder, find_dependents, root, 1, types, &id) > 0)
		{
			if (barred)
				check_code(root, true, true);
			mark(root, id);
		}
		SPI_finish();
		AtEOXact_GUC(false, scope.nest_level);
		SetUserIdAndSecContext(scope.user, scope.context);
	}
	PG_FINALLY();
	{
		(void) owner_code_bar(outer);
	}
	PG_END_TRY();
}
