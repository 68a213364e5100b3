/*
 * choice.c
 *		Which tasks start now, in which order, and on which executors.
 *
 * choice_make fills in the entries of a round.  An entry counts as running in its queue from then
 * on.  This file claims nothing.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "scheduler/round.h"
#include "scheduler/demand.h"
#include "scheduler/order.h"
#include "scheduler/queue_rules.h"
#include "scheduler/refused.h"
#include "scheduler/scan.h"
#include "scheduler/role_line.h"
#include "scheduler/work.h"
#include "scheduler/unstarted.h"
#include "settings.h"
#include "task/roles.h"

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

/* Read the next rows of the first group in the order, and of those that are soon to be read. */
static void
read_groups(const TaskTable *table, ClockNow now)
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
	rows_peek_groups(table, peeks, count, limit);
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
is_trusted(const TaskTable *table, Oid role)
{
	return Settings.owner_code || role == table->owner || superuser_arg(role);
}

/* Choose the first task of the group, which order_first returned, for this executor. */
static void
choose_task(DispatchRound *round, QueueGroup *group, const Role *role, PoolExecutor *executor,
			bool isolated)
{
	DispatchEntry *entry = &round->entries[round->count];
	Candidate *candidate = &entry->candidate;

	Assert(round->count < DISPATCH_MAX);
	entry->strict = queue_rule(group->queue)->strict;
	round->strict |= entry->strict;
	entry->kept = false;
	entry->first = NULL;
	entry->trusted = is_trusted(MyScheduler->table, role->oid);
	entry->start.turn_before = group->queue->turn;
	entry->start.number = rates_add(&group->queue->claims, round->now.mono);
	/* nothing fails from here on */
	entry->generation = pool_reserve(executor, group->queue, isolated);
	round->count++;
	if (entry->strict)
		group->queue->held_until = CLOCK_NEVER; /* until it is claimed, or not */
	entry->group = group;
	entry->executor = executor;
	entry->role = role->oid;
	entry->claim = NULL;
	candidate->place = groups_choose_first(group, round->now);
	entry->start.turn = group->queue->turn;
	candidate->group = &group->key;
	candidate->pid = executor->pid;
	/* its own column "active" may say otherwise */
	candidate->active = queue_rule(group->queue)->defaults.active;
	if (candidate->active < 0)
		candidate->active = role->settings.active;
	candidate->missed = role->settings.missed;
	candidate->isolated = isolated;
	candidate->first_run = entry->strict;
	refused_batch_add(REFUSED_CLAIM, candidate->place, 1);
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
 * Skip the first task of the group that order_first returned, and the refused rows behind it, until
 * a scan finds them again.
 */
static void
skip_first_task(QueueGroup *group, ClockNow now)
{
	(void) groups_drop_first(group, now);
	while (group->next < group->count && refused_has(group->places[group->next], now.mono) &&
		   groups_drop_first(group, now))
		;
	order_skip(group);
}

/*
 * The rows of the group that order_first returned are not bound to the role that they name: start
 * none, and leave them to unstarted.c.
 */
static void
leave_to_binding(DispatchRound *round, QueueGroup *group)
{
	unstarted_bind(&group->key);
	if (strict_awaits(round, group, group->places[group->next]))
		return;
	while (groups_drop_first(group, round->now))
		;
	order_skip(group);
}

/* Must tasks of this role wait while the table has code of its owner's? */
static bool
must_wait(const TaskTable *table, const Role *role)
{
	if (table->code == NULL || is_trusted(table, role->oid))
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
try_first_task(DispatchRound *round, const TaskTable *table, QueueGroup *group, Role *role)
{
	bool isolated = scan_is_suspect(group->places[group->next].id);
	PoolExecutor *executor = NULL;

	if (must_wait(table, role))
		role->limit = 0;
	else
		executor = find_executor(role->oid, isolated ? -1 : queue_average(group->queue),
								 ring_limit(group, role), round->now.mono);
	if (executor == NULL)
		demand_block(round, group, role);
	else if (!isolated || scan_acquire_suspect())
		choose_task(round, group, role, executor, isolated);
	else if (queue_rule(group->queue)->strict)
		strict_hold(group->queue, round->now.mono);
	else
	{
		skip_first_task(group, round->now);
		round->dropped = true;
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

	while (count < limit && groups_due_now(group, round->now))
	{
		place = group->places[group->next];
		if (!refused_has(place, round->now.mono) &&
			!unstarted_fail(place, &group->key, role->error, role->hint, role->sqlstate, true))
			break;
		(void) groups_drop_first(group, round->now);
		count++;
	}
	round->failed += count;
	round->dropped |= count > 0;
	if (count == 0)
		order_skip_role(group->role);
	else if (!strict_awaits(round, group, first))
		order_skip(group);
}

/* The first task of this group is the next in order. */
static void
consider_group(DispatchRound *round, const TaskTable *table, QueueGroup *group)
{
	bool refused = refused_has(group->places[group->next], round->now.mono);
	Role role;

	if (refused && queue_rule(group->queue)->strict)
	{
		strict_hold(group->queue, round->now.mono);
		return;
	}
	if (refused || is_chosen(round, group->places[group->next].id))
	{
		skip_first_task(group, round->now);
		round->dropped = true;
		return;
	}
	role = roles_check(table->owner, group->key.role, group->key.role_id);
	if (!role.settled)
		leave_to_binding(round, group);
	else if (role.error)
		fail_group(round, group, &role);
	else
		try_first_task(round, table, group, &role);
}

/* Choose, in order, the tasks of the roles that are not skipped. */
static void
choose_in_order(DispatchRound *round, const TaskTable *table)
{
	QueueGroup *group;

	while (round->count + round->failed < round->limit && (group = order_first(round->now)) != NULL)
	{
		if (!group_knows_row(group))
			read_groups(table, round->now);
		else
			consider_group(round, table, group);
	}
}

/*
 * Choose, in order, the tasks that may start now and the executors for them, and read the rows that
 * this needs.  The caller is in a transaction and acts as the owner of the table.
 *
 * Roles without an executor take part when they are called.  The loop is bounded by the executors
 * that are started, and by the roles that may not have any.
 */
void
choice_make(DispatchRound *round, const TaskTable *table)
{
	pool_begin_round();
	(void) role_line_call(round->now.mono, false);
	do
		choose_in_order(round, table);
	while (demand_for_blocked(round) && round->count + round->failed < round->limit &&
		   role_line_call(round->now.mono, round->full) > 0);
}
