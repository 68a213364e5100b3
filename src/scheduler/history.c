/*
 * history.c
 *		Removes rows in a final state that have been kept for their time.
 *
 * No index finds these rows, because every task would pay for it.  Instead the scheduler walks
 * through the table page by page, in slices: it reads the rows of some pages, and deletes those of
 * them whose time is over, in one short transaction that waits for no lock.  The pauses between
 * slices bound the walk to a small share of the time.  After a walk the scheduler rests until the
 * next row may have to go.  It walks only once if no setting and no row says how long rows are
 * kept.
 *
 * This file writes no row that is not in a final state.  It leaves a partitioned table alone.
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"
#include "utils/builtins.h"

#include "scheduler/history.h"
#include "scheduler/pool.h"
#include "scheduler/queues.h"
#include "scheduler/work.h"
#include "task/roles.h"
#include "task/rows_sql.h"

/* Pages in a slice: it takes less time than executors need for the tasks in their rings. */
#define SLICE_PAGES 8

/* Longest transaction of a slice (ms): triggers of the owner's run in it. */
#define SLICE_LIMIT_MS 1000

/*
 * After a slice the walk pauses for this many times its duration: slices that remove rows take at
 * most 1/21 of the time, others at most 1/101.  But not for longer than PAUSE_MAX_MS: what held up
 * one slice, need not hold up the next.
 */
#define REMOVE_SHARE 20
#define READ_SHARE 100
#define PAUSE_MAX_MS 10000

/* At most this many rows of a flow are read to find out whether it has ended. */
#define FLOW_ROWS_MAX 100000

/* After a walk there is none for this many periods of scans, but at most for a minute (ms). */
#define REST_PERIODS 60
#define REST_MIN_MS 60000

/* Longest rest between two walks (s). */
#define REST_MAX 3600.0

/* A row, and how long it is kept when it is in a final state. */
typedef struct HistoryRow
{
	int64 id;
	ItemPointerData tid;
	char *state;	   /* NULL if it is not a final one */
	TimestampTz ended; /* the row is kept from then on */
	double keep;	   /* column "keep" in seconds; -1 for NULL */
	char *queue;
	char *role;
	int64 role_id;
	char *flow; /* after "="; empty: none */
} HistoryRow;

/* Static, because the slices of the walk are in different iterations. */
static struct
{
	/* what decides whether there is anything to remove */
	uint32 settings;	/* value of the change counter up to which the settings are known */
	int setting;		/* shortest time by any setting (s), or SETTINGS_KEEP_FOR_EVER */
	double column;		/* shortest known value of the column "keep" (s); -1: no row has one */
	double column_seen; /* the same, since the walk began */

	/* the walk */
	bool walking;		  /* a walk is between two of its slices */
	int64 page;			  /* its next slice begins here ... */
	int row;			  /* ... after this row of the page */
	TimestampTz earliest; /* when the first of the rows that it has left can be removed */
	bool refused;		  /* a row could not be removed, in this walk or the one before */
	bool refused_seen;	  /* the same, in this walk */

	MonoTime begun;		 /* a slice is being written; CLOCK_LONG_AGO: none */
	MonoTime next;		 /* the next slice, or the next walk */
	MonoTime not_before; /* no walk begins before this */
} walk;

/* Return the shorter of two times, of which a negative one means for ever. */
static double
shorter_time(double a, double b)
{
	return a < 0 || b < 0 ? Max(a, b) : Min(a, b);
}

/* Return the shortest time that any row may be kept (s); negative: all are kept for ever. */
static double
shortest_keep(void)
{
	return shorter_time(shorter_time(walk.setting, walk.column), queues_rules()->shortest_keep);
}

static MonoTime
plus_seconds(MonoTime moment, double seconds)
{
	return clock_plus_ms(moment, (int64) (Min(seconds, REST_MAX) * 1000));
}

