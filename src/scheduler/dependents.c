/*
 * dependents.c
 *		Rows that wait until other tasks have ended (column "after").
 *
 * Such a row watches one task at a time (column "waits"), so it costs nothing until that one ends,
 * and nothing is counted in a row that many tasks would write.  When the watched task has ended,
 * the row is judged in a transaction of the scheduler: it is free, watches another task, or is
 * given up.  So no process that ends a task locks the row of another.
 *
 * The scheduler learns of ended tasks from the rings, from the rows that it writes itself, and from
 * the commits of users.  Only those for which rows wait count.  What ended before its dependent was
 * committed is found when the commit reports the dependent.  A walk through the index of watched
 * tasks finds what no report has named: after a start, after many reports at once, and from time to
 * time.
 *
 * A row with the rule "any" is judged when any of its tasks is DONE.  A NULL in "after" is a task
 * that was removed before it was DONE (session/after.c).  Any other task that is not in the table
 * counts as DONE.  No statement here waits for a row that somebody has locked.
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/history.h"
#include "scheduler/work.h"
#include "shared/waiters.h"
#include "task/events.h"
#include "task/outcome.h"
#include "task/rows.h"
#include "task/rows_sql.h"

/* Tasks that have ended, and whose dependents are not judged yet. */
#define DEPENDENTS_ENDED 4096

/* What is known of rows that wait. */
typedef enum DependentsState
{
	DEPENDENTS_NONE, /* there are none */
	DEPENDENTS_REST, /* there may be some; the next walk begins at a time */
	DEPENDENTS_WALK	 /* the same, and a walk is going on */
} DependentsState;

/*
 * The tasks for which rows wait, those of them that have ended, and the walk that looks for both.
 * Static, because walks are in slices.
 */
static struct
{
	DependentsState state;
	HTAB *watched; /* tasks for which rows wait; NULL: none is known */
	bool complete; /* these are all of them */
	bool full;	   /* there are too many to remember them */
	bool missed;   /* there are some that no report named, since the walk began */

	/* tasks that have ended, or perhaps: the first of them are judged */
	int count;
	int64 ended[DEPENDENTS_ENDED];
	MonoTime not_before; /* none is judged before this while tasks may start */

	/* the walk from watched task to watched task, in slices */
	int64 position;
	bool found;	   /* it has found one */
	int64 cost;	   /* of its slices (us) */
	MonoTime next; /* slice, or walk */
} dependents;

/* Rows that are judged in one transaction: if tasks can be started meanwhile, and if not. */
#define JUDGE_BUSY 256
#define JUDGE_IDLE 1024

/* Ended tasks whose dependents one statement judges. */
#define JUDGE_TASKS 256

/* Rows that wait for several tasks are read for this long at once (us), one of them in any case. */
#define JUDGE_US (10 * INT64CONST(1000))

/* Rows whose watched tasks one slice of the walk reads. */
#define WALK_ROWS 256

/*
 * A slice beside tasks that may start waits this many times the duration of the last one.  A walk
 * waits this many times the duration of the last one, and at least a period.
 */
#define SLICE_SHARE 10
#define WALK_SHARE 100

/*
 * Watched tasks that are remembered.  If there are more, the dependents of each task that ends are
 * looked for.
 */
#define WATCHED_MAX 200000

/* Rows wait that no report has named: a walk begins now, or again when this one has ended. */
static void
want_walk(void)
{
	if (dependents.state != DEPENDENTS_WALK)
	{
		dependents.state = DEPENDENTS_REST;
		dependents.next = CLOCK_LONG_AGO;
	}
	dependents.complete = false;
	dependents.missed = true;
}

static void
forget_watched(void)
{
	HTAB *watched = dependents.watched;

	dependents.watched = NULL;
	hash_destroy(watched);
}

/* Rows wait for this task. */
static void
add_watched(int64 id)
{
	if (dependents.state == DEPENDENTS_NONE)
		dependents.state = DEPENDENTS_REST;
	if (dependents.full)
		return;
	if (dependents.watched == NULL)
	{
		HASHCTL control = {.keysize = sizeof(int64), .entrysize = sizeof(int64)};

		dependents.watched =
			hash_create("pg_task watched tasks", 256, &control, HASH_ELEM | HASH_BLOBS);
	}
	(void) hash_search(dependents.watched, &id, HASH_ENTER, NULL);
	if (hash_get_num_entries(dependents.watched) <= WATCHED_MAX)
		return;
	dependents.full = true;
	dependents.complete = false;
	forget_watched();
}

