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

#include "scheduler/demand.h"
#include "scheduler/pool.h"
#include "scheduler/role_line.h"
#include "scheduler/work.h"
#include "shared/arbiter.h"
#include "shared/worker.h"

/* Minimum time before an executor is retired in favour of another role (ms). */
#define SLICE_MS 100

/* Retry interval while RegisterDynamicBackgroundWorker fails (ms). */
#define WORKER_RETRY_MS 100

/* Worker slots lack: no attempt before this.  Static, because it lasts longer than a round. */
static MonoTime shortage_until;

/* The last round had roles that are to ask again soon: see DemandAnswer. */
static bool ask_again;

/* How many executors does this role have that stay? */
int
demand_executors_of(Oid role)
{
	int count = 0;

	pool_foreach(executor)
		count += executor->role == role && !executor->leaving;
	return count;
}

static int
count_starting_executors(Oid role)
{
	int count = 0;

	pool_foreach(executor)
		count += executor->role == role && !executor->leaving && !executor->ready;
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
		int count = demand_executors_of(executor->role);

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
	PoolExecutor *executor;

	if (answer != ARBITER_RESERVED)
		return answer;
	executor = pool_add(slot);
	executor->handle = worker_start("executor", MyScheduler->database, asks->name,
									(int) (slot - Shared->executors), slot->generation);
	if (executor->handle == NULL)
	{
		pool_remove(executor);
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

/* How many executors are to be started for tasks of this average duration (us) that find none? */
static int
count_wanted(int tasks, double average)
{
	return average < 0 ? tasks : (int) Min(tasks * average / POOL_LOAD_MAX_US + 1, tasks);
}

/* Return how many of the executors that "tasks" tasks of a role need do not even start. */
int
demand_lacking(Oid role, int tasks, double average)
{
	return Max(count_wanted(tasks, average) - count_starting_executors(role), 0);
}

/*
 * "tasks" tasks of a role find no executor: start some, or retire one of another role.
 */
DemandAnswer
demand_executors(const Role *role, GroupRole *asks, int tasks, double average, MonoTime now)
{
	int wanted = count_wanted(tasks, average);
	int has = demand_executors_of(role->oid);
	int starting = count_starting_executors(role->oid);

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

/* The round has ended: are there roles that are to ask again soon? */
void
demand_ask_again(bool soon)
{
	ask_again = soon;
}

/* Return the next moment after "now" at which a demand that was not met is to be tried again. */
MonoTime
demand_until(MonoTime now)
{
	MonoTime until = role_line_read(now).until;

	if (clock_is_before(now, shortage_until))
		until = clock_min(until, shortage_until);
	if (MyScheduler->slot->wants || ask_again)
		until = clock_min(until, clock_plus_ms(now, SLICE_MS));
	return clock_max(until, clock_plus_ms(now, 1));
}
