/*
 * request_log.h
 *		Logs requests to the server's log, as the settings of the role demand.
 */
#ifndef PG_TASK_REQUEST_LOG_H
#define PG_TASK_REQUEST_LOG_H

#include "postgres.h"

#include "nodes/pg_list.h"

extern bool request_log_statement(const char *request, List *statements);
extern void request_log_duration(const char *request, bool logged);

#endif /* PG_TASK_REQUEST_LOG_H */
