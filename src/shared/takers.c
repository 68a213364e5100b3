/*
 * takers.c
 *		Sessions that take tasks, and the runs that they hold.
 *
 * A session writes what it wants into a slot, wakes the scheduler, and waits.  The scheduler gives
 * it runs that it has claimed, and answers.  The session fetches them in its transaction: when that
 * commits, they are held, until they are ended by whoever has their handles; if it does not commit,
 * or if the session goes, they are returned.  What has ended is put into a list of the scheduler,
 * which accounts for it; without a scheduler it is forgotten, and the next one finds what has
 * become of it in the row.
 *
 * A run that is held by a lease belongs to no session.  Its row, and not this memory, says whether
 * it may still be ended: this is about who lives.
 *
 * This file reads no row and no catalog.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/takers.h"

/* When so few runs can be taken, the scheduler is woken by each end (a fraction of all). */
#define SCARCE 4

/* A run whose end is written, and not committed, is looked at again after this time (ms). */
#define ENDING_MS 1000

#define Takers (Shared->takers)

static Size
takers_part(void)
{
	return MAXALIGN(mul_size(Settings.max_takers, sizeof(SharedTaker)));
}

static Size
taken_part(void)
{
	return MAXALIGN(mul_size(Settings.max_taken, sizeof(SharedTaken)));
}

Size
takers_size(void)
{
	Size size = add_size(MAXALIGN(sizeof(SharedTakers)), takers_part());

	return add_size(add_size(size, taken_part()),
					MAXALIGN(mul_size(max_worker_processes, sizeof(dlist_head))));
}

/* Called while the shared memory is made, which is zero. */
void
takers_create(void *memory, LWLock *lock)
{
	char *rest = memory;
	int i;

	Shared->takers = memory;
	Takers->lock = lock;
	Takers->since = GetCurrentTimestamp();
	Takers->ntakers = Settings.max_takers;
	Takers->ntaken = Takers->nfree = Settings.max_taken;
	rest += MAXALIGN(sizeof(SharedTakers));
	Takers->takers = (SharedTaker *) rest;
	rest += takers_part();
	Takers->taken = (SharedTaken *) rest;
	rest += taken_part();
	Takers->ended = (dlist_head *) rest;
	dlist_init(&Takers->waiting);
	dlist_init(&Takers->free_takers);
	dlist_init(&Takers->free_taken);
	for (i = 0; i < max_worker_processes; i++)
		dlist_init(&Takers->ended[i]);
	for (i = 0; i < Takers->ntakers; i++)
		dlist_push_tail(&Takers->free_takers, &Takers->takers[i].node);
	for (i = 0; i < Takers->ntaken; i++)
		dlist_push_tail(&Takers->free_taken, &Takers->taken[i].node);
}

/* ---- runs ---- */

/* Nobody needs the entry any more.  The caller holds the lock. */
static void
free_taken(SharedTaken *entry)
{
	entry->state = TAKEN_FREE;
	entry->scheduler = -1;
	dlist_push_tail(&Takers->free_taken, &entry->node);
	Takers->nfree++;
}

/* Fill an entry that is free, of which there is one.  The caller holds the lock. */
static SharedTaken *
use_taken(const SharedTaken *run, TakenState state)
{
	SharedTaken *entry =
		dlist_container(SharedTaken, node, dlist_pop_head_node(&Takers->free_taken));
	dlist_node node = entry->node;

	Takers->nfree--;
	*entry = *run;
	entry->node = node;
	entry->state = state;
	entry->ending = entry->cancelled = false;
	progress_clear(&entry->progress);
	return entry;
}

/* The run has ended so: its scheduler is told, if it has one.  The caller holds the lock. */
static void
end_taken(SharedTaken *entry, TakenEnd end)
{
	Assert(entry->state != TAKEN_FREE && entry->state != TAKEN_ENDED);
	if (entry->scheduler < 0)
	{
		free_taken(entry);
		return;
	}
	entry->state = TAKEN_ENDED;
	entry->end = end;
	dlist_push_tail(&Takers->ended[entry->scheduler], &entry->node);
	if (end != TAKEN_WRITTEN || entry->notify || Takers->nfree < Takers->ntaken / SCARCE)
		shared_wake(Shared->schedulers[entry->scheduler].proc);
}

