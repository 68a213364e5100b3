/*
 * dispatch.c
 *		One round: choose tasks, claim them in one commit, and assign them to executors.
 *
 * Choose: which tasks start now, in which order, and on which executors.  A chosen task counts as
 * running in its queue from the moment when an executor is reserved for it.  A task that the claim
 * does not find was locked or changed by another session, or has expired: it does not count any
 * more.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"

#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/order.h"
#include "scheduler/pool.h"
#include "scheduler/round.h"
#include "scheduler/scan.h"
#include "scheduler/side_tables.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "shared/arbiter.h"
#include "shared/crash.h"
#include "task/relation.h"
#include "task/roles.h"
#include "task/rows.h"

/*
 * Rows that one statement reads: of one group, or of several, but at least PEEK_MIN of each.
 */
#define PEEK_MAX 256
#define PEEK_MIN 4

/* Groups that are looked at for that: as many tasks are chosen in a round. */
#define PEEK_GROUPS DISPATCH_MAX

/*
 * Tasks that are failed in a round because their role may not run them.  The tasks of other roles
 * get the rest of the round: however many rows of one role are refused, these do not wait for all.
 */
#define FAIL_MAX (DISPATCH_MAX / 2)

/* Tasks that an executor may hold, if they are short and no batch is larger. */
#define RING_MIN 16

/* When a row could not be claimed, the next scan begins after this time at the latest (ms). */
#define MISSED_SCAN_MS 1000

/* Static, because they outlive a round. */
static DispatchRound last_round; /* after an error it is known what was chosen */
static bool gave_back;			 /* the last round has put its tasks back: see check_rules */
static uint32 changes_seen; /* roles were recalled after these changes of databases and roles */

/* ---- choose ---- */

/* Read the next rows of the first group in the order, and of those that are soon to be read. */
static void
read_groups(ClockNow now)
{
	QueueGroup *batch[PEEK_GROUPS];
	RowsPeek peeks[PEEK_GROUPS];
	int count;
	int limit;
	int i;

	count = groups_read_ahead(batch, PEEK_GROUPS, now);
	Assert(count > 0);
	limit = Max(PEEK_MAX / count, PEEK_MIN);
	for (i = 0; i < count; i++)
		peeks[i] = (RowsPeek){.group = &batch[i]->key, .after = batch[i]->read_position};
	rows_peek_groups(MyScheduler->table, peeks, count, limit);
	for (i = 0; i < count; i++)
		groups_read(batch[i], peeks[i].places, peeks[i].count, limit);
}

/*
 * How many tasks may an executor hold, if one of this group is added?  Those that it runs as a
 * batch, by the queue or else by the role, and as many that wait meanwhile.
 */
static int
ring_limit(const QueueGroup *group, const Role *role)
{
	int batch = queue_rule(group->queue)->defaults.batch;

	if (batch < 0)
		batch = role->settings.batch;
	return Max(Min(2 * batch, SHARED_RING), RING_MIN);
}

/*
 * Find an executor of this role for a task of this average duration (us): an idle one, or, unless
 * the average is negative, the one with the least load if the task still fits, and it holds less
 * than "limit".  NULL if there is none.
 */
static PoolExecutor *
find_executor(Oid role, double average, int limit, MonoTime now)
{
	PoolExecutor *best = NULL;

	pool_foreach(executor)
	{
		if (executor->role != role || !executor->ready || executor->leaving || executor->isolated)
			continue;
		if (pool_count_tasks(executor) == 0)
			return executor;
		if (average < 0 || executor->load + average > POOL_LOAD_MAX_US ||
			pool_count_tasks(executor) >= limit || pool_runs_long_task(executor, now))
			continue;
		if (best == NULL || executor->load < best->load)
			best = executor;
	}
	return best;
}

/*
 * May code of the table's owner run when a task of this role is written back?  Its executor has run
 * code of the role before.  The owner and superusers have nothing to gain; for others, the owner of
 * the database may allow it.
 */
static bool
is_trusted(Oid role)
{
	return Settings.owner_code || role == MyScheduler->table->owner || superuser_arg(role);
}

