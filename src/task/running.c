/*
 * running.c
 *		What the running task of this process is given, and what it asks for: the executor begins
 *		and ends a request here, and the functions that the request calls read and write it.
 *
 * What it asks for depends on the subtransaction that asks, as a row that it would write.  Parallel
 * workers of the task have nothing of this.  This file reads no row and writes none.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "task/running.h"

/* The task has asked to be run again. */
typedef struct Again
{
	TimestampTz at;
	Jsonb *input; /* NULL: as it is */
	int level;	  /* of the (sub)transaction on whose commit this depends; 0: it has committed */
	struct Again *outer; /* what holds if that is rolled back; of a lower level */
} Again;

/* Static, because the functions that use it are called by the request. */
static struct
{
	MemoryContext context; /* NULL: no request is running */
	const Jsonb *input;	   /* the column of the row; NULL for NULL */
	Again *again;		   /* in that context; NULL: not asked for */
} running;

/*
 * A transaction (level 1) or subtransaction has ended.  What was asked for on its level, or a
 * higher one, depends on the level below if it has committed, and is forgotten otherwise.
 */
void
running_level_ended(int level, bool committed)
{
	Again *again = running.again;

	if (again == NULL || again->level < level)
		return;
	if (!committed)
		while (running.again && running.again->level >= level)
			running.again = running.again->outer;
	else
	{
		again->level = level - 1;
		while (again->outer && again->outer->level >= again->level)
			again->outer = again->outer->outer;
	}
}

/*
 * A request begins.  Its input, or NULL, must live until running_end.  What running_end returns is
 * in this context.
 */
void
running_begin(MemoryContext context, const Jsonb *input)
{
	Assert(context != NULL);
	running.context = context;
	running.input = input;
	running.again = NULL;
}

/* The request has ended; the result says whether it has asked to be run again.  NULL: it has
 * failed.
 */
void
running_end(TaskResult *result)
{
	if (result && running.again)
	{
		result->goes_on = true;
		result->next = running.again->at;
		result->input = (const struct varlena *) running.again->input;
	}
	memset(&running, 0, sizeof(running));
}

/* The input of the running task; NULL for NULL, and outside of a task. */
const Jsonb *
running_input(void)
{
	return running.input;
}

/*
 * The running task asks to be run again at this time, with this input; NULL: with the one that it
 * has.  What was asked for last counts.  Returns false if this process runs no request of a task.
 */
bool
running_ask_again(TimestampTz at, const Jsonb *input)
{
	int level = GetCurrentTransactionNestLevel();
	Again *again = running.again;

	if (running.context == NULL)
		return false;
	if (again == NULL || again->level < level)
	{
		again = MemoryContextAllocZero(running.context, sizeof(Again));
		again->level = level;
		again->outer = running.again;
		running.again = again;
	}
	if (again->input)
		pfree(again->input);
	again->input = NULL;
	again->at = at;
	if (input)
		again->input =
			memcpy(MemoryContextAlloc(running.context, VARSIZE(input)), input, VARSIZE(input));
	return true;
}
