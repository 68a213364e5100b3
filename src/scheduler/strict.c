/*
 * strict.c
 *		Strict queues: nothing overtakes the first task, whatever keeps it from starting.
 *
 * What hints and scans have named says which task of a strict queue is the first one.  If its row
 * is not claimed, because it has failed before, or is locked, or gone, the rows tell in the same
 * transaction which is the first, and whether it may start (strict_check); they do so before the
 * claim while hints and scans may have missed some.  If another one is, or it may not, the queue is
 * held: no task of it is looked at until a time, or until a hint or a scan has found another first
 * row.
 *
 * In each round one task of a strict queue is chosen at most, because its claim may fail.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "scheduler/handout.h"
#include "scheduler/order.h"
#include "scheduler/orphans.h"
#include "scheduler/pool.h"
#include "scheduler/round.h"
#include "scheduler/scan.h"
#include "scheduler/work.h"
#include "task/outcome.h"
#include "task/roles.h"
#include "task/rows_sql.h"

/* While a first task cannot be claimed, the queue is held for this time (ms): doubled each time. */
#define HOLD_FIRST_MS 10
#define HOLD_MAX_MS 1000

/* Rows in state WORK that are read to find orphans.  If there are more, all strict queues wait. */
#define WORKING_MAX 4000

/* Groups of a queue that are read.  If there are more, the others come behind these. */
#define HEADS_MAX 1000

/* Hold the queue for a while, longer each time: it is not known when its first task may start. */
void
strict_hold(QueueState *queue, MonoTime now)
{
	queue->held_ms = Min(Max(queue->held_ms * 2, HOLD_FIRST_MS), HOLD_MAX_MS);
	queue->held_until = clock_plus_ms(now, queue->held_ms);
}

/*
 * Rows of this group, the first of its queue, are being written from this one on, and are not
 * started.  Until the group has been read again, nothing of a strict queue overtakes them.
 */
bool
strict_awaits(DispatchRound *round, QueueGroup *group, TaskPlace first)
{
	if (!queue_rule(group->queue)->strict)
		return false;
	strict_hold(group->queue, round->now.mono);
	groups_read_again(group, first);
	return true;
}

/* A group of one of several queues: its head, and the queue, counted from 0. */
typedef struct QueueHead
{
	int number;
	GroupHead head;
} QueueHead;

/* clang-format off */

/* The columns of the index after the queue. */
#define G_REST G_MAX ", t.priority, t.role, t.role_id"

/* A loose index scan from group to group, as that of scan.c, within each queue. */
static const Statement find_heads = {.sql =
	"SELECT a.number::int4, g.max, g.priority, g.role::text, g.role_id, g.dt, g.id"
	"  FROM unnest($queues) WITH ORDINALITY AS a (queue, number)"
	" CROSS JOIN LATERAL ("
	"       WITH RECURSIVE g (max, priority, role, role_id, dt, id) AS ("
	"       (SELECT " G_REST ", t.dt, t.id"
	"          FROM {rows} AS t"
	"         WHERE " WAITING " AND " COMPLETE " AND " G_QUEUE " = a.queue"
	"         ORDER BY " G_REST ", t.dt, t.id"
	"         LIMIT 1)"
	"        UNION ALL"
	"       SELECT n.*"
	"         FROM g CROSS JOIN LATERAL ("
	"              SELECT " G_REST ", t.dt, t.id"
	"                FROM {rows} AS t"
	"               WHERE " WAITING " AND " COMPLETE " AND " G_QUEUE " = a.queue"
	"                 AND (" G_REST ") > (g.max, g.priority, g.role, g.role_id)"
	"               ORDER BY " G_REST ", t.dt, t.id"
	"               LIMIT 1) AS n"
	"       ) SELECT * FROM g LIMIT $limit) AS g"};
/* clang-format on */

/*
 * Read the groups of these queues that have waiting rows, up to HEADS_MAX of each queue, with the
 * first row of each group.
 */
