/*
 * document.h
 *		A response that is one JSON document.
 */
#ifndef PG_TASK_DOCUMENT_H
#define PG_TASK_DOCUMENT_H

#include "postgres.h"

#include "executor/response.h"

extern void document_begin_result(ResponseText *response, const char *opening);
extern void document_put(ResponseText *response, const char *data, int length);
extern void document_put_text(ResponseText *response, const char *text, int length);
extern void document_end_result(ResponseText *response, const char *closing);
extern const char *document_finish(ResponseText *response);

#endif /* PG_TASK_DOCUMENT_H */
