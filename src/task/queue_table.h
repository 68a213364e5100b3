/*
 * queue_table.h
 *		The queue table: what belongs to a queue and not to a task.
 */
#ifndef PG_TASK_QUEUE_TABLE_H
#define PG_TASK_QUEUE_TABLE_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "shared/task.h"
#include "task/columns.h"
#include "task/table.h"

/* In the order in which CREATE TABLE lists them. */
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

extern const ColumnDefinition queue_columns[QUEUE_COLUMNS];

/* At most this many rows are read: they take some 300 bytes of memory each, twice while reading. */
#define QUEUE_ROWS_MAX 250000

/* A row of the queue table.  A negative number says nothing, unless stated otherwise. */
typedef struct QueueRule
{
	char *queue;  /* a name, or a pattern */
	bool pattern; /* LIKE */
	bool paused;
	int max;
	int rate;
	int64 per;		   /* us */
	TimestampTz until; /* DT_NOBEGIN: says nothing */
	bool strict;
	bool fair;
	TaskDefaults defaults;
} QueueRule;

/* All rows of the queue table. */
typedef struct QueueRows
{
	QueueRule *rules;
	int count;
	BlockNumber pages; /* of the table */
} QueueRows;

/* What was found under the name of the queue table. */
typedef struct QueueTable
{
	Oid relid;		   /* the relation of that name; InvalidOid: there is none */
	const char *name;  /* qualified and quoted */
	const char *fault; /* why it is not used; NULL: it is */
} QueueTable;

extern QueueTable queue_table_prepare(const TaskTable *table);
extern bool queue_table_changed(void);
extern void queue_table_relation_invalidated(Oid relid); /* for pg_task.c */
extern bool queue_is_pattern(const char *queue);
extern bool queue_pattern_is_valid(const char *pattern);
extern bool queue_table_find(Oid relid, Oid owner, const char *queue, QueueRule *rule);
extern bool queue_table_read(Oid relid, MemoryContext where, QueueRows *rows);

#endif /* PG_TASK_QUEUE_TABLE_H */
