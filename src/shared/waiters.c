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
 * A waiter reads a count of ends before it looks at the row, with a snapshot taken afterwards. When
 * it has entered the list of the condition variable, it reads the count again, and sleeps only if
 * that is the same.  Who ends the task counts that after its commit is visible, and then looks
 * whether the list is empty.  So one of them sees the other.  The look itself is not in the list,
 * because an error that a policy of the table catches there would leave it.  Where nobody waits, an
 * end costs a bit, and a count per commit.
 *
 * This file reads no rows.
 */
#include "postgres.h"

#undef ENABLE_GSS /* and these: see worker.c */
#undef USE_OPENSSL
#undef USE_SSL

#include "common/hashfn.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/proclist.h"

#include "shared/shared.h"
#include "shared/waiters.h"

/* How often a session that waits looks for its client (ms). */
#define CLIENT_MS 1000

#define ENDED_WORDS (SHARED_WAITERS / 64)

StaticAssertDecl(SHARED_WAITERS % 64 == 0, "condition variables fill words");

/*
 * The condition variables, as bits, of the tasks that this transaction ends.  Static, because it
 * collects from all statements of a transaction.  Its end clears it.
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

/* Wake who waits by this condition variable, or is about to. */
static void
wake(uint32 number)
{
	ConditionVariable *variable = &Shared->waiters[number];

	/* the count is a barrier: before it the commit, after it the list, without its spinlock */
	(void) pg_atomic_fetch_add_u32(&Shared->ends[number], 1);
	if (!proclist_is_empty(&variable->wakeup))
		ConditionVariableBroadcast(variable);
}

/* Nothing here may raise an error: after a commit, the server would panic. */
void
waiters_transaction_ended(XactEvent event)
{
	int word;

	if (!ended.any ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE))
		return;
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
	wake(number);
}

/* The same for any number of tasks that nobody names, within a transaction. */
void
waiters_end_all(void)
{
	Assert(IsTransactionState());
	memset(ended.bits, 0xff, sizeof(ended.bits));
	ended.any = true;
}

/* Count the ends so far that would wake who waits for this task. */
uint32
waiters_count_ends(int64 id)
{
	uint32 ends = pg_atomic_read_u32(&Shared->ends[number_of(id)]);

	pg_memory_barrier(); /* before the snapshot of the caller */
	return ends;
}

/*
 * If the client of this session is gone, the session ends, as the server has it end by
 * client_connection_check_interval.  An executor has no client.
 */
static void
check_client(void)
{
	if (FeBeWaitSet == NULL || !WaitEventSetCanReportClosed())
		return;
	if (!pq_check_connection())
		ClientConnectionLost = InterruptPending = true;
	SetLatch(MyLatch); /* it may have been, and is reset by that look */
	CHECK_FOR_INTERRUPTS();
}

/*
 * Sleep until the task may have ended since "ends" were counted, at most for so many milliseconds.
 * It may return early.  The process is in no list before and after it, whatever ends it.
 */
void
waiters_sleep(int64 id, uint32 ends, long ms, uint32 wait_event)
{
	uint32 number = number_of(id);
	ConditionVariable *variable = &Shared->waiters[number];

	ConditionVariablePrepareToSleep(variable);
	pg_memory_barrier(); /* its spinlock is none */
	while (ms > 0 && pg_atomic_read_u32(&Shared->ends[number]) == ends &&
		   ConditionVariableTimedSleep(variable, Min(ms, CLIENT_MS), wait_event))
	{
		ms -= CLIENT_MS;
		check_client();
	}
	ConditionVariableCancelSleep();
}
