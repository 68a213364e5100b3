/*
 * unstarted.c
 *		Waiting rows that are not started, until they are written.
 *
 * Tasks whose roles may not run them, or that have expired, end.  A task belongs to a role, not to
 * a role name: rows whose role was renamed get its new name, those whose role was dropped FAIL, and
 * those that were never bound are bound, due or not.  Tasks that run when the server starts (cron
 * "@reboot") are planned.
 *
 * Each of these writes one batch in an iteration, in a transaction of its own after the claim.  It
 * may wait for a user's lock, or a trigger may refuse it; the tasks of other users are claimed and
 * assigned before that.
 *
 * A row with "@reboot" is on hold, and its anchor says under which start of the server it was
 * planned.  Those planned under an earlier start are due.  No index finds them, because every task
 * would pay for it: once per start of the server the scheduler reads the index of all waiting rows.
 * A row is planned at most once per start, whoever is interrupted: the anchor is written together
 * with dt, and the next run of the task gets the anchor of the start under which it is planned.
 * That there are no more is remembered in shared memory, and only saves another search.
 *
 * This file starts no task.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/history.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "task/home.h"
#include "task/outcome.h"
#include "task/repeat.h"
#include "task/roles.h"
#include "task/rows_sql.h"

/* Maximum number of entries; a later scan finds the other tasks again. */
#define UNSTARTED_MAX 512

/* Maximum number of rows in a transaction: each takes some statements, and other tasks wait. */
#define BATCH_MAX 64

/* Maximum number of tasks that are set to GONE in one transaction, and planned for the start. */
#define EXPIRE_MAX 1000
#define REBOOT_MAX 10000

/* Maximum number of rows and groups that are bound in one transaction. */
#define BIND_ROWS 256
#define BIND_GROUPS 32

/* Maximum number of groups in "unbound"; a later scan finds the others. */
#define UNBOUND_MAX 512

/* "@reboot" rows that could not be written are tried again after so many periods, or this (ms). */
#define REBOOT_RETRY_PERIODS 60
#define REBOOT_RETRY_MAX_MS 60000

typedef struct Unstarted
{
	TaskPlace place;
	NameData role;
	int64 role_id;
	int64 active;		   /* as in Candidate, for a task that may have expired */
	SettingsMissed missed; /* likewise */
	bool repeats;		   /* it may: see repeat_refused */
	char sqlstate[6];	   /* empty: the task may have expired */
	char error[160];
	char hint[320]; /* empty: none */
} Unstarted;

/* A group whose rows are not bound to the role that they name. */
typedef struct UnboundGroup
{
	TaskGroup key;	 /* its strings are these */
	TaskPlace after; /* read position: rows up to here are written */
	char queue[TASK_QUEUE_MAX + 1];
	NameData role;
} UnboundGroup;

/*
 * Static, because a round of dispatch or a scan adds them, and a transaction after it writes their
 * rows, perhaps in a later iteration.
 */
static struct
{
	Unstarted tasks[UNSTARTED_MAX];
	int count;
	int writing; /* number of tasks, from the first, that are being written */

	List *unbound; /* of UnboundGroup, in TopMemoryContext */

	TimestampTz next_expiry; /* when the next waiting task expires */
	MonoTime next_reboot;	 /* when rows with "@reboot" are looked for next */
} unstarted;

/* Add a task.  NULL if there is no free entry, or if the task has one already. */
static Unstarted *
add_task(TaskPlace place, const TaskGroup *group)
{
	Unstarted *task;
	int i;

	for (i = 0; i < unstarted.count; i++)
	{
		task = &unstarted.tasks[i];
		if (task->place.id == place.id && task->place.dt == place.dt &&
			strcmp(NameStr(task->role), group->role) == 0)
			return NULL;
	}
	if (unstarted.count == UNSTARTED_MAX)
		return NULL;
	task = &unstarted.tasks[unstarted.count++];
	memset(task, 0, sizeof(Unstarted));
	task->place = place;
	namestrcpy(&task->role, group->role);
	task->role_id = group->role_id;
	return task;
}

