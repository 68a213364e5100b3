/*
 * result.c
 *		Formats the rows that a request returns: text, CSV, JSON.
 *
 * Rows are formatted as they arrive and are never stored.  This file runs nothing and does not
 * know the task table.  The caller passes the format and the text to append to.
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

#include "executor/response.h"
#include "executor/result.h"

/* How the values of a column are written. */
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
	ResponseText *response;
	ResultFormat format;
	bool received;
	uint64 rows;			   /* of this statement */
	TupleDesc desc;			   /* the statement's */
	ResultColumn *columns;	   /* in "context" */
	MemoryContext context;	   /* for one statement */
	MemoryContext row_context; /* for one row */
};

/* Return the short name of a type, such as int4, text, timestamptz, int4[]. */
static char *
short_type_name(Oid type)
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

/* Return the function that casts the type to json, as to_json does; InvalidOid if there is none. */
static Oid
find_json_cast(const ResultColumn *column)
{
	Oid function;

	if (column->type < FirstNormalObjectId || OidIsValid(column->element) || column->is_row)
		return InvalidOid;
	if (find_coercion_pathway(JSONOID, column->type, COERCION_EXPLICIT, &function) !=
		COERCION_PATH_FUNC)
		return InvalidOid;
	return function;
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
	column->cast = find_json_cast(column);
}

/* Write a value as COPY does in CSV format: quoted if necessary.  "alone": the only column. */
static void
put_csv_value(ResponseText *response, const char *value, bool alone)
{
	const char *quote;

	if (*value != '\0' && strpbrk(value, ",\"\r\n") == NULL &&
		!(alone && strcmp(value, "\\.") == 0))
	{
		response_put_string(response, value);
		return;
	}
	response_put(response, "\"", 1);
	while ((quote = strchr(value, '"')) != NULL)
	{
		response_put(response, value, (int) (quote - value) + 1);
		response_put(response, "\"", 1);
		value = quote + 1;
	}
	response_put_string(response, value);
	response_put(response, "\"", 1);
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
	ResponseText *response = receiver->response;
	int i;

	response_start_line(response);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *name = NameStr(att->attname);

		if (i > 0)
			response_put(response, receiver->format == RESULT_CSV ? "," : "\t", 1);
		if (receiver->format == RESULT_CSV)
			put_csv_value(response, name, desc->natts == 1);
		else
			response_put_string(response, psprintf("%s::%s", name, short_type_name(att->atttypid)));
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
		document_begin_result(receiver->response, "[");
	else if (desc->natts > 1 || receiver->format == RESULT_CSV)
		put_header(receiver, desc);
	MemoryContextSwitchTo(old);
}

/* Values are not quoted: columns are separated by tabs, NULL is \N. */
static void
put_text_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	ResponseText *response = receiver->response;
	int i;

	response_start_line(response);
	for (i = 0; i < receiver->desc->natts; i++)
	{
		if (i > 0)
			response_put(response, "\t", 1);
		if (slot->tts_isnull[i])
			response_put(response, "\\N", 2);
		else
			response_put_string(
				response, OutputFunctionCall(&receiver->columns[i].output, slot->tts_values[i]));
	}
}

static void
put_csv_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	ResponseText *response = receiver->response;
	int natts = receiver->desc->natts;
	int i;

	response_start_line(response);
	for (i = 0; i < natts; i++)
	{
		if (i > 0)
			response_put(response, ",", 1);
		if (!slot->tts_isnull[i])
			put_csv_value(response,
						  OutputFunctionCall(&receiver->columns[i].output, slot->tts_values[i]),
						  natts == 1);
	}
}

static void
put_json_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	ResponseText *response = receiver->response;
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
	document_put(response, row.data, row.len);
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
		document_end_result(receiver->response, "]");
}

static void
destroy_receiver(DestReceiver *self pg_attribute_unused())
{
}

/* Create a receiver in the current memory context. */
ResultReceiver *
result_create_receiver(ResponseText *response, ResultFormat format)
{
	ResultReceiver *receiver = palloc0(sizeof(ResultReceiver));

	receiver->destination.receiveSlot = put_row;
	receiver->destination.rStartup = start_rows;
	receiver->destination.rShutdown = end_rows;
	receiver->destination.rDestroy = destroy_receiver;
	receiver->destination.mydest = DestNone;
	receiver->response = response;
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

/* Has a statement returned rows, perhaps none, since the last call? */
bool
result_has_received(ResultReceiver *receiver)
{
	bool received = receiver->received;

	receiver->received = false;
	return received;
}
