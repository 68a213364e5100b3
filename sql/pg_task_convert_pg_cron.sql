-- Makes tasks of the jobs of pg_cron; its versions 1.0 to 1.6.  For psql, in the database that has
-- cron.job, as the owner of the task table there:
--
--   psql -X -d postgres -f "$(pg_config --sharedir)/extension/pg_task_convert_pg_cron.sql"
--
-- With -v name=value before -f:
--   commit      off: only show what would become of the jobs
--   deactivate  on: switch the jobs that have become tasks off in pg_cron, in the same commit
--   missed      one, none or all: see docs/repeating.md; default: pg_task.missed
--   queue       the tasks of role r have the queue <queue>.r; default: cron
--   export      a database: only print its jobs, as SQL
--   jobs        a file with what export has printed: its jobs of this database become tasks
--
-- Jobs of other databases, or where the task table does not belong to a superuser: as a superuser
-- where cron.job is, then as the owner of the task table where the jobs run:
--
--   psql -XAtq -d postgres -v export=shop -f pg_task_convert_pg_cron.sql >jobs.sql
--   psql -X -d shop -U owner -v jobs=jobs.sql -f pg_task_convert_pg_cron.sql
--
-- All is one transaction.  A job that has become a task already is left alone, so this may be run
-- again.  The last result says what has become of which jobs; docs/coming-from-pg-cron.md says
-- more.
--
-- A command is data here, and runs as the role of its job, or never.  It includes
-- pg_task_convert_begin.sql, which says why a superuser may run it for tables of superusers only.

\set ON_ERROR_STOP on
\if :{?commit}
\else
\set commit on
\endif
\if :{?deactivate}
\else
\set deactivate off
\endif
\if :{?missed}
\else
\set missed ''
\endif
\if :{?queue}
\else
\set queue cron
\endif
\if :{?export}
\set to_file on
\else
\set to_file off
\endif
\if :{?jobs}
\set from_file on
\else
\set from_file off
\endif
\encoding UTF8
\if :to_file
\set QUIET on
\pset format unaligned
\pset tuples_only on
\endif

SELECT :'commit'::boolean AS ignored, :'deactivate'::boolean AS ignored \gset
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL pg_task_convert.hint = 'Print the jobs of this database with -v export=<database> as a'
    ' superuser, and name that file with -v jobs=<file>.';
\ir pg_task_convert_begin.sql

-- "reason": why the job does not become a task.
CREATE TEMP TABLE cron_jobs (jobid bigint PRIMARY KEY, jobname text, schedule text, command text,
    database text, username text, active boolean, timezone text, fields text[], cron text,
    repeat interval, key text, state text, reason text, remark text,
    off boolean NOT NULL DEFAULT false) ON COMMIT DROP;

\if :from_file
\i :jobs
\else
-- Anybody who owns a schema cron could say there what is to run as whom.
DO $$
DECLARE
    job regclass;
    owner name;
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user) THEN
        RAISE EXCEPTION 'only a superuser sees all jobs and settings of pg_cron'
            USING HINT = current_setting('pg_task_convert.hint');
    END IF;
    job := to_regclass('cron.job');
    IF job IS NULL OR NOT EXISTS (
           SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
            WHERE d.classid = 'pg_class'::regclass AND d.objid = job AND d.deptype = 'e'
              AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'pg_cron') THEN
        RAISE EXCEPTION 'database "%" has no table cron.job of pg_cron', current_database()
            USING HINT = 'Run this where the extension is: SHOW cron.database_name. For jobs of'
                ' other databases, see the head of this file.';
    END IF;
    SELECT r.rolname INTO owner
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
      JOIN pg_extension AS e ON e.extname = 'pg_cron'
      JOIN pg_roles AS r ON r.oid IN (c.relowner, n.nspowner, e.extowner)
     WHERE c.oid = job AND NOT r.rolsuper;
    IF FOUND THEN
        RAISE EXCEPTION 'pg_cron or its table cron.job belongs to role "%", which is no superuser',
            owner USING HINT = 'It could say what runs as whom.';
    END IF;
    IF current_setting('cron.database_name', true) <> current_database() THEN
        RAISE EXCEPTION 'pg_cron does not run the jobs of this database'
            USING HINT = format('Its table is in database "%s".',
                                current_setting('cron.database_name'));
    END IF;