/* Of another table nothing is known: a walk finds out whether rows have the column "keep". */
static void
forget_table(bool another)
{
	if (!another)
		return;
	walk.column = REST_MAX;
	walk.settings = pg_atomic_read_u32(&Shared->settings_changes) - 1;
	walk.walking = walk.refused = false;
	walk.next = walk.not_before = CLOCK_LONG_AGO;
}

/*
 * There is a row that is kept for this time (s), if it is in a final state.  Negative: none has the
 * column "keep".
 */
void
history_hint(double keep, MonoTime now)
{
	if (keep < 0)
		return;
	walk.column = shorter_time(walk.column, keep);
	walk.column_seen = shorter_time(walk.column_seen, keep);
	walk.next = clock_min(walk.next, clock_max(walk.not_before, plus_seconds(now, keep)));
}

static MonoTime
history_due(ClockNow now pg_attribute_unused())
{
	if (MyScheduler->table == NULL || MyScheduler->table->partitioned)
		return CLOCK_NEVER;
	return MyScheduler->events & SHARED_HISTORY ? clock_min(walk.next, walk.not_before) : walk.next;
}

bool
history_walking(void)
{
	return walk.walking;
}

/* Did the owner's triggers or constraints, or locks, keep a row from being removed? */
bool
history_refused(void)
{
	return walk.refused;
}

/*
 * The time that the column "keep" says (s); negative: it says none.  A row with 0 goes with its
 * DONE, and that says nothing of a failure.
 */
static double
column_keep(const HistoryRow *row, bool failed)
{
	return row->keep == 0 && failed ? -1 : row->keep;
}

/* Return when a row can be removed; DT_NOEND: never. */
static TimestampTz
expiry_of(const HistoryRow *row, bool failed)
{
	double keep = column_keep(row, failed);

	if (row->state == NULL || TIMESTAMP_IS_NOEND(row->ended))
		return DT_NOEND;
	if (keep < 0)
		keep = queue_rules_find(queues_rules(), row->queue)->defaults.keep;
	if (keep < 0)
	{
		SettingsTask settings = roles_settings(roles_bound(row->role, row->role_id));

		keep = failed ? settings.keep_failed : settings.keep;
	}
	if (keep < 0)
		return DT_NOEND;
	if (TIMESTAMP_IS_NOBEGIN(row->ended))
		return row->ended;
	keep = (double) row->ended + keep * USECS_PER_SEC;
	return keep < (double) END_TIMESTAMP ? (TimestampTz) keep : DT_NOEND;
}

/*
 * Does an executor still have the run of this row, which was stopped?  The executor then writes
 * "stop", from which the time counts, and how the run ended.
 */
static bool
is_running(const HistoryRow *row)
{
	if (strcmp(row->state, "STOP") != 0)
		return false;
	pool_foreach(executor)
	{
		uint32 i;

		for (i = executor->reaped; i != executor->assigned; i++)
			if (executor->ring[i % SHARED_RING].relid == MyScheduler->table->relid &&
				executor->ring[i % SHARED_RING].run.id == row->id)
				return true;
	}
	return false;
}

/* clang-format off */

/*
 * From when on a row in a final state is kept.  One that was inserted in such a state may have no
 * "stop": it is kept from its planned time on.
 */
#define ENDED "coalesce(t.stop, greatest(t.start, t.dt), 'infinity')"

/* The rows on some pages: what this costs does not depend on the ids, or on rows that are dead. */
static const Statement read_history = {.sql =
	"SELECT t.id, t.ctid,"
	"       CASE WHEN t.state IN ('DONE', 'STOP', 'FAIL', 'GONE') THEN t.state END,"
	"       " ENDED ", " KEEP ", coalesce(t.role::text, ''), coalesce(t.role_id, 0),"
	"       coalesce(substr(t.queue, 1, " CppAsString2(TASK_QUEUE_MAX) "), ''),"
	"       coalesce('=' || t.flow, '')"
	"  FROM {rows} AS t"
	" WHERE t.ctid > ('(' || $page || ',' || $row || ')')::tid"
	"   AND t.ctid < ('(' || $page + $pages || ',0)')::tid"};

