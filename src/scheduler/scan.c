/*
 * scan.c
 *		The scan that finds the first waiting row of every group.
 *
 * It finds rows that no hint has named.  It runs every period, and when it is requested.  There may
 * be very many groups: a scan is done in slices, so that tasks are claimed and hints are taken in
 * between.  It reads all rows of groups that have a few, and jumps from group to group where they
 * have many.  It takes a small part of the time, even if it is requested all the time.
 *
 * If there are too many groups to remember, the next scan begins soon: each gets its turn.
 *
 * Every period, and before each scan, other rows are looked at that nobody has reported: runs whose
 * rows were changed, suspects, the next expiry, dependent rows.
 *
 * A suspect, a task that was running when the server crashed, runs isolated: one at a time on the
 * whole server, and alone in an executor.  The arbiter decides which scheduler may start one.  A
 * scheduler acquires that right when it chooses a suspect, and releases it when the round ends;
 * from then on the task in the executor's ring keeps other suspects waiting.
 *
 * This file claims and writes nothing, and locks no row.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "scheduler/dependents.h"
#include "scheduler/groups.h"
#include "scheduler/orphans.h"
#include "scheduler/scan.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "shared/arbiter.h"
#include "task/rows_sql.h"

/* A slice ends after the statement that exceeds this time (us). */
#define SLICE_US 2000

/*
 * Rows that one statement reads.  If they belong to fewer groups than a LIST_SHARE of them, the
 * next statement jumps from group to group.
 */
#define LIST_ROWS 256
#define LIST_SHARE 16
#define JUMP_GROUPS 64

/* Rows of a group that are remembered when all were listed. */
#define LIST_PLACES 8

/* Groups and queues that are forgotten at once. */
#define FORGET_MAX 1000

/*
 * The next scan waits for this many times the duration of the last one: scans take at most 1/100
 * of the time; at most 1/5 if they are requested, or if there are too many groups.  But what held
 * up one scan must not put off the next for minutes: if that is more than SCAN_PAUSE_US, they take
 * at most 1/20.
 */
#define SCAN_SHARE 100
#define SLOW_SCAN_SHARE 20
#define SCAN_PAUSE_US (30 * USECS_PER_SEC)
#define WANTED_SHARE 4

/*
 * What look_at_indexes reads without being asked takes at most 1/100 of the time; for that, it
 * waits for a minute at most (ms).
 */
#define INDEX_LOOK_SHARE 100
#define INDEX_LOOK_MAX_MS 60000

/* While a suspect waits, the scheduler checks at this interval whether it may start (ms). */
#define SUSPECT_MS 1000

/* Static, because the slices of a scan are in different iterations. */
static struct
{
	bool going;		 /* a scan is between two of its slices */
	bool tidying;	 /* it has read all groups, and forgets what it has not found */
	bool jumping;	 /* the last groups had many rows: read only the first row of each */
	TaskGroup after; /* position of the scan; its strings are the next two */
	char after_queue[(TASK_QUEUE_MAX + 1) * MAX_MULTIBYTE_CHAR_LEN + 1];
	NameData after_role;
	TimestampTz oldest;		  /* the first planned time of the rows that wait */
	int64 cost;				  /* duration of its slices so far (us) */
	MonoTime next;			  /* the next periodic scan */
	MonoTime not_before;	  /* no requested scan before this */
	MonoTime next_look;		  /* at what else no hint reports ... */
	MonoTime next_index_look; /* ... and at those that look_at_indexes reads for it */

	int64 *suspects; /* ids of those that wait, in ascending order; NULL: none */
	int nsuspects;
	bool suspect_waits; /* one was skipped since they were read, because another one runs */
} scan;

/* Return the number of waiting suspects. */
int
scan_count_suspects(void)
{
	return scan.nsuspects;
}

