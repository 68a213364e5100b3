/*
 * columns.h
 *		The columns of the task table and of those beside it.
 */
#ifndef PG_TASK_COLUMNS_H
#define PG_TASK_COLUMNS_H

#include "postgres.h"

#include "utils/rel.h"

/* In the order in which CREATE TABLE lists them: see pg_task_missing. */
typedef enum TaskColumn
{
	COLUMN_ID,
	COLUMN_PARENT,
	COLUMN_NEXT,
	COLUMN_DT,
	COLUMN_PLANNED,
	COLUMN_ANCHOR,
	COLUMN_QUEUE,
	COLUMN_MAX,
	COLUMN_PRIORITY,
	COLUMN_ROLE,
	COLUMN_ROLE_ID,
	COLUMN_REQUEST,
	COLUMN_FAILED,
	COLUMN_CRASHED,
	COLUMN_RETRY,
	COLUMN_DELAY,
	COLUMN_BACKOFF,
	COLUMN_TIMEOUT,
	COLUMN_ACTIVE,
	COLUMN_REPEAT,
	COLUMN_DRIFT,
	COLUMN_CRON,
	COLUMN_TIMEZONE,
	COLUMN_MISSED,
	COLUMN_KEEP,
	COLUMN_KEY,
	COLUMN_AFTER,
	COLUMN_RULE,
	COLUMN_WAITS,
	COLUMN_NOTIFY,
	COLUMN_FORMAT,
	COLUMN_REMOTE,
	COLUMN_INPUT,
	COLUMN_FLOW,
	COLUMN_STEP,
	COLUMN_NEEDS,
	COLUMN_START,
	COLUMN_STOP,
	COLUMN_PID,
	COLUMN_ATTEMPT,
	COLUMN_STATE,
	COLUMN_RESPONSE,
	COLUMN_ERROR,
	COLUMN_SQLSTATE,
	COLUMN_NOTICE,
	TASK_COLUMNS
} TaskColumn;

/* The columns of the queue table. */
typedef enum QueueColumn
{
	QUEUE_QUEUE,
	QUEUE_PAUSED,
	QUEUE_MAX,
	QUEUE_RATE,
	QUEUE_PER,
	QUEUE_UNTIL,
	QUEUE_STRICT,
	QUEUE_FAIR,
	QUEUE_RETRY,
	QUEUE_DELAY,
	QUEUE_BACKOFF,
	QUEUE_TIMEOUT,
	QUEUE_ACTIVE,
	QUEUE_KEEP,
	QUEUE_BATCH,
	QUEUE_COMMENT,
	QUEUE_COLUMNS
} QueueColumn;

#define RATE_COLUMNS 3

typedef struct ColumnDefinition
{
	const char *name;
	Oid type;
	int flags; /* COLUMN_REQUIRED and the like */
} ColumnDefinition;

/* A table without this column is another table; any other column is added. */
#define COLUMN_REQUIRED 1

/* The next row of a repeating task inherits the value, as it does of columns of the user's own. */
#define COLUMN_INHERITED 2

/* It must not round what is written, which is compared later. */
#define COLUMN_EXACT 4

/* It has no NULL: what reads it knows none. */
#define COLUMN_NOT_NULL 8

extern const ColumnDefinition task_columns[TASK_COLUMNS];
extern const ColumnDefinition queue_columns[QUEUE_COLUMNS];
extern const ColumnDefinition rate_columns[RATE_COLUMNS];

extern bool column_rounds(Form_pg_attribute attribute);
extern char *columns_fault(Relation rel, const ColumnDefinition *columns, int count);
extern bool columns_complete(Relation rel, const ColumnDefinition *columns, int count);
extern char *columns_inherited(Relation rel);

#endif /* PG_TASK_COLUMNS_H */
