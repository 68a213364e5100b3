-- Converts the table of the other extension that is called pg_task, by RekGRpth, into tasks of this
-- one; its versions 1.0.46 to 3.0.0.  For psql, in the database of the table, as a role with the
-- rights of its owner and of the owner of the task table, when the server has been restarted with
-- this pg_task:
--
--   psql -X -d app -U owner -f "$(pg_config --sharedir)/extension/pg_task_convert_rekgrpth.sql"
--
-- With -v name=value before -f:
--   table    the table of the other one; default: task
--   role     the role that all tasks run as; default: of each row, what its column "user" says,
--            which version 3 has; without that column, the owner of that table
--   history  on: copy rows that have ended, too
--   commit   off: only show what would become of the rows
--
-- All is one transaction.  A table that has the name of the task table is renamed, by _rekgrpth; its
-- rows are left as they are.  What TAKE and WORK rows have done is unknown, so they are put on hold.
-- The last result says what has become of which rows; docs/coming-from-rekgrpth.md says more.
--
-- To read or write a table may run code of its owner: casts, defaults, triggers.  So a superuser may
-- run this for tables, types and schemas of superusers only.  It includes pg_task_convert_begin.sql.

\set ON_ERROR_STOP on
\if :{?table}
\else
\set table task
\endif
\if :{?role}
\else
\set role ''
\endif
\if :{?history}
\else
\set history off
\endif
\if :{?commit}
\else
\set commit on
\endif

-- A row that is committed while this waits for the lock is seen.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

SELECT coalesce(pg_catalog.to_regclass(:'table')::pg_catalog.oid::pg_catalog.text, '') AS old \gset
SET LOCAL pg_task_convert.hint =
    'It needs the rights of the owners of both tables, and runs code of theirs.';
\ir pg_task_convert_begin.sql
CREATE EXTENSION IF NOT EXISTS pg_task;
SELECT set_config('rekgrpth.table', :'table', true) AS ignored,
       set_config('rekgrpth.old', :'old', true) AS ignored,
       set_config('rekgrpth.role', :'role', true) AS ignored \gset

DO $$
DECLARE
    old regclass := nullif(current_setting('rekgrpth.old'), '')::oid;
    new regclass;
    role name;
    owner name;
    part record;