/* The entry of a run of this database; NULL: there is none.  The caller holds the lock. */
static SharedTaken *
find_taken(TakenRef *ref)
{
	int i = ref->number >= 0 && ref->number < Takers->ntaken ? ref->number : 0;
	/* the number is right, unless the server was restarted since; it may be made up */
	int last = i + (ref->run.claimed < Takers->since ? Takers->ntaken : 1);

	for (; i < last; i++)
	{
		SharedTaken *entry = &Takers->taken[i % Takers->ntaken];

		if (entry->state == TAKEN_FREE || entry->state == TAKEN_ENDED ||
			entry->database != MyDatabaseId || !task_same_run(entry->run, ref->run))
			continue;
		ref->number = i % Takers->ntaken;
		return entry;
	}
	ref->number = -1;
	return NULL;
}

/* Copy the entry of a run of this database.  False: there is none. */
bool
taken_find(TakenRef *ref, SharedTaken *copy)
{
	SharedTaken *entry;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	entry = find_taken(ref);
	if (entry)
		*copy = *entry;
	LWLockRelease(Takers->lock);
	return entry != NULL;
}

/* The transaction in which the run was fetched has committed: it is held. */
void
taken_hold(TakenRef ref)
{
	SharedTaken *entry;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	entry = find_taken(&ref);
	if (entry && entry->state == TAKEN_FETCHED)
	{
		entry->state = TAKEN_HELD;
		if (entry->lease > 0)
		{
			entry->proc = SHARED_NO_PROC;
			entry->expires = clock_plus_ms(clock_mono(), entry->lease);
		}
	}
	LWLockRelease(Takers->lock);
}

/*
 * The end of the run was written by a transaction, which is open; or that has not committed: then
 * the lease begins anew.
 */
void
taken_set_ending(TakenRef ref, bool ending)
{
	SharedTaken *entry;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	entry = find_taken(&ref);
	if (entry)
	{
		entry->ending = ending;
		if (entry->state == TAKEN_HELD && entry->lease > 0)
			entry->expires = clock_plus_ms(clock_mono(), entry->lease);
	}
	LWLockRelease(Takers->lock);
}

/* The run has ended so, or is returned. */
void
taken_end(TakenRef ref, TakenEnd end)
{
	SharedTaken *entry;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	entry = find_taken(&ref);
	if (entry)
		end_taken(entry, end);
	LWLockRelease(Takers->lock);
}

/*
 * Extend the lease of a run: it ends not before as much later than now as it has lasted, or (unless
 * negative) so much (ms).  So it never ends sooner than the scheduler has seen.  And the run has
 * come so far.  False: it is to end, or has.
 */
bool
taken_renew(TakenRef ref, int lease, const ProgressReport *report)
{
	SharedTaken *entry;
	bool mine;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	entry = find_taken(&ref);
	mine = entry && entry->state != TAKEN_CHOSEN && !entry->cancelled;
	if (mine)
		progress_update(&entry->progress, report);
	if (mine && entry->lease > 0)
	{
		entry->lease = lease > 0 ? lease : entry->lease;
		if (entry->state == TAKEN_HELD)
			entry->expires = clock_max(entry->expires, clock_plus_ms(clock_mono(), entry->lease));
	}
	LWLockRelease(Takers->lock);
	return mine;
}

/* This session ends, or begins anew: what it holds as long as it lives is lost. */
void
taken_session_ended(void)
{
	int i;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	for (i = 0; i < Takers->ntaken; i++)
	{
		SharedTaken *entry = &Takers->taken[i];

		if (entry->state == TAKEN_HELD && entry->proc == COMPAT_MY_PROC)
			end_taken(entry, TAKEN_LOST);
	}
	LWLockRelease(Takers->lock);
}

/*
 * Copy the first run in somebody's hands in a database (InvalidOid: in any) whose number is *number
 * or greater, and set that to its number.  False: there is none.
 */
bool
taken_look(Oid database, int *number, SharedTaken *copy)
{
	bool found = false;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	for (; *number < Takers->ntaken && !found; *number += !found)
	{
		const SharedTaken *entry = &Takers->taken[*number];

		found = entry->state != TAKEN_FREE && entry->state != TAKEN_ENDED &&
				(!OidIsValid(database) || entry->database == database);
		if (found)
			*copy = *entry;
	}
	LWLockRelease(Takers->lock);
	return found;
}

/* A database was dropped: with it the runs that are held there.  No scheduler is left in it. */
void
taken_database_dropped(Oid database)
{
	int i;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	for (i = 0; i < Takers->ntaken; i++)
	{
		SharedTaken *entry = &Takers->taken[i];

		if (entry->state != TAKEN_FREE && entry->database == database && entry->scheduler < 0)
			free_taken(entry);
	}
	LWLockRelease(Takers->lock);
}

