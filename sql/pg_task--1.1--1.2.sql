-- complain if the script is sourced in psql
\echo Use "ALTER EXTENSION pg_task UPDATE" to load this file. \quit

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_input() RETURNS jsonb
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'pg_task_input';

COMMENT ON FUNCTION pg_catalog.pg_task_input() IS
    'the column "input" of the task that calls this: the arguments of its request';

CREATE OR REPLACE FUNCTION pg_catalog.pg_task_result(id bigint) RETURNS jsonb
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
CREATE OR REPLACE FUNCTION pg_catalog.pg_task_again(at timestamptz DEFAULT now(),
                                         input jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pg_task_again';

COMMENT ON FUNCTION pg_catalog.pg_task_again(timestamptz, jsonb) IS
    'run the task that calls this again, when it is done: at this time, with this input';