/*
 * Add a waiting task of this group that is to be set to FAIL, or, if it "repeats", perhaps to wait;
 * the hint may be NULL.  False if there is no free entry.
 */
bool
unstarted_fail(TaskPlace place, const TaskGroup *group, const char *error, const char *hint,
			   int sqlstate, bool repeats)
{
	Unstarted *task = add_task(place, group);

	if (task == NULL)
		return unstarted.count < UNSTARTED_MAX;
	task->repeats = repeats;
	strlcpy(task->sqlstate, unpack_sql_state(sqlstate), sizeof(task->sqlstate));
	strlcpy(task->error, error, sizeof(task->error));
	strlcpy(task->hint, hint ? hint : "", sizeof(task->hint));
	return true;
}

/* Add a waiting task that could not be claimed: if it has expired, it is to be set to GONE. */
void
unstarted_expire(const Candidate *candidate)
{
	Unstarted *task = add_task(candidate->place, candidate->group);

	if (task)
	{
		task->active = candidate->active;
		task->missed = candidate->missed;
	}
}

/* clang-format off */

/* What is returned of rows that have failed or were given up. */
#define ENDED_ROW \
	UNSTARTED ", " KEEP ", coalesce(t.role_id, 0), " ON_FAILURE ", " NOTIFY_END("t.state")

/* Select and lock those of these rows of a role that still wait and that nobody has locked. */
#define WAITING_ROWS \
	"SELECT n.*" \
	"  FROM ROWS FROM (unnest($ids), unnest($dts)) AS c (id, dt) CROSS JOIN LATERAL (" \
	"       SELECT t.tableoid AS oid, t.ctid AS tid" \
	"         FROM {rows} AS t" \
	"        WHERE t.id = c.id AND t.dt = c.dt AND t.role = $role::name AND t.role_id = $role_id" \
	"          AND t.state = $state AND t.waits IS NULL" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n"

/* Those that were copied may not run yet, so their role may still be missing. */
static const Statement fail_rows = {.sql =
	"WITH c AS MATERIALIZED (" WAITING_ROWS ")"
	" UPDATE {rows} AS t"
	"    SET state = 'FAIL', stop = clock_timestamp(), error = $error, sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW " AND t.hold IS DISTINCT FROM '" HOME_COPIED "'"
	" RETURNING " ENDED_ROW};

static const Statement refuse_row = {.sql =
	"WITH c AS MATERIALIZED (" WAITING_ROWS ")"
	" UPDATE {rows} AS t"
	"    SET dt = $next, planned = CASE WHEN $waits THEN " PLANNED " END,"
	"        anchor = coalesce($anchor, t.anchor), hold = coalesce(t.hold, $hold), error = $error,"
	"        sqlstate = $sqlstate,"
	"        response = " FAILURE_RESPONSE
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW " AND " REPEATS};

/* Set to GONE those candidates that meet a condition on the columns of "c". */
#define GIVE_UP(condition) \
	"WITH c AS MATERIALIZED (" \
	"SELECT n.oid, n.tid" \
	"  FROM ROWS FROM (unnest($ids), unnest($dts), unnest($actives), unnest($missed))" \
	"       AS c (id, dt, active, missed)" \
	" CROSS JOIN LATERAL (" \
	"       SELECT t.tableoid AS oid, t.ctid AS tid" \
	"         FROM {rows} AS t" \
	"        WHERE t.id = c.id AND t.dt = c.dt AND t.state = $state AND t.waits IS NULL" \
	"          AND t.hold IS NULL AND " condition " IS TRUE" \
	"          FOR NO KEY UPDATE OF t SKIP LOCKED) AS n" \
	") UPDATE {rows} AS t" \
	"    SET state = 'GONE', stop = clock_timestamp(), error = $error, sqlstate = $sqlstate," \
	"        response = " FAILURE_RESPONSE \
	"   FROM c" \
	"  WHERE " IS_LOCKED_ROW \
	" RETURNING " ENDED_ROW

static const Statement expire_rows = {.sql = GIVE_UP(EXPIRED("c.active", "$now"))};
static const Statement miss_rows = {.sql = GIVE_UP(MISSED("c.missed", "$serving"))};

/* clang-format on */

