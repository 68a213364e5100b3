/*
 * locked.c
 *		Waiting rows that other sessions have locked.
 *
 * A claim skips a locked row, so its executor was chosen for nothing.  After many such tasks in a
 * row, the scheduler checks for locks before it chooses tasks of the same group (locked_read_group)
 * or the same role (locked_add, locked_check).  All checks together take a bounded share of the
 * time.
 *
 * The checks run in the transaction of the claim.  This file chooses no task.
 */
#include "postgres.h"

#include "scheduler/group_locks.h"
#include "scheduler/locked.h"
#include "scheduler/role_state.h"
#include "scheduler/scheduler.h"
#include "task/rows.h"

/*
 * The checks of groups and those of roles take at most 1/10 of the time each: after one statement,
 * which checks up to DISPATCH_LOCK_MAX rows, there is a pause of PAUSE_SHARE times its duration,
 * and at least PAUSE_MIN_MS.
 */
#define PAUSE_SHARE 9
#define PAUSE_MIN_MS 10

/* A check for locks has begun then, and ended now: when may there be another one of its kind? */
static MonoTime
pause_until(MonoTime begun, MonoTime now)
{
	MonoTime until = {now.us + (now.us - begun.us) * PAUSE_SHARE};

	return clock_max(until, clock_plus_ms(now, PAUSE_MIN_MS));
}

/* Is this id one of those that rows_locked returned? */
static bool
is_locked(const int64 *ids, int count, int64 id)
{
	return bsearch(&id, ids, count, sizeof(int64), rows_compare_ids) != NULL;
}

/*
 * Read the next rows of a group of which many rows are locked.  Only rows that are not locked, or
 * not due, are remembered.
 */
static void
read_unlocked_rows(const TaskTable *table, QueueGroup *group, ClockNow now)
{
	TaskPlace *places;
	int count = rows_peek(table, &group->key, group->read_position, DISPATCH_LOCK_MAX, &places);
	TaskPlace *tried = palloc((count + 1) * sizeof(TaskPlace));
	TaskPlace end = count > 0 ? places[count - 1] : group->read_position;
	int64 *ids;
	int nids;
	int kept = 0;
	int ntried = 0;
	int i;

	for (i = 0; i < count && places[i].dt <= now.wall; i++)
		tried[ntried++] = places[i];
	if (group->head.dt <= now.wall)
		tried[ntried++] = group->head;
	nids = rows_locked(table, tried, ntried, &ids);
	if (group->head.dt <= now.wall && !is_locked(ids, nids, group->head.id))
	{
		group_locks_end(group);
		return;
	}
	for (i = 0; i < count; i++)
		if (places[i].dt > now.wall || !is_locked(ids, nids, places[i].id))
			places[kept++] = places[i];
	groups_read_unlocked(group, places, kept, end, count < DISPATCH_LOCK_MAX);
}

/* Read the next rows of a locked group, or pause the group if it is too early for a check. */
void
locked_read_group(const TaskTable *table, QueueGroup *group, ClockNow now)
{
	LockChecks *checks = &MyScheduler->lock_checks;
	MonoTime begun;

	Assert(group->locked);
	if (clock_is_before(now.mono, checks->groups_not_before))
	{
		group_locks_pause(group, checks->groups_not_before);
		return;
	}
	begun = clock_mono();
	read_unlocked_rows(table, group, now);
	checks->groups_not_before = pause_until(begun, clock_mono());
}

/* A round begins: it has no group to check yet. */
void
locked_begin_round(DispatchRound *round)
{
	round->nchecks = 0;
	MyScheduler->lock_checks.wanted = false;
}

/*
 * The first task of this group may be locked: check it.  False if it is too early for that, or if
 * enough are checked already.
 */
bool
locked_add(DispatchRound *round, QueueGroup *group, Oid role)
{
	LockChecks *checks = &MyScheduler->lock_checks;

	checks->wanted = true;
	if (round->nchecks == DISPATCH_LOCK_MAX ||
		clock_is_before(round->now.mono, checks->roles_not_before))
		return false;
	round->checks[round->nchecks].group = group;
	round->checks[round->nchecks++].role = role;
	return true;
}

/*
 * Check the first tasks of the groups that were added.  Those that are locked are dropped until a
 * scan finds them again, without an executor for them.  True if one is not locked.
 */
bool
locked_check(DispatchRound *round, const TaskTable *table)
{
	TaskPlace *places;
	MonoTime begun = clock_mono();
	int64 *ids;
	int count;
	int i;

	if (round->nchecks == 0)
		return false;
	places = palloc(round->nchecks * sizeof(TaskPlace));
	for (i = 0; i < round->nchecks; i++)
		places[i] = round->checks[i].group->places[round->checks[i].group->next];
	count = rows_locked(table, places, round->nchecks, &ids);
	for (i = 0; i < round->nchecks; i++)
	{
		if (is_locked(ids, count, places[i].id))
			(void) groups_drop_first(round->checks[i].group, round->now, &places[i]);
		else
			role_claimed(round->checks[i].role);
	}
	MyScheduler->lock_checks.roles_not_before = pause_until(begun, clock_mono());
	return count < round->nchecks;
}

/*
 * Some of the chosen tasks could not be claimed: mark those whose rows are locked.  The others were
 * changed, have expired, or are missed runs.
 */
void
locked_mark(DispatchRound *round, const TaskTable *table)
{
	TaskPlace places[DISPATCH_MAX];
	int64 *ids;
	int nids;
	int count = 0;
	int i;

	for (i = 0; i < round->count; i++)
		if (round->entries[i].claim == NULL && !round->entries[i].kept)
			places[count++] = round->entries[i].candidate.place;
	nids = rows_locked(table, places, count, &ids);
	for (i = 0; i < round->count; i++)
	{
		DispatchEntry *entry = &round->entries[i];

		entry->locked =
			entry->claim == NULL && !entry->kept && is_locked(ids, nids, entry->candidate.place.id);
	}
}

/* Learn whether the row of a chosen task was locked. */
void
locked_learn(const DispatchEntry *entry)
{
	if (entry->strict)
		return;
	if (entry->locked)
	{
		group_locks_missed(entry->group);
		role_missed(entry->role);
	}
	else
	{
		group_locks_claimed(entry->group);
		role_claimed(entry->role);
	}
}

/* Return when the next check is due; CLOCK_NEVER if the last round had no role to check. */
MonoTime
locked_until(void)
{
	LockChecks *checks = &MyScheduler->lock_checks;

	return checks->wanted ? checks->roles_not_before : CLOCK_NEVER;
}