/* ---- sessions that wait ---- */

/* This session waits for tasks.  NULL: too many do. */
SharedTaker *
taker_begin(const TakerWish *wish)
{
	SharedTaker *me = NULL;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (!dlist_is_empty(&Takers->free_takers))
	{
		me = dlist_container(SharedTaker, node, dlist_pop_head_node(&Takers->free_takers));
		me->generation++;
		me->database = MyDatabaseId;
		me->proc = COMPAT_MY_PROC;
		me->pid = MyProcPid;
		me->since = GetCurrentTimestamp();
		memcpy(&me->wish, wish, offsetof(TakerWish, texts) + wish->length);
		me->count = 0;
		me->state = TAKER_WAITS;
		dlist_push_tail(&Takers->waiting, &me->node);
	}
	LWLockRelease(Takers->lock);
	return me;
}

static void
free_taker(SharedTaker *me)
{
	me->state = TAKER_FREE;
	dlist_push_head(&Takers->free_takers, &me->node);
}

/*
 * Fetch what was chosen for this session, which waits no longer.  Returns the number of runs; -1:
 * there is no answer yet.
 */
int
taker_fetch(SharedTaker *me, TakenRef *refs)
{
	int count = -1;
	int i;

	if (me->state != TAKER_ANSWERED)
		return -1;
	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (me->state == TAKER_ANSWERED)
	{
		count = me->count;
		for (i = 0; i < count; i++)
		{
			SharedTaken *entry = &Takers->taken[me->taken[i]];

			Assert(entry->state == TAKEN_CHOSEN);
			entry->state = TAKEN_FETCHED;
			refs[i] = (TakenRef){me->taken[i], entry->run};
		}
		free_taker(me);
	}
	LWLockRelease(Takers->lock);
	return count;
}

/* This session waits no longer: what was chosen for it is returned. */
void
taker_withdraw(SharedTaker *me)
{
	int i;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (me->state == TAKER_WAITS)
		dlist_delete(&me->node);
	for (i = 0; i < me->count; i++)
		end_taken(&Takers->taken[me->taken[i]], TAKEN_RETURNED);
	free_taker(me);
	LWLockRelease(Takers->lock);
}

/* ---- for a scheduler ---- */

/*
 * List the sessions that wait for tasks of a database, in the order of their arrival.  There is
 * room for all.  Returns how many.
 */
int
takers_waiting(Oid database, int *numbers, uint32 *generations)
{
	int count = 0;
	dlist_iter iter;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &Takers->waiting)
	{
		SharedTaker *taker = dlist_container(SharedTaker, node, iter.cur);

		if (taker->database != database)
			continue;
		numbers[count] = taker - Takers->takers;
		generations[count++] = taker->generation;
	}
	LWLockRelease(Takers->lock);
	return count;
}

/* Does a session take tasks with this request? */
bool
taker_wants(const TakerWish *wish, const char *request)
{
	const char *text = wish->texts;
	int i;

	for (i = 0; i < wish->nqueues; i++)
		text += strlen(text) + 1;
	for (i = 0; i < wish->nnames; i++, text += strlen(text) + 1)
		if (strcmp(text, request) == 0)
			return true;
	return wish->nnames == 0;
}

/* Does a session wait in this slot since this generation? */
static bool
waits(const SharedTaker *taker, uint32 generation)
{
	return taker->state == TAKER_WAITS && taker->generation == generation;
}

/* Copy what a session wants.  False: it does not wait any more. */
bool
takers_wish(int number, uint32 generation, TakerWish *wish, int *pid)
{
	const SharedTaker *taker = &Takers->takers[number];
	bool found;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	found = waits(taker, generation);
	if (found)
	{
		memcpy(wish, &taker->wish, offsetof(TakerWish, texts) + taker->wish.length);
		*pid = taker->pid;
	}
	LWLockRelease(Takers->lock);
	return found;
}

/*
 * Give a claimed run to a session that waits.  Returns the number of its entry; -1: the session
 * does not wait any more, has enough (an earlier scheduler may have given some), or no entry is
 * free.
 */
int
taken_give(int number, uint32 generation, const SharedTaken *run)
{
	SharedTaker *taker = &Takers->takers[number];
	int given = -1;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (waits(taker, generation) && taker->count < taker->wish.count && Takers->nfree > 0)
	{
		SharedTaken *entry = use_taken(run, TAKEN_CHOSEN);

		entry->pid = taker->pid;
		entry->proc = taker->proc;
		given = taker->taken[taker->count++] = entry - Takers->taken;
	}
	LWLockRelease(Takers->lock);
	return given;
}

