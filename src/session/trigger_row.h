/*
 * trigger_row.h
 *		The row that a trigger on the task table is called for.
 */
#ifndef PG_TASK_TRIGGER_ROW_H
#define PG_TASK_TRIGGER_ROW_H

#include "postgres.h"

#include "access/htup.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/rel.h"

#include "task/relation.h"

/*
 * The slot takes the row apart once, whichever columns are asked for: each INSERT of a user pays
 * for what is done here.
 */
typedef struct TriggerRow
{
	Relation rel;
	HeapTuple tuple;
	TupleTableSlot *slot;
	bool binds; /* the trigger is about to write role_id, whatever the slot has */
	int64 role_id;
} TriggerRow;

/* The ids in the column "after". */
typedef struct AfterIds
{
	int count;
	int64 *ids;
	ArrayType *array;
	bool removed; /* there is a NULL for a task that was removed: "ids" is not set */
} AfterIds;

/*
 * The numbers of the columns in the table of the last call.  Global, because each row is a call of
 * a trigger, and each of its columns is looked up here.
 */
typedef struct TriggerColumns
{
	Oid relid;				   /* InvalidOid: nothing is known */
	int numbers[TASK_COLUMNS]; /* 0: not known */
	Oid root;				   /* whose ids have the sequence, if that is known */
	bool sequence_known;
	Oid sequence; /* InvalidOid: none.  See find_sequence_cached */
} TriggerColumns;

extern TriggerColumns trigger_columns;

extern int trigger_find_column(Relation rel, TaskColumn which);
extern void trigger_reject(const TriggerRow *row, TaskColumn which, const char *rule);
extern bool trigger_same_value(const TriggerRow *old, const TriggerRow *new, TaskColumn which);
extern bool trigger_after(const TriggerRow *row, AfterIds *after);
extern void trigger_check_id(Oid relid, int64 id, bool moves);
extern void trigger_recent_ids(Oid relid, int64 count, int64 *low, int64 *high);

/* A relation has changed, or all of them: the table may have other columns now. */
static inline void
trigger_relation_invalidated(Oid relid)
{
	if (relid == trigger_columns.relid || relid == trigger_columns.root || relid == InvalidOid)
		trigger_columns.relid = InvalidOid;
}

/* The table that the scheduler knows: the root, if this is a partition. */
static inline Oid
trigger_root_table(Relation rel)
{
	Oid relid = RelationGetRelid(rel);

	return rel->rd_rel->relispartition ? relation_root(relid) : relid;
}

/* The owner of the task table: of the root, if this is a partition. */
static inline Oid
trigger_table_owner(Relation rel)
{
	return rel->rd_rel->relispartition ? relation_owner(trigger_root_table(rel))
									   : rel->rd_rel->relowner;
}

/* The number of a column.  Raises an error if this is not the column of a task table. */
static inline int
trigger_column(Relation rel, TaskColumn which)
{
	if (trigger_columns.relid == RelationGetRelid(rel) && trigger_columns.numbers[which] > 0)
		return trigger_columns.numbers[which];
	return trigger_find_column(rel, which);
}

/* The value of a column. */
static inline Datum
trigger_value(const TriggerRow *row, TaskColumn which, bool *isnull)
{
	return slot_getattr(row->slot, trigger_column(row->rel, which), isnull);
}

/* The role_id that the row is bound to; 0: none. */
static inline int64
trigger_role_id(const TriggerRow *row)
{
	bool isnull;
	Datum value;

	if (row->binds)
		return row->role_id;
	value = trigger_value(row, COLUMN_ROLE_ID, &isnull);
	return isnull ? 0 : DatumGetInt64(value);
}

static inline bool
trigger_is_null(const TriggerRow *row, TaskColumn which)
{
	return slot_attisnull(row->slot, trigger_column(row->rel, which));
}

/* Is the row in this state?  NULL is none. */
static inline bool
trigger_has_state(const TriggerRow *row, const char *state)
{
	bool isnull;
	Datum value = trigger_value(row, COLUMN_STATE, &isnull);

	return !isnull && value_is_word(value, state);
}

/* Is the task one that has not ended? */
static inline bool
trigger_is_unended(const TriggerRow *row)
{
	return trigger_has_state(row, "PLAN") || trigger_has_state(row, "WORK");
}

/* Will a chain go on after this row?  The same as REPEATS in task/rows_sql.h. */
static inline bool
trigger_repeats(const TriggerRow *row)
{
	return (!trigger_is_null(row, COLUMN_REPEAT) || !trigger_is_null(row, COLUMN_CRON)) &&
		   trigger_is_null(row, COLUMN_NEXT);
}

/* Did a row that waits not wait before, or for another role?  "old" is NULL for an INSERT. */
static inline bool
trigger_newly_planned(const TriggerRow *old, const TriggerRow *new)
{
	return old == NULL || !trigger_has_state(old, "PLAN") ||
		   !trigger_same_value(old, new, COLUMN_ROLE_ID);
}

#endif /* PG_TASK_TRIGGER_ROW_H */
