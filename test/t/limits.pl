# The limits of queues and of executors.  A TAP test because the number of executors is a setting
# of the server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('limits', conf => 'pg_task.max_executors = 8');
my $script = $node->basedir . '/insert.sql';

make_gates($node);
sql(q{
	CREATE TABLE seen (queue text, running int);
	CREATE FUNCTION look(name text, goal int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		n int;
	BEGIN
		LOOP
			SELECT count(*) INTO n FROM task WHERE queue = name AND state = 'WORK';
			EXIT WHEN n >= goal OR EXISTS (SELECT FROM seen WHERE queue = name AND running >= goal);
			PERFORM pg_sleep(0.01);
		END LOOP;
		INSERT INTO seen VALUES (name, n);
		PERFORM pg_sleep(random() * 0.005);
	END $$});

# Tasks of limited queues, inserted by many sessions; each task counts how many of its queue are
# running, and the first ones wait until there are as many as may be.  There are executors for all
# of those.  One session rolls back, one inserts many at once.
subtest 'many sessions insert' => sub {
	append_to_file($script, q{
		INSERT INTO task (queue, max, request) VALUES ('three', 3, 'SELECT look(''three'', 3)');
		INSERT INTO task (queue, max, request) VALUES ('one', 1, 'SELECT look(''one'', 1)');
		INSERT INTO task (queue, request) VALUES ('any', 'SELECT look(''any'', 2)');
		INSERT INTO task (queue, max, request)
		SELECT 'mixed', 1 + n % 4, 'SELECT look(''mixed'', 4)' FROM generate_series(1, 4) AS n;
		BEGIN;
		INSERT INTO task (queue, max, request) VALUES ('three', 3, 'SELECT look(''three'', 3)');
		ROLLBACK;
	});
	$node->command_ok([ 'pgbench', '-n', '-c', '10', '-t', '20', '-f', $script, 'postgres' ],
		'ten sessions have inserted');
	wait_until($node, q{SELECT count(*) = 1400 FROM task WHERE state = 'DONE'});
	is(sql(q{SELECT max(running), count(*) FROM seen WHERE queue = 'three'}), '3|200',
		'at most three tasks run at once, and three do');
	is(sql(q{SELECT max(running), count(*) FROM seen WHERE queue = 'one'}), '1|200',
		'at most one task runs at once');
	is(sql(q{SELECT max(running), count(*) FROM seen WHERE queue = 'mixed'}), '4|800',
		'the largest limit counts for the queue');
	cmp_ok(sql(q{SELECT max(running) FROM seen WHERE queue = 'any'}), '>', 1,
		'without a limit tasks run at the same time');
	is(sql(q{SELECT count(*) FROM task WHERE attempt <> 1}), 0, 'each task was started once');
};

# A limit counts all running tasks of the queue, whatever their own limits.
subtest 'tasks with different limits' => sub {
	sql(q{TRUNCATE task;
		INSERT INTO task (queue, request) SELECT 'full', 'SELECT hold(''full'')'
		FROM generate_series(1, 3)});
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE state = 'WORK'});
	my $fourth = insert_task($node, queue => 'full', max => 4, request => 'SELECT 1');
	my $third = insert_task($node, queue => 'full', max => 3, request => 'SELECT 1');
	wait_for_state($node, $fourth, 'DONE');
	is(task($node, $third, 'state'), 'PLAN',
		'one of max 3 does not start beside three others, one of max 4 does');
	open_gate($node, 'full');
	wait_for_state($node, $third, 'DONE');
};

# A task with max = 0 does not start until max is changed.
subtest 'max = 0' => sub {
	my $never = insert_task($node, queue => 'never', max => 0, request => 'SELECT 1');
	is(task($node, run_task($node, queue => 'never', max => 1, request => 'SELECT 1'), 'state'),
		'DONE',
		'a task with max 0 does not delay others');
	is(task($node, $never, 'state, attempt'), 'PLAN|0', 'max 0 does not start');
	sql("UPDATE task SET max = 1 WHERE id = $never");
	wait_for_state($node, $never, 'DONE');
};

