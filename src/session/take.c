/*
 * take.c
 *		pg_task_take: a session waits for tasks, and takes them; pg_task_takers: which do.
 *
 * The session is to the scheduler what an idle executor is.  It waits in a statement, which keeps
 * its snapshot, so for a short time only; and it looks whether its client is still there.  What the
 * scheduler has claimed for it, it reads from the rows.  If the transaction does not commit, the
 * tasks are returned.
 *
 * Also what finish.c needs to end runs: the task table, used as its owner, and what the end of the
 * transaction does with the runs.  The session may have run code of anybody before: code of the
 * owner's must not run in it, unless it has the owner's rights.
 */
#include "postgres.h"

/*
 * With these, libpq.h includes headers of libraries that need not be installed where an extension
 * is built.  What is used of a Port here comes before what they change.
 */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "session/result_set.h"
#include "session/table_access.h"
#include "session/take.h"
#include "settings.h"
#include "shared/clock.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/statistics.h"
#include "shared/takers.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/queue_table.h"
#include "task/roles.h"
#include "task/rows_sql.h"
#include "task/statement.h"

COMPAT_FUNCTION(pg_task_take);
COMPAT_FUNCTION(pg_task_takers);

/* The longest wait (ms): so long the statement keeps VACUUM from removing rows. */
#define WAIT_MS 10000

/*
 * Before it waits for longer than this (ms), the session looks whether it may take tasks at all:
 * when there are many tasks that would cost more than to take them.
 */
#define UNCHECKED_MS 20

/*
 * This session waits in this slot.  Static, because an error ends the wait.  And it holds tasks as
 * long as it lives.
 */
static SharedTaker *waits;
static bool watched;

/* What this session has wanted when it was found last that it may, by whom and when. */
static TakerWish checked;
static MonoTime checked_at;

/* ---- what holds runs ---- */

/* What this session holds as long as it lives is lost. */
void
take_session_ended(void)
{
	if (watched)
		taken_session_ended();
}

static void
session_exits(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	take_session_ended();
}

/* This session takes tasks that it holds as long as it lives. */
static void
watch_session(void)
{
	if (watched)
		return;
	if (MyProcPort && MyProcPort->raddr.addr.ss_family != AF_UNIX && tcp_keepalives_idle == 0 &&
		tcp_user_timeout == 0)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("a client that is cut off keeps its tasks for hours"),
				 errdetail("They are held as long as the session lives, and \"tcp_keepalives_idle\""
						   " and \"tcp_user_timeout\" are not set."),
				 errhint("Set them, or take tasks by a lease.")));
	before_shmem_exit(session_exits, (Datum) 0);
	watched = true;
}

/* ---- the end of the transaction ---- */

/* What the current transaction does with a run, if it commits. */
typedef struct HeldChange
{
	TakenRef ref;
	int level;		  /* of the transaction or subtransaction */
	bool ends;		  /* else it was fetched */
	TaskEvent *event; /* NULL: none */
} HeldChange;

/*
 * In the order in which they were made, in TopTransactionContext.  Static, because it collects from
 * all commands of a transaction; its end clears it.
 */
static List *changes;

/* What is returned lives as long as the transaction. */
static HeldChange *
add_change(TakenRef ref, bool ends)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	HeldChange *change = palloc0(sizeof(HeldChange));

	change->ref = ref;
	change->level = GetCurrentTransactionNestLevel();
	change->ends = ends;
	changes = lappend(changes, change);
	MemoryContextSwitchTo(old);
	return change;
}

/* This event is reported when the change is committed. */
static void
set_event(HeldChange *change, const TaskEvent *event)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	change->event = event_copy(event);
	MemoryContextSwitchTo(old);
}

/* The row of a run that was fetched is read: the run has begun. */
static void
note_started(HeldChange *change, const char *queue, const char *role, int64 waited)
{
	TaskEvent event = {.kind = EVENT_STARTED,
					   .id = change->ref.run.id,
					   .attempt = change->ref.run.attempt,
					   .queue = queue,
					   .role_name = role,
					   .elapsed = waited};

	set_event(change, &event);
}

