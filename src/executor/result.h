/*
 * result.h
 *		Formats the rows that a request returns.
 */
#ifndef PG_TASK_RESULT_H
#define PG_TASK_RESULT_H

#include "postgres.h"

#include "tcop/dest.h"

#include "executor/response.h"
#include "shared/task.h"

/* A receiver of rows.  It remembers whether a statement has returned rows, perhaps none. */
typedef struct ResultReceiver ResultReceiver;

extern ResultReceiver *result_create_receiver(ResponseText *response, ResultFormat format);
extern DestReceiver *result_destination(ResultReceiver *receiver);
extern bool result_has_received(ResultReceiver *receiver);

#endif /* PG_TASK_RESULT_H */
