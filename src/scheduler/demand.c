/*
 * demand.c
 *		Which role gets another executor, and which executor exits for it.
 *
 * A role whose tasks find no executor demands some.  The scheduler starts them while the arbiter
 * leaves slots to this database; otherwise an executor of another role exits, or one of another
 * database is asked for.
 *
 * This file assigns no task.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "scheduler/groups.h"
#include "scheduler/pool.h"
#include "scheduler/round.h"
#include "scheduler/work.h"
#include "shared/arbiter.h"
#include "shared/worker.h"

/* Minimum time before an executor is retired in favour of another role (ms). */
#define SLICE_MS 100

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define WORKER_RETRY_MS 100

/* What becomes of a demand for executors. */
typedef enum DemandAnswer
{
	DEMAND_MET,		/* the role gets as many as it needs, or may not have more itself */
	DEMAND_REFUSED, /* no role gets one now, unless it comes from another database */
	DEMAND_AWAITED, /* the role has as many as it may on the server, some in other databases: one of
					 * them may exit for it, and others are of no use */
	DEMAND_BARRED,	/* a connection limit of 0, or code of the table's owner, keeps the role from
					 * having any */
	DEMAND_FULL		/* the connection limit of this database is reached: the same for all roles that
					 * it concerns, and executors of other databases are of no use */
} DemandAnswer;

/*
 * A role that may have no executor is looked at again when databases, roles or the table have
 * changed, and after this time (ms): not each change of a limit is reported.
 */
#define BARRED_MS 10000

/*
 * A role whose next task has no executor.  Later tasks of the role are skipped in this round, to
 * keep the order.
 */
typedef struct BlockedRole
{
	Role role;
	GroupRole *group_role;
	RoleDemand demand;
	int executors; /* that it has */
	int number;	   /* in the order of their first tasks */
} BlockedRole;

/* Worker slots lack: no attempt before this.  Static, because it lasts longer than a round. */
static MonoTime shortage_until;

/* How many executors does this role have that stay?  "starting": that are not connected yet. */
static int
count_executors(Oid role, bool starting)
{
	int count = 0;

	pool_foreach(executor)
		count += executor->role == role && !executor->leaving && !(starting && executor->ready);
	return count;
}

/*
 * Pick an executor to retire in favour of a role that has "has" executors: one of a role that has
 * at least two more, or of any role if it has none.  Among these, one of the role with the most
 * executors, then the one with the fewest tasks.  NULL if there is none, or if one is exiting
 * already: one exits at a time, but one that is in a long task does not count.
 */
static PoolExecutor *
pick_victim(Oid role, int has, MonoTime now)
{
	PoolExecutor *victim = NULL;
	int most = 0;

	pool_foreach(executor)
	{
		int count = count_executors(executor->role, false);

		if (executor->retire_then || (executor->leaving && !pool_runs_long_task(executor, now)))
			return NULL;
		if (executor->leaving || executor->role == role || !executor->ready ||
			!clock_exceeds(executor->slot->started, now, SLICE_MS) || (has > 0 && count < has + 2))
			continue;
		if (count > most ||
			(count == most && pool_count_tasks(executor) < pool_count_tasks(victim)))
		{
			victim = executor;
			most = count;
		}
	}
	return victim;
}

/* Pick the executor of this role that has the fewest tasks; NULL: there is none. */
static PoolExecutor *
pick_of_role(Oid role, MonoTime now)
{
	PoolExecutor *victim = NULL;

	pool_foreach(executor)
		if (executor->role == role && executor->taken > 0 && !executor->leaving &&
			clock_exceeds(executor->slot->started, now, SLICE_MS) &&
			(victim == NULL || pool_count_tasks(executor) < pool_count_tasks(victim)))
			victim = executor;
	return victim;
}

/* Retire an executor if a database that has fewer, perhaps of one role, wants one. */
void
demand_yield(void)
{
	MonoTime now = clock_mono();
	PoolExecutor *victim;
	Oid role;

	if (!arbiter_yield(MyScheduler->slot, &role))
		return;
	victim = OidIsValid(role) ? pick_of_role(role, now) : pick_victim(InvalidOid, 0, now);
	if (victim)
		pool_retire(victim);
}

/* Start one more executor. */
static ArbiterAnswer
start_executor(const Role *role, GroupRole *asks, MonoTime now)
{
	SharedExecutor *slot = NULL;
	ArbiterAnswer answer = arbiter_reserve(MyScheduler->slot, role->oid, role->limit, &slot);

	if (answer != ARBITER_RESERVED)
		return answer;
	if (!pool_start_executor(slot, asks->name))
	{
		arbiter_evict(MyScheduler->slot->database, role->oid);
		shortage_until = clock_plus_ms(now, WORKER_RETRY_MS);
		worker_report_none("an executor", MyScheduler->database);
		return ARBITER_REFUSED;
	}
	asks->since = now;
	return ARBITER_RESERVED;
}

/*
 * No executor can be started for a role that has "has": retire one of another role.
 */
static void
retire_for_role(const Role *role, int has, MonoTime now)
{
	PoolExecutor *victim = pick_victim(role->oid, has, now);

	if (victim == NULL)
		return;
	/* a role with many short tasks has some chosen for each of its executors in every round */
	if (victim->reserved == 0)
		pool_retire(victim);
	else
		victim->retire_then = true;
}

/* How many executors are to be started for tasks that find none? */
static int
count_wanted(const RoleDemand *demand)
{
	int tasks = demand->tasks;

	return demand->average < 0 ? tasks
							   : (int) Min(tasks * demand->average / POOL_LOAD_MAX_US + 1, tasks);
}

