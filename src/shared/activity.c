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

#include "mb/pg_wchar.h"
#include "utils/builtins.h"

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

/* What the arguments of a function say, from this one on: done, total, message. */
ProgressReport
progress_of_arguments(FunctionCallInfo fcinfo, int first)
{
	ProgressReport report = {
		.done = PG_ARGISNULL(first) ? ACTIVITY_UNKNOWN : PG_GETARG_INT64(first),
		.total = PG_ARGISNULL(first + 1) ? ACTIVITY_UNKNOWN : PG_GETARG_INT64(first + 1),
	};

	if (!PG_ARGISNULL(first + 2))
	{
		report.message = text_to_cstring(PG_GETARG_TEXT_PP(first + 2));
		report.length =
			pg_mbcliplen(report.message, (int) strlen(report.message), ACTIVITY_MESSAGE);
	}
	return report;
}

/* This is said now.  The caller holds what guards the progress. */
void
progress_update(Progress *progress, const ProgressReport *report)
{
	Assert(report->length <= ACTIVITY_MESSAGE);
	if (report->done != ACTIVITY_UNKNOWN)
		progress->done = report->done;
	if (report->total != ACTIVITY_UNKNOWN)
		progress->total = report->total;
	if (report->message)
	{
		memcpy(progress->message, report->message, report->length);
		progress->message[report->length] = '\0';
	}
}

/* The running task, if there is one, has come so far. */
void
activity_progress(SharedActivity *place, const ProgressReport *report)
{
	if (!place->running)
		return;
	SpinLockAcquire(&place->mutex);
	progress_update(&place->activity.progress, report);
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
