-- complain if the script is sourced in psql
\echo Use "CREATE EXTENSION pg_task" to load this file. \quit

-- The language of functions that are one statement on the task table: src/session/reports.c.
CREATE FUNCTION pg_catalog.pg_task_report() RETURNS language_handler
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_report';

COMMENT ON FUNCTION pg_catalog.pg_task_report() IS 'the handler of the language pg_task_report';

CREATE LANGUAGE pg_task_report HANDLER pg_catalog.pg_task_report;

COMMENT ON LANGUAGE pg_task_report IS
    'one statement on the task table, with the rights that a function of pg_task has';

CREATE FUNCTION pg_catalog.pg_task_returns_json(role name, role_id bigint) RETURNS boolean
    LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'pg_task_returns_json';

COMMENT ON FUNCTION pg_catalog.pg_task_returns_json(name, bigint) IS
    'is a response of this role one JSON document, if the row does not say how it is formatted';

CREATE FUNCTION pg_catalog.pg_task_bound() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_bound';

COMMENT ON FUNCTION pg_catalog.pg_task_bound() IS
    'trigger on a task table: binds a new row to the role that has its name';

CREATE FUNCTION pg_catalog.pg_task_planned() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_planned';

COMMENT ON FUNCTION pg_catalog.pg_task_planned() IS
    'trigger on a task table: wakes the scheduler when a commit has planned tasks';

CREATE FUNCTION pg_catalog.pg_task_numbered() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_numbered';

COMMENT ON FUNCTION pg_catalog.pg_task_numbered() IS
    'trigger on a task table: others than its owner take no id that its sequence has yet to give';

CREATE FUNCTION pg_catalog.pg_task_removed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_removed';

COMMENT ON FUNCTION pg_catalog.pg_task_removed() IS
    'trigger on a task table: cancels running tasks when a commit has removed their rows';

CREATE FUNCTION pg_catalog.pg_task_watched(state text) RETURNS boolean
    LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'pg_task_watched';

COMMENT ON FUNCTION pg_catalog.pg_task_watched(text) IS
    'condition of the trigger on a task table: not our own bookkeeping';

CREATE FUNCTION pg_catalog.pg_task_own(role name, role_id bigint DEFAULT 0) RETURNS boolean
    LANGUAGE c STABLE STRICT LEAKPROOF PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'pg_task_own';

COMMENT ON FUNCTION pg_catalog.pg_task_own(name, bigint) IS
    'row security of a task table: may the current user act as the role of this row';

CREATE FUNCTION pg_catalog.pg_task_next(planned timestamptz, repeat interval, drift boolean,
                                        ended timestamptz,
                                        timezone text DEFAULT current_setting('TimeZone'))
    RETURNS timestamptz
    LANGUAGE c STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_next';

COMMENT ON FUNCTION pg_catalog.pg_task_next(timestamptz, interval, boolean, timestamptz, text) IS
    'when a repeating task that was planned and ended at these times runs next';

CREATE FUNCTION pg_catalog.pg_task_cancel(id bigint) RETURNS boolean
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_cancel';

COMMENT ON FUNCTION pg_catalog.pg_task_cancel(bigint) IS
    'stop a task, whether it waits or runs; false if there is none';

CREATE FUNCTION pg_catalog.pg_task_cancel(key text, queue text DEFAULT 'default') RETURNS bigint
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
UPDATE {table} AS t SET state = 'STOP'
 WHERE t.queue = $2 AND t.key = $1 AND t.state IN ('PLAN', 'WORK'){condition}
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_cancel(text, text) IS
    'stop the task with this key, and end its schedule: how many';

CREATE FUNCTION pg_catalog.pg_task_interrupt(id bigint, attempt integer DEFAULT NULL)
    RETURNS boolean
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_interrupt';

COMMENT ON FUNCTION pg_catalog.pg_task_interrupt(bigint, integer) IS
    'interrupt the run of a task, or only this attempt, which has failed then; false if there is none';

CREATE FUNCTION pg_catalog.pg_task_hold(id bigint, reason text DEFAULT 'on hold') RETURNS bigint
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
UPDATE {table} AS t SET hold = coalesce($2, 'on hold')
 WHERE t.id = $1 AND t.state IN ('PLAN', 'WORK'){condition}
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_hold(bigint, text) IS
    'put a task on hold, and the runs after it: how many';

CREATE FUNCTION pg_catalog.pg_task_hold(key text, reason text DEFAULT 'on hold',
                                        queue text DEFAULT 'default') RETURNS bigint
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
UPDATE {table} AS t SET hold = coalesce($2, 'on hold')
 WHERE t.queue = $3 AND t.key = $1 AND t.state IN ('PLAN', 'WORK'){condition}
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_hold(text, text, text) IS
    'put the task with this key on hold, and the runs after it: how many';

CREATE FUNCTION pg_catalog.pg_task_resume(id bigint) RETURNS bigint
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
UPDATE {table} AS t SET hold = NULL
 WHERE t.id = $1 AND t.state IN ('PLAN', 'WORK') AND t.hold IS NOT NULL{condition}
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_resume(bigint) IS
    'let a task start that is on hold, and the runs after it: how many';

CREATE FUNCTION pg_catalog.pg_task_resume(key text, queue text DEFAULT 'default') RETURNS bigint
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
UPDATE {table} AS t SET hold = NULL
 WHERE t.queue = $2 AND t.key = $1 AND t.state IN ('PLAN', 'WORK') AND t.hold IS NOT NULL{condition}
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_resume(text, text) IS
    'let the task with this key start that is on hold, and the runs after it: how many';

-- The name of the role must still mean the role that the schedule is bound to.
CREATE FUNCTION pg_catalog.pg_task_run_now(id bigint, input jsonb DEFAULT NULL) RETURNS bigint
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO {into} (parent, dt, hold, input{once})
SELECT t.id, now(), NULL, coalesce($2, input){once}
  FROM {rows} AS t
 WHERE t.id = $1 AND t.state IN ('PLAN', 'WORK')
   AND (t.repeat IS NOT NULL OR t.cron IS NOT NULL) AND {own}
   AND to_regrole(quote_ident(t.role)) = (t.role_id & 4294967295)::oid
 LIMIT 1
RETURNING id
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_run_now(bigint, jsonb) IS
    'run a schedule once more, now: the id of that task; NULL if there is none';

CREATE FUNCTION pg_catalog.pg_task_run_now(key text, input jsonb DEFAULT NULL,
                                           queue text DEFAULT 'default') RETURNS bigint
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO {into} (parent, dt, hold, input{once})
SELECT t.id, now(), NULL, coalesce($2, input){once}
  FROM {rows} AS t
 WHERE t.queue = $3 AND t.key = $1 AND t.state IN ('PLAN', 'WORK')
   AND (t.repeat IS NOT NULL OR t.cron IS NOT NULL) AND {own}
   AND to_regrole(quote_ident(t.role)) = (t.role_id & 4294967295)::oid
 LIMIT 1
RETURNING id
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_run_now(text, jsonb, text) IS
    'run the schedule with this key once more, now: the id of that task; NULL if there is none';

CREATE FUNCTION pg_catalog.pg_task_next(cron text, after timestamptz DEFAULT now(),
                                        timezone text DEFAULT current_setting('TimeZone'))
    RETURNS timestamptz
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_next_cron';

COMMENT ON FUNCTION pg_catalog.pg_task_next(text, timestamptz, text) IS
    'the first moment later than this one that a cron expression names';

CREATE FUNCTION pg_catalog.pg_task_schedule(cron text, after timestamptz, count integer,
                                            timezone text DEFAULT current_setting('TimeZone'))
    RETURNS SETOF timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
WITH RECURSIVE t (moment) AS (
SELECT pg_task_next(cron, after, timezone)
 UNION ALL
SELECT pg_task_next(cron, moment, timezone) FROM t WHERE moment IS NOT NULL)
SELECT moment FROM t WHERE moment IS NOT NULL LIMIT count;
END;

COMMENT ON FUNCTION pg_catalog.pg_task_schedule(text, timestamptz, integer, text) IS
    'the first moments later than this one that a cron expression names';

CREATE FUNCTION pg_catalog.pg_task_schedule(repeat interval, after timestamptz, count integer,
                                            timezone text DEFAULT current_setting('TimeZone'))
    RETURNS SETOF timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
WITH RECURSIVE t (moment) AS (
SELECT pg_task_next(after, repeat, true, after, timezone)
 UNION ALL
SELECT pg_task_next(after, repeat, true, moment, timezone) FROM t
 WHERE moment < '294000-01-01 00:00+00')
SELECT moment FROM t WHERE moment < '294000-01-01 00:00+00' LIMIT count;
END;

COMMENT ON FUNCTION pg_catalog.pg_task_schedule(interval, timestamptz, integer, text) IS
    'the first moments at which a task that was planned for this one repeats';

CREATE FUNCTION pg_catalog.pg_task_time() RETURNS timestamptz
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_time';

COMMENT ON FUNCTION pg_catalog.pg_task_time() IS
    'the time for which the task was planned that calls this';

CREATE FUNCTION pg_catalog.pg_task_timed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_timed';

COMMENT ON FUNCTION pg_catalog.pg_task_timed() IS
    'trigger on a task table: writes the times of a row that is stopped or planned again';

CREATE FUNCTION pg_catalog.pg_task_queue_changed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_queue_changed';

COMMENT ON FUNCTION pg_catalog.pg_task_queue_changed() IS
    'trigger on a queue table: checks the row, and tells the scheduler when a commit has changed it';

CREATE FUNCTION pg_catalog.pg_task_queue_own(queue text) RETURNS boolean
    LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'pg_task_queue_own';

COMMENT ON FUNCTION pg_catalog.pg_task_queue_own(text) IS
    'row security of a queue table: has the current user tasks in a queue that this row is for';

CREATE FUNCTION pg_catalog.pg_task_retry(id bigint) RETURNS boolean
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_retry';

COMMENT ON FUNCTION pg_catalog.pg_task_retry(bigint) IS
    'run a task again that has failed, was given up or was stopped; false if there is none';

CREATE FUNCTION pg_catalog.pg_task_retry_dependents(id bigint) RETURNS bigint
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_retry_dependents';

COMMENT ON FUNCTION pg_catalog.pg_task_retry_dependents(bigint) IS
    'run a task again, and those that are GONE because of it: how many';

CREATE FUNCTION pg_catalog.pg_task_retry(sqlstate text, since timestamptz,
                                         OUT retried bigint, OUT skipped bigint)
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_retry_all';

COMMENT ON FUNCTION pg_catalog.pg_task_retry(text, timestamptz) IS
    'run all tasks again that have failed with this code since then';

CREATE FUNCTION pg_catalog.pg_task_stop_flow(flow text) RETURNS bigint
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
WITH l AS MATERIALIZED (
SELECT t.id FROM {table} AS t
 WHERE t.flow = $1 AND t.state IN ('PLAN', 'WORK') AND t.id IS DISTINCT FROM pg_task_id(){condition}
 ORDER BY t.id FOR NO KEY UPDATE OF t)
UPDATE {table} AS t SET state = 'STOP' FROM l
 WHERE t.id = l.id AND t.state IN ('PLAN', 'WORK'){condition}
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_stop_flow(text) IS
    'stop the tasks of a flow that wait or run, but for the one that calls this: how many';

CREATE FUNCTION pg_catalog.pg_task_resume_flow(flow text) RETURNS bigint
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_resume_flow';

COMMENT ON FUNCTION pg_catalog.pg_task_resume_flow(text) IS
    'plan the tasks of a flow again that were stopped, and those that waited for them: how many';

CREATE FUNCTION pg_catalog.pg_task_input() RETURNS jsonb
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'pg_task_input';

COMMENT ON FUNCTION pg_catalog.pg_task_input() IS
    'the column "input" of the task that calls this: the arguments of its request';

CREATE FUNCTION pg_catalog.pg_task_id() RETURNS bigint
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_id';

COMMENT ON FUNCTION pg_catalog.pg_task_id() IS
    'the id of the task that calls this; NULL in a session';

CREATE FUNCTION pg_catalog.pg_task_flow() RETURNS text
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_flow';

COMMENT ON FUNCTION pg_catalog.pg_task_flow() IS
    'the workflow of the task that calls this: the setting pg_task.flow; NULL: none';

CREATE FUNCTION pg_catalog.pg_task_result(id bigint) RETURNS jsonb
    LANGUAGE pg_task_report STABLE STRICT PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN t.lease IS NOT NULL
                 OR coalesce(t.format = 'json', pg_task_returns_json(t.role, t.role_id))
            THEN t.response::jsonb ELSE to_jsonb(t.response) END
  FROM {rows} AS t WHERE t.id = $1 AND t.state = 'DONE' AND t.response IS NOT NULL LIMIT 1
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_result(bigint) IS
    'the response of a task that is DONE: a JSON document, or another text as a JSON string';

CREATE FUNCTION pg_catalog.pg_task_attempts(id bigint, OUT attempt integer, OUT start timestamptz,
        OUT stop timestamptz, OUT pid integer, OUT sqlstate text, OUT error text)
    RETURNS SETOF record
    LANGUAGE pg_task_report STABLE STRICT ROWS 3 SET search_path = pg_catalog, pg_temp AS $$
