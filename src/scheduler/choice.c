/*
 * choice.c
 *		Which tasks start now, in which order, and on which executors.
 *
 * A chosen task counts as running in its queue until it has been assigned and has ended, or until
 * choice_drop.  This file claims nothing.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/binding.h"
#include "scheduler/choice.h"
#include "scheduler/refused.h"
#include "scheduler/unstarted.h"
#include "task/roles.h"

#define PEEK_MAX 256 /* rows of a group that one statement reads */

/*
 * Finding unlocked rows among locked ones takes at most 1/5 of the time: this many rows by one
 * statement, then a pause of UNLOCKED_SHARE times its duration, and at least REST_MS (ms).
 */
#define UNLOCKED_MAX 1024
#define UNLOCKED_SHARE 4
#define REST_MS 10

Candidate choice_candidates[CHOICE_MAX];
Choice choice_list[CHOICE_MAX];
int choice_count = 0;

/*
 * Waiting suspects, ordered by id: they run isolated, one at a time, each on an executor without
 * other tasks.
 */
static int64 *isolated = NULL;
static int isolated_count = 0;
static bool waits_isolated = false; /* one of them was skipped since */

static MonoTime locked_not_before = {0}; /* before this, locked rows are not checked again */

/* A group whose role had many locked tasks in a row; valid for one round. */
typedef struct Suspect
{
	QueueGroup *group;
	Oid role;
} Suspect;

static Suspect suspects[UNLOCKED_MAX];
static int suspect_count = 0;
static bool suspect_left = false; /* there are more, or they were not checked */

void
choice_set_isolated(const int64 *ids, int count)
{
	if (isolated)
		pfree(isolated);
	isolated = NULL;
	isolated_count = 0;
	waits_isolated = false;
	if (count == 0)
		return;
	isolated = MemoryContextAllocHuge(TopMemoryContext, count * sizeof(int64));
	isolated_count = count;
	memcpy(isolated, ids, count * sizeof(int64));
	qsort(isolated, count, sizeof(int64), rows_compare_ids);
}

/* Was an isolated task skipped because another one runs? */
bool
choice_waits_isolated(void)
{
	return waits_isolated;
}

static bool
is_suspect(int64 id)
{
	return isolated_count > 0 &&
		   bsearch(&id, isolated, isolated_count, sizeof(int64), rows_compare_ids);
}

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
			!unstarted_refuse(place, group->key.role, role->error, role->sqlstate, true))
			break;
		(void) groups_drop(group, now, &place);
		count++;
	}
	return count;
}

/* Is this row among those that rows_unlocked returned?  The ids are sorted. */
static bool
is_among(const int64 *ids, int count, int64 id)
{
	return bsearch(&id, ids, count, sizeof(int64), rows_compare_ids) != NULL;
}

/*
 * Read the next rows of a group of which many rows are locked.  Only rows that are not locked, or
 * not due, are remembered.
 */
static void
read_locked(const TaskTable *table, QueueGroup *group, ClockNow now)
{
	TaskPlace *places;
	int count = rows_peek(table, &group->key, group->mark, UNLOCKED_MAX, &places);
	TaskPlace *tried = palloc((count + 1) * sizeof(TaskPlace));
	TaskPlace mark = count > 0 ? places[count - 1] : group->mark;
	int64 *ids;
	int nids;
	int kept = 0;
	int ntried = 0;
	int i;

	for (i = 0; i < count && places[i].dt <= now.wall; i++)
		tried[ntried++] = places[i];
	if (group->head.dt <= now.wall)
		tried[ntried++] = group->head;
	nids = rows_unlocked(table, tried, ntried, &ids);
	if (group->head.dt <= now.wall && is_among(ids, nids, group->head.id))
	{
		groups_unlocked(group);
		return;
	}
	for (i = 0; i < count; i++)
		if (places[i].dt > now.wall || is_among(ids, nids, places[i].id))
			places[kept++] = places[i];
	groups_read_unlocked(group, places, kept, mark, count < UNLOCKED_MAX);
}

