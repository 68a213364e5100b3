-- What bench/run measures with: tables for what was measured, and the loops that one could write by
-- hand instead of using pg_task.
SET client_min_messages = warning;
CREATE SCHEMA bench;

-- One round of one contestant: tasks per second from the first start to the last end, and seconds
-- from
-- the moment at which it was let loose.
CREATE TABLE bench.sample (
    contestant text, commits text, at_once int, round int, rate float8, wall float8);

-- What comes out; "least" and "most" are what is asked of it.
CREATE TABLE bench.result (
    seq int GENERATED ALWAYS AS IDENTITY, name text, value float8, unit text, least float8,
        most float8);

-- The rows of the table at the end: a value, what it is compared with, and what is asked of the
-- ratio, or of the value where there is nothing to compare it with.
CREATE TABLE bench.target (
    seq int GENERATED ALWAYS AS IDENTITY, part text, what text, value float8, unit text,
    compared float8, of text, least float8, most float8,
    ratio float8);

-- The machine and the versions.
CREATE TABLE bench.about (seq int GENERATED ALWAYS AS IDENTITY, what text, value text);

-- How long each part took.
CREATE TABLE bench.part (seq int GENERATED ALWAYS AS IDENTITY, name text, seconds int);

-- When each backend of a loop began and ended.
CREATE TABLE bench.span (began timestamptz, ended timestamptz);

-- One round of inserts: seconds per transaction, and processor time of the server.
CREATE TABLE bench.insert_sample (
    source text, shape text, at_once int, seconds float8, cpu float8);

-- Times of the latency part. Unlogged: it must not count as WAL.
CREATE UNLOGGED TABLE bench.latency (kind text, microseconds float8);
CREATE UNLOGGED TABLE bench.baton (number int, begun timestamptz);

-- The loops work on a copy of the task table: the same columns, constraints, indexes and
-- fillfactor. It has no trigger: nobody has to be woken.
CREATE TABLE bench.loop (LIKE task INCLUDING ALL);
SELECT format('ALTER TABLE bench.loop SET (%s)', array_to_string(reloptions, ', '))
FROM pg_class WHERE oid = 'task'::regclass AND reloptions IS NOT NULL \gexec

-- ... and one of them on the least table that can do.
CREATE TABLE bench.plain (id bigint PRIMARY KEY, state text, request text, response text);

-- The limit: who does what is known beforehand. Each of n backends has its own range of ids, and
-- for
-- each id it runs the request, writes the outcome into the row and commits.
CREATE PROCEDURE bench.known_ids(me int, n int, tasks int) LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    t timestamptz;
    answer text;
BEGIN
    FOR i IN me * tasks / n + 1 .. (me + 1) * tasks / n LOOP
        t := clock_timestamp();
        EXECUTE 'SELECT 1' INTO answer;
        UPDATE bench.loop
           SET state = 'DONE', attempt = attempt + 1, start = t, stop = clock_timestamp(),
               pid = pg_backend_pid(), response = answer
         WHERE id = i;
        COMMIT;
    END LOOP;
    INSERT INTO bench.span VALUES (began, clock_timestamp());
END $$;

CREATE PROCEDURE bench.plain(me int, n int, tasks int) LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    answer text;
BEGIN
    FOR i IN me * tasks / n + 1 .. (me + 1) * tasks / n LOOP
        EXECUTE 'SELECT 1' INTO answer;
        UPDATE bench.plain SET state = 'DONE', response = answer WHERE id = i;
        COMMIT;
    END LOOP;
    INSERT INTO bench.span VALUES (began, clock_timestamp());
END $$;

-- One claim per task, as most hand-written queues do it: the row is locked while its request runs.
-- The order is that of the index of waiting rows.
CREATE PROCEDURE bench.claim_one(me int, n int, tasks int) LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    t timestamptz;
    task_id bigint;
    task_request text;
    answer text;
BEGIN
    LOOP
        SELECT id, request INTO task_id, task_request
          FROM bench.loop
         WHERE state = 'PLAN' AND waits IS NULL
         ORDER BY queue COLLATE "C",
                  (CASE WHEN hold IS NULL THEN coalesce(max, 2147483647) ELSE 0 END),
                  priority, role, role_id, dt, id
         LIMIT 1
           FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        t := clock_timestamp();
        EXECUTE task_request INTO answer;
        UPDATE bench.loop
           SET state = 'DONE', attempt = attempt + 1, start = t, stop = clock_timestamp(),
               pid = pg_backend_pid(), response = answer
         WHERE id = task_id;
        COMMIT;
    END LOOP;
    INSERT INTO bench.span VALUES (began, clock_timestamp());
END $$;

