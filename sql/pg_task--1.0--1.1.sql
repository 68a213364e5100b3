-- complain if the script is sourced in psql
\echo Use "ALTER EXTENSION pg_task UPDATE" to load this file. \quit

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_timed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_timed';

COMMENT ON FUNCTION pg_catalog.pg_task_timed() IS
    'trigger on a task table: writes the times of a row that is stopped or planned again';

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_queue_changed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_task_queue_changed';

COMMENT ON FUNCTION pg_catalog.pg_task_queue_changed() IS
    'trigger on a queue table: checks the row, and tells the scheduler when a commit has changed it';

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_queue_own(queue text) RETURNS boolean
    LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'pg_task_queue_own';

COMMENT ON FUNCTION pg_catalog.pg_task_queue_own(text) IS
    'row security of a queue table: has the current user tasks in a queue that this row is for';

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_retry(id bigint) RETURNS boolean
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_retry';

COMMENT ON FUNCTION pg_catalog.pg_task_retry(bigint) IS
    'run a task again that has failed, was given up or was stopped; false if there is none';

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_retry(sqlstate text, since timestamptz,
                                         OUT retried bigint, OUT skipped bigint)
    LANGUAGE c VOLATILE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pg_task_retry_all';

COMMENT ON FUNCTION pg_catalog.pg_task_retry(text, timestamptz) IS
    'run all tasks again that have failed with this code since then';
