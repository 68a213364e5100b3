/*
 * result_set.h
 *		The rows that a function returns to SQL.
 */
#ifndef PG_TASK_RESULT_SET_H
#define PG_TASK_RESULT_SET_H

#include "postgres.h"

#include "fmgr.h"
#include "nodes/execnodes.h"

extern ReturnSetInfo *result_set_begin(FunctionCallInfo fcinfo);
extern TupleDesc result_row_desc(FunctionCallInfo fcinfo, int columns);
extern void result_set_check(const ReturnSetInfo *result, int columns);

#endif /* PG_TASK_RESULT_SET_H */