/* A row that has ended without a run. */
typedef struct EndedRow
{
	RowKey key;
	int64 role_id;
	OnFailure on_failure;
} EndedRow;

/* The tasks in the rows of the last result have ended without a run.  Returns them in "where". */
static EndedRow *
note_unstarted(MemoryContext where, uint64 count, EventKind kind, const Failure *why)
{
	EndedRow *rows = MemoryContextAlloc(where, Max(count, 1) * sizeof(EndedRow));
	MonoTime now = clock_mono();
	uint64 i;

	for (i = 0; i < count; i++)
	{
		note_unstarted_row(i, kind, why->error, why->sqlstate);
		history_hint(statement_float8(i, UNSTARTED_COLUMNS + 1), now);
		rows[i].key = (RowKey){statement_int64(i, 1), statement_text(where, i, 2)};
		rows[i].role_id = statement_int64(i, UNSTARTED_COLUMNS + 2);
		rows[i].on_failure = statement_int32(i, UNSTARTED_COLUMNS + 3);
	}
	return rows;
}

/* Add what WAITING_ROWS needs: rows of a role, as their columns name it. */
static void
arg_waiting_rows(StatementArgs *args, const char *role, int64 role_id, const TaskPlace *places,
				 int count)
{
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	Datum *dts = arg_array(args, "dts", TIMESTAMPTZOID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(places[i].id);
		dts[i] = TimestampTzGetDatum(places[i].dt);
	}
	arg_text(args, "state", "PLAN");
	arg_text(args, "role", role);
	arg_int64(args, "role_id", role_id);
}

/*
 * Set waiting tasks of a role that cannot be started to FAIL; a repeating task does not repeat.
 * Those that somebody has locked are left.
 */
static void
fail_tasks(const TaskGroup *group, const TaskPlace *places, int count, const Failure *why)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	EndedRow *rows;
	int i;

	statement_begin(&args);
	arg_waiting_rows(&args, group->role, group->role_id, places, count);
	arg_failure(&args, why, roles_bound(group->role, group->role_id));
	count = (int) work_execute(&fail_rows, &args);
	rows = note_unstarted(caller, count, EVENT_FAILED, why);
	statement_end();
	for (i = 0; i < count; i++)
		outcome_on_failure(MyScheduler->table, rows[i].key, rows[i].role_id, rows[i].on_failure);
}

/*
 * Record in the row of a waiting task that repeats why it cannot be started, and plan it for
 * another time.  If it "waits" to run for the time that it was planned for, that stays in the row.
 */
static void
refuse_task(const TaskGroup *group, TaskPlace place, const Failure *why, const RowNext *next,
			bool waits)
{
	StatementArgs args;

	statement_begin(&args);
	arg_waiting_rows(&args, group->role, group->role_id, &place, 1);
	arg_failure(&args, why, roles_bound(group->role, group->role_id));
	arg_timestamp(&args, "next", next->dt);
	arg_bool(&args, "waits", waits);
	if (next->has_anchor)
		arg_timestamp(&args, "anchor", next->anchor);
	else
		arg_null(&args, "anchor", TIMESTAMPTZOID);
	arg_text(&args, "hold", next->hold);
	work_execute(&refuse_row, &args);
	statement_end();
}

/*
 * Set those of these candidates to GONE that have expired; or, if "missed", the runs of repeating
 * tasks that were missed before this server ran tasks, and are not to be made up for.  Then plan
 * their next runs.  Returns their number.
 */