/* Request executors for a blocked role: start some, or retire one of another role. */
static DemandAnswer
demand_executors(DispatchRound *round, const BlockedRole *entry)
{
	const Role *role = &entry->role;
	GroupRole *asks = entry->group_role;
	MonoTime now = round->now.mono;
	int wanted = count_wanted(&entry->demand);
	int has = count_executors(role->oid, false);
	int starting = count_executors(role->oid, true);

	if (round->full && asks->limited)
		return DEMAND_FULL;
	/* when many have got none, others are not asked for */
	if (round->refused >= ROLE_LINE_CALLED)
		return DEMAND_REFUSED;
	if (role->limit == 0 || role->database_limit == 0)
		return DEMAND_BARRED;
	for (; starting < wanted; starting++, has++)
	{
		if (clock_is_before(now, asks->not_before))
			return DEMAND_MET;
		if (role->database_limit >= 0 &&
			arbiter_count_database(MyScheduler->slot->database) >= role->database_limit)
		{
			retire_for_role(role, has, now);
			return DEMAND_FULL;
		}
		if (clock_is_before(now, shortage_until))
			return DEMAND_REFUSED;
		switch (start_executor(role, asks, now))
		{
			case ARBITER_RESERVED:
				break;
			case ARBITER_REFUSED:
				retire_for_role(role, has, now);
				return DEMAND_REFUSED;
			case ARBITER_ROLE_FULL:
				return DEMAND_MET;
			case ARBITER_ROLE_ELSEWHERE:
				return DEMAND_AWAITED;
		}
	}
	return DEMAND_MET;
}

/* The role of this group, which order_next returned, has no executor for its first task. */
void
demand_block(DispatchRound *round, QueueGroup *group, const Role *role)
{
	BlockedRole *entry = palloc(sizeof(BlockedRole));

	entry->role = *role;
	entry->group_role = group->role;
	entry->group_role->oid = role->oid;
	entry->group_role->limited = role->database_limit >= 0;
	entry->demand = groups_block_role(group, round->now);
	entry->executors = count_executors(role->oid, false);
	entry->number = list_length(round->blocked);
	round->blocked = lappend(round->blocked, entry);
}

/*
 * The role that has fewer executors comes first; then the one that has got none, or needs one, for
 * a longer time; then that of the earlier task.
 */
static int
compare_need(const ListCell *left, const ListCell *right)
{
	const BlockedRole *a = lfirst(left);
	const BlockedRole *b = lfirst(right);

	if (a->executors != b->executors)
		return a->executors - b->executors;
	if (a->group_role->since.us != b->group_role->since.us)
		return a->group_role->since.us < b->group_role->since.us ? -1 : 1;
	return a->number - b->number;
}

/*
 * Which of these two roles, which need an executor of another database, does this one ask for next?
 * One at a time, in turns.
 */
static Oid
next_wanted_role(Oid left, Oid right)
{
	Oid last = MyScheduler->slot->wants_role;

	/* by the distance from the last one; unsigned numbers wrap around */
	return OidIsValid(left) && left - last - 1 < right - last - 1 ? left : right;
}

/*
 * This was the answer to the demand for a role: if it has no executor, set it aside, so that the
 * next rounds cost nothing for it.
 */
static void
set_aside(DispatchRound *round, const BlockedRole *entry, DemandAnswer answer)
{
	GroupRole *role = entry->group_role;
	MonoTime now = round->now.mono;

	round->refused += answer == DEMAND_REFUSED;
	round->full |= answer == DEMAND_FULL;
	if (answer == DEMAND_AWAITED)
		round->wants_role = next_wanted_role(round->wants_role, entry->role.oid);
	if (answer == DEMAND_BARRED)
		role_line_add(role, clock_plus_ms(now, BARRED_MS));
	else if (count_executors(role->oid, false) > 0)
		round->wanted += Max(count_wanted(&entry->demand) - count_executors(role->oid, true), 0);
	else if (answer == DEMAND_REFUSED || answer == DEMAND_FULL)
		role_line_add(role, CLOCK_LONG_AGO);
	else
		role_line_add(role, clock_max(role->not_before, role_line_next_round(now)));
}

/*
 * Request executors for the blocked roles, in the order of their needs.  When some have got none,
 * those behind them get none either.  Returns true if others may get some.
 */
bool
demand_for_blocked(DispatchRound *round)
{
	ListCell *cell;

	list_sort(round->blocked, compare_need);
	foreach(cell, round->blocked)
		set_aside(round, lfirst(cell), demand_executors(round, lfirst(cell)));
	round->blocked = NIL;
	return round->refused == 0;
}

/*
 * The round has ended: tell other databases, and the figures, which executors this one lacks.
 * NULL: there are no rounds at present, so none is of use.
 */
void
demand_publish(const DispatchRound *round)
{
	static const DispatchRound none;
	int waiting = round ? role_line_read(round->now.mono).count : 0;

	round = round ? round : &none;
	arbiter_want(MyScheduler->slot, round->refused > 0, round->wants_role);
	figure_set(FIGURE_WANTED, round->wanted + waiting);
}

/* Return the next moment after this round at which a demand that was not met is tried again. */
MonoTime
demand_until(const DispatchRound *round)
{
	MonoTime now = round->now.mono;
	MonoTime until = role_line_read(now).until;

	if (clock_is_before(now, shortage_until))
		until = clock_min(until, shortage_until);
	if (MyScheduler->slot->wants || round->full || OidIsValid(round->wants_role))
		until = clock_min(until, clock_plus_ms(now, SLICE_MS));
	return clock_max(until, clock_plus_ms(now, 1));
}
