/*
 * response.c
 *		What a request returns: rows, command tags, COPY data and notices, formatted as text, CSV or
 *		JSON up to pg_task.response_limit; and errors as psql shows them.
 *
 * A response in JSON is one document, the only result of a request or the list of them.  A result
 * begins, gets parts and ends.  Each part is kept as a whole or, at the limit, dropped with all
 * that follow it, so that the document is complete in any case.  What ends it may exceed the limit
 * by some bytes.
 *
 * Rows come through a DestReceiver.  They are formatted as they arrive, and never stored.  For what
 * the server sends otherwise, this file stands in for the client, by PqCommMethods, as parallel
 * workers do: notices and the data of COPY TO STDOUT are kept, all other messages are dropped, and
 * a FATAL error is noted in the slot.  Outside client_begin and client_end nothing is sent.
 *
 * This file runs nothing, and does not know the task table.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
/*
 * With these, libpq.h includes headers of libraries that need not be installed where an extension
 * is built.
 */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq.h"
#include "libpq/pqmq.h"
#include "mb/pg_wchar.h"
#include "nodes/makefuncs.h"
#include "tcop/tcopprot.h"
#include "utils/elog.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "executor/response.h"
#include "executor/slot.h"
#include "settings.h"

/* ---- text up to a limit ---- */

/* The text is allocated in the current memory context, and stays there when it grows. */
static void
begin_text(ResponseText *text)
{
	*text = (ResponseText){.limit = Settings.response_limit};
	initStringInfo(&text->text);
}

/* Append up to the limit, without splitting a character. */
static void
put(ResponseText *text, const char *data, int length)
{
	int left = text->limit - text->text.len;
	int kept = length;

	if (text->dropped > 0)
		kept = 0;
	else if (length > left)
		kept = pg_mbcliplen(data, length, Max(left, 0));
	if (kept > 0)
		appendBinaryStringInfo(&text->text, data, kept);
	text->dropped += length - kept;
}

static void
put_string(ResponseText *text, const char *string)
{
	put(text, string, (int) strlen(string));
}

/* Begin a line.  Lines are separated, not ended, by a newline. */
static void
start_line(ResponseText *text)
{
	if (text->any)
		put(text, "\n", 1);
	text->any = true;
}

/* Return the text.  If bytes were dropped, append a line that says how many. */
static char *
end_text(ResponseText *text)
{
	if (text->dropped > 0)
	{
		appendStringInfo(&text->text, "\n(" UINT64_FORMAT " bytes cut)", text->dropped);
		text->dropped = 0;
	}
	return text->text.data;
}

/* Copy a text, truncated at the limit in the same way. */
char *
response_cut(const char *string)
{
	ResponseText text;

	begin_text(&text);
	put_string(&text, string);
	return end_text(&text);
}

/* Prepare the response of a task, in the current memory context. */
void
response_begin(Response *response, const SharedTask *task)
{
	*response = (Response){.format = task->format >= 0 ? task->format : Settings.task.format};
	begin_text(&response->text);
	begin_text(&response->notices);
}

/* Append a line to the notices. */
void
response_add_notice(Response *response, const char *notice)
{
	start_line(&response->notices);
	put_string(&response->notices, notice);
}

/* Return the notices so far, or NULL. */
const char *
response_notices(Response *response)
{
	return response->notices.any ? end_text(&response->notices) : NULL;
}

/* ---- a document ---- */

/* Append a part: a row, a line of COPY data. */
static void
put_part(Response *response, const char *data, int length)
{
	ResponseText *text = &response->text;

	Assert(response->format == RESULT_JSON);
	if (text->dropped == 0 && text->text.len + length <= text->limit)
		appendBinaryStringInfo(&text->text, data, length);
	else
		text->dropped += length;
}

/* Begin a result. */
static void
begin_result(Response *response, const char *opening)
{
	char *part = psprintf("%s%s", response->results++ > 0 ? ",\n" : "", opening);

	Assert(!response->open);
	put_part(response, part, (int) strlen(part));
	response->open = response->text.dropped == 0;
}