BEGIN
    IF old IS NULL THEN
        RAISE EXCEPTION 'table % does not exist', current_setting('rekgrpth.table');
    END IF;
    IF obj_description(old, 'pg_class') LIKE 'converted into %' THEN
        RAISE EXCEPTION 'table % has been converted already', old
            USING DETAIL = format('Its comment says: %s.', obj_description(old, 'pg_class'));
    END IF;
    IF (SELECT c.relkind NOT IN ('r', 'p') FROM pg_class AS c WHERE c.oid = old)
       OR (SELECT count(*) < 4 FROM pg_attribute AS a
            WHERE a.attrelid = old AND (a.attname, a.atttypid) IN (
                  ('plan', 'timestamptz'::regtype), ('input', 'text'::regtype),
                  ('output', 'text'::regtype), ('remote', 'text'::regtype))) THEN
        RAISE EXCEPTION '% is not a table of the other pg_task (RekGRpth)', old;
    END IF;
    SELECT pg_get_userbyid(c.relowner) INTO owner FROM pg_class AS c WHERE c.oid = old;
    PERFORM pg_temp.convert_trust(owner, format('table %s', old));
    PERFORM pg_temp.convert_trust(pg_get_userbyid(t.typowner), format('type %s', t.oid::regtype)),
            pg_temp.convert_trust(pg_get_userbyid(p.proowner), format('cast %s', p.oid::regprocedure))
       FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
       LEFT JOIN pg_cast AS c ON c.castsource = t.oid LEFT JOIN pg_proc AS p ON p.oid = c.castfunc
      WHERE a.attrelid = old AND a.attnum > 0 AND t.oid >= 16384;
    PERFORM pg_temp.convert_trust_schema(old);
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', old);
    -- the lock that its worker of this database has
    IF EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'userlock' AND l.objsubid = 3
                  AND l.database = (SELECT d.oid FROM pg_database AS d
                                     WHERE d.datname = current_database())) THEN
        RAISE EXCEPTION 'the other pg_task runs in this database'
            USING HINT = 'Restart the server with this pg_task.';
    END IF;

    -- The new names of its indexes and its sequence leave theirs to the task table.
    BEGIN
        new := pg_task_create();
    EXCEPTION WHEN wrong_object_type THEN
        FOR part IN
            SELECT c.oid::regclass AS name, c.relkind AS kind, left(r.relname, 40) || '_rekgrpth'
                   || substr(c.relname, length(r.relname) + 1) AS renamed
              FROM pg_class AS r, pg_class AS c
             WHERE r.oid = old AND starts_with(c.relname, r.relname) AND (c.oid IN (old,
                   pg_get_serial_sequence(old::text, 'id')::regclass) OR EXISTS (
                   SELECT FROM pg_index AS i WHERE i.indrelid = old AND i.indexrelid = c.oid))
        LOOP
            EXECUTE format('ALTER %s %s RENAME TO %I',
                CASE WHEN part.kind = 'S' THEN 'SEQUENCE'
                     WHEN part.kind IN ('i', 'I') THEN 'INDEX' ELSE 'TABLE' END,
                part.name, part.renamed);
        END LOOP;
        new := pg_task_create();
    END;

    -- NULL: each row has its own
    SELECT coalesce(nullif(current_setting('rekgrpth.role'), ''),
                    CASE WHEN NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = old
                                             AND a.attname = 'user' AND NOT a.attisdropped) THEN
                        pg_get_userbyid(o.relowner) END),
           pg_get_userbyid(n.relowner)
      INTO role, owner FROM pg_class AS o, pg_class AS n WHERE o.oid = old AND n.oid = new;
    PERFORM pg_temp.convert_trust_task_table(new);
    IF NOT pg_has_role(owner, role, 'MEMBER') OR EXISTS (
           SELECT FROM pg_roles AS r, pg_roles AS o
            WHERE r.rolname = role AND r.rolsuper AND o.rolname = owner AND NOT o.rolsuper) THEN
        RAISE EXCEPTION 'role "%", which owns %, may not run tasks of role "%"', owner, new, role
            USING HINT = 'Name another role with -v role=..., GRANT it to the owner, or set'
                ' pg_task.database so that another role owns the task table.';
    END IF;
    EXECUTE format('COMMENT ON TABLE %s IS %L', old,
                   format('converted into %s of pg_task at %s', new, now()));
    PERFORM set_config('rekgrpth.table', old::oid::text, true),
            set_config('rekgrpth.new', new::oid::text, true),
            set_config('rekgrpth.role', coalesce(role, ''), true);
END $$;

-- Not all of its versions have these columns.  Those without "active" count "max" in another way.
SELECT c.old AS old, c.new AS new,
       coalesce(quote_literal(nullif(current_setting('rekgrpth.role'), '')), 'o."user"::text') AS role,
       CASE WHEN c.names @> '{active}' THEN 'o.active' ELSE 'NULL::interval' END AS active,
       CASE WHEN c.names @> '{data}' THEN 'o.data' ELSE 'NULL::text' END AS data,
       CASE WHEN c.names @> '{save}' THEN 'o.save' ELSE 'false' END AS save,
       CASE WHEN c.names @> '{active}' THEN 'o.max::bigint + 1' ELSE 'greatest(o.max, 1)' END AS max
  FROM (SELECT o.old, current_setting('rekgrpth.new')::oid::regclass AS new, (
               SELECT array_agg(a.attname::text) FROM pg_attribute AS a
                WHERE a.attrelid = o.old AND a.attnum > 0 AND NOT a.attisdropped) AS names
          FROM (SELECT current_setting('rekgrpth.table')::oid::regclass AS old) AS o) AS c \gset

