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
 * the commits of users.  Only those that may be watched count: a bit for the hash of each watched
 * task says so.  What ended before its dependent was committed is found when the commit reports the
 * dependent.  A walk through the index of watched tasks finds what no report has named: after a
 * start, after many reports at once, and from time to time.
 *
 * This file decides no rule: rows_judge does.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/removed.h"
#include "scheduler/scheduler.h"
#include "scheduler/task_bits.h"
#include "scheduler/work.h"
#include "shared/waiters.h"
#include "task/rows.h"

/* Rows that are judged in one transaction: if tasks can be started meanwhile, and if not. */
#define JUDGE_BUSY 256
#define JUDGE_IDLE 1024

/* Ended tasks whose dependents one statement judges. */
#define JUDGE_TASKS 256

/* Rows whose watched tasks one slice of the walk reads, and rows with the rule "any". */
#define WALK_ROWS 256
#define WALK_ANY 64

/* A slice beside tasks that may start waits this many times the duration of the last one. */
#define SLICE_SHARE 40
#define URGENT_SHARE 4

/*
 * A walk waits this many times the duration of the last one, and at least a period; one through
 * rows with the rule "any" waits less, because nothing else tells that one of their tasks is DONE.
 */
#define WALK_SHARE 100
#define ANY_SHARE 10

/* Pause after an error while the table of removed tasks was prepared (ms). */
#define PREPARE_AGAIN_MS 1000

/*
 * Rows may wait, or none does, which removed_settle has said.  Sessions know it before any row is
 * judged: a task whose end they have not reported had ended before.
 */
static void
set_any(Dependents *dependents, bool any)
{
	if (any && !dependents->any)
		shared_scheduler_publish_watches(MyScheduler->slot, true);
	dependents->any = any;
}

/* A row watches this task. */
static void
add_watched(Dependents *dependents, int64 id)
{
	set_any(dependents, true);
	dependents->found = true;
	task_bits_add(dependents->watched, id);
	task_bits_add(dependents->walked, id);
}

/* May a row watch this task? */
bool
dependents_is_watched(int64 id)
{
	const Dependents *dependents = &MyScheduler->dependents;

	if (!dependents->any)
		return false;
	return dependents->watched == NULL || dependents->incomplete ||
		   task_bits_have(dependents->watched, id);
}

/* Free the bits. */
static void
free_bits(Dependents *dependents)
{
	uint8 *bits[] = {dependents->watched, dependents->walked};
	int i;

	dependents->watched = dependents->walked = NULL;
	for (i = 0; i < (int) lengthof(bits); i++)
		if (bits[i])
			pfree(bits[i]);
}

/* Forget what is known: a walk is due. */
void
dependents_forget(void)
{
	Dependents *dependents = &MyScheduler->dependents;

	free_bits(dependents);
	dependents->walking = dependents->any_walking = false;
	dependents->any_rule = dependents->wanted = dependents->any_wanted = true;
	dependents->urgent = true;
	dependents->incomplete = dependents->again = false;
	dependents->slice = CLOCK_LONG_AGO;
	set_any(dependents, true);
}

static void
forget_table(bool another)
{
	removed_forget_table();
	if (!another)
		return;
	MyScheduler->dependents.count = MyScheduler->dependents.nrefused = 0;
	MyScheduler->dependents.limit = JUDGE_IDLE;
	dependents_forget();
}

/* Judge the rows that watch this task, if it has ended. */
static void
add_ended(Dependents *dependents, int64 id)
{
	if (dependents->count < DEPENDENTS_ENDED)
		dependents->ended[dependents->count++] = id;
	else
		dependents->wanted = true;
}

/* Nothing is left to do for the first of these tasks. */
static void
drop_ended(Dependents *dependents, int count)
{
	Assert(count <= dependents->count);
	dependents->count -= count;
	memmove(dependents->ended, dependents->ended + count, dependents->count * sizeof(int64));
}

