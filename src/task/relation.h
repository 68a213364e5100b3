/*
 * relation.h
 *		Checks what kind of relation the task table is, and those beside it.
 */
#ifndef PG_TASK_RELATION_H
#define PG_TASK_RELATION_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"

/* clang-format off */

/*
 * The columns of the task table: what they are called here and in SQL, their types, and
 * COLUMN_REQUIRED and the like.  In the order in which CREATE TABLE lists them: see
 * pg_task_missing.
 */
#define TASK_COLUMN_LIST(X) \
	X(ID, "id", INT8OID, COLUMN_REQUIRED | COLUMN_NOT_NULL) \
	X(PARENT, "parent", INT8OID, 0) \
	X(NEXT, "next", INT8OID, 0) \
	X(DT, "dt", TIMESTAMPTZOID, COLUMN_REQUIRED | COLUMN_NOT_NULL) \
	X(PLANNED, "planned", TIMESTAMPTZOID, 0) \
	X(ANCHOR, "anchor", TIMESTAMPTZOID, 0) \
	X(QUEUE, "queue", TEXTOID, COLUMN_INHERITED | COLUMN_NOT_NULL) \
	X(MAX, "max", INT4OID, COLUMN_INHERITED) \
	X(PRIORITY, "priority", INT4OID, COLUMN_INHERITED | COLUMN_NOT_NULL) \
	X(ROLE, "role", NAMEOID, COLUMN_INHERITED | COLUMN_NOT_NULL) \
	X(ROLE_ID, "role_id", INT8OID, COLUMN_OF_SCHEDULE | COLUMN_NOT_NULL) \
	X(REQUEST, "request", TEXTOID, COLUMN_REQUIRED | COLUMN_INHERITED | COLUMN_NOT_NULL) \
	X(FAILED, "failed", INT4OID, 0) \
	X(CRASHED, "crashed", INT4OID, 0) \
	X(RETRY, "retry", INT4OID, COLUMN_INHERITED) \
	X(DELAY, "delay", INTERVALOID, COLUMN_INHERITED) \
	X(BACKOFF, "backoff", FLOAT4OID, COLUMN_INHERITED) \
	X(TIMEOUT, "timeout", INTERVALOID, COLUMN_INHERITED) \
	X(ACTIVE, "active", INTERVALOID, COLUMN_INHERITED) \
	X(REPEAT, "repeat", INTERVALOID, COLUMN_OF_SCHEDULE) \
	X(DRIFT, "drift", BOOLOID, COLUMN_OF_SCHEDULE | COLUMN_NOT_NULL) \
	X(CRON, "cron", TEXTOID, COLUMN_OF_SCHEDULE) \
	X(TIMEZONE, "timezone", TEXTOID, COLUMN_OF_SCHEDULE) \
	X(MISSED, "missed", TEXTOID, COLUMN_OF_SCHEDULE) \
	X(REPEAT_UNTIL, "repeat_until", TIMESTAMPTZOID, COLUMN_OF_SCHEDULE) \
	X(RUNS_LEFT, "runs_left", INT4OID, 0) \
	X(HOLD, "hold", TEXTOID, 0) \
	X(HOLD_AFTER, "hold_after", INT4OID, COLUMN_OF_SCHEDULE) \
	X(STREAK, "streak", INT4OID, COLUMN_OF_SCHEDULE) \
	X(ON_FAILURE, "on_failure", TEXTOID, COLUMN_INHERITED) \
	X(KEEP, "keep", INTERVALOID, COLUMN_INHERITED) \
	X(KEY, "key", TEXTOID, COLUMN_OF_SCHEDULE) \
	X(AFTER, "after", INT8ARRAYOID, 0) \
	X(RULE, "rule", TEXTOID, 0) \
	X(WAITS, "waits", INT8OID, 0) \
	X(NOTIFY, "notify", TEXTOID, COLUMN_INHERITED) \
	X(FORMAT, "format", TEXTOID, COLUMN_INHERITED) \
	X(INPUT, "input", JSONBOID, COLUMN_OF_SCHEDULE) \
	X(FLOW, "flow", TEXTOID, COLUMN_INHERITED) \
	X(STEP, "step", TEXTOID, 0) \
	X(NEEDS, "needs", TEXTARRAYOID, 0) \
	X(META, "meta", JSONBOID, COLUMN_INHERITED) \
	X(LOST, "lost", INT4OID, 0) \
	X(START, "start", TIMESTAMPTZOID, COLUMN_EXACT) \
	X(STOP, "stop", TIMESTAMPTZOID, 0) \
	X(PID, "pid", INT4OID, 0) \
	X(ATTEMPT, "attempt", INT4OID, COLUMN_REQUIRED | COLUMN_NOT_NULL) \
	X(STATE, "state", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL) \
	X(RESPONSE, "response", TEXTOID, 0) \
	X(ERROR, "error", TEXTOID, 0) \
	X(SQLSTATE, "sqlstate", TEXTOID, 0) \
	X(NOTICE, "notice", TEXTOID, 0) \
	X(FAILURES, "failures", JSONBOID, 0) \
	X(LEASE, "lease", INT4OID, 0)