END $$;
\if :deactivate
LOCK TABLE cron.job IN SHARE ROW EXCLUSIVE MODE;
\endif

-- Not all of its versions have these columns and settings.  What it does not have may stand in
-- postgresql.conf all the same.
SELECT CASE WHEN c.names @> '{jobname}' THEN 'j.jobname::text' ELSE 'NULL::text' END AS jobname,
       CASE WHEN c.names @> '{active}' THEN 'j.active' ELSE 'true' END AS active,
       coalesce(nullif(CASE WHEN s.preloaded THEN s.timezone
                            ELSE current_setting('cron.timezone', true) END, ''), 'GMT') AS timezone
  FROM (SELECT bool_or(s.name = 'cron.database_name') AS preloaded,
               max(s.setting) FILTER (WHERE s.name = 'cron.timezone') AS timezone
          FROM pg_settings AS s WHERE s.name LIKE 'cron.%') AS s,
       (SELECT array_agg(a.attname::text) AS names FROM pg_attribute AS a
         WHERE a.attrelid = 'cron.job'::regclass AND a.attnum > 0 AND NOT a.attisdropped) AS c \gset

INSERT INTO pg_temp.cron_jobs (jobid, jobname, schedule, command, database, username, active,
                               timezone, reason)
SELECT j.jobid, :jobname, j.schedule, j.command, j.database, j.username, :active,
       :'timezone',
       CASE WHEN NOT starts_with(j.nodename, '/')
                 AND j.nodename NOT IN ('', 'localhost', '127.0.0.1', '::1',
                                        coalesce(current_setting('cron.host', true), ''))
                 OR j.nodeport::text <> current_setting('port') THEN
                'nodename, nodeport: it is for another server'
            WHEN current_setting('cron.enable_superuser_jobs', true) = 'off' AND r.rolsuper THEN
                'username: a superuser, whose jobs pg_cron does not run here'
            WHEN current_setting('cron.match_dom_and_dow', true) = 'on'
                 AND j.schedule ~ '^\s*\S+\s+\S+\s+[^* \t]\S*\s+\S+\s+[^* \t]' THEN
                'schedule: with cron.match_dom_and_dow both days must match' END
  FROM cron.job AS j LEFT JOIN pg_roles AS r ON r.rolname = j.username;
\endif

\if :to_file
SELECT '\encoding UTF8'
 UNION ALL
(SELECT format('INSERT INTO pg_temp.cron_jobs (jobid, jobname, schedule, command, database,'
               ' username, active, timezone, reason)'
               ' VALUES (%L, %L, %L, %L, %L, %L, %L, %L, %L);',
               j.jobid, j.jobname, j.schedule, j.command, j.database, j.username, j.active,
               j.timezone, j.reason)
   FROM pg_temp.cron_jobs AS j WHERE j.database = :'export' ORDER BY j.jobid);
ROLLBACK;
\quit
\endif

CREATE EXTENSION IF NOT EXISTS pg_task;
SELECT set_config('cron_tasks.queue', :'queue', true) AS ignored,
       set_config('cron_tasks.missed', :'missed', true) AS ignored,
       set_config('cron_tasks.new', pg_task_create()::oid::text, true) AS ignored \gset
SELECT current_setting('cron_tasks.new')::oid::regclass AS new \gset

SELECT pg_temp.convert_trust_task_table(:'new') AS ignored \gset