static int
give_up(bool missed, TimestampTz now, const Candidate *candidates, int count)
{
	static const Failure too_late = {"ERROR", "the task was not started in time", NULL, NULL,
									 TASK_ERROR_EXPIRED};
	static const Failure was_missed = {
		"ERROR", "this run was missed before the server was started or promoted", NULL, NULL,
		TASK_ERROR_MISSED};
	const Failure *why = missed ? &was_missed : &too_late;
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	Datum *ids;
	Datum *dts;
	Datum *actives;
	Datum *words;
	EndedRow *rows;
	int i;

	statement_begin(&args);
	ids = arg_array(&args, "ids", INT8OID, count);
	dts = arg_array(&args, "dts", TIMESTAMPTZOID, count);
	actives = arg_array(&args, "actives", FLOAT8OID, count);
	words = arg_array(&args, "missed", TEXTOID, count);
	for (i = 0; i < count; i++)
	{
		ids[i] = Int64GetDatum(candidates[i].place.id);
		dts[i] = TimestampTzGetDatum(candidates[i].place.dt);
		actives[i] = Float8GetDatum(candidates[i].active / 1000.0);
		words[i] = CStringGetTextDatum(settings_missed_word(candidates[i].missed));
	}
	arg_timestamp(&args, "now", now);
	arg_timestamp(&args, "serving", shared_serving_since());
	arg_text(&args, "state", "PLAN");
	arg_failure(&args, why, InvalidOid);
	count = (int) work_execute(missed ? &miss_rows : &expire_rows, &args);
	rows = note_unstarted(caller, count, EVENT_GONE, why);
	statement_end();
	for (i = 0; i < count; i++)
	{
		repeat_expired(MyScheduler->table, rows[i].key, now);
		outcome_on_failure(MyScheduler->table, rows[i].key, rows[i].role_id, rows[i].on_failure);
		dependents_ended(rows[i].key.id);
	}
	return count;
}

static void
expire_unstarted(TimestampTz now)
{
	Candidate *candidates = palloc0(unstarted.writing * sizeof(Candidate));
	int ncandidates = 0;
	bool maybe_missed = false;
	int i;

	for (i = 0; i < unstarted.writing; i++)
	{
		const Unstarted *task = &unstarted.tasks[i];

		if (task->sqlstate[0] != '\0')
			continue;
		candidates[ncandidates].place = task->place;
		candidates[ncandidates].missed = task->missed;
		candidates[ncandidates++].active = task->active;
		maybe_missed |= task->place.dt < shared_serving_since();
	}
	if (ncandidates == 0)
		return;
	(void) give_up(false, now, candidates, ncandidates);
	if (maybe_missed)
		(void) give_up(true, now, candidates, ncandidates);
}

static void
fail_unstarted(TimestampTz now)
{
	int i;

	for (i = 0; i < unstarted.writing; i++)
	{
		const Unstarted *task = &unstarted.tasks[i];
		TaskGroup group = {.role = NameStr(task->role), .role_id = task->role_id};
		RowKey row = {task->place.id, group.role};
		Failure why = {"ERROR", task->error, NULL, task->hint[0] ? task->hint : NULL,
					   task->sqlstate};
		RowNext next;
		bool waits;

		if (task->sqlstate[0] == '\0')
			continue;
		if (task->repeats &&
			repeat_refused(MyScheduler->table, row, task->place.dt, now, &next, &waits))
			refuse_task(&group, task->place, &why, &next, waits);
		else
			fail_tasks(&group, &task->place, 1, &why);
		dependents_ended(task->place.id);
	}
}

/* The tasks that were written are committed, or one is refused: remove them. */
static void
remove_written(void)
{
	unstarted.count -= unstarted.writing;
	memmove(unstarted.tasks, unstarted.tasks + unstarted.writing,
			unstarted.count * sizeof(Unstarted));
	unstarted.writing = 0;
}

static void
write_unstarted(ClockNow now)
{
	int limit = refused_limit(REFUSED_UNSTARTED, BATCH_MAX);
	int i;

	Assert(unstarted.writing == 0);
	(void) work_begin_writing("writing tasks that are not started", true);
	unstarted.writing = Min(unstarted.count, limit);
	for (i = 0; i < unstarted.writing; i++)
		refused_batch_add(REFUSED_UNSTARTED, unstarted.tasks[i].place, 1);
	expire_unstarted(now.wall);
	fail_unstarted(now.wall);
	work_end_batch(REFUSED_UNSTARTED);
	remove_written();
}

/*
 * Add to the batch those of these rows that are not refused, up to "limit", and move them to the
 * front.  Returns their number.
 */
static int
take_batch(TaskPlace *places, int count, int limit, MonoTime now)
{
	int taken = 0;
	int i;

	for (i = 0; i < count && taken < limit; i++)
	{
		if (refused_has(places[i], now))
			continue;
		refused_batch_add(REFUSED_UNSTARTED, places[i], 1);
		places[taken++] = places[i];
	}
	return taken;
}

