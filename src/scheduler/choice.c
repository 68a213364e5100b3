/*
 * choice.c
 *		Which tasks start now, in which order, and on which executors.
 *
 * choice_make fills in the entries of a round.  An entry counts as running in its queue from then
 * on.  This file claims nothing.
 */
#include "postgres.h"

#include "scheduler/binding.h"
#include "scheduler/choice.h"
#include "scheduler/demand.h"
#include "scheduler/isolation.h"
#include "scheduler/locked.h"
#include "scheduler/refused.h"
#include "scheduler/role_state.h"
#include "scheduler/unstarted.h"
#include "task/roles.h"

#define PEEK_MAX 256 /* rows of a group that one statement reads */

/*
 * Fail the due tasks of a group, up to the limit, because their role cannot run them.  Returns
 * their number.
 */
static int
fail_tasks(QueueGroup *group, const Role *role, int limit, ClockNow now)
{
	int count = 0;
	TaskPlace place;

	while (count < limit && groups_due_now(group, now))
	{
		place = group->places[group->next];
		if (!refused_has(place, now.mono) &&
			!unstarted_fail(place, group->key.role, role->error, role->hint, role->sqlstate, true))
			break;
		(void) groups_drop_first(group, now, &place);
		count++;
	}
	return count;
}

/* Read the next rows of the groups whose next row is not known. */
static void
read_groups(const TaskTable *table, ClockNow now)
{
	QueueGroup *group;

	while ((group = groups_unread(now)) != NULL)
	{
		TaskPlace *places;
		int count;

		if (group->locked)
		{
			locked_read_group(table, group, now);
			continue;
		}
		count = rows_peek(table, &group->key, group->read_position, PEEK_MAX, &places);
		groups_read(group, places, count, PEEK_MAX);
		pfree(places);
	}
}

/*
 * A role whose next task has no executor.  Later tasks of the role are skipped in this round, to
 * keep the order.
 */
typedef struct Blocked
{
	Role role;
	const char *name;
	bool locked;	/* its rows are probably locked: no executor is wanted */
	int tasks;		/* tasks that could start */
	double average; /* duration of a task (us); negative: not known for all queues */
} Blocked;

static Blocked *
find_blocked(List *blocked, const char *name)
{
	ListCell *cell;

	foreach(cell, blocked)
	{
		Blocked *entry = lfirst(cell);

		if (strcmp(entry->name, name) == 0)
			return entry;
	}
	return NULL;
}

static List *
add_blocked(List *blocked, const Role *role, const char *name, bool locked)
{
	Blocked *entry = palloc0(sizeof(Blocked));

	entry->role = *role;
	entry->locked = locked;
	entry->name = name;
	return lappend(blocked, entry);
}

/* Add a group of a blocked role, whose tasks would need executors. */
static void
add_demand(Blocked *entry, const QueueGroup *group, ClockNow now)
{
	entry->tasks += groups_startable(group, now);
	if (group->queue->average < 0 || entry->average < 0)
		entry->average = -1;
	else
		entry->average = Max(entry->average, group->queue->average);
}

static int
compare_need(const ListCell *left, const ListCell *right)
{
	return demand_compare(((Blocked *) lfirst(left))->role.oid,
						  ((Blocked *) lfirst(right))->role.oid);
}

/* Request executors for the blocked roles, in the order of their needs. */
static void
demand_for_blocked_roles(DispatchRound *round)
{
	ListCell *cell;

	list_sort(round->blocked, compare_need);
	foreach(cell, round->blocked)
	{
		Blocked *entry = lfirst(cell);

		if (entry->locked)
			continue;
		round->wants_executor |= demand_executors(&entry->role, entry->name, entry->tasks,
												  entry->average, round->now.mono);
	}
}

/*
 * Find an executor of this role for a task of this average duration (us): an idle one, or the one
 * with the least load if the task still fits.  NULL if there is none.
 */
static PoolExecutor *
find_executor(Oid role, double average, MonoTime now)
{
	PoolExecutor *best = NULL;

	pool_foreach(executor)
	{
		if (executor->role != role || !executor->ready || executor->leaving || executor->isolated)
			continue;
		if (pool_count_tasks(executor) == 0)
			return executor;
		if (average < 0 || executor->load + average > POOL_LOAD_MAX_US ||
			pool_count_tasks(executor) >= SHARED_RING || pool_runs_long_task(executor, now))
			continue;
		if (best == NULL || executor->load < best->load)
			best = executor;
	}
	return best;
}

/* Find an idle executor of this role, for an isolated task.  NULL if there is none. */
static PoolExecutor *
find_idle_executor(Oid role)
{
	pool_foreach(executor)
		if (executor->role == role && executor->ready && !executor->leaving &&
			pool_count_tasks(executor) == 0)
			return executor;
	return NULL;
}

/*
 * Has a task expired according to the setting of its role?  Its own column "active" may say
 * otherwise.
 */
static bool
has_expired(const Role *role, TaskPlace place, ClockNow now)
{
	int active = role->settings.active;

	return active > 0 && TimestampTzPlusMilliseconds(place.dt, active) < now.wall;
}

