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
 * context, when the subtransaction was rolled back.  The caller raises again (ReThrowError) what it
 * does not expect: then the transaction ends that is its own.
 */
ErrorData *
subtransaction_try(void (*call)(void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner resources = CurrentResourceOwner;
	ErrorData *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		call(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = resources;
	return error;
}
