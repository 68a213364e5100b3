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
