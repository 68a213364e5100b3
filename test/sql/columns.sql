-- The columns of a task: their effects, and the values that are refused.
\i test/wait.psql
\set VERBOSITY terse

-- Refused: an empty request, intervals out of range, unknown states and formats, other servers.
INSERT INTO task (request) VALUES ('');
INSERT INTO task (request) VALUES (NULL);
INSERT INTO task (request, repeat) VALUES ('SELECT 1', '-1 s');
INSERT INTO task (request, repeat) VALUES ('SELECT 1', '0');
INSERT INTO task (request, timeout) VALUES ('SELECT 1', '0');
INSERT INTO task (request, active) VALUES ('SELECT 1', '-1 h');
INSERT INTO task (request, delay) VALUES ('SELECT 1', '-1 s');
INSERT INTO task (request, backoff) VALUES ('SELECT 1', -1);
INSERT INTO task (request, retry) VALUES ('SELECT 1', -1);
INSERT INTO task (request, failed) VALUES ('SELECT 1', -1);
INSERT INTO task (request, state) VALUES ('SELECT 1', 'plan');
INSERT INTO task (request, format) VALUES ('SELECT 1', 'xml');
INSERT INTO task (request, hold_after) VALUES ('SELECT 1', -1);
\set VERBOSITY default
INSERT INTO task (request, after) VALUES ('SELECT 1', '{1}');
INSERT INTO task (request, notify) VALUES ('SELECT 1', '');
INSERT INTO task (request, notify) VALUES ('SELECT 1', repeat('x', 64));
INSERT INTO task (request, runs_left) VALUES ('SELECT 1', 0);
SELECT count(*) FROM task;

-- A row that is not PLAN does not run.
INSERT INTO task (request, state) VALUES ('SELECT 1', 'DONE'), ('SELECT 1', 'STOP'),
    ('SELECT 1', 'GONE');
INSERT INTO task (request) VALUES ('SELECT 2');
CALL wait_for_tasks();
SELECT request, state, attempt, response FROM task ORDER BY id;

-- Set back to PLAN, the task runs again: a new attempt, without the outcome of the old one.
UPDATE task SET request = 'SELECT 1/0', state = 'PLAN' WHERE request = 'SELECT 2';
CALL wait_for_tasks();
UPDATE task SET request = 'SELECT 3', state = 'PLAN' WHERE state = 'FAIL' RETURNING error, sqlstate;
CALL wait_for_tasks();
SELECT state, attempt, response, error, sqlstate FROM task WHERE request = 'SELECT 3';
TRUNCATE task;

-- keep of 0: the row goes when it is DONE, not when it is FAIL.
CREATE TABLE log (entry text);
INSERT INTO task (request, keep) VALUES
    ('INSERT INTO log VALUES (''deleted'')', '0'),
    ('INSERT INTO log VALUES (''failed''); SELECT 1/0', '0');
CALL wait_for_tasks();
SELECT request, state FROM task;
TABLE log;
TRUNCATE task, log;

-- keep of 0 and repeat: the next row is there, the old one has gone.
INSERT INTO task (request, keep, repeat) VALUES ('SELECT 1', '0', '1 hour') RETURNING id
\gset
CALL wait_for_tasks();
SELECT parent = :id AS from_the_first, state, keep, repeat FROM task;
TRUNCATE task;

-- The next row of a repeating task takes over the columns of the task, also those that the user has
-- added, and none of the columns of a run.
ALTER TABLE task ADD COLUMN customer text, ADD COLUMN "My Note" text DEFAULT 'none',
    ADD COLUMN doubled int GENERATED ALWAYS AS (priority * 2) STORED, ADD COLUMN gone int;
ALTER TABLE task DROP COLUMN gone;
INSERT INTO task (queue, max, priority, request, timeout, active, repeat, drift, timezone, key,
                  format,
                  retry, delay, backoff, customer, "My Note")
VALUES ('Repeat', 5, 3, 'SELECT 1/0', '1 min', '1 day', '1 hour', false, 'Europe/Berlin', 'k',
        'text',
        0, '5 s', 1.5, 'ACME', 'urgent')
RETURNING id
\gset
CALL wait_for_tasks();
\x on
SELECT parent = :id AS from_the_first, start, stop, queue, max, priority, pid,
       role = current_user AS is_mine, request, response, error, sqlstate, notice, state, attempt,
       retry, delay, backoff, timeout, active, repeat, drift, cron, timezone, keep, key, after,
       notify, format, hold, customer, "My Note", doubled
  FROM task WHERE id <> :id;
