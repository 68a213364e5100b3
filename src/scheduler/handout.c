/*
 * handout.c
 *		The scheduler's side of the sessions that take tasks: which of them gets a task, and what
 *		runs in their hands.
 *
 * To the order and the limits a session that waits is an idle executor.  It gets tasks of the
 * queues whose rule names a role whose rights it has, in the order in which the sessions have
 * come.  A run counts in its queue from its reservation until it has ended in shared memory:
 * because its row was written, or returned, because its lease has expired, its session has gone,
 * or its time is over.
 *
 * A task that was lost before is handed out alone, so that others are not lost with it.
 *
 * This file writes no row, and does not decide the order of tasks.
 */
#include "postgres.h"

#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "scheduler/handout.h"
#include "scheduler/order.h"
#include "scheduler/queues.h"
#include "scheduler/work.h"
#include "shared/takers.h"
#include "task/queue_rules.h"
#include "task/roles.h"
#include "task/rows_sql.h"

/* How long a run may take that is handed out, unless its row or its queue says so (us). */
#define TIMEOUT_US (USECS_PER_HOUR)

/* Expired leases are looked for after this time at the earliest (ms). */
#define EXPIRY_MS 10

/* Tasks with other requests than sessions want that are passed over in a round. */
#define OTHER_NAMES_MAX 1000

/* A run that is in somebody's hands. */
typedef struct TakenTask
{
	bool used;
	PoolTask task;
} TakenTask;

/* A session that waits. */
typedef struct Waiting
{
	uint32 generation; /* 0: none was read */
	bool waits;
	int pid;
	TakerWish wish;

	/* in this round */
	int reserved;
	int given;
	bool alone; /* it has got a task that is handed out alone */
} Waiting;

/* Static, because runs and wishes outlive an iteration. */
static struct
{
	TakenTask *tasks;  /* one for each entry of SharedTaken, at the same index */
	Waiting **waiting; /* one for each slot of SharedTaker; NULL: never read */
	MonoTime expires;  /* no run ends by its lease or its timeout before */

	/* in this round */
	bool full;	  /* as many runs are held as may be */
	bool dropped; /* tasks were passed over, which a scan finds again */

	bool asked;	 /* sessions have come since the last round that was complete */
	bool listed; /* the following are read */
	int count;
	int *numbers; /* of those that wait, in the order of their arrival */
	uint32 *generations;
	int reserved;
	int passed; /* tasks with other requests */

	/* the last request that was read */
	int64 id;
	char *request;
} handout;

static int
my_number(void)
{
	return MyScheduler->slot - Shared->schedulers;
}

/* The number of an entry is used for this run from now on. */
static PoolTask *
begin_task(int number, TaskRun run, QueueState *queue, QueueStart start)
{
	TakenTask *taken = &handout.tasks[number];

	Assert(!taken->used);
	taken->used = true;
	taken->task = (PoolTask){MyScheduler->table->relid, run, queue, start};
	return &taken->task;
}

/* Adopt the runs that were in somebody's hands under an earlier scheduler of this database. */
void
handout_create(void)
{
	SharedTaken entry;
	int number = -1;

	handout.tasks =
		MemoryContextAllocZero(TopMemoryContext, Shared->takers->ntaken * sizeof(TakenTask));
	handout.waiting =
		MemoryContextAllocZero(TopMemoryContext, Shared->takers->ntakers * sizeof(Waiting *));
	handout.numbers = MemoryContextAlloc(TopMemoryContext, Shared->takers->ntakers * sizeof(int));
	handout.generations =
		MemoryContextAlloc(TopMemoryContext, Shared->takers->ntakers * sizeof(uint32));
	while ((number = taken_adopt(MyScheduler->slot->database, my_number(), number, &entry)) >= 0)
	{
		handout.tasks[number].used = true;
		handout.tasks[number].task = (PoolTask){entry.relid, entry.run, NULL, {0}};
	}
	/* sessions may wait already */
	MyScheduler->events |= SHARED_TAKERS;
}

/* ---- what has ended ---- */

