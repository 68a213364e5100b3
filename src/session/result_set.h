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

/* What the catalog says of a database, about which there is a row. */
typedef struct ResultDatabase
{
	NameData name;
	int encoding;
	bool is_open; /* the caller is a member of its owner, or of pg_read_all_stats */
} ResultDatabase;

extern ReturnSetInfo *result_set_begin(FunctionCallInfo fcinfo, int columns);
extern TupleDesc result_row_desc(FunctionCallInfo fcinfo, int columns);
extern void result_row_begin(ResultRow *row);
extern void result_row_set(ResultRow *row, int column, Datum value);
extern void result_row_set_name(ResultRow *row, int column, const char *name);
extern void result_row_end(ResultRow *row, const ReturnSetInfo *result);
extern text *result_text(const char *string, int encoding);
extern bool result_database_find(Oid oid, ResultDatabase *database);

#endif /* PG_TASK_RESULT_SET_H */