/* clang-format on */

/* Read the rows of the next slice.  Returns their number; -1 if the table ends before it. */
static int
read_slice(HistoryRow **rows)
{
	MemoryContext caller = CurrentMemoryContext;
	Relation rel = table_open(MyScheduler->table->relid, NoLock);
	bool ends = RelationGetNumberOfBlocks(rel) <= walk.page;
	StatementArgs args;
	uint64 count;
	uint64 i;

	table_close(rel, NoLock);
	if (ends)
		return -1;
	statement_begin(&args);
	arg_int64(&args, "page", walk.page);
	arg_int64(&args, "row", walk.row);
	arg_int64(&args, "pages", SLICE_PAGES);
	count = work_execute(&read_history, &args);
	*rows = MemoryContextAlloc(caller, Max(count, 1) * sizeof(HistoryRow));
	for (i = 0; i < count; i++)
	{
		HistoryRow *read = &(*rows)[i];

		read->id = statement_int64(i, 1);
		read->tid = *(ItemPointer) DatumGetPointer(statement_value(i, 2, TIDOID));
		read->state = statement_text_or_null(caller, i, 3);
		read->ended = statement_time(i, 4);
		read->keep = statement_float8(i, 5);
		read->role = statement_text(caller, i, 6);
		read->role_id = statement_int64(i, 7);
		read->queue = statement_text(caller, i, 8);
		read->flow = statement_text(caller, i, 9);
	}
	statement_end();
	return (int) count;
}

/* clang-format off */

/*
 * A row r of the flow f, of which a condition follows.  The next run of a repeating task does not
 * count: there is always one.
 */
#define FLOW_HAS \
	"SELECT FROM (SELECT t.state, t.sqlstate, t.repeat, t.cron FROM {rows} AS t" \
	"              WHERE t.flow = substr(f.flow, 2) LIMIT " CppAsString2(FLOW_ROWS_MAX) ") AS r" \
	" WHERE r.repeat IS NULL AND r.cron IS NULL AND "

/*
 * "o" are the flows, each asked once, in which a task has not ended, or was stopped, or has failed.
 * What is DONE stays with these: it has the results that they need if they run again.  What was
 * changed since it was read has another place.  A row stays while one waits that waits for others
 * as well: its rule asks how this one ended.  That is asked of the index on "after", row by row.
 */
static const Statement remove_read_rows = {.sql =
	"WITH o AS MATERIALIZED ("
	"SELECT f.flow, EXISTS (" FLOW_HAS "r.state IN ('PLAN', 'WORK')) AS open"
	"  FROM (SELECT DISTINCT u.flow FROM unnest($flows) AS u (flow) WHERE u.flow <> '') AS f"
	" WHERE EXISTS (" FLOW_HAS "(r.state IN ('PLAN', 'WORK', 'STOP', 'FAIL')"
	"                           OR r.state = 'GONE' AND r.sqlstate IS NOT NULL))"
	"), c AS MATERIALIZED ("
	"SELECT n.oid, n.tid"
	"  FROM ROWS FROM (unnest($tids), unnest($flows)) AS a (tid, flow)"
	" CROSS JOIN LATERAL ("
	"       SELECT t.id, t.tableoid AS oid, t.ctid AS tid, t.state"
	"         FROM {rows} AS t"
	"        WHERE t.ctid = a.tid"
	"          FOR UPDATE OF t SKIP LOCKED) AS n"
	" WHERE (a.flow = '' OR NOT EXISTS (SELECT FROM o"
	"                                    WHERE o.flow = a.flow AND (o.open OR n.state = 'DONE')))"
	"   AND NOT EXISTS (SELECT FROM {rows} AS d"
	"                    WHERE (d.waits IS NOT NULL) IS TRUE AND cardinality(d.after) > 1"
	"                      AND d.after @> ARRAY[n.id] OFFSET 0)"
	") DELETE FROM {rows} AS t"
	"   USING c"
	"  WHERE " IS_LOCKED_ROW, .bitmaps = true};