/* May rows wait for this task? */
bool
dependents_is_watched(int64 id)
{
	if (dependents.state == DEPENDENTS_NONE)
		return false;
	return !dependents.complete ||
		   (dependents.watched && hash_search(dependents.watched, &id, HASH_FIND, NULL) != NULL);
}

static void
forget_table(bool another)
{
	if (!another)
		return;
	dependents.count = 0;
	dependents.state = DEPENDENTS_REST;
	want_walk();
}

/* Judge the rows that wait for this task, if it has ended. */
static void
add_ended(int64 id)
{
	if (dependents.count < DEPENDENTS_ENDED)
		dependents.ended[dependents.count++] = id;
	else
		want_walk();
}

/* A task has ended, or perhaps: its row, which is committed or will be, says so. */
void
dependents_ended(int64 id)
{
	waiters_end(id);
	if (dependents_is_watched(id))
		add_ended(id);
}

/*
 * Take what commits have reported: tasks for which rows wait from now on, and which may have ended
 * before, and tasks that users have ended; and whether there are others.
 */
void
dependents_take(const SharedIds *watched)
{
	int i;

	if (MyScheduler->events & SHARED_DEPENDENTS)
		want_walk();
	MyScheduler->events &= ~SHARED_DEPENDENTS;
	for (i = 0; i < watched->count; i++)
	{
		add_watched(watched->ids[i]);
		dependents_ended(watched->ids[i]);
	}
}

/* clang-format off */

/* Has a task ended?  0: it is DONE, or not in the table; 1: it has ended otherwise; 2: it has not. */
#define OUTCOME(id) \
	"coalesce((SELECT max(CASE WHEN r.state = 'DONE' THEN 0" \
	"                          WHEN r.state IN ('PLAN', 'WORK') THEN 2 ELSE 1 END)" \
	"            FROM {rows} AS r WHERE r.id = " id "), 0)"

/*
 * The tasks for which the next rows wait, in the order of the index on what they watch.  To descend
 * it for each task would cost more, unless very many rows watch each.
 */
static const Statement read_watched = {.sql =
	"WITH n AS MATERIALIZED ("
	"SELECT t.waits, t.after, t.rule"
	"  FROM {rows} AS t"
	" WHERE t.state = 'PLAN' AND t.waits >= $from"
	" ORDER BY t.waits LIMIT $limit"
	") SELECT p.id, " OUTCOME("p.id") " < 2, (SELECT count(*) FROM n), (SELECT max(n.waits) FROM n)"
	"    FROM (SELECT DISTINCT u.id"
	"            FROM n CROSS JOIN LATERAL"
	"                 unnest(CASE WHEN n.rule = 'any' THEN n.waits || n.after ELSE ARRAY[n.waits] END)"
	"                     AS u (id)"
	"           WHERE u.id IS NOT NULL) AS p"};

/* clang-format on */

/*
 * Read the tasks for which rows wait that watch this one or one with a greater id, in the order of
 * what they watch, up to "limit" rows: those that have ended, or are not in the table, are judged
 * later.  Sets *last to what the last row watches, if there may be others, and else to the largest
 * id.  Returns the number of tasks.
 */
static int
read_watched_tasks(int64 from, int limit, int64 *last)
{
	StatementArgs args;
	int count;
	int i;

	statement_begin(&args);
	arg_int64(&args, "from", from);
	arg_int64(&args, "limit", limit);
	count = (int) work_execute(&read_watched, &args);
	*last = count > 0 && statement_int64(0, 3) == limit ? statement_int64(0, 4) : PG_INT64_MAX;
	for (i = 0; i < count; i++)
	{
		add_watched(statement_int64(i, 1));
		if (statement_bool(i, 2))
			add_ended(statement_int64(i, 1));
	}
	statement_end();
	return count;
}

/* Rows may wait that no commit has reported: look, if none is known.  In a transaction. */
void
dependents_look(void)
{
	int64 last;

	if (dependents.state == DEPENDENTS_NONE && read_watched_tasks(PG_INT64_MIN, 1, &last) > 0)
		want_walk();
}

