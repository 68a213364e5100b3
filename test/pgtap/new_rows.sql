-- When new rows are checked: before they are inserted, or after.  Without a transaction around all
-- of it: a transaction that may have changed the triggers of a table checks after.
SET client_min_messages = warning;
SELECT no_plan();

-- A new row is checked before it is inserted, and then not again; unless a later trigger may change
-- it, or the server computes a column.
CREATE FUNCTION fired(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    line text;
    fired text[] := '{}';
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) ' || statement LOOP
        IF line ~ '^Trigger' THEN
            fired := fired || regexp_replace(line, 'Trigger (?:pg_task_)?(\w+): calls=(\d+)',
                                             '\1 \2');
        END IF;
    END LOOP;
    RETURN array_to_string(fired, ', ');
END $$;
CREATE TABLE checked (LIKE task INCLUDING ALL);
CREATE TRIGGER pg_task_bound BEFORE INSERT ON checked
    FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
CREATE TRIGGER pg_task_planned AFTER INSERT OR UPDATE ON checked
    FOR EACH ROW WHEN (pg_task_watched(NEW.state)) EXECUTE FUNCTION pg_task_planned();
ALTER TABLE checked ENABLE ALWAYS TRIGGER pg_task_bound, ENABLE ALWAYS TRIGGER pg_task_planned;
SELECT is(fired('INSERT INTO checked (request) SELECT ''SELECT 1'' FROM generate_series(1, 3)'),
    'bound 3', 'new rows are checked before');
SELECT throws_like('INSERT INTO checked (request, retry) VALUES (''SELECT 1'', -1)',
    '"retry" of a task must be zero or more', 'and bad ones refused');
SELECT throws_like('INSERT INTO checked (request, state) VALUES (''SELECT 1'', ''PLA'')',
    '"PLA" is not a state of a task', 'by their state, too');
SELECT is(fired('INSERT INTO checked (request, key) VALUES (''SELECT 1'', ''k'')'), 'bound 1',
    'a row with a key is checked before');
SELECT is(fired('INSERT INTO checked (request, key) VALUES (''SELECT 1'', ''k'')
    ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN (''PLAN'', ''WORK'')
    DO UPDATE SET dt = excluded.dt'), 'bound 1, planned 1', 'the UPDATE of another row after');
SELECT is(fired('UPDATE checked SET dt = now()'), 'planned 4', 'as any UPDATE');
ALTER TABLE checked DISABLE TRIGGER pg_task_planned;
SELECT lives_ok('INSERT INTO checked (request, retry) VALUES (''SELECT 1'', -1)',
    'with the trigger disabled nothing is checked');
ALTER TABLE checked ENABLE TRIGGER pg_task_planned;
SELECT is(fired('INSERT INTO checked (request) VALUES (''SELECT 1'')'), 'bound 1, planned 1',
    'one that does not fire always checks after');
ALTER TABLE checked ENABLE ALWAYS TRIGGER pg_task_planned;
CREATE FUNCTION worsen() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN NEW.retry := -1; RETURN NEW; END';
CREATE TRIGGER early BEFORE INSERT ON checked FOR EACH ROW WHEN (NEW.queue = 'early')
    EXECUTE FUNCTION worsen();
SELECT is(fired('INSERT INTO checked (request) VALUES (''SELECT 1'')'), 'bound 1',
    'a trigger that fires before ours changes nothing');
CREATE TRIGGER zz BEFORE INSERT ON checked FOR EACH ROW WHEN (NEW.queue = 'late')
    EXECUTE FUNCTION worsen();
SELECT is(fired('INSERT INTO checked (request) VALUES (''SELECT 1'')'), 'bound 1, planned 1',
    'one that fires later does');
SELECT throws_like(format('INSERT INTO checked (request, queue) VALUES (''SELECT 1'', %L)', queue),
    '"retry" of a task must be zero or more', queue || ': what it writes is checked')
    FROM unnest(ARRAY['early', 'late']) AS queue;
DROP TRIGGER zz ON checked;
ALTER TABLE checked ADD COLUMN more int GENERATED ALWAYS AS (max + 1) STORED;
SELECT is(fired('INSERT INTO checked (request) VALUES (''SELECT 1'')'), 'bound 1',
    'nor does a column of the user that the server computes');
ALTER TABLE checked DROP COLUMN retry, ADD COLUMN retry int GENERATED ALWAYS AS (max) STORED;
SELECT is(fired('INSERT INTO checked (request) VALUES (''SELECT 1'')'), 'bound 1, planned 1',
    'one of ours that it computes does');

-- Nothing escapes if the triggers change while a statement inserts rows.
CREATE FUNCTION state_after(n int, command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF n = 2 THEN
        EXECUTE command;
    END IF;
    RETURN CASE n WHEN 3 THEN 'PLA' ELSE 'PLAN' END;
END $$;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE FUNCTION corrupt() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN NEW.state := ''PLA''; RETURN NEW; END';
ALTER TABLE checked DROP COLUMN retry, ADD COLUMN retry int;
CREATE TRIGGER pg_task_c AFTER INSERT ON checked FOR EACH ROW EXECUTE FUNCTION keep();
SELECT is(fired('INSERT INTO checked (request) VALUES (''SELECT 1'')'), 'bound 1, c 1',
    'checked before, as in the beginning');
SELECT throws_like(format('INSERT INTO checked (request, state) SELECT ''SELECT 1'','
    ' state_after(n, %L) FROM generate_series(1, 3) AS n', command),
    '"PLA" is not a state of a task', command)
    FROM unnest(ARRAY['SELECT',
        'CREATE TRIGGER zz BEFORE INSERT ON checked FOR EACH ROW EXECUTE FUNCTION keep()',
        'ALTER TRIGGER pg_task_planned ON checked RENAME TO a',
        'DROP TRIGGER pg_task_c ON checked']) AS command;
CREATE TRIGGER zz BEFORE INSERT ON checked FOR EACH ROW EXECUTE FUNCTION corrupt();
SELECT throws_like(format('INSERT INTO checked (request, state) SELECT ''SELECT 1'','
    ' state_after(2, %L)', command), '"PLA" is not a state of a task', command)
    FROM unnest(ARRAY['DROP TRIGGER zz ON checked', 'ALTER TRIGGER zz ON checked RENAME TO a'])
        AS command;
CREATE TABLE bare (LIKE task INCLUDING ALL);
CREATE TRIGGER b BEFORE INSERT ON bare FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
SELECT lives_ok('INSERT INTO bare (request, state) SELECT ''SELECT 1'','
    ' state_after(n, ''DROP TRIGGER b ON bare'') FROM generate_series(1, 2) AS n',
    'the table has no trigger any more');

DROP TABLE checked, bare;
DROP FUNCTION fired, worsen, state_after, keep, corrupt;
SELECT * FROM finish();
