/*
 * result.c
 *		Formats rows and errors as text.
 *
 * Rows are formatted as they arrive and are never stored.  This file runs nothing and does not
 * know the task table.  The caller passes the limits.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "parser/parse_coerce.h"
#include "access/transam.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "executor/result.h"

/* What is needed to write the values of a column. */
typedef struct ResultColumn
{
	FmgrInfo output;
	Oid type;	  /* a domain's base type */
	Oid element;  /* of an array */
	Oid cast;	  /* function to json, if the type has one */
	bool is_json; /* its text is JSON already */
	bool is_row;
} ResultColumn;

struct ResultReceiver
{
	DestReceiver destination; /* must be first */
	ResultText *result;
	ResultFormat format;
	bool received;
	uint64 rows;			   /* of this statement */
	TupleDesc desc;			   /* the statement's */
	ResultColumn *columns;	   /* in "context" */
	MemoryContext context;	   /* for one statement */
	MemoryContext row_context; /* for one row */
};

void
result_init(ResultText *result, int limit)
{
	initStringInfo(&result->text);
	result->limit = limit;
	result->dropped = 0;
	result->any = false;
}

/* Append up to the limit, without splitting a character. */
void
result_put(ResultText *result, const char *data, int length)
{
	int room = result->limit - result->text.len;
	int kept = length;

	if (result->dropped > 0)
		kept = 0;
	else if (length > room)
		kept = pg_mbcliplen(data, length, Max(room, 0));
	if (kept > 0)
		appendBinaryStringInfo(&result->text, data, kept);
	result->dropped += length - kept;
}

static void
result_put_string(ResultText *result, const char *string)
{
	result_put(result, string, (int) strlen(string));
}

/* Return the text.  If bytes were dropped, append a line that says how many. */
const char *
result_text(ResultText *result)
{
	if (result->dropped > 0)
	{
		appendStringInfo(&result->text, "\n(" UINT64_FORMAT " bytes cut)", result->dropped);
		result->dropped = 0;
	}
	return result->text.data;
}

/* Copy a text, cut at the limit in the same way. */
char *
result_cut(const char *text, int limit)
{
	ResultText result;

	result_init(&result, limit);
	result_put(&result, text, strlen(text));
	return (char *) result_text(&result);
}

/* Lines are separated, not ended, by a newline. */
void
result_start_line(ResultText *result)
{
	if (result->any)
		result_put(result, "\n", 1);
	result->any = true;
}

void
result_put_line(ResultText *result, const char *line)
{
	result_start_line(result);
	result_put_string(result, line);
}

/* The short name of a type, such as int4, text, timestamptz, int4[]. */
static char *
type_name(Oid type)
{
	Oid element = get_element_type(type);
	HeapTuple tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(element ? element : type));
	char *name;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", type);
	name =
		psprintf("%s%s", NameStr(((Form_pg_type) GETSTRUCT(tuple))->typname), element ? "[]" : "");
	ReleaseSysCache(tuple);
	return name;
}

static void
describe_column(ResultColumn *column, Form_pg_attribute att, ResultFormat format)
{
	Oid function;
	bool is_varlena;

	getTypeOutputInfo(att->atttypid, &function, &is_varlena);
	fmgr_info(function, &column->output);
	if (format != RESULT_JSON)
		return;
	column->type = getBaseType(att->atttypid);
	column->element = get_element_type(column->type);
	column->is_json = column->type == JSONOID || column->type == JSONBOID;
	column->is_row = type_is_rowtype(column->type);
	if (column->type >= FirstNormalObjectId && !OidIsValid(column->element) && !column->is_row &&
		find_coercion_pathway(JSONOID, column->type, COERCION_EXPLICIT, &function) !=
			COERCION_PATH_FUNC)
		function = InvalidOid;
	else if (column->type < FirstNormalObjectId || OidIsValid(column->element) || column->is_row)
		function = InvalidOid;
	column->cast = function;
}

