-- The task table: its columns, indexes, checks, triggers and privileges.
BEGIN;
SELECT no_plan();

CREATE TEMP TABLE wanted (n serial, name name, type text, required boolean, def text);
INSERT INTO wanted (name, type, required, def) VALUES
    ('id', 'bigint', true, NULL),
    ('parent', 'bigint', false, NULL),
    ('next', 'bigint', false, NULL),
    ('dt', 'timestamp with time zone', true, 'CURRENT_TIMESTAMP'),
    ('planned', 'timestamp with time zone', false, NULL),
    ('anchor', 'timestamp with time zone', false, NULL),
    ('queue', 'text', true, '''default''::text'),
    ('max', 'integer', false, NULL),
    ('priority', 'integer', true, '0'),
    ('role', 'name', true, 'CURRENT_USER'),
    ('role_id', 'bigint', true, '''0''::bigint'),
    ('request', 'text', true, NULL),
    ('failed', 'integer', false, NULL),
    ('crashed', 'integer', false, NULL),
    ('retry', 'integer', false, NULL),
    ('delay', 'interval', false, NULL),
    ('backoff', 'real', false, NULL),
    ('timeout', 'interval', false, NULL),
    ('active', 'interval', false, NULL),
    ('repeat', 'interval', false, NULL),
    ('drift', 'boolean', true, 'true'),
    ('cron', 'text', false, NULL),
    ('timezone', 'text', false, NULL),
    ('missed', 'text', false, NULL),
    ('repeat_until', 'timestamp with time zone', false, NULL),
    ('runs_left', 'integer', false, NULL),
    ('hold', 'text', false, NULL),
    ('hold_after', 'integer', false, NULL),
    ('streak', 'integer', false, NULL),
    ('on_failure', 'text', false, NULL),
    ('keep', 'interval', false, NULL),
    ('key', 'text', false, NULL),
    ('after', 'bigint[]', false, NULL),
    ('rule', 'text', false, NULL),
    ('waits', 'bigint', false, NULL),
    ('notify', 'text', false, NULL),
    ('format', 'text', false, NULL),
    ('input', 'jsonb', false, NULL),
    ('flow', 'text', false, NULL),
    ('step', 'text', false, NULL),
    ('needs', 'text[]', false, NULL),
    ('meta', 'jsonb', false, NULL),
    ('lost', 'integer', false, NULL),
    ('start', 'timestamp with time zone', false, NULL),
    ('stop', 'timestamp with time zone', false, NULL),
    ('pid', 'integer', false, NULL),
    ('attempt', 'integer', true, '0'),
    ('state', 'text', true, '''PLAN''::text'),
    ('response', 'text', false, NULL),
    ('error', 'text', false, NULL),
    ('sqlstate', 'text', false, NULL),
    ('notice', 'text', false, NULL),
    ('failures', 'jsonb', false, NULL),
    ('lease', 'integer', false, NULL);

SELECT has_table('public'::name, 'task'::name);
SELECT columns_are('public', 'task', (SELECT array_agg(name ORDER BY n) FROM wanted),
    'the columns are those');
SELECT is(format_type(a.atttypid, a.atttypmod), w.type, format('type of %I', w.name))
  FROM wanted AS w JOIN pg_attribute AS a ON a.attrelid = 'task'::regclass AND a.attname = w.name
      ORDER BY n;
SELECT is_empty($$SELECT attrelid::regclass, attname FROM pg_attribute
    WHERE attrelid IN ('task'::regclass, 'task_queue'::regclass) AND attnum > 0
    AND NOT attisdropped AND col_description(attrelid, attnum) IS NULL$$,
    'every column has a comment');
SELECT is_empty($$SELECT objid::regprocedure FROM pg_depend
    WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_task')
    AND classid = 'pg_proc'::regclass AND obj_description(objid, 'pg_proc') IS NULL$$,
    'so has every function');
SELECT isnt(obj_description('task'::regclass, 'pg_class'), NULL, 'and the table');
SELECT is(a.attnotnull, w.required, format('%I %s', w.name, CASE WHEN w.required THEN 'is required'
    ELSE 'may be null' END))
  FROM wanted AS w JOIN pg_attribute AS a ON a.attrelid = 'task'::regclass AND a.attname = w.name
      ORDER BY n;
SELECT is(pg_get_expr(d.adbin, d.adrelid), w.def, format('default of %I', w.name))
  FROM wanted AS w JOIN pg_attribute AS a ON a.attrelid = 'task'::regclass AND a.attname = w.name
  LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum ORDER BY n;

SELECT is(attidentity, 'd', 'id is an identity that may be given') FROM pg_attribute
 WHERE attrelid = 'task'::regclass AND attname = 'id';
SELECT col_is_pk('public', 'task', 'id', 'id is the primary key');
SELECT table_owner_is('public'::name, 'task'::name, 'postgres'::name);

-- The indexes that the scheduler needs: of waiting rows by group, and of running rows.
SELECT set_eq($$SELECT regexp_replace(regexp_replace(pg_get_indexdef(indexrelid),
                               '^.* ON [^ ]+ ', ''), '\s+', ' ', 'g')
    FROM pg_index
                 WHERE indrelid = 'task'::regclass AND NOT indisprimary$$,
    ARRAY['USING btree (queue COLLATE "C", ( CASE WHEN (hold IS NULL) THEN '
              'COALESCE(max, 2147483647) ELSE 0 END), priority, role, role_id, dt, id) WHERE ((state = ''PLAN''::text) AND '
              '(waits IS NULL))',
          'USING btree (id) WHERE ((state = ''WORK''::text) OR (crashed > 0) OR ( CASE WHEN '
              '(start IS NULL) THEN ''infinity''::timestamp with time zone ELSE stop END IS NULL) '
              'OR (((repeat IS NOT NULL) OR (cron IS NOT NULL)) AND (next IS NULL) AND '
              '(state = ANY (ARRAY[''FAIL''::text, ''GONE''::text]))))',
          'USING btree (( CASE WHEN ((waits IS NULL) AND (hold IS NULL) AND '
              '(active < ''100 years''::interval)) THEN '
              '((COALESCE(planned, dt) AT TIME ZONE ''UTC''::text) + active) ELSE '
              'NULL::timestamp without time zone END)) WHERE ((state = ''PLAN''::text) AND '
              '(active IS NOT NULL))',
          'USING btree (waits) WHERE (waits IS NOT NULL)',
          'USING gin (after) WITH (fastupdate=off) WHERE (((waits IS NOT NULL) '
              'IS TRUE) AND (cardinality(after) > 1))',
          'USING btree (queue, key) WHERE ((key IS NOT NULL) AND '
              '(state = ANY (ARRAY[''PLAN''::text, ''WORK''::text])))',
          'USING btree (flow, step) WHERE (flow IS NOT NULL)'],
    'seven indexes beside the primary key');
SELECT is(count(*), 2::bigint, 'two of them are unique') FROM pg_index
 WHERE indrelid = 'task'::regclass AND indisunique AND NOT indisprimary;

SELECT trigger_is('public', 'task', 'pg_task_planned', 'pg_catalog', 'pg_task_planned',
    'a trigger of ours');
SELECT trigger_is('public', 'task', 'zz_pg_task_bound', 'pg_catalog', 'pg_task_bound', 'another');
SELECT is(tgenabled, 'A', 'it is enabled always, for rows that come by replication, too')
    FROM pg_trigger
 WHERE tgrelid = 'task'::regclass AND tgname IN ('pg_task_planned', 'zz_pg_task_bound');

-- The trigger on another table raises an error that names the problem.
CREATE TABLE other (id int, state text);
CREATE TRIGGER planned AFTER UPDATE ON other FOR EACH ROW EXECUTE FUNCTION pg_task_planned();
INSERT INTO other VALUES (1, 'PLAN');
SELECT throws_like('UPDATE other SET state = ''STOP''',
    'the table of this trigger is not a task table');
CREATE TABLE early (LIKE task INCLUDING ALL);
CREATE TRIGGER planned BEFORE INSERT ON early FOR EACH ROW EXECUTE FUNCTION pg_task_planned();
SELECT throws_like('INSERT INTO early (request) VALUES (''SELECT 1'')',
    'pg_task_planned must be called AFTER%');
DROP TRIGGER planned ON early;
CREATE TRIGGER planned BEFORE INSERT ON early FOR EACH ROW EXECUTE FUNCTION pg_task_timed();
SELECT throws_like('INSERT INTO early (request) VALUES (''SELECT 1'')',
    'pg_task_timed must be called BEFORE UPDATE%');
DROP TRIGGER planned ON early;
CREATE TRIGGER timed BEFORE UPDATE ON other FOR EACH ROW EXECUTE FUNCTION pg_task_timed();
ALTER TABLE other DISABLE TRIGGER planned;
SELECT throws_like('UPDATE other SET state = ''STOP''',
    'the table of this trigger is not a task table');
DROP TRIGGER timed ON other;
ALTER TABLE other ENABLE TRIGGER planned;
CREATE TRIGGER planned AFTER INSERT ON early EXECUTE FUNCTION pg_task_planned();
SELECT throws_like('INSERT INTO early (request) VALUES (''SELECT 1'')',
    'pg_task_planned must be called AFTER%');
DROP TRIGGER planned ON early;
CREATE TRIGGER bound AFTER INSERT ON early FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
SELECT throws_like('INSERT INTO early (request) VALUES (''SELECT 1'')',
    'pg_task_bound must be called BEFORE INSERT%');
DROP TRIGGER bound ON early;
CREATE TRIGGER planned AFTER DELETE ON early FOR EACH ROW EXECUTE FUNCTION pg_task_planned();
INSERT INTO early (request) VALUES ('SELECT 1');
SELECT throws_like('DELETE FROM early', 'pg_task_planned must be called AFTER%');
SELECT throws_like('SELECT pg_task_planned()', 'pg_task_planned must be called AFTER%');

-- The extension: its objects cannot be shadowed or changed by others.
SELECT has_extension('pg_catalog', 'pg_task', 'the extension is in pg_catalog');
SELECT function_owner_is('pg_catalog', 'pg_task_planned', '{}'::name[], 'postgres'::name);
SELECT volatility_is('pg_catalog', 'pg_task_next', ARRAY['timestamp with time zone', 'interval',
    'boolean', 'timestamp with time zone', 'text'], 'stable');

-- A role needs INSERT, and only that, to plan a task.
CREATE ROLE stranger;
CREATE ROLE inserter;
GRANT INSERT ON task TO inserter;
SET ROLE stranger;
SELECT throws_ok('INSERT INTO task (request) VALUES (''SELECT 1'')', '42501');
SELECT throws_ok('SELECT FROM task', '42501');
SET ROLE inserter;
SELECT lives_ok('INSERT INTO task (request, dt, queue, max, priority, repeat, key)
                 VALUES (''SELECT 1'', ''infinity'', ''q'', 1, 2, ''1 day'', ''k'')');
SELECT throws_ok('SELECT FROM task', '42501');
SELECT throws_ok('UPDATE task SET state = ''PLAN''', '42501');
SELECT throws_ok('DELETE FROM task', '42501');
RESET ROLE;
SELECT results_eq('SELECT p.proname FROM pg_proc AS p, aclexplode(p.proacl) AS a
                   WHERE p.proname ~ ''^pg_task_'' AND a.grantee = 0 ORDER BY 1',
    ARRAY['pg_task_bound', 'pg_task_facts', 'pg_task_flow', 'pg_task_following', 'pg_task_id',
          'pg_task_missing', 'pg_task_numbered', 'pg_task_own', 'pg_task_own', 'pg_task_planned',
          'pg_task_queue_changed', 'pg_task_queue_facts', 'pg_task_queue_own', 'pg_task_removed',
          'pg_task_returns_json', 'pg_task_timed', 'pg_task_watched']::name[],
    'what owners and statements need is granted to PUBLIC, whatever the default privileges are');
SELECT results_eq('SELECT role, state, parent IS NULL FROM task WHERE queue = ''q''',
    'VALUES (''inserter''::name, ''PLAN'', true)', 'it is a task of the role that inserted it');

SELECT * FROM finish();
ROLLBACK;
