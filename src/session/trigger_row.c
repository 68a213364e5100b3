/*
 * trigger_row.c
 *		Reads the columns of a row that a trigger on the task table is called for.
 *
 * Anybody may put these triggers on any table: every access to a column checks its
 * name and type.
 *
 * This file decides nothing and changes nothing.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/syscache.h"

#include "session/trigger_row.h"
#include "task/relation.h"
#include "task/roles.h"

TriggerColumns trigger_columns;

/* A relation has changed, or all of them: the table may have other columns now. */
void
trigger_row_relation_invalidated(Oid relid)
{
	if (relid == trigger_columns.relid || relid == trigger_columns.root || relid == InvalidOid)
		trigger_columns.relid = InvalidOid;
}

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

/* The role_id that the row is bound to; 0: none. */
int64
trigger_role_id(const TriggerRow *row)
{
	bool isnull;
	Datum value;

	if (row->binds)
		return row->role_id;
	value = trigger_value(row, COLUMN_ROLE_ID, &isnull);
	return isnull ? 0 : DatumGetInt64(value);
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

/* Will a chain go on after this row?  The same as REPEATS in task/rows_sql.h. */
bool
trigger_repeats(const TriggerRow *row)
{
	return (!trigger_is_null(row, COLUMN_REPEAT) || !trigger_is_null(row, COLUMN_CRON)) &&
		   trigger_is_null(row, COLUMN_NEXT);
}

/* The table that the scheduler knows: the root, if this is a partition. */
Oid
trigger_root_table(Relation rel)
{
	if (!rel->rd_rel->relispartition)
		return RelationGetRelid(rel);
	return relation_root(RelationGetRelid(rel));
}

/* The owner of the task table: of the root, if this is a partition. */
Oid
trigger_table_owner(Relation rel)
{
	HeapTuple tuple;
	Oid owner;

	if (!rel->rd_rel->relispartition)
		return rel->rd_rel->relowner;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(trigger_root_table(rel)));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", trigger_root_table(rel));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}
