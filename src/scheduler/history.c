/*
 * history.c
 *		Removes rows in a final state that have been kept for their time.
 *
 * No index finds these rows, because every task would pay for it.  Instead the scheduler walks
 * through the table in the order of the ids, in slices: it reads some rows, and deletes those of
 * them whose time is over, in one short transaction that waits for no lock.  The pauses between
 * slices bound the walk to a small share of the time.  After a walk the scheduler rests until the
 * next row may have to go.  It does not walk at all if no setting and no row says how long rows are
 * kept.
 *
 * This file writes no row that is not in a final state.  It leaves a partitioned table alone.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/history.h"
#include "scheduler/pool.h"
#include "scheduler/queue_rules.h"
#include "scheduler/work.h"
#include "shared/shared.h"
#include "task/roles.h"
#include "task/rows.h"

/* Maximum number of rows in a slice, and the number in the first one. */
#define ROWS_MAX 1000
#define ROWS_FIRST 64

/*
 * The number of rows is adapted so that a slice takes about this time (us): less than executors
 * need for the tasks in their rings.  If the machine is busy a slice takes longer; it has fewer
 * rows than ROWS_FIRST only if it is slow.
 */
#define SLICE_MIN_US 1000
#define SLICE_MAX_US 2500
#define SLICE_SLOW_US 20000

/* Longest transaction of a slice (ms): triggers of the owner's run in it. */
#define SLICE_LIMIT_MS 1000

/*
 * After a slice the walk pauses for this many times its duration: slices that remove rows take at
 * most 1/21 of the time, others at most 1/101.
 */
#define REMOVE_SHARE 20
#define READ_SHARE 100

/* But not for longer (ms): what held up one slice, need not hold up the next. */
#define PAUSE_MAX_MS 10000

/* After a walk there is none for this many periods of scans, but at most for a minute (ms). */
#define REST_PERIODS 60
#define REST_MIN_MS 60000

/* A slice faster than this had next to nothing to read (us). */
#define SLICE_EMPTY_US 500

/* Longest rest between two walks (s). */
#define REST_MAX 3600.0

/* Maximum number of flows that are known at a time, about 40 bytes each: then all are forgotten. */
#define FLOWS_MAX 10000

/* After this time (us) no other flow is asked for in a slice: its rows stay until the next walk. */
#define ASK_MAX_US 200000

/* Static, because the slices of the walk are in different iterations. */
static struct
{
	/* what decides whether there is anything to remove */
	uint32 settings;	/* value of the change counter up to which the settings are known */
	int setting;		/* shortest time by any setting (s), or SETTINGS_KEEP_FOR_EVER */
	bool prepared;		/* the table was prepared: its statistics may be new ... */
	bool unknown;		/* ... and nothing is known of its rows */
	bool rules;			/* the rules of queues have changed */
	double column;		/* shortest known value of the column "keep" (s); -1: no row has one */
	double column_seen; /* the same, since the walk began */

	/* the walk */
	bool walking;		  /* a walk is between two of its slices */
	bool negative;		  /* it has reached the ids up to 0, which come last */
	int64 position;		  /* it has handled the rows up to this id */
	uint64 range;		  /* ids in the next slice ... */
	int limit;			  /* ... and rows in it, at most */
	TimestampTz earliest; /* when the first of the rows that it has left can be removed */
	bool refused;		  /* a row could not be removed, in this walk or the one before */
	bool refused_seen;	  /* the same, in this walk */

	/* the slice that is being written: an error may interrupt it */
	bool writing;
	MonoTime begun;
	int removing; /* number of rows that it removes */
	int64 last;	  /* the last of them */

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
	return shorter_time(shorter_time(walk.setting, walk.column), queue_rules_shortest_keep());
}

static MonoTime
plus_seconds(MonoTime moment, double seconds)
{
	return clock_plus_ms(moment, (int64) (Min(seconds, REST_MAX) * 1000));
}

/* Return the moment after the shortest rest. */
static MonoTime
end_of_rest(MonoTime now)
{
	int64 rest = (int64) MyScheduler->settings.period * REST_PERIODS;

	return clock_plus_ms(now, Min(rest, REST_MIN_MS));
}

