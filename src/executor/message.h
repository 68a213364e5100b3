/*
 * message.h
 *		Formats errors and notices as psql shows them.
 */
#ifndef PG_TASK_MESSAGE_H
#define PG_TASK_MESSAGE_H

#include "postgres.h"

extern char *message_error(const ErrorData *error, const char *request, int limit);
extern char *message_notice(const ErrorData *report);

#endif /* PG_TASK_MESSAGE_H */