/* End a result, if it was begun. */
static void
end_result(Response *response, const char *closing)
{
	if (response->open)
		appendStringInfoString(&response->text.text, closing);
	response->open = false;
}

/* Put a text before all that is there: a copy of a large document would double its memory. */
static void
prepend(StringInfo text, const char *prefix)
{
	int length = (int) strlen(prefix);

	enlargeStringInfo(text, length);
	memmove(text->data + length, text->data, text->len + 1);
	memcpy(text->data, prefix, length);
	text->len += length;
}

/*
 * Return the response: a text, or a document.  If something of a document was dropped, that is an
 * object that says so, with the rest in it, so that nobody takes a part for the whole.
 */
const char *
response_finish(Response *response)
{
	StringInfo text = &response->text.text;
	uint64 dropped = response->text.dropped;

	if (response->format != RESULT_JSON)
		return end_text(&response->text);
	Assert(!response->open);
	if (response->results != 1 || text->len == 0)
	{
		prepend(text, "[");
		appendStringInfoChar(text, ']');
	}
	if (dropped > 0)
	{
		prepend(text, psprintf("{\"cut\":" UINT64_FORMAT ",\"response\":", dropped));
		appendStringInfoChar(text, '}');
	}
	return text->data;
}

/* ---- errors and notices, as psql shows them ---- */

static void
put_field(ResponseText *text, const char *label, const char *value)
{
	if (value == NULL)
		return;
	put_string(text, "\n");
	put_string(text, label);
	put_string(text, ":  ");
	put_string(text, value);
}

static void
put_message(ResponseText *text, const char *severity, const ErrorData *report)
{
	put_string(text, severity);
	put_string(text, ":  ");
	put_string(text, report->message ? report->message : "missing error text");
}

/* Widths that psql uses to display an error position. */
#define LINE_WIDTH 60
#define MIN_RIGHT 10

/* A place between two characters of a line, and its display column. */
typedef struct LinePlace
{
	const char *p;
	int64 column;
} LinePlace;

/* Return the place after the next character.  One without a width is shown in one column. */
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

/* Return the last place up to the column, at most the end of the line. */
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

/*
 * Write one line, with a caret under its character "at".
 *
 * A long line is shortened as psql does: show its beginning if the position is in there, with some
 * characters after it; else show the part that ends shortly after the position.  A line may be as
 * long as a request, so nothing is allocated per character.
 */
static void
put_line_and_caret(ResponseText *text, int number, const char *line, int length, int at)
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
		first = place_up_to(first, end, last.column - LINE_WIDTH);
		if (first.column < last.column - LINE_WIDTH)
			first = next_place(first);
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
	put_string(text, "\n");
	put_string(text, shown.data);
	pfree(shown.data);
}

/* Write the line of "query" that contains the character position (from 1), as psql does. */
static void
put_position(ResponseText *text, const char *query, int position)
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
 * QUERY and CONTEXT.  The text is in the current memory context.  It is truncated at the limit,
 * because each field may contain a request of any length.
 */
char *
response_error(const ErrorData *error, const char *request)
{
	ResponseText text;

	begin_text(&text);
	put_message(&text, error->elevel >= FATAL ? "FATAL" : "ERROR", error);
	if (error->cursorpos > 0 && request)
		put_position(&text, request, error->cursorpos);
	else if (error->internalpos > 0 && error->internalquery)
		put_position(&text, error->internalquery, error->internalpos);
	put_field(&text, "DETAIL", error->detail);
	put_field(&text, "HINT", error->hint);
	put_field(&text, "QUERY", error->internalquery);
	put_field(&text, "CONTEXT", error->context);
	return end_text(&text);
}

/* ---- rows ---- */

