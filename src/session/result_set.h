/*
 * result_set.h
 *		The rows that a function returns to SQL.
 */
#ifndef PG_TASK_RESULT_SET_H
#define PG_TASK_RESULT_SET_H

#include "postgres.h"

#include "fmgr.h"
#include "nodes/execnodes.h"

/* Most columns of a ResultRow. */
#define RESULT_ROW_MAX 21

/* A row that is filled column by column; what is not set is NULL. */
typedef struct ResultRow
{
	Datum values[RESULT_ROW_MAX];
	bool nulls[RESULT_ROW_MAX];
} ResultRow;

extern ReturnSetInfo *result_set_begin(FunctionCallInfo fcinfo, int columns);
extern TupleDesc result_row_desc(FunctionCallInfo fcinfo, int columns);

/* All columns of the row are NULL. */
static inline void
result_row_begin(ResultRow *row)
{
	memset(row->nulls, true, sizeof(row->nulls));
}

static inline void
result_row_set(ResultRow *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

#endif /* PG_TASK_RESULT_SET_H */