/* Write a value as COPY does in CSV format: quoted if necessary. */
static void
put_csv_value(ResultText *result, const char *value, bool alone)
{
	const char *quote;

	if (*value != '\0' && strpbrk(value, ",\"\r\n") == NULL &&
		!(alone && strcmp(value, "\\.") == 0))
	{
		result_put_string(result, value);
		return;
	}
	result_put(result, "\"", 1);
	while ((quote = strchr(value, '"')) != NULL)
	{
		result_put(result, value, (int) (quote - value) + 1);
		result_put(result, "\"", 1);
		value = quote + 1;
	}
	result_put_string(result, value);
	result_put(result, "\"", 1);
}

static bool
is_number(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID || type == FLOAT4OID ||
		   type == FLOAT8OID || type == NUMERICOID;
}

/* Is the text of this number valid in JSON?  NaN and Infinity are not. */
static bool
is_json_number(const char *value)
{
	if (*value == '-')
		value++;
	return *value >= '0' && *value <= '9';
}

static void
append_json_datum(StringInfo row, Datum json)
{
	text *value = DatumGetTextPP(json);

	appendBinaryStringInfo(row, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
}

/* Write a value as to_json does. */
static void
append_json_value(StringInfo row, ResultColumn *column, Datum value)
{
	char buffer[MAXDATELEN + 1];
	char *text;

	if (OidIsValid(column->element))
		append_json_datum(row, DirectFunctionCall1(array_to_json, value));
	else if (column->is_row)
		append_json_datum(row, DirectFunctionCall1(row_to_json, value));
	else if (OidIsValid(column->cast))
		append_json_datum(row, OidFunctionCall1(column->cast, value));
	else if (column->type == DATEOID || column->type == TIMESTAMPOID ||
			 column->type == TIMESTAMPTZOID)
		appendStringInfo(row, "\"%s\"", JsonEncodeDateTime(buffer, value, column->type, NULL));
	else if (column->type == BOOLOID)
		appendStringInfoString(row, DatumGetBool(value) ? "true" : "false");
	else
	{
		text = OutputFunctionCall(&column->output, value);
		if (column->is_json || (is_number(column->type) && is_json_number(text)))
			appendStringInfoString(row, text);
		else
			escape_json(row, text);
	}
}

/*
 * Write the header: in CSV the column names; in text format "name::type", if there is more than
 * one column.
 */
static void
put_header(ResultReceiver *receiver, TupleDesc desc)
{
	ResultText *result = receiver->result;
	int i;

	result_start_line(result);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *name = NameStr(att->attname);

		if (i > 0)
			result_put(result, receiver->format == RESULT_CSV ? "," : "\t", 1);
		if (receiver->format == RESULT_CSV)
			put_csv_value(result, name, desc->natts == 1);
		else
			result_put_string(result, psprintf("%s::%s", name, type_name(att->atttypid)));
	}
}

static void
start_rows(DestReceiver *self, int operation pg_attribute_unused(), TupleDesc desc)
{
	ResultReceiver *receiver = (ResultReceiver *) self;
	MemoryContext old;
	int i;

	MemoryContextReset(receiver->context);
	old = MemoryContextSwitchTo(receiver->context);
	receiver->received = true;
	receiver->rows = 0;
	receiver->desc = desc;
	receiver->columns = palloc0(Max(desc->natts, 1) * sizeof(ResultColumn));
	for (i = 0; i < desc->natts; i++)
		describe_column(&receiver->columns[i], TupleDescAttr(desc, i), receiver->format);
	if (receiver->format == RESULT_JSON)
		result_put_line(receiver->result, "[");
	else if (desc->natts > 1 || receiver->format == RESULT_CSV)
		put_header(receiver, desc);
	MemoryContextSwitchTo(old);
}

static void
put_text_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	ResultText *result = receiver->result;
	int i;

	result_start_line(result);
	for (i = 0; i < receiver->desc->natts; i++)
	{
		if (i > 0)
			result_put(result, "\t", 1);
		if (slot->tts_isnull[i])
			result_put(result, "\\N", 2);
		else
			result_put_string(
				result, OutputFunctionCall(&receiver->columns[i].output, slot->tts_values[i]));
	}
}