SELECT f.attempt, f.start, f.stop, f.pid, f.sqlstate, f.error
  FROM {rows} AS t CROSS JOIN jsonb_to_recordset(t.failures) AS f (attempt int4, start timestamptz,
       stop timestamptz, pid int4, sqlstate text, error text)
 WHERE t.id = $1 AND jsonb_typeof(t.failures) = 'array'
 ORDER BY f.attempt
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_attempts(bigint) IS
    'the last attempts of a task that have failed';

CREATE FUNCTION pg_catalog.pg_task_activity(OUT database name, OUT relid oid, OUT queue text,
        OUT id bigint, OUT role name, OUT pid integer, OUT attempt integer, OUT start timestamptz,
        OUT timeout interval, OUT done bigint, OUT total bigint, OUT message text)
    RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL SAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_task_activity';

COMMENT ON FUNCTION pg_catalog.pg_task_activity() IS
    'the tasks that run now on this server, and how far they have come';

CREATE FUNCTION pg_catalog.pg_task_progress(done bigint, total bigint DEFAULT NULL,
                                            message text DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'pg_task_progress';

COMMENT ON FUNCTION pg_catalog.pg_task_progress(bigint, bigint, text) IS
    'tell others how far the task has come that calls this, seen at once in pg_task_activity';

CREATE FUNCTION pg_catalog.pg_task_top(lines integer DEFAULT 10, OUT what text, OUT queue text,
        OUT id bigint, OUT role name, OUT at timestamptz, OUT age interval, OUT tasks bigint,
        OUT text text)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE STRICT ROWS 30 SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
-- This reads shared memory, one row by id for each task that runs, the first rows of 200 groups in
-- the index of waiting rows, by one descent for each, and the rows with the last ids.  So it takes
-- the same time however long the history is.
WITH RECURSIVE g (queue, max, priority, role, role_id, dt, id, request, error, failed, hold) AS (
(SELECT t.queue COLLATE "C", {t.max}, t.priority, t.role, t.role_id,
        t.dt, t.id, t.request, t.error, t.failed, t.hold
   FROM {rows} AS t
  WHERE t.state = 'PLAN' AND t.waits IS NULL
  ORDER BY t.queue COLLATE "C", {t.max}, t.priority, t.role, t.role_id,
           t.dt, t.id
  LIMIT 1)
 UNION ALL
 SELECT n.*
   FROM g CROSS JOIN LATERAL (
        SELECT t.queue COLLATE "C", {t.max}, t.priority, t.role,
               t.role_id, t.dt, t.id, t.request, t.error, t.failed, t.hold
          FROM {rows} AS t
         WHERE t.state = 'PLAN' AND t.waits IS NULL
           AND (t.queue COLLATE "C", {t.max}, t.priority, t.role,
                t.role_id) > (g.queue, g.max, g.priority, g.role, g.role_id)
         ORDER BY t.queue COLLATE "C", {t.max}, t.priority,
                  t.role, t.role_id, t.dt, t.id
         LIMIT 1) AS n
), groups AS MATERIALIZED (
SELECT g.*, dt < statement_timestamp() - interval '1 s' AND max <> 0 AS late FROM g LIMIT 200),
 runs AS (
SELECT 1 AS kind, 'runs', a.queue, a.id, a.role, a.start, NULL::bigint,
       concat_ws(': ', CASE WHEN a.total IS NULL THEN a.done::text
                            ELSE format('%s of %s', a.done, a.total) END, a.message,
                 left(regexp_replace(left(t.request, 200), '[[:space:]]+', ' ', 'g'), 60))
  FROM jsonb_to_recordset({activity}) AS a (queue text, id bigint, role name, start timestamptz,
                                            attempt int, done bigint, total bigint, message text)
  LEFT JOIN {rows} AS t ON t.id = a.id AND t.state = 'WORK' AND t.attempt = a.attempt
 ORDER BY a.start LIMIT $1),
 waiting AS (
SELECT * FROM (SELECT * FROM groups WHERE late ORDER BY dt LIMIT $1) AS late
 UNION ALL
 SELECT * FROM (SELECT * FROM groups WHERE NOT late ORDER BY dt LIMIT $1) AS later),
 waits AS (
SELECT CASE WHEN late THEN 2 ELSE 4 END, CASE WHEN late THEN 'late' ELSE 'waits' END, queue,
       id, role, dt,
       (SELECT count(*)
          FROM (SELECT FROM {rows} AS t
                 WHERE t.state = 'PLAN' AND t.waits IS NULL
                   AND t.queue COLLATE "C" = w.queue
                   AND {t.max} = w.max AND t.priority = w.priority
                   AND t.role = w.role AND t.role_id = w.role_id
                   AND (NOT w.late OR t.dt < statement_timestamp() - interval '1 s')
                 LIMIT 1000) AS c),
       concat(CASE WHEN hold IS NOT NULL THEN 'on hold: ' END,
              CASE WHEN failed > 0 THEN format('failed %s times: ', failed) END,
              left(regexp_replace(left(CASE WHEN failed > 0 THEN error ELSE request END, 200),
                                  '[[:space:]]+', ' ', 'g'), 60))
  FROM waiting AS w),
 failed AS (
SELECT 3, 'failed', t.queue, t.id, t.role, t.stop, NULL::bigint,
       concat_ws(' ', t.sqlstate,
                 left(regexp_replace(left(t.error, 200), '[[:space:]]+', ' ', 'g'), 60))
  FROM {rows} AS t
 WHERE t.id BETWEEN {recent} AND t.state = 'FAIL'
 ORDER BY t.stop DESC NULLS LAST, t.id DESC LIMIT $1),
 after AS (
SELECT 4, 'after', NULL, NULL::bigint, NULL, NULL::timestamptz, count(*), 'wait for other tasks'
  FROM (SELECT FROM {rows} AS t WHERE t.state = 'PLAN' AND t.waits IS NOT NULL LIMIT 1000) AS c
HAVING count(*) > 0)
 SELECT l.what, l.queue, l.id, l.role, l.at,
        CASE WHEN isfinite(l.at) THEN date_trunc('second', statement_timestamp() - l.at) END,
        l.tasks, l.text
   FROM (SELECT * FROM runs UNION ALL SELECT * FROM waits UNION ALL SELECT * FROM failed
          UNION ALL SELECT * FROM after
          UNION ALL SELECT 0, 'note', NULL, NULL, NULL, NULL, NULL, {service}
           WHERE {service} IS NOT NULL
          UNION ALL SELECT 5, 'note', NULL, NULL, NULL, NULL, NULL,
                'more than 200 groups wait: of others nothing is shown'
           WHERE (SELECT count(*) FROM groups) = 200)
     AS l (kind, what, queue, id, role, at, tasks, text)
  ORDER BY kind, CASE WHEN kind = 3 THEN - extract(epoch FROM at) ELSE extract(epoch FROM at)
           END, id
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_top(integer) IS
    'what runs, is late, failed and waits, for \watch';

CREATE FUNCTION pg_catalog.pg_task_again(at timestamptz DEFAULT now(),
                                         input jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_again';

COMMENT ON FUNCTION pg_catalog.pg_task_again(timestamptz, jsonb) IS
    'run the task that calls this again, when it is done: at this time, with this input';

CREATE FUNCTION pg_catalog.pg_task_facts(id bigint, attempt integer, start timestamptz, queue text,
        max integer, role name, role_id bigint, stop timestamptz, failed integer,
        backoff double precision, writer xid, delay bigint, request text,
        OUT away boolean, OUT pid integer, OUT begun boolean, OUT not_role text,
        OUT scheduler_pid integer, OUT code text, OUT mine boolean,
        OUT paused boolean, OUT rule_max integer, OUT rate integer, OUT per interval,
        OUT until timestamptz, OUT strict boolean, OUT full_total text, OUT again timestamptz,
        OUT running integer, OUT rate_next timestamptz, OUT pause_next timestamptz,
        OUT isolated boolean, OUT held boolean, OUT supervised boolean, OUT slots boolean,
        OUT crowded boolean, OUT serves boolean, OUT prepared boolean, OUT idle boolean,
        OUT place boolean, OUT of_role integer, OUT role_limit integer,
        OUT of_database integer, OUT database_limit integer, OUT busy integer,
        OUT executors integer, OUT bound_role text, OUT failing boolean, OUT taker text,
        OUT takers integer, OUT last_start timestamptz)
    LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'pg_task_facts';

COMMENT ON FUNCTION pg_catalog.pg_task_facts(bigint, integer, timestamptz, text, integer, name,
        bigint, timestamptz, integer, double precision, xid, bigint, text) IS
    'for pg_task_why: what may keep a task from running';

CREATE FUNCTION pg_catalog.pg_task_why(id bigint) RETURNS text
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
-- The first reason that applies.  In a partitioned table others may have the same id.
SELECT CASE
       WHEN t.state IN ('PLAN', 'WORK') AND f.pid IS NULL AND f.away THEN
           'it is held back, because its table comes from another database or server:'
           ' see pg_task_release'
       WHEN t.state = 'WORK' AND f.begun AND t.lease IS NOT NULL THEN
           format('it was taken at %s by the session with pid %s', t.start, f.pid)
       WHEN t.state = 'WORK' AND f.begun THEN
           concat('it runs since ', t.start, ' in pid ', f.pid,
               (SELECT ', and waits for a lock of ' || CASE b.pid WHEN 0 THEN
                       'a prepared transaction' ELSE format('pid %s, %s', b.pid,
                           coalesce('task ' || a.id, 'role ' || s.usesysid::regrole)) END
                  FROM (SELECT (pg_blocking_pids(f.pid))[1] AS pid) AS b
                  LEFT JOIN jsonb_to_recordset({activity}) AS a (pid int, id bigint) USING (pid)
                  LEFT JOIN LATERAL pg_stat_get_activity(b.pid) AS s ON true
                 WHERE b.pid IS NOT NULL LIMIT 1))
       WHEN t.state = 'WORK' AND f.pid IS NOT NULL THEN
           format('it runs next in pid %s, which runs another task', f.pid)
       WHEN t.state = 'WORK' AND pg_is_in_recovery() THEN
           format('it runs since %s on the primary', t.start)
       WHEN t.state = 'WORK' THEN
           'its run was interrupted; ' || coalesce(q.error, {service}, 'it is planned again at once')
       WHEN t.state <> 'PLAN' AND f.pid IS NOT NULL THEN
           format('%s, but its run in pid %s has not ended yet', t.state, f.pid)
       WHEN t.state <> 'PLAN' THEN format('it has ended: %s at %s%s', t.state, t.stop, t.ended)
       WHEN {service} IS NOT NULL THEN {service}
       WHEN t.waits IS NOT NULL THEN
           -- Each row watches one task, so a cycle is found by one path.
           concat('it waits for task ', t.waits,
               (WITH RECURSIVE c (waits, ids) AS (
                SELECT t.waits, ARRAY[t.id]
                 UNION ALL
                SELECT r.waits, c.ids || r.id
                  FROM c JOIN {rows} AS r ON r.id = c.waits
                 WHERE r.state = 'PLAN' AND r.waits IS NOT NULL AND c.waits <> ALL (c.ids)
                   AND cardinality(c.ids) < 1000)
                SELECT format(', and never ends: each of these waits for the next: %s',
                       array_to_string((c.ids[array_position(c.ids, c.waits):])[:20], ', '))
                  FROM c WHERE c.waits = ANY (c.ids) LIMIT 1))
       WHEN t.dt = 'infinity' THEN 'planned for infinity: not before it is planned anew'
       WHEN t.dt > clock_timestamp() THEN
           format('planned for %s%s%s', t.dt, ', and ' || coalesce(q.never, f.not_role), t.ended)
       ELSE coalesce(f.not_role,
           CASE WHEN NOT f.slots AND f.taker IS NULL THEN
                    'too few worker slots for pg_task to run tasks: increase max_worker_processes'
                WHEN f.serves AND (f.prepared OR f.failing) THEN NULL
                WHEN f.held THEN 'a command needs this database for itself'
                WHEN NOT f.supervised THEN 'the supervisor of pg_task does not run'
                WHEN f.crowded THEN 'no scheduler serves this database at the moment:'
                    ' databases take turns, see max_worker_processes and pg_task.max_schedulers'
                WHEN f.serves THEN
                    'the scheduler prepares the task table; if that lasts, the log says why'
                ELSE 'no scheduler serves this database yet: one is about to start' END,
           'code of the owner of the table may run with every write: ' || f.code
           || '; drop it, or set pg_task.owner_code for the database',
           CASE WHEN f.mine THEN
               'this transaction has written it, and has not committed yet' END,
           -- if several have locked the row, nothing is known
           (SELECT format('the %s is locked by %s',
                          CASE l.locktype WHEN 'relation' THEN 'table' ELSE 'row' END,
                          coalesce('pid ' || l.pid, 'a prepared transaction'))
              FROM pg_locks AS l
             WHERE l.granted AND l.pid IS DISTINCT FROM f.scheduler_pid
               AND (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
                    AND l.transactionid = t.locker
                    OR l.locktype = 'relation' AND l.relation = t.relid AND l.database = (
                       SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                    AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))
             ORDER BY l.locktype DESC LIMIT 1),
           q.never,
           nullif(concat_ws('; ', coalesce(
             CASE WHEN f.running >= least(CASE WHEN t.max < 0 THEN 1 ELSE t.max END, f.rule_max) THEN
                 format('its queue is full: %s of %s run', f.running,
                        least(CASE WHEN t.max < 0 THEN 1 ELSE t.max END, f.rule_max)) END,
             f.full_total,
             CASE WHEN f.strict THEN coalesce('its queue is strict: task ' || nullif((
                    SELECT r.id FROM {rows} AS r
                     WHERE r.state = 'PLAN' AND r.waits IS NULL AND r.queue COLLATE "C" = t.queue
                       AND r.dt <= clock_timestamp() AND {r.max} <> 0
                     ORDER BY {r.max} DESC, r.priority, r.dt, r.id LIMIT 1), t.id)
                    || ' is first',
                 CASE WHEN f.again > clock_timestamp() THEN
                     format('its queue is strict: it is tried again at %s%s', f.again, t.ended)
                 END) END,
             q.rate || '; its queue may start its next task at ' || f.rate_next,
             q.pause || '; it may start at ' || f.pause_next,
             CASE WHEN t.crashed > 0 AND f.isolated THEN
                 'it may have crashed the server, and runs isolated: another such task runs now'
                  WHEN t.crashed > 0 AND q.executors IS NOT NULL THEN
                 'it may have crashed the server, and waits for an executor of its own' END,
             q.executors, q.error, q.rate, q.pause), (
             -- Of each group of its queue, by the index of waiting rows, as in pg_task_top.
             WITH RECURSIVE g (max, priority, role, role_id) AS (
             (SELECT {r.max}, r.priority, r.role, r.role_id
                FROM {rows} AS r
               WHERE r.state = 'PLAN' AND r.waits IS NULL AND r.queue COLLATE "C" = t.queue
               ORDER BY {r.max}, r.priority, r.role, r.role_id LIMIT 1)
              UNION ALL
             SELECT n.*
               FROM g CROSS JOIN LATERAL (
                    SELECT {r.max}, r.priority, r.role, r.role_id
                      FROM {rows} AS r
                     WHERE r.state = 'PLAN' AND r.waits IS NULL AND r.queue COLLATE "C" = t.queue
                       AND ({r.max}, r.priority, r.role, r.role_id)
                           > (g.max, g.priority, g.role, g.role_id)
                     ORDER BY {r.max}, r.priority, r.role, r.role_id
                     LIMIT 1) AS n)
             SELECT CASE WHEN count(*) = 1 THEN '1 task of its queue is before it'
                         ELSE CASE WHEN count(*) > 100000 THEN 'more than 100,000'
                                   ELSE to_char(count(*), 'FM999,999') END
                              || ' tasks of its queue are before it' END
               FROM (SELECT FROM (SELECT * FROM g LIMIT 200) AS g CROSS JOIN LATERAL (
                            SELECT FROM {rows} AS r
                             WHERE r.state = 'PLAN' AND r.waits IS NULL
                               AND r.queue COLLATE "C" = t.queue
                               AND {r.max} = g.max
                               AND r.priority = g.priority AND r.role = g.role
                               AND r.role_id = g.role_id AND r.dt <= statement_timestamp()
                               AND (r.dt, r.id) < (CASE
                                   WHEN g.max = {t.max}
                                        AND g.priority = t.priority THEN t.dt
                                   ELSE 'infinity' END, t.id)) AS r
                      WHERE g.max <> 0 AND (- g.max::int8, g.priority)
                            <= (- {t.max}::int8, t.priority)
                      LIMIT 100001) AS c
             HAVING count(*) > 0)), ''),
           'nothing keeps it: it is about to start') END
  FROM (SELECT r.id, r.state, r.dt, r.start, r.stop, r.queue, r.max, r.priority, r.role, r.role_id,
               r.attempt, r.failed, r.crashed, r.lease, r.hold, r.delay, r.backoff, r.cron, r.waits, r.tableoid AS relid,
               left(r.request, 1025) AS request, r.xmin AS writer, r.xmax AS locker,
               coalesce(', after: ' || r.error || ' (' || coalesce(r.sqlstate, '') || ')', '')
                   AS ended
          FROM {rows} AS r WHERE r.id = $1
         ORDER BY r.state IN ('PLAN', 'WORK') DESC LIMIT 1) AS t
 CROSS JOIN LATERAL pg_task_facts(t.id, t.attempt, coalesce(t.start, '-infinity'), t.queue,
           {t.max}, t.role, t.role_id, coalesce(t.stop, '-infinity'),
           coalesce(t.failed, 0), coalesce(t.backoff, -1), t.writer,
           least(coalesce(extract(epoch FROM t.delay) * 1000000, -1), 3155760000000000)::int8,
           coalesce(t.request, '')) AS f
 CROSS JOIN LATERAL (
       SELECT CASE WHEN t.hold IS NOT NULL THEN
                       CASE WHEN t.hold IN ('', 'on hold') THEN 'it is on hold'
                            ELSE 'it is on hold: ' || left(t.hold, 200) END
                   WHEN t.max = 0 THEN 'its max is 0'
                   WHEN f.paused THEN 'its queue is paused'
                   WHEN f.rule_max = 0 THEN 'the max of its queue is 0'
                   WHEN f.rate = 0 THEN 'the rate of its queue is 0'
                   WHEN f.until > greatest(t.dt, clock_timestamp()) THEN
                       format('its queue starts no task until %s', f.until) END AS never,
              CASE WHEN f.rate > 0 THEN format('the rate of its queue: at most %s starts in %s',
                                               f.rate, f.per) END AS rate,
              CASE WHEN t.max < 0 THEN format('the pause of its queue: %s between two starts',
                  interval '1 ms' * - t.max::float8) END AS pause,
              CASE WHEN f.taker = '' THEN
                       'nobody may take it: the taker of its queue is a role that does not exist'
                   WHEN f.takers = 0 THEN
                       format('no session waits that may take it: members of role "%s" may, by'
                              ' pg_task_take%s', f.taker,
                              '; the last one of its queue was started at ' || f.last_start)
                   WHEN f.idle OR f.takers > 0 THEN NULL
                   WHEN f.of_role >= f.role_limit THEN
                       format('role "%s" has %s of %s executors, all busy', f.bound_role, f.of_role,
                              f.role_limit)
                   WHEN f.of_database >= f.database_limit THEN
                       format('this database has %s of %s executors, and none is free',
                              f.of_database, f.database_limit)
                   WHEN f.busy >= f.executors THEN
                       format('no executor is free: %s of %s busy', f.busy, f.executors)
                   WHEN NOT f.place THEN 'no executor can be started: no worker slot is free,'
                       ' see max_worker_processes'
                   WHEN NOT f.failing THEN format('an executor for role "%s" is about to start; if that lasts, the'
                               ' log says why', f.bound_role) END AS executors,
              CASE WHEN f.failing THEN 'the scheduler reports an error: ' || coalesce({error},
                  'see the log') END AS error) AS q
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_why(bigint) IS
    'why does this task not run? NULL if there is none';

CREATE FUNCTION pg_catalog.pg_stat_task_scheduler(
        OUT datname name, OUT relid oid, OUT pid integer, OUT state text, OUT begun timestamptz,
        OUT iterations bigint, OUT claimed bigint, OUT missed bigint, OUT errors bigint,
        OUT held integer, OUT oldest_due timestamptz, OUT next_due timestamptz,
        OUT executors integer, OUT busy integer, OUT wanted integer, OUT wants_since timestamptz,
        OUT error text, OUT error_at timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_stat_task_scheduler';

COMMENT ON FUNCTION pg_catalog.pg_stat_task_scheduler() IS
    'what the scheduler of each database does, and what it waits for';

CREATE FUNCTION pg_catalog.pg_task_queue_facts(queues text[],
        OUT queue text, OUT paused boolean, OUT takers integer)
    RETURNS SETOF record
    LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'pg_task_queue_facts';

COMMENT ON FUNCTION pg_catalog.pg_task_queue_facts(text[]) IS
    'for reports: what the queue table says of these queues, and how many sessions wait for tasks';

CREATE FUNCTION pg_catalog.pg_task_rule(queue text, OUT name text, OUT value text, OUT source text)
    RETURNS SETOF record
    LANGUAGE c VOLATILE STRICT ROWS 5 AS 'MODULE_PATHNAME', 'pg_task_rule';

COMMENT ON FUNCTION pg_catalog.pg_task_rule(text) IS
    'what the queue table says for a queue, and in which row';

CREATE FUNCTION pg_catalog.pg_task_queues(
        OUT queue text, OUT waits bigint, OUT due bigint, OUT runs bigint, OUT failed bigint,
        OUT oldest_due timestamptz, OUT paused boolean, OUT takers integer)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
-- What waits and runs is found by the indexes of waiting and running rows, so it takes as long as
-- there are such rows, however long the history.  No index has the failures: they are those among
-- the rows with the last ids.
WITH q AS MATERIALIZED (
SELECT u.queue, sum(u.waits)::int8 AS waits, sum(u.due)::int8 AS due, sum(u.runs)::int8 AS runs,
       sum(u.failed)::int8 AS failed, min(u.oldest) AS oldest
  FROM (SELECT t.queue COLLATE "C" AS queue, count(*) AS waits, count(t.due) AS due, 0 AS runs,
               0 AS failed, min(t.due) AS oldest
          FROM (SELECT r.queue, CASE WHEN r.dt <= clock_timestamp()
                                      AND {r.max} <> 0 THEN r.dt END AS due
                  FROM {figures} AS r WHERE r.state = 'PLAN' AND r.waits IS NULL) AS t GROUP BY 1
         UNION ALL
        SELECT t.queue COLLATE "C", count(*), 0, 0, 0, NULL
          FROM {figures} AS t WHERE t.state = 'PLAN' AND t.waits IS NOT NULL GROUP BY 1
         UNION ALL
        SELECT t.queue COLLATE "C", 0, 0, count(*), 0, NULL
          FROM {figures} AS t WHERE t.state = 'WORK' GROUP BY 1
         UNION ALL
        SELECT t.queue COLLATE "C", 0, 0, 0, count(*), NULL
          FROM (SELECT r.queue, r.state, r.sqlstate FROM {figures} AS r WHERE r.id BETWEEN {recent}
                 ORDER BY r.id DESC LIMIT 1000) AS t
         WHERE t.state = 'FAIL' OR t.state = 'GONE' AND t.sqlstate IS NOT NULL GROUP BY 1) AS u
 GROUP BY u.queue)
SELECT q.queue, q.waits, q.due, q.runs, q.failed, CASE WHEN NOT f.paused THEN q.oldest END,
       f.paused, f.takers
  FROM q JOIN pg_task_queue_facts(ARRAY(SELECT n.queue FROM q AS n)) AS f
       ON f.queue COLLATE "C" = q.queue
 ORDER BY 6, 7 DESC, q.queue
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_queues() IS
    'what waits, is due, runs and has failed lately, per queue';

CREATE FUNCTION pg_catalog.pg_task_stats(since interval DEFAULT '1 hour',
        OUT queue text, OUT ended bigint, OUT failed bigint, OUT gone bigint,
        OUT wait_p50 interval, OUT wait_p95 interval, OUT run_p50 interval, OUT run_p95 interval,
        OUT per_minute double precision)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
-- A task that was retried has waited since the time of its last retry.  Who may UPDATE a row may
-- write infinity into it, and no version before 17 subtracts that.
SELECT t.queue, count(*), count(*) FILTER (WHERE t.state = 'FAIL'),
       count(*) FILTER (WHERE t.state = 'GONE'),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY t.waited),
       percentile_cont(0.95) WITHIN GROUP (ORDER BY t.waited),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY t.ran),
       percentile_cont(0.95) WITHIN GROUP (ORDER BY t.ran),
       (count(*) / (extract(epoch FROM $1) / 60))::float8
  FROM (SELECT s.queue COLLATE "C" AS queue, s.state,
               CASE WHEN s.state <> 'GONE' AND isfinite(s.start) AND isfinite(s.dt)
                    THEN greatest(s.start - s.dt, '0') END AS waited,
               CASE WHEN s.state <> 'GONE' AND isfinite(s.start) AND isfinite(s.stop)
                    THEN s.stop - s.start END AS ran
          FROM {figures} AS s
         WHERE s.state IN ('DONE', 'FAIL', 'GONE') AND s.stop >= clock_timestamp() - $1) AS t
 GROUP BY t.queue ORDER BY t.queue
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_stats(interval) IS
    'tasks that have ended within this time, per queue: how many, how long they waited and ran';

CREATE FUNCTION pg_catalog.pg_task_failures(
        since interval DEFAULT '1 day', similar boolean DEFAULT false,
        OUT queue text, OUT sqlstate text, OUT error text, OUT count bigint,
        OUT first timestamptz, OUT last timestamptz, OUT ids bigint[])
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
-- What is GONE for another task is a consequence: last, and whatever the ids in its error.
SELECT t.queue COLLATE "C", t.sqlstate, CASE WHEN $2 OR t.sqlstate = 'TK005' THEN
               regexp_replace(regexp_replace(left(t.error, 1000), '"[^"]*"', '"..."', 'g'),
                              '[0-9]+', 'N', 'g') ELSE t.error END,
       count(*), min(t.stop), max(t.stop),
       (array_agg(t.id ORDER BY t.stop DESC, t.id DESC))[1:5]
  FROM {rows} AS t
 WHERE (t.state = 'FAIL' OR t.state = 'GONE' AND t.sqlstate IS NOT NULL)
   AND t.stop >= clock_timestamp() - $1
 GROUP BY 1, 2, 3 ORDER BY t.sqlstate IS NOT DISTINCT FROM 'TK005', 4 DESC, 6 DESC
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_failures(interval, boolean) IS
    'tasks that have failed or were given up within this time, grouped by their errors';

CREATE FUNCTION pg_catalog.pg_task_recent(rows integer,
        OUT id bigint, OUT queue text, OUT role name, OUT state text, OUT pid integer,
        OUT dt timestamptz, OUT start timestamptz, OUT stop timestamptz, OUT sqlstate text,
        OUT error text)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
SELECT t.id, t.queue, t.role, t.state, t.pid, t.dt, t.start, t.stop, t.sqlstate, t.error
  FROM {rows} AS t ORDER BY t.id DESC LIMIT $1
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_recent(integer) IS
    'the outcomes of the tasks with so many of the highest ids';

CREATE FUNCTION pg_catalog.pg_task_repeating(
        OUT id bigint, OUT queue text, OUT key text, OUT role name, OUT rule text, OUT state text,
        OUT dt timestamptz, OUT paused boolean, OUT hold text, OUT late interval, OUT last_id bigint,
        OUT last_state text, OUT last_start timestamptz, OUT last_run interval,
        OUT last_error text, OUT request text)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
-- Of each chain one row waits or runs.  Its "parent" is the run before, if that names it.  While
-- its role may not run it, "dt" is moved, and "planned" stays.
WITH w AS MATERIALIZED (
SELECT t.id, t.queue, t.key, t.role, coalesce(t.cron, t.repeat::text) AS rule, t.state, t.dt,
       {t.max} = 0 AS closed, CASE WHEN {readable} THEN t.hold END AS hold, t.parent, CASE WHEN t.state = 'PLAN' AND t.waits IS NULL THEN
               CASE WHEN t.attempt = 0 THEN coalesce(t.planned, t.dt) ELSE t.dt END END AS due,
       CASE WHEN {readable} THEN t.request END AS request
  FROM (SELECT * FROM {figures} AS a WHERE a.state = 'PLAN' AND a.waits IS NULL
         UNION ALL
        SELECT * FROM {figures} AS a WHERE a.state = 'PLAN' AND a.waits IS NOT NULL
         UNION ALL
        SELECT * FROM {figures} AS a WHERE a.state = 'WORK') AS t
 WHERE t.repeat IS NOT NULL OR t.cron IS NOT NULL)
SELECT w.id, w.queue, w.key, w.role, w.rule, w.state, w.dt, s.paused, w.hold,
       CASE WHEN isfinite(w.due) AND w.due < s.now AND NOT s.paused THEN s.now - w.due END,
       l.id, l.state, l.start, l.stop - l.start, l.error, w.request
  FROM w JOIN pg_task_queue_facts(ARRAY(SELECT DISTINCT n.queue FROM w AS n)) AS f
       ON f.queue COLLATE "C" = w.queue
 CROSS JOIN LATERAL (SELECT clock_timestamp() AS now,
                            f.paused OR w.closed AS paused) AS s
  LEFT JOIN LATERAL (SELECT t.id, t.state, t.start, t.stop,
                            CASE WHEN {readable} THEN t.error END AS error
                       FROM {figures} AS t
                      WHERE t.id = w.parent AND t.next = w.id LIMIT 1) AS l ON true
 ORDER BY w.dt, w.id
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_repeating() IS
    'the tasks that repeat: when each runs next, and how it has ended last';

CREATE FUNCTION pg_catalog.pg_task_following(cron text, repeat interval, drift boolean,
        anchor timestamptz, dt timestamptz, since timestamptz, timezone text, role name,
        role_id bigint, OUT next timestamptz, OUT next_anchor timestamptz, OUT local timestamp,
        OUT zone text)
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'pg_task_following';

COMMENT ON FUNCTION pg_catalog.pg_task_following(text, interval, boolean, timestamptz, timestamptz,
        timestamptz, text, name, bigint) IS
    'for reports: the first run of a schedule after this one, and when that is in which zone';

CREATE FUNCTION pg_catalog.pg_task_upcoming(since timestamptz DEFAULT now(),
        until timestamptz DEFAULT now() + interval '1 day', lines integer DEFAULT 100,
        OUT dt timestamptz, OUT local timestamp, OUT zone text, OUT id bigint, OUT queue text,
        OUT key text, OUT role name, OUT rule text, OUT hold text, OUT request text)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
-- Of each chain one row waits or runs: its own time, then one after the other.  The first step leads
-- to "since" at once, unless up to 3,000 runs are to be counted, or days from run to run.  What is
-- counted from the ends of runs that take no time is counted from the first of them.  On hold a
-- schedule has no other run than the one that waits.
WITH RECURSIVE w AS MATERIALIZED (
SELECT t.id, t.queue, t.key, t.role, t.role_id, t.cron, t.repeat, t.timezone,
       t.drift OR t.cron IS NOT NULL OR t.even AS jumps,
       CASE WHEN t.hold IS NULL THEN least(t.repeat_until, $2, CASE WHEN t.even
                  THEN coalesce(t.planned, t.dt) + (t.runs_left - 1) * t.repeat END)
            ELSE '-infinity' END AS until,
       CASE WHEN t.runs_left <= 3000 AND NOT t.even THEN t.runs_left END AS runs,
       coalesce(t.planned, t.dt) AS dt,
       coalesce(CASE WHEN t.drift THEN t.anchor END, t.planned, t.dt) AS anchor,
       t.state = 'PLAN' AS waits, CASE WHEN {readable} THEN t.hold END AS hold,
       CASE WHEN {readable} THEN t.request END AS request
  FROM (SELECT u.*, coalesce(date_trunc('day', u.repeat) = '0'
                    AND extract(epoch FROM u.repeat) * coalesce(u.runs_left, 1) < 1e10, false) AS even
          FROM (SELECT * FROM {figures} AS a WHERE a.state = 'PLAN' AND a.waits IS NULL
                 UNION ALL
                SELECT * FROM {figures} AS a WHERE a.state = 'PLAN' AND a.waits IS NOT NULL
                 UNION ALL
                SELECT * FROM {figures} AS a WHERE a.state = 'WORK') AS u
         WHERE (u.repeat IS NOT NULL OR u.cron IS NOT NULL) AND u.next IS NULL
           AND isfinite(u.dt) AND u.hold IS DISTINCT FROM 'until the server starts') AS t),
m (id, role, cron, repeat, jumps, until, runs, anchor, dt, local, zone, n, shown) AS (
SELECT w.id, w.role, w.cron, w.repeat, w.jumps, w.until, w.runs, w.anchor, w.dt, f.local, f.zone,
       1, (w.waits AND w.dt >= $1)::int4
  FROM w CROSS JOIN LATERAL pg_task_following(NULL, NULL, NULL, NULL, w.dt, NULL, w.timezone,
       w.role, w.role_id) AS f
 UNION ALL
SELECT m.id, m.role, m.cron, m.repeat, m.jumps, m.until, m.runs, f.next_anchor, f.next, f.local,
       m.zone, m.n + 1, m.shown + (f.next >= $1)::int4
  FROM m CROSS JOIN LATERAL pg_task_following(m.cron, m.repeat, m.jumps, m.anchor, m.dt,
       CASE WHEN m.runs IS NULL AND m.jumps THEN $1 END, m.zone, NULL, NULL) AS f
 WHERE f.next <= m.until AND m.shown < $3 AND (m.runs IS NULL OR m.n < m.runs))
SELECT m.dt, m.local, m.zone, w.id, w.queue, w.key, w.role, coalesce(w.cron, w.repeat::text),
       w.hold, w.request
  FROM m JOIN w ON w.id = m.id AND w.role = m.role
 WHERE m.dt BETWEEN $1 AND $2 AND (m.n > 1 OR w.waits)
 ORDER BY m.dt, w.id
 LIMIT $3
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_upcoming(timestamptz, timestamptz, integer) IS
    'the runs of all schedules between two times';

CREATE FUNCTION pg_catalog.pg_task_status(
        OUT version text, OUT task_table text, OUT databases integer, OUT schedulers integer,
        OUT executors integer, OUT busy integer, OUT max_executors integer, OUT state text,
        OUT oldest_due timestamptz, OUT rows bigint, OUT size bigint, OUT oldest_end timestamptz)
    RETURNS SETOF record ROWS 1
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
-- The age of the history is that of the first row of those with the lowest ids.  Row security would
-- make a role pass over the rows of all others.
SELECT (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pg_task'),
       '{relid}'::regclass::text, s.databases, s.schedulers, s.executors, s.busy,
       current_setting('pg_task.max_executors')::int4, coalesce(s.state, {service}),
       s.oldest_due, h.rows, h.size,
       CASE WHEN {sees_all} THEN
            (SELECT min(f.stop)
               FROM (SELECT t.stop FROM {figures} AS t ORDER BY t.id LIMIT 1000) AS f) END
  FROM (SELECT count(*) FILTER (WHERE d.state <> 'not served')::int4 AS databases,
               count(d.pid)::int4 AS schedulers,
               coalesce(sum(d.executors), 0)::int4 AS executors,
               coalesce(sum(d.busy), 0)::int4 AS busy,
               max(d.state) FILTER (WHERE d.datname = current_database()) AS state,
               max(d.oldest_due) FILTER (WHERE d.datname = current_database()) AS oldest_due
          FROM pg_stat_task_scheduler() AS d) AS s,
       (SELECT sum(greatest(c.reltuples, 0))::int8 AS rows,
               sum(pg_total_relation_size(c.oid))::int8 AS size
          FROM pg_class AS c
         WHERE c.relkind = 'r'
           AND (c.oid = {relid} OR c.oid IN (SELECT p.relid
                                               FROM pg_partition_tree({relid}) AS p))) AS h
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_status() IS
    'pg_task on this server, and the task table of this database, in one row';

CREATE FUNCTION pg_catalog.pg_task_side_fault(which text) RETURNS text
    LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'pg_task_side_fault';

COMMENT ON FUNCTION pg_catalog.pg_task_side_fault(text) IS
    'for reports: why the queue or the rate table cannot be used; NULL: it can';

CREATE FUNCTION pg_catalog.pg_task_table_health(
        OUT level text, OUT queue text, OUT problem text, OUT hint text)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE SET search_path = pg_catalog, pg_temp AS $$
-- What is GONE without a code was not needed: it has not failed.
WITH ended AS MATERIALIZED (
SELECT t.queue COLLATE "C" AS queue, t.id, t.state, t.stop,
       t.state = 'FAIL' OR t.state = 'GONE' AND t.sqlstate IS NOT NULL AS failed
  FROM {figures} AS t WHERE t.id BETWEEN {recent} AND t.state IN ('DONE', 'FAIL', 'GONE')),
waiting AS MATERIALIZED (
SELECT t.queue COLLATE "C" AS queue, count(*) AS due, min(t.dt) AS oldest
  FROM {figures} AS t
 WHERE t.state = 'PLAN' AND t.waits IS NULL AND t.dt < clock_timestamp() - interval '1 day'
   AND {t.max} <> 0
 GROUP BY 1),
held AS MATERIALIZED (
SELECT t.queue COLLATE "C" AS queue, t.id, t.key, t.streak, h.failed
  FROM {figures} AS t CROSS JOIN LATERAL (SELECT
       t.hold = format('failed %s times in a row', t.streak)
           AND (t.repeat IS NOT NULL OR t.cron IS NOT NULL) AS failed) AS h
 WHERE t.state = 'PLAN' AND t.waits IS NULL AND t.hold IS NOT NULL
   AND (h.failed OR t.hold = 'copied from another database: see pg_task_release'))
SELECT 'warning', NULL, format('the %s table cannot be used. %s', s.which, s.fault),
       'docs/queue-table.md says what it must be; where there is none, pg_task makes it'
  FROM (SELECT w.which, pg_task_side_fault(w.which) AS fault
          FROM unnest('{queue,rate}'::text[]) AS w (which)) AS s
 WHERE s.fault IS NOT NULL
 UNION ALL
(SELECT 'warning', f.queue,
        format('failed within an hour: %s of the %s tasks in the table', f.failed, f.ended),
        'SELECT * FROM pg_task_failures(''1 hour'')'
   FROM (SELECT e.queue, count(*) AS ended, count(*) FILTER (WHERE e.failed) AS failed
           FROM ended AS e WHERE e.stop > clock_timestamp() - interval '1 hour' GROUP BY 1) AS f
  WHERE f.failed >= 5 AND f.failed >= f.ended * 0.1
  ORDER BY f.failed DESC LIMIT 20)
 UNION ALL
(SELECT 'warning', f.queue, format('nobody was told of a failure: task %s is %s', f.id, f.state),
        format('SELECT sqlstate, error, request FROM %s WHERE id = %s', {relid}::regclass, f.id)
   FROM (SELECT e.*, max(e.id) OVER () AS last FROM ended AS e WHERE e.queue = 'on_failure') AS f
  WHERE f.failed AND (f.id = f.last OR f.stop > clock_timestamp() - interval '1 hour')
  ORDER BY f.id DESC LIMIT 1)
 UNION ALL
SELECT 'warning', NULL, 'pg_task.on_failure of the database has no effect',
       CASE WHEN o.may THEN format('ALTER ROLE %I LOGIN', o.owner)
            ELSE 'the owner of the database has not the rights of the owner of the task table:'
                 ' SELECT pg_task_change_owner(' || quote_literal(o.datowner) || ')' END
  FROM (SELECT r.rolname AS owner, pg_get_userbyid(d.datdba) AS datowner,
               pg_has_role(d.datdba, r.oid, 'USAGE') AS may,
               r.rolcanlogin OR current_setting('server_version_num')::int4 >= 170000 AS can,
               coalesce((SELECT split_part(n.setting, '=', 2)
                           FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS n (setting)
                          WHERE s.setrole = 0 AND s.setdatabase IN (0, d.oid)
                            AND n.setting LIKE 'pg_task.on_failure=%'
                          ORDER BY s.setdatabase DESC LIMIT 1),
                        (SELECT s.setting FROM pg_settings AS s
                          WHERE s.name = 'pg_task.on_failure' AND s.source = 'configuration file'),
                        '') AS says
          FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner
          JOIN pg_database AS d ON d.datname = current_database()
         WHERE c.oid = {relid}) AS o
 WHERE o.says <> '' AND NOT (o.may AND o.can)
 UNION ALL
(SELECT 'warning', e.queue, format('%s does not repeat any more: task %s is %s',
              coalesce('schedule ' || to_json(e.key), 'a task'), e.id, e.state),
        format('UPDATE %s SET state = ''PLAN'' WHERE id = %s -- or DELETE it, if it was to end',
               {relid}::regclass, e.id)
   FROM {figures} AS e
  WHERE (e.repeat IS NOT NULL OR e.cron IS NOT NULL) AND e.next IS NULL
    AND e.state IN ('FAIL', 'GONE') AND (e.state = 'FAIL' OR e.sqlstate IS NOT NULL)
    AND coalesce(e.runs_left > 1, true)
    AND (e.repeat_until IS NULL
         OR (SELECT f.next <= e.repeat_until
               FROM pg_task_following(e.cron, e.repeat, e.drift, e.anchor,
                    coalesce(e.planned, e.dt), e.stop, e.timezone, e.role, e.role_id) AS f))
    AND (e.key IS NULL
         OR NOT EXISTS (SELECT FROM {figures} AS t WHERE t.state = 'PLAN' AND t.key = e.key
                           AND t.queue = e.queue)
        AND NOT EXISTS (SELECT FROM {figures} AS t WHERE t.state = 'WORK' AND t.key = e.key
                           AND t.queue = e.queue))
  ORDER BY e.id DESC LIMIT 20)
 UNION ALL
(SELECT 'warning', h.queue, format('%s is on hold: it has failed %s times in a row',
              coalesce('schedule ' || to_json(h.key), 'a schedule'), h.streak),
        format('mend it, then SELECT pg_task_resume(%s)', h.id)
   FROM held AS h WHERE h.failed
  ORDER BY h.id DESC LIMIT 20)
 UNION ALL
SELECT 'warning', NULL, format('tasks on hold, copied from another database: %s', count(*)),
       'stop what must not run here, then SELECT pg_task_release()'
  FROM held AS h WHERE NOT h.failed
HAVING count(*) > 0
 UNION ALL
(SELECT 'info', w.queue,
        format('due tasks: %s, the first since %s; but the queue is paused', w.due, w.oldest),
        format('SELECT * FROM pg_task_rule(%L)', w.queue)
   FROM waiting AS w
   JOIN pg_task_queue_facts(ARRAY(SELECT n.queue FROM waiting AS n)) AS f
     ON f.queue COLLATE "C" = w.queue AND f.paused
  ORDER BY w.oldest LIMIT 20)
 UNION ALL
SELECT 'info', NULL, format('the table has %s rows', c.reltuples::int8),
       'set pg_task.keep, the time for which the history is kept'
  FROM pg_class AS c WHERE c.oid = {relid} AND c.reltuples > 10000000
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_table_health() IS
    'for pg_task_health: what is wrong with the task table of this database';

CREATE FUNCTION pg_catalog.pg_task_health(
        OUT level text, OUT datname name, OUT queue text, OUT problem text, OUT hint text)
    RETURNS SETOF record
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
WITH server AS MATERIALIZED (SELECT * FROM pg_stat_task_scheduler()),
-- the scheduler waits for such a lock of the task table, and a report for the strongest one
locked AS MATERIALIZED (
SELECT l.relation, l.pid, l.mode = 'AccessExclusiveLock' AS wholly
  FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
  JOIN server AS s ON s.datname = current_database()
  JOIN pg_class AS t
    ON t.oid = s.relid AND c.relnamespace = t.relnamespace
   AND c.relname IN (t.relname, t.relname || '_queue', t.relname || '_rate')
 WHERE (l.mode = 'AccessExclusiveLock'
        OR l.relation = s.relid
           AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))
   AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())),
