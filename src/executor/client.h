/*
 * client.h
 *		Stands in for the client of a request.
 */
#ifndef PG_TASK_CLIENT_H
#define PG_TASK_CLIENT_H

#include "postgres.h"

#include "executor/response.h"

/* The last FATAL error reported while a request ran. */
typedef struct ClientFatal
{
	int sqlstate; /* 0: none */
	char message[256];
} ClientFatal;

extern void client_define(void);
extern void client_begin(ResponseText *response, ResponseText *notices);
extern void client_set_copy_encoding(int encoding);
extern bool client_has_received(void);
extern void client_end(void);
extern const ClientFatal *client_fatal(void);

#endif /* PG_TASK_CLIENT_H */
