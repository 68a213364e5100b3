/*
 * hints.c
 *		What commits report to the scheduler of a database.
 *
 * A backend adds hints and events to the slot of the scheduler, under the slot's lock, and wakes
 * the scheduler, which takes them.  If the database has no scheduler, the supervisor is to start
 * one, which begins with a scan.
 *
 * This file reads no task row.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "shared/shared.h"
#include "shared/slots.h"

/* Entries of a scheduler that hints of single rows may fill, also of the same group. */
#define SINGLE_HINTS 16

/*
 * Return the task table of a database, or its queue table, as its scheduler has found it;
 * InvalidOid if it has not, or there is none.
 */
Oid
shared_scheduler_relid(Oid database, bool queues)
{
	SharedScheduler *scheduler;
	Oid relid = InvalidOid;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = scheduler_slot_find(database);
	if (scheduler)
	{
		LWLockAcquire(scheduler->lock, LW_SHARED);
		relid = queues ? scheduler->queue_relid : scheduler->relid;
		LWLockRelease(scheduler->lock);
	}
	LWLockRelease(Shared->directory);
	return relid;
}

/*
 * Publish the task table or the queue table: from now on the scheduler accepts reports about this
 * one alone.
 */
void
shared_scheduler_publish(SharedScheduler *me, Oid relid, bool queues)
{
	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	if (queues)
		me->queue_relid = relid;
	else
		me->relid = relid;
	LWLockRelease(me->lock);
}

/*
 * Merge a hint into an array of "size" entries, of which *count are used.  For one group, the first
 * position is kept, and whether others were named.  False if the array is full.
 */
bool
shared_hint_merge(SharedHint *hints, int *count, int size, const SharedHint *hint)
{
	int i;

	for (i = 0; i < *count; i++)
	{
		TaskPlace *place = &hints[i].place;

		if (hints[i].max != hint->max || hints[i].priority != hint->priority ||
			hints[i].role_id != hint->role_id || strcmp(hints[i].queue, hint->queue) != 0 ||
			strcmp(NameStr(hints[i].role), NameStr(hint->role)) != 0)
			continue;
		hints[i].several |=
			hint->several || hint->place.dt != place->dt || hint->place.id != place->id;
		if (hint->place.dt < place->dt ||
			(hint->place.dt == place->dt && hint->place.id < place->id))
			*place = hint->place;
		return true;
	}
	if (*count == size)
		return false;
	hints[(*count)++] = *hint;
	return true;
}

/*
 * May this hint take one more entry of the scheduler's array?  The hints of one role may use at
 * most half of the entries that other roles leave: a role whose commits name very many groups then
 * loses only its own hints.  The caller holds the scheduler's lock.
 */
static bool
leaves_room(const SharedScheduler *scheduler, const SharedHint *hint)
{
	int free = SHARED_ALL_HINTS - scheduler->nhints;
	int mine = 0;
	int i;

	Assert(LWLockHeldByMeInMode(scheduler->lock, LW_EXCLUSIVE));
	/* usually few entries are used: no need to count */
	if (scheduler->nhints < free)
		return true;
	for (i = 0; i < scheduler->nhints; i++)
		mine += strcmp(NameStr(scheduler->hints[i].role), NameStr(hint->role)) == 0;
	return mine < free;
}

/*
 * Add a hint to the slot of a scheduler.  While few entries are used, a single row gets one of its
 * own: the scheduler need not read the group to know it.  False if there is no room.  The caller
 * holds the scheduler's lock.
 */
static bool
add_hint(SharedScheduler *scheduler, const SharedHint *hint)
{
	int size = scheduler->nhints + leaves_room(scheduler, hint);

	if (hint->several || scheduler->nhints >= SINGLE_HINTS)
		return shared_hint_merge(scheduler->hints, &scheduler->nhints, size, hint);
	scheduler->hints[scheduler->nhints++] = *hint;
	return true;
}

/* Add an id, unless it is there.  Returns false if there is no room. */
bool
shared_ids_add(SharedIds *ids, int64 id)
{
	int i;

	for (i = ids->count - 1; i >= 0; i--)
		if (ids->ids[i] == id)
			return true;
	if (ids->count == SHARED_IDS)
		return false;
	ids->ids[ids->count++] = id;
	return true;
}

