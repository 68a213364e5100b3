# pg_task_create(): who may call it, what it makes, as whom, and that neither it nor a scheduler
# locks what is whole.  A TAP test because it needs databases, roles, and sessions that hold locks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main',
	conf => "max_worker_processes = 30\npg_task.period = '100 ms'");
my $parts = q{SELECT count(*), string_agg(DISTINCT relowner::regrole::text, ',')
	FROM pg_class WHERE relname ~ '^task' AND relkind IN ('r', 'i', 'S')
	AND relnamespace = '%s'::regnamespace};

set_conf($node, 'pg_task.create_table = off');
wait_until($node, q{SHOW pg_task.create_table}, expected => 'off');
sql('CREATE ROLE boss LOGIN; CREATE ROLE app LOGIN; CREATE ROLE member LOGIN IN ROLE boss');
sql("CREATE DATABASE $_ OWNER boss") for qw(made raced held trapped closed);

subtest 'where no table is made by itself' => sub {
	wait_until($node, q{SELECT count(*) = 5 FROM pg_stat_task_scheduler()
		WHERE state = 'no table'});
	sql_in('made', 'CREATE EXTENSION pg_task; GRANT CREATE ON SCHEMA public TO boss');
	like(error_of('postgres', 'SELECT * FROM pg_task_top()', db => 'made'),
		qr/no task table of this database is known\nHINT: .*SELECT pg_task_create\(\)/,
		'a function that needs it names that which makes it');
	is(sql_in('made', q{BEGIN; SELECT pg_task_create();
		INSERT INTO task (role, request) VALUES ('boss', 'SELECT 40 + 2') RETURNING id; COMMIT}),
		"task\n1",
		'a superuser makes it, and uses it at once');
	wait_for_state($node, 1, 'DONE', db => 'made');
	is(sql_in('made', sprintf($parts, 'public')), '14|boss',
		'all belongs to the owner of the database');
	is(sql_in('made', q{SELECT count(*), bool_and(c.condeferrable) FROM pg_constraint AS c
		WHERE conrelid = 'task_queue'::regclass AND contype = 'c'}), '13|f', 'with constraints');
	my $before = sql_in('made', q{SELECT string_agg(xmin || ' ' || oid, ',' ORDER BY oid)
		FROM pg_class WHERE relname ~ '^task'});
	is(sql_in('made', q{SET SESSION AUTHORIZATION member; BEGIN; SELECT pg_task_create();
		SELECT string_agg(DISTINCT mode, ',') FROM pg_locks
		WHERE relation IN ('task'::regclass, 'task_queue'::regclass, 'task_rate'::regclass)
			AND pid = pg_backend_pid();
		COMMIT}), "task\nAccessShareLock", 'again, by a member of the owner: no other lock');
	is(sql_in('made', q{SELECT string_agg(xmin || ' ' || oid, ',' ORDER BY oid)
		FROM pg_class WHERE relname ~ '^task'}), $before, 'nothing has changed');
};

subtest 'what is missing' => sub {
	my ($all) = sql(q{SELECT acldefault('r', 10)}) =~ /=(\w+)/;

	run_task($node, db => 'made', role => 'boss', request => 'SELECT 1');
	sql_in('made', q{ALTER DATABASE made SET pg_task.enabled = off});
	wait_until($node, q{SELECT state = 'disabled' FROM pg_stat_task_scheduler()
		WHERE datname = 'made'});
	sql_in('made', q{
		ALTER INDEX task_plan_idx RENAME TO mine; DROP INDEX task_key_idx;
		CREATE TABLE task_key_idx (); ALTER TABLE task_key_idx OWNER TO app;
		DROP TRIGGER pg_task_planned ON task; DROP POLICY pg_task_own ON task;
		ALTER TABLE task DROP COLUMN notice, ALTER COLUMN flow DROP DEFAULT, ADD COLUMN more int,
			ENABLE TRIGGER pg_task_timed;
		ALTER TABLE task_queue DROP CONSTRAINT "max must be zero or more, or -1", DROP COLUMN batch;
		DROP TABLE task_rate; ALTER DEFAULT PRIVILEGES FOR ROLE boss GRANT ALL ON TABLES TO app;
		SELECT pg_task_create()});
	is(sql_in('made', q{SELECT to_regclass('task_plan_idx') IS NOT NULL,
		to_regclass('mine') IS NOT NULL,
		(SELECT count(*) FROM pg_index WHERE indrelid = 'task'::regclass AND indisvalid),
		(SELECT count(*) FROM pg_trigger WHERE tgrelid = 'task'::regclass AND tgenabled = 'A'),
		(SELECT count(*) FROM pg_policy WHERE polrelid = 'task'::regclass),
		(SELECT count(*) FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0
			AND NOT attisdropped),
		(SELECT count(*) FROM pg_constraint WHERE conrelid = 'task_queue'::regclass
			AND contype = 'c'),
		(SELECT relacl FROM pg_class WHERE oid = 'task_rate'::regclass)}),
		"t|t|9|6|1|55|13|{boss=$all/boss}",
		'is made, and no more');
	is(sql_in('made', q{SELECT count(*) FROM pg_class WHERE relname ~ '^task_key_idx\d+$'}), '1',
		'an index whose name somebody has taken gets a number');
	is(sql_in('made', q{SELECT count(*)
		FROM pg_task_missing('task', 'public'::regnamespace, 'task')}),
		'0', 'and counts');
	sql_in('made', q{ALTER DATABASE made RESET pg_task.enabled});
	run_task($node, db => 'made', role => 'boss', request => 'SELECT 2');
};