/* Find up to "limit" rows by a statement that asks for those of this time, an argument of it. */
static int
find_places(const Statement *statement, const char *name, TimestampTz time, int limit,
			TaskPlace **places)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;

	statement_begin(&args);
	arg_timestamp(&args, name, time);
	arg_int64(&args, "limit", limit);
	count = rows_returned_places(caller, work_execute(statement, &args), places);
	statement_end();
	return count;
}

/* clang-format off */

/*
 * When a waiting task expires, as a timestamp in UTC: that makes the expression immutable, so it is
 * indexed.  NULL if it does not expire now: it waits for others, is on hold, or never does.
 */
#define EXPIRY \
	"(CASE WHEN t.waits IS NULL AND t.hold IS NULL AND t.active < interval '100 years'" \
	" THEN (" PLANNED " AT TIME ZONE 'UTC') + t.active END)"
#define EXPIRES "t.state = 'PLAN' AND t.active IS NOT NULL AND " EXPIRY

/*
 * Waiting tasks that have expired by their column "active"; the earliest expiry comes first.
 * Defaults of roles are not considered, and what is on hold does not expire before it may start.
 */
static const Statement find_expired = {.sql =
	"SELECT t.dt, t.id"
	"  FROM {rows} AS t"
	" WHERE " EXPIRES " < ($now AT TIME ZONE 'UTC')"
	" ORDER BY " EXPIRY
	" LIMIT $limit"
	"   FOR NO KEY UPDATE OF t SKIP LOCKED"};

static const Statement find_next_expiry = {.sql =
	"SELECT " EXPIRY " AT TIME ZONE 'UTC'"
	"  FROM {rows} AS t"
	" WHERE " EXPIRES " >= ($from AT TIME ZONE 'UTC')"
	" ORDER BY " EXPIRY
	" LIMIT 1"};
/* clang-format on */

/* When, from this time on, the next waiting task expires; DT_NOEND if none does. */
static TimestampTz
next_expiry(TimestampTz from)
{
	TimestampTz expiry = DT_NOEND;
	StatementArgs args;

	statement_begin(&args);
	arg_timestamp(&args, "from", from);
	if (work_execute(&find_next_expiry, &args) > 0)
		expiry = statement_time(0, 1);
	statement_end();
	return expiry;
}

/* Look when the next waiting task expires.  In a transaction. */
void
unstarted_look(void)
{
	unstarted.next_expiry = next_expiry(DT_NOBEGIN);
	MyScheduler->events &= ~SHARED_EXPIRY;
}

static void
expire_tasks(ClockNow now)
{
	int limit = refused_limit(REFUSED_UNSTARTED, EXPIRE_MAX);
	Candidate *expired;
	TaskPlace *places;
	int written = 0;
	int count;
	int i;

	(void) work_begin_writing("expiring tasks", true);
	count = find_places(&find_expired, "now", now.wall, EXPIRE_MAX + refused_count(), &places);
	count = take_batch(places, count, limit, now.mono);
	expired = palloc0(count * sizeof(Candidate) + 1);
	for (i = 0; i < count; i++)
		expired[i].place = places[i];
	if (count > 0)
		written = give_up(false, now.wall, expired, count);
	unstarted_look();
	if (unstarted.next_expiry <= now.wall && written < limit)
	{
		/* the others are locked or refused: the next look finds them again */
		unstarted.next_expiry = next_expiry(now.wall);
		MyScheduler->row_missed |= refused_count() == 0;
	}
	work_end_batch(REFUSED_UNSTARTED);
}

