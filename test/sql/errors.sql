-- Errors of a request are in its row, as psql prints them.
\i test/wait.psql
\pset format unaligned
\pset tuples_only on

CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED,
    n int CHECK (n > 0) NOT NULL);
CREATE FUNCTION fails(a int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN a / 0;
END $$;
CREATE FUNCTION calls(a int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fails(a);
    RETURN 1;
END $$;
CREATE FUNCTION no_column() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT missing FROM parent);
END $$;

CREATE TABLE input (n serial, request text);
INSERT INTO input (request) VALUES
    -- the parser
    ('SELEC 1'),
    ('SELECT 1 +'),
    ('SELECT ''open'),
    ('SELECT (1'),
    -- a position: the line, and a caret under the character
    ('SELECT missing'),
    (E'SELECT 1,\n       missing,\n       3'),
    (E'SELECT ''\u00e4\u00f6\u00fc'', missing'),
    (E'SELECT 1;\nSELECT ''\u20ac'';\n  SELECT 2, missing; SELECT 3'),
    (E'SELECT 1;\nSELECT 2 3 FROM;'),
    ('SELECT * FROM nowhere'),
    ('SELECT idd FROM parent'),
    ('SELECT ''x''::int'),
    -- details and hints
    ('INSERT INTO parent VALUES (1), (1)'),
    ('INSERT INTO child VALUES (NULL, -1)'),
    ('INSERT INTO child VALUES (1, NULL)'),
    -- at the very end of the transaction
    ('INSERT INTO child VALUES (99, 1)'),
    ('SELECT 1; INSERT INTO child VALUES (99, 1); SELECT 2'),
    -- deeper down
    ('SELECT fails(1)'),
    ('SELECT calls(1)'),
    ('SELECT no_column()'),
    ('DO ''BEGIN PERFORM calls(1); END'''),
    -- uncaught and caught exceptions
    ('DO ''BEGIN RAISE EXCEPTION ''''it is over''''; END'''),
    ('DO ''BEGIN RAISE EXCEPTION ''''over'''' USING ERRCODE = ''''UU001'''', '
        'DETAIL = ''''a detail'''', HINT = ''''a hint''''; END'''),
    ('DO ''BEGIN RAISE EXCEPTION E''''two\nlines''''; END'''),
    ('DO ''BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN '
        'RAISE EXCEPTION ''''again''''; END'''),
    ('DO ''BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN NULL; END'''),
    ('DO ''BEGIN ASSERT 1 = 2, ''''not so''''; END'''),
    -- what a task cannot do
    ('COPY parent FROM STDIN'),
    ('SELECT 1');

-- The row has the complete error, whatever the server logs.
SET log_error_verbosity = terse;
INSERT INTO task (queue, max, request) SELECT 'errors', 1, request FROM input ORDER BY n;
CALL wait_for_tasks();
SELECT outcome FROM outcome ORDER BY id;

-- The primary message and its code are columns, for GROUP BY; the errors had no effect.
SELECT sqlstate, error, count(*) FROM task WHERE state = 'FAIL' AND error LIKE 'division%'
    GROUP BY 1, 2;
SELECT count(*) FROM task WHERE state = 'DONE' AND (error IS NOT NULL OR sqlstate IS NOT NULL);
SELECT count(*) FROM task WHERE state = 'FAIL' AND (attempt <> 1 OR stop < start OR pid IS NULL);
SELECT (SELECT count(*) FROM parent), (SELECT count(*) FROM child);

DROP TABLE input, child, parent;
DROP FUNCTION fails, calls, no_column;
TRUNCATE task;
