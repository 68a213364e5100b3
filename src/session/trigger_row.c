/*
 * trigger_row.c
 *		Reads the columns of a row that a trigger on the task table is called for, and which ids the
 *		sequence of the table has given; decides who may choose one.
 *
 * Anybody may put these triggers on any table: every access to a column checks its name and type.
 * The value of the sequence is read each time, because nothing reports a restart of a sequence.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "session/trigger_row.h"
#include "task/roles.h"

TriggerColumns trigger_columns;

/*
 * Look a column up.  Its place in the list of columns is tried first: that is where a table has it
 * that pg_task has made.
 */
int
trigger_find_column(Relation rel, TaskColumn which)
{
	TupleDesc desc = RelationGetDescr(rel);
	const char *name = task_columns[which].name;
	int number = (int) which + 1;

	if (number > desc->natts ||
		strcmp(NameStr(TupleDescAttr(desc, number - 1)->attname), name) != 0)
		number = SPI_fnumber(desc, name);
	if (number < 1 || TupleDescAttr(desc, number - 1)->atttypid != task_columns[which].type)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("the table of this trigger is not a task table"),
						errdetail("It has no column \"%s\" of type %s.", name,
								  format_type_be(task_columns[which].type)),
						errhint("If it is the task table, the scheduler of this database completes"
								" it.")));
	if (trigger_columns.relid != RelationGetRelid(rel))
		memset(&trigger_columns, 0, sizeof(trigger_columns));
	trigger_columns.relid = RelationGetRelid(rel);
	return trigger_columns.numbers[which] = number;
}

/* Raise an error: a row breaks a rule, which says what its column must do. */
void
trigger_reject(const TriggerRow *row, TaskColumn which, const char *rule)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));

	ereport(ERROR, (errcode(ERRCODE_CHECK_VIOLATION),
					errmsg("\"%s\" of a task must %s", task_columns[which].name, rule),
					errdetail("The row has id " INT64_FORMAT ".", id),
					errtablecol(row->rel, trigger_column(row->rel, which))));
}

/*
 * Does a column have the same value in two rows?  "old" may be NULL
 * (INSERT): then compare with the column's default, which is 0 for attempt and crashed, else NULL.
 */
bool
trigger_same_value(const TriggerRow *old, const TriggerRow *new, TaskColumn which)
{
	int number = trigger_column(new->rel, which);
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(new->rel), number - 1);
	bool old_isnull = true;
	bool new_isnull;
	Datum old_value = old ? trigger_value(old, which, &old_isnull) : (Datum) 0;
	Datum new_value = trigger_value(new, which, &new_isnull);

	if (old == NULL && (which == COLUMN_ATTEMPT || which == COLUMN_CRASHED))
		return DatumGetInt32(new_value) == 0;
	if (old_isnull || new_isnull)
		return old_isnull == new_isnull;
	return datum_image_eq(old_value, new_value, att->attbyval, att->attlen);
}

/* Read the column "after".  Returns false if it is NULL or empty. */
bool
trigger_after(const TriggerRow *row, AfterIds *after)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_AFTER, &isnull);

	if (isnull)
		return false;
	after->array = DatumGetArrayTypeP(value);
	after->count = ArrayGetNItems(ARR_NDIM(after->array), ARR_DIMS(after->array));
	if (after->count == 0)
		return false;
	after->removed = array_contains_nulls(after->array);
	after->ids = (int64 *) ARR_DATA_PTR(after->array);
	return true;
}

/* ---- the sequence ---- */

/* Return the sequence that the column "id" owns, as identity or serial column, or InvalidOid. */
static Oid
find_sequence(Oid relid)
{
	AttrNumber number = get_attnum(relid, "id");
	List *sequences = getOwnedSequences(relid);
	ListCell *cell;

	foreach(cell, sequences)
	{
		Oid table;
		int32 column;

		if ((sequenceIsOwned(lfirst_oid(cell), DEPENDENCY_INTERNAL, &table, &column) ||
			 sequenceIsOwned(lfirst_oid(cell), DEPENDENCY_AUTO, &table, &column)) &&
			column == number)
			return lfirst_oid(cell);
	}
	return InvalidOid;
}

