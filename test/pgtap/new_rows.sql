-- A new row is checked as the triggers of users leave it, whose names come before ours.
SET client_min_messages = warning;
SELECT no_plan();

SELECT throws_like('INSERT INTO task (request, retry) VALUES (''SELECT 1'', -1)',
    '"retry" of a task must be zero or more', 'a bad value is refused');
SELECT throws_like('INSERT INTO task (request, state) VALUES (''SELECT 1'', ''PLA'')',
    '"PLA" is not a state of a task', 'and a bad state');
CREATE FUNCTION worsen() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN NEW.retry := -1; RETURN NEW; END';
CREATE TRIGGER set_queue BEFORE INSERT ON task FOR EACH ROW WHEN (NEW.queue = 'late')
    EXECUTE FUNCTION worsen();
SELECT throws_like('INSERT INTO task (request, queue) VALUES (''SELECT 1'', ''late'')',
    '"retry" of a task must be zero or more', 'what a trigger writes is checked');
DROP TRIGGER set_queue ON task;
DROP FUNCTION worsen;

CREATE TABLE bare (LIKE task INCLUDING ALL);
CREATE FUNCTION state_after(n int, command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF n = 2 THEN
        EXECUTE command;
    END IF;
    RETURN 'PLAN';
END $$;
CREATE TRIGGER b BEFORE INSERT ON bare FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
SELECT lives_ok('INSERT INTO bare (request, state) SELECT ''SELECT 1'','
    ' state_after(n, ''DROP TRIGGER b ON bare'') FROM generate_series(1, 2) AS n',
    'the table loses its trigger while a statement inserts rows');

DROP TABLE bare;
DROP FUNCTION state_after;
SELECT * FROM finish();