-- The schedule.  pg_cron reads five fields and leaves out what follows; "$" is a day of the month.
UPDATE pg_temp.cron_jobs AS j
   SET fields = regexp_split_to_array(btrim(j.schedule, E' \t\r\n'), '[ \t]+'),
       repeat = CASE WHEN j.schedule ~* '^\s*0*([1-9]|[1-5][0-9])\s*seconds?\s*$' THEN
                    make_interval(secs => substring(j.schedule FROM '[0-9]+')::int) END,
       key = coalesce(j.jobname, format('cron job %s', j.jobid));
UPDATE pg_temp.cron_jobs AS j
   SET cron = CASE
           WHEN j.fields[1] = '@restart' THEN '@reboot'
           WHEN j.fields[1] = ANY ('{@reboot,@yearly,@annually,@monthly,@weekly,@daily,@midnight,
                                     @hourly}') THEN j.fields[1]
           WHEN cardinality(j.fields) >= 5 AND NOT EXISTS (
               SELECT FROM unnest(j.fields[1:5]) WITH ORDINALITY AS f (field, n),
                      regexp_split_to_table(f.field, ',') AS e (element)
                WHERE NOT (f.n = 3 AND f.field = '$')
                  -- any values, a range, or one value; "sun" is 0 there, so "fri-sun" is nothing
                  AND (e.element !~* ('^(\*(/\d{1,2})?'
                                      '|(\d{1,2}|[a-z]{3})-(\d{1,2}|[a-z]{3})(/\d{1,2})?'
                                      '|\d{1,2}|[a-z]{3})$') OR e.element ~* '-sun')) THEN
               array_to_string(j.fields[1:2] || CASE j.fields[3] WHEN '$' THEN 'L'
                                                ELSE j.fields[3] END || j.fields[4:5], ' ') END,
       remark = CASE WHEN j.fields[1] !~ '^@' AND cardinality(j.fields) > 5 THEN
           'schedule: pg_cron leaves out what follows the fifth field' END;
UPDATE pg_temp.cron_jobs AS j
   SET reason = format('schedule: %L is not understood%s', left(j.schedule, 60),
                       CASE WHEN j.schedule ~ '(^|[\s,])\d+/\d' THEN
                           ': pg_cron takes no steps from a single number' END)
 WHERE j.reason IS NULL AND j.cron IS NULL AND j.repeat IS NULL;

-- One after the other, so that what is wrong with one concerns no other one.
DO $$
DECLARE
    new regclass := current_setting('cron_tasks.new')::oid;
    owner pg_roles%ROWTYPE;
    role pg_roles%ROWTYPE;
    job record;
    taken record;
    queue text;
    may_become text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET'
                            ELSE 'MEMBER' END;
BEGIN
    SELECT r.* INTO owner
      FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner WHERE c.oid = new;
    FOR job IN SELECT * FROM pg_temp.cron_jobs AS j
        WHERE j.database = current_database() AND j.reason IS NULL ORDER BY j.jobid
    LOOP
        SELECT r.* INTO role FROM pg_roles AS r WHERE r.rolname = job.username;
        queue := format('%s.%s', current_setting('cron_tasks.queue'), job.username);
        EXECUTE format('SELECT t.role, t.request = $3 AND t.cron IS NOT DISTINCT FROM $4
                               AND t.repeat IS NOT DISTINCT FROM $5 AS same FROM %s AS t
                         WHERE t.queue = $1 AND t.key = $2 AND t.state IN (''PLAN'', ''WORK'')',
                       new)
           INTO taken USING queue, job.key, job.command, job.cron, job.repeat;
        IF role.rolname IS NULL THEN
            job.reason := format('username: role "%s" does not exist', job.username);
        ELSIF taken.role = role.rolname AND taken.same THEN
            job.state := 'there';
        ELSIF taken.role = role.rolname THEN
            job.reason := format('key: a task with another request or schedule has it in queue'
                                 ' "%s"', queue);
        ELSIF taken.role IS NOT NULL THEN
            job.reason := format('key: a task of role "%s" has it in queue "%s"', taken.role,
                                 queue);
        ELSIF role.rolsuper AND NOT owner.rolsuper THEN
            job.reason := format('username: "%s" is a superuser, and the owner of the task table is'
                                 ' not', role.rolname);
        ELSIF NOT pg_has_role(owner.oid, role.oid, may_become) THEN
            job.reason := format('username: the owner of the task table may not run its tasks:'
                                 ' GRANT %I TO %I', role.rolname, owner.rolname);
        ELSE
            BEGIN
                EXECUTE format('INSERT INTO %s (queue, key, role, request, cron, timezone, repeat,
                                                dt, hold, missed)
                                VALUES ($1, $2, $3, $4, $5, $6, $7, now() + coalesce($7, ''0''),
                                        $8, $9)', new)
                  USING queue, job.key, role.rolname, job.command, job.cron,
                        CASE WHEN job.cron IS NOT NULL THEN job.timezone END, job.repeat,
                        CASE WHEN NOT job.active THEN 'was not active in pg_cron' END,
                        nullif(current_setting('cron_tasks.missed'), '');
                job.state := 'converted';
            EXCEPTION WHEN OTHERS THEN
                job.reason := format('%s: %s', SQLSTATE, SQLERRM);
            END;
        END IF;
        UPDATE pg_temp.cron_jobs AS j SET state = job.state, reason = job.reason
         WHERE j.jobid = job.jobid;
    END LOOP;