static int
read_heads(const char *const *queues, int count, QueueHead **heads)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	Datum *values;
	int i;

	statement_begin(&args);
	values = arg_array(&args, "queues", TEXTOID, count);
	for (i = 0; i < count; i++)
		values[i] = CStringGetTextDatum(queues[i]);
	arg_int64(&args, "limit", HEADS_MAX);
	count = (int) work_execute(&find_heads, &args);
	*heads = MemoryContextAllocZero(caller, Max(count, 1) * sizeof(QueueHead));
	for (i = 0; i < count; i++)
	{
		QueueHead *head = &(*heads)[i];

		head->number = statement_int32(i, 1) - 1;
		head->head.group.queue = queues[head->number];
		head->head.group.max = statement_int32(i, 2);
		head->head.group.priority = statement_int32(i, 3);
		head->head.group.role = statement_text(caller, i, 4);
		head->head.group.role_id = statement_int64(i, 5);
		head->head.place.dt = statement_time(i, 6);
		head->head.place.id = statement_int64(i, 7);
	}
	statement_end();
	return count;
}

/* A waiting row whose last run has failed. */
typedef struct RowWait
{
	int64 id;
	TimestampTz stop; /* when that run ended */
	RowRetry retry;	  /* the number of failed runs, "delay", "backoff" and the role alone */
} RowWait;

/* clang-format off */
static const Statement find_waits = {.sql =
	"SELECT t.id, coalesce(t.stop, '-infinity'), t.failed, " DELAY ", " BACKOFF ","
	"       coalesce(t.role::text, ''), coalesce(t.role_id, 0)"
	"  FROM {rows} AS t"
	" WHERE t.id = ANY ($ids) AND t.state = $state AND t.waits IS NULL AND t.failed > 0"};
/* clang-format on */

/* Of the rows with these ids, read those that wait, and whose last run has failed. */
static int
read_waits(const int64 *ids, int count, RowWait **waits)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int i;

	statement_begin(&args);
	arg_ids(&args, "ids", ids, count);
	arg_text(&args, "state", "PLAN");
	count = (int) work_execute(&find_waits, &args);
	*waits = MemoryContextAllocZero(caller, Max(count, 1) * sizeof(RowWait));
	for (i = 0; i < count; i++)
	{
		RowWait *wait = &(*waits)[i];

		wait->id = statement_int64(i, 1);
		wait->stop = statement_time(i, 2);
		wait->retry.failed = statement_int32(i, 3);
		wait->retry.delay = statement_int64(i, 4);
		wait->retry.backoff = statement_float8(i, 5);
		wait->retry.role = statement_text(caller, i, 6);
		wait->retry.role_id = statement_int64(i, 7);
	}
	statement_end();
	return count;
}

/* Is this run in a ring? */
static bool
is_in_ring(TaskRun run)
{
	pool_foreach(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
			if (task_same_run(executor->ring[i % SHARED_RING].run, run))
				return true;
	}
	return false;
}

/* Is a row of this queue in state WORK, but its run nobody's?  It may be the first one again. */
static bool
has_orphan(const QueueState *queue, const WorkingRow *rows, int count)
{
	int i;

	if (count == WORKING_MAX)
		return true;
	for (i = 0; i < count; i++)
		if (strcmp(rows[i].queue, queue->name) == 0 && !is_in_ring(rows[i].run) &&
			!handout_has_run(rows[i].run))
			return true;
	return false;
}

/* Is this row, the first of its group, due, and before the other one of its queue (or NULL)? */
static bool
is_before(const GroupHead *head, const GroupHead *other, TimestampTz now)
{
	OrderKey key = order_key_at(&head->group, DT_NOBEGIN, head->place);
	OrderKey key_of_other;

	if (head->place.dt > now || head->group.max == 0)
		return false;
	if (other == NULL)
		return true;
	key_of_other = order_key_at(&other->group, DT_NOBEGIN, other->place);
	return order_compare_keys_in_queue(&key, &key_of_other) > 0;
}

/* When may the last run of this waiting task, which has failed, be followed by the next? */
static MonoTime
retry_at(const RowWait *wait, QueueState *queue, ClockNow now)
{
	const TaskDefaults *defaults = &queue_rule(queue)->defaults;
	SettingsTask role = roles_settings(roles_bound(wait->retry.role, wait->retry.role_id));

	return clock_of_wall(now, outcome_retry_at(&wait->retry, wait->stop, defaults, &role));
}

/* What the rows say of the chosen tasks of strict queues. */
typedef struct StrictRows
{
	RowWait *waits; /* those of them that have failed before */
	int nwaits;
	WorkingRow *working; /* rows in state WORK, if there are orphans */
	int nworking;
} StrictRows;

/*
 * Decide about a chosen task, where "first" is the first row of its queue (or NULL).  If it must
 * not be claimed, it is kept back, and its queue is held; unless its row is gone.
 */