-- The rows, as tasks.  "reason": why a row is not converted.
CREATE TEMP TABLE rekgrpth_rows ON COMMIT DROP AS
SELECT o.id, o.parent, o.plan AS dt, o.start, o.stop, o.pid, o."group" AS queue,
       CASE WHEN o.max < 0 THEN o.max
            WHEN :max < 2147483647 THEN (:max)::int END AS max,
       o.input AS request, to_jsonb(:data) AS input, o.output, o.error,
       CASE WHEN o.state::text IN ('TAKE', 'WORK') THEN 'PLAN'
            WHEN o.state::text = 'DONE' AND o.error IS NOT NULL THEN 'FAIL'
            ELSE o.state::text END AS state,
       CASE WHEN o.state::text IN ('TAKE', 'WORK') THEN
           format('was %s in the other pg_task, may have run', o.state) END AS hold,
       -- what repeats, and what has a pause, does not expire there
       CASE WHEN o.repeat <= interval '0' AND o.max >= 0 THEN
           -- without negative parts
           CASE WHEN :active::text LIKE '%-%' THEN justify_interval(:active) ELSE :active END END
           AS active,
       CASE WHEN o.timeout > interval '0' THEN o.timeout END AS timeout,
       CASE WHEN o.repeat > interval '0' THEN o.repeat END AS repeat, NOT o.drift AS drift,
       o.delimiter = ',' AND o.quote = '"' AND o.escape = '"' AND o."null" = '' AND o.header AS csv,
       o.delimiter = E'\t' AND coalesce(o.quote, '') = '' AND coalesce(o.escape, '') = ''
           AND o."null" = '\N' AND o.header AS text,
       o.delete, :save AS save, :role AS role,
       CASE WHEN o.remote IS NOT NULL THEN 'remote: no task runs on another server'
            WHEN o.id NOT BETWEEN 1 AND 4611686018427387904 THEN 'id: it is not 1 to 2^62'
            WHEN EXISTS (SELECT FROM :new AS n WHERE n.id = o.id) THEN
                'id: another row of the task table has it'
            WHEN o.state IS NULL THEN 'state: it has none'
            WHEN o.input = '' THEN 'input: it is empty'
            WHEN octet_length(o."group") > 255 THEN 'group: it has more than 255 bytes'
            WHEN isfinite(o.plan) AND o.plan >= '294000-01-01 00:00+00' THEN
                'plan: it is not before the year 294000'
            WHEN o.repeat > interval '0' AND o.repeat < interval '10 ms'
                 AND o.state::text IN ('PLAN', 'TAKE', 'WORK') THEN
                'repeat: it is shorter than 10 ms'
            WHEN u.oid IS NULL THEN format('user: role "%s" does not exist', :role)
            WHEN NOT pg_has_role(w.oid, u.oid, 'MEMBER') OR u.rolsuper AND NOT w.rolsuper THEN
                format('user: the owner of the task table may not run tasks of role "%s"', :role)
            END AS reason
  FROM :old AS o LEFT JOIN pg_roles AS u ON u.rolname = :role
 CROSS JOIN (SELECT r.oid, r.rolsuper FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner
              WHERE c.oid = :'new'::regclass) AS w
 WHERE o.state::text IN ('PLAN', 'TAKE', 'WORK') OR o.state IS NULL OR :'history'::boolean;

-- "missed": there, too, of the runs that were missed one is made up for.
INSERT INTO :new (id, parent, dt, queue, max, role, request, input, hold, active, timeout, repeat,
                  drift, missed, format)
SELECT r.id, r.parent, r.dt, r.queue, r.max, r.role, r.request, r.input, r.hold, r.active,
       r.timeout, r.repeat, r.drift, CASE WHEN r.repeat IS NOT NULL THEN 'one' END,
       CASE WHEN r.csv THEN 'csv' WHEN r.text THEN 'text' END
  FROM pg_temp.rekgrpth_rows AS r WHERE r.state = 'PLAN' AND r.reason IS NULL ORDER BY r.id;

-- What has ended has planned its next run already, which is a row of its own.
INSERT INTO :new (id, parent, dt, start, stop, pid, queue, max, role, request, input, state,
                  attempt, failed, response, error, sqlstate)
