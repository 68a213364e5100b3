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
 * context.  The subtransaction is rolled back after an error, or unless "keep".
 */
static ErrorData *
execute(void (*call)(void *arg), void *arg, bool keep)
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

/*
 * Call "call" in a subtransaction.  Returns NULL; or the error, allocated in the current memory
 * context, when the subtransaction was rolled back.  The caller raises again (ReThrowError) what it
 * does not expect: then the transaction ends that is its own.
 */
ErrorData *
subtransaction_try(void (*call)(void *arg), void *arg)
{
	return execute(call, arg, true);
}

/*
 * Call "call" in a subtransaction that is rolled back, so it leaves no lock.  Locks that the
 * transaction had before stay.  An error goes on outside of the subtransaction.
 */
void
subtransaction_undo(void (*call)(void *arg), void *arg)
{
	ErrorData *error = execute(call, arg, false);

	if (error)
		ReThrowError(error);
}
