-- The results of requests, as text. One queue with max = 1, so they run in this order.
\i test/wait.psql
\pset format unaligned
\pset tuples_only on

CREATE TABLE input (n serial, request text);
INSERT INTO input (request) VALUES
    -- one column: the value alone
    ('SELECT 1'),
    ('SELECT now() > ''2000-01-01'''),
    ('SELECT unnest(ARRAY[1, 2, 3])'),
    ('SELECT NULL'),
    ('SELECT '''''),
    ('SELECT E''two\nlines'''),
    ('SELECT U&''\00e4\20ac\+01F600'''),
    -- more: a header of names and types
    ('SELECT 1 AS a, ''x''::text AS b'),
    ('SELECT NULL::int AS a, ''''::text AS b, 3.50 AS c'),
    ('SELECT 1::int2 AS "Sm", 2::int8 AS "a b", true AS c, ''2024-02-29''::date AS d,
        NULL::timestamptz AS e,
       ''x''::varchar(3) AS f, ''1 day''::interval AS g, 1.5::float8 AS h, ''{}''::jsonb AS i'),
    ('SELECT ARRAY[1, NULL] AS a, ARRAY[''x''] AS b, ROW(1, ''y'') AS c'),
    ('SELECT 1, 2'),
    ('VALUES (1, ''a''), (2, NULL)'),
    -- no rows are a result
    ('SELECT 1 WHERE false'),
    ('SELECT 1 AS a, 2 AS b WHERE false'),
    ('SELECT'),
    -- no rows at all: the command tag
    ('CREATE TABLE made (a int PRIMARY KEY, b text)'),
    ('INSERT INTO made SELECT n, ''row '' || n FROM generate_series(1, 3) AS n'),
    ('UPDATE made SET b = upper(b) WHERE a > 1'),
    ('UPDATE made SET b = NULL WHERE a > 100'),
    ('INSERT INTO made VALUES (4, NULL) RETURNING a, b'),
    ('DELETE FROM made WHERE a = 4 RETURNING a'),
    ('DELETE FROM made WHERE a = 3'),
    ('TABLE made'),
    ('WITH gone AS (DELETE FROM made RETURNING *) SELECT count(*) FROM gone'),
    ('CREATE TABLE copied AS SELECT generate_series(1, 5) AS n'),
    ('SELECT 7 AS n INTO copied2'),
    ('CREATE VIEW seen AS SELECT n FROM copied'),
    ('CREATE MATERIALIZED VIEW kept AS SELECT n FROM copied'),
    ('REFRESH MATERIALIZED VIEW kept'),
    ('ALTER TABLE made ADD COLUMN c int'),
    ('GRANT SELECT ON made TO PUBLIC'),
    ('COPY made TO ''/dev/null'''),
    ('COMMENT ON TABLE made IS ''by a task'''),
    ('TRUNCATE made'),
    ('ANALYZE made'),
    ('DROP TABLE made'),
    ('DO ''BEGIN NULL; END'''),
    ('SET work_mem = ''1MB'''),
    ('SHOW work_mem'),
    ('EXPLAIN (COSTS OFF) SELECT 1'),
    ('SELECT pg_advisory_xact_lock(1)'),
    ('DECLARE c CURSOR FOR SELECT generate_series(1, 9); FETCH 2 FROM c; MOVE 3 FROM c; FETCH c; '
        'CLOSE c'),
    ('PREPARE p (int) AS SELECT $1 + 1; EXECUTE p (41); DEALLOCATE p'),
    ('CREATE FUNCTION two() RETURNS SETOF record LANGUAGE sql AS ''SELECT 1, 2'''),
    ('SELECT * FROM two() AS t (a int, b int)'),
    ('CREATE PROCEDURE give(OUT a int, OUT b text) LANGUAGE plpgsql AS ''BEGIN a := 1; '
        'b := ''''x''''; END'''),
    ('CALL give(NULL, NULL)'),
    -- several: one after another
    ('SELECT 1; SELECT 2 AS a, 3 AS b; CREATE TEMP TABLE t (a int); INSERT INTO t VALUES (1), (2); '
        'TABLE t'),
    ('SELECT 1;;; SELECT 2;'),
    ('SELECT '';''; -- not the end' || E'\n' || 'SELECT 2 /* nor ; this */'),
    -- none
    ('-- a comment'),
    ('/* a comment */ ;'),
    (' ');

INSERT INTO task (queue, max, request) SELECT 'results', 1, request FROM input ORDER BY n;
CALL wait_for_tasks();
SELECT outcome FROM outcome ORDER BY id;

-- Several statements are one transaction: all or nothing.
TRUNCATE task;
CREATE TABLE log (entry text);
INSERT INTO task (queue, max, request) VALUES
    ('results', 1, 'INSERT INTO log VALUES (''first''); INSERT INTO log VALUES (''second'')'),
    ('results', 1,
        'INSERT INTO log VALUES (''third''); SELECT 1/0; INSERT INTO log VALUES (''fourth'')'),
    ('results', 1,
        'INSERT INTO log VALUES (''fifth'');' || E'\n' || 'INSERT INTO lgo VALUES (''sixth'')'),
    ('results', 1,
        'INSERT INTO log VALUES (''seventh''); '
        'SELECT pg_current_xact_id() = xmin::text::xid8 FROM log WHERE entry = ''seventh''');
CALL wait_for_tasks();
SELECT outcome FROM outcome ORDER BY id;
TABLE log;

-- A request may be long; above 1 kB it does not fit into the slot of the executor.
TRUNCATE task;
INSERT INTO task (queue, max, request)
SELECT 'results', 1, 'SELECT ''' || repeat(x, (bytes - 9) / octet_length(x)) || ''''
  FROM unnest(ARRAY[1023, 1024, 1025, 8192, 1000000]) AS bytes, unnest(ARRAY['x', U&'\20ac']) AS x
 ORDER BY bytes, x COLLATE "C";
CALL wait_for_tasks();
SELECT octet_length(request), state, octet_length(response),
       request = 'SELECT ''' || response || '''' AS whole
  FROM task ORDER BY id;

DROP TABLE input, log, copied, copied2 CASCADE;
DROP FUNCTION two;
DROP PROCEDURE give;
TRUNCATE task;
