/*
 * waiters.c
 *		Sessions that wait until tasks have ended, and how those who end tasks wake them.
 *
 * Whoever ends a task of this database, or removes its row, says so in the transaction that does:
 * an executor, the scheduler, or the triggers in a session.  When that is committed, and others can
 * see it, it wakes who waits for this task.  A task belongs, by a hash of its database and its id,
 * to one of a fixed number of condition variables, so a few are woken for another task, and look
 * once in vain.
 *
 * A waiter enters the list of the condition variable before it looks at the row, with a snapshot
 * taken afterwards.  Who ends the task looks whether the list is empty after its commit is visible.
 * So one of them sees the other.  Where nobody waits, an end costs a bit, and a read per commit.
 *
 * This file reads no rows.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/condition_variable.h"
#include "storage/proclist.h"

#include "shared/shared.h"
#include "shared/waiters.h"

#define ENDED_WORDS (SHARED_WAITERS / 64)

/*
 * The condition variables, as bits, of the tasks that this transaction ends.  Static, because it
 * collects from all statements of a transaction.  transaction_ended clears it.
 */
static struct
{
	bool any;
	uint64 bits[ENDED_WORDS];
} ended;

/* The number of the condition variable of a task of this database. */
static uint32
number_of(int64 id)
{
	uint32 high = murmurhash32((uint32) (id >> 32) ^ MyDatabaseId);

	return murmurhash32((uint32) id ^ high) % SHARED_WAITERS;
}

/* Wake who waits by this condition variable. */
static void
wake(uint32 number)
{
	ConditionVariable *variable = &Shared->waiters[number];

	/* read without its spinlock: the caller has a barrier after the commit */
	if (!proclist_is_empty(&variable->wakeup))
		ConditionVariableBroadcast(variable);
}

/* Nothing here may raise an error: after a commit, the server would panic. */
static void
transaction_ended(XactEvent event, void *arg pg_attribute_unused())
{
	int word;

	if (!ended.any ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE))
		return;
	pg_memory_barrier();
	for (word = 0; word < ENDED_WORDS; word++)
	{
		uint64 bits = event == XACT_EVENT_COMMIT ? ended.bits[word] : 0;

		for (; bits != 0; bits &= bits - 1)
			wake(word * 64 + pg_rightmost_one_pos64(bits));
	}
	memset(&ended, 0, sizeof(ended));
}

/*
 * A task of this database ends, or is removed, with the transaction that is open; if none is, it
 * has.  It may also go on: then a waiter looks in vain.
 */
void
waiters_end(int64 id)
{
	uint32 number = number_of(id);

	if (IsTransactionState())
	{
		ended.bits[number / 64] |= UINT64CONST(1) << (number % 64);
		ended.any = true;
		return;
	}
	pg_memory_barrier();
	wake(number);
}

/* The same for any number of tasks that nobody names. */
void
waiters_end_all(void)
{
	uint32 number;

	if (IsTransactionState())
	{
		memset(ended.bits, 0xff, sizeof(ended.bits));
		ended.any = true;
		return;
	}
	pg_memory_barrier();
	for (number = 0; number < SHARED_WAITERS; number++)
		wake(number);
}

/* From now on the end of this task wakes the process.  It waits for one task at a time. */
void
waiters_prepare(int64 id)
{
	ConditionVariablePrepareToSleep(&Shared->waiters[number_of(id)]);
}

/*
 * Sleep until the task may have ended since waiters_prepare or the last sleep, at most for so many
 * milliseconds.  It may return early, and stays prepared.
 */
void
waiters_sleep(int64 id, long ms, uint32 wait_event)
{
	(void) ConditionVariableTimedSleep(&Shared->waiters[number_of(id)], ms, wait_event);
}

/* Wait no more.  An error does the same, and the exit of the process. */
void
waiters_leave(void)
{
	ConditionVariableCancelSleep();
}

/* Prepare the shared memory. */
void
waiters_init(void)
{
	int i;

	for (i = 0; i < SHARED_WAITERS; i++)
		ConditionVariableInit(&Shared->waiters[i]);
}

/* Install the callback.  Called only if the library was preloaded. */
void
waiters_define(void)
{
	StaticAssertStmt(SHARED_WAITERS % 64 == 0, "condition variables fill words");
	RegisterXactCallback(transaction_ended, NULL);
}