/* Account for a run that has ended. */
static void
end_task(PoolTask *task, const SharedTaken *entry)
{
	static const TaskFailure timed_out = {.sqlstate = TASK_ERROR_TIMEOUT,
										  .error = "canceling task due to task timeout",
										  .left = TASK_LEFT_TAKEN};

	if (entry->end == TAKEN_RETURNED && task->queue)
		order_undo_start(task->queue, task->start);
	else if (task->queue)
		order_task_ended(task->queue);
	task->queue = NULL;
	switch (entry->end)
	{
		case TAKEN_WRITTEN:
			pool_listener.ended(entry->run.id);
			break;
		case TAKEN_RETURNED:
			pool_listener.orphaned(entry->run, ORPHAN_NOT_STARTED, NULL);
			break;
		case TAKEN_LEFT:
			pool_listener.orphaned(entry->run, ORPHAN_INTERRUPTED, NULL);
			break;
		case TAKEN_LOST:
			pool_listener.orphaned(entry->run, ORPHAN_LOST, NULL);
			break;
		case TAKEN_TIMED_OUT:
			pool_listener.orphaned(entry->run, ORPHAN_FAILED, &timed_out);
			break;
	}
}

/* Account for the runs that have ended since the last call. */
void
handout_reap(void)
{
	SharedTaken entry;
	int number;

	while ((number = taken_reap(my_number(), &entry)) >= 0)
	{
		TakenTask *taken = &handout.tasks[number];

		if (handout.full)
			order_takers_came();
		handout.full = false;
		Assert(taken->used && task_same_run(taken->task.run, entry.run));
		taken->used = false;
		end_task(&taken->task, &entry);
	}
}

static MonoTime
handout_due(ClockNow now pg_attribute_unused())
{
	return handout.expires;
}

static void
expire_runs(ClockNow now)
{
	handout.expires = taken_expire(my_number(), now.mono);
	if (handout.expires.us != CLOCK_NEVER.us)
		handout.expires = clock_max(handout.expires, clock_plus_ms(now.mono, EXPIRY_MS));
	handout_reap();
}

const SchedulerJob handout_job = {.due = handout_due, .needed = handout_due, .run = expire_runs};

/* ---- a round ---- */

/* List the sessions that wait, once in a round. */
static void
list_waiting(void)
{
	if (handout.listed)
		return;
	handout.listed = true;
	handout.count =
		takers_waiting(MyScheduler->slot->database, handout.numbers, handout.generations);
}

/* A round begins. */
void
handout_begin_round(void)
{
	handout.listed = false;
	handout.count = handout.reserved = handout.passed = 0;
	handout.request = NULL;
	if (MyScheduler->events & SHARED_TAKERS)
	{
		handout.asked = true;
		if (handout.dropped)
			MyScheduler->events |= SHARED_SCAN;
		handout.dropped = false;
		order_takers_came();
	}
	MyScheduler->events &= ~SHARED_TAKERS;
	if (handout.asked)
		list_waiting();
}

/* What the i-th session wants that waits in this round; NULL: it has gone. */
static Waiting *
waiting_at(int i)
{
	int number = handout.numbers[i];
	Waiting *waiting = handout.waiting[number];

	if (waiting == NULL)
	{
		waiting = MemoryContextAllocZero(TopMemoryContext, sizeof(Waiting));
		handout.waiting[number] = waiting;
	}
	if (waiting->generation != handout.generations[i])
	{
		waiting->generation = handout.generations[i];
		waiting->reserved = waiting->given = 0;
		waiting->alone = false;
		waiting->waits = takers_wish(number, waiting->generation, &waiting->wish, &waiting->pid);
	}
	return waiting->waits ? waiting : NULL;
}

/* clang-format off */
static const Statement read_name = {.sql =
	"SELECT CASE WHEN octet_length(t.request) < " CppAsString2(TAKER_TEXTS) " THEN t.request END"
	"  FROM {rows} AS t WHERE t.id = $id LIMIT 1"};
/* clang-format on */

/* The request of the next task of a group; empty if it is too long, or the row is gone. */
static const char *
request_of(int64 id)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;

	if (handout.request && handout.id == id)
		return handout.request;
	statement_begin(&args);
	arg_int64(&args, "id", id);
	handout.request = NULL;
	if (work_execute(&read_name, &args) > 0)
		handout.request = statement_text_or_null(caller, 0, 1);
	statement_end();
	if (handout.request == NULL)
		handout.request = pstrdup("");
	handout.id = id;
	return handout.request;
}

