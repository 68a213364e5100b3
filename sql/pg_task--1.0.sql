-- complain if the script is sourced in psql
\echo Use "CREATE EXTENSION pg_task" to load this file. \quit

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
    LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'pg_task_cancel';

COMMENT ON FUNCTION pg_catalog.pg_task_cancel(bigint) IS
    'stop a task, whether it waits or runs; false if there is none';

CREATE FUNCTION pg_catalog.pg_task_next(cron text, after timestamptz DEFAULT now(),
                                        timezone text DEFAULT current_setting('TimeZone'))
    RETURNS timestamptz
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_next_cron';

COMMENT ON FUNCTION pg_catalog.pg_task_next(text, timestamptz, text) IS
    'the first moment later than this one that a cron expression names';

CREATE FUNCTION pg_catalog.pg_task_schedule(cron text, after timestamptz, count integer,
                                            timezone text DEFAULT current_setting('TimeZone'))
    RETURNS SETOF timestamptz
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_schedule_cron';

COMMENT ON FUNCTION pg_catalog.pg_task_schedule(text, timestamptz, integer, text) IS
    'the first moments later than this one that a cron expression names';

CREATE FUNCTION pg_catalog.pg_task_schedule(repeat interval, after timestamptz, count integer,
                                            timezone text DEFAULT current_setting('TimeZone'))
    RETURNS SETOF timestamptz
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_task_schedule_repeat';

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

CREATE FUNCTION pg_catalog.pg_task_retry(sqlstate text, since timestamptz,
                                         OUT retried bigint, OUT skipped bigint)
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_retry_all';

COMMENT ON FUNCTION pg_catalog.pg_task_retry(text, timestamptz) IS
    'run all tasks again that have failed with this code since then';

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
    LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'pg_task_result';

COMMENT ON FUNCTION pg_catalog.pg_task_result(bigint) IS
    'the response of a task that is DONE: a JSON document, or another text as a JSON string';

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
    LANGUAGE c VOLATILE STRICT ROWS 30 SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS 'MODULE_PATHNAME', 'pg_task_top';

COMMENT ON FUNCTION pg_catalog.pg_task_top(integer) IS
    'what runs, is late, failed and waits, for \watch';

