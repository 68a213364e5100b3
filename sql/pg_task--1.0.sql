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
