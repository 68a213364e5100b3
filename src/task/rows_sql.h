/*
 * rows_sql.h
 *		Parts of SQL that several statements on task rows have in common.
 *
 * In all of them "t" is the task table.
 */
#ifndef PG_TASK_ROWS_SQL_H
#define PG_TASK_ROWS_SQL_H

#include "postgres.h"

#include "shared/task.h"

/* clang-format off */

/*
 * The limit of a row's group: of rows on hold none starts.  The expression must match that of the
 * index on waiting rows.
 */
#define GROUP_MAX(alias) \
	"(CASE WHEN " alias ".hold IS NULL THEN coalesce(" alias ".max, 2147483647) ELSE 0 END)"
#define G_MAX GROUP_MAX("t")

/* The queue, as the index on waiting rows has it. */
#define G_QUEUE "t.queue COLLATE \"C\""

/*
 * Excludes rows with a NULL in one of these columns: a table that its owner created may allow
 * them, but such rows have no position.  Written with IS NOT TRUE so that the planner does not use
 * the condition with the index, where it would displace a better condition.
 */
#define COMPLETE \
	"(t.queue IS NULL OR t.priority IS NULL OR t.role IS NULL OR t.role_id IS NULL" \
	" OR t.dt IS NULL) IS NOT TRUE"

/* The row waits, and not for other tasks: the condition of the index on waiting rows. */
#define WAITING "t.state = 'PLAN' AND t.waits IS NULL"

/* The time that the task was first planned for: a retry changes dt, not this. */
#define PLANNED "coalesce(t.planned, t.dt)"

/*
 * Has the row of a run been planned again, for one more run after this one?  At the claim, dt is
 * not later than the time of the claim, which a row in state WORK has in "start".
 */
#define PLANNED_AGAIN "coalesce(t.dt > t.start, false)"

/*
 * The time for which it was planned again.  The trigger writes the first moment after the claim
 * where no later time was given (check_run_again): then it is due at $stop, the end of the run.
 */
#define AGAIN_TIME \
	"CASE WHEN t.dt <= t.start + interval '1 microsecond' THEN $stop ELSE t.dt END"

/*
 * Is another run planned when this one has ended?  Only once: a row that was planned again after
 * that runs for itself, and its chain goes on with the run after it.
 */
#define REPEATS "((t.repeat IS NOT NULL OR t.cron IS NOT NULL) AND t.next IS NULL)"

/*
 * Notify whoever listens that a task has ended, in this state, with the commit; NULL.  Nothing here
 * may keep the commit from succeeding: a row may have bypassed the trigger, and a listener that
 * reads nothing fills the server's queue.  The payload is shorter than the server's limit.
 */
#define NOTIFY_END(state) \
	"CASE WHEN octet_length(t.notify) BETWEEN 1 AND " CppAsString2(TASK_CHANNEL_MAX) \
	"      AND pg_notification_queue_usage() < " CppAsString2(TASK_NOTIFY_USAGE) \
	" THEN pg_notify(t.notify, json_build_object('id', t.id, 'queue', left(t.queue, 255)," \
	"                'flow', left(t.flow, 255), 'step', left(t.step, 255)," \
	"                'state', " state ")::text) END"

/* The response of a failed task, in the format of the row: see arg_failure. */
#define FAILURE_RESPONSE "CASE WHEN coalesce(t.format, $format) = 'json' THEN $json ELSE $text END"

/* The name of the queue: a row that has bypassed the trigger may have any. */
#define QUEUE_NAME "coalesce(substr(t.queue, 1, " CppAsString2(TASK_QUEUE_MAX) "), '')"

/* The first columns that a statement returns of tasks that have ended without a run. */
#define UNSTARTED "t.id, t.role::text, " QUEUE_NAME ", coalesce(t.attempt, 0)"
#define UNSTARTED_COLUMNS 4

/* The column "on_failure", as an OnFailure. */
#define ON_FAILURE "CASE WHEN t.on_failure IS NULL THEN 0 WHEN t.on_failure = '' THEN 1 ELSE 2 END"

/* The column "keep" in seconds; -1 for NULL. */
#define KEEP \
	"CASE WHEN t.keep IS NULL THEN -1 ELSE greatest(extract(epoch FROM t.keep), 0) END::float8"

/* The column "timeout" (us); NULL: not given, or for ever. */
#define TIMEOUT_OF(alias) \
	"CASE WHEN " alias ".timeout >= interval '0' AND " alias ".timeout < interval '100 years'" \
	"     THEN (extract(epoch FROM " alias ".timeout) * 1000000)::int8 END"

/* The columns "delay" (us) and "backoff"; -1 for NULL. */
#define DELAY \
	"(CASE WHEN t.delay IS NULL THEN -1" \
	" ELSE greatest(least(extract(epoch FROM t.delay), " CppAsString2(TASK_DELAY_MAX) "), 0)" \
	"      * 1000000 END)::int8"
#define BACKOFF "coalesce(t.backoff, -1)::float8"

/* The time of the claim.  The owner of the table may have set the column to NULL. */
#define CLAIMED(alias) "coalesce(" alias ".start, '-infinity')"

/*
 * Has a task expired at "now", where "seconds" is the default of "active"; 0: no limit.  The time
 * is compared in UTC, as by the index on the expiry.
 */
#define ACTIVE(seconds) "coalesce(t.active, nullif(" seconds ", 0) * interval '1 s')"
#define EXPIRED(seconds, now) \
	"(" ACTIVE(seconds) " < interval '100 years'" \
	" AND (" PLANNED " AT TIME ZONE 'UTC') + " ACTIVE(seconds) " < (" now " AT TIME ZONE 'UTC'))"

/*
 * Was this run of a repeating task missed before this server ran tasks ("serving"), and is it not
 * to be made up for?  "missed" is the default of the column of that name.  What has begun before,
 * or is tried again, was not missed.
 */
#define MISSED(missed, serving) \
	"(t.dt < " serving " AND t.attempt = 0 AND t.planned IS NULL" \
	" AND coalesce(t.missed, " missed ") = 'none' AND " REPEATS ")"

/*
 * Identifies a row that the same statement has locked.  The id is not compared, so that the
 * planner does not start with all rows, through the index on the id.
 */
#define IS_LOCKED_ROW "t.tableoid = c.oid AND t.ctid = c.tid"

/* clang-format on */

#endif /* PG_TASK_ROWS_SQL_H */