/* Bind the rows of this group, if they are not, also if none is due yet. */
void
unstarted_bind(const TaskGroup *group)
{
	MemoryContext old;
	UnboundGroup *added;
	ListCell *cell;

	if (group->role_id != 0 && group->role_id == roles_bind(group->role))
		return;
	foreach(cell, unstarted.unbound)
		if (task_same_group(&((UnboundGroup *) lfirst(cell))->key, group))
			return;
	if (list_length(unstarted.unbound) >= UNBOUND_MAX)
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	added = palloc(sizeof(UnboundGroup));
	added->key = *group;
	added->key.queue = added->queue;
	added->key.role = NameStr(added->role);
	added->after = (TaskPlace){DT_NOBEGIN, PG_INT64_MIN};
	strlcpy(added->queue, group->queue, sizeof(added->queue));
	namestrcpy(&added->role, group->role);
	unstarted.unbound = lappend(unstarted.unbound, added);
	MemoryContextSwitchTo(old);
}

static void
forget_first_group(void)
{
	UnboundGroup *first = linitial(unstarted.unbound);

	unstarted.unbound = list_delete_first(unstarted.unbound);
	pfree(first);
}

/* clang-format off */
/* Waiting rows whose "role" is not the current name of their role, or that are not bound. */
static const Statement bind_rows = {.sql =
	"WITH c AS MATERIALIZED (" WAITING_ROWS ")"
	" UPDATE {rows} AS t"
	"    SET role = $new_role::name, role_id = $new_role_id"
	"   FROM c"
	"  WHERE " IS_LOCKED_ROW};
/* clang-format on */

/*
 * Bind the next rows of the first group to their role, under the name that it has now, or fail them
 * if it was dropped.  Returns their number.  Removes the group if there are no more.
 */
static int
bind_first_group(int limit, MonoTime now)
{
	UnboundGroup *group = linitial(unstarted.unbound);
	Role role = roles_find(group->key.role, group->key.role_id);
	RowsPeek peek = {.group = &group->key, .after = group->after};
	int count;
	int i;

	if (!role.settled)
		rows_peek_groups(MyScheduler->table, &peek, 1, limit);
	if (peek.count == 0)
	{
		forget_first_group();
		return 0;
	}
	group->after = peek.places[peek.count - 1];
	count = take_batch(peek.places, peek.count, limit, now);
	if (count > 0 && role.error)
	{
		Failure failure = {"ERROR", role.error, NULL, NULL,
						   pstrdup(unpack_sql_state(role.sqlstate))};

		fail_tasks(&group->key, peek.places, count, &failure);
		for (i = 0; i < count; i++)
			dependents_ended(peek.places[i].id);
	}
	else if (count > 0)
	{
		StatementArgs args;

		statement_begin(&args);
		arg_waiting_rows(&args, group->key.role, group->key.role_id, peek.places, count);
		arg_text(&args, "new_role", role.name);
		arg_int64(&args, "new_role_id", role.id);
		(void) work_execute(&bind_rows, &args);
		statement_end();
	}
	return count;
}

/* Bind the next rows.  A scan finds again those that are locked. */
static void
bind_groups(MonoTime now)
{
	int left = refused_limit(REFUSED_UNSTARTED, BIND_ROWS);
	int groups;

	(void) work_begin_writing("binding tasks to roles", true);
	for (groups = 0; groups < BIND_GROUPS && left > 0 && unstarted.unbound != NIL; groups++)
		left -= bind_first_group(left, now);
	work_end_batch(REFUSED_UNSTARTED);
}

/* clang-format off */

/*
 * Rows that wait for a start of the server after the one under which they were planned: by
 * "anchor", which identifies a start, and is not compared with any clock.  Of the index of waiting
 * rows all entries are read, of the table only rows on hold, because their group says so.
 */
#define WAITS_FOR_START \
	"t.waits IS NULL AND " G_MAX " = 0 AND t.hold = '" REPEAT_AT_START "'" \
	" AND t.anchor IS DISTINCT FROM $started" \
	" AND lower(btrim(t.cron, E' \\t\\n\\r') COLLATE \"C\") = '@reboot'" \
	" AND coalesce(t.repeat_until, 'infinity') >= now()"

static const Statement find_reboot = {.sql =
	"SELECT t.dt, t.id FROM {rows} AS t WHERE t.state = 'PLAN' AND " WAITS_FOR_START
	" LIMIT $limit"};