/* Return when there is something to do next. */
static MonoTime
dependents_due(ClockNow now)
{
	MonoTime until = dependents.count > 0 ? CLOCK_LONG_AGO : dependents.next;

	if (MyScheduler->table == NULL || dependents.state == DEPENDENTS_NONE)
		return CLOCK_NEVER;
	/* most often there is no pause, and nobody has to look what may start */
	if (clock_is_before(now.mono, dependents.not_before) && groups_advance(now))
		until = clock_max(until, dependents.not_before);
	return until;
}

/*
 * Return when there is something to do next but for the walks that begin because it is time: a
 * successor begins with one as well.  Rows may be free by now, and what is known of them is lost
 * when this process exits.
 */
static MonoTime
dependents_needed(ClockNow now)
{
	bool works = dependents.count > 0 || !dependents.complete;

	return works ? dependents_due(now) : CLOCK_NEVER;
}

/*
 * The first of these tasks were looked for.  If there are more rows, the first one makes way for
 * the others.  Otherwise nothing is left to do: rows that somebody has locked, the walk finds.
 */
static void
drop_ended(int count, bool more)
{
	int64 first = dependents.ended[0];

	count = more ? 1 : count;
	dependents.count -= count;
	memmove(dependents.ended, dependents.ended + count, dependents.count * sizeof(int64));
	if (more)
		dependents.ended[dependents.count++] = first;
}

/* clang-format off */

/*
 * Those of some tasks that have ended, and not DONE: they stay so until the verdict on those that
 * wait for them is committed.  One that somebody has locked, who may plan it again, is left out.
 */
#define LOCKED_ENDS(ids) \
	"SELECT r.id FROM {rows} AS r" \
	" WHERE r.id = ANY (ARRAY(" ids ")) AND r.state NOT IN ('PLAN', 'WORK', 'DONE')" \
	"   FOR SHARE OF r SKIP LOCKED"

/*
 * Lock the rows to be judged, now that some tasks may have ended.  Those with the rule "any" are
 * found by the index on "after", which has rows that wait for several tasks.
 */
#define LOCKED_ROW \
	"SELECT t.id, t.tableoid AS oid, t.ctid AS tid, coalesce(t.rule, 'done') AS rule, t.after, t.waits" \
	"  FROM {rows} AS t" \
	" WHERE t.state = 'PLAN' AND t.id <> ALL ($without) AND "
#define LOCKED_ROWS \
	"SELECT l.*" \
	"  FROM (SELECT a.id AS ended, " OUTCOME("a.id") " AS outcome, k.id IS NOT NULL AS kept" \
	"          FROM unnest($ids) AS a (id) LEFT JOIN" \
	"               (SELECT DISTINCT k.id FROM (" LOCKED_ENDS("SELECT unnest($ids)") ") AS k) AS k" \
	"               ON k.id = a.id OFFSET 0) AS a" \
	" CROSS JOIN LATERAL (" \
	"       SELECT n.*, a.ended, a.outcome" \
	"         FROM (" LOCKED_ROW "t.waits = a.ended AND (a.outcome = 0 OR a.outcome = 1 AND a.kept)" \
	"                LIMIT $limit FOR NO KEY UPDATE OF t SKIP LOCKED) AS n" \
	"        UNION ALL" \
	"       SELECT n.*, a.ended, a.outcome" \
	"         FROM (" LOCKED_ROW "(t.waits IS NOT NULL) IS TRUE AND cardinality(t.after) > 1" \
	"                  AND t.after @> ARRAY[a.ended] AND t.rule = 'any' AND a.outcome = 0" \
	"                LIMIT $limit FOR NO KEY UPDATE OF t SKIP LOCKED) AS n) AS l" \
	" LIMIT $limit"

/* The row that would be judged first. */
static const Statement first_row = {.sql =
	"SELECT w.id FROM (" LOCKED_ROWS ") AS w",
	.bitmaps = true};