/* A receiver of rows. */
typedef struct ResultReceiver
{
	DestReceiver destination; /* must be first */
	Response *response;
	uint64 rows;			   /* of this statement */
	TupleDesc desc;			   /* the statement's */
	FmgrInfo *outputs;		   /* of the columns, in "context": to text, or to_json */
	MemoryContext context;	   /* for one statement */
	MemoryContext row_context; /* for one row */
} ResultReceiver;

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

/*
 * Find the function that writes the values of a column.  to_json learns their type from the
 * expression of its call.
 */
static void
find_output(FmgrInfo *output, Form_pg_attribute att, ResultFormat format)
{
	Oid function;
	bool is_varlena;

	if (format != RESULT_JSON)
	{
		getTypeOutputInfo(att->atttypid, &function, &is_varlena);
		fmgr_info(function, output);
		return;
	}
	fmgr_info(F_TO_JSON, output);
	fmgr_info_set_expr(
		(Node *) makeFuncExpr(F_TO_JSON, JSONOID,
							  list_make1(makeNullConst(att->atttypid, -1, att->attcollation)),
							  InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL),
		output);
}

/* Write a value as COPY does in CSV format: quoted if necessary.  "alone": the only column. */
static void
put_csv_value(ResponseText *text, const char *value, bool alone)
{
	const char *quote;

	if (*value != '\0' && strpbrk(value, ",\"\r\n") == NULL &&
		!(alone && strcmp(value, "\\.") == 0))
	{
		put_string(text, value);
		return;
	}
	put(text, "\"", 1);
	while ((quote = strchr(value, '"')) != NULL)
	{
		put(text, value, (int) (quote - value) + 1);
		put(text, "\"", 1);
		value = quote + 1;
	}
	put_string(text, value);
	put(text, "\"", 1);
}

/*
 * Write the header: in CSV the column names; in text format "name::type", if there is more than
 * one column.
 */
static void
put_header(Response *response, TupleDesc desc)
{
	bool csv = response->format == RESULT_CSV;
	ResponseText *text = &response->text;
	int i;

	start_line(text);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *name = NameStr(att->attname);

		if (i > 0)
			put(text, csv ? "," : "\t", 1);
		if (csv)
			put_csv_value(text, name, desc->natts == 1);
		else
			put_string(text, psprintf("%s::%s", name, short_type_name(att->atttypid)));
	}
}

static void
start_rows(DestReceiver *self, int operation pg_attribute_unused(), TupleDesc desc)
{
	ResultReceiver *receiver = (ResultReceiver *) self;
	Response *response = receiver->response;
	MemoryContext old;
	int i;

	MemoryContextReset(receiver->context);
	old = MemoryContextSwitchTo(receiver->context);
	response->received = true;
	receiver->rows = 0;
	receiver->desc = desc;
	receiver->outputs = palloc0(Max(desc->natts, 1) * sizeof(FmgrInfo));
	for (i = 0; i < desc->natts; i++)
		find_output(&receiver->outputs[i], TupleDescAttr(desc, i), response->format);
	if (response->format == RESULT_JSON)
		begin_result(response, "[");
	else if (desc->natts > 1 || response->format == RESULT_CSV)
		put_header(response, desc);
	MemoryContextSwitchTo(old);
}

/*
 * Write a row in a line: in CSV, or as text, in which values are not quoted, columns are separated
 * by tabs, and NULL is \N.
 */
static void
put_line_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	bool csv = receiver->response->format == RESULT_CSV;
	ResponseText *text = &receiver->response->text;
	int natts = receiver->desc->natts;
	int i;

	start_line(text);
	for (i = 0; i < natts; i++)
	{
		char *value;

		if (i > 0)
			put(text, csv ? "," : "\t", 1);
		if (slot->tts_isnull[i])
		{
			put_string(text, csv ? "" : "\\N");
			continue;
		}
		value = OutputFunctionCall(&receiver->outputs[i], slot->tts_values[i]);
		if (csv)
			put_csv_value(text, value, natts == 1);
		else
			put_string(text, value);
	}
}