/* The row of a run is written: it has ended, which is reported (unless NULL) with the commit. */
void
held_ended(TakenRef ref, const TaskEvent *event)
{
	HeldChange *change = add_change(ref, true);

	if (event)
		set_event(change, event);
}

/* Has this transaction ended the run? */
bool
held_has_ended(TaskRun run)
{
	ListCell *cell;

	foreach(cell, changes)
	{
		const HeldChange *change = lfirst(cell);

		if (change->ends && task_same_run(change->ref.run, run))
			return true;
	}
	return false;
}

/*
 * Undo what a transaction or a subtransaction has done: a run that was fetched is returned, and one
 * whose end was written is held on.
 */
static void
undo(const HeldChange *change)
{
	if (change->ends)
		taken_set_ending(change->ref, false);
	else
		taken_end(change->ref, TAKEN_RETURNED);
}

/* The transaction ends: so does what it does with runs. */
static void
end_changes(XactEvent event)
{
	ListCell *cell;

	if (event == XACT_EVENT_PRE_PREPARE)
		foreach(cell, changes)
			if (!((HeldChange *) lfirst(cell))->ends)
				ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
								errmsg("cannot prepare a transaction that has taken tasks")));
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	foreach(cell, changes)
	{
		const HeldChange *change = lfirst(cell);

		/* of one that is prepared nobody learns when it ends */
		if (event != XACT_EVENT_COMMIT)
			undo(change);
		else
		{
			if (change->ends)
				taken_end(change->ref, TAKEN_WRITTEN);
			else
				taken_hold(change->ref);
			if (change->event)
				event_report(change->event);
		}
	}
	if (event == XACT_EVENT_COMMIT)
		statistics_flush();
	changes = NIL;
}

/* If the session was waiting, it does not any more. */
static void
end_wait(void)
{
	SharedTaker *mine = waits;

	waits = NULL;
	if (mine)
		taker_withdraw(mine);
}

/* Nothing here may raise an error: after a commit, the server would panic. */
void
take_transaction_ended(XactEvent event)
{
	if (changes != NIL)
		end_changes(event);
	if (event == XACT_EVENT_ABORT)
		end_wait();
}

/* A transaction or subtransaction of this level ends. */
void
take_level_ended(int level, bool committed)
{
	ListCell *cell;

	foreach(cell, changes)
	{
		HeldChange *change = lfirst(cell);

		if (change->level < level)
			continue;
		change->level = level - 1;
		if (committed)
			continue;
		undo(change);
		changes = foreach_delete_current(changes, cell);
	}
	if (!committed)
		end_wait();
}

/* ---- the table ---- */

/* Raise an error if runs cannot be taken or ended in this session now. */
void
held_check_session(const char *function)
{
	shared_require();
	if (RecoveryInProgress())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("%s must be called on the primary", function),
						errdetail("A standby runs no tasks.")));
	PreventCommandIfReadOnly(function);
	if (InSecurityRestrictedOperation() || owner_acts())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s cannot be called within a security-restricted operation", function)));
}

/* Kept from call to call, in TopMemoryContext. */
static TaskTable *kept_table;

/*
 * Call a function that executes statements on the task table, as the owner of the table.  After an
 * error that it raises, the session has its own rights again.
 */
void
held_call_as_owner(Oid relid, void (*call)(const TaskTable *table, void *arg), void *arg)
{
	const TaskTable *table;
	OwnerScope scope;
	int old_bar;
	bool barred;

	if (!OidIsValid(relid) || !statement_lock_table(&kept_table, relid, RowExclusiveLock) ||
		!kept_table->whole)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("the task table of this database cannot be used")));
	table = kept_table;
	barred = table_access_bars_code(table->owner);
	if (barred && table->code)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("code of the owner of the task table must not run in this session"),
						errdetail("It would run with this write: %s.", table->code),
						errhint("Have the owner drop it, or connect as the owner.")));
	old_bar = owner_code_bar(barred ? ERRCODE_INSUFFICIENT_PRIVILEGE : 0);
	PG_TRY();
	{
		owner_become_in_session(table->owner, &scope);
		PushActiveSnapshot(GetTransactionSnapshot());
		call(table, arg);
		PopActiveSnapshot();
		owner_return(&scope);
	}
	PG_CATCH();
	{
		/* the server restores the rest */
		(void) owner_code_bar(old_bar);
		owner_abandon();
		PG_RE_THROW();
	}
	PG_END_TRY();
	(void) owner_code_bar(old_bar);
}