/*
 * Judge rows, and write what changes.  The other tasks of a row are not read if the one that has
 * ended decides ("c"), or if some of many that are picked by chance have one that has not ended
 * ("s").  Of those that have not ended, one is watched next that is chosen by chance: so a row
 * changes its watch about log(n) times, in whatever order its n tasks end.
 *
 * A row is given up for tasks that are locked ("k").  If one cannot be, the row watches it ("held").
 *
 * A row that was changed after the snapshot of the statement is left out: the lock returns the
 * place of its new version, where an UPDATE finds no row.
 */
static const Statement judge_rows = {.sql =
	"WITH w AS MATERIALIZED (" LOCKED_ROWS "),"
	"     c AS (SELECT w.*, row_number() OVER () AS number,"
	"                  CASE WHEN w.after = ARRAY[w.ended] OR cardinality(w.after) = 0 THEN true"
	"                       WHEN w.outcome = 0"
	"                       THEN (w.rule = 'any' AND w.ended = ANY (w.after)) IS TRUE"
	"                       ELSE w.rule NOT IN ('ended', 'failed', 'any') END AS decided"
	"             FROM w),"
	"     e AS (SELECT c.*, coalesce(s.next, o.next) AS next,"
	"                  c.decided OR s.next IS NOT NULL OR o.done IS NOT NULL OR c.after IS NULL"
	"                      AS known,"
	"                  coalesce(o.done, c.outcome = 0) AS done,"
	"                  coalesce(o.others, c.outcome = 1) AS others,"
	"                  coalesce(o.culprit, CASE WHEN c.outcome = 1 THEN c.ended END) AS culprit,"
	"                  CASE WHEN c.rule = 'done' THEN ARRAY[o.culprit]"
	"                       WHEN c.rule = 'any' AND o.next IS NULL THEN o.culprits END AS culprits"
	"             FROM c CROSS JOIN LATERAL ("
	"                  SELECT CASE WHEN NOT c.decided AND c.rule <> 'any' AND cardinality(c.after) > 100"
	"                                   AND array_position(c.after, NULL) IS NULL"
	"                              THEN (SELECT u.id"
	"                                      FROM (SELECT c.after[array_lower(c.after, 1)"
	"                                                   + floor(random() * cardinality(c.after))::int4]"
	"                                                   AS id"
	"                                              FROM generate_series(1, 10)) AS u"
	"                                     WHERE " OUTCOME("u.id") " = 2 LIMIT 1) END AS next"
	"                  OFFSET 0) AS s"
	"            CROSS JOIN LATERAL ("
	"                  SELECT bool_or(p.outcome = 0) AS done, bool_or(p.outcome = 1) AS others,"
	"                         min(p.id) FILTER (WHERE p.outcome = 1) AS culprit,"
	"                         array_agg(p.id) FILTER (WHERE p.outcome = 1) AS culprits,"
	"                         (array_agg(p.id) FILTER (WHERE p.outcome = 2))"
	"                             [1 + floor(random() * count(*) FILTER (WHERE p.outcome = 2))::int4]"
	"                             AS next"
	"                    FROM (SELECT u.id, CASE WHEN u.id IS NULL THEN 1 ELSE " OUTCOME("u.id")
	"                                       END AS outcome"
	"                            FROM unnest(CASE WHEN c.number = 1 OR clock_timestamp() < $until"
	"                                             THEN c.after END) AS u (id)"
	"                           WHERE NOT c.decided AND s.next IS NULL OFFSET 0) AS p"
	"                  OFFSET 0) AS o),"
	"     k AS MATERIALIZED (" LOCKED_ENDS("SELECT unnest(e.culprits) FROM e WHERE e.known") "),"
	"     v AS MATERIALIZED (SELECT e.*, x.held,"
	"                  CASE e.rule WHEN 'any' THEN e.done"
	"                              WHEN 'ended' THEN e.next IS NULL"
	"                              WHEN 'failed' THEN e.next IS NULL AND e.others"
	"                              ELSE e.next IS NULL AND NOT e.others END AS free,"
	"                  x.held IS NULL AND"
	"                  CASE e.rule WHEN 'any' THEN e.next IS NULL AND NOT e.done"
	"                              WHEN 'ended' THEN false"
	"                              WHEN 'failed' THEN e.next IS NULL AND NOT e.others"
	"                              ELSE e.others END AS gone"
	"             FROM e CROSS JOIN LATERAL ("
	"                  SELECT min(u.id) AS held FROM unnest(e.culprits) AS u (id)"
	"                   WHERE u.id NOT IN (SELECT k.id FROM k)) AS x),"
	"     f AS (UPDATE {rows} AS t"
	"              SET waits = CASE WHEN NOT c.free THEN coalesce(c.held, c.next) END,"
	"                  dt = CASE WHEN c.free THEN greatest(t.dt, $now) ELSE t.dt END,"
	"                  planned = CASE WHEN NOT c.free THEN t.planned END"
	"             FROM v AS c"
	"            WHERE c.known AND NOT c.gone AND " IS_LOCKED_ROW
	"        RETURNING t.waits),"
	"     g (id, role, queue, attempt, error, keep, notified) AS ("
	"           UPDATE {rows} AS t"
	"              SET state = 'GONE', stop = clock_timestamp(), waits = NULL, error = c.message,"
	"                  sqlstate = CASE WHEN c.message IS NOT NULL THEN $sqlstate END,"
	"                  response = replace(" FAILURE_RESPONSE ", $error, c.message)"
	"             FROM (SELECT v.oid, v.tid,"
	"                          CASE WHEN v.rule = 'failed' THEN NULL"
	"                               WHEN v.culprit IS NOT NULL"
	"                               THEN format('task %s, for which this one waited, is %s', v.culprit,"
	"                                      (SELECT min(r.state) FROM {rows} AS r WHERE r.id = v.culprit"
	"                                          AND r.state NOT IN ('PLAN', 'WORK', 'DONE')))"
	"                               WHEN v.waits = $removed OR v.waits = ANY (v.after)"
	"                               THEN 'a task for which this one waited was removed'"
	"                               ELSE format('task %s, for which this one waited, was removed',"
	"                                           v.waits) END AS message"
	"                     FROM v WHERE v.known AND v.gone OFFSET 0) AS c"
	"            WHERE " IS_LOCKED_ROW
	"        RETURNING " UNSTARTED ", t.error, " KEEP ", " NOTIFY_END("t.state") ")"
	"SELECT g.id, g.role, g.queue, g.attempt, g.error, g.keep, NULL::int8, 0::int8 FROM g"
	" UNION ALL "
	"SELECT 0, NULL, NULL, 0, NULL, 0, f.waits, 0 FROM f WHERE f.waits IS NOT NULL"
	" UNION ALL "
	"SELECT count(*), NULL, NULL, 0, NULL, 0, NULL, count(*) FILTER (WHERE v.known) FROM v",
	.bitmaps = true};