static void
put_csv_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	ResultText *result = receiver->result;
	int natts = receiver->desc->natts;
	int i;

	result_start_line(result);
	for (i = 0; i < natts; i++)
	{
		if (i > 0)
			result_put(result, ",", 1);
		if (!slot->tts_isnull[i])
			put_csv_value(result,
						  OutputFunctionCall(&receiver->columns[i].output, slot->tts_values[i]),
						  natts == 1);
	}
}

static void
put_json_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	ResultText *result = receiver->result;
	StringInfoData row;
	int i;

	initStringInfo(&row);
	appendStringInfoString(&row, receiver->rows > 0 ? ",\n {" : "{");
	for (i = 0; i < receiver->desc->natts; i++)
	{
		if (i > 0)
			appendStringInfoChar(&row, ',');
		escape_json(&row, NameStr(TupleDescAttr(receiver->desc, i)->attname));
		appendStringInfoChar(&row, ':');
		if (slot->tts_isnull[i])
			appendStringInfoString(&row, "null");
		else
			append_json_value(&row, &receiver->columns[i], slot->tts_values[i]);
	}
	appendStringInfoChar(&row, '}');
	result_put(result, row.data, row.len);
}

static bool
put_row(TupleTableSlot *slot, DestReceiver *self)
{
	ResultReceiver *receiver = (ResultReceiver *) self;
	MemoryContext old = MemoryContextSwitchTo(receiver->row_context);

	slot_getallattrs(slot);
	if (receiver->format == RESULT_JSON)
		put_json_row(receiver, slot);
	else if (receiver->format == RESULT_CSV)
		put_csv_row(receiver, slot);
	else
		put_text_row(receiver, slot);
	receiver->rows++;
	MemoryContextSwitchTo(old);
	MemoryContextReset(receiver->row_context);
	return true;
}

static void
end_rows(DestReceiver *self)
{
	ResultReceiver *receiver = (ResultReceiver *) self;

	if (receiver->format == RESULT_JSON)
		result_put(receiver->result, "]", 1);
}

static void
destroy_receiver(DestReceiver *self pg_attribute_unused())
{
}

/* Create a receiver in the current memory context. */
ResultReceiver *
result_receiver(ResultText *result, ResultFormat format)
{
	ResultReceiver *receiver = palloc0(sizeof(ResultReceiver));

	receiver->destination.receiveSlot = put_row;
	receiver->destination.rStartup = start_rows;
	receiver->destination.rShutdown = end_rows;
	receiver->destination.rDestroy = destroy_receiver;
	receiver->destination.mydest = DestNone;
	receiver->result = result;
	receiver->format = format;
	receiver->context =
		AllocSetContextCreate(CurrentMemoryContext, "pg_task result", ALLOCSET_DEFAULT_SIZES);
	receiver->row_context =
		AllocSetContextCreate(CurrentMemoryContext, "pg_task row", ALLOCSET_DEFAULT_SIZES);
	return receiver;
}

DestReceiver *
result_destination(ResultReceiver *receiver)
{
	return &receiver->destination;
}

/* Has a row type, perhaps with rows, been received since the last call? */
bool
result_received(ResultReceiver *receiver)
{
	bool received = receiver->received;

	receiver->received = false;
	return received;
}

static void
append_field(StringInfo text, const char *label, const char *value)
{
	if (value)
		appendStringInfo(text, "\n%s:  %s", label, value);
}

static void
put_field(ResultText *text, const char *label, const char *value)
{
	if (value == NULL)
		return;
	result_put_string(text, "\n");
	result_put_string(text, label);
	result_put_string(text, ":  ");
	result_put_string(text, value);
}

/* Widths that psql uses to display an error position. */
#define LINE_WIDTH 60
#define MIN_RIGHT 10

/* A position between two characters of a line, and its display column. */
typedef struct LinePlace
{
	const char *p;
	int64 column;
} LinePlace;

/* The position after the next character.  A character without a width is shown in one column. */
static LinePlace
next_place(LinePlace place)
{
	int width = 1;

	if (IS_HIGHBIT_SET(*place.p))
	{
		width = Max(pg_dsplen(place.p), 1);
		place.p += pg_mblen(place.p);
	}
	else
		place.p++;
	place.column += width;
	return place;
}