static void
put_json_row(ResultReceiver *receiver, TupleTableSlot *slot)
{
	StringInfoData row;
	text *value;
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
		{
			appendStringInfoString(&row, "null");
			continue;
		}
		value = DatumGetTextPP(FunctionCall1(&receiver->outputs[i], slot->tts_values[i]));
		appendBinaryStringInfo(&row, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	}
	appendStringInfoChar(&row, '}');
	put_part(receiver->response, row.data, row.len);
}

static bool
put_row(TupleTableSlot *slot, DestReceiver *self)
{
	ResultReceiver *receiver = (ResultReceiver *) self;
	MemoryContext old = MemoryContextSwitchTo(receiver->row_context);

	slot_getallattrs(slot);
	if (receiver->response->format == RESULT_JSON)
		put_json_row(receiver, slot);
	else
		put_line_row(receiver, slot);
	receiver->rows++;
	MemoryContextSwitchTo(old);
	MemoryContextReset(receiver->row_context);
	return true;
}

static void
end_rows(DestReceiver *self)
{
	end_result(((ResultReceiver *) self)->response, "]");
}

static void
destroy_receiver(DestReceiver *self pg_attribute_unused())
{
}

/* Create a receiver of the rows of a request, in the current memory context. */
DestReceiver *
response_receiver(Response *response)
{
	ResultReceiver *receiver = palloc0(sizeof(ResultReceiver));

	receiver->destination.receiveSlot = put_row;
	receiver->destination.rStartup = start_rows;
	receiver->destination.rShutdown = end_rows;
	receiver->destination.rDestroy = destroy_receiver;
	receiver->destination.mydest = DestNone;
	receiver->response = response;
	receiver->context =
		AllocSetContextCreate(CurrentMemoryContext, "pg_task result", ALLOCSET_DEFAULT_SIZES);
	receiver->row_context =
		AllocSetContextCreate(CurrentMemoryContext, "pg_task row", ALLOCSET_DEFAULT_SIZES);
	return &receiver->destination;
}

/*
 * A statement has ended.  If it has returned neither rows nor data of COPY, show its command tag,
 * but not in CSV.  In JSON the data of COPY are one string, which ends here.
 */
void
response_end_statement(Response *response, const QueryCompletion *completion)
{
	CommandTag tag = completion->commandTag;
	bool counts = command_tag_display_rowcount(tag);
	const char *name = GetCommandTagName(tag);
	bool received = response->received;
	char *rows;

	response->received = false;
	if (response->format == RESULT_JSON)
	{
		rows = counts ? psprintf(",\"rows\":" UINT64_FORMAT "}", completion->nprocessed) : "}";
		if (received)
			end_result(response, psprintf("\"%s", rows));
		else if (tag != CMDTAG_UNKNOWN)
		{
			begin_result(response, psprintf("{\"command\":\"%s\"", name));
			end_result(response, rows);
		}
	}
	else if (response->format == RESULT_TEXT && !received && tag != CMDTAG_UNKNOWN)
	{
		start_line(&response->text);
		put_string(&response->text, name);
		if (counts)
			put_string(&response->text,
					   psprintf("%s " UINT64_FORMAT, tag == CMDTAG_INSERT ? " 0" : "",
								completion->nprocessed));
	}
}

/* ---- the client ---- */

/*
 * Static, because the server calls our methods without an argument.  "response" is set only between
 * client_begin and client_end; the abort path calls client_end.
 */
static struct
{
	MemoryContext scratch; /* reset after every message */
	Response *response;
} client;

/* Convert text that was sent to the client back to the server encoding. */
static char *
to_server_encoding(char *text)
{
	return text ? pg_client_to_server(text, (int) strlen(text)) : NULL;
}

/*
 * A NoticeResponse or ErrorResponse, parsed as by a client.  run.c catches an ERROR.  Nothing
 * catches a FATAL: the task has failed with it, unless it says that the process was terminated.
 */