/* ---- the arguments ---- */

/* Add the texts of an array to what the session wants.  Returns how many. */
static int
add_texts(TakerWish *wish, ArrayType *array, bool queues)
{
	Datum *texts;
	bool *nulls;
	int count;
	int i;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &texts, &nulls, &count);
	for (i = 0; i < count; i++)
	{
		char *string;
		int length;

		if (nulls[i])
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
							errmsg("queues and names must not be null")));
		string = TextDatumGetCString(texts[i]);
		length = strlen(string) + 1;
		if (queues && !queue_is_valid(string))
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("\"%s\" is no name of a queue, and no pattern", string)));
		if (wish->length + length > TAKER_TEXTS)
			ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
							errmsg("the queues and names have more than %d bytes", TAKER_TEXTS),
							errhint("Use patterns of queues.")));
		memcpy(wish->texts + wish->length, string, length);
		wish->length += length;
	}
	return count;
}

static int
read_number(FunctionCallInfo fcinfo, int argument, const char *name, int least, int most, int other)
{
	int number = PG_ARGISNULL(argument) ? other : PG_GETARG_INT32(argument);

	if (number < least || number > most)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("\"%s\" must be between %d and %d", name, least, most)));
	return number;
}

/* Raise an error if this session cannot take tasks now. */
static void
check_session(void)
{
	const char *reason;

	held_check_session("pg_task_take");
	if (IsolationUsesXactSnapshot())
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("pg_task_take needs the isolation level READ COMMITTED"),
						errdetail("This transaction sees nothing that is claimed after its first"
								  " query.")));
	if (MyExecutor)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("a task cannot take tasks")));
	reason = table_access_service();
	if (reason)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("no task is handed out: %s", reason)));
}

/* May the session take tasks from a queue with this rule? */
static bool
may_take(const QueueRule *rule)
{
	return rule->taker > 0 && has_privs_of_role(GetUserId(), (Oid) rule->taker);
}

/* Raise an error if the session may take no tasks, or none of a queue that it names. */
static void
check_queues(const TakerWish *wish)
{
	const char *queue = wish->texts;
	Oid relid = table_access_known();
	Oid owner = relation_owner(relid);
	QueueRules *rules;
	int i;

	if (!OidIsValid(owner) || (wish->role == checked.role && wish->nqueues == checked.nqueues &&
							   wish->nnames == checked.nnames && wish->length == checked.length &&
							   memcmp(wish->texts, checked.texts, wish->length) == 0 &&
							   !clock_exceeds(checked_at, clock_mono(), WAIT_MS)))
		return;
	rules = queue_rules_load(relid, owner);
	if (!queue_rules_let_take(rules, may_take))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("you may not take tasks from any queue"),
						errhint("Have the owner of the task table name you, or a role of yours, in"
								" the column \"taker\" of the queue table.")));
	for (i = 0; i < wish->nqueues; i++, queue += strlen(queue) + 1)
	{
		const QueueRule *rule;

		if (queue_is_pattern(queue))
			continue;
		rule = queue_rules_find(rules, queue);
		if (rule->taker <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("nobody takes tasks from queue \"%s\": executors run them", queue),
					 errhint("Name a role in the column \"taker\" of the queue table.")));
		if (!may_take(rule))
			ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
							errmsg("you may not take tasks from queue \"%s\"", queue),
							rule->taker > RULE_NO_ROLE
								? errdetail("Members of role \"%s\" may.",
											GetUserNameFromId((Oid) rule->taker, true))
								: errdetail("Its taker is a role that does not exist.")));
		if (rule->strict && wish->nnames > 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("no task of queue \"%s\" can be passed over: it is strict", queue),
					 errhint("Take its tasks without \"names\".")));
	}
	memcpy(&checked, wish, offsetof(TakerWish, texts) + wish->length);
	checked_at = clock_mono();
}

/* ---- the wait ---- */