/*
 * Choose the first task of the group, which order_next returned, for this executor; NULL: for this
 * session.
 */
static void
choose_task(DispatchRound *round, QueueGroup *group, const Role *role, PoolExecutor *executor,
			const Taker *taker, bool isolated)
{
	QueueState *queue = group->queue;
	const QueueRule *rule = queue_rule(queue);
	int64 active = rule->defaults.active; /* its own column "active" may say otherwise */
	DispatchEntry *entry = &round->entries[round->count];

	Assert(round->count < DISPATCH_MAX);
	*entry = (DispatchEntry){
		.candidate = {.group = &group->key,
					  .pid = executor ? executor->pid : taker->pid,
					  .lease = executor ? -1 : taker->lease,
					  .active = active >= 0 ? active : role->settings.active,
					  .missed = role->settings.missed,
					  .isolated = isolated,
					  .first_run = rule->strict},
		.group = group,
		.executor = executor,
		.generation = executor ? executor->generation : 0,
		.strict = rule->strict,
		.trusted = is_trusted(role->oid),
		.start.turn_before = queue->turn,
	};
	if (taker)
		entry->taker = *taker;
	entry->start.number = rates_add(&queue->claims, round->now.mono);
	/* nothing fails from here on */
	if (executor)
		pool_reserve(executor, queue, isolated);
	else
		handout_reserve(taker, queue);
	round->count++;
	round->strict |= entry->strict;
	if (entry->strict)
		queue->held_until = CLOCK_NEVER; /* until it is claimed, or not */
	entry->candidate.place = groups_take(group, round->now);
	entry->start.turn = queue->turn;
	refused_batch_add(REFUSED_CLAIM, entry->candidate.place, 1);
}

/*
 * Was a task with this id chosen in this round?  In a partitioned table ids may not be unique, and
 * two runs must not have the same id and the same time of the claim.
 */
static bool
is_chosen(const DispatchRound *round, int64 id)
{
	int i;

	for (i = 0; i < round->count; i++)
		if (round->entries[i].candidate.place.id == id)
			return true;
	return false;
}

/*
 * Skip the first task of the group that order_next returned, and the refused rows behind it, until
 * a scan finds them again.
 */
static void
skip_task(QueueGroup *group, ClockNow now)
{
	(void) groups_drop(group, now);
	while (group->next < group->count && refused_has(group->places[group->next], now.mono) &&
		   groups_drop(group, now))
		;
	order_skip(group);
}

/*
 * The rows of the group that order_next returned are not bound to the role that they name: start
 * none, and leave them to unstarted.c.
 */
static void
leave_to_binding(DispatchRound *round, QueueGroup *group)
{
	unstarted_bind(&group->key);
	if (strict_awaits(round, group, group->places[group->next]))
		return;
	while (groups_drop(group, round->now))
		;
	order_skip(group);
}

/* Must tasks of this role wait while the table has code of its owner's? */
static bool
must_wait(const Role *role)
{
	const TaskTable *table = MyScheduler->table;

	if (table->code == NULL || is_trusted(role->oid))
		return false;
	if (report_due(&MyScheduler->owner_code, table->code, 0))
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("tasks of roles other than the owner of %s wait in database \"%s\"",
						table->name, MyScheduler->database),
				 errdetail("Code of the owner's may run with every write: %s.", table->code),
				 errhint("Drop it, or, if it may run after code of these roles in the same process,"
						 " \"ALTER DATABASE %s SET pg_task.owner_code = on\".",
						 quote_identifier(MyScheduler->database)),
				 errhidecontext(true)));
	return true;
}

/*
 * The first task of this group is next, and its role may run it: choose it if there is an executor.
 * Otherwise the role is blocked.
 */
