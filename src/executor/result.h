/*
 * result.h
 *		What a request returned, as text.
 */
#ifndef PG_TASK_RESULT_H
#define PG_TASK_RESULT_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "tcop/dest.h"

#include "shared/task.h"

/* Text that grows up to a limit; what comes after is counted, not kept. */
typedef struct ResultText
{
	StringInfoData text;
	int limit;		/* bytes */
	uint64 dropped; /* bytes */
	bool any;		/* there is a line, perhaps an empty one */
} ResultText;

extern void result_init(ResultText *result, int limit);
extern void result_put(ResultText *result, const char *data, int length);
extern void result_start_line(ResultText *result);
extern void result_put_line(ResultText *result, const char *line);
extern const char *result_text(ResultText *result);
extern char *result_cut(const char *text, int limit);

/* A receiver of rows.  It remembers whether it has received a row type. */
typedef struct ResultReceiver ResultReceiver;

extern ResultReceiver *result_receiver(ResultText *result, ResultFormat format);
extern DestReceiver *result_destination(ResultReceiver *receiver);
extern bool result_received(ResultReceiver *receiver);

extern char *result_error(const ErrorData *error, const char *request, int limit);
extern char *result_notice(const ErrorData *report);

#endif /* PG_TASK_RESULT_H */