/* The first of these tasks has many rows: it makes way for the others. */
static void
turn_ended(Dependents *dependents)
{
	int64 first = dependents->ended[0];

	if (dependents->count == 0)
		return;
	drop_ended(dependents, 1);
	dependents->ended[dependents->count++] = first;
}

/* A walk through the rows with the rule "any" is due, because something has happened. */
static void
want_any(Dependents *dependents)
{
	dependents->any_wanted = true;
	dependents->routine = false;
}

/* A task has ended, or perhaps: its row, which is committed or will be, says so. */
void
dependents_ended(int64 id)
{
	Dependents *dependents = &MyScheduler->dependents;

	waiters_end(id);
	if (dependents->any_rule)
		want_any(dependents);
	if (dependents_is_watched(id))
		add_ended(dependents, id);
}

/* Take what commits have reported, besides these events. */
void
dependents_take(int events)
{
	Dependents *dependents = &MyScheduler->dependents;
	SharedWatch watch;
	int i;

	/* a session may be about to insert a row that waits */
	if (shared_scheduler_take_watch(MyScheduler->slot, &watch) && !dependents->any)
	{
		dependents->any = dependents->wanted = true;
		dependents->slice = CLOCK_LONG_AGO;
	}
	if (events & (SHARED_DEPENDENTS | SHARED_WATCHED))
	{
		dependents->wanted = dependents->incomplete = dependents->again = true;
		dependents->urgent |= (events & SHARED_DEPENDENTS) != 0;
		set_any(dependents, true);
	}
	if (events & SHARED_ANY)
	{
		dependents->any_rule = dependents->any_found = true;
		want_any(dependents);
	}
	for (i = 0; i < watch.ended.count; i++)
		dependents_ended(watch.ended.ids[i]);
	/* it may have ended before */
	for (i = 0; i < watch.watched.count; i++)
	{
		add_watched(dependents, watch.watched.ids[i]);
		add_ended(dependents, watch.watched.ids[i]);
	}
}

/* Rows may wait that no commit has reported: look, if none is known.  In a transaction. */
void
dependents_look(void)
{
	Dependents *dependents = &MyScheduler->dependents;
	WatchedTask *tasks;
	bool more;

	if (!dependents->any && rows_watched(MyScheduler->table, PG_INT64_MIN, 1, &tasks, &more) > 0)
		dependents_forget();
}

/* Return when the next slice of a walk is due. */
static MonoTime
walk_until(const Dependents *dependents)
{
	if (dependents->walking || dependents->wanted)
		return dependents->slice;
	return clock_max(dependents->next, dependents->slice);
}

/* Is it to be looked at whether any row waits?  Not while some are known. */
static bool
settles(const Dependents *dependents)
{
	return dependents->any && dependents->thinned && dependents->count == 0 &&
		   !dependents->walking && !dependents->wanted;
}

/* Return when there is something to do next. */
static MonoTime
dependents_due(ClockNow now pg_attribute_unused())
{
	const Dependents *dependents = &MyScheduler->dependents;
	MonoTime until = CLOCK_NEVER;

	if (MyScheduler->table == NULL || !dependents->any)
		return CLOCK_NEVER;
	if (dependents->count > 0)
		until = CLOCK_LONG_AGO;
	until = clock_min(until, walk_until(dependents));
	if (dependents->any_walking || (dependents->any_rule && dependents->any_wanted))
		until = clock_min(until, dependents->any_next);
	if (settles(dependents))
		until = clock_min(until, dependents->settle_at);
	return clock_max(until, dependents->not_before);
}

/* Is a walk going on or due, but for one that begins only because it is time? */
static bool
walks(const Dependents *dependents)
{
	return dependents->walking || dependents->any_walking ||
		   (dependents->any_rule && dependents->any_wanted);
}

/*
 * Return when there is something to do next but for the periodic walks: a successor begins with
 * them as well.  Rows may be free by now, and what is known of them is lost when this process
 * exits.
 */
static MonoTime
dependents_needed(ClockNow now)
{
	const Dependents *dependents = &MyScheduler->dependents;
	bool works =
		dependents->count > 0 || dependents->wanted || (!dependents->routine && walks(dependents));
	MonoTime until = works ? dependents_due(now) : CLOCK_NEVER;

	if (dependents->nrefused > 0)
		until = clock_min(until, clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS));
	return until;
}

