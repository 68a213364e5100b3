/*
 * arbiter.c
 *		Whose turn it is: executors, which all databases of the server share, and
 *		the one task at a time that runs in isolation.
 *
 * Everything here is decided under the directory lock, by whichever scheduler asks.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "replication/logicallauncher.h"
#include "storage/lwlock.h"

#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"

/*
 * A database that has an executor for so long gives one up when another one
 * has work and none.
 */
#define SLICE_MS 100

/* So long a task that runs in isolation has its time to itself. */
#define ISOLATED_MS 60000

/*
 * What a scheduler wants counts for so long after its iteration began: one that hangs, in a
 * trigger of a table's owner perhaps, can do nothing with what others leave it.
 */
#define FRESH_MS 1500

/* An iteration of a scheduler begins: what it wants counts. */
void
arbiter_renew(SharedScheduler *me)
{
	pg_atomic_write_u64(&me->renewed, (uint64) clock_mono().us);
}

/* Does what this scheduler wants, or has chosen, count? */
static bool
is_fresh(const SharedScheduler *scheduler, MonoTime now)
{
	MonoTime renewed = {
		(int64) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &scheduler->renewed))};

	return scheduler->in_use && !clock_exceeds(renewed, now, FRESH_MS);
}

/* How many executors a database has and keeps.  The directory lock must be held. */
static int
count_executors(Oid database)
{
	int count = 0;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (executor->in_use && !executor->leave && executor->database == database)
			count++;
	}
	return count;
}

/*
 * Say whether there is work for which no executor could be had.  The other
 * schedulers are woken: one of them may have to give one up.
 */
void
arbiter_want(SharedScheduler *me, bool wants)
{
	int i;

	if (me->wants == wants) /* only this process writes it */
		return;
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->wants = wants;
	me->wants_since = clock_mono();
	for (i = 0; i < Shared->nschedulers && wants; i++)
		if (Shared->schedulers[i].in_use && &Shared->schedulers[i] != me)
			shared_wake(Shared->schedulers[i].proc);
	LWLockRelease(Shared->directory);
}

/* Does another database want an executor and have fewer?  The directory lock must be held. */
static bool
others_first(SharedScheduler *me, int mine, MonoTime now)
{
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
	{
		SharedScheduler *other = &Shared->schedulers[i];

		if (other != me && other->wants && is_fresh(other, now) &&
			count_executors(other->database) < mine)
			return true;
	}
	return false;
}

/*
 * Worker slots for schedulers and executors together: not those of the supervisor and of
 * the server's launcher of logical replication, and one is left for parallel queries.
 */
static int
count_slots(void)
{
	return max_worker_processes - 2 - (max_logical_replication_workers > 0);
}

/* Is there a slot for an executor beside one scheduler, if parallel queries have none? */
bool
turns_enough_slots(void)
{
	return count_slots() > 0;
}

/* The directory lock must be held. */
static int
count_schedulers(void)
{
	int count = 0;
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
		count += Shared->schedulers[i].in_use;
	return count;
}

/* The directory lock must be held. */
static int
count_processes(void)
{
	int count = 0;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
		count += Shared->executors[i].in_use && !Shared->executors[i].gone;
	return count;
}

/* May there be one more executor?  One at least, however many schedulers there are. */
static bool
has_slot(void)
{
	int executors = count_processes();

	return executors == 0 || executors + count_schedulers() < count_slots();
}

/* How many schedulers there may be, if no executor needs the slots. */
int
arbiter_places(void)
{
	int places = settings_max_schedulers;

	if (places == 0)
		places = (max_worker_processes - 2) / 2;
	return Max(Min(places, count_slots() - 1), 1);
}

/* How many more may be started now, beside the executors that there are. */
int
arbiter_free_places(void)
{
	int places;

	LWLockAcquire(Shared->directory, LW_SHARED);
	places = Max(Min(arbiter_places(), count_slots() - count_processes()), 1) - count_schedulers();
	LWLockRelease(Shared->directory);
	return places;
}

/*
 * Is this executor on its way out?  Not if it has been busy with one task for
 * a while, for that may take long.
 */
static bool
is_leaving(const SharedExecutor *executor)
{
	return executor->in_use && executor->leave &&
		   (executor->assigned == executor->done ||
			!clock_exceeds(executor->taken_at, clock_mono(), SLICE_MS));
}

/*
 * Has it a task before it, or one that is being claimed for it?  A promise lasts as long as
 * the scheduler is at work on it.  The directory lock must be held.
 */
static bool
is_needed(const SharedExecutor *executor, MonoTime now)
{
	SharedScheduler *scheduler = shared_scheduler_find(executor->database);

	return executor->assigned != executor->done ||
		   (executor->reserved && scheduler && is_fresh(scheduler, now));
}

/*
 * Ask the executor that has been idle for longest to make room, unless one is
 * on its way out already.  The directory lock must be held.
 */
static void
evict_idle(Oid database, Oid role)
{
	MonoTime now = clock_mono();
	SharedExecutor *victim = NULL;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (is_leaving(executor))
			return;
		if (executor->leave || !executor->in_use || !executor->ready || executor->gone)
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
	victim->leave = !is_needed(victim, now);
	LWLockRelease(victim->lock);
	shared_wake(victim->proc);
}

/*
 * No worker slot is free: let an idle executor of another database or role
 * make room.
 */
void
arbiter_evict(Oid database, Oid role)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	evict_idle(database, role);
	LWLockRelease(Shared->directory);
}

/* A database needs a scheduler: an executor that is idle makes room if it has taken a place. */
void
arbiter_evict_for_scheduler(void)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (count_slots() - count_processes() < arbiter_places())
		evict_idle(InvalidOid, InvalidOid);
	LWLockRelease(Shared->directory);
}