/* clang-format on */

/* Rows that wait for some of the ended tasks are to be judged, and what becomes of them. */
typedef struct Judgement
{
	int tasks;
	int limit; /* on the number of rows */
	ClockNow now;
	int ngone;
	int64 *gone; /* rows that were given up */
	bool more;	 /* there may be other rows */
} Judgement;

/* Add what both statements need: the refused rows are left out. */
static void
arg_ended(StatementArgs *args, const Judgement *judgement)
{
	int64 *without;
	int nwithout = refused_ids(judgement->now.mono, &without);

	arg_ids(args, "ids", dependents.ended, judgement->tasks);
	arg_ids(args, "without", without, nwithout);
	arg_int64(args, "limit", judgement->limit);
}

/* Lock the row that would be judged first.  Returns false if there is none. */
static bool
lock_first_row(const Judgement *judgement, int64 *id)
{
	StatementArgs args;
	bool found;

	statement_begin(&args);
	arg_ended(&args, judgement);
	found = work_execute(&first_row, &args) > 0;
	if (found)
		*id = statement_int64(0, 1);
	statement_end();
	return found;
}

/* Judge rows, and write the verdicts.  A row that somebody has locked is left out. */
static void
write_verdicts(Judgement *judgement)
{
	Failure failure = {"ERROR", "@", NULL, NULL, TASK_ERROR_PREDECESSOR};
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	uint64 count;
	int64 judged;
	uint64 i;

	statement_begin(&args);
	arg_ended(&args, judgement);
	arg_timestamp(&args, "now", judgement->now.wall);
	arg_timestamp(&args, "until", GetCurrentTimestamp() + JUDGE_US);
	arg_int64(&args, "removed", WAITS_REMOVED);
	arg_failure(&args, &failure, InvalidOid);
	count = work_execute(&judge_rows, &args) - 1;
	judged = statement_int64(count, 1);
	judgement->more = judged == judgement->limit || judged > statement_int64(count, 8);
	judgement->gone = MemoryContextAlloc(caller, Max(count, 1) * sizeof(int64));
	for (i = 0; i < count; i++)
	{
		const char *error;

		if (!statement_is_null(i, 7))
		{
			add_watched(statement_int64(i, 7));
			continue;
		}
		error = statement_text_or_null(CurrentMemoryContext, i, 5);
		note_unstarted_row(i, EVENT_GONE, error, error ? TASK_ERROR_PREDECESSOR : NULL);
		history_hint(statement_float8(i, 6), judgement->now.mono);
		judgement->gone[judgement->ngone++] = statement_int64(i, 1);
	}
	statement_end();
}