/* Comparator for qsort and bsearch: ids in ascending order. */
static int
compare_ids(const void *a, const void *b)
{
	int64 left = *(const int64 *) a;
	int64 right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/* Is this task a suspect? */
bool
scan_is_suspect(int64 id)
{
	return scan.nsuspects > 0 &&
		   bsearch(&id, scan.suspects, scan.nsuspects, sizeof(int64), compare_ids);
}

/*
 * Acquire the right to start a suspect: one in a round, and one at a time on the server.  False if
 * another one runs.
 */
bool
scan_acquire_suspect(void)
{
	if (!MyScheduler->slot->isolated && arbiter_take_isolated(MyScheduler->slot))
		return true;
	scan.suspect_waits = true;
	return false;
}

/* Return when to ask again whether a suspect that was skipped may start. */
static MonoTime
suspect_due(ClockNow now)
{
	return scan.suspect_waits ? clock_plus_ms(now.mono, SUSPECT_MS) : CLOCK_NEVER;
}

/* Begin the next scan at this time at the latest, but not before a requested scan may begin. */
void
scan_no_later(MonoTime moment)
{
	scan.next = clock_min(scan.next, clock_max(moment, scan.not_before));
}

/* The scan has read all groups up to this one. */
static void
set_position(const TaskGroup *after)
{
	strlcpy(scan.after_queue, after->queue, sizeof(scan.after_queue));
	namestrcpy(&scan.after_role, after->role);
	scan.after = *after;
	scan.after.queue = scan.after_queue;
	scan.after.role = NameStr(scan.after_role);
}

/* Was a scan requested that has not begun?  Suspects are found by one. */
static bool
is_wanted(void)
{
	return (MyScheduler->events & SHARED_SCAN) || MyScheduler->wants_suspects;
}

/*
 * May rows wait that neither a hint nor a scan has named: because the scheduler has just begun, or
 * hints were lost, or there are too many groups?
 */
bool
scan_is_open(void)
{
	return scan.going || is_wanted() || groups_lack();
}

/* Return when the next slice is due. */
static MonoTime
scan_until(void)
{
	if (scan.going)
		return CLOCK_LONG_AGO;
	return scan_is_open() ? clock_min(scan.next, scan.not_before) : scan.next;
}

/*
 * Process the first rows of a group, in order; "complete": there are no others.  The trigger limits
 * the length of a queue's name; a row that was written without the trigger and exceeds it is not
 * remembered, but fails.
 */
static void
remember_rows(const GroupHead *rows, int count, bool complete)
{
	TaskPlace places[LIST_PLACES];
	int i;

	if (rows->too_long)
	{
		(void) unstarted_fail(
			rows->place, &rows->group,
			"the name of the queue is longer than " CppAsString2(TASK_QUEUE_MAX) " bytes", NULL,
			ERRCODE_STRING_DATA_RIGHT_TRUNCATION, false);
		return;
	}
	unstarted_bind(&rows->group);
	/* what is kept from starting on purpose does not wait */
	if (rows->place.dt < scan.oldest && rows->group.max != 0 &&
		!queue_rule_pauses(queue_rules_find(queues_rules(), rows->group.queue), clock_now().wall))
		scan.oldest = rows->place.dt;
	for (i = 0; i < Min(count, LIST_PLACES); i++)
		places[i] = rows[i].place;
	groups_scan_found(&rows->group, places, i, complete && i == count);
}

/* clang-format off */

/* The columns of the index on waiting rows.  The expressions must match those of the index. */
#define G_ALL G_QUEUE ", " G_MAX ", t.priority, t.role, t.role_id"

/*
 * A loose index scan from group to group: one descent of the index for each.  It finds the first
 * row of each group.
 */
static const Statement scan_groups = {.sql =
	"WITH RECURSIVE g (queue, max, priority, role, role_id, dt, id) AS ("
	"(SELECT " G_ALL ", t.dt, t.id"
	"   FROM {rows} AS t"
	"  WHERE " WAITING " AND " COMPLETE
	"    AND (" G_ALL ") > ($queue, $max, $priority, $role::name, $role_id)"
	"  ORDER BY " G_ALL ", t.dt, t.id"
	"  LIMIT 1)"
	" UNION ALL"
	" SELECT n.*"
	"   FROM g CROSS JOIN LATERAL ("
	"        SELECT " G_ALL ", t.dt, t.id"
	"          FROM {rows} AS t"
	"         WHERE " WAITING " AND " COMPLETE
	"           AND (" G_ALL ") > (g.queue, g.max, g.priority, g.role, g.role_id)"
	"         ORDER BY " G_ALL ", t.dt, t.id"
	"         LIMIT 1) AS n"
	") SELECT substr(g.queue, 1, " CppAsString2(TASK_QUEUE_MAX) " + 1), max, priority, role::text,"
	"         dt, id, role_id, octet_length(g.queue) > " CppAsString2(TASK_QUEUE_MAX)
	"    FROM g LIMIT $limit"};

/*
 * An index scan of all rows: the limit may cut off rows of the last group.  For groups of a few rows
 * this takes a fraction of the time.
 */
static const Statement list_rows = {.sql =
	"SELECT substr(t.queue, 1, " CppAsString2(TASK_QUEUE_MAX) " + 1), " G_MAX ", t.priority,"
	"       t.role::text, t.dt, t.id, t.role_id,"
	"       octet_length(t.queue) > " CppAsString2(TASK_QUEUE_MAX)
	"  FROM {rows} AS t"
	" WHERE " WAITING " AND " COMPLETE
	"   AND (" G_ALL ") > ($queue, $max, $priority, $role::name, $role_id)"
	" ORDER BY " G_ALL ", t.dt, t.id"
	" LIMIT $limit"};

/* clang-format on */

/* Execute one of the two statements above: read what comes after the position of the scan. */
static int
read_heads(const Statement *statement, int limit, GroupHead **heads)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	uint64 count;
	uint64 i;

	statement_begin(&args);
	arg_text(&args, "queue", scan.after.queue);
	arg_int32(&args, "max", scan.after.max);
	arg_int32(&args, "priority", scan.after.priority);
	arg_text(&args, "role", scan.after.role);
	arg_int64(&args, "role_id", scan.after.role_id);
	arg_int64(&args, "limit", limit);
	count = work_execute(statement, &args);
	*heads = MemoryContextAllocHuge(caller, Max(count, 1) * sizeof(GroupHead));
	for (i = 0; i < count; i++)
	{
		GroupHead *head = &(*heads)[i];

		head->group.queue = statement_text(caller, i, 1);
		head->group.max = statement_int32(i, 2);
		head->group.priority = statement_int32(i, 3);
		head->group.role = statement_text(caller, i, 4);
		head->place.dt = statement_time(i, 5);
		head->place.id = statement_int64(i, 6);
		head->group.role_id = statement_int64(i, 7);
		head->too_long = statement_bool(i, 8);
	}
	statement_end();
	return (int) count;
}

