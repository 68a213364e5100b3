/*
 * strict.c
 *		Strict queues: nothing overtakes the first task, whatever keeps it from starting.
 *
 * A task of a strict queue that is retried keeps its place in the order.  As long as all tasks of
 * the queue end with DONE, the order in memory is that of the rows, and nothing is checked.  When a
 * task has ended in another way, could not be claimed, or rows may wait of which nothing is known,
 * it is not "sure": before the next claim, the rows tell which task is the first (strict_check).
 * If that may not start yet, the queue is held, and no task of it is looked at until then.
 *
 * In each round one task of a strict queue is chosen at most, because its claim may fail.
 */
#include "postgres.h"

#include "scheduler/order.h"
#include "scheduler/pool.h"
#include "scheduler/queue_rules.h"
#include "scheduler/refused.h"
#include "scheduler/strict.h"
#include "task/outcome.h"
#include "task/roles.h"
#include "task/rows.h"

/* While a first task cannot be claimed, the queue is held for this time (ms): doubled each time. */
#define HOLD_FIRST_MS 10
#define HOLD_MAX_MS 1000

/* Rows in state WORK that are read to find orphans.  If there are more, all unsure queues wait. */
#define WORKING_MAX 4000

/*
 * Groups of an unsure queue that are read.  If there are more, it stays unsure: those that are not
 * read are in order as far as they are known.
 */
#define HEADS_MAX 64

/* Before everything. */
static const TaskPlace beginning = {PG_INT64_MIN, PG_INT64_MIN};

/* Hold the queue of this group, whose first task is at this place, until then. */
static void
hold_queue(QueueGroup *group, TaskPlace place, MonoTime until)
{
	QueueState *queue = group->queue;

	queue->sure = false;
	queue->held_until = until;
	queue->held_group = group;
	queue->held_place = place;
}

/* Hold it for a while, longer each time: it is not known for how long. */
static void
hold_for_a_while(QueueGroup *group, TaskPlace place, MonoTime now)
{
	QueueState *queue = group->queue;

	queue->held_ms = Min(Max(queue->held_ms * 2, HOLD_FIRST_MS), HOLD_MAX_MS);
	hold_queue(group, place, clock_plus_ms(now, queue->held_ms));
}

/*
 * The first task of this group of a strict queue cannot be chosen now: the others wait, too.  The
 * lanes of the queue are parked when they are looked at next, until the hold ends.
 */
void
strict_wait(QueueGroup *group, ClockNow now)
{
	hold_for_a_while(group, group->places[group->next], now.mono);
}

/*
 * The first task of this group is the next in order.  Does that of a strict queue wait
 * nevertheless: because it is refused, or because a task of another role, which has no executor, is
 * before it?
 */
bool
strict_keeps(DispatchRound *round, QueueGroup *group, bool refused)
{
	if (!queue_is_strict(group->queue))
		return false;
	if (refused)
		strict_wait(group, round->now);
	else if (!order_is_first_of_queue(group))
		groups_skip(group);
	else
		return false;
	return true;
}

/* A chosen task of a strict queue that is not sure, and what its rows say. */
typedef struct StrictCheck
{
	DispatchEntry *entry;
	RowsPeek peek; /* the first row of its group */
	bool orphan;   /* a row of its queue is in state WORK, but in no ring */
	bool behind;   /* a row of another group of its queue is before it */
	int nheads;	   /* groups of its queue that were read */
} StrictCheck;

/* Which of these queues have orphans?  A loop over the rows in state WORK, which are few. */
static void
find_orphans(const TaskTable *table, StrictCheck *checks, int count)
{
	WorkingRow *rows;
	int nrows = rows_working(table, WORKING_MAX, &rows);
	int i;
	int j;

	for (i = 0; i < nrows; i++)
		if (nrows == WORKING_MAX || !pool_has_run(rows[i].run))
			for (j = 0; j < count; j++)
				checks[j].orphan |= nrows == WORKING_MAX ||
									strcmp(rows[i].queue, checks[j].entry->group->queue->name) == 0;
}