/* The same of the queue table. */
#define QUEUE_COLUMN_LIST(X) \
	X(QUEUE, "queue", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL) \
	X(PAUSED, "paused", BOOLOID, COLUMN_REQUIRED) \
	X(MAX, "max", INT4OID, 0) \
	X(RATE, "rate", INT4OID, 0) \
	X(PER, "per", INTERVALOID, 0) \
	X(UNTIL, "until", TIMESTAMPTZOID, 0) \
	X(STRICT, "strict", BOOLOID, 0) \
	X(FAIR, "fair", BOOLOID, 0) \
	X(RETRY, "retry", INT4OID, 0) \
	X(DELAY, "delay", INTERVALOID, 0) \
	X(BACKOFF, "backoff", FLOAT4OID, 0) \
	X(TIMEOUT, "timeout", INTERVALOID, 0) \
	X(ACTIVE, "active", INTERVALOID, 0) \
	X(KEEP, "keep", INTERVALOID, 0) \
	X(BATCH, "batch", INT4OID, 0) \
	X(TOTAL, "total", INT4OID, 0) \
	X(TAKER, "taker", NAMEOID, 0) \
	X(COMMENT, "comment", TEXTOID, 0)

/* clang-format on */

#define TASK_COLUMN_NUMBER(number, name, type, flags) COLUMN_##number,
#define QUEUE_COLUMN_NUMBER(number, name, type, flags) QUEUE_##number,

typedef enum TaskColumn
{
	TASK_COLUMN_LIST(TASK_COLUMN_NUMBER) TASK_COLUMNS
} TaskColumn;

typedef enum QueueColumn
{
	QUEUE_COLUMN_LIST(QUEUE_COLUMN_NUMBER) QUEUE_COLUMNS
} QueueColumn;

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

/* Likewise; but one run of the schedule beside it does not. */
#define COLUMN_OF_SCHEDULE (COLUMN_INHERITED | 16)

/* It must not round what is written, which is compared later. */
#define COLUMN_EXACT 4

/* It has no NULL: what reads it knows none. */
#define COLUMN_NOT_NULL 8

extern const ColumnDefinition task_columns[TASK_COLUMNS];
extern const ColumnDefinition queue_columns[QUEUE_COLUMNS];

/* Does a column that has one of these types round the times that are written into it? */
static inline bool
column_rounds(Form_pg_attribute attribute)
{
	return attribute->atttypmod >= 0 && attribute->atttypmod < MAX_TIMESTAMP_PRECISION;
}

/* Is a text, which is not NULL, this word?  Inline, so that the length of a literal is known. */
static inline bool
value_is_word(Datum value, const char *word)
{
	text *found = DatumGetTextPP(value);

	return VARSIZE_ANY_EXHDR(found) == strlen(word) &&
		   memcmp(VARDATA_ANY(found), word, strlen(word)) == 0;
}

extern char *columns_fault(Relation rel, const ColumnDefinition *columns, int count, bool whole);

/*
 * Raised when the task table has changed: the caller repeats its work, and reports no error.  No
 * request and no trigger can raise this: RAISE takes upper-case letters only.
 */
#define ERRCODE_TABLE_CHANGED MAKE_SQLSTATE('p', 't', '0', '0', '1')

extern void relation_lock(Oid relid, LOCKMODE mode);
extern Oid relation_root(Oid relid);
extern List *relation_members(Relation rel);
extern List *relation_parents(Oid relid);
extern Oid relation_owner(Oid relid);
extern char *relation_fault(Relation rel, const ColumnDefinition *columns, int count);
extern bool relation_is_rekgrpth(Relation rel);

/* The tables beside the task table. */
typedef enum SideKind
{
	SIDE_QUEUE,
	SIDE_RATE,
	SIDE_TABLES
} SideKind;

extern char *side_table_name(SideKind kind, Oid task);
extern Oid side_table_find(SideKind kind, Oid task);
extern Relation side_table_open(SideKind kind, Oid task, Oid owner, bool wait, const char **fault);

#endif /* PG_TASK_RELATION_H */