static void
forget_table(bool another)
{
	walk.prepared = true;
	if (!another)
		return;
	walk.unknown = true;
	walk.column = -1;
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

/* The rules of queues have changed. */
void
history_rules_changed(void)
{
	walk.rules = true;
	if (!walk.walking)
		walk.next = clock_min(walk.next, walk.not_before);
}

/* Return when the next slice is due. */
static MonoTime
history_due(ClockNow now pg_attribute_unused())
{
	if (MyScheduler->table == NULL || MyScheduler->table->partitioned)
		return CLOCK_NEVER;
	if (walk.prepared && !walk.walking)
		return clock_min(walk.not_before, walk.next);
	return walk.next;
}

/* Is a walk between two of its slices? */
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
 * Find out, within a transaction and between two walks, whether rows are to be removed.  Returns
 * true if that may be true for more rows than before.
 */
static bool
read_settings(void)
{
	uint32 settings = shared_settings_changes();
	bool news = walk.settings != settings || walk.unknown;

	if (news)
		walk.setting = roles_shortest_keep();
	walk.settings = settings;
	if (walk.prepared && walk.column < 0 && rows_history_likely(MyScheduler->table, walk.unknown))
	{
		walk.column = REST_MAX; /* the walk finds the true value */
		news = true;
	}
	news |= walk.rules;
	walk.prepared = walk.unknown = walk.rules = false;
	return news;
}

/* What is known of a flow, by a hash of its name. */
typedef struct FlowEntry
{
	uint64 hash;
	bool open;
} FlowEntry;

/* Static, because it is known from one slice of the walk to the next.  NULL: nothing is. */
static HTAB *flows = NULL;

static void
forget_flows(void)
{
	HTAB *old = flows;

	flows = NULL;
	if (old)
		hash_destroy(old);
}

static void
create_flows(void)
{
	HASHCTL control = {.keysize = sizeof(uint64), .entrysize = sizeof(FlowEntry)};

	if (flows && hash_get_num_entries(flows) >= FLOWS_MAX)
		forget_flows();
	if (flows)
		return;
	control.hcxt = TopMemoryContext;
	flows = hash_create("pg_task flows", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Is this flow known to have ended?  If it is not known yet, ask the rows, unless it is late. */
static bool
has_ended(const char *flow, MonoTime late)
{
	uint64 hash =
		DatumGetUInt64(hash_any_extended((const unsigned char *) flow, (int) strlen(flow), 0));
	bool found = hash_search(flows, &hash, HASH_FIND, NULL) != NULL;
	FlowEntry *entry;

	if (!found && !clock_is_before(clock_mono(), late))
		return false;
	entry = hash_search(flows, &hash, HASH_ENTER, NULL);
	if (!found)
	{
		entry->open = true; /* if an error interrupts this */
		entry->open = rows_flow_open(MyScheduler->table, flow);
	}
	return !entry->open;
}

/*
 * Leave of these rows, whose time is over, only those whose flow has ended or that have none.
 * Returns their number.  For each flow the rows are asked once in a walk, so a walk costs the same
 * for a flow of many rows as for many flows.  A flow that ends later is found so in the next walk.
 */
static int
filter_by_flow(HistoryRow *rows, int count)
{
	MonoTime late = clock_mono();
	int left = 0;
	int i;

	late.us += ASK_MAX_US;
	for (i = 0; i < count; i++)
	{
		if (rows[i].flow)
			create_flows();
		if (rows[i].flow == NULL || has_ended(rows[i].flow, late))
			rows[left++] = rows[i];
	}
	return left;
}

static void
begin_walk(void)
{
	walk.walking = true;
	walk.negative = false;
	walk.position = 0;
	walk.limit = ROWS_FIRST;
	walk.range = ROWS_FIRST;
	walk.earliest = DT_NOEND;
	walk.column_seen = -1;
	walk.refused_seen = false;
	forget_flows();
}

/* Is this a row in state DONE or STOP? */
static bool
has_not_failed(const HistoryRow *row)
{
	return row->state && (strcmp(row->state, "DONE") == 0 || strcmp(row->state, "STOP") == 0);
}

/*
 * The time that the column "keep" says (s); negative: it says none.  A row with 0 goes with its
 * DONE, and that says nothing of a failure.
 */
static double
column_keep(const HistoryRow *row)
{
	return row->keep == 0 && !has_not_failed(row) ? -1 : row->keep;
}

/* How long is this row kept (s)?  Negative: for ever. */
static double
keep_of(const HistoryRow *row)
{
	SettingsTask settings;
	double keep = column_keep(row);

	if (keep < 0)
		keep = queue_rules_defaults(queue_rules_find(row->queue))->keep;
	if (keep >= 0)
		return keep;
	settings = roles_settings(roles_bound(row->role, row->role_id));
	return has_not_failed(row) ? settings.keep : settings.keep_failed;
}

/* Return when a row can be removed; DT_NOEND: never. */
static TimestampTz
expiry_of(const HistoryRow *row)
{
	double keep;
	double expiry;

	if (row->state == NULL || TIMESTAMP_IS_NOEND(row->ended))
		return DT_NOEND;
	keep = keep_of(row);
	if (keep < 0)
		return DT_NOEND;
	if (TIMESTAMP_IS_NOBEGIN(row->ended))
		return row->ended;
	expiry = (double) row->ended + keep * USECS_PER_SEC;
	return expiry < (double) END_TIMESTAMP ? (TimestampTz) expiry : DT_NOEND;
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

/* Remove those of the rows whose time is over, and note when the others' is. */
static void
remove_expired_rows(HistoryRow *rows, int count, TimestampTz now)
{
	int expired = 0;
	int i;

	/* noted before a row can refuse: the walk skips it, and the next one must come back to it */
	for (i = 0; i < count; i++)
	{
		TimestampTz expiry = expiry_of(&rows[i]);

		walk.column_seen = shorter_time(walk.column_seen, column_keep(&rows[i]));
		if (expiry < now && !is_running(&rows[i]))
			rows[expired++] = rows[i];
		else
			walk.earliest = Min(walk.earliest, expiry);
	}
	expired = filter_by_flow(rows, expired);
	walk.removing = expired;
	if (expired > 0)
	{
		walk.last = rows[expired - 1].id;
		/* the others are locked, or were changed, or a trigger has left them */
		if (rows_remove(MyScheduler->table, rows, expired) < expired)
			walk.earliest = Min(walk.earliest, now);
	}
}

/*
 * Adapt the next slice to the duration of this one, which had "count" rows with ids in a range of
 * "width".  The range of ids bounds what is read of rows that were removed, which an old snapshot
 * keeps; it grows where there are no rows.  Ids may be far apart.
 */
static void
adapt_slice(int count, uint64 width, int64 duration)
{
	uint64 gap = 1;

	if (count > 0)
		gap = Min(width / count + 1, PG_UINT64_MAX / ROWS_MAX / 16);

	if (duration > SLICE_MAX_US)
	{
		if (walk.limit > ROWS_FIRST || duration > SLICE_SLOW_US)
			walk.limit = Max(walk.limit / 2, 1);
		walk.range = Max(walk.range / duration * SLICE_MAX_US, gap * walk.limit);
	}
	else if (duration < SLICE_MIN_US)
	{
		if (count == walk.limit)
			walk.limit = Min(walk.limit * 2, ROWS_MAX);
		if (walk.range < PG_UINT64_MAX / 16)
			walk.range *= duration < SLICE_EMPTY_US ? 16 : 2;
	}
	/* where there are rows, the limit suffices */
	if (count > 0)
		walk.range = Min(walk.range, gap * ROWS_MAX * 16);
}

/* A slice has taken this time (us): pause for so many times of it. */
static void
pause_walk(MonoTime now, int64 duration, int share)
{
	walk.next.us = now.us + Min(duration * share, (int64) PAUSE_MAX_MS * 1000);
}

/* The walk has read all rows: rest. */
static void
end_walk(ClockNow now)
{
	double keep;
	MonoTime expiry = clock_of_wall(now, walk.earliest);

	walk.walking = false;
	walk.column = walk.column_seen;
	walk.refused = walk.refused_seen;
	walk.not_before = end_of_rest(now.mono);
	keep = shortest_keep();
	walk.next = CLOCK_NEVER;
	if (keep >= 0)
		walk.next = clock_max(walk.not_before, clock_min(expiry, plus_seconds(now.mono, keep)));
}

/* The slice is committed: go on after it. */
static void
end_slice(int64 upto, bool complete, int count)
{
	ClockNow now = clock_now();
	int64 duration = now.mono.us - walk.begun.us;
	uint64 width = (uint64) upto - (uint64) walk.position;

	walk.writing = false;
	walk.position = upto;
	pause_walk(now.mono, duration, walk.removing > 0 ? REMOVE_SHARE : READ_SHARE);
	adapt_slice(count, width, duration);
	if (!complete)
		return;
	if (walk.negative)
	{
		end_walk(now);
		return;
	}
	/* ids up to 0 are rare: no sequence gives them */
	walk.negative = true;
	walk.position = PG_INT64_MIN;
	walk.range = PG_UINT64_MAX;
}

/* Read the next slice, and remove its rows whose time is over. */
static void
run_slice(ClockNow now)
{
	int64 end = walk.negative ? 0 : PG_INT64_MAX;
	uint64 left = (uint64) end - (uint64) walk.position;
	bool last = left <= walk.range;
	int64 upto = last ? end : (int64) ((uint64) walk.position + walk.range);
	HistoryRow *rows;
	int count;
	bool full;

	count = rows_history(MyScheduler->table, walk.position, upto, walk.limit, &rows);
	full = count == walk.limit;
	if (full)
		upto = rows[count - 1].id;
	remove_expired_rows(rows, count, now.wall);
	work_end();
	end_slice(upto, last && !full, count);
}

/* No walk begins yet.  The settings are read again after a rest. */
static void
rest_until(MonoTime next)
{
	work_end();
	walk.writing = false;
	walk.next = shortest_keep() < 0 ? CLOCK_NEVER : next;
}

/*
 * Run one slice, if one is due.  Begin a walk if one is due, or if there may be more rows to remove
 * than before: settings may have changed, which wakes nobody.
 */
static void
history_run(ClockNow now)
{
	MonoTime planned = walk.next;
	bool begins = !clock_is_before(now.mono, planned);
	bool news = !walk.walking && (walk.settings != shared_settings_changes() || walk.prepared) &&
				!clock_is_before(now.mono, walk.not_before);

	if (MyScheduler->table->partitioned || (!begins && !news))
		return;
	walk.begun = clock_mono();
	/* if it fails, or if the table is locked */
	walk.next = walk.not_before = end_of_rest(now.mono);
	if (!work_begin_writing_now("removing old tasks"))
		return;
	work_limit(SLICE_LIMIT_MS);
	walk.writing = true;
	walk.removing = 0;
	if (!walk.walking)
	{
		/* not in each slice: a role may change its settings all the time */
		begins |= read_settings();
		if (!begins || shortest_keep() < 0)
		{
			rest_until(planned);
			return;
		}
		begin_walk();
	}
	run_slice(now);
}

/*
 * The transaction has failed; if it was a slice and a row is at fault, try fewer rows, and in the
 * end go on after the row that refuses to be removed.  Returns true if the scheduler goes on at
 * once.
 */
static bool
history_failed(const BatchFailure *failure)
{
	MonoTime now = clock_mono();

	if (!walk.writing)
		return false;
	walk.writing = false;
	if (!failure->row_at_fault || !walk.walking)
		return false;
	walk.refused = walk.refused_seen = true;
	if (walk.removing == 1)
	{
		walk.position = walk.last;
		walk.earliest = DT_NOBEGIN;
	}
	else if (walk.limit == 1 && walk.removing == 0 && walk.position < PG_INT64_MAX)
		walk.position++;
	if (walk.removing > 0)
		walk.limit = Min(walk.limit, walk.removing);
	walk.limit = Max(walk.limit / 4, 1);
	walk.range = walk.limit;
	pause_walk(now, now.us - walk.begun.us, REMOVE_SHARE);
	return true;
}

/* A walk is no reason to keep a place among many databases: see idle_next_need. */
const SchedulerJob history_job = {.due = history_due,
								  .run = history_run,
								  .forget_table = forget_table,
								  .failed = history_failed,
								  .always = true,
								  .writes = true};
