/*
 * unstarted.c
 *		Tasks that will not be started, until their rows are written: their roles may
 *		not run them, or they have expired.
 *
 * Such a row is written, and its next run planned, in a transaction of its own after the claim.  It
 * may wait for a user's lock, or a trigger may refuse it; the tasks of other users are claimed and
 * assigned before that.
 *
 * This file starts no task.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/history.h"
#include "scheduler/refused.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "shared/shared.h"
#include "task/outcome.h"

/* Maximum number of entries; a later scan finds the other tasks again. */
#define UNSTARTED_MAX 512

/* Maximum number of rows in a transaction: each takes some statements, and other tasks wait. */
#define BATCH_MAX 64

/* Maximum number of tasks that are set to GONE in one transaction. */
#define EXPIRE_MAX 1000

typedef struct Unstarted
{
	TaskPlace place;
	NameData role;
	int64 active;		   /* as in Candidate, for a task that may have expired */
	SettingsMissed missed; /* likewise */
	bool repeats;		   /* it may: see outcome_refused */
	char sqlstate[6];	   /* empty: the task may have expired */
	char error[160];
	char hint[320]; /* empty: none */
} Unstarted;

/*
 * Static, because a round of dispatch adds the tasks, and a transaction after it writes their rows,
 * perhaps in a later iteration.
 */
static struct
{
	Unstarted tasks[UNSTARTED_MAX];
	int count;
	int writing; /* number of tasks, from the first, that are being written */

	TimestampTz next_expiry; /* when the next waiting task expires */
} unstarted;

/* Add a task.  NULL if there is no free entry, or if the task has one already. */
static Unstarted *
add_task(TaskPlace place, const char *role)
{
	Unstarted *task;
	int i;

	for (i = 0; i < unstarted.count; i++)
	{
		task = &unstarted.tasks[i];
		if (task->place.id == place.id && task->place.dt == place.dt &&
			strcmp(NameStr(task->role), role) == 0)
			return NULL;
	}
	if (unstarted.count == UNSTARTED_MAX)
		return NULL;
	task = &unstarted.tasks[unstarted.count++];
	memset(task, 0, sizeof(Unstarted));
	task->place = place;
	namestrcpy(&task->role, role);
	return task;
}

/*
 * Add a waiting task that is to be set to FAIL, or, if it "repeats", perhaps to wait; the hint may
 * be NULL.  False if there is no free
 * entry.
 */
bool
unstarted_fail(TaskPlace place, const char *role, const char *error, const char *hint, int sqlstate,
			   bool repeats)
{
	Unstarted *task = add_task(place, role);

	if (task == NULL)
		return unstarted.count < UNSTARTED_MAX;
	task->repeats = repeats;
	strlcpy(task->sqlstate, unpack_sql_state(sqlstate), sizeof(task->sqlstate));
	strlcpy(task->error, error, sizeof(task->error));
	strlcpy(task->hint, hint ? hint : "", sizeof(task->hint));
	return true;
}

/* Add a waiting task that could not be claimed: if it has expired, it is to be set to GONE. */
void
unstarted_expire(const Candidate *candidate)
{
	Unstarted *task = add_task(candidate->place, candidate->group->role);

	if (task)
	{
		task->active = candidate->active;
		task->missed = candidate->missed;
	}
}

static bool
may_have_expired(const Unstarted *task)
{
	return task->sqlstate[0] == '\0';
}

/* These tasks are GONE: plan their next runs. */
static void
end_given_up(const TaskTable *table, TimestampTz now, const RowKey *rows, int count, double keep)
{
	int i;

	history_hint(keep, clock_mono());
	for (i = 0; i < count; i++)
	{
		outcome_expired(table, rows[i], now);
		dependents_ended(rows[i].id);
	}
}

static void
expire_unstarted(const TaskTable *table, TimestampTz now)
{
	Candidate *candidates = palloc0(unstarted.writing * sizeof(Candidate));
	int ncandidates = 0;
	bool maybe_missed = false;
	RowKey *rows;
	double keep;
	int nrows;
	int i;

	for (i = 0; i < unstarted.writing; i++)
	{
		const Unstarted *task = &unstarted.tasks[i];

		if (!may_have_expired(task))
			continue;
		candidates[ncandidates].place = task->place;
		candidates[ncandidates].missed = task->missed;
		candidates[ncandidates++].active = task->active;
		maybe_missed |= task->place.dt < shared_serving_since();
	}
	if (ncandidates == 0)
		return;
	nrows = rows_expire(table, false, now, candidates, ncandidates, &rows, &keep);
	end_given_up(table, now, rows, nrows, keep);
	if (!maybe_missed)
		return;
	nrows = rows_expire(table, true, now, candidates, ncandidates, &rows, &keep);
	end_given_up(table, now, rows, nrows, keep);
}

