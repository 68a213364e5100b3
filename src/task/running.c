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

/* What was asked for on this level, or a higher one, now depends on the level below. */
static void
keep_asked(int level)
{
	if (running.again == NULL || running.again->level < level)
		return;
	running.again->level = level - 1;
	while (running.again->outer && running.again->outer->level >= running.again->level)
		running.again->outer = running.again->outer->outer;
}

/* What was asked for on this level, or a higher one, is rolled back. */
static void
forget_asked(int level)
{
	while (running.again && running.again->level >= level)
		running.again = running.again->outer;
}

void
running_transaction_ended(XactEvent event)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE)
		keep_asked(1);
	else if (event == XACT_EVENT_ABORT)
		forget_asked(1);
}

void
running_subtransaction_ended(SubXactEvent event)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		keep_asked(GetCurrentTransactionNestLevel());
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_asked(GetCurrentTransactionNestLevel());
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

/*
 * The request has ended, or has failed.  Has it asked to be run again?  If so, sets when, and with
 * which input.
 */
bool
running_end(TimestampTz *at, const Jsonb **input)
{
	bool asked = running.again != NULL;

	if (asked)
	{
		*at = running.again->at;
		*input = running.again->input;
	}
	memset(&running, 0, sizeof(running));
	return asked;
}

/* Does this process run a request of a task? */
bool
running_is_task(void)
{
	return running.context != NULL;
}

/* The input of the running task; NULL for NULL, and outside of a task. */
const Jsonb *
running_input(void)
{
	return running.input;
}

/*
 * The running task asks to be run again at this time, with this input; NULL: with the one that it
 * has.  What was asked for last counts.
 */
void
running_ask_again(TimestampTz at, const Jsonb *input)
{
	int level = GetCurrentTransactionNestLevel();
	Again *again = running.again;

	Assert(running_is_task());
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
}
