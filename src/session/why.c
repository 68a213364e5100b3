/*
 * why.c
 *		What may keep a task from running, for pg_task_why, whose text is in sql/: the answer is the
 *		first reason that applies.
 *
 * It is derived from the row as the caller sees it, from the queue table and the rate table, the
 * catalogs of roles and the slots in shared memory.  What a scheduler alone remembers (a row that a
 * trigger refuses) is not asked for.  Of tasks that the caller does not see, it tells numbers and
 * pids.
 *
 * This file changes nothing, and reads no task.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "session/result_set.h"
#include "session/table_access.h"
#include "session/take.h"
#include "settings.h"
#include "shared/arbiter.h"
#include "shared/clock.h"
#include "shared/slots.h"
#include "shared/statistics.h"
#include "shared/takers.h"
#include "task/home.h"
#include "task/outcome.h"
#include "task/owner_code.h"
#include "task/queue_table.h"
#include "task/rate_table.h"
#include "task/relation.h"
#include "task/roles.h"

COMPAT_FUNCTION(pg_task_facts);

/* What the slots of all processes say at one moment. */
typedef struct Survey
{
	/* the scheduler of the database */
	SchedulerState state; /* SCHEDULER_FREE: there is none */
	bool prepared;		  /* it has a task table */
	bool failing;		  /* an error of it lasts */
	int scheduler_pid;	  /* 0: it has not attached */
	bool supervised;	  /* the supervisor runs */
	bool crowded;		  /* databases take turns at having a scheduler */
	bool held;			  /* a command needs the database for itself */

	/* executors: those that are busy have a task, or get one */
	bool has_place;	  /* there is a worker slot for one more */
	int busy;		  /* on the server */
	int of_role;	  /* executors of the role on the server */
	int of_database;  /* executors in the database */
	bool has_idle;	  /* one of the role in the database is not busy */
	int of_queue;	  /* tasks of the queue in the database that run, or are about to */
	bool isolated;	  /* a task runs isolated, somewhere on the server */
	bool has_run;	  /* the run is in a ring ... */
	bool has_begun;	  /* ... and has begun ... */
	int executor_pid; /* ... in this process */
	int takers;		  /* sessions that wait for tasks of the queue, and may take them */
} Survey;

/* What the facts are derived from. */
typedef struct WhyTask
{
	const TableAccess *access;
	const char *queue;
	TaskRun run;
	TimestampTz stop;
	RowRetry retry; /* "failed", "delay" and "backoff" */
	Role role;
	Survey survey;
	QueueRules *rules;
	const QueueRule *rule; /* of its queue */
} WhyTask;

/* Look at the scheduler of the database.  The caller holds the directory lock. */
static void
survey_scheduler(Survey *survey)
{
	SharedScheduler *slot = scheduler_slot_find(MyDatabaseId);

	survey->supervised = Shared->supervisor != SHARED_NO_PROC;
	survey->crowded = Shared->crowded;
	survey->held = shared_database_is_held(MyDatabaseId);
	if (slot == NULL)
		return;
	survey->state = slot->state;
	survey->failing = pg_atomic_read_u64(&slot->figures[FIGURE_FAILING]) != 0;
	if (slot->proc != SHARED_NO_PROC)
		survey->scheduler_pid = GetPGProcByNumber(slot->proc)->pid;
	LWLockAcquire(slot->lock, LW_SHARED);
	survey->prepared = OidIsValid(slot->relid);
	LWLockRelease(slot->lock);
}

/* Look at an executor with its ring.  The caller holds the directory lock. */
static void
survey_executor(WhyTask *why, SharedExecutor *slot)
{
	Survey *survey = &why->survey;
	bool is_here = slot->database == MyDatabaseId;
	bool busy;
	uint32 i;

	LWLockAcquire(slot->lock, LW_SHARED);
	busy = slot->reserved || slot->assigned != slot->done;
	for (i = slot->done; i != slot->assigned; i++)
	{
		const SharedTask *task = &slot->ring[i % SHARED_RING];

		survey->isolated |= task->isolated;
		survey->of_queue += is_here && strcmp(task->queue, why->queue) == 0;
		/* one whose process has exited keeps its tasks until a scheduler reaps them */
		if (!is_here || !executor_slot_has_process(slot) || !task_same_run(task->run, why->run))
			continue;
		survey->has_run = true;
		survey->has_begun = (int32) (slot->taken - i) > 0;
		survey->executor_pid = slot->pid;
	}
	LWLockRelease(slot->lock);
	survey->busy += busy;
	survey->of_role += slot->role == why->role.oid;
	survey->of_database += is_here;
	survey->has_idle |=
		is_here && slot->role == why->role.oid && !busy && slot->state == EXECUTOR_READY;
}

/*
 * Look at all slots, with their locks in shared mode, one after the other.  The loop is bounded by
 * pg_task.max_executors and the size of the rings.
 */
static void
survey_slots(WhyTask *task)
{
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	survey_scheduler(&task->survey);
	for (i = 0; i < Shared->nexecutors; i++)
		if (Shared->executors[i].state != EXECUTOR_FREE)
			survey_executor(task, &Shared->executors[i]);
	task->survey.has_place = arbiter_has_place();
	LWLockRelease(Shared->directory);
}