/*
 * May this session write the outcome of tasks?  Not while that could run code of the table's owner,
 * unless it has the owner's rights anyway, or that is allowed.
 */
static bool
may_write(const TakerWish *wish)
{
	const TaskTable *table = MyScheduler->table;

	return table->code == NULL || Settings.owner_code ||
		   has_privs_of_role(wish->role, table->owner);
}

/* Find a session for the next task of this group, which is due. */
TakerAnswer
handout_find(const QueueGroup *group, Taker *taker)
{
	const QueueRule *rule = queue_rule(group->queue);
	TakerAnswer answer = TAKER_NONE;
	int i;

	list_waiting();
	/* a guess: only this process uses free ones, but for those of other databases */
	handout.full = handout.reserved >= Shared->takers->nfree;
	if (handout.full)
		return TAKER_NONE;
	for (i = 0; i < handout.count; i++)
	{
		Waiting *waiting = waiting_at(i);

		if (waiting == NULL || waiting->reserved >= waiting->wish.count ||
			!has_privs_of_role(waiting->wish.role, (Oid) rule->taker) || !may_write(&waiting->wish))
			continue;
		answer = Max(answer, TAKER_OTHER_QUEUE);
		if (!queue_list_matches(waiting->wish.texts, waiting->wish.nqueues, group->queue->name) ||
			(waiting->wish.nnames > 0 && rule->strict))
			continue;
		answer = TAKER_OTHER_NAME;
		if (waiting->wish.nnames > 0 &&
			!taker_wants(&waiting->wish, request_of(group->places[group->next].id)))
			continue;
		*taker =
			(Taker){handout.numbers[i], handout.generations[i], waiting->pid, waiting->wish.lease};
		return TAKER_FOUND;
	}
	if (answer == TAKER_OTHER_NAME && ++handout.passed > OTHER_NAMES_MAX)
		answer = TAKER_OTHER_QUEUE;
	handout.dropped |= answer == TAKER_OTHER_NAME;
	return answer;
}

/* When the time of a run is over that is handed out now.  "timeout": its own, negative for none. */
static MonoTime
times_out(MonoTime now, int64 timeout)
{
	if (timeout < 0)
		timeout = TIMEOUT_US;
	return timeout > 0 ? (MonoTime){now.us + timeout} : CLOCK_NEVER;
}

/* A task was chosen for this session: it counts as running in its queue from now on. */
void
handout_reserve(const Taker *taker, QueueState *queue)
{
	queue_count(queue, 0, 1);
	handout.waiting[taker->number]->reserved++;
	handout.reserved++;
}

/*
 * Give a claimed task to this session.  If that has gone, the task was not started.  So it is with
 * one that was lost before, behind others, and with those behind that: it is handed out alone.
 */
void
handout_give(const Taker *taker, QueueState *queue, QueueStart start, const Claim *claim,
			 const SharedTask *task)
{
	Waiting *waiting = handout.waiting[taker->number];
	MonoTime now = clock_mono();
	SharedTaken run = {.scheduler = my_number(),
					   .database = MyScheduler->slot->database,
					   .relid = task->relid,
					   .run = claim->run,
					   .taker = (Oid) queue_rule(queue)->taker,
					   .role = task->role,
					   .lease = taker->lease,
					   .retries = task->defaults.retry >= 0 ? task->defaults.retry
															: roles_settings(task->role).retry,
					   .expires = CLOCK_NEVER,
					   .times_out = times_out(now, task->timeout),
					   .notify = task->notify,
					   .defaults = task->defaults};
	int number = -1;

	strlcpy(run.role_name, task->role_name, sizeof(run.role_name));
	strlcpy(run.queue, task->queue, sizeof(run.queue));
	if (!waiting->alone && (claim->lost == 0 || waiting->given == 0))
		number = taken_give(taker->number, taker->generation, &run);
	if (number < 0)
	{
		order_undo_start(queue, start);
		pool_listener.orphaned(claim->run, ORPHAN_NOT_STARTED, NULL);
		return;
	}
	begin_task(number, claim->run, queue, start);
	waiting->given++;
	waiting->alone = claim->lost > 0;
	handout.expires = clock_min(handout.expires, run.times_out);
	if (run.lease > 0)
		handout.expires = clock_min(handout.expires, clock_plus_ms(now, run.lease));
}

