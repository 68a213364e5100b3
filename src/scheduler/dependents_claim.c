/*
 * dependents_claim.c
 *		Dependent rows that are freed by their claim.
 *
 * To free a row and to claim it then takes two versions of it, twice what a row takes that waits
 * for no task.  If the row waits for one task alone, which is DONE, and an executor has room for
 * it, both are one write, in the claim of a round.
 *
 * It is an addition to dependents.c, never its replacement.  Rows are chosen when no other task can
 * start.  What is left is judged: rows that wait for several tasks, have something that
 * direct_claim.c does not write, are locked, or find no executor.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/choice.h"
#include "scheduler/dependents.h"
#include "scheduler/dependents_claim.h"
#include "scheduler/refused.h"
#include "scheduler/scheduler.h"
#include "task/direct.h"
#include "task/rows.h"

/*
 * Ended tasks whose rows one statement reads, and the least and the greatest number of rows.  The
 * statement passes the dead entries of all rows of a task that were claimed before.
 */
#define CLAIM_TASKS 256
#define CLAIM_MIN 8
#define CLAIM_MAX 512

/*
 * Claims are worth it while tasks are short: if this many were claimed in about as long (ms), 2,500
 * in a second, not longer ago than that.  Otherwise rows are judged as fast as possible.
 */
#define CLAIM_FLOW 50
#define CLAIM_FLOW_MS 20
#define CLAIM_RECENT_MS 100

/*
 * Meanwhile a batch of rows is judged after so many times the duration of the last one, but at
 * least as often as this (ms): then rows start by their priorities, the scheduler sees how many
 * executors are of use, and rows that wait for several tasks are judged.
 */
#define JUDGE_SHARE 15
#define JUDGE_AGAIN_MS 50

/*
 * To read rows takes no longer than this (us), and as long for each row; otherwise there are many
 * dead ones: none is read for so many times the duration.
 */
#define CLAIM_READ_US 10000
#define CLAIM_READ_ROW_US 100
#define CLAIM_READ_SHARE 10

/* After an error rows are judged for this time (ms), to find the one that is at fault. */
#define CLAIM_AGAIN_MS 60000

/* May rows be chosen? */
static bool
may_choose(const Dependents *dependents, MonoTime now)
{
	const DependentsClaim *claim = &dependents->claim;

	return dependents->count > 0 && !claim->left && dependents->nrefused == 0 &&
		   !clock_is_before(now, claim->not_before) && !refused_singly(REFUSED_CLAIM) &&
		   direct_frees(MyScheduler->table) && pool_room(Max(claim->ring, 1), now) > 0;
}

/* Is a round to be made for dependent rows, even if no other task can start? */
bool
dependents_claim_due(MonoTime now)
{
	return may_choose(&MyScheduler->dependents, now);
}

/* Are very many tasks claimed? */
bool
dependents_claim_flows(MonoTime now)
{
	const DependentsClaim *claim = &MyScheduler->dependents.claim;

	return claim->flows && !clock_exceeds(claim->since, now, CLAIM_RECENT_MS);
}

/*
 * Return when rows of ended tasks are to be judged, or looked at by a round.  While very many tasks
 * are claimed, there is a pause if claims may free some of these rows later, and a longer one if
 * some of those that were freed are not claimed.
 */
MonoTime
dependents_claim_judge_until(const Dependents *dependents)
{
	const DependentsClaim *claim = &dependents->claim;
	MonoTime until;

	if (claim->fresh || claim->left || !claim->flows || !(claim->waits || claim->ahead > 0))
		return CLOCK_LONG_AGO;
	until = clock_plus_ms(claim->judged_at, JUDGE_AGAIN_MS);
	if (claim->ahead == 0)
		until.us = Min(until.us, claim->judged_at.us + claim->judging_us * JUDGE_SHARE);
	return clock_min(until, clock_plus_ms(claim->since, CLAIM_RECENT_MS));
}

/*
 * Are rows of ended tasks to be judged in this iteration?  Those of a task that has just ended are
 * left to its round, if that may choose some.
 */
bool
dependents_claim_may_judge(MonoTime now)
{
	Dependents *dependents = &MyScheduler->dependents;
	bool fresh = dependents->claim.fresh;

	dependents->claim.fresh = false;
	if (fresh && may_choose(dependents, now))
		return false;
	return !clock_is_before(now, dependents_claim_judge_until(dependents));
}

/* A batch was judged, from "begun" to "ended". */
void
dependents_claim_judged(MonoTime begun, MonoTime ended)
{
	DependentsClaim *claim = &MyScheduler->dependents.claim;

	claim->left = false;
	claim->judged_at = ended;
	claim->judging_us = ended.us - begun.us;
}

/* No row is chosen until then: judge them. */
static void
stop_choosing(DependentsClaim *claim, MonoTime until)
{
	claim->not_before = until;
	claim->left = true;
}

/* Return the number of ended tasks before this one. */
static int
tasks_before(const Dependents *dependents, int64 task)
{
	int i = 0;

	while (i < dependents->claim.tasks && dependents->ended[i] != task)
		i++;
	return i < dependents->claim.tasks ? i : 0;
}

/*
 * Forget the rows that were read.  Nothing is left to do for the tasks of which all rows were
 * chosen and claimed; the next one makes way for the others.
 */