/* The client, or the server, has gone: end the session, as the server does for a lost client. */
static void
end_session(void)
{
	ClientConnectionLost = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

/*
 * Sleep until the latch is set, the client has gone, or the time is over.  The server's own set of
 * the client's socket and our latch is used as the server does to look for the client.
 */
static void
sleep_until(MonoTime until)
{
	long left = clock_ms_until(clock_mono(), until);
	uint32 wait_event = COMPAT_WAIT_EVENT("PgTaskTake");
	WaitEvent event = {0};

	if (FeBeWaitSet && WaitEventSetCanReportClosed())
	{
		ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_CLOSED, NULL);
		(void) WaitEventSetWait(FeBeWaitSet, left, &event, 1, wait_event);
	}
	else
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left,
						 wait_event);
	ResetLatch(MyLatch);
	if (event.events & (WL_SOCKET_CLOSED | WL_POSTMASTER_DEATH))
		end_session();
	CHECK_FOR_INTERRUPTS();
}

/* Wait until the scheduler has chosen tasks.  Returns how many; 0 also if the time is over. */
static int
wait_for_tasks(const TakerWish *wish, int wait, TakenRef *refs)
{
	MonoTime begun = clock_mono();
	MonoTime until = clock_plus_ms(begun, wish->at_once ? WAIT_MS : wait);
	MonoTime check = clock_plus_ms(begun, UNCHECKED_MS);
	int count;

	waits = taker_begin(wish);
	if (waits == NULL)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("too many sessions wait for tasks"),
						errhint("Raise \"pg_task.max_takers\", or let fewer sessions wait, each for"
								" more tasks.")));
	shared_scheduler_wake(MyDatabaseId, SHARED_TAKERS);
	while ((count = taker_fetch(waits, refs)) < 0 && clock_is_before(clock_mono(), until))
	{
		bool checks = check.us != CLOCK_NEVER.us && !clock_is_before(clock_mono(), check);

		if (checks)
		{
			check_queues(wish);
			check = CLOCK_NEVER;
		}
		else
			sleep_until(clock_min(check, until));
	}
	/* what was chosen at the last moment is returned */
	if (count < 0)
		end_wait();
	waits = NULL;
	count = Max(count, 0);
	if (count == 0 && check.us != CLOCK_NEVER.us)
		check_queues(wish);
	return count;
}

/* ---- the rows ---- */

/* clang-format off */
static const Statement read_taken = {.sql =
	"SELECT n.*"
	"  FROM ROWS FROM (unnest($ids), unnest($attempts), unnest($claims)) WITH ORDINALITY"
	"       AS a (id, attempt, claimed, number)"
	" CROSS JOIN LATERAL ("
	"       SELECT a.number::int4, coalesce(t.failed, 0), coalesce(t.retry, -1), " QUEUE_NAME ","
	"              t.key, t.flow, t.step, t.request, t.input, t.dt, t.meta,"
	"              coalesce(t.role::text, '')"
	"         FROM {rows} AS t"
	"        WHERE t.id = a.id AND t.attempt = a.attempt AND t.start = a.claimed"
	"          AND t.state = $state"
	"       OFFSET 0) AS n"};
/* clang-format on */

/* A text of the last result, which may be NULL. */
static void
set_text(ResultRow *row, const char *column, uint64 i, int number)
{
	if (!statement_is_null(i, number))
		result_row_set(row, column, statement_value(i, number, TEXTOID));
}