SELECT r.id, r.parent, r.dt, r.start, r.stop, r.pid, r.queue, r.max, r.role, r.request, r.input,
       r.state, (r.start IS NOT NULL AND r.state <> 'GONE')::int, (r.state = 'FAIL')::int,
       nullif(concat_ws(E'\n', r.output, r.error), ''),
       regexp_replace(split_part(r.error, E'\n', 1), '^\w+:  ', ''),
       CASE r.state WHEN 'GONE' THEN 'TK003' WHEN 'STOP' THEN 'TK002' END
  FROM pg_temp.rekgrpth_rows AS r WHERE r.state <> 'PLAN' AND r.reason IS NULL ORDER BY r.id;

-- Ids that the other one has given are not given again.
\if :commit
SELECT setval(s.name, max(i.id)) AS ignored
  FROM pg_get_serial_sequence(:'new', 'id') AS s (name)
 CROSS JOIN LATERAL (
       SELECT max(o.id) FROM :old AS o WHERE o.id <= 4611686018427387904
        UNION ALL SELECT pg_sequence_last_value(pg_get_serial_sequence(:'old', 'id')::regclass)
        UNION ALL SELECT pg_sequence_last_value(s.name::regclass)) AS i (id)
 WHERE i.id BETWEEN 1 AND 4611686018427387904
 GROUP BY s.name \gset
\endif

SELECT c.what, c.rows, c.ids AS "first ids", c.remark
  FROM (
SELECT w.n, w.what, count(r.id) AS rows, (array_agg(r.id ORDER BY r.id))[1:5] AS ids, w.remark
  FROM pg_temp.rekgrpth_rows AS r
 CROSS JOIN LATERAL (SELECT r.state = 'PLAN' AND r.reason IS NULL AS task) AS p
 CROSS JOIN LATERAL (VALUES
       (1, 'converted', p.task AND r.hold IS NULL, NULL),
       (2, 'on hold', p.task AND r.hold IS NOT NULL,
        'TAKE or WORK, may have run: pg_task_resume(id) runs it, pg_task_cancel(id) stops it'),
       (3, 'history', r.reason IS NULL AND r.state <> 'PLAN', NULL),
       (4, 'not converted', r.reason IS NOT NULL, r.reason),
       (5, 'look at', p.task AND (r.request ~* '\mtask\M' OR strpos(lower(r.request), (
               SELECT lower(c.relname) FROM pg_class AS c WHERE c.oid = :'old'::regclass)) > 0),
        'input: it may use the table, whose columns have other names'),
       (6, 'changed', p.task AND NOT coalesce(r.csv OR r.text, false),
        'header, delimiter, quote, escape, null: the result is formatted as text'),
       (7, 'changed', p.task AND r.delete, 'delete: a row without a result stays, too: see "keep"'),
       (8, 'changed', p.task AND r.save, 'save: each task has a new session'),
       (9, 'changed', p.task AND r.max < 0, 'max: the pause counts from one start to the next'),
       (10, 'changed', p.task AND mod(extract(epoch FROM r.timeout), 1) <> 0,
        'timeout: it was rounded to seconds, now it is exact'))
       AS w (n, what, is_so, remark)
 WHERE w.is_so GROUP BY w.n, w.what, w.remark
 UNION ALL
SELECT 11, 'not copied', count(*), (array_agg(o.id ORDER BY o.id))[1:5],
       'they have ended: see "history"'
  FROM :old AS o
 WHERE o.state::text NOT IN ('PLAN', 'TAKE', 'WORK') AND NOT :'history'::boolean
HAVING count(*) > 0
 UNION ALL
SELECT 12, 'not copied', NULL, NULL, format('column of your own: %I', a.attname)
  FROM pg_attribute AS a
 WHERE a.attrelid = :'old'::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND a.attname <> ALL (
       '{id,parent,plan,start,stop,active,live,repeat,timeout,count,hash,max,pid,state,delete,drift,
         header,save,string,delimiter,escape,quote,data,error,group,input,"null",output,remote,user}'))
       AS c
 ORDER BY c.n, c.remark;

\if :commit
COMMIT;
\else
ROLLBACK;
\endif
