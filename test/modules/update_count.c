/*
 * update_count.c
 *		How many UPDATE statements this process has started.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static ExecutorStart_hook_type next_start = NULL;
static int updates = 0;

static void
count_update(QueryDesc *query, int flags)
{
	updates += query->operation == CMD_UPDATE;
	if (next_start)
		next_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

void
_PG_init(void)
{
	next_start = ExecutorStart_hook;
	ExecutorStart_hook = count_update;
}

PG_FUNCTION_INFO_V1(update_count);
Datum
update_count(PG_FUNCTION_ARGS pg_attribute_unused())
{
	PG_RETURN_INT32(updates);
}