static void
try_task(DispatchRound *round, QueueGroup *group, Role *role)
{
	bool isolated = scan_is_suspect(group->places[group->next].id);
	PoolExecutor *executor = NULL;

	if (must_wait(role))
		role->limit = 0;
	else
		executor = find_executor(role->oid, isolated ? -1 : queue_average(group->queue),
								 ring_limit(group, role), round->now.mono);
	if (executor == NULL)
		demand_block(round, group, role);
	else if (!isolated || scan_acquire_suspect())
		choose_task(round, group, role, executor, NULL, isolated);
	else if (queue_rule(group->queue)->strict)
		strict_hold(group->queue, round->now.mono);
	else
	{
		skip_task(group, round->now);
		round->dropped = true;
	}
}

/*
 * The first task of this group is next, and sessions take the tasks of its queue: choose it if one
 * waits for it.  What it does there cannot crash the server, so a suspect is not isolated.
 */
static void
try_taker(DispatchRound *round, QueueGroup *group, const Role *role)
{
	Taker taker;

	switch (handout_find(group, &taker))
	{
		case TAKER_FOUND:
			choose_task(round, group, role, NULL, &taker,
						scan_is_suspect(group->places[group->next].id));
			break;
		case TAKER_NONE:
			order_skip_role(group->role, ROLE_TAKERLESS);
			break;
		case TAKER_OTHER_QUEUE:
			order_skip(group);
			break;
		case TAKER_OTHER_NAME:
			skip_task(group, round->now);
			round->dropped = true;
			break;
	}
}

/* The role of this group cannot run its tasks: fail those that are due, up to a limit. */
static void
fail_group(DispatchRound *round, QueueGroup *group, const Role *role)
{
	int limit = Min(round->limit - round->count, FAIL_MAX) - round->failed;
	TaskPlace first = group->places[group->next];
	int count = 0;
	TaskPlace place;

	while (count < limit && group_is_due(group, round->now))
	{
		place = group->places[group->next];
		if (!refused_has(place, round->now.mono) &&
			!unstarted_fail(place, &group->key, role->error, role->hint, role->sqlstate, true))
			break;
		(void) groups_drop(group, round->now);
		count++;
	}
	round->failed += count;
	round->dropped |= count > 0;
	if (count == 0)
		order_skip_role(group->role, ROLE_SKIPPED);
	else if (!strict_awaits(round, group, first))
		order_skip(group);
}

/* The first task of this group is the next in order. */
static void
consider_group(DispatchRound *round, QueueGroup *group)
{
	bool refused = refused_has(group->places[group->next], round->now.mono);
	bool taken = group->role->taker > 0;
	Role role;

	if (refused && queue_rule(group->queue)->strict)
	{
		strict_hold(group->queue, round->now.mono);
		return;
	}
	if (refused || is_chosen(round, group->places[group->next].id))
	{
		skip_task(group, round->now);
		round->dropped = true;
		return;
	}
	role = roles_check(MyScheduler->table->owner, group->key.role, group->key.role_id, taken);
	if (!role.settled)
		leave_to_binding(round, group);
	else if (taken)
		try_taker(round, group, &role);
	else if (role.error)
		fail_group(round, group, &role);
	else
		try_task(round, group, &role);
}

/*
 * Choose, in order, the tasks that may start now and the executors for them, and read the rows that
 * this needs.  The caller is in a transaction and acts as the owner of the table.
 *
 * Roles without an executor take part when they are called.  The loop is bounded by the executors
 * that are started, and by the roles that may not have any.
 */
static void
choose_tasks(DispatchRound *round)
{
	QueueGroup *group;

	pool_begin_round();
	(void) role_line_call(round->now.mono, false);
	do
	{
		while (round->count + round->failed < round->limit &&
			   (group = order_next(round->now)) != NULL)
			if (group_knows_row(group))
				consider_group(round, group);
			else
				read_groups(round->now);
	} while (demand_for_blocked(round) && round->count + round->failed < round->limit &&
			 role_line_call(round->now.mono, round->full) > 0);
}

/* A chosen task is not started, and does not count any more.  "hint": its group learns of it. */
static void
put_back(const DispatchEntry *entry, bool hint)
{
	order_undo_start(entry->group->queue, entry->start);
	/* the group is known, so this allocates nothing, and forgets no other */
	if (hint)
		groups_hint(&entry->group->key, entry->candidate.place, true);
}