static void
forget_rows(Dependents *dependents)
{
	DependentsClaim *claim = &dependents->claim;
	int complete = claim->tasks;

	if (claim->tasks == 0)
		return;
	if (claim->next < claim->count)
		complete = tasks_before(dependents, claim->rows[claim->next].watches);
	else if (claim->more)
		complete = tasks_before(dependents, claim->rows[claim->count - 1].watches);
	dependents_drop_ended(complete);
	claim->waits = complete < claim->tasks && !claim->left;
	if (complete < claim->tasks)
		dependents_turn_ended();
	claim->tasks = claim->count = claim->next = claim->chosen = 0;
}

/* Rows are to be judged: forget those that were read, they may be among them. */
void
dependents_claim_forget(void)
{
	forget_rows(&MyScheduler->dependents);
}

/* What was read does not hold: forget it, the tasks remain. */
void
dependents_claim_reset(void)
{
	DependentsClaim *claim = &MyScheduler->dependents.claim;

	claim->tasks = claim->count = claim->next = claim->chosen = 0;
	claim->left = claim->waits = false;
}

/*
 * Read rows of ended tasks, and learn how long that takes.  As many as were chosen since the last
 * time, and as many again.
 */
static void
read_rows(Dependents *dependents, const TaskTable *table, ClockNow now)
{
	DependentsClaim *claim = &dependents->claim;
	MonoTime not_before = claim->not_before;
	MonoTime begun = clock_mono();
	MonoTime ended;
	MemoryContext old;

	/* after an error rows are judged */
	stop_choosing(claim, clock_plus_ms(begun, CLAIM_AGAIN_MS));
	if (claim->memory == NULL)
		claim->memory =
			AllocSetContextCreate(TopMemoryContext, "pg_task dependents", ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(claim->memory);
	claim->limit = Min(Max(claim->limit, CLAIM_MIN), CLAIM_MAX);
	old = MemoryContextSwitchTo(claim->memory);
	claim->count = rows_released(table, dependents->ended, Min(dependents->count, CLAIM_TASKS),
								 claim->limit, now.wall, &claim->rows);
	MemoryContextSwitchTo(old);
	claim->not_before = not_before;
	claim->left = false;
	claim->tasks = Min(dependents->count, CLAIM_TASKS);
	claim->next = 0;
	claim->more = claim->count == claim->limit;
	claim->limit = CLAIM_MIN;
	ended = clock_mono();
	if (ended.us - begun.us > CLAIM_READ_US + claim->count * CLAIM_READ_ROW_US)
		stop_choosing(claim, (MonoTime){ended.us + (ended.us - begun.us) * CLAIM_READ_SHARE});
}

/*
 * Choose rows of ended tasks that the claim of this round frees.  In its transaction, when nothing
 * else can be chosen.
 */
void
dependents_claim_choose(DispatchRound *round, const TaskTable *table)
{
	Dependents *dependents = &MyScheduler->dependents;
	DependentsClaim *claim = &dependents->claim;
	ChoiceAnswer answer = CHOICE_MADE;

	claim->chosen = 0;
	if (round->limit < DISPATCH_MAX || round->count + round->failed == round->limit ||
		groups_next(round->now) || !may_choose(dependents, round->now.mono))
		return;
	if (claim->tasks == 0)
		read_rows(dependents, table, round->now);
	while (claim->next < claim->count && round->count + round->failed < round->limit)
	{
		answer = choice_add_dependent(round, table, &claim->rows[claim->next], &claim->ring);
		if (answer != CHOICE_MADE)
			break;
		claim->next++;
		claim->chosen++;
		claim->limit += 2;
	}
	claim->left |= answer == CHOICE_LEFT;
	claim->waits = !claim->left && (claim->next < claim->count || claim->more);
}

/* Count claimed tasks. */
static void
count_claims(DependentsClaim *claim, int count, MonoTime now)
{
	if (clock_exceeds(claim->since, now, CLAIM_FLOW_MS))
	{
		claim->flows =
			claim->claims >= CLAIM_FLOW && !clock_exceeds(claim->since, now, CLAIM_RECENT_MS);
		claim->since = now;
		claim->claims = 0;
	}
	claim->claims += count;
}

/*
 * Tasks were claimed that wait for no task.  If all rows that were freed are among them, or may be,
 * the next ones are rather chosen than judged.
 */
static void
note_claims(DependentsClaim *claim, int count)
{
	if (claim->ahead == 0)
		return;
	claim->ahead = Max(claim->ahead - count, 0);
	claim->fresh |= claim->ahead == 0;
}

/* The claim is committed.  Rows that it has not got are judged. */
void
dependents_claim_end(const DispatchRound *round)
{
	Dependents *dependents = &MyScheduler->dependents;
	DependentsClaim *claim = &dependents->claim;
	int claimed = 0; /* dependent rows, ... */
	int others = 0;	 /* ... and others */
	int i;

	for (i = 0; i < round->count; i++)
	{
		const DispatchEntry *entry = &round->entries[i];

		if (entry->claim == NULL)
			continue;
		if (ItemPointerIsValid(&entry->candidate.tid))
			claimed++;
		else
			others++;
	}
	if (claimed + others > 0)
		count_claims(claim, claimed + others, round->now.mono);
	note_claims(claim, others);
	dependents->thinned |= claimed > 0;
	if (claimed < claim->chosen)
	{
		dependents_claim_reset();
		claim->left = true;
	}
	else if (claim->tasks > 0 && (claim->left || claim->next == claim->count))
		forget_rows(dependents);
}

/* The claim has failed. */
void
dependents_claim_failed(MonoTime now)
{
	dependents_claim_reset();
	stop_choosing(&MyScheduler->dependents.claim, clock_plus_ms(now, CLAIM_AGAIN_MS));
}