-- the reports are called only where there is a table
here AS MATERIALIZED (
SELECT s.relid FROM server AS s
 WHERE s.datname = current_database() AND s.relid IN (SELECT c.oid FROM pg_class AS c)
   AND NOT EXISTS (SELECT FROM locked AS l WHERE l.wholly)),
found (level, datname, queue, problem, hint) AS (
SELECT x.level, x.datname, NULL::text, x.problem, x.hint
  FROM (SELECT CASE WHEN pg_is_in_recovery() THEN NULL
                    WHEN EXISTS (SELECT FROM server) THEN 'served'
                    WHEN current_setting('pg_task.enabled', true) = 'off' THEN 'off'
                    ELSE coalesce(current_setting('pg_task.database', true), '') END AS is,
               EXISTS (SELECT FROM server AS s WHERE s.datname = current_database()) AS is_here,
               EXISTS (SELECT FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
                        WHERE p.proname = 'pg_task_planned'
                          AND p.pronamespace = 'pg_catalog'::regnamespace) AS has_table,
               -- beside the supervisor, one scheduler, and what other parts of the server may take
               current_setting('max_worker_processes')::int4 - 3
                   - (current_setting('max_logical_replication_workers')::int4 > 0)::int4 AS most,
               current_setting('pg_task.max_executors', true)::int4 AS executors) AS s
 CROSS JOIN LATERAL (VALUES
       (s.is NOT IN ('served', 'off', 'none'), 'critical', NULL::name,
        'pg_task serves no database of this server',
        'shared_preload_libraries, max_worker_processes, pg_task.database, and pg_task.enabled of'
        ' the server'),
       (s.is = 'off', 'info', NULL, 'no task starts: pg_task.enabled is off', 'pg_task.enabled'),
       (s.is = 'none', 'info', NULL, 'no task starts: pg_task.database is none',
        'pg_task.database'),
       (s.is = 'served' AND s.most < 0, 'critical', NULL,
        'no executor can start: too few worker slots for pg_task', 'max_worker_processes'),
       (s.is = 'served' AND s.most >= 0 AND greatest(s.most, 1) < s.executors, 'info', NULL,
        format('at most %s tasks run at once, not pg_task.max_executors, %s: too few worker slots',
               greatest(s.most, 1), s.executors), 'max_worker_processes'),
       (s.is = 'served' AND NOT s.is_here AND s.has_table, 'critical', current_database(),
        'no task starts: no scheduler serves the database', 'pg_task.database'))
    AS x (is_so, level, datname, problem, hint)
 WHERE x.is_so
 UNION ALL
SELECT x.level, s.datname, NULL, x.problem, x.hint
  FROM server AS s CROSS JOIN LATERAL (VALUES
       (s.state = 'held back', 'critical', 'no task starts: the database is held back',
        'SELECT pg_task_release(), after what docs/operations.md says of copies and crashes'),
       (s.state = 'not served', 'critical',
        'no task starts: no scheduler serves the database' || coalesce(': ' || s.error, ''),
        'pg_task.database'),
       (s.state = 'waiting', 'warning', 'its scheduler waits for a worker slot',
        'max_worker_processes, and pg_task.max_schedulers'),
       (s.state = 'no standby', 'critical',
        'no task starts: too few synchronous standbys are connected',
        'pg_stat_replication; pg_task.require_standby, synchronous_standby_names'),
       (s.state = 'disabled', 'info', 'no task starts: pg_task.enabled is off', 'pg_task.enabled'),
       (s.error_at > clock_timestamp() - interval '10 min' AND s.state <> 'not served', 'warning',
        format('its scheduler had an error at %s: %s', s.error_at, s.error), 'the log of the server'),
       (s.held > 0, 'warning',
        format('tasks whose row cannot be written, or that may have crashed the server: %s', s.held),
        'pg_task_why of tasks in WORK, or with crashed above 0; the log of the server'),
       (s.wants_since < clock_timestamp() - interval '2 min', 'warning',
        format('due tasks have had no executor since %s', s.wants_since),
        'SELECT * FROM pg_task_activity(); pg_task.max_executors, max_worker_processes'),
       (s.oldest_due < clock_timestamp() - interval '10 min' AND s.datname <> current_database(),
        'warning', format('a task should have started at %s', s.oldest_due),
        'SELECT * FROM pg_task_health() in that database')) AS x (is_so, level, problem, hint)
 WHERE x.is_so
 UNION ALL
-- after a restore, for as long as nothing has told the scheduler of the table
SELECT 'info', s.datname, NULL, 'the task table has not been looked at yet: nothing is known of it',
       'SELECT pg_task_release() if it was restored; pg_task.schema_name, pg_task.table_name'
  FROM server AS s
 WHERE s.datname = current_database()
   AND s.state NOT IN ('held back', 'not served', 'disabled', 'waiting')
   AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = s.relid)
   AND EXISTS (SELECT FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
                WHERE p.proname = 'pg_task_planned'
                  AND p.pronamespace = 'pg_catalog'::regnamespace)
 UNION ALL