static void
receive_report(bool is_error, const char *data, size_t length)
{
	ResponseText *notices = &client.response->notices;
	StringInfoData message;
	ErrorData report;

	initStringInfo(&message);
	appendBinaryStringInfo(&message, data, (int) length);
	pq_parse_errornotice(&message, &report);
	report.message = to_server_encoding(report.message);
	report.detail = to_server_encoding(report.detail);
	report.hint = to_server_encoding(report.hint);
	if (!is_error)
	{
		start_line(notices);
		put_message(notices, error_severity(report.elevel), &report);
		put_field(notices, "DETAIL", report.detail);
		put_field(notices, "HINT", report.hint);
	}
	else if (report.elevel >= FATAL && report.sqlerrcode != ERRCODE_ADMIN_SHUTDOWN)
		slot_set_failure(report.sqlerrcode, report.message ? report.message : "", TASK_LEFT_ERROR);
}

/*
 * Each row of COPY TO STDOUT ends in a newline; lines of a result are separated by one.  In JSON
 * the data are a string: response_end_statement ends it.
 */
static void
receive_copy_data(const char *data, size_t length)
{
	int encoding = client.response->copy_encoding;
	ResponseText *response = &client.response->text;
	StringInfoData escaped;
	char *text;

	if (encoding < 0)
		encoding = pg_get_client_encoding();
	if (length > 0 && data[length - 1] == '\n')
		length--;
	text = pg_any_to_server(data, (int) length, encoding);
	if (text != data)
		length = strlen(text);
	if (client.response->format == RESULT_JSON)
	{
		initStringInfo(&escaped);
		escape_json(&escaped, psprintf("%s%.*s", response->any ? "\n" : "", (int) length, text));
		response->any = true;
		put_part(client.response, escaped.data + 1, escaped.len - 2);
		return;
	}
	start_line(response);
	put(response, text, (int) length);
}

static int
receive_message(char type, const char *data, size_t length)
{
	MemoryContext old;

	if (client.response == NULL)
		return 0;
	/* the caller is in ErrorContext, which the server resets only after errors */
	old = MemoryContextSwitchTo(client.scratch);
	switch (type)
	{
		case 'N':
		case 'E':
			receive_report(type == 'E', data, length);
			break;
		case 'H':
			client.response->received = true;
			if (client.response->format == RESULT_JSON)
			{
				client.response->text.any = false;
				begin_result(client.response, "{\"command\":\"COPY\",\"data\":\"");
			}
			break;
		case 'd':
			receive_copy_data(data, length);
			break;
		default:
			break;
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(client.scratch);
	return 0;
}

static void
receive_message_noblock(char type, const char *data, size_t length)
{
	(void) receive_message(type, data, length);
}

static void
ignore_reset(void)
{
}

static int
ignore_flush(void)
{
	return 0;
}

static bool
is_send_pending(void)
{
	return false;
}

static const PQcommMethods methods = {
	.comm_reset = ignore_reset,
	.flush = ignore_flush,
	.flush_if_writable = ignore_flush,
	.is_send_pending = is_send_pending,
	.putmessage = receive_message,
	.putmessage_noblock = receive_message_noblock,
};

/* Called once per executor. */
void
client_define(void)
{
	client.scratch =
		AllocSetContextCreate(TopMemoryContext, "pg_task client", ALLOCSET_DEFAULT_SIZES);
	PqCommMethods = &methods;
	FrontendProtocol = PG_PROTOCOL_LATEST;
	whereToSendOutput = DestNone;
}

/* A request begins.  The response must live until client_end; call that after an error as well. */
void
client_begin(Response *response)
{
	Assert(client.response == NULL);
	client.response = response;
	whereToSendOutput = DestRemote;
}

/* The request has ended, with or without an error. */
void
client_end(void)
{
	whereToSendOutput = DestNone;
	client.response = NULL;
	/* an error may have been raised while a message was being handled */
	MemoryContextReset(client.scratch);
}