subtest 'who may not' => sub {
	is(sqlstate_of('app', 'SELECT pg_task_create()', db => 'made'), '42501', 'somebody else');
	is(sqlstate_of('boss', 'BEGIN READ ONLY; SELECT pg_task_create()', db => 'made'), '25006',
		'a transaction that only reads');
	sql_in('held', 'CREATE EXTENSION pg_task; REVOKE CREATE ON SCHEMA public FROM PUBLIC,
		pg_database_owner');
	like(error_of('postgres', 'SELECT pg_task_create()', db => 'held'),
		qr/role "boss" may not create the task table in schema "public"/, 'for a role that may not');
};

subtest 'what is not ours' => sub {
	sql_in('trapped', q{CREATE EXTENSION pg_task; GRANT CREATE ON SCHEMA public TO boss, app;
		CREATE VIEW task AS SELECT 1 AS id});
	like(error_of('postgres', 'SELECT pg_task_create()', db => 'trapped', sqlstate => 1),
		qr/42809: public.task is not a task table/, 'a view');
	is(sql_in('trapped', q{SELECT relkind FROM pg_class WHERE relname = 'task'}), 'v',
		'is untouched');
	sql_in('trapped', 'DROP VIEW task');
	sql_in('trapped', q{SET ROLE app; CREATE TABLE task_queue (queue text PRIMARY KEY,
		paused bool)});
	like(error_of('boss', 'SELECT pg_task_create()', db => 'trapped', sqlstate => 1),
		qr/55000: table "task_queue" cannot be used\nDETAIL:  It has another owner/,
		'a queue table of somebody else');
	is(sql_in('trapped', q{SELECT count(*) FROM pg_attribute
		WHERE attrelid = 'task_queue'::regclass AND attnum > 0}), '2', 'is untouched, too');
	sql_in('trapped', 'DROP TABLE task_queue');

	# a table that a tenant has made first is his: nothing is done there with other rights
	sql_in('trapped', q{SET ROLE app;
		CREATE TABLE task (id bigint PRIMARY KEY, dt timestamptz NOT NULL, request text NOT NULL,
			state text NOT NULL, attempt int NOT NULL);
		CREATE FUNCTION who() RETURNS text LANGUAGE plpgsql
			AS 'BEGIN RAISE WARNING ''run by %'', current_user; RETURN 1; END';
		ALTER TABLE task ADD CHECK (who() IS NOT NULL);
		CREATE INDEX ON task ((request || 'x'))});
	is(sqlstate_of('boss', 'SELECT pg_task_create()', db => 'trapped'), '42501',
		'the owner of the database may not change it');
	unlike(notices_of('postgres', 'SELECT pg_task_create()', db => 'trapped'), qr/run by/,
		'a superuser may, and no code of the owner runs');
	is(sql_in('trapped', sprintf($parts, 'public')) =~ s/^\d+//r, '|app', 'all is his');
};

# A tenant who keeps his tables locked delays neither the scheduler nor pg_task_create.
subtest 'a queue table of somebody else, and a lock' => sub {
	sql_in('held', q{DROP TABLE IF EXISTS task, task_queue, task_rate;
		CREATE EXTENSION IF NOT EXISTS pg_task; GRANT CREATE ON SCHEMA public TO boss, app});
	sql_in('held', q{SET ROLE app; CREATE TABLE task_queue (queue text) PARTITION BY LIST (queue);
		CREATE TABLE part PARTITION OF task_queue FOR VALUES IN ('x');
		CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER pg_task_queue_changed AFTER INSERT ON task_queue FOR EACH ROW
			EXECUTE FUNCTION nothing();
		ALTER TABLE ONLY task_queue ENABLE ALWAYS TRIGGER pg_task_queue_changed});
	my $create = q{SET lock_timeout = '100 s'; SELECT pg_task_create()};
	my $fault = qr/55000: table "task_queue" cannot be used\nDETAIL:  It has another owner/;
	like(error_of('boss', $create, db => 'held', sqlstate => 1), $fault, 'another owner');
	sql_in('held', q{BEGIN; ALTER TABLE task_queue RENAME TO other; SET LOCAL ROLE boss;
		SELECT pg_task_create(); RESET ROLE; DROP TABLE task_queue;
		ALTER TABLE other RENAME TO task_queue; COMMIT});
	my $session = open_session($node, 'held');
	$session->query_safe('BEGIN; LOCK TABLE part IN ACCESS EXCLUSIVE MODE');
	like(error_of('boss', $create, db => 'held', sqlstate => 1), $fault, 'not locked');
	terminate($node, sql(q{SELECT coalesce(max(pid), 0) FROM pg_stat_task_scheduler()
		WHERE datname = 'held'}));
	run_task($node, db => 'held', role => 'boss', request => 'SELECT 1');
	pass('tasks run');
	$session->query_safe('COMMIT');
	$session->quit;
	sql_in('held', 'DROP TABLE task_queue');
};

# Where new functions are nobody's by default, the owner of the table can make and use it.
subtest 'default privileges' => sub {
	sql_in('closed', q{ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
		CREATE EXTENSION pg_task; GRANT CREATE ON SCHEMA public TO boss});
	is(sql_in('closed', 'SELECT pg_task_create()'), 'task', 'the table is made as its owner');
	wait_until($node, q{SELECT state FROM pg_stat_task_scheduler() WHERE datname = 'closed'},
		expected => 'running');
	is(sql_in('closed', "SELECT count(*) FROM $_"), 1, "a superuser reads as the owner: $_")
	  for 'pg_task_status()', 'pg_task_why(1)', 'pg_task_result(1)', q{pg_task_graph('f')},
	  'pg_task_results(true, 1)';
	is(sql_in('closed', "SELECT count(*) FROM $_()"), 0, "a superuser reads as the owner: $_")
	  for qw(pg_task_top pg_task_queues pg_task_stats pg_task_failures pg_task_repeating);
	is(sqlstate_of('app', 'SELECT * FROM pg_task_status()', db => 'closed'), '42501',
		'others may not call it');
};

# Sessions and the scheduler make the tables of one database at the same time.
subtest 'at once' => sub {
	sql_in('raced', 'CREATE EXTENSION pg_task; GRANT CREATE ON SCHEMA public TO boss');
	sql('ALTER DATABASE raced SET pg_task.create_table = on');
	my @sessions = map { open_session($node, 'raced') } 1 .. 4;

	$_->query_until(qr/sent/, "\\echo sent\nSELECT pg_task_create();\n") for @sessions;
	$_->query_safe('SELECT 1') for @sessions;
	is(join('', map { $_->{stderr} } @sessions), '', 'none fails');
	$_->quit for @sessions;
	run_task($node, db => 'raced', role => 'boss', request => 'SELECT 1');
};

# A table that is whole is not locked more than by SELECT.
subtest 'a scheduler starts beside locks of others' => sub {
	my $state = q{SELECT state FROM pg_stat_task_scheduler() WHERE datname = 'raced'};
	my @sessions = map { open_session($node, 'raced') } 1 .. 5;
	my ($pid, $id);

	$sessions[0]->query_safe('BEGIN; LOCK task IN ROW EXCLUSIVE MODE');
	$sessions[1]->query_safe('BEGIN; LOCK task IN ACCESS SHARE MODE');
	$sessions[2]->query_safe('BEGIN; LOCK task_queue, task_rate IN SHARE MODE');
	$sessions[3]->query_safe('BEGIN; LOCK task_queue IN ROW SHARE MODE');
	$pid = sql(q{SELECT pid FROM pg_stat_task_scheduler() WHERE datname = 'raced'});
	terminate($node, $pid);
	run_task($node, db => 'raced', role => 'boss', request => 'SELECT 1');
	pass('tasks run');
	$sessions[0]->query_safe('COMMIT');
	$sessions[4]->query_safe('BEGIN; LOCK task IN SHARE MODE');
	$pid = sql(q{SELECT pid FROM pg_stat_task_scheduler() WHERE datname = 'raced'});
	terminate($node, $pid);
	wait_until($node, "$state AND pid <> $pid", expected => 'running');
	is(sql_in('raced', 'SELECT pg_task_create()'), 'task', 'pg_task_create neither');
	$sessions[4]->query_safe('COMMIT');
	run_task($node, db => 'raced', role => 'boss', request => 'SELECT 1');
	$_->quit for @sessions;
};

# A migration in a new database, with the extension in template1, beside the scheduler.
subtest 'the first statement of a new database' => sub {
	my @databases = map { "new$_" } 1 .. 6;

	sql_in('template1', 'CREATE EXTENSION pg_task');
	end_sessions($node);
	set_conf($node, 'pg_task.create_table = on');
	wait_until($node, q{SHOW pg_task.create_table}, expected => 'on');
	for my $db (@databases)
	{
		sql("CREATE DATABASE $db OWNER boss");
		my ($rc, $out, $err) = run_psql($node, $db, q{SELECT pg_task_create();
			GRANT SELECT, INSERT ON task TO app}, '-U', 'boss');
		is("$rc $err", '0 ', "$db: the table is there");
	}
	end_sessions($node);
	sql("DROP DATABASE $_") for @databases;
	sql_in('template1', 'DROP EXTENSION pg_task CASCADE');
};

done_testing();