static void
fail_unstarted(const TaskTable *table, TimestampTz now)
{
	int i;

	for (i = 0; i < unstarted.writing; i++)
	{
		const Unstarted *task = &unstarted.tasks[i];
		RowRefusal refusal = {.row = {task->place.id, NameStr(task->role)},
							  .dt = task->place.dt,
							  .error = task->error,
							  .hint = task->hint[0] ? task->hint : NULL,
							  .sqlstate = task->sqlstate};
		double keep;

		if (may_have_expired(task))
			continue;
		if (task->repeats)
			outcome_refused(table, &refusal, now, &keep);
		else
			row_fail(table, &refusal, &keep);
		history_hint(keep, clock_mono());
		dependents_ended(task->place.id);
	}
}

/* The tasks that were written are committed, or one is refused: remove them. */
static void
remove_written(void)
{
	unstarted.count -= unstarted.writing;
	memmove(unstarted.tasks, unstarted.tasks + unstarted.writing,
			unstarted.count * sizeof(Unstarted));
	unstarted.writing = 0;
}

/* Write some tasks. */
static void
write_unstarted(ClockNow now)
{
	int limit = refused_limit(REFUSED_UNSTARTED, BATCH_MAX);
	int i;

	Assert(unstarted.writing == 0);
	work_begin_writing("writing tasks that are not started");
	unstarted.writing = Min(unstarted.count, limit);
	for (i = 0; i < unstarted.writing; i++)
		refused_batch_add(REFUSED_UNSTARTED, unstarted.tasks[i].place, 1);
	expire_unstarted(MyScheduler->table, now.wall);
	fail_unstarted(MyScheduler->table, now.wall);
	work_end();
	refused_batch_written(REFUSED_UNSTARTED);
	remove_written();
}

static MonoTime
unstarted_due(ClockNow now)
{
	return unstarted.count > 0 ? now.mono : CLOCK_NEVER;
}

/*
 * The transaction failed, perhaps while tasks were being written.  A task whose row is refused is
 * removed; a scan finds it again.  If no row is at fault, all tasks are removed: after such an
 * error nothing that was read is trusted.
 */
static void
unstarted_failed(const BatchFailure *failure)
{
	if (failure->forget)
		unstarted.count = 0;
	else if (unstarted.writing == 1 && failure->row_at_fault)
		remove_written();
	unstarted.writing = 0;
}

const SchedulerJob unstarted_job = {.due = unstarted_due,
									.needed = unstarted_due,
									.run = write_unstarted,
									.failed = unstarted_failed,
									.writes = true};

/* Look when the next waiting task expires.  In a transaction. */
void
unstarted_look(const TaskTable *table)
{
	unstarted.next_expiry = rows_next_expiry(table, DT_NOBEGIN);
}

/* A task was planned that may expire before all others. */
void
unstarted_look_at_once(void)
{
	unstarted.next_expiry = 0;
}

/* Read tasks that have expired and are not refused, as a batch.  Returns their number. */
static int
read_expired_tasks(ClockNow now, int limit, Candidate **expired)
{
	TaskPlace *places;
	int found = rows_expired(MyScheduler->table, now.wall, EXPIRE_MAX + refused_count(), &places);
	int count = 0;
	int i;

	*expired = palloc0(found * sizeof(Candidate) + 1);
	for (i = 0; i < found && count < limit; i++)
	{
		if (refused_has(places[i], now.mono))
			continue;
		refused_batch_add(REFUSED_UNSTARTED, places[i], 1);
		(*expired)[count++].place = places[i];
	}
	return count;
}

/* Set to GONE the tasks that have expired. */
static void
expire_tasks(ClockNow now)
{
	const TaskTable *table = MyScheduler->table;
	int limit = refused_limit(REFUSED_UNSTARTED, EXPIRE_MAX);
	Candidate *expired;
	RowKey *rows;
	double keep = -1;
	int written = 0;
	int count;

	work_begin_writing("expiring tasks");
	count = read_expired_tasks(now, limit, &expired);
	if (count > 0)
		written = rows_expire(table, false, now.wall, expired, count, &rows, &keep);
	end_given_up(table, now.wall, rows, written, keep);
	unstarted.next_expiry = rows_next_expiry(table, DT_NOBEGIN);
	if (unstarted.next_expiry <= now.wall && written < limit)
	{
		/* the others are locked or refused: the next look finds them again */
		unstarted.next_expiry = rows_next_expiry(table, now.wall);
		MyScheduler->row_missed |= refused_count() == 0;
	}
	work_end();
	refused_batch_written(REFUSED_UNSTARTED);
}

static MonoTime
expiry_due(ClockNow now)
{
	return clock_of_wall(now, unstarted.next_expiry);
}

const SchedulerJob expiry_job = {
	.due = expiry_due, .needed = expiry_due, .run = expire_tasks, .writes = true};
