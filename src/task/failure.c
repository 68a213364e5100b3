/*
 * failure.c
 *		The response of a task that has failed, if no executor has formatted it; and failures as
 *		JSON: one object, with the same keys each time.
 *
 * Pure functions: nothing here reads a row or a setting.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/json.h"
#include "utils/memutils.h"

#include "task/failure.h"

/* Room for what says that a value was cut. */
#define CUT_MAX 40

/* As psql prints it: severity and message, DETAIL, HINT. */
char *
failure_text(const Failure *failure)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "%s:  %s", failure->severity, failure->error);
	if (failure->detail)
		appendStringInfo(&text, "\nDETAIL:  %s", failure->detail);
	if (failure->hint)
		appendStringInfo(&text, "\nHINT:  %s", failure->hint);
	return text.data;
}

/* How many bytes a byte of a text takes in JSON. */
static int
escaped_size(unsigned char c)
{
	if (c == '"' || c == '\\' || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t')
		return 2;
	return c < ' ' ? 6 : 1;
}

/* How many bytes of a text take at most this many bytes in JSON; no character is split. */
static int
fitting_length(const char *value, int limit)
{
	int length = 0;
	int size = 0;

	while (value[length] != '\0' && (size += escaped_size((unsigned char) value[length])) <= limit)
		length++;
	return value[length] == '\0' ? length : pg_mbcliplen(value, length + 1, length);
}

/* Append a value, NULL as null.  What would make the text longer than the limit is cut. */
static void
put_value(StringInfo text, const char *value, int limit)
{
	int length;

	if (value == NULL)
	{
		appendStringInfoString(text, "null");
		return;
	}
	length = fitting_length(value, Max(limit - text->len - CUT_MAX, 0));
	if (value[length] == '\0')
		escape_json(text, value);
	else
		escape_json(text, psprintf("%.*s\n(%zu bytes cut)", length, value, strlen(value + length)));
}

static void
put_key(StringInfo text, const char *key, const char *value, int limit)
{
	appendStringInfo(text, "%s\"%s\":", text->len > 0 ? "," : "{", key);
	put_value(text, value, limit);
}

/*
 * An error of the server as JSON.  "position" counts characters from 1, in "query" if there is one,
 * else in the request.  The limit is exceeded by some hundred bytes at most.
 */
char *
failure_error_json(const ErrorData *error, int limit)
{
	int position = error->internalquery ? error->internalpos : error->cursorpos;
	StringInfoData text;

	initStringInfo(&text);
	put_key(&text, "error", error->message ? error->message : "missing error text", limit);
	put_key(&text, "sqlstate", unpack_sql_state(error->sqlerrcode), limit + CUT_MAX);
	put_key(&text, "detail", error->detail, limit);
	put_key(&text, "hint", error->hint, limit);
	put_key(&text, "query", error->internalquery, limit);
	put_key(&text, "context", error->context, limit);
	if (position > 0)
		appendStringInfo(&text, ",\"position\":%d}", position);
	else
		appendStringInfoString(&text, ",\"position\":null}");
	return text.data;
}

char *
failure_json(const Failure *failure)
{
	const char *code = failure->sqlstate;
	ErrorData error = {.message = (char *) failure->error,
					   .detail = (char *) failure->detail,
					   .hint = (char *) failure->hint,
					   .sqlerrcode = MAKE_SQLSTATE(code[0], code[1], code[2], code[3], code[4])};

	return failure_error_json(&error, MaxAllocSize / 8);
}