/* Read the first rows of the next groups.  Returns the last group; NULL if there are no more. */
static const TaskGroup *
jump_over_groups(void)
{
	GroupHead *heads;
	int count = read_heads(&scan_groups, JUMP_GROUPS, &heads);
	int i;

	for (i = 0; i < count; i++)
		remember_rows(&heads[i], 1, false);
	scan.jumping = false;
	return count == JUMP_GROUPS ? &heads[count - 1].group : NULL;
}

/* Read all rows of the next groups.  Returns the last group; NULL if there are no more. */
static const TaskGroup *
list_groups(void)
{
	GroupHead *rows;
	int count = read_heads(&list_rows, LIST_ROWS, &rows);
	bool more = count == LIST_ROWS;
	int ngroups = 0;
	int first = 0;
	int i;

	for (i = 1; i <= count; i++)
	{
		if (i < count && task_same_group(&rows[first].group, &rows[i].group))
			continue;
		remember_rows(&rows[first], i - first, i < count || !more);
		rows[ngroups++] = rows[first];
		first = i;
	}
	scan.jumping = ngroups < LIST_ROWS / LIST_SHARE;
	return more ? &rows[count - 1].group : NULL;
}

/* A scan begins. */
static void
begin_scan(void)
{
	TaskGroup before_all = {"", PG_INT32_MIN, PG_INT32_MIN, "", PG_INT64_MIN};

	scan.cost = 0;
	scan.going = true;
	groups_scan_begin();
	set_position(&before_all);
	scan.oldest = DT_NOEND;
	scan.jumping = false;
	MyScheduler->events &= ~SHARED_SCAN;
}

/*
 * Read the next groups, or forget some of those that were not found.  Returns true when the scan is
 * complete.
 */
static bool
advance_scan(void)
{
	const TaskGroup *last;

	if (scan.tidying)
		return groups_forget_unseen(clock_mono(), FORGET_MAX);
	last = scan.jumping ? jump_over_groups() : list_groups();
	if (last)
	{
		set_position(last);
		return false;
	}
	figure_set(FIGURE_OLDEST, scan.oldest);
	scan.tidying = true;
	return false;
}

/*
 * Read the next slice, or the first one of the next scan.  A scan that is requested while one is
 * running begins after it.  When a scan ends, the next look is due when the next scan is, if that
 * is the next period.
 */