SELECT 'warning', current_database(), NULL,
       format('table %s is locked, so %s', l.relation::regclass,
              CASE WHEN l.wholly THEN 'nothing is known of its tasks' ELSE 'no task starts' END),
       coalesce('pid ' || l.pid, 'pg_prepared_xacts')
  FROM locked AS l
 UNION ALL
(SELECT 'warning', current_database(), q.queue,
        format('due tasks: %s, the first since %s%s', q.due, q.oldest_due,
               CASE WHEN q.takers = 0 AND q.runs = 0 THEN '; no session waits for them' END),
        format('SELECT pg_task_why(id) FROM %s WHERE queue = %L AND state = ''PLAN'''
               ' ORDER BY dt LIMIT 1', h.relid::regclass, q.queue)
   FROM here AS h CROSS JOIN LATERAL (
        SELECT * FROM pg_task_queues() AS r WHERE h.relid IS NOT NULL OFFSET 0) AS q
  WHERE q.oldest_due < clock_timestamp() - interval '10 min'
  ORDER BY q.oldest_due LIMIT 20)
 UNION ALL
(SELECT 'warning', current_database(), r.queue,
        format('%s %s', coalesce('schedule ' || to_json(r.key), 'a task that repeats'),
               CASE WHEN r.late > '10 min'
                    THEN 'should have started at ' || clock_timestamp() - r.late
                    ELSE format('is %s at its last run, task %s', r.last_state, r.last_id) END),
        format(CASE WHEN r.late > '10 min' THEN 'SELECT pg_task_why(%s)'
                    ELSE 'SELECT * FROM pg_task_repeating() WHERE id = %s' END, r.id)
   FROM here AS h CROSS JOIN LATERAL (
        SELECT * FROM pg_task_repeating() AS r WHERE h.relid IS NOT NULL OFFSET 0) AS r
  WHERE r.late > '10 min' OR r.last_state IN ('FAIL', 'GONE')
  ORDER BY r.late DESC NULLS LAST, r.id LIMIT 20)
 UNION ALL
