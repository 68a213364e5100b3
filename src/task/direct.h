/*
 * direct.h
 *		Writes rows of the task table without a statement.
 */
#ifndef PG_TASK_DIRECT_H
#define PG_TASK_DIRECT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "shared/task.h"
#include "task/columns.h"
#include "task/rows.h"
#include "task/table.h"

/* The rows of a table, one at a time. */
typedef struct DirectRows
{
	Relation rel;
	BlockNumber blocks;	 /* of the table; 0: not known yet */
	Relation index;		 /* on the id; with the scan when a row is first looked for by it */
	IndexScanDesc scan;	 /* NULL: none yet */
	TupleTableSlot *old; /* the row that was found */
	TupleTableSlot *new;
} DirectRows;

extern bool direct_begin(DirectRows *rows, const TaskTable *table);
extern void direct_end(DirectRows *rows);
extern bool direct_find(DirectRows *rows, int64 id);
extern bool direct_find_at(DirectRows *rows, ItemPointerData tid);
extern Datum direct_value(TupleTableSlot *slot, TaskColumn column, bool *isnull);
extern bool direct_is_null(TupleTableSlot *slot, TaskColumn column);
extern bool direct_is_text(TupleTableSlot *slot, TaskColumn column, const char *wanted);
extern void direct_copy(DirectRows *rows);
extern void direct_set(DirectRows *rows, TaskColumn column, Datum value);
extern void direct_set_null(DirectRows *rows, TaskColumn column);
extern void direct_set_text(DirectRows *rows, TaskColumn column, const char *value);
extern bool direct_is_free(const DirectRows *rows);
extern bool direct_write(DirectRows *rows);

extern void direct_finish(const TaskTable *table, RowFinish *finishes, int count);

/* For callbacks.c. */
extern void direct_relation_invalidated(Oid relid);
extern void direct_transaction_ended(XactEvent event);

/* direct_claim.c */
extern int
direct_claim(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
			 TimestampTz claimed, Claim *claims, Candidate *left, int *nleft);

#endif /* PG_TASK_DIRECT_H */
