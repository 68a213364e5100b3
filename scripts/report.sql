-- The queries of scripts/report, for psql. Each begins with a line that names its section, without
-- a tab; then comes what COPY prints, with names of columns. So each has at least two columns.
--
-- Variables: hours, and rows: of the history no statement reads more than the rows with so many of
-- the highest ids, in the order of the primary key. The task table is read by functions of the
-- extension alone: they run no code of its owner with the rights of whoever makes a report, and
-- what waits and runs they find by small indexes. All is of one snapshot, and nothing is written.

BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL DateStyle = 'ISO';
SET LOCAL IntervalStyle = 'postgres';
SET LOCAL extra_float_digits = 1;
SET LOCAL statement_timeout = '1min';
SET LOCAL jit = off;

\set recent 'pg_task_recent(' :rows ') AS t'
\set begin '(now() - make_interval(hours => ' :hours '))'
\set buckets 48

\echo head
COPY (
SELECT current_database() AS database, version, current_setting('server_version') AS server,
       task_table, now()::timestamptz(0)::text AS at, current_setting('TimeZone') AS zone,
       current_user AS role, coalesce(state, 'not served') AS state, databases, schedulers,
       executors, busy, max_executors, rows, pg_size_pretty(size) AS size,
       CASE WHEN isfinite(oldest_due) THEN extract(epoch FROM now() - oldest_due) END AS behind,
       CASE WHEN isfinite(oldest_end) THEN extract(epoch FROM now() - oldest_end) END AS age
  FROM pg_task_status()
) TO STDOUT WITH (HEADER);

\echo bound
COPY (
SELECT count(*) AS read, count(*) = :rows AS full,
       count(*) FILTER (WHERE stop >= :begin AND isfinite(stop)
                          AND state IN ('DONE', 'FAIL', 'GONE', 'STOP')) AS ended
  FROM :recent
) TO STDOUT WITH (HEADER);

\echo ticks
COPY (
SELECT n / 4.0 AS place,
       to_char(:begin + make_interval(hours => :hours) * n / 4.0,
               CASE WHEN :hours > 24 THEN 'MM-DD' ELSE 'HH24:MI' END) AS label
  FROM generate_series(0, 4) AS n
) TO STDOUT WITH (HEADER);

-- A time after now, of a clock that was set back, counts in the last bucket.
\echo ended
COPY (
SELECT least(width_bucket(extract(epoch FROM stop), extract(epoch FROM :begin),
                          extract(epoch FROM now()), :buckets), :buckets) AS bucket,
       count(*) FILTER (WHERE state = 'DONE') AS done,
       count(*) FILTER (WHERE state = 'FAIL') AS failed,
       count(*) FILTER (WHERE state = 'GONE') AS gone,
       count(*) FILTER (WHERE state = 'STOP') AS stopped
  FROM :recent
 WHERE stop >= :begin AND isfinite(stop) AND state IN ('DONE', 'FAIL', 'GONE', 'STOP')
 GROUP BY 1 ORDER BY 1
) TO STDOUT WITH (HEADER);

-- Of which tasks, and since when they wait, as in pg_task_stats.
\echo waited
COPY (
SELECT least(width_bucket(extract(epoch FROM start), extract(epoch FROM :begin),
                          extract(epoch FROM now()), :buckets), :buckets) AS bucket, count(*),
       greatest(percentile_cont(0.5) WITHIN GROUP (ORDER BY waited), 0) AS p50,
       greatest(percentile_cont(0.95) WITHIN GROUP (ORDER BY waited), 0) AS p95
  FROM (SELECT *, extract(epoch FROM start - dt) AS waited FROM :recent
         WHERE isfinite(start) AND isfinite(dt)) AS t
 WHERE start >= :begin AND state IN ('DONE', 'FAIL')
 GROUP BY 1 ORDER BY 1
) TO STDOUT WITH (HEADER);

\echo stats
COPY (
SELECT queue, ended, failed, gone, wait_p50, wait_p95, run_p50, run_p95, count(*) OVER () AS all
  FROM (SELECT queue COLLATE "C" AS queue, count(*) AS ended,
               count(*) FILTER (WHERE state = 'FAIL') AS failed,
               count(*) FILTER (WHERE state = 'GONE') AS gone,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY waited) AS wait_p50,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY waited) AS wait_p95,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY ran) AS run_p50,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY ran) AS run_p95
          FROM (SELECT queue, state,
                       CASE WHEN state <> 'GONE' AND isfinite(start) AND isfinite(dt)
                            THEN greatest(extract(epoch FROM start - dt), 0) END AS waited,
                       CASE WHEN state <> 'GONE' AND isfinite(start) AND isfinite(stop)
                            THEN extract(epoch FROM stop - start) END AS ran
                  FROM :recent
                 WHERE stop >= :begin AND isfinite(stop)
                   AND state IN ('DONE', 'FAIL', 'GONE')) AS t
         GROUP BY 1) AS q
 ORDER BY ended DESC, queue LIMIT 50
) TO STDOUT WITH (HEADER);