/* clang-format on */

/*
 * Delete those of these rows, read in the same transaction, that were not changed, that nobody has
 * locked, and whose flow has ended.  Returns their number.
 */
static int
remove_rows(const HistoryRow *rows, int count)
{
	StatementArgs args;
	Datum *tids;
	Datum *flows;
	int i;

	statement_begin(&args);
	tids = arg_array(&args, "tids", TIDOID, count);
	flows = arg_array(&args, "flows", TEXTOID, count);
	for (i = 0; i < count; i++)
	{
		tids[i] = PointerGetDatum(&rows[i].tid);
		flows[i] = CStringGetTextDatum(rows[i].flow);
	}
	count = (int) work_execute(&remove_read_rows, &args);
	statement_end();
	return count;
}

/*
 * Remove those of the rows of a slice whose time is over, and note when the others' is.  Returns
 * how many were to be removed, and sets *removed to how many were.  Sets *last to the last of them
 * if others are left for the next transaction.
 */
static int
remove_expired_rows(HistoryRow *rows, int count, ClockNow now, ItemPointer last, int *removed)
{
	int limit = refused_limit(REFUSED_HISTORY, count);
	int expired = 0;
	int i;

	for (i = 0; i < count; i++)
	{
		const char *state = rows[i].state;
		bool in_flow = rows[i].flow[0] != '\0';
		/*
		 * one that was stopped may be resumed with its flow; one that has not ended may be DONE
		 * yet, and go only when its flow has ended
		 */
		bool failed = state ? strcmp(state, "DONE") != 0 && (in_flow || strcmp(state, "STOP") != 0)
							: !in_flow;
		TimestampTz expiry = expiry_of(&rows[i], failed);
		TaskPlace place = {DT_NOBEGIN, rows[i].id};

		walk.column_seen = shorter_time(walk.column_seen, column_keep(&rows[i], failed));
		if (expiry >= now.wall || is_running(&rows[i]) || refused_has(place, now.mono))
		{
			walk.earliest = Min(walk.earliest, expiry);
			continue;
		}
		if (expired == limit)
		{
			*last = rows[expired - 1].tid;
			break;
		}
		refused_batch_add(REFUSED_HISTORY, place, 1);
		rows[expired++] = rows[i];
	}
	*removed = expired > 0 ? remove_rows(rows, expired) : 0;
	/* the others are locked, or were changed, or a trigger has left them, or they are needed yet */
	if (*removed < expired)
		walk.earliest = Min(walk.earliest, now.wall);
	return expired;
}

/* The walk has read all rows: rest. */
static void
end_walk(ClockNow now)
{
	MonoTime expiry = clock_of_wall(now, walk.earliest);
	double keep;

	walk.walking = false;
	walk.column = walk.column_seen;
	walk.refused = walk.refused_seen;
	keep = shortest_keep();
	walk.next = CLOCK_NEVER;
	if (keep >= 0)
		walk.next = clock_max(walk.not_before, clock_min(expiry, plus_seconds(now.mono, keep)));
}

/*
 * Begin a walk, within a transaction, if there may be rows to remove.  The settings are not read in
 * each slice: a role may change its settings all the time.
 */
static void
begin_walk(void)
{
	uint32 settings = pg_atomic_read_u32(&Shared->settings_changes);

	if (walk.settings != settings)
		walk.setting = roles_shortest_keep(MyScheduler->table);
	walk.settings = settings;
	walk.walking = shortest_keep() >= 0;
	walk.page = walk.row = 0;
	walk.earliest = DT_NOEND;
	walk.column_seen = -1;
	walk.refused_seen = false;
}