-- 64 rows are claimed by one statement and one commit, and then a commit per task.
CREATE PROCEDURE bench.claim_64(me int, n int, tasks int) LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    t timestamptz;
    ids bigint[];
    requests text[];
    answer text;
BEGIN
    LOOP
        WITH chosen AS MATERIALIZED (
            SELECT id
              FROM bench.loop
             WHERE state = 'PLAN' AND waits IS NULL
             ORDER BY queue COLLATE "C",
                      (CASE WHEN hold IS NULL THEN coalesce(max, 2147483647) ELSE 0 END),
                      priority, role, role_id, dt, id
             LIMIT 64
               FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE bench.loop AS l
               SET state = 'WORK', attempt = attempt + 1, start = clock_timestamp(),
                   pid = pg_backend_pid()
              FROM chosen
             WHERE l.id = chosen.id
            RETURNING l.id, l.request
        ) SELECT array_agg(id), array_agg(request) INTO ids, requests FROM claimed;
        COMMIT;
        EXIT WHEN ids IS NULL;
        FOR i IN 1 .. cardinality(ids) LOOP
            t := clock_timestamp();
            EXECUTE requests[i] INTO answer;
            UPDATE bench.loop
               SET state = 'DONE', start = t, stop = clock_timestamp(), response = answer
             WHERE id = ids[i];
            COMMIT;
        END LOOP;
    END LOOP;
    INSERT INTO bench.span VALUES (began, clock_timestamp());
END $$;

-- Single inserts into an idle server, each after the one before was seen DONE. Between two looks
-- at the
-- row this sleeps "nap" seconds, so that the processor is as idle as the server is. That tells when
-- tasks start; zero, which keeps a processor busy, tells when their outcome can be seen.
CREATE PROCEDURE bench.insert_singly(inserts int, nap float8, label text) LANGUAGE plpgsql AS $$
DECLARE
    task_id bigint;
    before timestamptz;
    after timestamptz;
    begun timestamptz;
    seen boolean;
BEGIN
    FOR i IN 1 .. inserts LOOP
        INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id INTO task_id;
        before := clock_timestamp();
        COMMIT;
        after := clock_timestamp();
        LOOP
            IF nap > 0 THEN
                PERFORM pg_sleep(nap);
            END IF;
            SELECT start, state = 'DONE' INTO begun, seen FROM task WHERE id = task_id;
            EXIT WHEN seen;
            IF clock_timestamp() > after + '30 s' THEN
                RAISE EXCEPTION 'task % is not done after 30 s', task_id;
            END IF;
        END LOOP;
        INSERT INTO bench.latency VALUES
            (label || '.commit_to_seen', extract(epoch FROM clock_timestamp() - after) * 1e6),
            (label || '.commit_to_start', extract(epoch FROM begun - after) * 1e6),
            (label || '.commit_begun_to_start', extract(epoch FROM begun - before) * 1e6);
    END LOOP;
END $$;

-- The same by hand, on bench.loop, with the least that can do: one session inserts, one claims the
-- row and commits that, and one begins. Each wakes the next by the end of its transaction, which
-- releases an advisory lock: (1, i) that of the i-th insert, (2, i) that of its claim. Before, it
-- has taken the lock for which the next one waits after that.
CREATE PROCEDURE bench.baton_insert(inserts int, nap float8) LANGUAGE plpgsql AS $$
DECLARE
    before timestamptz;
    after timestamptz;
BEGIN
    PERFORM pg_advisory_lock(1, 0);
    LOOP
        EXIT WHEN (SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted);
        PERFORM pg_sleep(0.01);
        COMMIT;
    END LOOP;
    FOR i IN 0 .. inserts - 1 LOOP
        PERFORM pg_advisory_xact_lock(1, i), pg_advisory_lock(1, i + 1),
            pg_advisory_unlock(1, i);
        INSERT INTO bench.loop (request) VALUES ('SELECT 1');
        before := clock_timestamp();
        COMMIT;
        after := clock_timestamp();
        PERFORM pg_sleep(nap);
        INSERT INTO bench.latency
        SELECT v.kind, extract(epoch FROM s.begun - v.since) * 1e6
        FROM bench.baton AS s,
            (VALUES ('hand.commit_to_start', after), ('hand.commit_begun_to_start', before))
                AS v (kind, since)
        WHERE s.number = i;
        INSERT INTO bench.latency
        SELECT 'hand.commit_to_claimed', extract(epoch FROM s.begun - after) * 1e6
        FROM bench.baton AS s WHERE s.number = -1 - i;
    END LOOP;
    PERFORM pg_advisory_unlock_all();
END $$;