/* Another group of the queue of a chosen task has this first row: compare, and note what is new. */
static void
compare_head(DispatchRound *round, StrictCheck *check, const GroupHead *head)
{
	DispatchEntry *entry = check->entry;
	OrderKey mine = order_key_at(&entry->group->key, DT_NOBEGIN, entry->candidate.place);
	OrderKey other = order_key_at(&head->group, DT_NOBEGIN, head->place);

	if (task_same_group(&head->group, &entry->group->key) || head->group.max == 0)
		return;
	check->behind |=
		head->place.dt <= round->now.wall && order_compare_keys_in_queue(&other, &mine) > 0;
	if (groups_know(&head->group, head->place))
		return;
	entry->sure = false;
	round->heads = lappend(round->heads, unconstify(GroupHead *, head));
}

/*
 * Compare the chosen tasks with the first rows of all groups of their queues: of some groups
 * nothing may be known, because a scan has not found them yet.
 */
static void
compare_with_heads(DispatchRound *round, const TaskTable *table, StrictCheck *checks, int count)
{
	const char *queues[DISPATCH_MAX];
	QueueHead *heads;
	int nheads;
	int i;

	for (i = 0; i < count; i++)
		queues[i] = checks[i].entry->group->queue->name;
	nheads = rows_queue_heads(table, queues, count, HEADS_MAX, &heads);
	for (i = 0; i < nheads; i++)
	{
		StrictCheck *check = &checks[heads[i].number];

		if (++check->nheads == HEADS_MAX)
			check->entry->sure = false;
		compare_head(round, check, &heads[i].head);
	}
}

/*
 * The round is over: note the groups that compare_with_heads has found.  Not before, because others
 * may be forgotten for them.
 */
void
strict_note_heads(const DispatchRound *round)
{
	ListCell *cell;

	foreach(cell, round->heads)
	{
		const GroupHead *head = lfirst(cell);

		groups_hint(&head->group, head->place, true);
	}
}

/* Find the wait for a retry of this task; NULL if it waits for none. */
static const RowWait *
find_wait(const RowWait *waits, int count, int64 id)
{
	int i;

	for (i = 0; i < count; i++)
		if (waits[i].id == id)
			return &waits[i];
	return NULL;
}

/* When may the last run of this waiting task, which has failed, be followed by the next? */
static MonoTime
retry_at(const RowWait *wait, QueueState *queue, ClockNow now)
{
	const TaskDefaults *defaults = queue_rules_defaults(queue_rule(queue));
	SettingsTask role = roles_settings(roles_bound(wait->retry.role, wait->retry.role_id));

	return clock_of_wall(now, outcome_retry_at(&wait->retry, wait->stop, defaults, &role));
}

/*
 * Return the queue of this group, which a scan has found, if it is a strict one that would have to
 * be checked before its first task, that of this group, is claimed; otherwise NULL.  With several
 * groups in the queue another one may have the first task: strict_check looks at them.
 */
static QueueState *
find_unchecked(const GroupHead *head, ClockNow now)
{
	QueueState *queue = queue_find(head->group.queue);

	if (queue == NULL || queue->groups != 1 || !queue_is_strict(queue) || queue_is_sure(queue) ||
		queue->choosing || clock_is_before(now.mono, queue->held_until) ||
		head->place.dt > now.wall || !groups_know(&head->group, head->place))
		return NULL;
	return queue;
}

/*
 * A scan has found these groups, at most STRICT_HEADS_MAX, and all others of their queues: hold the
 * strict queues whose first tasks wait for a retry.  After a restart there may be very many, and
 * each would have to be chosen before strict_check finds that it waits.
 */