# A negative max: one at a time, with at least that many milliseconds from start to start.  They are
# counted from claim to claim, and the row of a running task has the time of its claim.
subtest 'negative max' => sub {
	sql(q{TRUNCATE task; INSERT INTO task (queue, max, request)
		SELECT 'pause', -300, 'SELECT start FROM task WHERE state = ''WORK'''
		FROM generate_series(1, 4)});
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE state = 'DONE'});
	is(sql(q{SELECT bool_and(claim - before > '290 ms'), bool_and(claim - before < '30 s')
		FROM (SELECT claim, lag(claim) OVER (ORDER BY claim) AS before
			FROM task, CAST(response AS timestamptz) AS claim) AS x WHERE before IS NOT NULL}),
		't|t', 'a pause between two starts');
	sql(q{TRUNCATE task; INSERT INTO task (queue, max, request)
		SELECT 'alone', -1, 'SELECT pg_sleep(0.05)' FROM generate_series(1, 4)});
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE state = 'DONE'});
	is(sql(q{SELECT bool_and(start >= before) FROM (SELECT start, lag(stop) OVER (ORDER BY start)
		AS before FROM task) AS x}),
		't', 'one task at a time, however short the pause');
};

# A full queue, however long, does not delay other queues.
subtest 'a full queue' => sub {
	sql(q{TRUNCATE task;
		INSERT INTO task (queue, max, request, dt)
		SELECT 'long', 1, 'SELECT hold(''long'')', '2019-07-01' FROM generate_series(1, 20000)});
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'WORK'});
	for my $n (1 .. 3)
	{
		is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE',
			"tasks of another queue start: $n");
	}
	sql(q{DELETE FROM task WHERE state = 'PLAN'});
	open_gate($node, 'long');
};

# A role with as many executors as it may have: one that is idle in another database makes way.
subtest 'a role with tasks in two databases' => sub {
	sql('CREATE DATABASE other; CREATE ROLE app LOGIN; ALTER ROLE app SET pg_task.role_executors = 1');
	wait_for_table($node, db => 'other');
	apply_conf($node, "pg_task.idle_timeout = '1 h'");
	for my $db (qw(postgres other postgres))
	{
		my $id = run_task($node, db => $db, request => 'SELECT 1', role => 'app');
		is(task($node, $id, 'state', db => $db), 'DONE', "it runs in database $db");
	}
};

# Two databases have work for the only executor that a role may have: each gets it for a time slice
# of 100 ms, however short the tasks are.
subtest 'two databases share the executor of a role' => sub {
	my @dbs = qw(postgres other);

	make_gates($node, db => 'other');
	for my $db (@dbs)
	{
		sql_in($db, q{TRUNCATE task; GRANT SELECT, INSERT ON task TO app;
			CREATE FUNCTION go_on() RETURNS void LANGUAGE plpgsql AS $$
			BEGIN
				INSERT INTO public.task (request) SELECT 'SELECT go_on()'
				WHERE NOT EXISTS (SELECT FROM public.gate WHERE name = 'enough');
			END $$});
		sql_in($db, q{INSERT INTO task (role, request) SELECT 'app', 'SELECT go_on()'
			FROM generate_series(1, 100)});
	}
	for my $db ((@dbs) x 3)
	{
		my $done = count_of($node, q{state = 'DONE'}, db => $db);
		wait_until($node, "SELECT count(*) > $done + 100 FROM task WHERE state = 'DONE'",
			db => $db);
	}
	pass('both go on in turns');
	open_gate($node, 'enough', db => $_) for @dbs;
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'}, db => $_) for @dbs;
	my ($executors, $tasks, $ms) = (0, 0, 0);
	for my $db (@dbs)
	{
		my @of_db = split /\|/, sql_in($db, q{SELECT count(DISTINCT pid), count(*),
			extract(epoch FROM max(stop) - min(start)) * 1000 FROM task});
		$executors += $of_db[0];
		$tasks += $of_db[1];
		$ms = $of_db[2] if $of_db[2] > $ms;
	}
	note("$tasks tasks, $executors executors, $ms ms");
	cmp_ok($executors, '<=', 3 + $ms / 100, 'not after each task');
};

# The only executor that a role may have is busy in another database.  The scheduler looks at its
# table once an hour, so something has to tell it that there is one for it.
subtest 'a role whose executor is busy in another database' => sub {
	apply_conf($node, "pg_task.period = '1 h'");
	my $busy = insert_task($node, request => q{SELECT hold('busy')}, role => 'app');
	wait_for_running($node, 1, id => $busy, user => 'app', db => 'postgres');
	my $id = insert_task($node, db => 'other', request => 'SELECT 1', role => 'app');
	wait_until($node, q{SELECT wanted > 0 FROM pg_stat_task_scheduler() WHERE datname = 'other'});
	is(task($node, $id, 'state', db => 'other'), 'PLAN', 'its task waits');
	open_gate($node, 'busy');
	wait_for_state($node, $id, 'DONE', db => 'other');
	pass('it gets the executor after the task');
	apply_conf($node, 'pg_task.period = 1s');
};

