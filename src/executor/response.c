/*
 * response.c
 *		Text that grows up to a limit: a response, a notice or an error of a task.
 *
 * The caller passes the limit.  This file knows neither settings nor rows.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "executor/response.h"

/* The text is allocated in the current memory context, and stays there when it grows. */
void
response_init(ResponseText *response, int limit)
{
	initStringInfo(&response->text);
	response->limit = limit;
	response->dropped = 0;
	response->any = false;
	response->json = false;
	response->results = 0;
	response->open = false;
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