/* The last position up to the column, at most the end of the line. */
static LinePlace
place_up_to(LinePlace place, const char *end, int64 column)
{
	while (place.p < end)
	{
		LinePlace next = next_place(place);

		if (next.column > column)
			break;
		place = next;
	}
	return place;
}

/* The first position at the column or after it. */
static LinePlace
place_from(LinePlace place, const char *end, int64 column)
{
	while (place.p < end && place.column < column)
		place = next_place(place);
	return place;
}

/*
 * Write one line, with a caret under its character "at".
 *
 * A long line is shortened as psql does: show its beginning if the position is in there, with some
 * characters after it; else show the part that ends shortly after the position.  A line may be as
 * long as a request, so nothing is allocated per character.
 */
static void
put_line_and_caret(ResultText *text, int number, const char *line, int length, int at)
{
	const char *end = line + length;
	LinePlace first = {line, 0};
	LinePlace position = first;
	LinePlace last;
	StringInfoData shown;
	int margin;
	char *c;

	for (; at > 0 && position.p < end; at--)
		position = next_place(position);
	if (position.column + MIN_RIGHT > LINE_WIDTH)
	{
		last = place_up_to(position, end, position.column + MIN_RIGHT);
		first = place_from(first, end, last.column - LINE_WIDTH);
	}
	else
		last = place_up_to(position, end, LINE_WIDTH);
	initStringInfo(&shown);
	appendStringInfo(&shown, "LINE %d: %s", number, first.p > line ? "..." : "");
	margin = shown.len + (int) (position.column - first.column);
	appendBinaryStringInfo(&shown, first.p, (int) (last.p - first.p));
	for (c = shown.data; *c; c++)
		if (*c == '\t')
			*c = ' ';
	appendStringInfo(&shown, "%s\n%*s^", last.p < end ? "..." : "", margin, "");
	result_put_string(text, "\n");
	result_put_string(text, shown.data);
	pfree(shown.data);
}

/* Write the line of "query" that contains the character position (from 1), as psql does. */
static void
put_position(ResultText *text, const char *query, int position)
{
	const char *p = query;
	const char *line = query;
	int number = 1;
	int at = 0;
	int i;

	for (i = 1; i < position && *p; i++)
	{
		int length = IS_HIGHBIT_SET(*p) ? pg_mblen(p) : 1;

		at++;
		if (*p == '\n')
		{
			line = p + 1;
			number++;
			at = 0;
		}
		p += length;
	}
	put_line_and_caret(text, number, line, (int) strcspn(line, "\r\n"), at);
}

/*
 * Format an error as psql does: severity and message, the line of its position, DETAIL, HINT,
 * QUERY and CONTEXT.  The result is in the current memory context, and cut at the limit: each
 * field may contain a request of any length.
 */
char *
result_error(const ErrorData *error, const char *request, int limit)
{
	ResultText text;

	result_init(&text, limit);
	result_put_string(&text, error->elevel >= FATAL ? "FATAL:  " : "ERROR:  ");
	result_put_string(&text, error->message ? error->message : "missing error text");
	if (error->cursorpos > 0 && request)
		put_position(&text, request, error->cursorpos);
	else if (error->internalpos > 0 && error->internalquery)
		put_position(&text, error->internalquery, error->internalpos);
	put_field(&text, "DETAIL", error->detail);
	put_field(&text, "HINT", error->hint);
	put_field(&text, "QUERY", error->internalquery);
	put_field(&text, "CONTEXT", error->context);
	return (char *) result_text(&text);
}

/* Format a notice or warning as psql does. */
char *
result_notice(const ErrorData *report)
{
	StringInfoData text;
	const char *severity = "DEBUG";

	if (report->elevel >= WARNING)
		severity = "WARNING";
	else if (report->elevel >= NOTICE)
		severity = "NOTICE";
	else if (report->elevel >= INFO)
		severity = "INFO";
	else if (report->elevel >= LOG)
		severity = "LOG";
	initStringInfo(&text);
	appendStringInfo(&text, "%s:  %s", severity, report->message ? report->message : "");
	append_field(&text, "DETAIL", report->detail);
	append_field(&text, "HINT", report->hint);
	return text.data;
}
