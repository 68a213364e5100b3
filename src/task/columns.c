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

#define COLUMN_DEFINITION(number, name, type, flags) {name, type, flags},

const ColumnDefinition task_columns[TASK_COLUMNS] = {TASK_COLUMN_LIST(COLUMN_DEFINITION)};

const ColumnDefinition queue_columns[QUEUE_COLUMNS] = {QUEUE_COLUMN_LIST(COLUMN_DEFINITION)};

const ColumnDefinition rate_columns[RATE_COLUMNS] = {
	{"queue", TEXTOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	{"until", TIMESTAMPTZOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
	{"image", BYTEAOID, COLUMN_REQUIRED | COLUMN_NOT_NULL},
};

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
 * Why has a table not all of these columns, as our statements expect them; or, unless "whole", why
 * can it not be completed so that it has?  NULL: it has.  Everything that reads a table checks it
 * by this first, under the lock under which it reads.
 */
char *
columns_fault(Relation rel, const ColumnDefinition *columns, int count, bool whole)
{
	char *fault = NULL;
	int i;

	for (i = 0; i < count && fault == NULL; i++)
	{
		fault = column_fault(rel, &columns[i]);
		if ((whole || (columns[i].flags & COLUMN_REQUIRED)) &&
			get_attnum(RelationGetRelid(rel), columns[i].name) == InvalidAttrNumber)
			fault = psprintf("It has no column \"%s\".", columns[i].name);
	}
	return fault;
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