void
strict_note_waits(const TaskTable *table, const GroupHead *heads, int count, ClockNow now)
{
	int64 ids[STRICT_HEADS_MAX];
	RowWait *waits;
	int nids = 0;
	int nwaits = 0;
	int i;

	Assert(count <= STRICT_HEADS_MAX);
	for (i = 0; i < count; i++)
		if (find_unchecked(&heads[i], now))
			ids[nids++] = heads[i].place.id;
	if (nids > 0)
		nwaits = rows_waits(table, ids, nids, &waits);
	for (i = 0; i < count && nwaits > 0; i++)
	{
		QueueState *queue = find_unchecked(&heads[i], now);
		const RowWait *wait = queue ? find_wait(waits, nwaits, heads[i].place.id) : NULL;
		MonoTime until = wait ? retry_at(wait, queue, now) : CLOCK_LONG_AGO;

		if (clock_is_before(now.mono, until))
			hold_queue(groups_find(&heads[i].group), heads[i].place, until);
	}
}

/* Decide about one chosen task.  Its entry is kept back if it must not be claimed. */
static void
judge_first(StrictCheck *check, const RowWait *wait, ClockNow now)
{
	DispatchEntry *entry = check->entry;
	TaskPlace mine = entry->candidate.place;
	TaskPlace first = check->peek.count > 0 ? check->peek.places[0] : mine;
	int order = order_compare_places(&first, &mine);
	MonoTime until = CLOCK_LONG_AGO;

	entry->kept = true;
	if (check->peek.count == 0 || order > 0)
		entry->gone = true; /* it is not there any more: the next one is the first */
	else if (check->orphan || check->behind)
		hold_for_a_while(entry->group, first, now.mono);
	else if (order < 0)
		hold_queue(entry->group, first, CLOCK_LONG_AGO);
	else
	{
		if (wait)
			until = retry_at(wait, entry->group->queue, now);
		entry->kept = clock_is_before(now.mono, until);
		if (entry->kept)
			hold_queue(entry->group, first, until);
	}
}

/*
 * Check the chosen tasks of strict queues that are not sure: those that are not the first of their
 * queue, or that may not start yet, are kept back.  The caller is in the transaction of the claim.
 */
void
strict_check(DispatchRound *round, const TaskTable *table)
{
	StrictCheck checks[DISPATCH_MAX];
	RowsPeek peeks[DISPATCH_MAX];
	int64 ids[DISPATCH_MAX];
	RowWait *waits;
	int nwaits;
	int count = 0;
	int i;

	for (i = 0; i < round->count; i++)
	{
		DispatchEntry *entry = &round->entries[i];

		if (!entry->strict || queue_is_sure(entry->group->queue))
			continue;
		checks[count] = (StrictCheck){.entry = entry};
		ids[count] = entry->candidate.place.id;
		peeks[count++] = (RowsPeek){.group = &entry->group->key, .after = beginning};
	}
	if (count == 0)
		return;
	rows_peek_groups(table, peeks, count, 1);
	nwaits = rows_waits(table, ids, count, &waits);
	find_orphans(table, checks, count);
	compare_with_heads(round, table, checks, count);
	for (i = 0; i < count; i++)
	{
		checks[i].peek = peeks[i];
		judge_first(&checks[i], find_wait(waits, nwaits, ids[i]), round->now);
	}
}

/*
 * A chosen task of a strict queue was claimed, or not: then it is still the first, unless it is
 * gone, and the queue is held.
 */
void
strict_learn(DispatchEntry *entry, bool claimed, ClockNow now)
{
	QueueGroup *group = entry->group;
	QueueState *queue = group->queue;

	queue->choosing = false;
	if (claimed)
	{
		if (entry->sure)
			queue_make_sure(queue);
		queue->held_ms = 0;
	}
	else if (!entry->gone)
	{
		if (!entry->kept)
			hold_for_a_while(group, entry->candidate.place, now.mono);
		groups_rewind(group, queue->held_place);
	}
	groups_queue_changed(queue);
}
