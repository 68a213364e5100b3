/*
 * choice.c
 *		Which tasks start now, in which order, and on which executors.
 *
 * What was chosen counts as running in its queue until it is handed out and
 * finished, or dropped.  This room claims nothing.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "aside.h"
#include "binding.h"
#include "choice.h"
#include "executor.h"
#include "roles.h"
#include "unstarted.h"

#define PEEK_MAX 256 /* rows of a group read by one statement */

QueueCandidate choice_candidates[CHOICE_MAX];
Choice choice_list[CHOICE_MAX];
int choice_count = 0;

/*
 * Tasks that wait and that the server may have crashed for, in the order of their ids:
 * they run one at a time, each with an executor of its own.
 */
static int64 *apart = NULL;
static int apart_count = 0;
static bool waits_apart = false; /* one of them was passed over since */

static int
compare_ids(const void *a, const void *b)
{
	int64 left = *(const int64 *) a;
	int64 right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

void
choice_set_apart(const int64 *ids, int count)
{
	if (apart)
		pfree(apart);
	apart = NULL;
	apart_count = 0;
	waits_apart = false;
	if (count == 0)
		return;
	apart = MemoryContextAllocHuge(TopMemoryContext, count * sizeof(int64));
	apart_count = count;
	memcpy(apart, ids, count * sizeof(int64));
	qsort(apart, count, sizeof(int64), compare_ids);
}

/* Was one passed over because another one runs? */
bool
choice_waits_apart(void)
{
	return waits_apart;
}

static bool
runs_apart(int64 id)
{
	return apart_count > 0 && bsearch(&id, apart, apart_count, sizeof(int64), compare_ids);
}

/*
 * Let the tasks of a group that are due fail, up to the limit: their role cannot run
 * them.  Returns how many.
 */
static int
refuse(WaitingGroup *group, const Role *role, int limit, TimestampTz now)
{
	int count = 0;
	TaskPlace place;

	while (count < limit && waiting_due(group, now))
	{
		place = group->places[group->next];
		if (!aside_has(place, now) &&
			!unstarted_refuse(place, group->key.role, role->error, role->sqlstate, true))
			break;
		(void) waiting_drop(group, now, &place);
		count++;
	}
	return count;
}

/* Read on in the groups whose next row is not known. */
static void
read_groups(const TaskTable *table, TimestampTz now)
{
	WaitingGroup *group;

	while ((group = waiting_unread(now)) != NULL)
	{
		TaskPlace *places;
		int count = queue_peek(table, &group->key, group->mark, PEEK_MAX, &places);

		waiting_read(group, places, count, PEEK_MAX);
		pfree(places);
	}
}

/* A role whose next task finds no executor: no later one of it may go first. */
typedef struct Blocked
{
	Role role;
	const char *name;
	int tasks;		/* that could start */
	double average; /* microseconds; negative: not known for all */
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
block(List *blocked, const Role *role, const char *name)
{
	Blocked *entry = palloc0(sizeof(Blocked));

	entry->role = *role;
	entry->name = name;
	return lappend(blocked, entry);
}

/* One more group of a blocked role, whose tasks would need executors. */
static void
add_demand(Blocked *entry, const WaitingGroup *group, TimestampTz now)
{
	entry->tasks += waiting_startable(group, now);
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

/* The role that needs one most asks first. */
static void
demand_executors(List *blocked, TimestampTz now, bool *wants_executor)
{
	ListCell *cell;

	list_sort(blocked, compare_need);
	foreach(cell, blocked)
	{
		Blocked *entry = lfirst(cell);

		*wants_executor |=
			pool_demand(&entry->role, entry->name, entry->tasks, entry->average, now);
	}
}

static void
choose_task(WaitingGroup *group, const Role *role, PoolExecutor *executor, bool alone,
			TimestampTz now)
{
	choice_list[choice_count].generation = pool_reserve(executor, group->queue, alone);
	choice_list[choice_count].role = role->oid;
	choice_candidates[choice_count].active = role->settings.active;
	choice_candidates[choice_count].apart = alone;
	choice_candidates[choice_count].place = waiting_take(now);
	aside_add(ASIDE_CLAIM, choice_candidates[choice_count].place);
	choice_candidates[choice_count].group = &group->key;
	choice_candidates[choice_count].pid = pool_pid(executor);
	choice_list[choice_count].group = group;
	choice_list[choice_count].queue = group->queue;
	choice_list[choice_count].executor = executor;
	choice_count++;
}

/*
 * Was a task of this id chosen in this round?  In a partitioned table ids may not be
 * unique, and two runs must not have the same id and the same time of the claim.
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

/* Leave the first task of the group that is next alone, until it is found again by a look. */
static void
pass_over(WaitingGroup *group, TimestampTz now)
{
	TaskPlace place;

	(void) waiting_drop(group, now, &place);
	while (group->next < group->count && aside_has(group->places[group->next], now) &&
		   waiting_drop(group, now, &place))
		;
	waiting_pass();
}

/* The rows of the group that is next are not bound to the role of this name: none is started. */
static void
leave_to_binding(WaitingGroup *group, TimestampTz now)
{
	TaskPlace place;

	binding_add(&group->key);
	while (waiting_drop(group, now, &place))
		;
	waiting_pass();
}

/* What is to become of the task that goes next. */
typedef enum Verdict
{
	VERDICT_CHOSEN,
	VERDICT_PASSED_OVER,
	VERDICT_NO_EXECUTOR
} Verdict;

/* The first task of this group goes next, and its role may run it. */
static Verdict
judge(WaitingGroup *group, const Role *role, TimestampTz now)
{
	bool alone = runs_apart(group->places[group->next].id);
	PoolExecutor *executor =
		alone ? pool_find_apart(role->oid) : pool_find(role->oid, group->queue->average, now);

	if (executor == NULL)
		return VERDICT_NO_EXECUTOR;
	if (alone && !pool_apart_take())
	{
		waits_apart = true;
		pass_over(group, now);
		return VERDICT_PASSED_OVER;
	}
	choose_task(group, role, executor, alone, now);
	return VERDICT_CHOSEN;
}

/*
 * Choose, in order, the tasks that may start now and the executors for them.
 * Read what has to be read for that.  True when tasks were dropped, so that there
 * may be more to choose from.  *wants_executor is set when one should come from
 * another database.
 */
bool
choice_make(const TaskTable *table, TimestampTz now, int limit, bool *wants_executor)
{
	int refused = 0;
	bool dropped = false;
	List *blocked = NIL;
	WaitingGroup *group;

	read_groups(table, now);
	waiting_order(now);
	pool_begin();
	while (choice_count + refused < limit && (group = waiting_next(now)) != NULL)
	{
		const char *name = group->key.role;
		Blocked *entry = find_blocked(blocked, name);

		if (aside_has(group->places[group->next], now) || is_chosen(group->places[group->next].id))
		{
			pass_over(group, now);
			dropped = true;
			continue;
		}
		if (entry == NULL)
		{
			Role role = roles_check(table->owner, name, group->key.role_id);
			Verdict verdict;

			if (!role.settled)
			{
				leave_to_binding(group, now);
				continue;
			}
			if (role.error)
			{
				int count = refuse(group, &role, limit - choice_count - refused, now);

				refused += count;
				dropped |= count > 0;
				waiting_pass();
				continue;
			}
			verdict = judge(group, &role, now);
			dropped |= verdict == VERDICT_PASSED_OVER;
			if (verdict != VERDICT_NO_EXECUTOR)
				continue;
			blocked = block(blocked, &role, name);
			entry = llast(blocked);
		}
		add_demand(entry, group, now);
		waiting_pass();
	}
	demand_executors(blocked, now, wants_executor);
	return dropped;
}

/* Nothing of what was chosen is started after all, but for what was handed out already. */
void
choice_drop(void)
{
	while (choice_count > 0)
		if (choice_list[--choice_count].queue)
			waiting_ended(choice_list[choice_count].queue);
	pool_wake();
}
