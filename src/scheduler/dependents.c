/*
 * dependents.c
 *		Rows that wait until other tasks have ended (column "after").
 *
 * Such a row watches one task at a time (column "waits"), so it costs nothing until that one ends,
 * and nothing is counted in a row that many tasks would write.  When the watched task has ended,
 * the row is judged in a transaction of the scheduler: it is free, watches another task, or is
 * given up.  So no process that ends a task locks the row of another.
 *
 * The scheduler learns of ended tasks from the rings, from the rows that it writes itself, and from
 * the commits of users.  Only those for which rows wait count.  What ended before its dependent was
 * committed is found when the commit reports the dependent.  A walk through the index of watched
 * tasks finds what no report has named: after a start, after many reports at once, and from time to
 * time.
 *
 * This file decides no rule: rows_judge does.
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/work.h"
#include "shared/waiters.h"
#include "task/rows.h"

/* Tasks that have ended, and whose dependents are not judged yet. */
#define DEPENDENTS_ENDED 4096

/* What is known of rows that wait. */
typedef enum DependentsState
{
	DEPENDENTS_NONE, /* there are none */
	DEPENDENTS_REST, /* there may be some; the next walk begins at a time */
	DEPENDENTS_WALK	 /* the same, and a walk is going on */
} DependentsState;

/*
 * The tasks for which rows wait, those of them that have ended, and the walk that looks for both.
 * Static, because walks are in slices.
 */
static struct
{
	DependentsState state;
	HTAB *watched; /* tasks for which rows wait; NULL: none is known */
	bool complete; /* these are all of them */
	bool full;	   /* there are too many to remember them */
	bool missed;   /* there are some that no report named, since the walk began */

	/* tasks that have ended, or perhaps: the first of them are judged */
	int count;
	int64 ended[DEPENDENTS_ENDED];
	MonoTime not_before; /* none is judged before this while tasks may start */

	/* the walk from watched task to watched task, in slices */
	int64 position;
	bool found;	   /* it has found one */
	int64 cost;	   /* of its slices (us) */
	MonoTime next; /* slice, or walk */
} dependents;

/* Rows that are judged in one transaction: if tasks can be started meanwhile, and if not. */
#define JUDGE_BUSY 256
#define JUDGE_IDLE 1024

/* Ended tasks whose dependents one statement judges. */
#define JUDGE_TASKS 256

/* Rows whose watched tasks one slice of the walk reads. */
#define WALK_ROWS 256

/*
 * A slice beside tasks that may start waits this many times the duration of the last one.  A walk
 * waits this many times the duration of the last one, and at least a period.
 */
#define SLICE_SHARE 10
#define WALK_SHARE 100

/*
 * Watched tasks that are remembered.  If there are more, the dependents of each task that ends are
 * looked for.
 */
#define WATCHED_MAX 200000

/* Rows wait that no report has named: a walk begins now, or again when this one has ended. */
static void
want_walk(void)
{
	if (dependents.state != DEPENDENTS_WALK)
	{
		dependents.state = DEPENDENTS_REST;
		dependents.next = CLOCK_LONG_AGO;
	}
	dependents.complete = false;
	dependents.missed = true;
}

static void
forget_watched(void)
{
	HTAB *watched = dependents.watched;

	dependents.watched = NULL;
	hash_destroy(watched);
}

/* Rows wait for this task. */
static void
add_watched(int64 id)
{
	if (dependents.state == DEPENDENTS_NONE)
		dependents.state = DEPENDENTS_REST;
	if (dependents.full)
		return;
	if (dependents.watched == NULL)
	{
		HASHCTL control = {.keysize = sizeof(int64), .entrysize = sizeof(int64)};

		dependents.watched =
			hash_create("pg_task watched tasks", 256, &control, HASH_ELEM | HASH_BLOBS);
	}
	(void) hash_search(dependents.watched, &id, HASH_ENTER, NULL);
	if (hash_get_num_entries(dependents.watched) <= WATCHED_MAX)
		return;
	dependents.full = true;
	dependents.complete = false;
	forget_watched();
}

/* May rows wait for this task? */
bool
dependents_is_watched(int64 id)
{
	if (dependents.state == DEPENDENTS_NONE)
		return false;
	return !dependents.complete ||
		   (dependents.watched && hash_search(dependents.watched, &id, HASH_FIND, NULL) != NULL);
}

static void
forget_table(bool another)
{
	if (!another)
		return;
	dependents.count = 0;
	dependents.state = DEPENDENTS_REST;
	want_walk();
}

/* Judge the rows that wait for this task, if it has ended. */
static void
add_ended(int64 id)
{
	if (dependents.count < DEPENDENTS_ENDED)
		dependents.ended[dependents.count++] = id;
	else
		want_walk();
}

/* A task has ended, or perhaps: its row, which is committed or will be, says so. */
void
dependents_ended(int64 id)
{
	waiters_end(id);
	if (dependents_is_watched(id))
		add_ended(id);
}

/*
 * Take what commits have reported, besides these events: tasks for which rows wait from now on, and
 * which may have ended before, and tasks that users have ended.
 */
void
dependents_take(int events)
{
	SharedIds ids;
	int i;

	shared_scheduler_take_watched(MyScheduler->slot, &ids);
	if (events & SHARED_DEPENDENTS)
		want_walk();
	for (i = 0; i < ids.count; i++)
	{
		add_watched(ids.ids[i]);
		dependents_ended(ids.ids[i]);
	}
}

/* Rows may wait that no commit has reported: look, if none is known.  In a transaction. */
void
dependents_look(void)
{
	WatchedTask *tasks;
	int64 last;
	bool more;

	if (dependents.state == DEPENDENTS_NONE &&
		rows_watched(MyScheduler->table, PG_INT64_MIN, 1, &tasks, &last, &more) > 0)
		want_walk();
}

