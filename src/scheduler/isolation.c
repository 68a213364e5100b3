/*
 * isolation.c
 *		Isolation of suspects: tasks that were running when the server crashed.
 *
 * A suspect runs isolated: one at a time on the whole server, and alone in an executor.  The
 * arbiter decides which scheduler may start one.  A scheduler acquires that right when it chooses a
 * suspect (isolation_acquire), and releases it when the round ends (isolation_release); from then
 * on the task in the executor's ring keeps other suspects waiting.
 *
 * This file chooses no task and no executor.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/isolation.h"
#include "scheduler/work.h"
#include "shared/arbiter.h"
#include "task/rows.h"

/* While a suspect waits, the scheduler checks at this interval whether it may start (ms). */
#define RETRY_MS 1000

/* Static, because a scan finds suspects, and later iterations start them. */
static struct
{
	int64 *suspects; /* ids of waiting suspects, in ascending order; NULL: none */
	int count;
	bool waiting; /* one was skipped since, because another suspect runs */
	bool wanted;  /* look for them again: see isolation_want */
} isolation;

/* There are new suspects, or one that was skipped may start: a scan finds them. */
void
isolation_want(void)
{
	isolation.wanted = true;
}

/* Are the waiting suspects to be read, whatever that costs? */
bool
isolation_is_wanted(void)
{
	return isolation.wanted;
}

/* Set the ids of all waiting suspects. */
void
isolation_set_suspects(const int64 *ids, int count)
{
	int64 *old = isolation.suspects;

	isolation.suspects = NULL;
	isolation.count = 0;
	isolation.waiting = isolation.wanted = false;
	if (old)
		pfree(old);
	if (count == 0)
		return;
	isolation.suspects = MemoryContextAllocHuge(TopMemoryContext, count * sizeof(int64));
	isolation.count = count;
	memcpy(isolation.suspects, ids, count * sizeof(int64));
	qsort(isolation.suspects, count, sizeof(int64), rows_compare_ids);
}

/* Is this task a suspect? */
bool
isolation_needed(int64 id)
{
	return isolation.count > 0 &&
		   bsearch(&id, isolation.suspects, isolation.count, sizeof(int64), rows_compare_ids);
}

/*
 * Acquire the right to start a suspect: one in a round, and one at a time on the server.  False if
 * another one runs.
 */
bool
isolation_acquire(void)
{
	if (!MyScheduler->slot->isolated && arbiter_take_isolated(MyScheduler->slot))
		return true;
	isolation.waiting = true;
	return false;
}

/* The round has ended, perhaps with an error: release the right, if it was acquired. */
void
isolation_release(void)
{
	if (MyScheduler->slot->isolated)
		arbiter_release_isolated(MyScheduler->slot);
}

/* Return the number of waiting suspects. */
int
isolation_count(void)
{
	return isolation.count;
}

/* Return when to ask again whether a suspect that was skipped may start. */
static MonoTime
isolation_due(ClockNow now)
{
	return isolation.waiting ? clock_plus_ms(now.mono, RETRY_MS) : CLOCK_NEVER;
}

/* Was a suspect skipped that may start now?  Then a scan finds it again. */
static void
look_for_right(ClockNow now pg_attribute_unused())
{
	if (!isolation.waiting || !arbiter_take_isolated(MyScheduler->slot))
		return;
	arbiter_release_isolated(MyScheduler->slot);
	isolation_want();
}

const SchedulerJob isolation_job = {
	.due = isolation_due, .needed = isolation_due, .run = look_for_right, .always = true};