/*
 * Rules of queues have been changed since they were read, or roles that they name.  A row may have
 * been chosen that was inserted after a commit that keeps it from starting: read the rules again,
 * and put back the tasks of queues whose rule is another one now; they are chosen by that.  If the
 * rules cannot be read yet, all are put back, but not in two rounds in a row, so that tasks start
 * however often rules change.  Called in the transaction that claims; the rules are read in another
 * one.
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
			unread || !queue_rule_same(&before[i], queue_rule(round->entries[i].group->queue));
	/* of several tasks of a queue, the last one goes first; this ends the hold of a strict queue */
	for (i = round->count - 1; i >= 0; i--)
		if (marks[i])
			put_back(&round->entries[i], true);
	for (i = 0; i < round->count; i++)
		if (!marks[i])
			round->entries[kept++] = round->entries[i];
	round->dropped |= kept < round->count;
	round->count = kept;
	work_begin("claiming tasks");
}

/* ---- claim ---- */

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
	if (round->strict && strict_check(round))
		count += claim_candidates(round, claimed, true);
	if (count > 0)
	{
		for (i = 0; i < round->count; i++)
		{
			DispatchEntry *entry = &round->entries[i];

			if (entry->claim)
				continue;
			rates_undo(&entry->group->queue->claims, entry->start.number);
			entry->start.number = 0;
		}
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

/* ---- assign ---- */

/* Fill in the ring's entry for a claimed task. */
static void
make_shared_task(const Claim *claim, const DispatchEntry *entry, SharedTask *task)
{
	const char *queue = entry->group->queue->name;
	Size length = claim->request ? strlen(claim->request) : 0;
	Size input = claim->input ? VARSIZE(claim->input) : 0;
	Size meta = claim->meta ? VARSIZE(claim->meta) : 0;

	task->run = claim->run;
	task->isolated = entry->candidate.isolated;
	task->role = roles_bound(claim->role, claim->role_id);
	task->relid = MyScheduler->table->relid;
	strlcpy(task->role_name, entry->group->key.role, NAMEDATALEN);
	task->planned = claim->planned;
	task->due = entry->candidate.place.dt;
	task->defaults = queue_rule(entry->group->queue)->defaults;
	task->timeout = claim->timeout >= 0 ? claim->timeout : task->defaults.timeout;
	/* its end may make room for others, or free rows that wait for it */
	task->notify = entry->group->key.max != TASK_UNLIMITED ||
				   queue_rule(entry->group->queue)->max >= 0 || entry->group->queue->limit ||
				   dependents_is_watched(claim->run.id);
	task->elapsed = 0;
	task->trusted = entry->trusted;
	task->cancelled = task->interrupted = false;
	task->format = -1;
	if (claim->format)
		task->format = settings_format(claim->format);
	strlcpy(task->queue, queue, sizeof(task->queue));
	strlcpy(task->flow, claim->flow ? claim->flow : "", sizeof(task->flow));
	/* the request, its input and its labels, if there is room for all; who takes it reads the row
	 */
	task->request_len = -1;
	task->input_len = task->meta_len = 0;
	if (claim->request == NULL || length + input + meta > SHARED_REQUEST)
		return;
	task->request_len = (int32) length;
	task->input_len = (int32) input;
	task->meta_len = (int32) meta;
	memcpy(task->request, claim->request, length);
	if (input > 0)
		memcpy(task->request + length, claim->input, input);
	if (meta > 0)
		memcpy(task->request + length + input, claim->meta, meta);
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
		if (claim && entry->executor)
			pool_assign(entry->executor, entry->generation, entry->group->queue, entry->start,
						&task);
		else if (claim)
			handout_give(&entry->taker, entry->group->queue, entry->start, claim, &task);
		else
		{
			rates_undo(&entry->group->queue->claims, entry->start.number);
			order_task_ended(entry->group->queue);
			if (!entry->kept)
				unstarted_expire(&entry->candidate);
		}
	}
}

