/*
 * dispatch.c
 *		One round: choose tasks, claim them in one commit, and assign them to executors.
 *
 * A chosen task counts as running in its queue from the moment when an executor is reserved for it.
 * A task that the claim does not find was locked or changed by another session, or has expired: it
 * does not count any more.  The round belongs to the caller, so that an error leaves it to
 * dispatch_abandon.
 */
#include "postgres.h"

#include "scheduler/round.h"
#include "scheduler/demand.h"
#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/order.h"
#include "scheduler/pool.h"
#include "scheduler/queue_rules.h"
#include "scheduler/rate_store.h"
#include "scheduler/refused.h"
#include "scheduler/role_line.h"
#include "scheduler/rules_reader.h"
#include "scheduler/scan.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/crash.h"
#include "task/rows.h"

/* When a row could not be claimed, the next scan begins after this time at the latest (ms). */
#define MISSED_SCAN_MS 1000

/* The last round has put its tasks back: see check_rules. */
static bool gave_back;

/* Roles without an executor were recalled after these changes of databases and roles. */
static uint32 changes_seen;

/* Fill in the ring's entry for a claimed task. */
static void
make_shared_task(const Claim *claim, const DispatchEntry *entry, SharedTask *task)
{
	const char *queue = entry->group->queue->name;
	Size length = claim->request ? strlen(claim->request) : 0;
	Size input = claim->input ? VARSIZE(claim->input) : 0;

	task->run = claim->run;
	task->isolated = entry->candidate.isolated;
	task->role = entry->role;
	task->relid = MyScheduler->table->relid;
	strlcpy(task->role_name, entry->group->key.role, NAMEDATALEN);
	task->planned = claim->planned;
	task->due = entry->candidate.place.dt;
	task->defaults = queue_rule(entry->group->queue)->defaults;
	task->timeout = claim->timeout >= 0 ? claim->timeout : task->defaults.timeout;
	/* its end may make room for others, or free rows that wait for it */
	task->notify = entry->group->key.max != TASK_UNLIMITED ||
				   queue_rule(entry->group->queue)->max >= 0 ||
				   dependents_is_watched(claim->run.id);
	task->elapsed = 0;
	task->trusted = entry->trusted;
	task->cancelled = false;
	task->format = -1;
	if (claim->format)
		task->format = settings_format(claim->format);
	strlcpy(task->queue, queue, sizeof(task->queue));
	strlcpy(task->flow, claim->flow ? claim->flow : "", sizeof(task->flow));
	/* the request and its input, if there is room for both */
	task->request_len = -1;
	task->input_len = 0;
	if (claim->request == NULL || length + input > SHARED_REQUEST)
		return;
	task->request_len = (int32) length;
	task->input_len = (int32) input;
	memcpy(task->request, claim->request, length);
	if (input > 0)
		memcpy(task->request + length, claim->input, input);
}

static int
compare_claims(const void *a, const void *b)
{
	int64 left = ((const Claim *) a)->run.id;
	int64 right = ((const Claim *) b)->run.id;

	return left < right ? -1 : left > right;
}

/*
 * Claim the chosen tasks that may be and are not yet, and note which were; "strict": those of
 * strict queues alone.  Returns how many.
 */
static int
claim_candidates(DispatchRound *round, TimestampTz claimed, bool strict)
{
	Candidate candidates[DISPATCH_MAX];
	DispatchEntry *entries[DISPATCH_MAX];
	Claim *claims;
	int count = 0;
	int found;
	int i;

	for (i = 0; i < round->count; i++)
	{
		DispatchEntry *entry = &round->entries[i];

		if (entry->claim || entry->kept || (strict && !entry->strict))
			continue;
		entries[count] = entry;
		candidates[count++] = entry->candidate;
	}
	if (count == 0)
		return 0;
	found = rows_claim(MyScheduler->table, candidates, count, round->now.wall, claimed, &claims);
	qsort(claims, found, sizeof(Claim), compare_claims);
	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = &entries[i]->group->key;
		Claim key = {.run.id = entries[i]->candidate.place.id};
		Claim *claim = bsearch(&key, claims, found, sizeof(Claim), compare_claims);

		/* the statement checks the role, too; here a mistake in it ends the round */
		if (claim && (strcmp(claim->role, group->role) != 0 || claim->role_id != group->role_id))
			elog(ERROR, "a task of another role was claimed");
		entries[i]->claim = claim;
	}
	return found;
}

/* Tasks of queues with a rate or a pause count from the moment when they are claimed. */
static void
count_from_now(DispatchRound *round)
{
	MonoTime now = clock_mono();
	int i;

	for (i = round->done; i < round->count; i++)
	{
		DispatchEntry *entry = &round->entries[i];

		if (entry->claim && entry->start.number > 0)
			rates_delay(&entry->group->queue->claims, entry->start.number, now);
	}
}

/*
 * Within a transaction: claim the chosen tasks.  Those whose rows were locked or have changed are
 * no starts of their queues.
 */