static void
read_slice(void)
{
	MonoTime begun = clock_mono();
	MonoTime now;
	bool complete;
	int64 pause;

	if (!scan.going)
		begin_scan();
	do
		complete = advance_scan();
	while (!complete && clock_mono().us - begun.us < SLICE_US);
	now = clock_mono();
	scan.cost += now.us - begun.us;
	if (!complete)
		return;
	scan.going = scan.tidying = false;
	scan.not_before.us = now.us + scan.cost * WANTED_SHARE;
	scan.next_look = clock_plus_ms(now, MyScheduler->settings.period);
	pause = Min(scan.cost * SCAN_SHARE, Max(SCAN_PAUSE_US, scan.cost * SLOW_SCAN_SHARE));
	scan.next.us = Max(now.us + pause, scan.next_look.us);
}

/* clang-format off */
/* The first condition matches exactly one index. */
static const Statement find_suspects = {.sql =
	"SELECT t.id"
	"  FROM {rows} AS t"
	" WHERE (t.state = 'WORK' OR (t.state = 'PLAN' AND t.crashed > 0))"
	"   AND t.state = $state AND t.crashed > 0 AND t.waits IS NULL"};
/* clang-format on */

/* Find the waiting tasks that are suspects: the server may have crashed because of them. */
static void
look_for_suspects(void)
{
	int64 *old = scan.suspects;
	StatementArgs args;
	int count;
	int i;

	statement_begin(&args);
	arg_text(&args, "state", "PLAN");
	count = (int) work_execute(&find_suspects, &args);
	scan.suspects = NULL;
	scan.nsuspects = 0;
	MyScheduler->wants_suspects = scan.suspect_waits = false;
	if (old)
		pfree(old);
	if (count > 0)
	{
		scan.suspects = MemoryContextAllocHuge(TopMemoryContext, count * sizeof(int64));
		scan.nsuspects = count;
	}
	for (i = 0; i < count; i++)
		scan.suspects[i] = statement_int64(i, 1);
	statement_end();
	if (count > 0)
		qsort(scan.suspects, count, sizeof(int64), compare_ids);
}

/*
 * Look for suspects, the next expiry, and rows that wait for other tasks.  There are few of them,
 * if any, but their indexes are read from the beginning, where an old snapshot keeps an entry for
 * each task that was claimed under it.  Returns false if it is too early for that.
 */
static bool
look_at_indexes(void)
{
	MonoTime begun = clock_mono();

	if (!MyScheduler->wants_suspects && clock_is_before(begun, scan.next_index_look))
		return false;
	look_for_suspects();
	unstarted_look();
	dependents_look();
	scan.next_index_look =
		clock_after_share(begun, clock_mono(), INDEX_LOOK_SHARE, INDEX_LOOK_MAX_MS);
	return true;
}

/* Read a slice of the scan, and what else no hint reports, if that is due. */
static void
run_scan(ClockNow now)
{
	bool scans;
	bool begins;
	bool looks;

	if (scan.suspect_waits && arbiter_take_isolated(MyScheduler->slot))
	{
		arbiter_release_isolated(MyScheduler->slot);
		MyScheduler->wants_suspects = true;
	}
	if (MyScheduler->wants_suspects) /* whatever a look before it finds */
		MyScheduler->events |= SHARED_SCAN;
	scans = !clock_is_before(now.mono, scan_until());
	begins = scans && !scan.going;
	looks = begins || !clock_is_before(now.mono, scan.next_look);
	if (!scans && !looks)
		return;
	work_begin("scanning the task table");
	work_limit(WORK_SCAN_MS);
	if (looks)
	{
		refused_forget(now.mono);
		orphans_reconcile();
		/* the two find what was locked: a waiting row, and one that has expired */
		if (look_at_indexes() && begins)
			MyScheduler->row_missed = false;
		scan.next_look = clock_plus_ms(now.mono, MyScheduler->settings.period);
	}
	if (scans)
		read_slice();
	work_end();
}

static MonoTime
scan_due(ClockNow now)
{
	return clock_min(clock_min(scan_until(), scan.next_look), suspect_due(now));
}

/* A periodic scan and a look need no scheduler: the next one begins with them. */
static MonoTime
scan_needed(ClockNow now)
{
	if (scan.going)
		return now.mono;
	return is_wanted() || groups_lack() ? scan_until() : suspect_due(now);
}

/* Nothing is known of the rows any more: a look and a complete scan are due now. */
static void
scan_forget_table(bool another pg_attribute_unused())
{
	scan.going = scan.tidying = false;
	scan.not_before = CLOCK_LONG_AGO;
	MyScheduler->events |= SHARED_SCAN;
	MyScheduler->wants_suspects = true;
}

const SchedulerJob scan_job = {.due = scan_due,
							   .needed = scan_needed,
							   .run = run_scan,
							   .forget_table = scan_forget_table,
							   .always = true};