\echo failures
COPY (
SELECT queue COLLATE "C" AS queue, sqlstate, left(error, 500) AS error, count(*),
       min(stop)::timestamptz(0)::text AS first, max(stop)::timestamptz(0)::text AS last,
       array_to_string((array_agg(id ORDER BY stop DESC, id DESC))[1:5], ' ') AS ids,
       count(*) OVER () AS all
  FROM :recent
 WHERE stop >= :begin AND isfinite(stop)
   AND (state = 'FAIL' OR state = 'GONE' AND sqlstate IS NOT NULL)
 GROUP BY 1, 2, 3 ORDER BY 4 DESC, max(stop) DESC LIMIT 50
) TO STDOUT WITH (HEADER);

-- The last runs that have ended, and those that go on, of at most 16 processes: the places of both
-- ends between the first begin (0) and the last end (1). A row in PLAN shows its last run.
\echo runs
COPY (
WITH ended AS (
SELECT pid, id, queue, role, start, stop,
       CASE WHEN state <> 'PLAN' THEN state WHEN error IS NULL THEN 'DONE' ELSE 'FAIL' END AS state
  FROM :recent
 WHERE state IN ('DONE', 'FAIL', 'STOP', 'PLAN') AND pid IS NOT NULL
   AND isfinite(start) AND isfinite(stop) AND start <= stop AND stop >= :begin
 ORDER BY stop DESC LIMIT 500
), every AS (
SELECT * FROM ended
 UNION ALL
SELECT pid, id, queue, role, start, greatest(start, now()), 'WORK'
  FROM pg_task_activity() WHERE database = current_database() AND start IS NOT NULL
), runs AS (
SELECT e.*, greatest(e.start, :begin) AS shown
  FROM every AS e
  JOIN (SELECT pid FROM every GROUP BY pid ORDER BY max(stop) DESC, pid LIMIT 16) AS p USING (pid)
), whole AS (
SELECT first, last, CASE WHEN last - first > interval '20 h' THEN 'MM-DD HH24:MI'
                         WHEN last - first > interval '10 s' THEN 'HH24:MI:SS'
                         ELSE 'HH24:MI:SS.MS' END AS form
  FROM (SELECT min(shown) AS first, greatest(max(stop), min(shown) + interval '10 ms') AS last
          FROM runs) AS w
)
SELECT pid, id, queue, role, state, start::timestamptz(3)::text AS start,
       extract(epoch FROM stop - start) AS seconds,
       extract(epoch FROM shown - first) / extract(epoch FROM last - first) AS begin,
       extract(epoch FROM stop - first) / extract(epoch FROM last - first) AS end,
       to_char(first, form) AS label0, to_char(first + (last - first) / 2, form) AS label1,
       to_char(last, form) AS label2
  FROM runs CROSS JOIN whole ORDER BY pid, runs.start, id
) TO STDOUT WITH (HEADER);

-- The first task of each group that is late, with the reason; see pg_task_top for the bounds.
\echo held
COPY (
SELECT queue, role, tasks, id, extract(epoch FROM age) AS late, pg_task_why(id) AS why
  FROM pg_task_top(50) WHERE what = 'late'
) TO STDOUT WITH (HEADER);

\echo held_notes
COPY (
SELECT tasks, CASE what WHEN 'after' THEN 'tasks that wait for other tasks' ELSE text END AS text
  FROM pg_task_top(0) WHERE what IN ('after', 'note')
) TO STDOUT WITH (HEADER);

\echo queues
COPY (
SELECT queue, waits, due, runs, failed, takers, count(*) OVER () AS all,
       CASE WHEN isfinite(oldest_due) THEN extract(epoch FROM now() - oldest_due) END AS behind
  FROM pg_task_queues() LIMIT 50
) TO STDOUT WITH (HEADER);

\echo activity
COPY (
SELECT database, queue, id, role, pid, attempt, start::timestamptz(0)::text AS start,
       extract(epoch FROM clock_timestamp() - start) AS seconds, done, total, message,
       count(*) OVER () AS all
  FROM pg_task_activity() AS a ORDER BY a.start LIMIT 50
) TO STDOUT WITH (HEADER);

\echo repeating
COPY (
SELECT id, queue, key, role, rule, dt::timestamptz(0)::text AS next, last_state,
       last_start::timestamptz(0)::text AS last_start, extract(epoch FROM last_run) AS last_run,
       left(last_error, 500) AS last_error, count(*) OVER () AS all
  FROM pg_task_repeating() LIMIT 50
) TO STDOUT WITH (HEADER);

\echo schedulers
COPY (
SELECT datname, state, executors, busy, wanted, held,
       CASE WHEN isfinite(oldest_due) THEN extract(epoch FROM now() - oldest_due) END AS behind,
       extract(epoch FROM now() - wants_since) AS wants, error,
       error_at::timestamptz(0)::text AS error_at, count(*) OVER () AS all
  FROM pg_stat_task_scheduler() ORDER BY datname LIMIT 50
) TO STDOUT WITH (HEADER);

\echo counters
COPY (
SELECT datname, queue, planned, started, done, failed, retried, stopped, gone, timed_out,
       crashed, wait_time / nullif(started, 0) / 1000 AS wait,
       run_time / nullif(done + failed + retried + stopped, 0) / 1000 AS run,
       count(*) OVER () AS all
  FROM pg_stat_task() ORDER BY started DESC, datname, queue LIMIT 50
) TO STDOUT WITH (HEADER);

COMMIT;