\x off
SELECT state, error FROM task WHERE id = :id;
ALTER TABLE task DROP COLUMN customer, DROP COLUMN "My Note", DROP COLUMN doubled;
TRUNCATE task;

-- A repeating task goes on after a failure; one with an unknown time zone does not, with a warning.
ALTER TABLE task DISABLE TRIGGER zz_pg_task_bound;
INSERT INTO task (request, repeat, timezone) VALUES ('SELECT 1', '1 day', 'Nowhere/Land');
ALTER TABLE task ENABLE ALWAYS TRIGGER zz_pg_task_bound;
CALL wait_for_tasks();
SELECT state, response FROM task;
TRUNCATE task;

-- In a task pg_task.id is its id, and cannot be set; a task that a task inserts has it as its
-- parent.
SHOW pg_task.id;
SET pg_task.id = 1;
INSERT INTO task (request) VALUES
    ('SELECT current_setting(''pg_task.id'')'),
    ('SET pg_task.id = 77'),
    ('SELECT set_config(''pg_task.id'', ''77'', true)'),
    ('RESET ALL; SELECT current_setting(''pg_task.id'')'),
    ('INSERT INTO task (request) VALUES (''SELECT ''''child'''''')');
CALL wait_for_tasks();
SELECT request, state, replace(response, id::text, 'its id') AS response,
       parent IS NOT NULL AS has_parent
  FROM task ORDER BY id;
SELECT parent.request FROM task AS child JOIN task AS parent ON parent.id = child.parent;
TRUNCATE task;

-- key: unique in its queue among tasks that are not finished.
INSERT INTO task (dt, key, request) VALUES (now() + '1 day', 'k', 'SELECT 1');
INSERT INTO task (dt, key, request) VALUES (now() + '1 day', 'k', 'SELECT 2')
    ON CONFLICT DO NOTHING;
INSERT INTO task (dt, key, queue, request) VALUES (now() + '1 day', 'k', 'another', 'SELECT 3')
    ON CONFLICT DO NOTHING;
INSERT INTO task (dt, key, request) VALUES (now() + '1 day', NULL, 'SELECT 4'),
    (now() + '1 day', NULL, 'SELECT 4');
INSERT INTO task (dt, key, request) VALUES (now() + '2 days', 'k', 'SELECT 5')
    ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK') DO UPDATE
        SET request = 'SELECT 6';
SELECT queue, key, request FROM task ORDER BY id;
\set VERBOSITY terse
INSERT INTO task (key, request) VALUES ('k', 'SELECT 7');
UPDATE task SET dt = now() WHERE key = 'k' AND queue = 'default';
CALL wait_for_tasks();
INSERT INTO task (key, request) VALUES ('k', 'SELECT 8') ON CONFLICT DO NOTHING;
CALL wait_for_tasks();
UPDATE task SET state = 'PLAN', dt = 'infinity' WHERE state = 'DONE' AND key = 'k';
SELECT queue, key, request, state FROM task ORDER BY id;
TRUNCATE task;

-- Of several repeating tasks with keys, each passes its key to its own next run.
INSERT INTO task (key, repeat, request) VALUES ('k', '1 hour', 'SELECT 1') RETURNING id
\gset
CALL wait_for_tasks();
SELECT state, key FROM task ORDER BY id;
TRUNCATE task;

-- The name of a queue may be any text: limits use all of it, not a part that fits into a buffer.
SELECT pg_advisory_lock(3);
INSERT INTO task (queue, max, request)
SELECT queue, 1, 'SELECT pg_advisory_xact_lock_shared(3)'
  FROM unnest(ARRAY['', ' ', 'Queue', 'queue', '"quoted"', U&'\0416\0443\0436', '''', E'a\\b',
                    'a.b', E'new\nline', repeat('long', 16) || '1', repeat('long', 16) || '2',
                    repeat(U&'\20ac', 85)]) AS queue,
       generate_series(1, 2);
CALL wait_until($$count(*) = current_setting('pg_task.max_executors')::int FROM task
    WHERE state = 'WORK'$$);
SELECT max(n) FROM (SELECT count(*) AS n FROM task WHERE state = 'WORK' GROUP BY queue) AS queues;
SELECT pg_advisory_unlock(3);
CALL wait_for_tasks();
SELECT left(queue, 20) AS queue, length(queue), state, count(*) FROM task
 GROUP BY task.queue, state ORDER BY task.queue COLLATE "C";
DROP TABLE log;
TRUNCATE task;
