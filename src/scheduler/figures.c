/*
 * figures.c
 *		What the scheduler publishes of its work, for pg_stat_task_scheduler.
 *
 * This process alone writes its figures, each at once: nobody waits for a lock, and figures that
 * are read together may be of different iterations.
 *
 * This file decides nothing.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "scheduler/figures.h"
#include "scheduler/isolation.h"
#include "scheduler/orphans.h"
#include "scheduler/refused.h"
#include "scheduler/work.h"

void
figures_set(SchedulerFigure which, int64 value)
{
	pg_atomic_write_u64(&MyScheduler->slot->figures[which], (uint64) value);
}

void
figures_add(SchedulerFigure which, int64 value)
{
	pg_atomic_uint64 *figure = &MyScheduler->slot->figures[which];

	/* no other process writes it */
	pg_atomic_write_u64(figure, pg_atomic_read_u64(figure) + (uint64) value);
}

/* The process has attached to its slot, which another one has used before. */
void
figures_begin(void)
{
	SchedulerFigure which;

	for (which = 0; which < SCHEDULER_FIGURES; which++)
		figures_set(which, 0);
	figures_set(FIGURE_OLDEST, DT_NOEND);
	figures_set(FIGURE_BEGUN, GetCurrentTimestamp());
}

/* An iteration has ended: publish what is so now. */
void
figures_publish(void)
{
	figures_add(FIGURE_ITERATIONS, 1);
	figures_set(FIGURE_HELD, refused_count() + isolation_count() + orphans_count());
}

/* An error has ended an iteration. */
void
figures_error(const ErrorData *error)
{
	const char *message = error->message ? error->message : "";
	SharedFindings found = shared_database_found(MyDatabaseId);
	int length = pg_mbcliplen(message, (int) strlen(message), SHARED_ERROR - 1);

	found.error = (SharedError){.at = GetCurrentTimestamp()};
	memcpy(found.error.message, message, length);
	shared_database_publish(MyDatabaseId, &found);
	figures_add(FIGURE_ERRORS, 1);
}