/* Judge rows that wait for ended tasks: one batch. */
static void
judge_ended(ClockNow now)
{
	Judgement judgement = {.tasks = Min(dependents.count, JUDGE_TASKS), .now = now};
	TaskPlace first = {DT_NOBEGIN, 0};
	int i;

	judgement.limit =
		refused_limit(REFUSED_DEPENDENTS, groups_advance(now) ? JUDGE_BUSY : JUDGE_IDLE);
	(void) work_begin_writing("judging tasks that wait for others", true);
	if (judgement.limit > 1 || lock_first_row(&judgement, &first.id))
	{
		refused_batch_add(REFUSED_DEPENDENTS, first, judgement.limit);
		write_verdicts(&judgement);
	}
	/* after a crash they are judged again, and the claim that follows makes it durable */
	MyScheduler->lazy = judgement.ngone == 0;
	work_end_batch(REFUSED_DEPENDENTS);
	drop_ended(judgement.tasks, judgement.more);
	for (i = 0; i < judgement.ngone; i++)
		dependents_ended(judgement.gone[i]);
}

/* The walk has found all watched tasks. */
static void
end_walk(MonoTime now)
{
	int64 pause = (int64) MyScheduler->settings.period * 1000;

	dependents.state = DEPENDENTS_REST;
	dependents.complete = !dependents.missed && !dependents.full;
	if (!dependents.missed)
		dependents.next.us = now.us + Max(pause, dependents.cost * WALK_SHARE);
	if (dependents.found || dependents.missed || dependents.count > 0)
		return;
	dependents.state = DEPENDENTS_NONE;
	dependents.complete = true;
	if (dependents.watched)
		forget_watched();
}

/* Read the next watched tasks: those that have ended are judged later. */
static void
walk_slice(ClockNow now)
{
	MonoTime begun = clock_mono();
	int64 last;

	if (dependents.state == DEPENDENTS_REST)
	{
		dependents.state = DEPENDENTS_WALK;
		dependents.missed = dependents.full = dependents.found = false;
		dependents.position = PG_INT64_MIN;
		dependents.cost = 0;
	}
	work_begin("looking for tasks that wait for others");
	dependents.found |= read_watched_tasks(dependents.position, WALK_ROWS, &last) > 0;
	work_end();
	dependents.next = clock_mono();
	dependents.cost += dependents.next.us - begun.us;
	if (groups_advance(now))
		dependents.next.us += (dependents.next.us - begun.us) * SLICE_SHARE;
	if (last < PG_INT64_MAX)
		dependents.position = last + 1;
	else
		end_walk(clock_mono());
}

/*
 * Judge rows, and walk on: one transaction each.  Beside tasks that may start, a pause follows that
 * is as long, so that they do.
 */
static void
dependents_run(ClockNow now)
{
	MonoTime ended;

	if (dependents.count > 0)
		judge_ended(now);
	/* the walk fills the list that is judged */
	if (dependents.count < DEPENDENTS_ENDED / 2 && !clock_is_before(now.mono, dependents.next))
		walk_slice(now);
	ended = clock_mono();
	dependents.not_before.us = ended.us + (ended.us - now.mono.us);
}

const SchedulerJob dependents_job = {.due = dependents_due,
									 .needed = dependents_needed,
									 .run = dependents_run,
									 .forget_table = forget_table,
									 .writes = true};