/*
 * Look at the runs that were taken, and at the sessions that wait for such a task.  Where code of
 * the owner could run, those without the owner's rights get none.
 */
static void
survey_takers(WhyTask *task, const char *request, const char *code)
{
	Survey *survey = &task->survey;
	SharedTaken run;
	int i;

	for (i = 0; taken_look(MyDatabaseId, &i, &run); i++)
	{
		survey->of_queue += strcmp(run.queue, task->queue) == 0;
		if (!task_same_run(run.run, task->run))
			continue;
		survey->has_run = survey->has_begun = true;
		survey->executor_pid = run.pid;
	}
	take_count_waiting(&task->queue, &task->rule, 1, request,
					   code ? task->access->owner : InvalidOid, &survey->takers);
}

/*
 * Find an object of the task table, which is locked, or of a table beside it, with code of the
 * owner's.  Executes none of it.
 *
 * A table beside it that is locked is left out: the scheduler, which runs no code of tenants,
 * writes it, or a session that looks for itself (session/after.c).
 */
static char *
find_code(const TableAccess *access)
{
	char *code = owner_code_find(access->relid, true);
	SideKind kind;

	for (kind = 0; kind < SIDE_TABLES && code == NULL; kind++)
	{
		Oid side = side_table_find(kind, access->relid);

		if (OidIsValid(side) && relation_owner(side) == access->owner &&
			ConditionalLockRelationOid(side, AccessShareLock) &&
			relation_owner(side) == access->owner)
			code = owner_code_find(side, true);
	}
	return code;
}

/* The limit that its queue has together with others is reached. */
static const char *
explain_total(const WhyTask *task)
{
	const QueueRule *rule = task->rule;
	char(*queues)[TASK_QUEUE_MAX + 1];
	SharedTaken run;
	int running = 0;
	int count;
	int i;

	if (rule->total_of == NULL)
		return NULL;
	queues = palloc(SHARED_RING * sizeof(*queues));
	for (i = 0; i < Shared->nexecutors; i++)
	{
		SharedExecutor *slot = &Shared->executors[i];
		uint32 j;

		/* copied, because a rule is not looked up under the lock */
		count = 0;
		LWLockAcquire(slot->lock, LW_SHARED);
		if (slot->state != EXECUTOR_FREE && slot->database == MyDatabaseId)
			for (j = slot->done; j != slot->assigned; j++)
				strlcpy(queues[count++], slot->ring[j % SHARED_RING].queue, TASK_QUEUE_MAX + 1);
		LWLockRelease(slot->lock);
		while (count-- > 0)
			running += queue_rules_find(task->rules, queues[count])->total_of == rule->total_of;
	}
	for (i = 0; taken_look(MyDatabaseId, &i, &run); i++)
		running += queue_rules_find(task->rules, run.queue)->total_of == rule->total_of;
	if (running < rule->total)
		return NULL;
	return psprintf("the queues of pattern \"%s\" are full: %d of %d run", rule->total_of, running,
					rule->total);
}

/*
 * When may a task of its queue start, by the rate and the pause, as far as the scheduler has
 * written down the last starts?  DT_NOBEGIN: now, or nothing is written.
 */
static TimestampTz
next_start(const WhyTask *task, int rate, int64 per)
{
	ClockNow now = clock_now();
	MonoTime next;
	RateRow row;

	if (!rate_row_find(task->access->relid, task->access->owner, task->queue, now, &row))
		return DT_NOBEGIN;
	next = rate_free_at(row.claims, row.count, rate, per);
	return clock_is_before(now.mono, next) ? now.wall + (next.us - now.mono.us) : DT_NOBEGIN;
}

/* A reason why it does not run; NULL: it does not apply. */
static void
set_text(ResultRow *row, const char *fact, const char *text)
{
	if (text)
		result_row_set(row, fact, CStringGetTextDatum(text));
}

static void
set_bool(ResultRow *row, const char *fact, bool value)
{
	result_row_set(row, fact, BoolGetDatum(value));
}

/* A number that is negative for NULL. */
static void
set_count(ResultRow *row, const char *fact, int value)
{
	if (value >= 0)
		result_row_set(row, fact, Int32GetDatum(value));
}

static void
set_time(ResultRow *row, const char *fact, TimestampTz time)
{
	if (time != DT_NOBEGIN)
		result_row_set(row, fact, TimestampTzGetDatum(time));
}

/* What the rule of its queue says. */
static void
set_rule(ResultRow *row, const WhyTask *task)
{
	const QueueRule *rule = task->rule;
	Interval *per = palloc0(sizeof(Interval));

	set_bool(row, "paused", rule->paused);
	set_count(row, "rule_max", rule->max);
	set_count(row, "rate", rule->rate);
	set_time(row, "until", rule->until);
	set_bool(row, "strict", rule->strict);
	set_text(row, "full_total", explain_total(task));
	per->time = rule->per;
	result_row_set(row, "per", IntervalPGetDatum(per));
	if (rule->rate > 0)
		set_time(row, "rate_next", next_start(task, rule->rate, rule->per));
	/* when it is tried again in a strict queue: its dt does not say that */
	if (rule->strict && task->retry.failed > 0 && task->stop != DT_NOBEGIN)
		set_time(row, "again",
				 outcome_retry_at(&task->retry, task->stop, &rule->defaults, &task->role.settings));
}