/* A session that waits has all that it gets: wake it. */
void
takers_answer(int number, uint32 generation)
{
	SharedTaker *taker = &Takers->takers[number];

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (waits(taker, generation))
	{
		taker->state = TAKER_ANSWERED;
		dlist_delete(&taker->node);
		shared_wake(taker->proc);
	}
	LWLockRelease(Takers->lock);
}

/* A run is held by a lease, by its row: remember it.  Returns its number; -1: no entry is free. */
int
taken_keep(const SharedTaken *run)
{
	int number = -1;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (Takers->nfree > 0)
		number = use_taken(run, TAKEN_HELD) - Takers->taken;
	LWLockRelease(Takers->lock);
	return number;
}

/*
 * From now on this scheduler accounts for a run of its database, the first with a greater number
 * than this one.  Returns its number; -1: there is none.  What has ended is forgotten.
 */
int
taken_adopt(Oid database, int scheduler, int after, SharedTaken *copy)
{
	int found = -1;
	int i;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	for (i = after + 1; i < Takers->ntaken && found < 0; i++)
	{
		SharedTaken *entry = &Takers->taken[i];

		if (entry->state == TAKEN_FREE || entry->database != database)
			continue;
		Assert(entry->state != TAKEN_ENDED && entry->scheduler < 0);
		entry->scheduler = scheduler;
		*copy = *entry;
		found = i;
	}
	LWLockRelease(Takers->lock);
	return found;
}

/* Take a run that has ended out of the list of this scheduler.  Returns its number; -1: none has.
 */
int
taken_reap(int scheduler, SharedTaken *ended)
{
	dlist_head *list = &Takers->ended[scheduler];
	int number = -1;

	/* a guess: who adds one wakes this process, or it looks again soon */
	if (dlist_is_empty(list))
		return -1;
	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	if (!dlist_is_empty(list))
	{
		SharedTaken *entry = dlist_container(SharedTaken, node, dlist_pop_head_node(list));

		*ended = *entry;
		number = entry - Takers->taken;
		free_taken(entry);
	}
	LWLockRelease(Takers->lock);
	return number;
}

/*
 * End those runs of this scheduler whose lease has expired, or whose time is over, unless a
 * transaction is about to end them: they are put into its list.  Returns when the next one ends so.
 */
MonoTime
taken_expire(int scheduler, MonoTime now)
{
	MonoTime next = CLOCK_NEVER;
	int i;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	for (i = 0; i < Takers->ntaken; i++)
	{
		SharedTaken *entry = &Takers->taken[i];

		if (entry->scheduler != scheduler || entry->state == TAKEN_FREE ||
			entry->state == TAKEN_ENDED)
			continue;
		if (entry->ending)
			next = clock_min(next, clock_plus_ms(now, ENDING_MS));
		else if (!clock_is_before(now, entry->expires))
			end_taken(entry, TAKEN_LOST);
		else if (!clock_is_before(now, entry->times_out) && entry->state != TAKEN_CHOSEN)
			end_taken(entry, TAKEN_TIMED_OUT);
		else
			next = clock_min(next, clock_min(entry->expires, entry->times_out));
		/* its lease does not begin before it is held */
		if ((entry->state == TAKEN_CHOSEN || entry->state == TAKEN_FETCHED) && entry->lease > 0)
			next = clock_min(next, clock_plus_ms(now, entry->lease));
	}
	LWLockRelease(Takers->lock);
	return next;
}

/* The row of this run was changed: it must end. */
void
taken_cancel(int number)
{
	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	Takers->taken[number].cancelled = true;
	LWLockRelease(Takers->lock);
}

/* This scheduler exits: nobody accounts for its runs until there is another one. */
void
taken_abandon(int scheduler)
{
	int i;

	LWLockAcquire(Takers->lock, LW_EXCLUSIVE);
	while (!dlist_is_empty(&Takers->ended[scheduler]))
		free_taken(
			dlist_container(SharedTaken, node, dlist_pop_head_node(&Takers->ended[scheduler])));
	for (i = 0; i < Takers->ntaken; i++)
		if (Takers->taken[i].state != TAKEN_FREE && Takers->taken[i].scheduler == scheduler)
			Takers->taken[i].scheduler = -1;
	LWLockRelease(Takers->lock);
}