SELECT t.level, current_database(), t.queue, t.problem, t.hint
  FROM here AS h CROSS JOIN LATERAL (
       SELECT * FROM pg_task_table_health() AS r WHERE h.relid IS NOT NULL OFFSET 0) AS t)
SELECT * FROM found AS f
 ORDER BY array_position('{critical,warning,info}', f.level), f.datname NULLS FIRST,
          f.queue NULLS FIRST, f.problem
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_health() IS
    'what is wrong with pg_task on this server and in this database: no row if all is well';

CREATE FUNCTION pg_catalog.pg_task_results(by_step boolean DEFAULT false,
                                           id bigint DEFAULT pg_task_id())
    RETURNS jsonb
    LANGUAGE pg_task_report STABLE STRICT PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN $1 THEN coalesce(jsonb_object_agg(r.step, r.value ORDER BY r.n)
                                  FILTER (WHERE r.step IS NOT NULL), '{}')
            ELSE coalesce(jsonb_agg(r.value ORDER BY r.n), '[]') END
  FROM (SELECT a.n, t.step, CASE WHEN t.state = 'DONE' AND t.response IS NOT NULL THEN
               CASE WHEN t.lease IS NOT NULL
                         OR coalesce(t.format = 'json', pg_task_returns_json(t.role, t.role_id))
                    THEN t.response::jsonb ELSE to_jsonb(t.response) END END AS value
          FROM {rows} AS w CROSS JOIN unnest(w.after) WITH ORDINALITY AS a (id, n)
          LEFT JOIN LATERAL (SELECT * FROM {rows} AS s WHERE s.id = a.id
                              ORDER BY s.state = 'DONE' DESC LIMIT 1) AS t ON true
         WHERE w.id = $2) AS r
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_results(boolean, bigint) IS
    'the responses of the tasks for which the task waited that calls this: a list, or by steps';