static void
set_survey(ResultRow *row, const WhyTask *task)
{
	const Survey *survey = &task->survey;

	/* the run may not have begun */
	if (survey->has_run)
		result_row_set(row, "pid", Int32GetDatum(survey->executor_pid));
	set_bool(row, "begun", survey->has_begun);
	result_row_set(row, "scheduler_pid", Int32GetDatum(survey->scheduler_pid));
	result_row_set(row, "running", Int32GetDatum(survey->of_queue));
	set_bool(row, "isolated", survey->isolated);

	/* whether the database is served */
	set_bool(row, "held", survey->held);
	set_bool(row, "supervised", survey->supervised);
	set_bool(row, "slots", arbiter_slots() > 0);
	set_bool(row, "crowded", survey->crowded && survey->state == SCHEDULER_FREE);
	set_bool(row, "serves", survey->state == SCHEDULER_RUNNING);
	set_bool(row, "prepared", survey->prepared);
	set_bool(row, "failing", survey->failing);

	/* whether an executor can take it */
	set_text(row, "bound_role", task->role.name);
	set_bool(row, "idle", survey->has_idle);
	set_bool(row, "place", survey->has_place);
	set_count(row, "of_role", survey->of_role);
	set_count(row, "role_limit", task->role.limit);
	set_count(row, "of_database", survey->of_database);
	set_count(row, "database_limit", task->role.database_limit);
	set_count(row, "busy", survey->busy);
	set_count(row, "executors", Shared->nexecutors);
	if (task->rule->taker > 0)
	{
		char *name = GetUserNameFromId((Oid) task->rule->taker, true);
		TimestampTz last_start = statistics_last_start(task->queue);

		set_text(row, "taker", name ? name : "");
		set_count(row, "takers", survey->takers);
		if (last_start != 0)
			set_time(row, "last_start", last_start);
	}
}

/*
 * pg_task_facts(id, attempt, start, queue, max, role, role_id, stop, failed, backoff, writer,
 * delay, request): what may keep the task from running that has these columns; "backoff", and
 * "delay" in us, are -1 for NULL.  For the text of pg_task_why alone, which uses the task table on
 * behalf of its caller.
 */
Datum
pg_task_facts(PG_FUNCTION_ARGS)
{
	TupleDesc desc = result_row_desc(fcinfo, 38);
	WhyTask task = {
		.access = table_access_current(),
		.run = {PG_GETARG_INT64(0), PG_GETARG_INT32(1), PG_GETARG_TIMESTAMPTZ(2)},
		.queue = text_to_cstring(PG_GETARG_TEXT_PP(3)),
		.stop = PG_GETARG_TIMESTAMPTZ(7),
		.retry = {.failed = PG_GETARG_INT32(8),
				  .backoff = PG_GETARG_FLOAT8(9),
				  .delay = PG_GETARG_INT64(11)},
	};
	int max = PG_GETARG_INT32(4);
	const char *code = NULL;
	Oid owner;
	ResultRow row;

	if (task.access == NULL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("pg_task_facts can only be called by pg_task_why")));
	/* rules and locks as they are now: the caller's snapshot may be old */
	PushActiveSnapshot(GetLatestSnapshot());
	task.rules = queue_rules_load(task.access->relid, task.access->owner);
	task.rule = queue_rules_find(task.rules, task.queue);
	task.role = roles_check(task.access->owner, NameStr(*PG_GETARG_NAME(5)), PG_GETARG_INT64(6),
							task.rule->taker > 0);
	owner = task.access->owner;
	if (!shared_database_found(MyDatabaseId).owner_code &&
		(task.rule->taker > 0 ? !has_privs_of_role((Oid) task.rule->taker, owner)
							  : task.role.oid != owner && !superuser_arg(task.role.oid)))
		code = find_code(task.access);
	survey_slots(&task);
	survey_takers(&task, text_to_cstring(PG_GETARG_TEXT_PP(12)), code);
	result_row_begin(&row, desc);
	set_rule(&row, &task);
	if (max < 0)
		set_time(&row, "pause_next", next_start(&task, 1, -(int64) max * 1000));
	set_survey(&row, &task);
	set_bool(&row, "away", home_find(task.access->relid) == HOME_AWAY);
	set_text(&row, "not_role",
			 task.role.error && task.role.hint ? psprintf("%s: %s", task.role.error, task.role.hint)
											   : task.role.error);
	set_text(&row, "code", code);
	set_bool(&row, "mine", TransactionIdIsCurrentTransactionId(PG_GETARG_TRANSACTIONID(10)));
	PopActiveSnapshot();
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, row.values, row.nulls)));
}
