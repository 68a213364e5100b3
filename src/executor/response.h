/*
 * response.h
 *		What a request returns, and the client that it sees.
 */
#ifndef PG_TASK_RESPONSE_H
#define PG_TASK_RESPONSE_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "tcop/cmdtag.h"
#include "tcop/dest.h"

#include "shared/shared.h"

/* Text that grows up to a limit.  Bytes after the limit are counted, not kept. */
typedef struct ResponseText
{
	StringInfoData text;
	int limit;		/* bytes */
	uint64 dropped; /* bytes */
	bool any;		/* there is a line, perhaps an empty one */
} ResponseText;

typedef struct Response
{
	ResultFormat format;
	ResponseText text;
	ResponseText notices;
	int copy_encoding; /* of data of COPY; -1: client_encoding */
	bool received; /* the statement that runs has returned rows, perhaps none, or data of COPY */

	/* of a JSON document */
	int results; /* that have begun, kept or not */
	bool open;	 /* the last of them has been kept, and has not ended */
} Response;

extern void response_begin(Response *response, const SharedTask *task);
extern DestReceiver *response_receiver(Response *response);
extern void response_end_statement(Response *response, const QueryCompletion *completion);
extern void response_add_notice(Response *response, const char *notice);
extern const char *response_finish(Response *response);
extern const char *response_notices(Response *response);
extern char *response_error(const ErrorData *error, const char *request);
extern char *response_cut(const char *text);

extern void client_define(void);
extern void client_begin(Response *response);
extern void client_end(void);

#endif /* PG_TASK_RESPONSE_H */
