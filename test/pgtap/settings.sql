-- The settings: their defaults, and the values that are refused.
BEGIN;
SELECT no_plan();

SELECT is(current_setting(name), value, name) FROM (VALUES
    ('pg_task.database', ''),
    ('pg_task.schema_name', ''),
    ('pg_task.table_name', 'task'),
    ('pg_task.create_table', 'on'),
    ('pg_task.schema', ''),
    ('pg_task.table', 'task'),
    ('pg_task.period', '1s'),
    ('pg_task.enabled', 'on'),
    ('pg_task.max_executors', '4'),
    ('pg_task.idle_timeout', '1min'),
    ('pg_task.keep_libraries', ''),
    ('pg_task.synchronous_commit', 'database'),
    ('pg_task.response_limit', '16MB'),
    ('pg_task.timeout', '0'),
    ('pg_task.batch', '1'),
    ('pg_task.keep', '7d'),
    ('pg_task.keep_failed', '30d'),
    ('pg_task.flow', ''),
    ('pg_task.meta', ''),
    ('pg_task.id', '')) AS s (name, value);

SELECT is(context, wanted, name || ' is changed at the right level') FROM (VALUES
    ('pg_task.database', 'sighup'),
    ('pg_task.enabled', 'user'),
    ('pg_task.idle_timeout', 'sighup'),
    ('pg_task.keep_libraries', 'sighup'),
    ('pg_task.max_executors', 'postmaster'),
    ('pg_task.schema_name', 'user'),
    ('pg_task.table_name', 'user'),
    ('pg_task.table', 'user'),
    ('pg_task.timeout', 'user'),
    ('pg_task.batch', 'user'),
    ('pg_task.keep', 'user'),
    ('pg_task.keep_failed', 'user'),
    ('pg_task.flow', 'user'),
    ('pg_task.meta', 'user'),
    ('pg_task.id', 'internal')) AS s (name, wanted) JOIN pg_settings USING (name);

-- The older names schema and table go on: TABLE is a reserved word, so that one needs quotes.
SELECT throws_ok(format('SET pg_task.%I = %L', name, value), code, NULL,
    format('pg_task.%s = %s is refused', name, left(value, 20)))
  FROM (VALUES
    ('table_name', '', '22023'),
    ('meta', 'no JSON', '22023'),
    ('meta', '{"a": "\u0000"}', '22023'),
    ('meta', '1e200000', '22023'),
    ('meta', '1e1000', '22023'),
    ('meta', to_json(repeat('x', 999))::text, '22023'),
    ('table_name', repeat('x', 64), '22023'),
    ('schema_name', repeat('x', 64), '22023'),
    ('table', '', '22023'),
    ('table', repeat('x', 64), '22023'),
    ('schema', repeat('x', 64), '22023'),
    ('period', '0', '22023'),
    ('period', '-1', '22023'),
    ('period', '25 h', '22023'),
    ('period', 'soon', '22023'),
    ('timeout', '-1', '22023'),
    ('keep', '-2', '22023'),
    ('keep_failed', 'long', '22023'),
    ('response_limit', '0', '22023'),
    ('synchronous_commit', 'sometimes', '22023'),
    ('id', '1', '55P02'),
    ('database', 'postgres', '55P02'),
    ('enabled', 'off', '55P02'),
    ('create_table', 'off', '55P02'),
    ('max_executors', '5', '55P02'),
    -- they are of the database: a session could set them in vain
    ('table_name', 'jobs', '55P02'),
    ('schema_name', 'public', '55P02'),
    ('table', 'jobs', '55P02'),
    ('schema', 'public', '55P02'),
    ('period', '500', '55P02'),
    ('tabel', 'x', NULL)) AS s (name, value, code);

SELECT lives_ok(format('SET pg_task.%I = %L', name, value), format('pg_task.%s = %s is taken', name,
    left(value, 20))) FROM (VALUES
    ('timeout', '90 min'),
    ('keep', '7 d'),
    ('keep_failed', '-1'),
    ('synchronous_commit', 'off'),
    ('response_limit', '1 kB')) AS s (name, value);

SELECT lives_ok(format('ALTER DATABASE postgres SET pg_task.%I = %L', name, value),
    format('ALTER DATABASE SET pg_task.%s = %s', name, left(value, 20))) FROM (VALUES
    ('table_name', repeat('x', 63)),
    ('table_name', U&'Auftr\00e4ge "x"'),
    ('schema_name', ''),
    ('table', repeat('x', 63)),
    ('table', U&'Auftr\00e4ge "x"'),
    ('schema', ''),
    ('enabled', 'off'),
    ('create_table', 'off'),
    ('period', '1'),
    ('period', '1 d')) AS s (name, value);

-- A list of databases is checked when the file is read: served_databases.pl.
SELECT lives_ok('ALTER DATABASE postgres SET pg_task.table_name = ''jobs''');
SELECT throws_ok('ALTER DATABASE postgres SET pg_task.table_name = ''''', '22023');
SELECT lives_ok('ALTER DATABASE postgres SET pg_task."table" = ''jobs''');
SELECT throws_ok('ALTER DATABASE postgres SET pg_task."table" = ''''', '22023');
SELECT lives_ok('ALTER ROLE postgres SET pg_task.timeout = ''1 s''');

SELECT * FROM finish();
ROLLBACK;
