/*
 * response.h
 *		Text that grows up to a limit: a response, a notice or an error of a task.
 */
#ifndef PG_TASK_RESPONSE_H
#define PG_TASK_RESPONSE_H

#include "postgres.h"

#include "lib/stringinfo.h"

/* Bytes after the limit are counted, not kept. */
typedef struct ResponseText
{
	StringInfoData text;
	int limit;		/* bytes */
	uint64 dropped; /* bytes */
	bool any;		/* there is a line, perhaps an empty one */

	/* of a response that is a JSON document */
	bool json;
	int results; /* that have begun, kept or not */
	bool open;	 /* the last of them has been kept, and has not ended */
} ResponseText;

extern void response_init(ResponseText *response, int limit);
extern void response_put(ResponseText *response, const char *data, int length);
extern void response_put_string(ResponseText *response, const char *string);
extern void response_start_line(ResponseText *response);
extern void response_put_line(ResponseText *response, const char *line);
extern const char *response_text(ResponseText *response);
extern char *response_cut(const char *text, int limit);

extern void document_begin_result(ResponseText *response, const char *opening);
extern void document_put(ResponseText *response, const char *data, int length);
extern void document_put_text(ResponseText *response, const char *text, int length);
extern void document_end_result(ResponseText *response, const char *closing);
extern const char *document_finish(ResponseText *response);

#endif /* PG_TASK_RESPONSE_H */
