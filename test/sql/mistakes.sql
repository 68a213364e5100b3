-- What a user reads who makes a mistake: each message names it, and the way out.
\i test/wait.psql
\pset format unaligned
\pset tuples_only on
SET client_min_messages = warning;
CREATE ROLE "regress_Owner" NOLOGIN;
CREATE ROLE regress_user LOGIN;
CREATE ROLE regress_other LOGIN;
CREATE ROLE regress_reader LOGIN;
GRANT INSERT, SELECT, UPDATE, DELETE ON task TO regress_user;
GRANT INSERT, SELECT ON task TO regress_reader;
TRUNCATE task RESTART IDENTITY;
RESET client_min_messages;

SET SESSION AUTHORIZATION regress_user;
INSERT INTO task (dt, request) VALUES ('infinity', 'SELECT 1');

-- 1. a task of somebody else
INSERT INTO task (role, request) VALUES ('regress_other', 'SELECT 1');
-- what programs write that know no defaults
INSERT INTO task (role, request) VALUES ('', 'SELECT 1');
INSERT INTO task (state, request) VALUES (NULL, 'SELECT 1');
RESET SESSION AUTHORIZATION;
INSERT INTO task (role, request) VALUES ('', 'SELECT 1');
INSERT INTO task (role, request) VALUES (NULL, 'SELECT 1');
SET SESSION AUTHORIZATION regress_user;
-- 2. a name that is no state
UPDATE task SET state = 'RUN';
-- 3. a state that the server sets
UPDATE task SET state = 'WORK';
UPDATE task SET state = 'DONE';
-- 4. another column that it writes
UPDATE task SET attempt = 0, pid = 1;
-- 5. an id ahead of the sequence
INSERT INTO task (id, request) VALUES (1000000, 'SELECT 1');
-- 6. another role for a task that is there
UPDATE task SET role = 'regress_other';
-- 7. a cron expression that is none
INSERT INTO task (cron, request) VALUES ('* * * *', 'SELECT 1');
INSERT INTO task (cron, request) VALUES ('60 * * * *', 'SELECT 1');
INSERT INTO task (cron, request) VALUES ('0 0 30 2 *', 'SELECT 1');
-- 8. both ways to repeat
INSERT INTO task (cron, repeat, request) VALUES ('@daily', '1 day', 'SELECT 1');
-- 9. a zone that does not exist, also without a cron expression
INSERT INTO task (repeat, timezone, request) VALUES ('1 day', 'Mars', 'SELECT 1');
-- 10. too often
INSERT INTO task (repeat, request) VALUES ('1 ms', 'SELECT 1');
-- 11. a schedule that is to be put on hold before it has failed
INSERT INTO task (repeat, hold_after, request) VALUES ('1 day', -1, 'SELECT 1');
-- 12. values out of range
INSERT INTO task (timeout, request) VALUES ('0', 'SELECT 1');
INSERT INTO task (retry, request) VALUES (-1, 'SELECT 1');
INSERT INTO task (format, request) VALUES ('xml', 'SELECT 1');
INSERT INTO task (request) VALUES ('');
-- 13. a name of a queue, or a key, as long as a document
INSERT INTO task (queue, request) VALUES (repeat('x', 256), 'SELECT 1');
-- 14. a key twice, and ON CONFLICT without the condition of its index: the server's own messages
INSERT INTO task (dt, key, request) VALUES ('infinity', 'once', 'SELECT 1');
INSERT INTO task (dt, key, request) VALUES ('infinity', 'once', 'SELECT 1');
INSERT INTO task (dt, key, request) VALUES ('infinity', 'once', 'SELECT 1')
    ON CONFLICT (queue, key) DO NOTHING;
-- 15. a setting in a session, where it has no effect; one that does not exist
SET pg_task.period = '100 ms';
SET pg_task.enabled = off;
SET pg_task.table_name = 'jobs';
SET pg_task.retries = 3;
SET pg_task.timezone = 'Mars';

-- 16. to stop a task without the right to
SET SESSION AUTHORIZATION regress_reader;
SELECT pg_task_cancel(1);
UPDATE task SET state = 'STOP';

-- 17. an interval where a cron expression is expected
SELECT pg_task_schedule('1 day', now(), 3);

-- 18. a list of databases with a mistake
RESET SESSION AUTHORIZATION;
ALTER SYSTEM SET pg_task.database = 'one two';
ALTER SYSTEM SET pg_task.database = '-one';
ALTER SYSTEM SET pg_task.database = 'one, one:user';

-- 19. a table whose owner may not run the task
ALTER TABLE task OWNER TO "regress_Owner";
SET SESSION AUTHORIZATION regress_user;
INSERT INTO task (queue, request) VALUES ('refused', 'SELECT 1');
RESET SESSION AUTHORIZATION;
CALL wait_until($$EXISTS (SELECT FROM task WHERE queue = 'refused' AND state = 'FAIL')$$);
SELECT state, sqlstate, response FROM task WHERE queue = 'refused';
ALTER TABLE task OWNER TO CURRENT_USER;

-- 20. requests that psql would take
TRUNCATE task;
INSERT INTO task (queue, max, request) VALUES
    ('request', 1, '\d'),
    ('request', 1, 'BEGIN; SELECT 1'),
    ('request', 1, 'COPY task FROM STDIN'),
    ('request', 1, 'LISTEN news'),
    ('request', 1, 'DELETE FROM task WHERE id = current_setting(''pg_task.id'')::bigint'),
    ('request', 1, 'SELECT 1; VACUUM');
CALL wait_for_tasks();
SELECT outcome FROM outcome ORDER BY id;

TRUNCATE task;
DROP OWNED BY regress_user, regress_reader, "regress_Owner";
DROP ROLE regress_user, regress_other, regress_reader, "regress_Owner";
