/*
 * message.c
 *		Formats errors and notices as psql shows them.
 *
 * This file runs nothing and knows no settings.  The caller passes the limit.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "executor/message.h"
#include "executor/response.h"

static void
put_error_field(ResponseText *text, const char *label, const char *value)
{
	if (value == NULL)
		return;
	response_put_string(text, "\n");
	response_put_string(text, label);
	response_put_string(text, ":  ");
	response_put_string(text, value);
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

/* Return the first place at the column or after it. */
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
	response_put_string(text, "\n");
	response_put_string(text, shown.data);
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
message_error(const ErrorData *error, const char *request, int limit)
{
	ResponseText text;

	response_init(&text, limit);
	response_put_string(&text, error->elevel >= FATAL ? "FATAL:  " : "ERROR:  ");
	response_put_string(&text, error->message ? error->message : "missing error text");
	if (error->cursorpos > 0 && request)
		put_position(&text, request, error->cursorpos);
	else if (error->internalpos > 0 && error->internalquery)
		put_position(&text, error->internalquery, error->internalpos);
	put_error_field(&text, "DETAIL", error->detail);
	put_error_field(&text, "HINT", error->hint);
	put_error_field(&text, "QUERY", error->internalquery);
	put_error_field(&text, "CONTEXT", error->context);
	return (char *) response_text(&text);
}

static void
append_notice_field(StringInfo text, const char *label, const char *value)
{
	if (value)
		appendStringInfo(text, "\n%s:  %s", label, value);
}

/* Format a notice or warning as psql does. */
char *
message_notice(const ErrorData *report)
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
	append_notice_field(&text, "DETAIL", report->detail);
	append_notice_field(&text, "HINT", report->hint);
	return text.data;
}