/*
 * The same for the root of the table of the last trigger, from what is known of that.  Nothing is
 * kept if one of them changes while the catalogs are read.
 */
static Oid
find_sequence_cached(Oid root)
{
	Oid sequence;

	if (OidIsValid(trigger_columns.relid) && trigger_columns.root == root &&
		trigger_columns.sequence_known)
		return trigger_columns.sequence;
	trigger_columns.sequence_known = false;
	trigger_columns.root = root;
	sequence = find_sequence(root);
	trigger_columns.sequence = sequence;
	trigger_columns.sequence_known = OidIsValid(trigger_columns.relid);
	return sequence;
}

/*
 * Call a function of a sequence, whatever the rights of the current user.  Returns false if it
 * returns NULL.  The user is the same again afterwards, also if the function raises an error.
 */
static bool
read_sequence(PGFunction function, Oid sequence, int64 *value)
{
	LOCAL_FCINFO(call, 1);
	Oid user;
	int context;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(sequence);
	call->args[0].isnull = false;
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	PG_TRY();
	{
		*value = DatumGetInt64(function(call));
	}
	PG_FINALLY();
	{
		SetUserIdAndSecContext(user, context);
	}
	PG_END_TRY();
	return !call->isnull;
}

/* Is this an id that the sequence has not given yet? */
static bool
is_ahead(Oid sequence, int64 id)
{
	HeapTuple tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	bool backwards;
	int64 last;

	if (!HeapTupleIsValid(tuple))
		return false;
	backwards = ((Form_pg_sequence) GETSTRUCT(tuple))->seqincrement < 0;
	ReleaseSysCache(tuple);
	if (!read_sequence(pg_sequence_last_value, sequence, &last))
		return true;
	return backwards ? id < last : id > last;
}

static void
reject_choice(void)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("you may not choose the \"id\" of a task"),
					errhint("Leave out \"id\", and the row is given the next one.  A role that"
							" may use the sequence may choose an id that this has given.")));
}

/*
 * Is this the id that the sequence has given to this session last?  If it has given none, the
 * server raises an error; this function raises another one in its place.
 */
static bool
is_own(Oid sequence, int64 id)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool own = false;
	int64 last;

	PG_TRY();
	{
		own = read_sequence(currval_oid, sequence, &last) && last == id;
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		reject_choice();
	}
	PG_END_TRY();
	return own;
}

/*
 * May the current user, who has not the rights of the table's owner, insert a row with this id?  If
 * not, an error.
 *
 * One that the sequence has not given yet: a session to which it gives that would wait for this
 * transaction.  One that was given to others: the task that had it may be gone, and tasks that
 * waited for it would wait for this one.  "moves": the row may come from another partition, and
 * then keeps its id.
 */
void
trigger_check_id(Oid relid, int64 id, bool moves)
{
	Oid sequence = find_sequence_cached(relid);

	if (!OidIsValid(sequence))
		return;
	if (is_ahead(sequence, id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only the owner of the task table may set \"id\" ahead of its sequence"),
				 errhint("Leave out \"id\", and the row is given the next one.")));
	if (!moves && pg_class_aclcheck(sequence, GetUserId(), ACL_USAGE | ACL_UPDATE) != ACLCHECK_OK &&
		!is_own(sequence, id))
		reject_choice();
}

/*
 * Set *low and *high to the ids at most so far from the last one that the sequence of the table has
 * given: before it and, because ids may count down, after it.
 */
void
trigger_recent_ids(Oid relid, int64 count, int64 *low, int64 *high)
{
	Oid sequence = find_sequence(relid);
	int64 last = 0;

	if (OidIsValid(sequence))
		(void) read_sequence(pg_sequence_last_value, sequence, &last);
	if (pg_sub_s64_overflow(last, count, low))
		*low = PG_INT64_MIN;
	if (pg_add_s64_overflow(last, count, high))
		*high = PG_INT64_MAX;
}
