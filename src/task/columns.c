/*
 * columns.c
 *		The columns of the task table and of those beside it, and whether a table has them as they
 *		are to be: the definition of a table is hostile input.
 *
 * The check of an existing table and the triggers use these lists.  What makes the columns is
 * pg_task_missing, in the script of the extension.  The statements in rows_*.c name columns
 * themselves.
 *
 * This file reads catalogs and changes nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "task/columns.h"

/* clang-format off */
const ColumnDefinition task_columns[TASK_COLUMNS] = {
	[COLUMN_ID] = {"id", INT8OID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	[COLUMN_PARENT] = {"parent", INT8OID, 0},
	[COLUMN_NEXT] = {"next", INT8OID, 0},
	[COLUMN_DT] = {"dt", TIMESTAMPTZOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	[COLUMN_PLANNED] = {"planned", TIMESTAMPTZOID, 0},
	[COLUMN_ANCHOR] = {"anchor", TIMESTAMPTZOID, 0},
	[COLUMN_QUEUE] = {"queue", TEXTOID, COLUMN_INHERITED | COLUMN_NOT_NULL},
	[COLUMN_MAX] = {"max", INT4OID, COLUMN_INHERITED},
	[COLUMN_PRIORITY] = {"priority", INT4OID, COLUMN_INHERITED | COLUMN_NOT_NULL},
	[COLUMN_ROLE] = {"role", NAMEOID, COLUMN_INHERITED | COLUMN_NOT_NULL},
	[COLUMN_ROLE_ID] = {"role_id", INT8OID, COLUMN_INHERITED | COLUMN_NOT_NULL},
	[COLUMN_REQUEST] = {"request", TEXTOID, COLUMN_REQUIRED | COLUMN_INHERITED | COLUMN_NOT_NULL},
	[COLUMN_FAILED] = {"failed", INT4OID, COLUMN_NOT_NULL},
	[COLUMN_CRASHED] = {"crashed", INT4OID, COLUMN_NOT_NULL},
	[COLUMN_RETRY] = {"retry", INT4OID, COLUMN_INHERITED},
	[COLUMN_DELAY] = {"delay", INTERVALOID, COLUMN_INHERITED},
	[COLUMN_BACKOFF] = {"backoff", FLOAT4OID, COLUMN_INHERITED},
	[COLUMN_TIMEOUT] = {"timeout", INTERVALOID, COLUMN_INHERITED},
	[COLUMN_ACTIVE] = {"active", INTERVALOID, COLUMN_INHERITED},
	[COLUMN_REPEAT] = {"repeat", INTERVALOID, COLUMN_INHERITED},
	[COLUMN_DRIFT] = {"drift", BOOLOID, COLUMN_INHERITED | COLUMN_NOT_NULL},
	[COLUMN_CRON] = {"cron", TEXTOID, COLUMN_INHERITED},
	[COLUMN_TIMEZONE] = {"timezone", TEXTOID, COLUMN_INHERITED},
	[COLUMN_MISSED] = {"missed", TEXTOID, COLUMN_INHERITED},
	[COLUMN_KEEP] = {"keep", INTERVALOID, COLUMN_INHERITED},
	[COLUMN_KEY] = {"key", TEXTOID, COLUMN_INHERITED},
	[COLUMN_AFTER] = {"after", INT8ARRAYOID, 0},
	[COLUMN_RULE] = {"rule", TEXTOID, 0},
	[COLUMN_WAITS] = {"waits", INT8OID, 0},
	[COLUMN_NOTIFY] = {"notify", TEXTOID, COLUMN_INHERITED},
	[COLUMN_FORMAT] = {"format", TEXTOID, COLUMN_INHERITED},
	[COLUMN_REMOTE] = {"remote", TEXTOID, COLUMN_INHERITED},
	[COLUMN_INPUT] = {"input", JSONBOID, COLUMN_INHERITED},
	[COLUMN_FLOW] = {"flow", TEXTOID, COLUMN_INHERITED},
	[COLUMN_STEP] = {"step", TEXTOID, 0},
	[COLUMN_NEEDS] = {"needs", TEXTARRAYOID, 0},
	[COLUMN_START] = {"start", TIMESTAMPTZOID, COLUMN_EXACT},
	[COLUMN_STOP] = {"stop", TIMESTAMPTZOID, 0},
	[COLUMN_PID] = {"pid", INT4OID, 0},
	[COLUMN_ATTEMPT] = {"attempt", INT4OID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	[COLUMN_STATE] = {"state", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	[COLUMN_RESPONSE] = {"response", TEXTOID, 0},
	[COLUMN_ERROR] = {"error", TEXTOID, 0},
	[COLUMN_SQLSTATE] = {"sqlstate", TEXTOID, 0},
	[COLUMN_NOTICE] = {"notice", TEXTOID, 0},
};

const ColumnDefinition queue_columns[QUEUE_COLUMNS] = {
	[QUEUE_QUEUE] = {"queue", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	[QUEUE_PAUSED] = {"paused", BOOLOID, COLUMN_REQUIRED},
	[QUEUE_MAX] = {"max", INT4OID, 0},
	[QUEUE_RATE] = {"rate", INT4OID, 0},
	[QUEUE_PER] = {"per", INTERVALOID, 0},
	[QUEUE_UNTIL] = {"until", TIMESTAMPTZOID, 0},
	[QUEUE_STRICT] = {"strict", BOOLOID, 0},
	[QUEUE_FAIR] = {"fair", BOOLOID, 0},
	[QUEUE_RETRY] = {"retry", INT4OID, 0},
	[QUEUE_DELAY] = {"delay", INTERVALOID, 0},
	[QUEUE_BACKOFF] = {"backoff", FLOAT4OID, 0},
	[QUEUE_TIMEOUT] = {"timeout", INTERVALOID, 0},
	[QUEUE_ACTIVE] = {"active", INTERVALOID, 0},
	[QUEUE_KEEP] = {"keep", INTERVALOID, 0},
	[QUEUE_BATCH] = {"batch", INT4OID, 0},
	[QUEUE_COMMENT] = {"comment", TEXTOID, 0},
};

const ColumnDefinition rate_columns[RATE_COLUMNS] = {
	{"queue", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	{"until", TIMESTAMPTZOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	{"image", BYTEAOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
};
/* clang-format on */

static bool
column_exists(Oid relid, const ColumnDefinition *column)
{
	return get_attnum(relid, column->name) != InvalidAttrNumber;
}

/* Does a column that has one of these types round the times that are written into it? */
bool
column_rounds(Form_pg_attribute attribute)
{
	return attribute->atttypmod >= 0 && attribute->atttypmod < MAX_TIMESTAMP_PRECISION;
}

/* Why can this column of a relation not be used?  NULL: it can, or it does not exist. */
static char *
column_fault(Relation rel, const ColumnDefinition *column)
{
	TupleDesc desc = RelationGetDescr(rel);
	AttrNumber number = get_attnum(RelationGetRelid(rel), column->name);
	Form_pg_attribute att;

	if (number == InvalidAttrNumber)
		return NULL;
	att = TupleDescAttr(desc, number - 1);
	if (att->atttypid != column->type || ((column->flags & COLUMN_EXACT) && column_rounds(att)))
		return psprintf("The type of its column \"%s\" is another.", column->name);
	if ((column->flags & COLUMN_NOT_NULL) && !COMPAT_NOT_NULL(desc, number - 1))
		return psprintf("Its column \"%s\" may be NULL.", column->name);
	if (att->attgenerated)
		return psprintf("Its column \"%s\" is generated.", column->name);
	if (OidIsValid(att->attcollation) && !get_collation_isdeterministic(att->attcollation))
		return psprintf("The collation of its column \"%s\" is not deterministic.", column->name);
	return NULL;
}

/*
 * Why can a table not be completed so that it has these columns?  NULL: it can.  Everything that
 * reads a table checks it by this first, under the lock under which it reads.
 */
char *
columns_fault(Relation rel, const ColumnDefinition *columns, int count)
{
	char *fault = NULL;
	int i;

	for (i = 0; i < count && fault == NULL; i++)
	{
		fault = column_fault(rel, &columns[i]);
		if ((columns[i].flags & COLUMN_REQUIRED) &&
			!column_exists(RelationGetRelid(rel), &columns[i]))
			fault = psprintf("It has no column \"%s\".", columns[i].name);
	}
	return fault;
}

/* Does the table have all these columns, as our statements expect them? */
bool
columns_complete(Relation rel, const ColumnDefinition *columns, int count)
{
	int i;

	for (i = 0; i < count; i++)
		if (!column_exists(RelationGetRelid(rel), &columns[i]))
			return false;
	return columns_fault(rel, columns, count) == NULL;
}

/* Does a value in a column of this name belong to one run, so that the next row starts without it?
 */
static bool
belongs_to_run(const char *name)
{
	TaskColumn which;

	for (which = 0; which < TASK_COLUMNS; which++)
		if (strcmp(name, task_columns[which].name) == 0)
			return (task_columns[which].flags & COLUMN_INHERITED) == 0;
	return false;
}

/* List, for SQL, the columns that are copied to the next row of a repeating task. */
char *
columns_inherited(Relation rel)
{
	TupleDesc desc = RelationGetDescr(rel);
	StringInfoData list;
	int i;

	initStringInfo(&list);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || att->attgenerated || att->attidentity ||
			belongs_to_run(NameStr(att->attname)))
			continue;
		appendStringInfo(&list, "%s%s", list.len ? ", " : "",
						 quote_identifier(NameStr(att->attname)));
	}
	return list.data;
}