END $$;

\if :from_file
\elif :deactivate
DO $$
DECLARE
    watch name;
BEGIN
    SELECT t.tgname INTO watch FROM pg_trigger AS t
     WHERE t.tgrelid = 'cron.job'::regclass AND NOT t.tgisinternal AND NOT EXISTS (
           SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
            WHERE d.classid = 'pg_proc'::regclass AND d.objid = t.tgfoid AND d.deptype = 'e'
              AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'pg_cron');
    IF FOUND THEN
        RAISE EXCEPTION 'trigger "%" on cron.job is not one of pg_cron', watch
            USING HINT = 'It would run with your rights: switch the jobs off in another way.';
    END IF;
    UPDATE cron.job AS c SET active = false FROM pg_temp.cron_jobs AS j
     WHERE j.jobid = c.jobid AND j.state IS NOT NULL AND c.active;
    UPDATE pg_temp.cron_jobs AS j SET off = true WHERE j.state IS NOT NULL;
END $$;
\endif

SELECT w.what, count(*) AS jobs, array_agg(j.jobid ORDER BY j.jobid) AS jobids,
       CASE w.n WHEN 6 THEN format('%s: UPDATE cron.job SET active = false WHERE jobid IN (%s)',
                                   w.remark, string_agg(j.jobid::text, ', ' ORDER BY j.jobid))
                ELSE w.remark END AS remark
  FROM pg_temp.cron_jobs AS j
 CROSS JOIN LATERAL (VALUES
       (1, 'converted', j.state = 'converted', NULL),
       (2, 'on hold', j.state = 'converted' AND NOT j.active,
        'it was not active: pg_task_resume(key, queue) lets it run'),
       (3, 'there already', j.state = 'there', 'the task is left as it is'),
       (4, 'look at', j.state = 'converted' AND j.remark IS NOT NULL, j.remark),
       (5, 'not converted', j.reason IS NOT NULL
           AND (j.database = current_database() OR NOT :'from_file'::boolean), j.reason),
       (6, 'runs in both', j.state IS NOT NULL AND j.active AND NOT j.off,
        CASE WHEN :'from_file'::boolean THEN 'switch them off where cron.job is'
             ELSE 'switch them off by -v deactivate=on, or' END),
       (7, 'other database', j.database <> current_database() AND j.reason IS NULL,
        format('-v export=%s here, then -v jobs=<file> there', j.database)))
       AS w (n, what, is_so, remark)
 WHERE w.is_so GROUP BY w.n, w.what, w.remark ORDER BY w.n, w.remark;

\if :commit
COMMIT;
\else
ROLLBACK;
\endif