/*
 * The round has ended: wake the sessions that have got tasks.  If it has looked at all that waits
 * ("complete"), wake those as well that do not wait until there are any.
 */
void
handout_end_round(bool complete)
{
	bool missed = false;
	int i;

	for (i = 0; i < handout.count; i++)
	{
		const Waiting *waiting = waiting_at(i);

		missed |= waiting && waiting->reserved > waiting->given;
	}
	/* what was passed over, because these sessions were to get other tasks, is looked at again */
	if (missed)
		order_takers_came();
	complete &= handout.asked && !missed;
	for (i = 0; i < handout.count; i++)
	{
		Waiting *waiting = waiting_at(i);

		if (waiting == NULL)
			continue;
		if (waiting->given > 0 || (complete && waiting->wish.at_once))
		{
			takers_answer(handout.numbers[i], handout.generations[i]);
			waiting->waits = false;
		}
		waiting->reserved = waiting->given = 0;
		waiting->alone = false;
	}
	if (complete)
		handout.asked = false;
}

/* ---- the rows ---- */

/* Add the runs of this table to an array, which has room for all.  Returns how many. */
int
handout_list_runs(TaskRun *runs)
{
	int count = 0;
	int i;

	for (i = 0; i < Shared->takers->ntaken; i++)
		if (handout.tasks[i].used && handout.tasks[i].task.relid == MyScheduler->table->relid)
			runs[count++] = handout.tasks[i].task.run;
	return count;
}

/* Is this run in somebody's hands? */
bool
handout_has_run(TaskRun run)
{
	int i;

	for (i = 0; i < Shared->takers->ntaken; i++)
		if (handout.tasks[i].used && task_same_run(handout.tasks[i].task.run, run))
			return true;
	return false;
}

/*
 * Reconcile the runs with the table: "find" returns the row of a run that is among these, which are
 * still in state WORK.  From now on they count as running in their queues, if they did not before;
 * the others are to end.
 */
void
handout_reconcile(const WorkingRow *rows, int count,
				  const WorkingRow *(*find)(const WorkingRow *rows, int count, TaskRun run))
{
	int i;

	for (i = 0; i < Shared->takers->ntaken; i++)
	{
		PoolTask *task = &handout.tasks[i].task;
		const WorkingRow *row;

		if (!handout.tasks[i].used || task->relid != MyScheduler->table->relid)
			continue;
		row = find(rows, count, task->run);
		if (row == NULL || row->stopped)
			taken_cancel(i);
		else if (task->queue == NULL)
			pool_start_counting(task, row->queue);
	}
}

/*
 * A row says that its run was taken, by a lease, before the server was started: the lease starts
 * anew.  Returns false if the run must not go on.
 */
bool
handout_keep(const WorkingRow *row)
{
	SharedTaken run = {.scheduler = my_number(),
					   .database = MyScheduler->slot->database,
					   .relid = MyScheduler->table->relid,
					   .run = row->run,
					   .pid = row->pid,
					   .proc = SHARED_NO_PROC,
					   .lease = row->lease,
					   .notify = true};
	MonoTime now = clock_mono();
	const QueueRule *rule;
	int number;

	if (row->lease <= 0 || row->run.claimed >= Shared->takers->since)
		return false;
	rule = queue_rule(queue_find_or_add(row->queue));
	if (rule->taker <= RULE_NO_ROLE)
		return false;
	run.taker = (Oid) rule->taker;
	run.defaults = rule->defaults;
	run.role = roles_bound(row->role, row->role_id);
	run.expires = clock_plus_ms(now, row->lease);
	run.times_out = times_out(now, row->timeout >= 0 ? row->timeout : rule->defaults.timeout);
	strlcpy(run.role_name, row->role, sizeof(run.role_name));
	strlcpy(run.queue, row->queue, sizeof(run.queue));
	number = taken_keep(&run);
	if (number < 0)
		return false;
	(void) begin_task(number, row->run, NULL, (QueueStart){0});
	pool_start_counting(&handout.tasks[number].task, row->queue);
	handout.expires = CLOCK_LONG_AGO;
	return true;
}
