# Thousands of short tasks are stopped while executors run them: the wrong one is never cancelled.
# Also: changes that the trigger does not report, requests that ignore a cancel, and changes that
# do not stop a task.  A TAP test because of its sessions and settings.
use strict;
use warnings;
use FindBin;
use IPC::Run ();
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = '1 h'\npg_task.max_executors = 4");

make_gates($node);
sql(q{
	CREATE TABLE effect (task bigint);
	CREATE TABLE stopped (task bigint);
	CREATE TABLE again (task bigint)});

# Tasks that take from zero to a few milliseconds; four sessions stop, cancel, delete and re-plan
# waiting and running ones.
subtest 'tasks are stopped while executors run them' => sub {
	my $tasks = 6000;
	my %script = (
		stop => "\\set id random(1, $tasks)\nWITH s AS (UPDATE task SET state = 'STOP' "
			. "WHERE id = :id "
			. "AND state IN ('PLAN', 'WORK') RETURNING id) INSERT INTO stopped SELECT id FROM s;\n",
		# those that run now, or will run next
		running => "WITH r AS (SELECT id FROM task WHERE state = 'WORK' ORDER BY random() LIMIT 1),
			s AS (UPDATE task SET state = 'STOP' WHERE id = (SELECT id FROM r) AND state = 'WORK' "
			. "RETURNING id) INSERT INTO stopped SELECT id FROM s;\n",
		cancel => "\\set id random(1, $tasks)\nWITH c AS MATERIALIZED (SELECT :id "
		. "AS id, pg_task_cancel(:id) AS done) INSERT INTO stopped SELECT id FROM c WHERE done;\n",
		again => "WITH r AS (SELECT id FROM task WHERE state = 'WORK' ORDER BY random() LIMIT 1),
			s AS (UPDATE task SET state = 'PLAN' WHERE id = (SELECT id FROM r) AND state = 'WORK' "
			. "RETURNING id) INSERT INTO again SELECT id FROM s;\n");
	my @scripts;
	for my $name (sort keys %script)
	{
		my $file = $node->basedir . "/$name.sql";
		append_to_file($file, $script{$name});
		push @scripts, '-f', $file;
	}
	for my $work ('SELECT 1', 'SELECT pg_sleep(0.001)',
		'SELECT pg_sleep(0.002 * random()); SELECT count(*) FROM generate_series(1, 1000)')
	{
		sql(q{TRUNCATE task RESTART IDENTITY; TRUNCATE effect, stopped, again});
		# the first four are behind a gate, until one of them has been stopped while it ran
		sql(qq{INSERT INTO task (queue, request)
			SELECT 'q' || n % 3,
			'INSERT INTO effect VALUES (current_setting(''pg_task.id'')::bigint); ' ||
			CASE WHEN n <= 4 THEN 'SELECT hold(\$\$$work\$\$)' ELSE '$work' END
			FROM generate_series(1, $tasks) AS n});
		wait_for_running($node, 4);
		my $bench = IPC::Run::start([ 'pgbench', '-n', '-c', '4', '-t', '250', @scripts, '-h',
			$node->host, '-p', $node->port, 'postgres' ], '>', \my $out, '2>', \my $err);
		# pgbench may choose others each time, or have them planned again at the moment
		wait_until($node, q{WITH s AS (UPDATE task SET state = 'STOP' WHERE state = 'WORK'
				AND id = (SELECT id FROM task WHERE id <= 4 AND state = 'WORK' LIMIT 1)
				RETURNING id),
			n AS (INSERT INTO stopped SELECT id FROM s RETURNING task)
			SELECT EXISTS (SELECT FROM n) OR EXISTS (SELECT FROM task WHERE id <= 4
				AND state = 'STOP' AND attempt > 0)});
		open_gate($node, $work);
		ok($bench->finish, "$work: pgbench stops tasks") or diag $err;
		wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
		wait_for_running($node, 0);
		is(sql(q{SELECT string_agg(DISTINCT state, ' ' ORDER BY state) FROM task}), 'DONE STOP',
			"$work: all tasks are DONE or STOP");
		is(count_of($node, 'failed > 0 OR crashed > 0'), 0, "$work: none has failed");
		is(count_of($node, q{state = 'DONE' AND (sqlstate IS NOT NULL OR error IS NOT NULL)}), 0,
			"$work: no other was cancelled");
		is(sql(q{SELECT count(*) FROM (SELECT task FROM stopped EXCEPT SELECT id FROM task
			WHERE state = 'STOP') AS x}), 0, "$work: all that were stopped are STOP");
		is(sql(q{SELECT count(*) FROM (SELECT id FROM task WHERE state = 'STOP' EXCEPT SELECT task
			FROM stopped) AS x}), 0, "$work: no other task is STOP");
		is(sql(q{SELECT count(*), count(DISTINCT task) FROM effect}),
			join('|', (count_of($node, q{state = 'DONE'})) x 2),
			"$work: each that is DONE has one effect");
		is(sql(q{SELECT count(*) FROM effect JOIN stopped USING (task)}), 0,
			"$work: none that was stopped has one");
		is(count_of($node, q{attempt > 1 AND id NOT IN (SELECT task FROM again)}), 0,
			"$work: only tasks that were planned again ran again");
		cmp_ok(count_of($node, q{state = 'STOP' AND attempt > 0}), '>', 0,
			"$work: some were stopped when they were claimed or ran");
	}
};

# All tasks at once, waiting and running.
subtest 'all tasks are stopped at once' => sub {
	sql(q{TRUNCATE task, effect; INSERT INTO task (request) SELECT 'SELECT pg_sleep(0.001)'
		FROM generate_series(1, 10000)});
	wait_until($node, q{SELECT count(*) > 10 FROM task WHERE state = 'DONE'});
	sql(q{UPDATE task SET state = 'STOP' WHERE state IN ('PLAN', 'WORK')});
	my $done = count_of($node, q{state = 'DONE'});
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(count_of($node, q{state = 'DONE'}), $done + 1,
		'of the tasks that were stopped at once, none ran');
	is(count_of($node, q{state NOT IN ('DONE', 'STOP') OR failed > 0}), 0,
		'all tasks are DONE or STOP');
};

# pg_cancel_backend does not stop a task: the run has failed, and is retried as any other.
sub start_task
{
	my $id = insert_task($node, @_);
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	return $id;
}

my $id;

subtest 'pg_cancel_backend does not stop a task' => sub {
	$id = start_task(request => 'INSERT INTO effect VALUES (1); SELECT pg_sleep(600)');
	sql("SELECT pg_cancel_backend(pid) FROM task WHERE id = $id");
	wait_for_state($node, $id, 'FAIL');
	is_row($node, $id,
		{ failed => 1, sqlstate => '57014', error => 'canceling statement due to user request' },
		'pg_cancel_backend: the run has failed');
	$id = start_task(retry => 1, delay => '10 min', repeat => '1 hour',
		request => 'INSERT INTO effect VALUES (1); SELECT pg_sleep(600)');
	sql("SELECT pg_cancel_backend(pid) FROM task WHERE id = $id");
	wait_until($node,
		"SELECT state = 'PLAN' AND failed = 1 AND sqlstate = '57014' FROM task WHERE id = $id");
	sql("UPDATE task SET request = 'SELECT 1', dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is(count_of($node, "parent = $id"), 1, 'pg_cancel_backend: the task is retried and repeats');
	is(sql('SELECT count(*) FROM effect'), 0, 'pg_cancel_backend: no effect');
	# It has no effect on an idle executor, nor on the task that runs there next.
	for (1 .. 20)
	{
		sql(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'pg_task executor'});
		$id = run_task($node, request => 'SELECT 1');
		last if task($node, $id, 'state') ne 'DONE';
	}
	is(task($node, $id, 'state'), 'DONE', 'pg_cancel_backend: an idle executor ignores it');
};

# As pg_cancel_backend, but by the id: whatever the process runs by then, no other run has failed.
subtest 'pg_task_interrupt ends one run' => sub {
	sql(q{CREATE ROLE ann LOGIN; CREATE ROLE boss LOGIN IN ROLE ann; CREATE ROLE bob LOGIN;
		CREATE ROLE keeper LOGIN IN ROLE ann; CREATE ROLE police LOGIN IN ROLE pg_signal_backend});
	sql('ALTER ROLE keeper NOINHERIT; ALTER TABLE task OWNER TO keeper;
		GRANT SELECT, INSERT, UPDATE, DELETE ON task TO ann, bob; TRUNCATE task');
	my $interrupt = sub {
		my ($user, $of, @attempt) = @_;
		return sql_as($user, "SELECT pg_task_interrupt($of" . join('', map { ", $_" } @attempt) . ')');
	};
	my $failed = sub { wait_until($node, "SELECT state = 'FAIL' AND sqlstate = '57014' FROM task
		WHERE id = $_[0]"); pass("$_[1]: it has failed") };

	for my $user (qw(ann boss keeper police postgres))
	{
		$id = start_task(role => 'ann', request => 'SELECT pg_sleep(600)');
		is($interrupt->('bob', $id), 'f', 'not by others');
		is(notices_of('bob', "SELECT pg_task_interrupt($id)"), "NOTICE:  task $id is not interrupted: "
			. 'it does not run, or you may not interrupt it', 'who learn nothing');
		is($interrupt->($user, $id, $_), 'f', "not attempt $_") for 0, 2;
		is($interrupt->($user, $id, 1), 't', "$user may");
		$failed->($id, $user);
		is($interrupt->($user, $id), 'f', 'once');
	}
	sql('ALTER TABLE task OWNER TO postgres');
	wait_for_table($node);
	$id = start_task(request => 'SELECT pg_sleep(600)');
	is($interrupt->($_, $id), 'f', "$_: not a superuser's") for qw(police keeper ann);
	is($interrupt->('postgres', $id), 't', 'but the superuser');
	$failed->($id, 'superuser');
	is(sql('SELECT pg_task_interrupt(NULL)'), '', 'NULL');

	# members of batches, and others; the last of them are interrupted when the next begin
	sql(q{TRUNCATE task RESTART IDENTITY; TRUNCATE stopped, gate;
		INSERT INTO task_queue (queue, batch) VALUES ('alone', 1);
		INSERT INTO task (queue, retry, request) SELECT CASE n % 2 WHEN 1 THEN 'alone' ELSE 'batch' END,
			0, CASE WHEN n <= 4 THEN 'SELECT hold(''interrupt'')' ELSE 'SELECT pg_sleep(0.001)' END
			FROM generate_series(1, 6000) AS n});
	wait_for_running($node, 4);
	my $file = $node->basedir . '/interrupt.sql';
	append_to_file($file, q{WITH r AS MATERIALIZED (SELECT id, attempt FROM pg_task_activity()),
		i AS MATERIALIZED (SELECT id, pg_task_interrupt(id) AS done
			FROM (SELECT id - generate_series(0, 2) AS id FROM r) AS n)
		INSERT INTO stopped SELECT id FROM i WHERE done;});
	my $bench = IPC::Run::start([ 'pgbench', '-n', '-c', '2', '-T', '60', '-f', $file, '-h',
		$node->host, '-p', $node->port, 'postgres' ], '>', \my $out, '2>', \my $err);
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE id <= 4 AND state = 'FAIL'});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	$bench->kill_kill;
	is(sql(q{SELECT string_agg(DISTINCT concat_ws(' ', state, sqlstate), ', ') FROM task}),
		'DONE, FAIL 57014', 'each is done or interrupted');
	is(count_of($node, q{state = 'FAIL' AND id NOT IN (SELECT task FROM stopped)}), 0,
		'no other one was interrupted');
	cmp_ok(count_of($node, q{state = 'FAIL'}), '>', 20, 'many were');
	sql('TRUNCATE gate');
};

# Now without the trigger: the periodic scan finds running tasks whose rows have another state.
subtest 'changes without a hint' => sub {
	set_conf($node, "pg_task.period = '200 ms'");
	wait_until($node, 'SHOW pg_task.period', expected => '200ms');
	for my $change (q{UPDATE task SET state = 'STOP' WHERE id = %d},
		q{DELETE FROM task WHERE id = %d})
	{
		$id = start_task(request => 'INSERT INTO effect VALUES (2); SELECT pg_sleep(600)');
		sql('BEGIN; ALTER TABLE task DISABLE TRIGGER ALL; ' . sprintf($change, $id)
			. '; ALTER TABLE task ENABLE TRIGGER ALL; '
			. 'ALTER TABLE task ENABLE ALWAYS TRIGGER pg_task_planned; COMMIT');
		wait_for_running($node, 0, id => $id);
		is(sql('SELECT count(*) FROM effect'), 0, "without the trigger: $change is found");
	}
};

# A request that ignores the cancel is cancelled again; if it still ends normally, it commits
# nothing.
subtest 'a request that ignores the cancel' => sub {
	$id = start_task(request => q{INSERT INTO effect VALUES (3);
		DO $$ BEGIN FOR i IN 1 .. 5 LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled
		THEN NULL; END; END LOOP; END $$; SELECT 1});
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	wait_for_running($node, 0, id => $id);
	is(task($node, $id, 'state, failed') . sql('SELECT count(*) FROM effect'), 'STOP|00',
		'a request that catches the cancel five times is stopped, without effect');
};

# The timeout cannot be ignored either, and such a run is never DONE.
subtest 'a request that ignores its timeout' => sub {
	for my $times (1, 5)
	{
		$id = run_task($node, timeout => '100 ms', request => "INSERT INTO effect VALUES (4);
			DO \$\$ BEGIN FOR i IN 1 .. $times LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION "
			. "WHEN query_canceled THEN NULL; END; END LOOP; END \$\$; SELECT 1");
		is(task($node, $id, 'state, failed, sqlstate, error') . sql('SELECT count(*) FROM effect'),
			'FAIL|1|TK001|canceling task due to timeout0',
			"a timeout that is swallowed $times times");
		# the timeout counts from a moment before the start
		is(task($node, $id, q{stop - dt >= '0.1 s' AND stop - start < '30 s'}), 't',
			"a timeout that is swallowed $times times: in time");
	}
	$id = run_task($node, request => 'SELECT pg_sleep(0.3)');
	is(task($node, $id, 'state'), 'DONE', 'the next task has no timeout');
};

done_testing();
