/*
 * rate_table.h
 *		The rate table: what is remembered of the starts in queues with a rate.
 */
#ifndef PG_TASK_RATE_TABLE_H
#define PG_TASK_RATE_TABLE_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "task/table.h"

/* A row: what is remembered of one queue.  This file does not know what the image means. */
typedef struct RateRow
{
	const char *queue;
	const char *image;
	int length;
	TimestampTz until; /* when there is nothing left to remember; DT_NOEND: not known */
} RateRow;

extern TaskTable *rate_table_prepare(const TaskTable *table, MemoryContext context, char **fault);

extern int rate_rows_read(const TaskTable *rates, const char *from, int limit, RateRow **rows);
extern void rate_rows_write(const TaskTable *rates, const RateRow *rows, int count);
extern void rate_rows_remove(const TaskTable *rates, const RateRow *rows, int count);
extern bool rate_row_find(Oid relid, Oid owner, const char *queue, RateRow *row);

#endif /* PG_TASK_RATE_TABLE_H */
