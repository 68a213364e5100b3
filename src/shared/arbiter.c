/*
 * arbiter.c
 *		How all databases of the server share the executors, and which task runs
 *		isolated.
 *
 * Every decision is made under the directory lock, by the scheduler that asks.  Only one isolated
 * task runs at a time on the whole server.
 */
#include "postgres.h"

#include "replication/logicallauncher.h"

#include "compat.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/slots.h"

/*
 * How long a database may keep its last executor while another database has tasks but no executor
 * (ms).  Also how long an executor that was asked to exit counts as exiting while it runs a task,
 * and how long a new executor that has run nothing is not asked to exit.
 */
#define SLICE_MS 100

/* How long an isolated task keeps other isolated tasks waiting (ms). */
#define ISOLATED_MS 60000

/*
 * How long "wants" of a scheduler is valid after its iteration began (ms).  A scheduler that hangs,
 * perhaps in a trigger of the table's owner, cannot use the executor that others would leave to it.
 */
#define FRESH_MS 1500

/* Has this scheduler begun an iteration recently?  If not, its "wants" is ignored. */
static bool
is_fresh(const SharedScheduler *scheduler, MonoTime now)
{
	MonoTime renewed = {
		(int64) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &scheduler->renewed))};

	return scheduler->state != SCHEDULER_FREE && !clock_exceeds(renewed, now, FRESH_MS);
}

/*
 * Count the executors of a database and a role (InvalidOid: of all), or only those that were not
 * asked to exit.  The caller holds the directory lock.
 */
static int
count_executors(Oid database, Oid role, bool staying)
{
	int count = 0;
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		count += executor->state != EXECUTOR_FREE &&
				 !(staying && executor->state == EXECUTOR_LEAVING) &&
				 (!OidIsValid(database) || executor->database == database) &&
				 (!OidIsValid(role) || executor->role == role);
	}
	return count;
}

/*
 * Record whether this scheduler has tasks but no executor for them, and a role for which it needs
 * one of another database, because the role has as many as it may (InvalidOid: there is none).
 * Wake the other schedulers if so: one of them may have to yield one.
 */
void
arbiter_want(SharedScheduler *me, bool wants, Oid role)
{
	MonoTime now = clock_mono();
	SharedDatabase *database;
	int i;

	Assert(me->proc == COMPAT_MY_PROC);
	/* read without the lock: only this process writes them */
	if (me->told && me->wants == wants && me->wants_role == role)
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	database = shared_database_find(me->database);
	if (database && (!wants || database->wants_since.us == 0))
		database->wants_since = wants ? now : CLOCK_LONG_AGO;
	me->told = true;
	if (me->wants != wants)
		me->wants_since = now;
	if (OidIsValid(me->wants_role) != OidIsValid(role))
		me->wants_role_since = now;
	me->wants = wants;
	me->wants_role = role;
	for (i = 0; i < Shared->nschedulers && (wants || OidIsValid(role)); i++)
		if (Shared->schedulers[i].state != SCHEDULER_FREE && &Shared->schedulers[i] != me)
			shared_wake(Shared->schedulers[i].proc);
	LWLockRelease(Shared->directory);
}

/*
 * Does another database want an executor, of this role or (InvalidOid) any, and come first: it has
 * fewer; or of a role as many, and has waited for a longer time?  The caller holds the directory
 * lock.
 */
static bool
others_first(SharedScheduler *me, Oid role, MonoTime now)
{
	int mine = count_executors(me->database, role, true);
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *other = &Shared->schedulers[i];
		int theirs;

		if (other == me || !is_fresh(other, now) ||
			!(OidIsValid(role) ? other->wants_role == role : other->wants))
			continue;
		theirs = count_executors(other->database, role, true);
		if (theirs < mine || (OidIsValid(role) && theirs == mine &&
							  (me->wants_role != role ||
							   clock_is_before(other->wants_role_since, me->wants_role_since))))
			return true;
	}
	return false;
}

/*
 * Count the worker slots for schedulers and executors together.  The slots of the supervisor and of
 * the server's logical replication launcher are not included, and one is left for parallel queries.
 */
int
arbiter_slots(void)
{
	return max_worker_processes - 2 - (max_logical_replication_workers > 0);
}

/*
 * Count the executors whose processes have not exited, and the schedulers.  The caller holds the
 * directory lock.
 */
