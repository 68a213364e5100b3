/*
 * activity.c
 *		What an executor runs now, for everybody who wants to know.
 *
 * A task may report its progress for each row that it reads, and anybody may look all the time.  So
 * nobody takes a lock: the executor, the only one that writes, makes the counter of changes odd
 * before it writes and even after it, as the server does for pg_stat_activity.  A reader whose copy
 * was made while the counter was odd, or changed, makes another one, so it never returns parts of
 * two states.
 *
 * Between the two changes of the counter an executor does nothing that could be interrupted by an
 * error or by the end of the process.
 *
 * This file decides nothing by what it holds, and nobody may: it is for display.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "shared/activity.h"

/*
 * The place of this process.  Static, because each report of a progress needs it; NULL in every
 * process that is no executor, so also in the parallel workers of one.
 */
static SharedActivity *mine = NULL;

/* Called once for each place, when shared memory is made. */
void
activity_init(SharedActivity *place)
{
	pg_atomic_init_u32(&place->changes, 0);
	place->running = false;
}

/* This process is the executor that this place is for. */
void
activity_attach(SharedActivity *place)
{
	Assert(!place->running && pg_atomic_read_u32(&place->changes) % 2 == 0);
	mine = place;
}

/* The executor begins to write: no reader takes what it sees from now on. */
static inline void
begin_change(void)
{
	pg_atomic_write_u32(&mine->changes, pg_atomic_read_u32(&mine->changes) + 1);
	Assert(pg_atomic_read_u32(&mine->changes) % 2 == 1);
	pg_write_barrier();
}

static inline void
end_change(void)
{
	pg_write_barrier();
	pg_atomic_write_u32(&mine->changes, pg_atomic_read_u32(&mine->changes) + 1);
	Assert(pg_atomic_read_u32(&mine->changes) % 2 == 0);
}

/* The executor runs this now. */
void
activity_begin(const Activity *activity)
{
	begin_change();
	mine->running = true;
	mine->activity = *activity;
	end_change();
}

/* The executor runs nothing any more.  It need not have run anything. */
void
activity_end(void)
{
	if (mine == NULL || !mine->running)
		return;
	begin_change();
	mine->running = false;
	end_change();
}

/* Does a task run in this process? */
bool
activity_is_mine(void)
{
	return mine != NULL && mine->running;
}

/* The running task has reported nothing yet: it starts anew. */
void
activity_restart_progress(void)
{
	begin_change();
	mine->activity.progress.done = mine->activity.progress.total = ACTIVITY_UNKNOWN;
	mine->activity.progress.message[0] = '\0';
	end_change();
}

/*
 * The running task has come so far.  What is ACTIVITY_UNKNOWN or NULL stays as it was.  The message
 * has at most ACTIVITY_MESSAGE bytes.
 */
void
activity_progress(int64 done, int64 total, const char *message, int length)
{
	Progress *progress = &mine->activity.progress;

	Assert(activity_is_mine() && length <= ACTIVITY_MESSAGE);
	begin_change();
	if (done != ACTIVITY_UNKNOWN)
		progress->done = done;
	if (total != ACTIVITY_UNKNOWN)
		progress->total = total;
	if (message)
	{
		memcpy(progress->message, message, length);
		progress->message[length] = '\0';
	}
	end_change();
}

/* Copy what an executor runs now.  False: nothing. */
bool
activity_read(const SharedActivity *place, Activity *activity)
{
	SharedActivity *shared = unconstify(SharedActivity *, place);
	bool running;
	uint32 before;
	uint32 after;

	for (;;)
	{
		before = pg_atomic_read_u32(&shared->changes);
		pg_read_barrier();
		running = shared->running;
		if (running)
			*activity = shared->activity;
		pg_read_barrier();
		after = pg_atomic_read_u32(&shared->changes);
		if (before == after && before % 2 == 0)
			return running;
		/* bounded by how often the task reports while this copies */
		CHECK_FOR_INTERRUPTS();
	}
}