static void
claim_entries(DispatchRound *round)
{
	TimestampTz claimed = crash_claim_time(round->now.wall);
	int count;
	int missed = 0;
	int i;

	Assert(MyScheduler->in_transaction);
	if (round->strict)
		strict_begin_claim(round);
	count = claim_candidates(round, claimed, false);
	if (round->strict && strict_check(round, MyScheduler->table))
		count += claim_candidates(round, claimed, true);
	if (count > 0)
	{
		for (i = 0; i < round->count; i++)
			if (round->entries[i].claim == NULL)
				rates_undo(&round->entries[i].group->queue->claims,
						   &round->entries[i].start.number);
		count_from_now(round);
		rate_store_write(round);
	}
	figure_add(FIGURE_CLAIMED, count);
	for (i = 0; i < round->count; i++)
		missed += round->entries[i].claim == NULL && !round->entries[i].kept;
	figure_add(FIGURE_MISSED, missed);
	if (missed > 0)
	{
		/* no hint tells when the lock of a row is released that was not changed */
		MyScheduler->row_missed = true;
		scan_no_later(clock_plus_ms(round->now.mono, MISSED_SCAN_MS));
	}
}

/* Assign the tasks that were claimed, in order; the others do not count as running any more. */
static void
assign_entries(DispatchRound *round)
{
	SharedTask task;

	while (round->done < round->count)
	{
		DispatchEntry *entry = &round->entries[round->done];
		const Claim *claim = entry->claim;

		if (!entry->strict)
			groups_claimed(entry->group, entry->candidate.place, claim != NULL);
		if (claim)
			make_shared_task(claim, entry, &task);
		/* one that goes with its DONE is not history, unless its flow goes on */
		if (claim && (claim->keep > 0 || claim->flow))
			history_hint(claim->keep, round->now.mono);
		/* before anything can fail: from here on the pool counts it, or it does not count */
		round->done++;
		if (claim)
			pool_assign(entry->executor, entry->generation, entry->group->queue, entry->start,
						&task);
		else
		{
			pool_release(entry->group->queue, &entry->start);
			if (!entry->kept)
				unstarted_expire(&entry->candidate);
		}
	}
}

/*
 * The round has ended, perhaps with an error: the right to start a suspect is released, too.  Its
 * entries are forgotten, because their groups may be.
 */
static void
end_round(DispatchRound *round)
{
	if (MyScheduler->slot->isolated)
		arbiter_release_isolated(MyScheduler->slot);
	pool_end_round();
	if (round->strict)
		strict_end_round(round);
	round->done = round->count = 0;
}

/*
 * Rules of queues have been changed since they were read.  A row may have been chosen that was
 * inserted after a commit that keeps it from starting: read the rules again, and put back the tasks
 * of queues whose rule is another one now; they are chosen by that.  If the rules cannot
 * be read yet, all are put back, but not in two rounds in a row, so that tasks start however often
 * rules change.  Called in the transaction that claims; the rules are read in another one.
 */
static void
check_rules(DispatchRound *round)
{
	QueueRule before[DISPATCH_MAX];
	bool marks[DISPATCH_MAX];
	bool unread;
	int kept = 0;
	int i;

	work_end();
	/* with their padding, which is compared, too */
	for (i = 0; i < round->count; i++)
		memcpy(&before[i], queue_rule(round->entries[i].group->queue), sizeof(QueueRule));
	unread = !rules_reader_read() && !gave_back;
	gave_back = unread;
	for (i = 0; i < round->count; i++)
		marks[i] =
			unread || !queue_rules_same(&before[i], queue_rule(round->entries[i].group->queue));
	/* of several tasks of a queue, the last one goes first */
	for (i = round->count - 1; i >= 0; i--)
		if (marks[i])
		{
			DispatchEntry *entry = &round->entries[i];

			pool_release(entry->group->queue, &entry->start);
			/* this ends the hold of a strict queue, too */
			groups_hint(&entry->group->key, entry->candidate.place, true);
		}
	for (i = 0; i < round->count; i++)
		if (!marks[i])
			round->entries[kept++] = round->entries[i];
	round->dropped |= kept < round->count;
	round->count = kept;
	work_begin("claiming tasks");
}

/*
 * Choose, claim and assign once.  True if more tasks may start now.  After an error the caller
 * calls dispatch_abandon.
 */
bool
dispatch_round(DispatchRound *round, ClockNow now)
{
	uint32 changes = pg_atomic_read_u32(&Shared->databases_changes);
	bool again;

	Assert(round->count == 0);
	memset(round, 0, offsetof(DispatchRound, entries));
	round->now = now;
	if (changes != changes_seen)
		role_line_recall();
	changes_seen = changes;
	if (!groups_ready(now))
		return false;
	round->limit = refused_limit(REFUSED_CLAIM, DISPATCH_MAX);
	work_begin("claiming tasks");
	choice_make(round, MyScheduler->table);
	if (round->count > 0 && shared_scheduler_has_events(MyScheduler->slot, SHARED_QUEUES))
		check_rules(round);
	if (round->count > 0)
		claim_entries(round);
	work_end();
	refused_batch_written(REFUSED_CLAIM);
	count_from_now(round);
	assign_entries(round);
	again = round->dropped || round->count > 0;
	end_round(round);
	return again;
}

/*
 * An error has ended the iteration: the tasks that were not assigned are not started, and wait
 * again.
 */
void
dispatch_abandon(DispatchRound *round)
{
	int i;

	for (i = round->count - 1; i >= round->done; i--)
		order_undo_start(round->entries[i].group->queue, &round->entries[i].start);
	for (i = round->done; i < round->count; i++)
	{
		DispatchEntry *entry = &round->entries[i];

		pool_release(entry->group->queue, &entry->start);
		/* the group is known, so this allocates nothing, and forgets no other */
		if (!entry->strict)
			groups_hint(&entry->group->key, entry->candidate.place, true);
	}
	end_round(round);
}
