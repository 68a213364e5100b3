/*
 * error_user.c
 *		Logs each error of a session together with the role as which the session acts when the error
 *		is reported, which is before the transaction is aborted.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/elog.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static emit_log_hook_type next_hook = NULL;

static void
log_user(ErrorData *error)
{
	if (error->elevel == ERROR)
		write_stderr("error_user: %u of %u: %s\n", GetUserId(), GetSessionUserId(),
					 error->message);
	if (next_hook)
		next_hook(error);
}

void
_PG_init(void)
{
	next_hook = emit_log_hook;
	emit_log_hook = log_user;
}