static void
judge_task(DispatchEntry *entry, const GroupHead *first, const StrictRows *rows, ClockNow now)
{
	QueueState *queue = entry->group->queue;
	GroupHead mine = {.group = entry->group->key, .place = entry->candidate.place};
	int i;

	entry->kept = true;
	if (first == NULL || is_before(&mine, first, now.wall))
		queue->held_until = CLOCK_LONG_AGO;
	else if (first->place.id != mine.place.id || !task_same_group(&first->group, &mine.group))
	{
		entry->first = first;
		strict_hold(queue, now.mono);
	}
	else if (has_orphan(queue, rows->working, rows->nworking))
		strict_hold(queue, now.mono);
	else
	{
		entry->kept = false;
		for (i = 0; i < rows->nwaits; i++)
			if (rows->waits[i].id == mine.place.id)
			{
				queue->held_until = retry_at(&rows->waits[i], queue, now);
				entry->kept = clock_is_before(now.mono, queue->held_until);
			}
	}
}

/*
 * The chosen tasks are about to be claimed.  Those of strict queues are the first as far as hints
 * and scans have named rows: if some may be missing, or tasks that ran may wait again, the rows are
 * asked before.
 */
void
strict_begin_claim(DispatchRound *round)
{
	bool unknown = scan_is_open() || orphans_count() > 0;
	int i;

	for (i = 0; i < round->count; i++)
		round->entries[i].kept = unknown && round->entries[i].strict;
}

/*
 * Ask the rows about the chosen tasks of strict queues that are not claimed: those that are not the
 * first of their queue, or that may not start yet, are kept back.  Returns true if others are to be
 * claimed now.  The caller is in the transaction of the claim.
 */
bool
strict_check(DispatchRound *round)
{
	DispatchEntry *entries[DISPATCH_MAX];
	const char *queues[DISPATCH_MAX];
	const GroupHead *firsts[DISPATCH_MAX] = {NULL};
	int64 ids[DISPATCH_MAX];
	StrictRows rows = {0};
	QueueHead *heads;
	bool any = false;
	int count = 0;
	int nheads;
	int i;

	for (i = 0; i < round->count; i++)
		if (round->entries[i].strict && round->entries[i].claim == NULL)
		{
			entries[count] = &round->entries[i];
			queues[count] = entries[count]->group->queue->name;
			ids[count] = entries[count]->candidate.place.id;
			count++;
		}
	if (count == 0)
		return false;
	nheads = read_heads(queues, count, &heads);
	for (i = 0; i < nheads; i++)
		if (is_before(&heads[i].head, firsts[heads[i].number], round->now.wall))
			firsts[heads[i].number] = &heads[i].head;
	rows.nwaits = read_waits(ids, count, &rows.waits);
	if (orphans_count() > 0)
		rows.nworking = orphans_working(WORKING_MAX, &rows.working);
	for (i = 0; i < count; i++)
	{
		judge_task(entries[i], firsts[i], &rows, round->now);
		entries[i]->candidate.first_run = false;
		any |= !entries[i]->kept;
	}
	return any;
}

/*
 * The round has ended, perhaps with an error.  A task of a strict queue that was not claimed is
 * still the first, unless it is gone, and the queue stays held; if another row is before it, that
 * is known from now on.
 */
void
strict_end_round(const DispatchRound *round)
{
	int i;

	for (i = 0; i < round->count; i++)
	{
		const DispatchEntry *entry = &round->entries[i];
		QueueState *queue = entry->group->queue;

		if (!entry->strict)
			continue;
		if (i < round->done && entry->claim)
		{
			queue->held_until = CLOCK_LONG_AGO;
			queue->held_ms = 0;
		}
		else if (!entry->kept)
			strict_hold(queue, round->now.mono);
		if (queue->held_until.us != CLOCK_LONG_AGO.us)
			groups_rewind(entry->group, entry->candidate.place);
		order_open(queue);
	}
	/* groups may be forgotten for others, so this comes last; each hint ends the hold */
	for (i = 0; i < round->done; i++)
	{
		const GroupHead *first = round->entries[i].strict ? round->entries[i].first : NULL;
		QueueState *queue = first ? queue_find(first->group.queue) : NULL;
		MonoTime until;

		if (queue == NULL)
			continue;
		until = queue->held_until;
		groups_hint(&first->group, first->place, true);
		queue->held_until = until;
		order_open(queue);
	}
}