CREATE PROCEDURE bench.baton_claim(inserts int) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock(2, 0);
    FOR i IN 0 .. inserts - 1 LOOP
        PERFORM pg_advisory_xact_lock(2, i), pg_advisory_lock(2, i + 1),
            pg_advisory_unlock(2, i);
        PERFORM pg_advisory_xact_lock(1, i);
        UPDATE bench.loop
           SET state = 'WORK', attempt = attempt + 1, start = clock_timestamp(),
               pid = pg_backend_pid()
         WHERE id = (SELECT id FROM bench.loop WHERE state = 'PLAN' AND waits IS NULL
                     ORDER BY queue COLLATE "C",
                              (CASE WHEN hold IS NULL THEN coalesce(max, 2147483647) ELSE 0 END),
                              priority, role, role_id, dt, id
                     LIMIT 1 FOR UPDATE SKIP LOCKED);
        COMMIT;
        INSERT INTO bench.baton VALUES (-1 - i, clock_timestamp());
        COMMIT;
    END LOOP;
    PERFORM pg_advisory_unlock_all();
END $$;

-- One session takes tasks and finishes them, another one inserts them.
CREATE PROCEDURE bench.take_singly(takes int) LANGUAGE plpgsql AS $$
DECLARE
    taken record;
BEGIN
    FOR i IN 1 .. takes LOOP
        SELECT * INTO taken FROM pg_task_take('{taken}', 1, 10000);
        COMMIT;
        INSERT INTO bench.baton VALUES (taken.id, clock_timestamp());
        PERFORM pg_task_finish(taken.handle);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE bench.insert_taken(inserts int, nap float8) LANGUAGE plpgsql AS $$
DECLARE
    task_id bigint;
    after timestamptz;
BEGIN
    FOR i IN 1 .. inserts LOOP
        INSERT INTO task (queue, request) VALUES ('taken', 'work') RETURNING id INTO task_id;
        COMMIT;
        after := clock_timestamp();
        PERFORM pg_sleep(nap);
        INSERT INTO bench.latency
        SELECT 'taken.commit_to_hand', extract(epoch FROM begun - after) * 1e6
        FROM bench.baton WHERE number = task_id;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE bench.baton_start(inserts int) LANGUAGE plpgsql AS $$
DECLARE
    begun timestamptz;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', false);
    FOR i IN 0 .. inserts - 1 LOOP
        PERFORM pg_advisory_xact_lock(2, i);
        begun := clock_timestamp();
        INSERT INTO bench.baton VALUES (i, begun);
        COMMIT;
    END LOOP;
END $$;

-- Ends the executor of a running task, so many times, and stops a task that runs as often: how
-- long from
-- the signal to the claim of the next run, and from the commit of the STOP to the end of the run?
CREATE PROCEDURE bench.end_singly(times int) LANGUAGE plpgsql AS $$
DECLARE
    task_id bigint;
    executor int;
    before timestamptz;
    after timestamptz;
BEGIN
    FOR i IN 1 .. times LOOP
        INSERT INTO task (request) VALUES ('SELECT pg_sleep(1000)') RETURNING id INTO task_id;
        COMMIT;
        FOR wanted IN 1 .. 2 LOOP
            LOOP
                PERFORM pg_sleep(0.01);
                COMMIT;
                SELECT t.pid, t.start INTO executor, after
                  FROM task AS t JOIN pg_stat_activity AS a USING (pid)
                 WHERE t.id = task_id AND t.attempt = wanted AND t.state = 'WORK'
                     AND a.wait_event = 'PgSleep';
                EXIT WHEN found;
            END LOOP;
            IF wanted = 1 THEN
                before := clock_timestamp();
                PERFORM pg_terminate_backend(executor);
            END IF;
        END LOOP;
        INSERT INTO bench.latency VALUES ('terminated_to_start',
            extract(epoch FROM after - before) * 1e6);
        UPDATE task SET state = 'STOP' WHERE id = task_id;
        COMMIT;
        before := clock_timestamp();
        LOOP
            SELECT stop INTO after FROM task WHERE id = task_id AND state = 'STOP'
                AND stop > start;
            EXIT WHEN found;
            PERFORM pg_sleep(0.01);
            COMMIT;
        END LOOP;
        INSERT INTO bench.latency VALUES ('stop_to_cancelled',
            extract(epoch FROM after - before) * 1e6);
        COMMIT;
    END LOOP;
END $$;

-- A number as a person would write it.
CREATE FUNCTION bench.short(value float8) RETURNS text LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN value IS NULL THEN ''
    WHEN abs(value) >= 100 THEN to_char(value, 'FM999,999,999,990')
    WHEN abs(value) >= 10 THEN to_char(value, 'FM990.0')
    WHEN value = 0 THEN '0'
    ELSE to_char(value, 'FM990.000') END;