/* Say, once per start of the server, that the table begins to lose rows. */
static void
tell_removal(void)
{
	SharedFindings found = shared_database_found(MyDatabaseId);

	if (found.removes == MyScheduler->table->relid)
		return;
	ereport(LOG,
			(errmsg("pg_task removes rows of tasks that have ended from %s in database \"%s\"",
					MyScheduler->table->name, MyScheduler->database),
			 errdetail("How long they stay is said by their column \"keep\", that of their queue,"
					   " or the settings \"pg_task.keep\" and \"pg_task.keep_failed\"."),
			 errhidecontext(true)));
	found.removes = MyScheduler->table->relid;
	shared_database_publish(MyDatabaseId, &found);
}

/* Read the next slice, and remove its rows whose time is over.  In a transaction, which it ends. */
static void
run_slice(ClockNow now)
{
	HistoryRow *rows;
	ItemPointerData last;
	int expired = 0;
	int removed = 0;
	int count = read_slice(&rows);

	ItemPointerSet(&last, (BlockNumber) walk.page + SLICE_PAGES, 0);
	if (count > 0)
		expired = remove_expired_rows(rows, count, now, &last, &removed);
	work_end_batch(REFUSED_HISTORY);
	if (removed > 0)
		tell_removal();
	walk.next = clock_after_share(walk.begun, clock_mono(), expired > 0 ? REMOVE_SHARE : READ_SHARE,
								  PAUSE_MAX_MS);
	walk.page = ItemPointerGetBlockNumberNoCheck(&last);
	walk.row = ItemPointerGetOffsetNumberNoCheck(&last);
	if (count < 0)
		end_walk(clock_now());
}

/*
 * Run one slice, if one is due.  Begin a walk if one is due, or if settings have changed, which
 * wakes nobody.
 */
static void
history_run(ClockNow now)
{
	bool news = !walk.walking && walk.settings != pg_atomic_read_u32(&Shared->settings_changes);
	int64 rest = (int64) MyScheduler->settings.period * REST_PERIODS;

	/* a row or a rule says how long rows are kept, which may be over */
	if (MyScheduler->events & SHARED_HISTORY)
		history_hint(0, now.mono);
	MyScheduler->events &= ~SHARED_HISTORY;
	if (MyScheduler->table->partitioned ||
		clock_is_before(now.mono, news ? walk.not_before : walk.next))
		return;
	/* if it fails, or if the table is locked */
	walk.next = walk.not_before = clock_plus_ms(now.mono, Min(rest, REST_MIN_MS));
	if (!work_begin_writing("removing old tasks", false))
		return;
	work_limit(SLICE_LIMIT_MS);
	walk.begun = clock_mono();
	if (!walk.walking)
		begin_walk();
	if (walk.walking)
		run_slice(now);
	else
	{
		work_end();
		walk.next = CLOCK_NEVER;
	}
	walk.begun = CLOCK_LONG_AGO;
}

/*
 * The transaction has failed.  If it was a slice and a row is at fault, the rows that are to be
 * removed are tried again, or skipped; if none was to be removed, the slice is passed over.
 */
static void
history_failed(const BatchFailure *failure)
{
	MonoTime now = clock_mono();

	if (walk.begun.us != CLOCK_LONG_AGO.us && walk.walking && failure->row_at_fault)
	{
		walk.refused = walk.refused_seen = true;
		if (failure->rows == 0)
		{
			walk.page += SLICE_PAGES;
			walk.row = 0;
		}
		walk.next = clock_after_share(walk.begun, now, REMOVE_SHARE, PAUSE_MAX_MS);
	}
	walk.begun = CLOCK_LONG_AGO;
}

/* A walk is no reason to keep a place among many databases: see needed_at. */
const SchedulerJob history_job = {.due = history_due,
								  .run = history_run,
								  .forget_table = forget_table,
								  .failed = history_failed,
								  .always = true,
								  .writes = true};
