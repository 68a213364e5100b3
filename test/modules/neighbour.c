/*
 * neighbour.c
 *		What another extension may do in the process of a task: check for a transaction block,
 *		rewrite an error before it is logged, fail at commit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "utils/elog.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static emit_log_hook_type next_log_hook = NULL;
static int failing_commits = 0;

/* Change the sqlstate of one kind of error before it is reported. */
static void
rewrite_error(ErrorData *error)
{
	if (error->sqlerrcode == MAKE_SQLSTATE('X', 'X', '1', '2', '3'))
	{
		error->sqlerrcode = ERRCODE_T_R_DEADLOCK_DETECTED;
		error->message = "a deadlock that spans several servers";
	}
	if (next_log_hook)
		next_log_hook(error);
}

/*
 * Callbacks are called in reverse order of registration: this one runs after those of other
 * libraries.
 */
static void
transaction_ends(XactEvent event, void *arg pg_attribute_unused())
{
	if (event != XACT_EVENT_PRE_COMMIT || failing_commits == 0)
		return;
	failing_commits--;
	ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE), errmsg("not this time")));
}

void
_PG_init(void)
{
	next_log_hook = emit_log_hook;
	emit_log_hook = rewrite_error;
	RegisterXactCallback(transaction_ends, NULL);
}

PG_FUNCTION_INFO_V1(is_in_block);
Datum
is_in_block(PG_FUNCTION_ARGS pg_attribute_unused())
{
	PG_RETURN_BOOL(IsTransactionBlock() && IsInTransactionBlock(true));
}

PG_FUNCTION_INFO_V1(must_be_alone);
Datum
must_be_alone(PG_FUNCTION_ARGS pg_attribute_unused())
{
	PreventInTransactionBlock(true, "must_be_alone()");
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(fail_commits);
Datum
fail_commits(PG_FUNCTION_ARGS)
{
	failing_commits = PG_GETARG_INT32(0);
	PG_RETURN_VOID();
}