/* Return when locked rows may be checked again, after a check from "begun" to "now". */
static MonoTime
rest_after(MonoTime begun, MonoTime now)
{
	MonoTime until = {now.us + (now.us - begun.us) * UNLOCKED_SHARE};

	return clock_max(until, clock_plus_ms(now, REST_MS));
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

		if (group->locked && clock_is_before(now.mono, locked_not_before))
		{
			groups_rest(group, locked_not_before);
			continue;
		}
		if (group->locked)
		{
			MonoTime begun = clock_mono();

			read_locked(table, group, now);
			locked_not_before = rest_after(begun, clock_mono());
			continue;
		}
		count = rows_peek(table, &group->key, group->mark, PEEK_MAX, &places);
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
	bool rests;		/* its rows are probably locked: no executor is wanted */
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
add_blocked(List *blocked, const Role *role, const char *name, bool rests)
{
	Blocked *entry = palloc0(sizeof(Blocked));

	entry->role = *role;
	entry->rests = rests;
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
	return pool_compare_need(((Blocked *) lfirst(left))->role.oid,
							 ((Blocked *) lfirst(right))->role.oid);
}

/* Request executors for the blocked roles, in the order of their needs. */
static void
demand_executors(List *blocked, ClockNow now, bool *wants_executor)
{
	ListCell *cell;

	list_sort(blocked, compare_need);
	foreach(cell, blocked)
	{
		Blocked *entry = lfirst(cell);

		if (entry->rests)
			continue;
		*wants_executor |=
			pool_demand(&entry->role, entry->name, entry->tasks, entry->average, now.mono);
	}
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

static void
choose_task(QueueGroup *group, const Role *role, PoolExecutor *executor, bool alone, ClockNow now)
{
	choice_list[choice_count].generation = pool_reserve(executor, group->queue, alone);
	choice_list[choice_count].role = role->oid;
	choice_candidates[choice_count].active = role->settings.active;
	choice_candidates[choice_count].isolated = alone;
	choice_candidates[choice_count].place = groups_take(now);
	refused_add(REFUSED_CLAIM, choice_candidates[choice_count].place);
	choice_list[choice_count].expired =
		has_expired(role, choice_candidates[choice_count].place, now);
	choice_candidates[choice_count].group = &group->key;
	choice_candidates[choice_count].pid = pool_pid(executor);
	choice_list[choice_count].group = group;
	choice_list[choice_count].queue = group->queue;
	choice_list[choice_count].executor = executor;
	choice_count++;
}

/*
 * Was a task with this id chosen in this round?  In a partitioned table ids may not be unique, and
 * two runs must not have the same id and the same time of the claim.
 */
static bool
is_chosen(int64 id)
{
	int i;

	for (i = 0; i < choice_count; i++)
		if (choice_candidates[i].place.id == id)
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

	(void) groups_drop(group, now, &place);
	while (group->next < group->count && refused_has(group->places[group->next], now.mono) &&
		   groups_drop(group, now, &place))
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
	while (groups_drop(group, now, &place))
		;
	groups_skip();
}

/* The decision about the next task. */
typedef enum Verdict
{
	VERDICT_CHOSEN,
	VERDICT_PASSED_OVER,
	VERDICT_NO_EXECUTOR,
	VERDICT_RESTS
} Verdict;

/*
 * The first task of this group is next, and its role may run it: choose it if there is an executor.
 */
static Verdict
try_first_task(QueueGroup *group, const Role *role, ClockNow now)
{
	bool alone = is_suspect(group->places[group->next].id);
	PoolExecutor *executor = alone ? pool_find_isolated(role->oid)
								   : pool_find(role->oid, group->queue->average, now.mono);

	if (executor == NULL)
		return VERDICT_NO_EXECUTOR;
	if (alone && !pool_isolated_take())
	{
		waits_isolated = true;
		skip_first_task(group, now);
		return VERDICT_PASSED_OVER;
	}
	choose_task(group, role, executor, alone, now);
	return VERDICT_CHOSEN;
}

/*
 * The first task of this group may be locked: add it to "suspects", unless it is too early for a
 * check.
 */
static void
wait_as_suspect(QueueGroup *group, Oid role, ClockNow now)
{
	suspect_left = true;
	if (suspect_count == UNLOCKED_MAX || clock_is_before(now.mono, locked_not_before))
		return;
	suspects[suspect_count].group = group;
	suspects[suspect_count++].role = role;
}

/*
 * Check the first tasks of the groups in "suspects".  Those that are locked are dropped until a
 * scan finds them again, without an executor for them.  True if one is not locked.
 */
static bool
try_suspects(const TaskTable *table, ClockNow now)
{
	TaskPlace *places = palloc((suspect_count + 1) * sizeof(TaskPlace));
	MonoTime begun = clock_mono();
	int64 *ids;
	int count;
	int i;

	for (i = 0; i < suspect_count; i++)
		places[i] = suspects[i].group->places[suspects[i].group->next];
	count = rows_unlocked(table, places, suspect_count, &ids);
	for (i = 0; i < suspect_count; i++)
	{
		if (is_among(ids, count, places[i].id))
			pool_claimed(suspects[i].role);
		else
			(void) groups_drop(suspects[i].group, now, &places[i]);
	}
	locked_not_before = rest_after(begun, clock_mono());
	return count > 0;
}

/* One round: what choice_make has been asked for, and what has come of it so far. */
typedef struct Round
{
	ClockNow now;
	Oid owner;	   /* of the task table */
	int limit;	   /* of tasks that are chosen or refused */
	int refused;   /* tasks whose role may not run them */
	bool dropped;  /* tasks were dropped, so there may be more to choose from */
	List *blocked; /* of Blocked */
} Round;

/*
 * The first task of this group is the next in order, and no task of its role is blocked so far:
 * choose it.  NULL: that was done, or the group is no longer the next.  Otherwise the role is
 * blocked from now on.
 */
static Blocked *
choose_or_block(Round *round, QueueGroup *group)
{
	Role role = roles_check(round->owner, group->key.role, group->key.role_id);
	Verdict verdict = VERDICT_RESTS;

	if (!role.settled)
	{
		leave_to_binding(group, round->now);
		return NULL;
	}
	if (role.error)
	{
		int limit = round->limit - choice_count - round->refused;
		int count = fail_tasks(group, &role, limit, round->now);

		round->refused += count;
		round->dropped |= count > 0;
		groups_skip();
		return NULL;
	}
	if (pool_suspects(role.oid))
		wait_as_suspect(group, role.oid, round->now);
	else
		verdict = try_first_task(group, &role, round->now);
	round->dropped |= verdict == VERDICT_PASSED_OVER;
	if (verdict == VERDICT_CHOSEN || verdict == VERDICT_PASSED_OVER)
		return NULL;
	round->blocked = add_blocked(round->blocked, &role, group->key.role, verdict == VERDICT_RESTS);
	return llast(round->blocked);
}

/* The first task of this group is the next in order. */
static void
consider_group(Round *round, QueueGroup *group)
{
	Blocked *entry = find_blocked(round->blocked, group->key.role);

	if (refused_has(group->places[group->next], round->now.mono) ||
		is_chosen(group->places[group->next].id))
	{
		skip_first_task(group, round->now);
		round->dropped = true;
		return;
	}
	if (entry && entry->rests)
		wait_as_suspect(group, entry->role.oid, round->now);
	if (entry == NULL)
		entry = choose_or_block(round, group);
	if (entry == NULL)
		return;
	add_demand(entry, group, round->now);
	groups_skip();
}

/*
 * Choose, in order, the tasks that may start now and the executors for them, and read the rows that
 * this needs.  Returns true if tasks were dropped, so that there may be more to choose from.
 * *wants_executor is set if an executor should come from another database.
 */
bool
choice_make(const TaskTable *table, ClockNow now, int limit, bool *wants_executor)
{
	Round round = {.now = now, .owner = table->owner, .limit = limit};
	QueueGroup *group;

	suspect_count = 0;
	suspect_left = false;
	read_groups(table, now);
	groups_order(now);
	pool_begin();
	while (choice_count + round.refused < limit && (group = groups_next(now)) != NULL)
		consider_group(&round, group);
	demand_executors(round.blocked, now, wants_executor);
	if (suspect_count > 0)
		round.dropped |= try_suspects(table, now);
	return round.dropped;
}

/*
 * Learn whether a chosen task was claimed.  If it was not, and has not expired, its row is most
 * likely locked.
 */
void
choice_learn(int i, bool claimed)
{
	const Choice *choice = &choice_list[i];

	if (claimed || choice->expired)
	{
		groups_claimed(choice->group);
		pool_claimed(choice->role);
	}
	else
	{
		groups_missed(choice->group);
		pool_missed(choice->role);
	}
}

/* No task may start: there are no rows to check for locks. */
void
choice_none(void)
{
	suspect_left = false;
}

/* Return when locked rows are to be checked again; CLOCK_NEVER if the last round had none. */
MonoTime
choice_until(void)
{
	return suspect_left ? locked_not_before : CLOCK_NEVER;
}

/* Drop all chosen tasks, except those that were assigned already, and end the round. */
void
choice_drop(void)
{
	while (choice_count > 0)
		if (choice_list[--choice_count].queue)
			groups_task_ended(choice_list[choice_count].queue);
	pool_wake();
}