static void
reset_executor(SharedExecutor *executor, Oid database, Oid role, MonoTime now)
{
	executor->in_use = true;
	executor->gone = false;
	executor->generation++;
	executor->database = database;
	executor->role = role;
	executor->proc = SHARED_NO_PROC;
	executor->ready = false;
	executor->leave = false;
	executor->reserved = false;
	executor->pid = 0;
	executor->started = executor->idle_since = now;
	executor->failure.sqlstate[0] = '\0';
	executor->failure.unwritten = false;
	executor->cancel_sent = false;
	executor->quit = false;
	pg_atomic_write_u32(&executor->workers, 0);
	executor->assigned = executor->taken = executor->done = executor->notify_at = 0;
}

/*
 * A free slot for an executor; if there is none, one in which a process has left tasks that no
 * scheduler accounts for now: the next one of that database finds them in the table.  The
 * directory lock must be held.
 */
static SharedExecutor *
find_free(void)
{
	SharedExecutor *left = NULL;
	int i;

	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];

		if (!executor->in_use)
			return executor;
		if (left == NULL && executor->gone && shared_scheduler_find(executor->database) == NULL)
			left = executor;
	}
	return left;
}

/*
 * Take a slot for an executor.  NULL when none is free, or when the free one
 * is another database's turn; an idle executor is then asked to make room.
 */
SharedExecutor *
arbiter_reserve(SharedScheduler *me, Oid role)
{
	MonoTime now = clock_mono();
	SharedExecutor *result = NULL;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	if (!others_first(me, count_executors(me->database), now))
	{
		if (has_slot())
			result = find_free();
		if (result)
		{
			reset_executor(result, me->database, role, now);
			me->granted = now;
		}
		else
			evict_idle(me->database, role);
	}
	LWLockRelease(Shared->directory);
	return result;
}

/*
 * Should this database give up an executor for one that has fewer?  At once
 * when the difference is two or more; otherwise, when there are more databases
 * with work than executors, the one that has held its own for longest, after
 * a slice of time.
 */
bool
arbiter_yield(SharedScheduler *me)
{
	MonoTime now = clock_mono();
	bool yields = false;
	int mine;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	mine = count_executors(me->database);
	for (i = 0; i < Shared->nschedulers && mine > 0; i++)
	{
		SharedScheduler *other = &Shared->schedulers[i];
		int theirs;

		if (other == me || !other->wants || !is_fresh(other, now))
			continue;
		theirs = count_executors(other->database);
		if (mine > theirs + 1 || (theirs == 0 && clock_exceeds(other->wants_since, now, SLICE_MS) &&
								  clock_exceeds(me->granted, now, SLICE_MS)))
			yields = true;
	}
	for (i = 0; i < Shared->nexecutors && yields; i++)
		if (is_leaving(&Shared->executors[i]))
			yields = false;
	LWLockRelease(Shared->directory);
	return yields;
}

/* How many executors a role has, in all databases. */
int
arbiter_count_role(Oid role)
{
	int count = 0;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors; i++)
		count += Shared->executors[i].in_use && Shared->executors[i].role == role;
	LWLockRelease(Shared->directory);
	return count;
}

/* How many executors a database has. */
int
arbiter_count_database(Oid database)
{
	int count = 0;
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nexecutors; i++)
		count += Shared->executors[i].in_use && Shared->executors[i].database == database;
	LWLockRelease(Shared->directory);
	return count;
}

/*
 * Is a task at work, in any database, that has to run in isolation?  One that has run for a while
 * without a crash keeps the others waiting no longer.  The directory lock must be held.
 */
static bool
isolated_at_work(SharedScheduler *me)
{
	MonoTime now = clock_mono();
	bool at_work = false;
	int i;

	for (i = 0; i < Shared->nschedulers; i++)
		at_work |= &Shared->schedulers[i] != me && Shared->schedulers[i].isolated &&
				   is_fresh(&Shared->schedulers[i], now);
	for (i = 0; i < Shared->nexecutors && !at_work; i++)
	{
		SharedExecutor *executor = &Shared->executors[i];
		uint32 n;

		if (!executor->in_use)
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
 * A task that may crash the server is about to be started: one at a time on the whole
 * server.  False: another one is at work; when it ends, this scheduler is woken.
 */
bool
arbiter_take_isolated(SharedScheduler *me)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->isolated = !isolated_at_work(me);
	me->wants_isolated = !me->isolated;
	LWLockRelease(Shared->directory);
	return me->isolated;
}

/*
 * The task that was chosen to run in isolation is claimed.  False: that took so long that another
 * one was started meanwhile, and this one must wait.
 */
bool
arbiter_keep_isolated(SharedScheduler *me)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->isolated &= !isolated_at_work(me);
	arbiter_renew(me);
	LWLockRelease(Shared->directory);
	return me->isolated;
}

/*
 * It was handed out, and counts from there, or it was not started after all: then others
 * may have their turn.
 */
void
arbiter_release_isolated(SharedScheduler *me)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	me->isolated = false;
	LWLockRelease(Shared->directory);
	arbiter_isolated_ended();
}

/* Could one be started now?  If not, this scheduler is woken when one has ended. */
bool
arbiter_isolated_free(SharedScheduler *me)
{
	bool free;

	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	free = !isolated_at_work(me);
	me->wants_isolated = !free;
	LWLockRelease(Shared->directory);
	return free;
}

/* One has ended: tell those who wait to start theirs. */
void
arbiter_isolated_ended(void)
{
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = 0; i < Shared->nschedulers; i++)
		if (Shared->schedulers[i].in_use && Shared->schedulers[i].wants_isolated)
			shared_wake(Shared->schedulers[i].proc);
	LWLockRelease(Shared->directory);
}
