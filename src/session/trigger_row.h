/*
 * trigger_row.h
 *		The row that a trigger on the task table is called for.
 */
#ifndef PG_TASK_TRIGGER_ROW_H
#define PG_TASK_TRIGGER_ROW_H

#include "postgres.h"

#include "access/htup.h"
#include "utils/rel.h"

#include "task/columns.h"

typedef struct TriggerRow
{
	Relation rel;
	HeapTuple tuple;
} TriggerRow;

extern int trigger_column(TupleDesc desc, TaskColumn which);
extern Datum trigger_value(const TriggerRow *row, TaskColumn which, bool *isnull);
extern bool trigger_is_null(const TriggerRow *row, TaskColumn which);
extern int64 trigger_role_id(const TriggerRow *row);
extern bool trigger_has_state(const TriggerRow *row, const char *state);
extern bool trigger_same_value(const TriggerRow *old, const TriggerRow *new, TaskColumn which);
extern Oid trigger_root_table(Relation rel);
extern Oid trigger_table_owner(Relation rel);

#endif /* PG_TASK_TRIGGER_ROW_H */