/*
 * The round has ended, perhaps with an error: the right to start a suspect is released, too.  Its
 * entries are forgotten, because their groups may be.  "complete": there is nothing more to start.
 */
static void
end_round(DispatchRound *round, bool complete)
{
	if (MyScheduler->slot->isolated)
		arbiter_release_isolated(MyScheduler->slot);
	pool_end_round();
	handout_end_round(complete && !scan_is_open());
	if (round->strict)
		strict_end_round(round);
	round->done = round->count = 0;
}

/* Choose, claim and assign once.  True if more tasks may start now.  See dispatch_failed. */
static bool
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
	handout_begin_round();
	round->barred = shared_lacks_standby();
	if (round->barred || !groups_advance(now))
	{
		handout_end_round(round->barred || !scan_is_open());
		return false;
	}
	round->limit = refused_limit(REFUSED_CLAIM, DISPATCH_MAX);
	work_begin("claiming tasks");
	choose_tasks(round);
	if (round->count > 0 && (shared_scheduler_has_events(MyScheduler->slot, SHARED_QUEUES) ||
							 rules_reader_roles_changed()))
		check_rules(round);
	if (round->count > 0)
	{
		/* here, so that the error of a timeout names the table */
		relation_lock(MyScheduler->table->relid, RowExclusiveLock);
		claim_entries(round);
	}
	work_end_batch(REFUSED_CLAIM);
	count_from_now(round);
	assign_entries(round);
	again = round->dropped || round->count > 0;
	end_round(round, round->count + round->failed < round->limit);
	return again;
}

/* One claim: hints and finished tasks are handled before the next one. */
static void
run_dispatch(ClockNow now pg_attribute_unused())
{
	if (dispatch_round(&last_round, clock_now()))
		SetLatch(MyLatch);
	demand_publish(&last_round);
}

/*
 * Return the next moment after "now" at which tasks may have to be reclaimed.  Before it runs a
 * task, an executor has to take one, which it does at once.
 */
static MonoTime
reclaim_until(MonoTime now)
{
	MonoTime until = CLOCK_NEVER;

	pool_foreach(executor)
	{
		bool runs = executor->taken != executor->reaped;

		if (executor->assigned - executor->reaped > 1 && executor->taken != executor->assigned)
			until = clock_min(until,
							  clock_plus_ms(runs ? executor->taken_at : now, RECLAIM_AFTER_MS + 1));
	}
	return clock_max(until, clock_plus_ms(now, 1));
}

/* What has become due since the last round is due now. */
static MonoTime
dispatch_due(ClockNow now pg_attribute_unused())
{
	MonoTime start = last_round.barred
						 ? clock_plus_ms(last_round.now.mono, SHARED_STANDBY_MS)
						 : clock_min(order_due_at(last_round.now), demand_until(&last_round));

	return clock_min(start, reclaim_until(last_round.now.mono));
}

/*
 * While executors run tasks the scheduler is not idle anyway.  While roles wait for an executor
 * that they may not have, or that cannot connect, the database gets a scheduler from time to time.
 */
static MonoTime
dispatch_needed(ClockNow now)
{
	MonoTime again = CLOCK_NEVER;

	if (last_round.barred)
		return clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS);
	if (groups_advance(now))
		return now.mono;
	if (role_line_read(now.mono).count > 0)
		again = clock_plus_ms(now.mono, JOB_FAILED_RETRY_MS);
	return clock_min(again, order_due_at(now));
}

/*
 * An error has ended the iteration: the tasks that were not assigned wait again.  Of strict queues
 * they are known as the first ones.
 */
static void
dispatch_failed(const BatchFailure *failure)
{
	int i;

	for (i = last_round.count - 1; i >= last_round.done; i--)
		put_back(&last_round.entries[i], !last_round.entries[i].strict);
	end_round(&last_round, false);
	if (failure->sqlstate != ERRCODE_TABLE_CHANGED)
		demand_publish(NULL);
}

const SchedulerJob dispatch_job = {.due = dispatch_due,
								   .needed = dispatch_needed,
								   .run = run_dispatch,
								   .failed = dispatch_failed,
								   .always = true};
