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

/* The executor of this place runs this now. */
void
activity_begin(SharedActivity *place, const Activity *activity)
{
	SpinLockAcquire(&place->mutex);
	place->running = true;
	place->activity = *activity;
	SpinLockRelease(&place->mutex);
}

/* The executor runs nothing any more.  It need not have run anything. */
void
activity_end(SharedActivity *place)
{
	if (!place->running)
		return;
	SpinLockAcquire(&place->mutex);
	place->running = false;
	SpinLockRelease(&place->mutex);
}

/*
 * The running task, if there is one, has come so far.  What is ACTIVITY_UNKNOWN or NULL stays as it
 * was.  The message has at most ACTIVITY_MESSAGE bytes.
 */
void
activity_progress(SharedActivity *place, int64 done, int64 total, const char *message, int length)
{
	Progress *progress = &place->activity.progress;

	Assert(length <= ACTIVITY_MESSAGE);
	if (!place->running)
		return;
	SpinLockAcquire(&place->mutex);
	if (done != ACTIVITY_UNKNOWN)
		progress->done = done;
	if (total != ACTIVITY_UNKNOWN)
		progress->total = total;
	if (message)
	{
		memcpy(progress->message, message, length);
		progress->message[length] = '\0';
	}
	SpinLockRelease(&place->mutex);
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
