/*
 * subtransaction.c
 *		A function call in a subtransaction.
 *
 * This file does not decide which errors may be ignored.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "task/subtransaction.h"

/*
 * Call "call" in a subtransaction.  Returns NULL; or the error, allocated in the current memory
 * context.  The caller raises again (ReThrowError) what it does not expect: then the transaction
 * ends that is its own.
 *
 * The subtransaction is rolled back after an error, or unless "keep": so it leaves no lock, but for
 * those that the transaction had before.
 */
ErrorData *
subtransaction_try(void (*call)(void *arg), void *arg, bool keep)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner resources = CurrentResourceOwner;
	ErrorData *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		call(arg);
		if (keep)
			ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	if (error || !keep)
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = resources;
	return error;
}