/* Comparator for qsort: rows with the same verdict and culprit are together. */
static int
compare_verdicts(const void *a, const void *b)
{
	const DependentRow *left = a;
	const DependentRow *right = b;

	if (left->verdict != right->verdict)
		return left->verdict < right->verdict ? -1 : 1;
	return left->culprit < right->culprit ? -1 : left->culprit > right->culprit;
}

/* Write rows with the same verdict and culprit. */
static void
write_rows(const DependentRow *rows, int count, ClockNow now)
{
	Dependents *dependents = &MyScheduler->dependents;
	int i;

	dependents->thinned |= rows->verdict != DEPENDENT_WATCHES && rows->verdict != DEPENDENT_WAITS;
	if (rows->verdict == DEPENDENT_FREE)
		rows_free(MyScheduler->table, rows, count, now.wall);
	else if (rows->verdict == DEPENDENT_WATCHES)
	{
		rows_watch(MyScheduler->table, rows, count);
		for (i = 0; i < count; i++)
			add_watched(dependents, rows[i].watches);
	}
	else if (rows->verdict != DEPENDENT_WAITS)
	{
		work_set_lazy(false);
		rows_give_up(MyScheduler->table, rows, count);
		for (i = 0; i < count; i++)
		{
			history_hint(rows[i].keep, now.mono);
			dependents_ended(rows[i].row.id);
		}
	}
}

/* Write all these rows, by their verdicts. */
static void
write_verdicts(DependentRow *rows, int count, ClockNow now)
{
	int first = 0;
	int i;

	qsort(rows, count, sizeof(DependentRow), compare_verdicts);
	for (i = 1; i <= count; i++)
	{
		if (i < count && compare_verdicts(&rows[first], &rows[i]) == 0)
			continue;
		write_rows(&rows[first], i - first, now);
		first = i;
	}
}

/* What was refused may be accepted now: a walk finds the rows. */
void
dependents_retry_refused(void)
{
	Dependents *dependents = &MyScheduler->dependents;

	if (dependents->nrefused > 0)
		dependents->wanted = dependents->any_wanted = true;
	dependents->nrefused = 0;
	dependents->not_before = CLOCK_LONG_AGO;
}

/* These rows are being written, besides those that wait for one task alone. */
static void
note_rows(Dependents *dependents, const DependentRow *rows, int count)
{
	dependents->writing += count;
	if (count > 0)
		dependents->first = rows[0].row.id;
}

/* They are committed: judge more at once.  What was refused is tried again after its time. */
static void
rows_written(Dependents *dependents, MonoTime now)
{
	dependents->writing = 0;
	dependents->limit = Min(dependents->limit * 2, JUDGE_IDLE);
	if (!clock_is_before(now, dependents->refused_until))
		dependents_retry_refused();
}

/*
 * The transaction has failed, perhaps while rows were judged.  If a row is at fault, fewer are
 * judged, and in the end the one that refuses is left out for its time.  Returns true if others
 * should be tried at once.
 */
static bool
dependents_failed(const BatchFailure *failure)
{
	Dependents *dependents = &MyScheduler->dependents;
	int writing = dependents->writing;

	dependents->writing = dependents->judging = 0;
	if (writing == 0 || !failure->row_at_fault)
		return false;
	dependents->limit = Max(writing / 4, 1);
	if (writing > 1)
		return true;
	if (dependents->nrefused == DEPENDENTS_REFUSED)
		dependents->not_before = failure->retry_at;
	else
		dependents->refused[dependents->nrefused++] = dependents->first;
	dependents->refused_until = failure->retry_at;
	return true;
}

/* Is there a row that could not be written? */
bool
dependents_refused(void)
{
	return MyScheduler->dependents.nrefused > 0;
}

/*
 * Free rows that wait for one of the ended tasks alone.  If one of them cannot be written, all are
 * judged, fewer and fewer at once, until it is found.
 */
