/*
 * response.c
 *		Text that grows up to a limit: a response, a notice or an error of a task; or a response
 *		that is one JSON document, the only result of a request or the list of them.
 *
 * A result of a document begins, gets parts and ends.  Each part is kept as a whole or, at the
 * limit, dropped with all that follow it, so that the document is complete in any case.  What ends
 * it may exceed the limit by some bytes.
 *
 * The callers pass the limit, and know what a result is.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/json.h"

#include "executor/response.h"

/* The text is allocated in the current memory context, and stays there when it grows. */
void
response_init(ResponseText *response, int limit)
{
	*response = (ResponseText){.limit = limit};
	initStringInfo(&response->text);
}

/* Append up to the limit, without splitting a character. */
void
response_put(ResponseText *response, const char *data, int length)
{
	int left = response->limit - response->text.len;
	int kept = length;

	if (response->dropped > 0)
		kept = 0;
	else if (length > left)
		kept = pg_mbcliplen(data, length, Max(left, 0));
	if (kept > 0)
		appendBinaryStringInfo(&response->text, data, kept);
	response->dropped += length - kept;
}

void
response_put_string(ResponseText *response, const char *string)
{
	response_put(response, string, (int) strlen(string));
}

/* Begin a line.  Lines are separated, not ended, by a newline. */
void
response_start_line(ResponseText *response)
{
	if (response->any)
		response_put(response, "\n", 1);
	response->any = true;
}

void
response_put_line(ResponseText *response, const char *line)
{
	response_start_line(response);
	response_put_string(response, line);
}

/* Return the text.  If bytes were dropped, append a line that says how many. */
const char *
response_text(ResponseText *response)
{
	if (response->dropped > 0)
	{
		appendStringInfo(&response->text, "\n(" UINT64_FORMAT " bytes cut)", response->dropped);
		response->dropped = 0;
	}
	return response->text.data;
}

/* Copy a text, truncated at the limit in the same way. */
char *
response_cut(const char *text, int limit)
{
	ResponseText response;

	response_init(&response, limit);
	response_put_string(&response, text);
	return (char *) response_text(&response);
}

/* ---- a document ---- */

/* Append a part: a row, a line of COPY data. */
void
document_put(ResponseText *response, const char *data, int length)
{
	Assert(response->json);
	if (response->dropped == 0 && response->text.len + length <= response->limit)
		appendBinaryStringInfo(&response->text, data, length);
	else
		response->dropped += length;
}

/* The same for text inside of a string. */
void
document_put_text(ResponseText *response, const char *text, int length)
{
	StringInfoData escaped;

	initStringInfo(&escaped);
	escape_json(&escaped, pnstrdup(text, length));
	document_put(response, escaped.data + 1, escaped.len - 2);
}

/* Begin a result. */
void
document_begin_result(ResponseText *response, const char *opening)
{
	StringInfoData part;

	Assert(!response->open);
	initStringInfo(&part);
	appendStringInfo(&part, "%s%s", response->results++ > 0 ? ",\n" : "", opening);
	document_put(response, part.data, part.len);
	response->open = response->dropped == 0;
}

/* End a result, if it was begun: after its last row, or for good after an error. */
void
document_end_result(ResponseText *response, const char *closing)
{
	if (response->open)
		appendStringInfoString(&response->text, closing);
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
 * Return the document.  If something was dropped, that is an object that says so, with the rest in
 * it, so that nobody takes a part for the whole.
 */
const char *
document_finish(ResponseText *response)
{
	StringInfo text = &response->text;

	Assert(!response->open);
	if (response->results != 1 || text->len == 0)
	{
		prepend(text, "[");
		appendStringInfoChar(text, ']');
	}
	if (response->dropped > 0)
	{
		prepend(text, psprintf("{\"cut\":" UINT64_FORMAT ",\"response\":", response->dropped));
		appendStringInfoChar(text, '}');
	}
	return text->data;
}