/* Return a row of the last result, as the caller gets it. */
static void
return_row(ReturnSetInfo *result, uint64 i, TakenRef ref, HeldChange *change)
{
	SharedTaken entry;
	ResultRow row;
	char *queue = statement_text(CurrentMemoryContext, i, 4);
	char *role = statement_text(CurrentMemoryContext, i, 12);
	TimestampTz dt = statement_time(i, 10);
	int retries = statement_int32(i, 3);
	TakenRef found = ref;

	if (!taken_find(&found, &entry))
		return;
	if (retries < 0)
		retries = entry.retries;
	result_row_begin(&row, result->setDesc);
	result_row_set(&row, "handle",
				   CStringGetTextDatum(psprintf(HELD_HANDLE, ref.number, ref.run.id,
												ref.run.attempt, ref.run.claimed)));
	result_row_set(&row, "id", Int64GetDatum(ref.run.id));
	result_row_set(&row, "attempt", Int32GetDatum(ref.run.attempt));
	result_row_set(&row, "failed", Int32GetDatum(statement_int32(i, 2)));
	result_row_set(&row, "retries", Int32GetDatum(retries));
	set_text(&row, "queue", i, 4);
	set_text(&row, "key", i, 5);
	set_text(&row, "flow", i, 6);
	set_text(&row, "step", i, 7);
	set_text(&row, "request", i, 8);
	if (!statement_is_null(i, 9))
		result_row_set(&row, "input", statement_value(i, 9, JSONBOID));
	if (!statement_is_null(i, 11))
		result_row_set(&row, "meta", statement_value(i, 11, JSONBOID));
	result_row_set(&row, "dt", TimestampTzGetDatum(dt));
	if (entry.times_out.us != CLOCK_NEVER.us)
	{
		ClockNow now = clock_now();
		int64 left = Max(entry.times_out.us - now.mono.us, 0);

		result_row_set(&row, "timeout", Int32GetDatum((int32) Min(left / 1000, PG_INT32_MAX)));
		result_row_set(&row, "deadline", TimestampTzGetDatum(now.wall + left));
	}
	tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
	note_started(change, queue, role, Max(ref.run.claimed - dt, 0));
}

/* The runs that were taken. */
typedef struct Takings
{
	ReturnSetInfo *result;
	TakenRef refs[TAKE_MAX];
	HeldChange *changes[TAKE_MAX];
	bool returned[TAKE_MAX];
	int count;
} Takings;

/* Return the rows of the runs that were taken. */
static void
return_rows(const TaskTable *table, void *arg)
{
	Takings *takings = arg;
	TaskRun runs[TAKE_MAX];
	StatementArgs args;
	uint64 found;
	uint64 i;

	for (i = 0; i < (uint64) takings->count; i++)
		runs[i] = takings->refs[i].run;
	statement_begin(&args);
	arg_runs(&args, runs, takings->count, "WORK");
	found = statement_execute(&read_taken, table, &args);
	for (i = 0; i < found; i++)
	{
		int number = statement_int32(i, 1) - 1;

		if (takings->returned[number])
			continue;
		return_row(takings->result, i, takings->refs[number], takings->changes[number]);
		takings->returned[number] = true;
	}
	statement_end();
}

/*
 * pg_task_take(queues, n, wait, lease, names): take up to n due tasks; if there are none, wait for
 * so many milliseconds, ten seconds at most.
 */
Datum
pg_task_take(PG_FUNCTION_ARGS)
{
	Takings takings = {.result = result_set_begin(fcinfo, 15)};
	TakerWish wish;
	int wait;
	int i;

	check_session();
	wish.role = GetUserId();
	wish.length = wish.nqueues = wish.nnames = 0;
	wish.count = read_number(fcinfo, 1, "n", 1, TAKE_MAX, 1);
	wait = Min(read_number(fcinfo, 2, "wait", 0, INT_MAX, 0), WAIT_MS);
	wish.lease = read_number(fcinfo, 3, "lease", 0, INT_MAX, Settings.lease);
	wish.at_once = wait == 0;
	if (!PG_ARGISNULL(0))
		wish.nqueues = add_texts(&wish, PG_GETARG_ARRAYTYPE_P(0), true);
	if (!PG_ARGISNULL(4))
		wish.nnames = add_texts(&wish, PG_GETARG_ARRAYTYPE_P(4), false);
	if (wish.lease == 0)
		watch_session();
	takings.count = wait_for_tasks(&wish, wait, takings.refs);
	for (i = 0; i < takings.count; i++)
		takings.changes[i] = add_change(takings.refs[i], false);
	if (takings.count > 0)
		held_call_as_owner(table_access_known(), return_rows, &takings);
	/* somebody has stopped it, or changed it, since the claim */
	for (i = 0; i < takings.count; i++)
		if (!takings.returned[i])
			taken_end(takings.refs[i], TAKEN_LEFT);
	return (Datum) 0;
}

/* ---- pg_task_takers ---- */