CREATE FUNCTION pg_catalog.pg_task_again(at timestamptz DEFAULT now(),
                                         input jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_again';

COMMENT ON FUNCTION pg_catalog.pg_task_again(timestamptz, jsonb) IS
    'run the task that calls this again, when it is done: at this time, with this input';

CREATE FUNCTION pg_catalog.pg_task_why(id bigint) RETURNS text
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_why';

COMMENT ON FUNCTION pg_catalog.pg_task_why(bigint) IS
    'why does this task not run? NULL if there is none';

CREATE FUNCTION pg_catalog.pg_stat_task_scheduler(
        OUT datname name, OUT relid oid, OUT pid integer, OUT state text, OUT begun timestamptz,
        OUT iterations bigint, OUT claimed bigint, OUT missed bigint, OUT errors bigint,
        OUT held integer, OUT oldest_due timestamptz, OUT executors integer, OUT busy integer,
        OUT wanted integer, OUT wants_since timestamptz, OUT error text, OUT error_at timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_stat_task_scheduler';

COMMENT ON FUNCTION pg_catalog.pg_stat_task_scheduler() IS
    'what the scheduler of each database does, and what it waits for';

CREATE FUNCTION pg_catalog.pg_task_queues(
        OUT queue text, OUT waits bigint, OUT due bigint, OUT runs bigint, OUT failed bigint,
        OUT oldest_due timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_queues';

COMMENT ON FUNCTION pg_catalog.pg_task_queues() IS
    'what waits, is due, runs and has failed lately, per queue';

CREATE FUNCTION pg_catalog.pg_task_stats(since interval DEFAULT '1 hour',
        OUT queue text, OUT ended bigint, OUT failed bigint, OUT gone bigint,
        OUT wait_p50 interval, OUT wait_p95 interval, OUT run_p50 interval, OUT run_p95 interval,
        OUT per_minute double precision)
    RETURNS SETOF record
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_stats';

COMMENT ON FUNCTION pg_catalog.pg_task_stats(interval) IS
    'tasks that have ended within this time, per queue: how many, how long they waited and ran';

CREATE FUNCTION pg_catalog.pg_task_failures(since interval DEFAULT '1 day',
        OUT queue text, OUT sqlstate text, OUT error text, OUT count bigint,
        OUT first timestamptz, OUT last timestamptz, OUT ids bigint[])
    RETURNS SETOF record
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_failures';

COMMENT ON FUNCTION pg_catalog.pg_task_failures(interval) IS
    'tasks that have failed or were given up within this time, grouped by their errors';

CREATE FUNCTION pg_catalog.pg_task_recent(rows integer,
        OUT id bigint, OUT queue text, OUT role name, OUT state text, OUT pid integer,
        OUT dt timestamptz, OUT start timestamptz, OUT stop timestamptz, OUT sqlstate text,
        OUT error text)
    RETURNS SETOF record
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_recent';

COMMENT ON FUNCTION pg_catalog.pg_task_recent(integer) IS
    'the outcomes of the tasks with so many of the highest ids';

CREATE FUNCTION pg_catalog.pg_task_repeating(
        OUT id bigint, OUT queue text, OUT key text, OUT role name, OUT rule text, OUT state text,
        OUT dt timestamptz, OUT last_id bigint, OUT last_state text, OUT last_start timestamptz,
        OUT last_run interval, OUT last_error text, OUT request text)
    RETURNS SETOF record
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_repeating';

COMMENT ON FUNCTION pg_catalog.pg_task_repeating() IS
    'the tasks that repeat: when each runs next, and how it has ended last';

CREATE FUNCTION pg_catalog.pg_task_status(
        OUT version text, OUT task_table text, OUT databases integer, OUT schedulers integer,
        OUT executors integer, OUT busy integer, OUT max_executors integer, OUT state text,
        OUT oldest_due timestamptz, OUT rows bigint, OUT size bigint, OUT oldest_end timestamptz)
    RETURNS SETOF record ROWS 1
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_status';

COMMENT ON FUNCTION pg_catalog.pg_task_status() IS
    'pg_task on this server, and the task table of this database, in one row';

CREATE FUNCTION pg_catalog.pg_task_results(by_step boolean DEFAULT false) RETURNS jsonb
    LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'pg_task_results';

COMMENT ON FUNCTION pg_catalog.pg_task_results(boolean) IS
    'the responses of the tasks for which the task waited that calls this: a list, or by steps';

CREATE FUNCTION pg_catalog.pg_task_graph(flow text) RETURNS text
    LANGUAGE c STABLE STRICT PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_graph';

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

CREATE FUNCTION pg_catalog.pg_stat_task(
        OUT datname name, OUT queue text, OUT planned bigint, OUT started bigint, OUT done bigint,
        OUT failed bigint, OUT retried bigint, OUT stopped bigint, OUT gone bigint,
        OUT timed_out bigint, OUT crashed bigint, OUT wait_time double precision,
        OUT wait_histogram bigint[], OUT run_time double precision, OUT run_histogram bigint[],
        OUT stats_since timestamptz)
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

CREATE FUNCTION pg_catalog.pg_task_release() RETURNS boolean
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_release';

COMMENT ON FUNCTION pg_catalog.pg_task_release() IS
    'let the tasks run that are held back: the database was copied or restored, or its scheduler has'
    ' crashed the server';

-- A statement on a task table calls these, as defaults, in the conditions of triggers and in the
-- policies: by the rights of whoever executes it, whatever ALTER DEFAULT PRIVILEGES has revoked.
GRANT EXECUTE ON FUNCTION pg_catalog.pg_task_id(), pg_catalog.pg_task_flow(),
    pg_catalog.pg_task_watched(text), pg_catalog.pg_task_own(name, bigint),
    pg_catalog.pg_task_queue_own(text) TO PUBLIC;

CREATE FUNCTION pg_catalog.pg_task_own(role name, role_id bigint, who oid)
    RETURNS boolean
    LANGUAGE c STABLE STRICT LEAKPROOF PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'pg_task_own';

COMMENT ON FUNCTION pg_catalog.pg_task_own(name, bigint, oid) IS
    'may this user act as the role of this row';

GRANT EXECUTE ON FUNCTION pg_catalog.pg_task_own(name, bigint, oid) TO PUBLIC;