static int
free_single_rows(Dependents *dependents, int limit, ClockNow now)
{
	int count;

	if (dependents->limit < JUDGE_IDLE)
		return 0;
	dependents->writing = limit;
	count = rows_free_single(MyScheduler->table, dependents->ended, dependents->judging,
							 dependents->refused, dependents->nrefused, limit, now.wall);
	dependents->thinned |= count > 0;
	if (count == 0)
		dependents->writing = 0;
	return count;
}

/* Judge the other rows that watch the ended tasks.  Returns true if there may be more of them. */
static bool
judge_rows(Dependents *dependents, int limit, ClockNow now)
{
	DependentRow *rows;
	bool more;
	int count;

	count = rows_judge(MyScheduler->table, removed_lock(), dependents->ended, dependents->judging,
					   dependents->refused, dependents->nrefused, limit, &rows, &more);
	note_rows(dependents, rows, count);
	if (count > 0)
		write_verdicts(rows, count, now);
	return more;
}

/* How many rows are judged in one transaction? */
static int
judge_limit(const Dependents *dependents, ClockNow now)
{
	return Min(groups_ready(now) ? JUDGE_BUSY : JUDGE_IDLE, dependents->limit);
}

/* Judge rows that watch ended tasks: one batch.  Those that somebody has locked, the walk finds. */
static void
judge_ended(Dependents *dependents, ClockNow now)
{
	int limit = judge_limit(dependents, now);
	bool more;

	work_begin_writing("judging tasks that wait for others");
	dependents->judging = Min(dependents->count, JUDGE_TASKS);
	work_set_lazy(true);
	more = free_single_rows(dependents, limit, now) == limit;
	/* rows that wait for several tasks do not wait for all of the others */
	if (!more || dependents->count > 1)
		more |= judge_rows(dependents, more ? Min(limit, 64) : limit, now);
	work_end();
	rows_written(dependents, now.mono);
	if (more)
		turn_ended(dependents);
	else
		drop_ended(dependents, dependents->judging);
	dependents->judging = 0;
}

/* Begin a walk: it fills bits of its own. */
static void
begin_walk(Dependents *dependents)
{
	if (dependents->walked)
		task_bits_clear(dependents->walked);
	else
		dependents->walked = task_bits_create();
	dependents->routine = !dependents->wanted && (dependents->routine || !walks(dependents));
	dependents->walking = true;
	dependents->wanted = dependents->found = dependents->again = false;
	dependents->position = PG_INT64_MIN;
	dependents->cost = 0;
}

/* The walk has found all watched tasks. */
static void
end_walk(Dependents *dependents, MonoTime now)
{
	uint8 *bits = dependents->watched;
	int64 pause = (int64) MyScheduler->settings.period * 1000;

	dependents->watched = dependents->walked;
	dependents->walked = bits;
	dependents->walking = false;
	dependents->incomplete = dependents->again;
	dependents->urgent &= dependents->again;
	dependents->next.us = now.us + Max(pause, dependents->cost * WALK_SHARE);
	if (!dependents->found)
	{
		dependents->thinned = true;
		dependents->settle_at = now;
	}
	dependents->any_rule = dependents->any_wanted = true;
}

/*
 * Read the next watched tasks: those that have ended are judged later.  "busy": tasks may start
 * meanwhile.
 */
static void
walk_slice(Dependents *dependents, bool busy)
{
	MonoTime begun = clock_mono();
	WatchedTask *tasks;
	bool more;
	int count;
	int i;

	if (!dependents->walking)
		begin_walk(dependents);
	work_begin("looking for tasks that wait for others");
	count = rows_watched(MyScheduler->table, dependents->position, WALK_ROWS, &tasks, &more);
	work_end();
	for (i = 0; i < count; i++)
	{
		add_watched(dependents, tasks[i].id);
		if (tasks[i].ended)
			add_ended(dependents, tasks[i].id);
	}
	dependents->slice = clock_mono();
	dependents->cost += dependents->slice.us - begun.us;
	if (busy)
		dependents->slice.us +=
			(dependents->slice.us - begun.us) * (dependents->urgent ? URGENT_SHARE : SLICE_SHARE);
	if (more && tasks[count - 1].id < PG_INT64_MAX)
		dependents->position = tasks[count - 1].id + 1;
	else
		end_walk(dependents, clock_mono());
}