/*
 * Add what a commit reports to the slot of a scheduler.  Returns whether it must be woken.  It need
 * not if all that waits is planned for after it looks anyway: sessions that plan tasks for later
 * would otherwise keep it busy, one iteration for each commit.  The clock may have been set since
 * it fell asleep, so what is due now counts, too.
 */
static bool
add_report(SharedScheduler *scheduler, const SharedReport *report)
{
	Oid relid = report->relid;
	int nwatched = report->watched ? report->watched->count : 0;
	bool wake = report->events != 0 || nwatched > 0 || report->nhints == 0;
	bool serves;
	int i;

	LWLockAcquire(scheduler->lock, LW_EXCLUSIVE);
	serves = OidIsValid(relid) && scheduler->relid == relid;
	/* if it exits without having found a table, this one may be new: its successor looks */
	if (report->nhints > 0 && !OidIsValid(scheduler->relid))
		scheduler->events |= SHARED_SCAN;
	if (nwatched > 0 && !OidIsValid(scheduler->relid))
		scheduler->events |= SHARED_DEPENDENTS;
	if (serves || !OidIsValid(relid) || !OidIsValid(scheduler->relid))
		scheduler->events |= report->events;
	for (i = 0; i < nwatched && serves; i++)
		if (!shared_ids_add(&scheduler->watched, report->watched->ids[i]))
			scheduler->events |= SHARED_DEPENDENTS;
	for (i = 0; i < report->nhints && serves; i++)
	{
		TimestampTz dt = report->hints[i].place.dt;

		wake = wake || dt < scheduler->looks || dt <= GetCurrentTimestamp();
		if (!add_hint(scheduler, &report->hints[i]))
		{
			scheduler->events |= SHARED_SCAN;
			wake = true;
		}
	}
	/* it may have looked for the last time: what it does not take any more calls its successor */
	if ((wake || !serves) && scheduler->state == SCHEDULER_LEAVING)
		scheduler->events |= SHARED_SCAN;
	LWLockRelease(scheduler->lock);
	return wake || !serves;
}

/*
 * Report to the scheduler of a database, and wake it if it must be.  Without a scheduler, the
 * supervisor is to start one.  Called after a commit, so this must not fail.
 */
void
shared_scheduler_report(Oid database, const SharedReport *report)
{
	SharedScheduler *scheduler;

	LWLockAcquire(Shared->directory, LW_SHARED);
	scheduler = scheduler_slot_find(database);
	if (scheduler == NULL)
	{
		/* only the holder of the exclusive lock may mark the database */
		LWLockRelease(Shared->directory);
		LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
		scheduler = scheduler_slot_find(database);
	}
	if (scheduler == NULL)
		shared_database_mark(database);
	else if (add_report(scheduler, report))
		shared_wake(scheduler->proc);
	LWLockRelease(Shared->directory);
}

/*
 * Take the hints (at most SHARED_ALL_HINTS), the ids and the events that were added since the last
 * call.  Returns the number of hints.
 */
int
shared_scheduler_take(SharedScheduler *me, SharedHint *hints, SharedIds *watched, int *events)
{
	int count;

	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	count = me->nhints;
	memcpy(hints, me->hints, count * sizeof(SharedHint));
	*watched = me->watched;
	*events = me->events;
	me->nhints = me->watched.count = me->events = 0;
	me->looks = DT_NOEND;
	LWLockRelease(me->lock);
	return count;
}

/*
 * The scheduler sleeps until this time (of the wall clock), unless it is woken.  What was added
 * since it took the hints has set its latch.
 */
void
shared_scheduler_sleep(SharedScheduler *me, TimestampTz until)
{
	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(me->lock, LW_EXCLUSIVE);
	me->looks = until;
	LWLockRelease(me->lock);
}

/* Have some of these events been added that were not taken yet? */
bool
shared_scheduler_has_events(SharedScheduler *me, int events)
{
	bool result;

	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(me->lock, LW_SHARED);
	result = (me->events & events) != 0;
	LWLockRelease(me->lock);
	return result;
}