static int
count_processes(int *schedulers)
{
	int executors = 0;
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	*schedulers = 0;
	for (i = 0; i < Shared->nschedulers; i++)
		*schedulers += Shared->schedulers[i].state != SCHEDULER_FREE;
	for (i = 0; i < Shared->nexecutors; i++)
		executors += executor_slot_has_process(&Shared->executors[i]);
	return executors;
}

/*
 * Is there a worker slot for one more executor?  One executor is always allowed, however many
 * schedulers there are.  The caller holds the directory lock.
 */
bool
arbiter_has_place(void)
{
	int schedulers;
	int executors = count_processes(&schedulers);

	return executors == 0 || executors + schedulers < arbiter_slots();
}

/* Return how many schedulers may run if no executor needs their worker slots. */
int
arbiter_places(void)
{
	int places = Settings.max_schedulers;

	if (places == 0)
		places = (max_worker_processes - 2) / 2;
	return Max(Min(places, arbiter_slots() - 1), 1);
}

/*
 * Return how many more schedulers may be started now, besides the existing executors.  Negative if
 * there are too many.  Sets *taken to whether executors use the worker slots of schedulers.
 */
int
arbiter_free_places(bool *taken)
{
	int schedulers;
	int executors;

	LWLockAcquire(Shared->directory, LW_SHARED);
	executors = count_processes(&schedulers);
	LWLockRelease(Shared->directory);
	*taken = arbiter_slots() - executors < arbiter_places();
	return Max(Min(arbiter_places(), arbiter_slots() - executors), 1) - schedulers;
}

/*
 * Will this executor exit soon?  Not if it has been running one task for a while, for that may take
 * long.  The caller holds the directory lock; the positions are read without the executor's.
 */
static bool
is_leaving(const SharedExecutor *executor)
{
	return executor->state == EXECUTOR_LEAVING &&
		   (executor->assigned == executor->done ||
			!clock_exceeds(executor->taken_at, clock_mono(), SLICE_MS));
}

/*
 * Does this executor have a task in its ring, or is one being claimed for it?  A reservation counts
 * as long as its scheduler is alive (is_fresh).  The caller holds the directory lock.
 */
static bool
is_needed(const SharedExecutor *executor, MonoTime now)
{
	SharedScheduler *scheduler = scheduler_slot_find(executor->database);

	Assert(LWLockHeldByMe(Shared->directory));
	return executor->assigned != executor->done ||
		   (executor->reserved && scheduler && is_fresh(scheduler, now));
}

/*
 * Ask the executor that has been idle for the longest time to exit, unless one is exiting already.
 * The executors of this role in this database are exempt; "only_role": those of other roles, too.
 * The caller holds the directory lock.
 *
 * The victim is chosen without its lock.  Under that lock the need is checked again, because the
 * victim's scheduler may have reserved it or assigned a task to it in the meantime.
 */
static void
evict_idle(Oid database, Oid role, bool only_role)
{
	MonoTime now = clock_mono();
	SharedExecutor *victim = NULL;
	int i;

	Assert(LWLockHeldByMeInMode(Shared->directory, LW_EXCLUSIVE));
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (only_role && executor->role != role)
			continue;
		if (is_leaving(executor))
			return;
		if (executor->state != EXECUTOR_READY)
			continue;
		if (executor->database == database && executor->role == role)
			continue;
		if (!is_needed(executor, now) &&
			(executor->done > 0 || clock_exceeds(executor->started, now, SLICE_MS)) &&
			(victim == NULL || clock_is_before(executor->idle_since, victim->idle_since)))
			victim = executor;
	}
	if (victim == NULL)
		return;
	LWLockAcquire(victim->lock, LW_EXCLUSIVE);
	if (!is_needed(victim, now))
		executor_slot_leave_locked(victim);
	LWLockRelease(victim->lock);
}

/* No worker slot is free: ask an idle executor of another database or role to exit. */
void
arbiter_evict(Oid database, Oid role)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	evict_idle(database, role, false);
	LWLockRelease(Shared->directory);
}

/*
 * Reserve an executor slot for this role, which may have "limit" on the server (negative: no
 * limit), in the scheduler's database.  If none is free, or the role has as many as it may, an idle
 * executor is asked to exit.
 */