static const Statement plan_rows = {.sql =
	"UPDATE {rows} AS t"
	"   SET dt = $now, anchor = $started, hold = NULL"
	"  FROM unnest($ids) AS a (id)"
	" WHERE t.id = a.id AND t.state = $state AND " WAITS_FOR_START};

/* clang-format on */

/*
 * Plan those of these rows for "now" that still wait for it.  Waits for locked ones.  Returns the
 * number that was written.
 */
static int
write_reboot_rows(const TaskPlace *places, int count, TimestampTz now)
{
	StatementArgs args;
	Datum *ids;
	int i;

	statement_begin(&args);
	ids = arg_array(&args, "ids", INT8OID, count);
	for (i = 0; i < count; i++)
		ids[i] = Int64GetDatum(places[i].id);
	arg_text(&args, "state", "PLAN");
	arg_timestamp(&args, "now", now);
	arg_timestamp(&args, "started", PgStartTime);
	count = (int) work_execute(&plan_rows, &args);
	statement_end();
	return count;
}

/* Plan the rows that run when the server starts, if it was started after they were planned. */
static void
plan_reboot(ClockNow now)
{
	int limit = refused_limit(REFUSED_UNSTARTED, REBOOT_MAX);
	int64 pause_ms =
		Min((int64) MyScheduler->settings.period * REBOOT_RETRY_PERIODS, REBOOT_RETRY_MAX_MS);
	SharedFindings findings;
	TaskPlace *places;
	int found;
	int count;

	(void) work_begin_writing("planning the tasks that run when the server starts", true);
	work_limit(WORK_SCAN_MS);
	found =
		find_places(&find_reboot, "started", PgStartTime, REBOOT_MAX + refused_count(), &places);
	count = take_batch(places, found, limit, now.mono);
	if (count > 0)
		count = write_reboot_rows(places, count, now.wall);
	work_end_batch(REFUSED_UNSTARTED);
	unstarted.next_reboot = count > 0 ? CLOCK_LONG_AGO : clock_plus_ms(clock_mono(), pause_ms);
	if (found > 0)
		return;
	unstarted.next_reboot = CLOCK_NEVER;
	findings = shared_database_found(MyDatabaseId);
	findings.rebooted = MyScheduler->table->relid;
	shared_database_publish(MyDatabaseId, &findings);
}

/* When do waiting tasks expire next?  One may have been planned that expires before all others. */
static MonoTime
expiry_due(ClockNow now)
{
	return MyScheduler->events & SHARED_EXPIRY ? now.mono
											   : clock_of_wall(now, unstarted.next_expiry);
}

static MonoTime
unstarted_due(ClockNow now)
{
	if (unstarted.count > 0 || unstarted.unbound != NIL)
		return now.mono;
	return clock_min(expiry_due(now), unstarted.next_reboot);
}

/* One transaction for each kind of rows. */
static void
unstarted_run(ClockNow now)
{
	if (unstarted.count > 0)
		write_unstarted(now);
	if (!clock_is_before(now.mono, expiry_due(now)))
		expire_tasks(now);
	if (unstarted.unbound != NIL)
		bind_groups(now.mono);
	if (!clock_is_before(now.mono, unstarted.next_reboot))
		plan_reboot(now);
}

static void
forget_table(bool another)
{
	if (!another)
		return;
	unstarted.next_reboot =
		shared_database_found(MyDatabaseId).rebooted == MyScheduler->table->relid ? CLOCK_NEVER
																				  : CLOCK_LONG_AGO;
}

/*
 * The transaction failed, perhaps while tasks were being written.  A task whose row is refused is
 * removed; a scan finds it again.  If no row is at fault, all tasks and groups are removed: after
 * such an error nothing that was read is trusted.
 */
static void
unstarted_failed(const BatchFailure *failure)
{
	if (failure->forget)
		unstarted.count = 0;
	else if (unstarted.writing == 1 && failure->row_at_fault)
		remove_written();
	unstarted.writing = 0;
	while (failure->forget && unstarted.unbound != NIL)
		forget_first_group();
}

const SchedulerJob unstarted_job = {.due = unstarted_due,
									.needed = unstarted_due,
									.run = unstarted_run,
									.forget_table = forget_table,
									.failed = unstarted_failed,
									.writes = true};