/*
 * Count for each of these queues, with its rule, the sessions that wait for its tasks and may take
 * them.  Unless "request" is NULL, those count that take tasks with this request; unless "rights"
 * is InvalidOid, those that have the rights of this role.  Each session is copied, because rights
 * and patterns are not looked up under the lock.
 */
void
take_count_waiting(const char *const *queues, const QueueRule *const *rules, int count,
				   const char *request, Oid rights, int *waiting)
{
	bool taken = false;
	int *numbers;
	uint32 *generations;
	int sessions;
	TakerWish wish;
	int pid;
	int i;
	int j;

	for (j = 0; j < count; j++)
	{
		waiting[j] = 0;
		taken |= rules[j]->taker > 0;
	}
	if (Shared == NULL || !taken)
		return;
	numbers = palloc(Shared->takers->ntakers * sizeof(int));
	generations = palloc(Shared->takers->ntakers * sizeof(uint32));
	sessions = takers_waiting(MyDatabaseId, numbers, generations);
	for (i = 0; i < sessions; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!takers_wish(numbers[i], generations[i], &wish, &pid) ||
			(request && !taker_wants(&wish, request)) ||
			(OidIsValid(rights) && !has_privs_of_role(wish.role, rights)))
			continue;
		for (j = 0; j < count; j++)
			waiting[j] += rules[j]->taker > 0 &&
						  has_privs_of_role(wish.role, (Oid) rules[j]->taker) &&
						  queue_list_matches(wish.texts, wish.nqueues, queues[j]) &&
						  (wish.nnames == 0 || !rules[j]->strict);
	}
}

/* The queues that a session wants, as an array. */
static Datum
queues_of(const TakerWish *wish)
{
	Datum *texts = palloc(Max(wish->nqueues, 1) * sizeof(Datum));
	const char *text = wish->texts;
	int i;

	for (i = 0; i < wish->nqueues; i++, text += strlen(text) + 1)
		texts[i] = CStringGetTextDatum(text);
	return PointerGetDatum(construct_array(texts, wish->nqueues, TEXTOID, -1, false, TYPALIGN_INT));
}

/* pg_task_takers(): the sessions that wait for tasks in this database, and those that hold some. */
Datum
pg_task_takers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, 6);
	bool sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	SharedTakers *takers = Shared ? Shared->takers : NULL;
	SharedTaken taken;
	int i;

	for (i = 0; takers && i < takers->ntakers; i++)
	{
		SharedTaker taker;
		ResultRow row;
		char *role;

		LWLockAcquire(takers->lock, LW_EXCLUSIVE);
		taker = takers->takers[i];
		LWLockRelease(takers->lock);
		if (taker.state != TAKER_WAITS || taker.database != MyDatabaseId ||
			(!sees_all && !has_privs_of_role(GetUserId(), taker.wish.role)))
			continue;
		result_row_begin(&row, result->setDesc);
		result_row_set(&row, "pid", Int32GetDatum(taker.pid));
		role = GetUserNameFromId(taker.wish.role, true);
		if (role)
			result_row_set(&row, "role", DirectFunctionCall1(namein, CStringGetDatum(role)));
		if (taker.wish.nqueues > 0)
			result_row_set(&row, "queues", queues_of(&taker.wish));
		result_row_set(&row, "since", TimestampTzGetDatum(taker.since));
		tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
	}
	for (i = 0; takers && taken_look(MyDatabaseId, &i, &taken); i++)
	{
		ClockNow now = clock_now();
		ResultRow row;
		MonoTime end;

		if (!sees_all && !has_privs_of_role(GetUserId(), taken.taker))
			continue;
		end = clock_min(taken.expires, taken.times_out);
		result_row_begin(&row, result->setDesc);
		result_row_set(&row, "pid", Int32GetDatum(taken.pid));
		result_row_set(&row, "since", TimestampTzGetDatum(taken.run.claimed));
		result_row_set(&row, "id", Int64GetDatum(taken.run.id));
		if (end.us != CLOCK_NEVER.us)
			result_row_set(&row, "deadline",
						   TimestampTzGetDatum(now.wall + (end.us - now.mono.us)));
		tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}