ArbiterAnswer
arbiter_reserve(SharedScheduler *me, Oid role, int limit, SharedExecutor **slot)
{
	MonoTime now = clock_mono();
	ArbiterAnswer answer = ARBITER_REFUSED;

	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (limit >= 0 && count_executors(InvalidOid, role, false) >= limit)
	{
		bool mine = count_executors(me->database, role, false) >= limit;

		answer = mine ? ARBITER_ROLE_FULL : ARBITER_ROLE_ELSEWHERE;
		evict_idle(me->database, role, true);
	}
	else if (limit >= 0 && others_first(me, role, now))
		answer = ARBITER_ROLE_ELSEWHERE;
	else if (others_first(me, InvalidOid, now))
		answer = ARBITER_REFUSED;
	else if (arbiter_has_place() &&
			 (*slot = executor_slot_reserve(me->database, role, now)) != NULL)
	{
		me->granted = now;
		answer = ARBITER_RESERVED;
	}
	else
		evict_idle(me->database, role, false);
	LWLockRelease(Shared->directory);
	return answer;
}

/*
 * Should a database that has "mine" executors yield one to another that has "theirs", and has
 * wanted one since then?  At once if the difference is two or more.  If the other has none: when it
 * has wanted one for a time slice, and it is a slice since this database last got one.
 */
static bool
must_yield(SharedScheduler *me, int mine, int theirs, MonoTime since, MonoTime now)
{
	return mine > theirs + 1 || (mine > 0 && theirs == 0 && clock_exceeds(since, now, SLICE_MS) &&
								 clock_exceeds(me->granted, now, SLICE_MS));
}

/*
 * Should this database yield an executor to another one?  *role: one of this role, or InvalidOid:
 * any.  Not while such an executor is exiting already.
 */
bool
arbiter_yield(SharedScheduler *me, Oid *role)
{
	MonoTime now = clock_mono();
	bool yields = false;
	int i;

	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nschedulers && !yields; i++)
	{
		SharedScheduler *other = &Shared->schedulers[i];

		if (other == me || !is_fresh(other, now))
			continue;
		*role = InvalidOid;
		yields = other->wants && must_yield(me, count_executors(me->database, InvalidOid, true),
											count_executors(other->database, InvalidOid, true),
											other->wants_since, now);
		if (yields || !OidIsValid(other->wants_role))
			continue;
		*role = other->wants_role;
		yields =
			must_yield(me, count_executors(me->database, *role, true),
					   count_executors(other->database, *role, true), other->wants_role_since, now);
	}
	for (i = 0; i < Shared->nexecutors && yields; i++)
		if ((!OidIsValid(*role) || Shared->executors[i].role == *role) &&
			is_leaving(&Shared->executors[i]))
			yields = false;
	LWLockRelease(Shared->directory);
	return yields;
}

/* Count the executors of a database. */
int
arbiter_count_database(Oid database)
{
	int count;

	LWLockAcquire(Shared->directory, LW_SHARED);
	count = count_executors(database, InvalidOid, false);
	LWLockRelease(Shared->directory);
	return count;
}

/*
 * Is an isolated task running, in any database, or chosen by another scheduler?  One that has run
 * for a while without a crash no longer keeps others waiting.  The caller holds the directory lock.
 */
static bool
isolated_at_work(SharedScheduler *me)
{
	MonoTime now = clock_mono();
	bool at_work = false;
	int i;

	Assert(LWLockHeldByMe(Shared->directory));
	for (i = 0; i < Shared->nschedulers; i++)
		at_work |= &Shared->schedulers[i] != me && Shared->schedulers[i].isolated &&
				   Shared->schedulers[i].state != SCHEDULER_FREE;
	for (i = 0; i < Shared->nexecutors && !at_work; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];
		uint32 n;

		if (executor->state == EXECUTOR_FREE)
			continue;
		LWLockAcquire(executor->lock, LW_SHARED);
		for (n = executor->done; n != executor->assigned; n++)
			at_work |=
				executor->ring[n % SHARED_RING].isolated &&
				(n == executor->taken || !clock_exceeds(executor->taken_at, now, ISOLATED_MS));
		LWLockRelease(executor->lock);
	}
	return at_work;
}

/*
 * This scheduler is about to claim an isolated task.  False if another isolated task is running on
 * the server; this scheduler is woken when that one ends.
 */
bool
arbiter_take_isolated(SharedScheduler *me)
{
	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->isolated = !isolated_at_work(me);
	me->wants_isolated = !me->isolated;
	LWLockRelease(Shared->directory);
	return me->isolated;
}

/*
 * The isolated task was assigned, and from now on counts as one in a ring; or it was not started.
 * Wake the schedulers that wait to start theirs.
 */
void
arbiter_release_isolated(SharedScheduler *me)
{
	Assert(me->proc == COMPAT_MY_PROC);
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->isolated = false;
	slots_notify_vacated();
	LWLockRelease(Shared->directory);
}
