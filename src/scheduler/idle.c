/*
 * idle.c
 *		When this process has nothing to do, so that another database may have its worker slot.
 *
 * With more databases than places for schedulers, the supervisor is told when this one is idle, and
 * one that has rested for a while exits.  It leaves the time at which the database needs a
 * scheduler again.
 *
 * This file only asks others what is due.
 */
#include "postgres.h"

#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/idle.h"
#include "scheduler/isolation.h"
#include "scheduler/pool.h"
#include "scheduler/rate_store.h"
#include "scheduler/reconcile.h"
#include "scheduler/refused.h"
#include "scheduler/row_writes.h"
#include "scheduler/rules_reader.h"
#include "scheduler/scan.h"
#include "scheduler/scheduler.h"
#include "shared/shared.h"
#include "shared/slots.h"

/* The scheduler is idle if nothing is due within this time (ms). */
#define IDLE_AHEAD_MS 1000

/* Then it exits after this time, if there are not places for all databases (ms). */
#define REST_MS 5000

/*
 * After an error, or if rows or the rate table were refused, a scheduler that shares its worker
 * slot is needed again after this time (ms).
 */
#define FAILED_RETRY_MS 30000

/* Return when something is due next, besides scans and what the executors report. */
static MonoTime
next_due(ClockNow now)
{
	MonoTime due;

	if (MyScheduler->iteration_failed)
		return clock_plus_ms(now.mono, FAILED_RETRY_MS);
	if (MyScheduler->away)
		return CLOCK_NEVER;
	due = clock_min(groups_due_at(now), row_writes_until(now));
	if (MyScheduler->table == NULL || scan_going() || groups_ready(now))
		return now.mono;
	due = clock_min(due, clock_min(isolation_until(now.mono), rules_reader_until()));
	due = clock_min(due, reconcile_until());
	/* rows may be free by now, and what is known of them is lost when this process exits */
	due = clock_min(due, dependents_work_until());
	if (scan_is_wanted() || groups_lack())
		due = clock_min(due, scan_until());
	if (refused_count() > 0 || dependents_refused() || rate_store_until().us != CLOCK_NEVER.us)
		due = clock_min(due, clock_plus_ms(now.mono, FAILED_RETRY_MS));
	return due;
}

/* Return when the walk that removes rows goes on, or begins because something is to be found. */
static MonoTime
next_walk(void)
{
	if (MyScheduler->iteration_failed || MyScheduler->away)
		return CLOCK_NEVER;
	return clock_max(history_until(), MyScheduler->no_writing_until);
}

/*
 * Return when the database needs a scheduler again.  A walk that is given up begins anew with the
 * next visit: one that came back for it would be asked to exit again, where many have walks to do.
 */
MonoTime
idle_next_need(ClockNow now)
{
	MonoTime due = next_due(now);
	MonoTime walk = next_walk();

	if (MyScheduler->absent)
		return CLOCK_NEVER;
	if (MyScheduler->row_missed)
		due = clock_min(due, scan_until());
	if (MyScheduler->history.walking)
		walk = CLOCK_NEVER;
	return clock_min(due, walk);
}

/*
 * If there are not places for all databases, exit after a rest, so that a database that needs a
 * place finds one.
 */
static void
rest(bool idle, MonoTime now)
{
	if (!idle || !clock_is_before(clock_plus_ms(now, IDLE_AHEAD_MS), next_walk()))
		MyScheduler->rests_since = CLOCK_NEVER;
	else if (clock_is_before(now, MyScheduler->rests_since))
		MyScheduler->rests_since = now;
	else if (clock_exceeds(MyScheduler->rests_since, now, REST_MS))
		scheduler_slot_leave(MyScheduler->slot); /* this sets the latch as well */
}

/* Return when a process that rests exits; CLOCK_NEVER if it does not rest. */
MonoTime
idle_until(void)
{
	MonoTime since = MyScheduler->rests_since;

	return since.us == CLOCK_NEVER.us ? CLOCK_NEVER : clock_plus_ms(since, REST_MS);
}

/*
 * Tell the supervisor whether this scheduler is idle, so that another database may have its worker
 * slot.  Called within the guarded iteration, because memory may run out.
 */
void
idle_show(ClockNow now)
{
	SharedScheduler *slot = MyScheduler->slot;
	bool idle;

	/* read without a lock: the supervisor wakes this process when it changes */
	if (!Shared->crowded)
	{
		MyScheduler->rests_since = CLOCK_NEVER;
		return;
	}
	idle =
		!pool_is_busy() && clock_is_before(clock_plus_ms(now.mono, IDLE_AHEAD_MS), next_due(now));
	rest(idle, now.mono);
	if (idle == (pg_atomic_read_u64(&slot->idle_since) != 0))
		return;
	pg_atomic_write_u64(&slot->idle_since, idle ? (uint64) now.mono.us : 0);
	if (idle)
		shared_wake_supervisor();
}
