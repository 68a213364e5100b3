/*
 * activity.c
 *		What an executor runs now, for everybody who wants to know.
 *
 * A task may report its progress for each row that it reads, and anybody may look all the time: a
 * spinlock of its own, held for a copy, keeps both from the locks of the slot.  While it is held,
 * nothing can raise an error or end the process.
 *
 * This file decides nothing by what it holds, and nobody may: it is for display.
 */
#include "postgres.h"

#include "shared/activity.h"

/*
 * The place of this process.  Static, because each report of a progress needs it; NULL in every
 * process that is no executor, so also in the parallel workers of one.
 */
static SharedActivity *mine = NULL;

/* This process is the executor that this place is for. */
void
activity_attach(SharedActivity *place)
{
	Assert(!place->running);
	mine = place;
}

/* The executor runs this now. */
void
activity_begin(const Activity *activity)
{
	SpinLockAcquire(&mine->mutex);
	mine->running = true;
	mine->activity = *activity;
	SpinLockRelease(&mine->mutex);
}

/* The executor runs nothing any more.  It need not have run anything. */
void
activity_end(void)
{
	if (mine == NULL || !mine->running)
		return;
	SpinLockAcquire(&mine->mutex);
	mine->running = false;
	SpinLockRelease(&mine->mutex);
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
	SpinLockAcquire(&mine->mutex);
	mine->activity.progress.done = mine->activity.progress.total = ACTIVITY_UNKNOWN;
	mine->activity.progress.message[0] = '\0';
	SpinLockRelease(&mine->mutex);
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
	SpinLockAcquire(&mine->mutex);
	if (done != ACTIVITY_UNKNOWN)
		progress->done = done;
	if (total != ACTIVITY_UNKNOWN)
		progress->total = total;
	if (message)
	{
		memcpy(progress->message, message, length);
		progress->message[length] = '\0';
	}
	SpinLockRelease(&mine->mutex);
}

/* Copy what an executor runs now.  False: nothing. */
bool
activity_read(SharedActivity *place, Activity *activity)
{
	bool running;

	SpinLockAcquire(&place->mutex);
	running = place->running;
	if (running)
		*activity = place->activity;
	SpinLockRelease(&place->mutex);
	return running;
}