CREATE FUNCTION pg_catalog.pg_task_graph(flow text) RETURNS text
    LANGUAGE pg_task_report STABLE STRICT PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp AS $$
-- Who may UPDATE a row may write times into it whose difference is out of range.  Nobody draws a
-- chart of those.
WITH first AS MATERIALIZED (
SELECT t.id, t.parent, t.state, (array_remove(t.after, NULL))[:500] AS after, ARRAY[
       left(t.step, 60),
       concat_ws(': ', nullif(left(t.queue, 60), 'default'), left(t.request, 40)
                 || CASE WHEN length(t.request) > 40 THEN '...' ELSE '' END),
       concat_ws(', ',
           CASE WHEN t.state = 'PLAN' AND t.waits IS NOT NULL THEN 'PLAN, waits'
                WHEN t.state = 'PLAN' AND t.hold IS NOT NULL THEN 'PLAN, on hold'
                WHEN t.state = 'PLAN' THEN 'PLAN for ' || date_trunc('second', t.dt)
                WHEN t.state = 'WORK' THEN 'WORK since ' || date_trunc('second', t.start)
                ELSE concat_ws(' ', left(t.state, 4),
                               date_trunc('second', coalesce(t.start, t.stop))) END,
           CASE WHEN t.state NOT IN ('PLAN', 'WORK') AND t.start > '1970-01-01 00:00+00'
                     AND t.stop < '9999-01-01 00:00+00' AND t.stop >= t.start
                THEN CASE WHEN t.stop - t.start < interval '10 s'
                          THEN ceil(extract(epoch FROM t.stop - t.start) * 1000) || ' ms'
                          ELSE date_trunc('second', t.stop - t.start)::text END END,
           CASE WHEN t.attempt > 1 THEN 'attempt ' || t.attempt END),
       CASE WHEN t.state IN ('FAIL', 'GONE') THEN left(t.error, 60) END,
       nullif(left(t.rule, 20), 'done')] AS texts
  FROM {rows} AS t WHERE t.flow = $1 ORDER BY t.id LIMIT 1001),

-- What means something to Mermaid, which also reads labels as Markdown, becomes a number; letters,
-- digits and some others stand for themselves.  A space keeps ":fa-" from being drawn as an icon.
lines AS (
SELECT f.id, f.parent, f.state, f.after, coalesce('|"' || l.rule || '"|', '') AS rule,
       concat(l.step || ', ', 'task ', f.id, '<br/>', l.label) AS label,
       't' || replace(f.id::text, '-', 'm') AS node
  FROM first AS f CROSS JOIN LATERAL (
       SELECT max(coalesce(e.text, '')) FILTER (WHERE u.n = 1) AS step,
              string_agg(coalesce(e.text, ''), '<br/>' ORDER BY u.n)
                  FILTER (WHERE u.n BETWEEN 2 AND 4) AS label,
              max(coalesce(e.text, '')) FILTER (WHERE u.n = 5) AS rule
         FROM unnest(f.texts) WITH ORDINALITY AS u (text, n) CROSS JOIN LATERAL (
              SELECT string_agg(coalesce(m.part[1], '#' || ascii(m.part[2]) || ';'), ''
                                ORDER BY m.n)
                FROM regexp_matches(
                         regexp_replace(replace(u.text COLLATE "C", ':fa-', ' :fa-'),
                                        '[[:cntrl:]]', ' ', 'g'),
                         '((?:[A-Za-z0-9 ,:=()]|[^ -~]|(?<!/)/(?!/)'
                         '|(?<=[A-Za-z0-9])[-+_](?=[A-Za-z0-9]))+)|(.)', 'g')
                     WITH ORDINALITY AS m (part, n)) AS e (text)
        WHERE u.text IS NOT NULL) AS l),

-- Mermaid draws up to 50,000 characters and 500 arrows, unless it is told otherwise.
sized AS (
SELECT l.*, row_number() OVER o AS n, sum(octet_length(l.line)) OVER o AS size
  FROM (SELECT *, format('    %s["%s"]%s%s', node, label, CASE WHEN state = ANY (
               '{PLAN,WORK,DONE,FAIL,STOP,GONE}') THEN ':::' || state END, chr(10)) AS line
          FROM lines) AS l
WINDOW o AS (ORDER BY l.id)),
shown AS MATERIALIZED (
SELECT * FROM sized WHERE n <= 1000 AND size - octet_length(line) < 31987),
arrows AS (
SELECT a.line, row_number() OVER o AS n,
       sum(octet_length(a.line)) OVER o + (SELECT max(size) FROM shown) AS size
  FROM (SELECT s.n, x.m, format('    %s%s %s %s%s', 't' || replace(x.id::text, '-', 'm'),
               CASE WHEN p.id IS NULL THEN format('["task %s"]', x.id) END,
               x.arrow, s.node, chr(10)) AS line
          FROM shown AS s CROSS JOIN LATERAL (
               SELECT u.id, u.m, '-->' || s.rule FROM unnest(s.after) WITH ORDINALITY AS u (id, m)
                UNION ALL
               SELECT s.parent, 501, '-.->'
                WHERE s.parent IN (SELECT id FROM shown)
                  AND s.parent <> ALL (coalesce(s.after, '{}'))) AS x (id, m, arrow)
          LEFT JOIN shown AS p ON p.id = x.id) AS a
WINDOW o AS (ORDER BY a.n, a.m)),
drawn AS (
SELECT * FROM arrows WHERE n <= 500 AND size - octet_length(line) < 47987)
SELECT concat('flowchart TD', chr(10), (SELECT string_agg(line, '' ORDER BY n) FROM shown),
       (SELECT string_agg(line, '' ORDER BY n) FROM drawn),
       CASE WHEN (SELECT count(*) FROM sized) > (SELECT count(*) FROM shown)
              OR (SELECT count(*) FROM arrows) > (SELECT count(*) FROM drawn)
            THEN format('    more["the first %s tasks: there is more than is shown"]%s',
                        (SELECT count(*) FROM shown), chr(10)) END,
       (SELECT string_agg(format('    classDef %s %s,color:#000000%s', c.state, c.style, c.dash),
                          chr(10))
          FROM (VALUES ('PLAN', 'fill:#ffffff,stroke:#888888', ''),
                       ('WORK', 'fill:#cfe2ff,stroke:#0a58ca', ''),
                       ('DONE', 'fill:#d1e7dd,stroke:#146c43', ''),
                       ('FAIL', 'fill:#f8d7da,stroke:#b02a37', ''),
                       ('STOP', 'fill:#ffe5d0,stroke:#ca6510', ''),
                       ('GONE', 'fill:#e9ecef,stroke:#888888', ',stroke-dasharray:4'))
            AS c (state, style, dash)))
 WHERE EXISTS (SELECT FROM shown)
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_graph(text) IS
    'the tasks of a flow as a Mermaid flowchart: names, requests, states, times';

CREATE FUNCTION pg_catalog.pg_task_wait(ids bigint[], timeout interval DEFAULT NULL,
        OUT id bigint, OUT state text)
    RETURNS SETOF record
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_wait';

COMMENT ON FUNCTION pg_catalog.pg_task_wait(bigint[], interval) IS
    'wait ten seconds at most until these tasks have ended, and return their states';

