/*
 * result.c
 *		Formats rows and errors as text.
 *
 * Rows are formatted as they come and never stored.  This room runs nothing
 * and knows no task row; limits are given to it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "result.h"

struct ResultReceiver
{
	DestReceiver destination; /* must be first */
	ResultText *result;
	bool received;
	int natts;
	FmgrInfo *output; /* one per column */
	MemoryContext row_context;
};

void
result_init(ResultText *result, int limit)
{
	initStringInfo(&result->text);
	result->limit = limit;
	result->dropped = 0;
	result->any = false;
}

/* Append up to the limit, never part of a character. */
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

/* The text, with a last line that says how much is missing, if any is. */
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

/* A copy of a text, cut at the limit in the same way. */
char *
result_cut(const char *text, int limit)
{
	ResultText result;

	result_init(&result, limit);
	result_put(&result, text, strlen(text));
	return (char *) result_text(&result);
}

/* Lines are separated, not ended, by a newline. */
static void
put_line_start(ResultText *result)
{
	if (result->any)
		result_put(result, "\n", 1);
	result->any = true;
}

/* The short name of a type: int4, text, timestamptz, int4[]. */
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

/* With more than one column, rows have a header: name::type. */
static void
put_header(ResultText *result, TupleDesc desc)
{
	int i;

	put_line_start(result);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		char *label = psprintf("%s%s::%s", i > 0 ? "\t" : "", NameStr(att->attname),
							   type_name(att->atttypid));

		result_put(result, label, strlen(label));
	}
}

static void
start_rows(DestReceiver *self, int operation pg_attribute_unused(), TupleDesc desc)
{
	ResultReceiver *receiver = (ResultReceiver *) self;
	int i;

	receiver->received = true;
	receiver->natts = desc->natts;
	receiver->output = palloc(Max(desc->natts, 1) * sizeof(FmgrInfo));
	for (i = 0; i < desc->natts; i++)
	{
		Oid function;
		bool is_varlena;

		getTypeOutputInfo(TupleDescAttr(desc, i)->atttypid, &function, &is_varlena);
		fmgr_info(function, &receiver->output[i]);
	}
	if (receiver->row_context == NULL)
		receiver->row_context =
			AllocSetContextCreate(CurrentMemoryContext, "pg_task row", ALLOCSET_DEFAULT_SIZES);
	if (desc->natts > 1)
		put_header(receiver->result, desc);
}

/* One line: columns separated by a tab, NULL as \N. */
static bool
put_row(TupleTableSlot *slot, DestReceiver *self)
{
	ResultReceiver *receiver = (ResultReceiver *) self;
	ResultText *result = receiver->result;
	MemoryContext old = MemoryContextSwitchTo(receiver->row_context);
	int i;

	slot_getallattrs(slot);
	put_line_start(result);
	for (i = 0; i < receiver->natts; i++)
	{
		char *value = "\\N";

		if (!slot->tts_isnull[i])
			value = OutputFunctionCall(&receiver->output[i], slot->tts_values[i]);
		if (i > 0)
			result_put(result, "\t", 1);
		result_put(result, value, strlen(value));
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(receiver->row_context);
	return true;
}

static void
end_rows(DestReceiver *self pg_attribute_unused())
{
}

static void
destroy_receiver(DestReceiver *self pg_attribute_unused())
{
}

/* A receiver that lives in the current memory context. */
ResultReceiver *
result_receiver(ResultText *result)
{
	ResultReceiver *receiver = palloc0(sizeof(ResultReceiver));

	receiver->destination.receiveSlot = put_row;
	receiver->destination.rStartup = start_rows;
	receiver->destination.rShutdown = end_rows;
	receiver->destination.rDestroy = destroy_receiver;
	receiver->destination.mydest = DestNone;
	receiver->result = result;
	return receiver;
}

DestReceiver *
result_destination(ResultReceiver *receiver)
{
	return &receiver->destination;
}

/* Was there a row type, and perhaps rows, since the last question? */
bool
result_received(ResultReceiver *receiver)
{
	bool received = receiver->received;

	receiver->received = false;
	return received;
}

/* One line with the tag of a statement that returned no rows. */
void
result_put_tag(ResultText *result, const char *tag)
{
	put_line_start(result);
	result_put(result, tag, strlen(tag));
}

static void
put_field(StringInfo text, const char *label, const char *value)
{
	if (value && *value)
		appendStringInfo(text, "\n%s:  %s", label, value);
}

/*
 * The line of "query" that the character position (from 1) is in, and a caret
 * under it, as psql shows it.
 */
static void
put_position(StringInfo text, const char *query, int position)
{
	const char *p = query;
	const char *line = query;
	int number = 1;
	int width = 0;
	char *label;
	int i;

	for (i = 1; i < position && *p; i++)
	{
		int length = pg_mblen(p);

		width += pg_dsplen(p) > 0 ? pg_dsplen(p) : 1;
		if (*p == '\n')
		{
			line = p + 1;
			number++;
			width = 0;
		}
		p += length;
	}
	label = psprintf("LINE %d: ", number);
	appendStringInfo(text, "\n%s%.*s", label, (int) strcspn(line, "\r\n"), line);
	appendStringInfo(text, "\n%*s^", (int) strlen(label) + width, "");
}

/*
 * An error as psql prints it: severity and message, the line it is in,
 * DETAIL, HINT, QUERY and CONTEXT.  In the current memory context.
 */
char *
result_error(const ErrorData *error, const char *request)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "%s:  %s", error->elevel >= FATAL ? "FATAL" : "ERROR",
					 error->message ? error->message : "missing error text");
	if (error->cursorpos > 0 && request)
		put_position(&text, request, error->cursorpos);
	else if (error->internalpos > 0 && error->internalquery)
		put_position(&text, error->internalquery, error->internalpos);
	put_field(&text, "DETAIL", error->detail);
	put_field(&text, "HINT", error->hint);
	put_field(&text, "QUERY", error->internalquery);
	put_field(&text, "CONTEXT", error->context);
	return text.data;
}