/* Judge the next rows with the rule "any". */
static void
walk_any_slice(Dependents *dependents, ClockNow now)
{
	MonoTime begun = clock_mono();
	int64 last = PG_INT64_MAX;
	DependentRow *rows;
	bool more;
	int count;

	if (!dependents->any_walking)
	{
		dependents->any_walking = true;
		dependents->any_found = dependents->any_wanted = false;
		dependents->any_position = PG_INT64_MIN;
		dependents->any_cost = 0;
	}
	work_begin_writing("judging tasks that wait for any of others");
	work_set_lazy(true);
	count = rows_judge_any(MyScheduler->table, removed_lock(), dependents->any_position,
						   dependents->refused, dependents->nrefused,
						   Min(WALK_ANY, dependents->limit), &rows, &more);
	note_rows(dependents, rows, count);
	if (count > 0)
		last = rows[count - 1].row.id;
	if (count > 0)
		write_verdicts(rows, count, now);
	work_end();
	rows_written(dependents, now.mono);
	dependents->any_found |= count > 0;
	dependents->any_cost += clock_mono().us - begun.us;
	dependents->any_next = clock_mono();
	if (more && last < PG_INT64_MAX)
	{
		dependents->any_position = last + 1;
		return;
	}
	dependents->any_walking = false;
	dependents->any_rule = dependents->any_found || dependents->any_wanted;
	dependents->any_next.us += dependents->any_cost * ANY_SHARE;
}

/*
 * Look whether any row waits.  If none does, all is forgotten.  A walk would find that as well, but
 * the next one is due long after one through very many rows.
 */
static void
settle(Dependents *dependents)
{
	MonoTime begun = clock_mono();
	RemovedState state = removed_settle();
	MonoTime now = clock_mono();

	dependents->thinned = state == REMOVED_AGAIN;
	dependents->settle_at.us =
		now.us + Max((int64) MyScheduler->settings.period * 1000, (now.us - begun.us) * WALK_SHARE);
	if (state != REMOVED_SETTLED)
		return;
	set_any(dependents, false);
	free_bits(dependents);
}

/* Judge rows, or walk on: one transaction of each kind. */
static void
run_steps(Dependents *dependents, ClockNow now)
{
	if (removed_due(now.mono))
	{
		/* an error must keep nothing else waiting */
		dependents->not_before = clock_plus_ms(now.mono, PREPARE_AGAIN_MS);
		removed_prepare(now.mono);
		dependents->not_before = CLOCK_LONG_AGO;
	}
	if (dependents->any_walking || (dependents->any_rule && dependents->any_wanted))
		if (!clock_is_before(now.mono, dependents->any_next))
			walk_any_slice(dependents, now);
	if (dependents->count > 0)
		judge_ended(dependents, now);
	/* the walk fills the list that is judged */
	if (dependents->count < DEPENDENTS_ENDED / 2 &&
		!clock_is_before(now.mono, walk_until(dependents)))
		walk_slice(dependents, groups_ready(now));
	if (settles(dependents) && !clock_is_before(now.mono, dependents->settle_at))
		settle(dependents);
}

/* The same.  Beside tasks that may start, a pause follows that is as long, so that they do. */
static void
dependents_run(ClockNow now)
{
	Dependents *dependents = &MyScheduler->dependents;
	MonoTime ended;

	run_steps(dependents, now);
	ended = clock_mono();
	if (groups_ready(now))
		dependents->not_before.us = ended.us + (ended.us - now.mono.us);
}

const SchedulerJob dependents_job = {.due = dependents_due,
									 .needed = dependents_needed,
									 .run = dependents_run,
									 .forget_table = forget_table,
									 .failed = dependents_failed,
									 .writes = true};
