-- The examples of the README, word by word.
\i test/wait.psql

INSERT INTO task (request) VALUES ('SELECT now()') RETURNING id AS now
\gset
INSERT INTO task (dt, request) VALUES (now() + '5 min'::INTERVAL, 'SELECT now()')
    RETURNING id AS later
\gset
INSERT INTO task (dt, request) VALUES ('2019-07-01 00:00:00', 'SELECT now()') RETURNING id AS past
\gset
INSERT INTO task (repeat, request) VALUES ('5 min', 'SELECT now()') RETURNING id AS repeat
\gset
INSERT INTO task (repeat, request, drift) VALUES ('5 min', 'SELECT now()', false)
    RETURNING id AS no_drift
\gset
INSERT INTO task (request) VALUES ('SELECT 1/0') RETURNING id AS error
\gset
INSERT INTO task (queue, max, request) VALUES ('queue', 2, 'SELECT now()') RETURNING id AS two
\gset
INSERT INTO task (queue, max, request) VALUES ('queue', 3, 'SELECT now()') RETURNING id AS three
\gset

CALL wait_for_tasks();

-- A due task runs at once, however long it has been due. now() is the start of its transaction.
SELECT dt <= start AS due, state, attempt, response::timestamptz BETWEEN start AND stop AS ran,
       error, sqlstate, pid IS NOT NULL AS has_pid, role = current_user AS is_mine
  FROM task WHERE id IN (:now, :past, :two, :three) ORDER BY id;

-- A task that is planned for later waits.
SELECT dt > now() + '4 min' AS waits, state, attempt, start, stop, pid, response
  FROM task WHERE id = :later;

-- Repeating tasks have run, and are planned again: from the planned time, or from the end.
SELECT old.state, old.response::timestamptz BETWEEN old.start AND old.stop AS ran,
       new.dt - CASE WHEN old.drift THEN old.dt ELSE old.stop END AS next,
       new.state, new.attempt, new.request, new.repeat, new.drift,
       new.start, new.stop, new.pid, new.response
  FROM task AS old JOIN task AS new ON new.parent = old.id
 WHERE old.id IN (:repeat, :no_drift) ORDER BY old.id;

-- An error is in the row, as psql prints it.
SELECT state, attempt, response, error, sqlstate, stop >= start AS ended FROM task
    WHERE id = :error;

-- No other task was planned, and only next runs of repeating tasks have a parent.
SELECT count(*), count(parent) FROM task;

-- While two tasks of max 2 run and others wait, one of max 3 starts at once. The running tasks wait
-- for this session.
SELECT pg_advisory_lock(2);
INSERT INTO task (queue, max, request)
SELECT 'queue', 2, 'SELECT pg_advisory_xact_lock_shared(2)' FROM generate_series(1, 6);
CALL wait_until($$count(*) = 2 FROM task WHERE state = 'WORK'$$);
INSERT INTO task (queue, max, request) VALUES ('queue', 3, 'SELECT now()') RETURNING id AS three
\gset
CALL wait_until(format($$state = 'DONE' FROM task WHERE id = %s$$, :three));
SELECT state, count(*) FROM task WHERE max = 2 AND id > :two GROUP BY state ORDER BY state;
SELECT pg_advisory_unlock(2);
CALL wait_for_tasks();
SELECT state, count(*) FROM task WHERE max = 2 GROUP BY state;

TRUNCATE task;