# Idle executors stay for a while, then exit.
subtest 'idle executors' => sub {
	run_task($node, request => 'SELECT 1');
	cmp_ok(scalar(backends($node, 'executor')), '>', 0, 'an executor stays');
	set_conf($node, 'pg_task.idle_timeout = 50ms');
	wait_for_backends($node, 'executor', 0);
	# the server tells in its log which processes it starts
	set_conf($node, 'pg_task.idle_timeout = 0', 'log_min_messages = debug1');
	wait_until($node, 'SHOW pg_task.idle_timeout', expected => '0');
	my @starts;
	for (1 .. 5)
	{
		my $position = log_position($node);

		run_task($node, request => 'SELECT 1');
		push @starts, scalar(() = log_since($node, $position)
			  =~ /starting background worker process "pg_task executor/g);
		wait_for_backends($node, 'executor', 0);
	}
	is((sort { $a <=> $b } @starts)[0], 1,
		'with idle_timeout = 0 an executor waits for its first task');
	note("executors started: @starts");
	$node->stop;
};

my $small;

# Fewer worker slots than executors: the executors that could start do the work, and are passed to
# the databases that need them.  One slot is left for the server, so there is one scheduler at a
# time.
subtest 'fewer worker slots than executors' => sub {
	$small = new_node('small',
		conf => "max_worker_processes = 4\nmax_logical_replication_workers = 0");
	$small->safe_psql('postgres',
		q{INSERT INTO task (request) SELECT 'SELECT pg_sleep(0.01)' FROM generate_series(1, 20)});
	wait_until($small, q{SELECT count(*) = 20 FROM task WHERE state = 'DONE'});
	$small->safe_psql('postgres', 'CREATE DATABASE one');
	wait_for_table($small, db => 'one');
	run_task($small, request => 'SELECT 1');
	my $position = log_position($small);
	run_task($small, db => 'one', request => 'SELECT 1');
	is(task($small, 1, q{start - dt < '30 s'}, db => 'one'), 't',
		'an idle executor exits for another database');
};

# Other workers use all worker slots: rows wait, the log reports it once, and the rows run when
# there is a slot.
subtest 'no free worker slot' => sub {
	my @schedulers = split /\n/, sql(q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'one'}, node => $small);

	sql(q{DROP DATABASE one;
		CREATE TABLE large AS SELECT n FROM generate_series(1, 10000) AS n; ANALYZE large},
		node => $small);
	wait_for_schedulers($small, 'postgres');
	my @executors = backends($small, 'executor');
	terminate($small, @executors);
	# so that there are slots for all parallel workers
	wait_for_exit($small, $_) for @schedulers, @executors;
	wait_for_backends($small, 'executor', 0);
	$small->safe_psql('postgres', 'ALTER TABLE large SET (parallel_workers = 2)');
	my $parallel = open_session($small, 'postgres', on_error_stop => 0);
	$parallel->query_until(qr/begun/, q{SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
		SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2;
		\echo begun
		SELECT count(pg_sleep(1)) FROM large;
	});
	wait_until($small,
		q{SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'parallel worker'});
	my $position = log_position($small);
	my $id = insert_task($small, request => 'SELECT 1');
	wait_for_log_line($small,
		qr/LOG:\ \ no\ background\ worker\ slot\ is\ free\ for\ an\ executor
			\ of\ database\ "postgres".*?HINT:\ \ Increase\ "max_worker_processes"/sx,
		$position);
	is(task($small, $id, 'state, attempt'), 'PLAN|0', 'without a worker slot the row waits');
	$small->safe_psql('postgres',
		q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1)%'
		AND backend_type = 'client backend' AND pid <> pg_backend_pid()});
	$parallel->quit;
	wait_for_state($small, $id, 'DONE');
	is(scalar(() = log_since($small,
		$position) =~ /no background worker slot is free for an executor/g), 1,
		'the error was logged once');
};

done_testing();