/* Choose the first task of the group that groups_next returned, for this executor. */
static void
choose_task(DispatchRound *round, QueueGroup *group, const Role *role, PoolExecutor *executor,
			bool isolated)
{
	DispatchEntry *entry = &round->entries[round->count];
	Candidate *candidate = &entry->candidate;

	Assert(round->count < DISPATCH_MAX);
	entry->generation = pool_reserve(executor, group->queue, isolated);
	round->count++;
	entry->group = group;
	entry->executor = executor;
	entry->role = role->oid;
	candidate->place = groups_choose_first(round->now);
	candidate->group = &group->key;
	candidate->pid = executor->pid;
	candidate->active = role->settings.active;
	candidate->isolated = isolated;
	entry->expired = has_expired(role, candidate->place, round->now);
	refused_batch_add(REFUSED_CLAIM, candidate->place);
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
 * Skip the first task of the group that groups_next returned, and the refused rows behind it, until
 * a scan finds them again.
 */
static void
skip_first_task(QueueGroup *group, ClockNow now)
{
	TaskPlace place;

	(void) groups_drop_first(group, now, &place);
	while (group->next < group->count && refused_has(group->places[group->next], now.mono) &&
		   groups_drop_first(group, now, &place))
		;
	groups_skip();
}

/*
 * The rows of the group that groups_next returned are not bound to the role that they name: start
 * none, and leave them to binding.c.
 */
static void
leave_to_binding(QueueGroup *group, ClockNow now)
{
	TaskPlace place;

	binding_add(&group->key);
	while (groups_drop_first(group, now, &place))
		;
	groups_skip();
}

/* The decision about the next task. */
typedef enum Decision
{
	DECISION_CHOSEN,
	DECISION_SKIPPED,	  /* until a scan finds it again */
	DECISION_NO_EXECUTOR, /* its role is blocked */
	DECISION_LOCKED		  /* probably: its role is blocked, and needs no executor */
} Decision;

/*
 * The first task of this group is next, and its role may run it: choose it if there is an executor.
 */
static Decision
try_first_task(DispatchRound *round, QueueGroup *group, const Role *role)
{
	bool isolated = isolation_needed(group->places[group->next].id);
	PoolExecutor *executor = isolated
								 ? find_idle_executor(role->oid)
								 : find_executor(role->oid, group->queue->average, round->now.mono);

	if (executor == NULL)
		return DECISION_NO_EXECUTOR;
	if (isolated && !isolation_acquire())
	{
		skip_first_task(group, round->now);
		round->dropped = true;
		return DECISION_SKIPPED;
	}
	choose_task(round, group, role, executor, isolated);
	return DECISION_CHOSEN;
}

/*
 * The first task of this group is the next in order, and no task of its role is blocked so far:
 * choose it.  NULL: that was done, or the group is no longer the next.  Otherwise the role is
 * blocked from now on.
 */
static Blocked *
choose_or_block(DispatchRound *round, const TaskTable *table, QueueGroup *group)
{
	Role role = roles_check(table->owner, group->key.role, group->key.role_id);
	Decision decision = DECISION_LOCKED;

	if (!role.settled)
	{
		leave_to_binding(group, round->now);
		return NULL;
	}
	if (role.error)
	{
		int limit = round->limit - round->count - round->failed;
		int count = fail_tasks(group, &role, limit, round->now);

		round->failed += count;
		round->dropped |= count > 0;
		groups_skip();
		return NULL;
	}
	if (role_expects_locks(role.oid))
		locked_add(round, group, role.oid);
	else
		decision = try_first_task(round, group, &role);
	if (decision == DECISION_CHOSEN || decision == DECISION_SKIPPED)
		return NULL;
	round->blocked =
		add_blocked(round->blocked, &role, group->key.role, decision == DECISION_LOCKED);
	return llast(round->blocked);
}

/* The first task of this group is the next in order. */
static void
consider_group(DispatchRound *round, const TaskTable *table, QueueGroup *group)
{
	Blocked *entry = find_blocked(round->blocked, group->key.role);

	if (refused_has(group->places[group->next], round->now.mono) ||
		is_chosen(round, group->places[group->next].id))
	{
		skip_first_task(group, round->now);
		round->dropped = true;
		return;
	}
	if (entry && entry->locked)
		locked_add(round, group, entry->role.oid);
	if (entry == NULL)
		entry = choose_or_block(round, table, group);
	if (entry == NULL)
		return;
	add_demand(entry, group, round->now);
	groups_skip();
}

/*
 * Choose, in order, the tasks that may start now and the executors for them, and read the rows that
 * this needs.  The caller is in a transaction and acts as the owner of the table.
 */
void
choice_make(DispatchRound *round, const TaskTable *table)
{
	QueueGroup *group;

	read_groups(table, round->now);
	groups_order(round->now);
	pool_begin_round();
	while (round->count + round->failed < round->limit && (group = groups_next(round->now)) != NULL)
		consider_group(round, table, group);
	demand_for_blocked_roles(round);
	round->dropped |= locked_check(round, table);
}