CREATE PROCEDURE pg_catalog.pg_task_wait_for(ids bigint[], timeout interval DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_wait_for';

COMMENT ON PROCEDURE pg_catalog.pg_task_wait_for(bigint[], interval) IS
    'wait until these tasks have ended, without a snapshot and outside of a transaction block';

CREATE FUNCTION pg_catalog.pg_task_remaining(queue text, since timestamptz, OUT ids bigint[],
        OUT done bigint, OUT failed bigint, OUT remaining bigint)
    RETURNS SETOF record
    LANGUAGE pg_task_report VOLATILE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
-- A task for later rests, unless it is retried; so does one on hold, the next run of one that
-- repeats, and what waits for a task that rests.
WITH RECURSIVE t AS MATERIALIZED (
SELECT t.id, t.queue, t.waits, t.rule, t.after,
       t.id IS DISTINCT FROM pg_task_id()
       AND (t.state = 'WORK' OR t.hold IS NULL
            AND (t.dt <= clock_timestamp() OR t.failed > 0 AND t.planned IS NOT NULL))
       AND (t.repeat IS NULL AND t.cron IS NULL OR coalesce(t.planned, t.dt) <= $2) AS counts
  FROM {rows} AS t WHERE t.state IN ('PLAN', 'WORK')),
 rests (id) AS (
SELECT t.id FROM t WHERE NOT t.counts
 UNION
SELECT t.id FROM rests JOIN t ON t.waits = rests.id
 WHERE (t.rule = 'any' AND EXISTS (SELECT FROM {rows} AS d
                                    WHERE d.id = ANY (t.after) AND d.state = 'DONE')) IS NOT TRUE),
 r AS MATERIALIZED (
SELECT t.id FROM t
 WHERE ($1 IS NULL OR t.queue = $1) AND NOT EXISTS (SELECT FROM rests WHERE rests.id = t.id))
SELECT ARRAY(SELECT r.id FROM r ORDER BY r.id LIMIT 1000),
       count(*) FILTER (WHERE t.state = 'DONE'), count(*) FILTER (WHERE t.state IN ('FAIL', 'GONE')),
       (SELECT count(*) FROM r)
  FROM {rows} AS t WHERE $1 IS NULL OR t.queue = $1
$$;

COMMENT ON FUNCTION pg_catalog.pg_task_remaining(text, timestamptz) IS
    'what pg_task_drain, called at this time, waits for in a queue: the first 1000 ids, and counts';

CREATE PROCEDURE pg_catalog.pg_task_drain(queue text DEFAULT NULL,
        timeout interval DEFAULT '1 min', INOUT done bigint DEFAULT NULL,
        INOUT failed bigint DEFAULT NULL, INOUT remaining bigint DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_drain';

COMMENT ON PROCEDURE pg_catalog.pg_task_drain(text, interval, bigint, bigint, bigint) IS
    'wait until nothing is due any more in a queue, and count its rows; NULL: in any queue';

CREATE FUNCTION pg_catalog.pg_stat_task(
        OUT datname name, OUT queue text, OUT planned bigint, OUT started bigint, OUT done bigint,
        OUT failed bigint, OUT retried bigint, OUT stopped bigint, OUT gone bigint,
        OUT timed_out bigint, OUT crashed bigint, OUT wait_time double precision,
        OUT wait_histogram bigint[], OUT run_time double precision, OUT run_histogram bigint[],
        OUT last_start timestamptz, OUT stats_since timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 100 AS 'MODULE_PATHNAME', 'pg_stat_task';

COMMENT ON FUNCTION pg_catalog.pg_stat_task() IS
    'what has become of tasks, and how long they waited and ran, per database and queue';

CREATE FUNCTION pg_catalog.pg_stat_task_reset(
        database name DEFAULT NULL, queue text DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_stat_task_reset';

REVOKE EXECUTE ON FUNCTION pg_catalog.pg_stat_task_reset(name, text) FROM PUBLIC;

COMMENT ON FUNCTION pg_catalog.pg_stat_task_reset(name, text) IS
    'forget the figures of pg_stat_task, of a database and a queue; NULL: of all';

CREATE FUNCTION pg_catalog.pg_task_take(queues text[] DEFAULT NULL, n integer DEFAULT 1,
        wait integer DEFAULT 0, lease integer DEFAULT NULL, names text[] DEFAULT NULL,
        OUT handle text, OUT id bigint, OUT attempt integer, OUT failed integer,
        OUT retries integer, OUT queue text, OUT key text, OUT flow text, OUT step text,
        OUT request text, OUT input jsonb, OUT meta jsonb, OUT dt timestamptz,
        OUT timeout integer, OUT deadline timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 10 AS 'MODULE_PATHNAME', 'pg_task_take';

COMMENT ON FUNCTION pg_catalog.pg_task_take(text[], integer, integer, integer, text[]) IS
    'take tasks, or wait for some: times in milliseconds';

CREATE FUNCTION pg_catalog.pg_task_finish(handle text, result jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_finish';

COMMENT ON FUNCTION pg_catalog.pg_task_finish(text, jsonb) IS
    'a task that was taken is DONE, with this transaction';

CREATE FUNCTION pg_catalog.pg_task_finish_all(handles text[], results jsonb DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_finish_all';

COMMENT ON FUNCTION pg_catalog.pg_task_finish_all(text[], jsonb) IS
    'tasks that were taken are DONE, with this transaction; the results are a list';

CREATE FUNCTION pg_catalog.pg_task_fail(handle text, error text, detail text DEFAULT NULL,
        sqlstate text DEFAULT 'P0001', final boolean DEFAULT false, again integer DEFAULT NULL)
    RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_fail';

COMMENT ON FUNCTION pg_catalog.pg_task_fail(text, text, text, text, boolean, integer) IS
    'a task that was taken has failed: its state now; NULL: it is not held any more';

CREATE FUNCTION pg_catalog.pg_task_give_back(handle text, at timestamptz DEFAULT now(),
                                             input jsonb DEFAULT NULL) RETURNS boolean
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_give_back';

COMMENT ON FUNCTION pg_catalog.pg_task_give_back(text, timestamptz, jsonb) IS
    'a task that was taken waits again, until this time; false: it is not held any more';

CREATE FUNCTION pg_catalog.pg_task_alive(handles text[], lease integer DEFAULT NULL,
        done bigint DEFAULT NULL, total bigint DEFAULT NULL, message text DEFAULT NULL)
    RETURNS text[]
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_alive';

COMMENT ON FUNCTION pg_catalog.pg_task_alive(text[], integer, bigint, bigint, text) IS
    'begin the leases of these tasks anew; returns those that go on, and work on others is to stop';

CREATE FUNCTION pg_catalog.pg_task_takers(OUT pid integer, OUT role name, OUT queues text[],
        OUT since timestamptz, OUT id bigint, OUT deadline timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 10 AS 'MODULE_PATHNAME', 'pg_task_takers';

COMMENT ON FUNCTION pg_catalog.pg_task_takers() IS
    'the sessions that wait for tasks in this database, and the tasks that are held';

CREATE FUNCTION pg_catalog.pg_task_release() RETURNS boolean
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_release';

-- No update script sets this again: src/task/home.c keeps its marks in it.
COMMENT ON FUNCTION pg_catalog.pg_task_release() IS
    'let the tasks run that are held back: the database was copied or restored, or its scheduler has'
    ' crashed the server';

-- A statement on a task table calls these, as defaults, in the conditions of triggers and in the
-- policies: by the rights of whoever executes it, whatever ALTER DEFAULT PRIVILEGES has revoked.  The
-- owner of a table creates its triggers, and calls the others for those who call a report.
GRANT EXECUTE ON FUNCTION pg_catalog.pg_task_id(), pg_catalog.pg_task_flow(),
    pg_catalog.pg_task_watched(text), pg_catalog.pg_task_own(name, bigint),
    pg_catalog.pg_task_queue_own(text),
    pg_catalog.pg_task_bound(), pg_catalog.pg_task_planned(), pg_catalog.pg_task_timed(),
    pg_catalog.pg_task_numbered(), pg_catalog.pg_task_removed(), pg_catalog.pg_task_queue_changed(),
    pg_catalog.pg_stat_task_scheduler(), pg_catalog.pg_task_returns_json(name, bigint),
    pg_catalog.pg_task_queue_facts(text[]),
    pg_catalog.pg_task_following(text, interval, boolean, timestamptz, timestamptz, timestamptz,
                                 text, name, bigint),
    pg_catalog.pg_task_facts(bigint, integer, timestamptz, text, integer, name, bigint, timestamptz,
                             integer, double precision, xid, bigint, text) TO PUBLIC;

CREATE FUNCTION pg_catalog.pg_task_own(role name, role_id bigint, who oid)
    RETURNS boolean
    LANGUAGE c STABLE STRICT LEAKPROOF PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'pg_task_own';

COMMENT ON FUNCTION pg_catalog.pg_task_own(name, bigint, oid) IS
    'may this user act as the role of this row';

GRANT EXECUTE ON FUNCTION pg_catalog.pg_task_own(name, bigint, oid) TO PUBLIC;

-- What the tables of pg_task are, and what makes one of them so: the statements that are missing,
-- in their order; no row if the table is whole.  They are executed as the owner.  Columns of a new
-- table come in this order: what each run writes is at the end, so that the WAL of a new version on
-- the same page has that end of the row alone.  A default is short, and a constant of its own type:
-- the server reads the text of each that an INSERT leaves out, and computes what it says.
CREATE FUNCTION pg_catalog.pg_task_missing(what text, schema oid, relation name) RETURNS SETOF text
    LANGUAGE sql
BEGIN ATOMIC
WITH wanted_table (what, storage, comment) AS (VALUES
    -- a page keeps space for the next version of its rows, each of which is written three times
    ('task', ' WITH (fillfactor = 60)',
     'Tasks: insert a row, and pg_task runs its request in the background'),
    ('queue', '', 'What pg_task keeps to in each queue of the task table'),
    ('rate', ' WITH (fillfactor = 50)',
     'written by pg_task: the last claims in the queues that have a rate or a pause')
), wanted_column (n, what, name, type, comment) AS (VALUES
    (1, 'task', 'id', 'bigint GENERATED BY DEFAULT AS IDENTITY NOT NULL',
     'Number of the task; given by the sequence'),
    (2, 'task', 'parent', 'bigint',
     'The task that inserted this one; for a repeating task, the run before'),
    (3, 'task', 'next', 'bigint', 'The run after this one, of a repeating task'),
    (4, 'task', 'dt', 'timestamptz DEFAULT CURRENT_TIMESTAMP NOT NULL',
     'Planned time; infinity: not before it is planned anew'),
    (5, 'task', 'planned', 'timestamptz', 'The first planned time of a task that is retried'),
    (6, 'task', 'anchor', 'timestamptz',
     'The planned time of the first run of a chain, from which its repeats are counted'),
    (7, 'task', 'queue', 'text DEFAULT ''default'' NOT NULL', 'Name of the queue'),
    (8, 'task', 'max', 'int',
     'The task starts only while fewer than this many tasks of its queue run; NULL: no limit; '
     '0: never; negative: one at a time, and this many milliseconds between two starts'),
    (9, 'task', 'priority', 'int DEFAULT 0 NOT NULL',
     'Lower goes first, among tasks of the same max'),
    (10, 'task', 'role', 'name DEFAULT current_user NOT NULL', 'The role that it runs as'),
    (11, 'task', 'role_id', $$bigint DEFAULT '0'::bigint NOT NULL$$,
     'Binds the row to its role, whatever the role is called; written by the server'),
    (12, 'task', 'request', 'text NOT NULL',
     'The SQL: one statement, or several as one transaction'),
    (13, 'task', 'failed', 'int', 'How many runs have failed'),
    (14, 'task', 'crashed', 'int', 'How many runs may have crashed the server'),
    (15, 'task', 'retry', 'int',
     'How many times it is tried again when it fails; NULL: pg_task.retry'),
    (16, 'task', 'delay', 'interval', 'Pause before the first retry; NULL: pg_task.delay'),
    (17, 'task', 'backoff', 'real',
     'The pause before each further retry is this many times longer; NULL: pg_task.backoff'),
    (18, 'task', 'timeout', 'interval', 'Longest run, then it has failed; NULL: pg_task.timeout'),
    (19, 'task', 'active', 'interval',
     'If the task has not started this long after its planned time, it never does: GONE; NULL: '
     'pg_task.active'),
    (20, 'task', 'repeat', 'interval', 'Run it again after this time'),
    (21, 'task', 'drift', 'boolean DEFAULT true NOT NULL',
     'false: each run is counted from the end of the last one, so the times wander; true: from '
     'the planned time, so they do not'),
    (22, 'task', 'cron', 'text', 'Run it at the times of this cron expression'),
    (23, 'task', 'timezone', 'text',
     'The zone of cron, and of days and months of repeat; NULL: pg_task.timezone, or that of '
     'the role'),
    (24, 'task', 'missed', 'text',
     'Which missed runs a repeating task makes up for: one, none or all; NULL: pg_task.missed'),
    (25, 'task', 'repeat_until', 'timestamptz', 'No run of the schedule is planned for a later time'),
    (26, 'task', 'runs_left', 'int',
     'How many runs of the schedule are left, with this one; NULL: no limit'),
    (27, 'task', 'hold', 'text', 'Why it is on hold: while this is not NULL, it does not start'),
    (28, 'task', 'hold_after', 'int',
     'A schedule is put on hold when so many runs in a row have failed, 0: never; NULL: '
     'pg_task.hold_after'),
    (29, 'task', 'streak', 'int', 'How many runs of the schedule have failed in a row'),
    (30, 'task', 'on_failure', 'text',
     'SQL, planned as a task when this one has failed for good, empty: nothing; NULL: '
     'pg_task.on_failure'),
    (31, 'task', 'keep', 'interval',
     'How long the row stays when the task has ended, 0: it goes with its DONE; NULL: '
     'pg_task.keep, pg_task.keep_failed'),
    (32, 'task', 'key', 'text', 'At most one task of its queue with this key waits or runs'),
    (33, 'task', 'after', 'bigint[]', 'Waits until these tasks have ended, as the rule says'),
    (34, 'task', 'rule', 'text',
     'When it starts: done (also NULL) when all tasks in after are DONE, ended when all have '
     'ended, failed when all have ended and one is not DONE, any when one is DONE'),
    (35, 'task', 'waits', 'bigint',
     'The task in after that it waits for at present; NULL: for none; written by the server'),
    (36, 'task', 'notify', 'text', 'Channel of the NOTIFY that says that the task has ended'),
    (37, 'task', 'format', 'text', 'Of the response: text, csv or json; NULL: pg_task.format'),
    (38, 'task', 'input', 'jsonb', 'Arguments of the request, which it reads by pg_task_input()'),
    (39, 'task', 'flow', 'text',
     'Label of the workflow that it is a part of; what a task inserts has that of the task'),
    (40, 'task', 'step', 'text', 'Name within the flow, in which it is unique'),
    (41, 'task', 'needs', 'text[]',
     'Steps of the same flow, inserted before, that it waits for: they become after'),
    (42, 'task', 'meta', 'jsonb',
     'Labels, at first pg_task.meta; what a task inserts has those of the task'),
    (43, 'task', 'lost', 'int', 'How many runs were lost by who had taken the task; NULL: none'),
    (44, 'task', 'start', 'timestamptz', 'When the run began'),
    (45, 'task', 'stop', 'timestamptz', 'When the run ended, or the task was given up or stopped'),
    (46, 'task', 'pid', 'int', 'The process that runs or ran it'),
    (47, 'task', 'attempt', 'int DEFAULT 0 NOT NULL', 'How many times it was started'),
    (48, 'task', 'state', 'text DEFAULT ''PLAN'' NOT NULL',
     'PLAN waits, WORK runs, DONE, FAIL failed for good, STOP stopped by a user, GONE expired '
     'before it started; set PLAN to run it again, STOP to stop it'),
    (49, 'task', 'response', 'text', 'What the request returned, or its complete error'),
    (50, 'task', 'error', 'text', 'Message of the last failure'),
    (51, 'task', 'sqlstate', 'text', 'Code of the last failure, to group by'),
    (52, 'task', 'notice', 'text', 'Messages that the request raised, other than errors'),
    (53, 'task', 'failures', 'jsonb',
     'The last runs that have failed: attempt, start, stop, pid, sqlstate, error'),
    (54, 'task', 'lease', 'int',
     'The run was taken, for so many milliseconds at a time, 0: for the time of a session; NULL: an '
     'executor runs it'),
    (1, 'queue', 'queue', 'text NOT NULL',
     'Name of a queue, or a pattern of LIKE; a column that is NULL is that of the next pattern'),
    (2, 'queue', 'paused', 'boolean', 'true: no task of the queue starts'),
    (3, 'queue', 'max', 'int', 'At most this many tasks of the queue run at once; -1: no limit'),
    (4, 'queue', 'rate', 'int',
     'At most this many tasks of the queue start within per; -1: no limit'),
    (5, 'queue', 'per', 'interval', 'The time for rate'),
    (6, 'queue', 'until', 'timestamptz', 'No task of the queue starts before this time'),
    (7, 'queue', 'strict', 'boolean', 'true: tasks start in their order, also when one is retried'),
    (8, 'queue', 'fair', 'boolean', 'true: the queues that match the pattern take turns'),
    (9, 'queue', 'retry', 'int', 'For tasks of the queue whose column retry is NULL'),
    (10, 'queue', 'delay', 'interval', 'For tasks of the queue whose column delay is NULL'),
    (11, 'queue', 'backoff', 'real', 'For tasks of the queue whose column backoff is NULL'),
    (12, 'queue', 'timeout', 'interval', 'For tasks of the queue whose column timeout is NULL'),
    (13, 'queue', 'active', 'interval', 'For tasks of the queue whose column active is NULL'),
    (14, 'queue', 'keep', 'interval', 'For tasks of the queue whose column keep is NULL'),
    (15, 'queue', 'batch', 'int',
     'At most this many short tasks of the queue share a transaction; NULL: pg_task.batch'),
    (16, 'queue', 'total', 'int',
     'At most this many tasks of all queues that have it from this pattern run at once; -1: no limit'),
    (17, 'queue', 'taker', 'name',
     'Sessions of members of this role take the tasks of the queue; empty: executors run them'),
    (18, 'queue', 'comment', 'text', 'Yours'),
    (1, 'rate', 'queue', 'text', NULL),
    (2, 'rate', 'until', 'timestamptz NOT NULL', NULL),
    (3, 'rate', 'image', 'bytea NOT NULL', NULL)
), wanted_check (what, name, condition) AS (VALUES
    -- whoever breaks one is told its name
    ('queue', 'queue must have at most 255 bytes', 'octet_length(queue) <= 255'),
    ('queue', 'queue must not end with an escape character, as a pattern',
     $$position('%' IN queue) = 0 OR (length(queue) - length(rtrim(queue, chr(92)))) % 2 = 0$$),
    ('queue', 'max must be zero or more, or -1', 'max >= -1'),
    ('queue', 'total must be zero or more, or -1', 'total >= -1'),
    ('queue', 'rate must be zero or more, or -1', 'rate >= -1'),
    ('queue', 'per must be greater than zero', $$per > interval '0'$$),
    ('queue', 'retry must be zero or more', 'retry >= 0'),
    ('queue', 'delay must be zero or more', $$delay >= interval '0'$$),
    ('queue', 'backoff must be zero or more', $$backoff >= 0 AND backoff <> 'NaN'$$),
    ('queue', 'timeout must be greater than zero', $$timeout > interval '0'$$),
    ('queue', 'active must be greater than zero', $$active > interval '0'$$),
    ('queue', 'keep must be zero or more', $$keep >= interval '0'$$),
    ('queue', 'batch must be 1 to 64', 'batch BETWEEN 1 AND 64')
), wanted_index (n, what, label, is_unique, definition) AS (VALUES
    -- Each INSERT pays for every comparison in a condition.  A row that waits for others is in
    -- state PLAN, so the conditions on "waits" need not say it.  That of running rows says the
    -- state neither of a run that a user stops, nor of a row that may have crashed the server: few
    -- others are in that index, among them schedules that have failed for good, for
    -- pg_task_health.  Of "start IS NOT NULL AND stop IS NULL" in place of the CASE the planner
    -- would expect up to a quarter of the table.  The condition on "after" does not imply the one
    -- on "waits": with old statistics the planner would read all of that index instead.
    (1, 'task', 'plan', false,
     $$(queue COLLATE "C", (CASE WHEN hold IS NULL THEN coalesce(max, 2147483647) ELSE 0 END),
        priority, role, role_id, dt, id)
       WHERE state = 'PLAN' AND waits IS NULL$$),
    (2, 'task', 'work', false,
     $$(id) WHERE state = 'WORK' OR crashed > 0
       OR (CASE WHEN start IS NULL THEN 'infinity' ELSE stop END) IS NULL
       OR (repeat IS NOT NULL OR cron IS NOT NULL) AND next IS NULL AND state IN ('FAIL', 'GONE')$$),
    (3, 'task', 'active', false,
     $$((CASE WHEN waits IS NULL AND hold IS NULL AND active < interval '100 years'
              THEN (coalesce(planned, dt) AT TIME ZONE 'UTC') + active END))
       WHERE state = 'PLAN' AND active IS NOT NULL$$),
    (4, 'task', 'waits', false, '(waits) WHERE waits IS NOT NULL'),
    (5, 'task', 'after', false, 'USING gin (after) WITH (fastupdate = off)'
     ' WHERE (waits IS NOT NULL) IS TRUE AND cardinality(after) > 1'),
    (6, 'task', 'key', true,
     $$(queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')$$),
    (7, 'task', 'flow', true, '(flow, step) WHERE flow IS NOT NULL')
), wanted_trigger (what, name, events, level, function) AS (VALUES
    -- most writes of pg_task itself fire none of them: see pg_task_watched
    ('task', 'pg_task_renumbered', 'BEFORE UPDATE OF id', 'STATEMENT', 'pg_task_numbered'),
    ('task', 'zz_pg_task_bound', 'BEFORE INSERT', 'ROW', 'pg_task_bound'),
    ('task', 'pg_task_timed',
     'BEFORE UPDATE OF state, dt, role, role_id, cron, timezone, hold, after, rule, waits', 'ROW',
     'pg_task_timed'),
    ('task', 'pg_task_planned', 'AFTER UPDATE',
     'ROW WHEN (pg_catalog.pg_task_watched(NEW.state))', 'pg_task_planned'),
    ('task', 'pg_task_removed', 'AFTER DELETE',
     $$ROW WHEN (OLD.state <> 'DONE' AND pg_catalog.pg_task_watched(OLD.state))$$,
     'pg_task_removed'),
    ('task', 'pg_task_truncated', 'AFTER TRUNCATE', 'STATEMENT', 'pg_task_removed'),
    -- replication fires no trigger for a statement
    ('queue', 'pg_task_queue_changed', 'AFTER INSERT OR UPDATE OR DELETE', 'ROW',
     'pg_task_queue_changed'),
    ('queue', 'pg_task_queue_truncated', 'AFTER TRUNCATE', 'STATEMENT', 'pg_task_queue_changed')
), wanted_policy (what, name, condition) AS (VALUES
    ('task', 'pg_task_own', 'pg_catalog.pg_task_own(role, role_id)'),
    ('queue', 'pg_task_queue_own', 'pg_catalog.pg_task_queue_own(queue)')
), rel AS (
    SELECT format('%I.%I', n.nspname, relation) AS name, c.oid, c.relkind, c.relowner, c.relacl
      FROM pg_namespace AS n
      LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = relation
     WHERE n.oid = schema
), missing_column AS (
    SELECT w.* FROM rel, wanted_column AS w
     WHERE w.what = pg_task_missing.what AND NOT EXISTS (SELECT FROM pg_attribute AS a
         WHERE a.attrelid = rel.oid AND a.attname = w.name AND NOT a.attisdropped)
), index_name AS (
    SELECT w.*, left(relation::text, 50 + length(relation::text) - octet_length(relation::text))
           || '_' || w.label || '_idx' AS name
      FROM wanted_index AS w WHERE w.what = pg_task_missing.what
), missing (step, n, sql) AS (
    SELECT 1, 0, format('CREATE TABLE %s (%s, PRIMARY KEY (%I))%s', rel.name,
           (SELECT string_agg(format('%I %s', c.name, c.type), ', ' ORDER BY c.n)
              FROM missing_column AS c),
           (SELECT c.name FROM missing_column AS c ORDER BY c.n LIMIT 1), w.storage)
      FROM rel, wanted_table AS w WHERE w.what = pg_task_missing.what AND rel.oid IS NULL
    UNION ALL
    SELECT 2, 0, format('ALTER TABLE %s ALTER COLUMN image SET STORAGE PLAIN', rel.name)
      FROM rel WHERE what = 'rate' AND rel.oid IS NULL
    UNION ALL
    SELECT 3, 0, format('ALTER TABLE %s %s', rel.name,
           string_agg(format('ADD COLUMN %I %s', c.name, c.type), ', ' ORDER BY c.n))
      FROM rel, missing_column AS c WHERE rel.oid IS NOT NULL GROUP BY rel.name
    UNION ALL
    SELECT 4, c.n, format('COMMENT ON COLUMN %s.%I IS %L', rel.name, c.name, c.comment)
      FROM rel, missing_column AS c WHERE c.comment IS NOT NULL
    UNION ALL
    -- a new rate table is nobody else's, whatever default privileges say
    SELECT DISTINCT 5, 0, format('REVOKE ALL ON %s FROM %s', rel.name,
           CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
      FROM rel, aclexplode(rel.relacl) AS a
     WHERE what = 'rate' AND obj_description(rel.oid, 'pg_class') IS NULL
       AND a.grantee <> rel.relowner
    UNION ALL
    SELECT 6, 0, format('COMMENT ON TABLE %s IS %L', rel.name, w.comment)
      FROM rel, wanted_table AS w
     WHERE w.what = pg_task_missing.what AND obj_description(rel.oid, 'pg_class') IS NULL
       AND (rel.oid IS NULL) = (w.what <> 'rate')
    UNION ALL
    SELECT 8, 0, format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (%s) NOT VALID', rel.name, w.name,
           w.condition)
      FROM rel, wanted_check AS w
     WHERE w.what = pg_task_missing.what AND NOT EXISTS (SELECT FROM pg_constraint AS c
         WHERE c.conrelid = rel.oid AND c.conname = w.name)
    UNION ALL
    -- An invalid index counts as missing, and so does one with another name.  Three of a name, none
    -- of which is valid, are enough.  A unique one of a partitioned table would have to contain the
    -- partition key.
    SELECT 9, w.n, format('CREATE %sINDEX %I ON %s %s', CASE WHEN w.is_unique THEN 'UNIQUE ' END,
           CASE WHEN EXISTS (SELECT FROM pg_class AS c
                              WHERE c.relnamespace = schema AND c.relname = w.name)
                THEN w.name || floor(random() * 1000000) ELSE w.name END, rel.name, w.definition)
      FROM rel, index_name AS w
     WHERE (rel.relkind = 'p' AND w.is_unique) IS NOT TRUE
       AND (SELECT count(*) FILTER (WHERE i.indisvalid) = 0 AND count(*) < 3
              FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
             WHERE i.indrelid = rel.oid AND left(c.relname, length(w.name)) = w.name
               AND rtrim(substr(c.relname, length(w.name) + 1), '0123456789') = '')
    UNION ALL
    SELECT 10, 0, format('CREATE TRIGGER %I %s ON %s FOR EACH %s EXECUTE FUNCTION pg_catalog.%I()',
           w.name, w.events, rel.name, w.level, w.function)
      FROM rel, wanted_trigger AS w
     WHERE w.what = pg_task_missing.what AND NOT EXISTS (SELECT FROM pg_trigger AS t
         WHERE t.tgrelid = rel.oid AND t.tgname = w.name)
    UNION ALL
    -- Replicated rows must reach the scheduler.  ENABLE TRIGGER leaves a trigger so that it, or
    -- that of a partition, does not fire for them.  One that the owner has disabled stays so.
    SELECT 11, 0, format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', rel.name, w.name)
      FROM rel, wanted_trigger AS w
     WHERE w.what = pg_task_missing.what AND NOT EXISTS (SELECT FROM pg_trigger AS t
         WHERE t.tgrelid = rel.oid AND t.tgname = w.name AND (t.tgenabled NOT IN ('O', 'A')
           OR NOT EXISTS (SELECT FROM pg_trigger AS p
             WHERE p.tgname = w.name AND p.tgenabled = 'O' AND (p.tgrelid = rel.oid
               OR p.tgrelid IN (SELECT relid FROM pg_partition_tree(rel.oid))))))
    UNION ALL
    -- once: the owner may disable row security
    SELECT 12, s.n, s.sql
      FROM rel, wanted_policy AS w, LATERAL (VALUES
           (1, format('CREATE POLICY %I ON %s USING (%s)', w.name, rel.name, w.condition)),
           (2, format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', rel.name))) AS s (n, sql)
     WHERE w.what = pg_task_missing.what AND NOT EXISTS (SELECT FROM pg_policy AS p
         WHERE p.polrelid = rel.oid AND p.polname = w.name)
)
SELECT m.sql FROM missing AS m ORDER BY m.step, m.n;
END;

COMMENT ON FUNCTION pg_catalog.pg_task_missing(text, oid, name) IS
    'the statements that make a table of pg_task, or complete it';

GRANT EXECUTE ON FUNCTION pg_catalog.pg_task_missing(text, oid, name) TO PUBLIC;

CREATE FUNCTION pg_catalog.pg_task_create() RETURNS regclass
    LANGUAGE c SET default_table_access_method = heap SET citus.enable_ddl_propagation = off
    SET citus.use_citus_managed_tables = off AS 'MODULE_PATHNAME', 'pg_task_create';

CREATE FUNCTION pg_catalog.pg_task_change_owner(role name) RETURNS void
    LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'pg_task_change_owner';

COMMENT ON FUNCTION pg_catalog.pg_task_change_owner(name) IS
    'give the task table of this database and the tables beside it to another role';

COMMENT ON FUNCTION pg_catalog.pg_task_create() IS
    'make or complete the task table of this database and the tables beside it, now';

-- CREATE EXTENSION has set that of the control file.  A dump would set it again, which whoever
-- restores it may not do without owning the extension.
COMMENT ON EXTENSION pg_task IS NULL;