/* Return when there is something to do next. */
static MonoTime
dependents_due(ClockNow now)
{
	MonoTime until = dependents.count > 0 ? CLOCK_LONG_AGO : dependents.next;

	if (MyScheduler->table == NULL || dependents.state == DEPENDENTS_NONE)
		return CLOCK_NEVER;
	/* most often there is no pause, and nobody has to look what may start */
	if (clock_is_before(now.mono, dependents.not_before) && groups_ready(now))
		until = clock_max(until, dependents.not_before);
	return until;
}

/*
 * Return when there is something to do next but for the walks that begin because it is time: a
 * successor begins with one as well.  Rows may be free by now, and what is known of them is lost
 * when this process exits.
 */
static MonoTime
dependents_needed(ClockNow now)
{
	bool works = dependents.count > 0 || !dependents.complete;

	return works ? dependents_due(now) : CLOCK_NEVER;
}

/* Rows that were refused may be accepted now: a walk finds them. */
void
dependents_want_walk(void)
{
	if (dependents.state != DEPENDENTS_NONE)
		want_walk();
}

/* These rows are judged, and it is committed. */
static void
note_judged(const JudgedRows *judged, MonoTime now)
{
	int i;

	for (i = 0; i < judged->nwatched; i++)
		add_watched(judged->watched[i]);
	for (i = 0; i < judged->ngone; i++)
	{
		history_hint(judged->gone[i].keep, now);
		dependents_ended(judged->gone[i].id);
	}
}

/*
 * The first of these tasks were looked for.  If there are more rows, the first one makes way for
 * the others.  Otherwise nothing is left to do: rows that somebody has locked, the walk finds.
 */
static void
drop_ended(int count, bool more)
{
	int64 first = dependents.ended[0];

	count = more ? 1 : count;
	dependents.count -= count;
	memmove(dependents.ended, dependents.ended + count, dependents.count * sizeof(int64));
	if (more)
		dependents.ended[dependents.count++] = first;
}

/* Judge rows that wait for ended tasks: one batch. */
static void
judge_ended(ClockNow now)
{
	JudgeRequest request = {.ids = dependents.ended,
							.count = Min(dependents.count, JUDGE_TASKS),
							.limit = groups_ready(now) ? JUDGE_BUSY : JUDGE_IDLE,
							.now = now.wall};
	JudgedRows judged = {0};
	TaskPlace first = {DT_NOBEGIN, 0};
	int64 *without;

	request.limit = refused_limit(REFUSED_DEPENDENTS, request.limit);
	work_begin_writing("judging tasks that wait for others");
	request.nwithout = refused_ids(now.mono, &without);
	request.without = without;
	if (request.limit > 1 || rows_first_dependent(MyScheduler->table, &request, &first.id))
	{
		refused_batch_add(REFUSED_DEPENDENTS, first, request.limit);
		rows_judge(MyScheduler->table, &request, &judged);
	}
	/* after a crash they are judged again, and the claim that follows makes it durable */
	work_set_lazy(judged.ngone == 0);
	work_end();
	refused_batch_written(REFUSED_DEPENDENTS);
	drop_ended(request.count, judged.more);
	note_judged(&judged, now.mono);
}

/* The walk has found all watched tasks. */
static void
end_walk(MonoTime now)
{
	int64 pause = (int64) MyScheduler->settings.period * 1000;

	dependents.state = DEPENDENTS_REST;
	dependents.complete = !dependents.missed && !dependents.full;
	if (!dependents.missed)
		dependents.next.us = now.us + Max(pause, dependents.cost * WALK_SHARE);
	if (dependents.found || dependents.missed || dependents.count > 0)
		return;
	dependents.state = DEPENDENTS_NONE;
	dependents.complete = true;
	if (dependents.watched)
		forget_watched();
}

/* Read the next watched tasks: those that have ended are judged later. */
static void
walk_slice(ClockNow now)
{
	MonoTime begun = clock_mono();
	WatchedTask *tasks;
	int64 last;
	bool more;
	int count;
	int i;

	if (dependents.state == DEPENDENTS_REST)
	{
		dependents.state = DEPENDENTS_WALK;
		dependents.missed = dependents.full = dependents.found = false;
		dependents.position = PG_INT64_MIN;
		dependents.cost = 0;
	}
	work_begin("looking for tasks that wait for others");
	count = rows_watched(MyScheduler->table, dependents.position, WALK_ROWS, &tasks, &last, &more);
	work_end();
	dependents.found |= count > 0;
	for (i = 0; i < count; i++)
	{
		add_watched(tasks[i].id);
		if (tasks[i].ended)
			add_ended(tasks[i].id);
	}
	dependents.next = clock_mono();
	dependents.cost += dependents.next.us - begun.us;
	if (groups_ready(now))
		dependents.next.us += (dependents.next.us - begun.us) * SLICE_SHARE;
	if (more && last < PG_INT64_MAX)
		dependents.position = last + 1;
	else
		end_walk(clock_mono());
}

/*
 * Judge rows, and walk on: one transaction each.  Beside tasks that may start, a pause follows that
 * is as long, so that they do.
 */
static void
dependents_run(ClockNow now)
{
	MonoTime ended;

	if (dependents.count > 0)
		judge_ended(now);
	/* the walk fills the list that is judged */
	if (dependents.count < DEPENDENTS_ENDED / 2 && !clock_is_before(now.mono, dependents.next))
		walk_slice(now);
	ended = clock_mono();
	dependents.not_before.us = ended.us + (ended.us - now.mono.us);
}

const SchedulerJob dependents_job = {.due = dependents_due,
									 .needed = dependents_needed,
									 .run = dependents_run,
									 .forget_table = forget_table,
									 .writes = true};
