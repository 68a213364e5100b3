# A run that conflicts with another transaction (serialization failure, deadlock) is retried at
# once, in the same process, without a trace of the first try; and how retries and repeats go
# together.  A TAP test because it needs conflicting sessions.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = '1 h'\npg_task.max_executors = 3");

make_gates($node);
sql(q{
	CREATE TABLE account (id int PRIMARY KEY, n int);
	INSERT INTO account VALUES (1, 0), (2, 0);
	CREATE TABLE effect (what text);
	CREATE SEQUENCE turn;
	CREATE FUNCTION fail_until(n int, code text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		IF nextval('turn') < n THEN RAISE EXCEPTION 'not yet' USING ERRCODE = code; END IF;
		RETURN 'at last';
	END $$});
my $session = open_session($node, 'postgres');
my $executors = q{FROM pg_stat_activity WHERE backend_type = 'pg_task executor'};

sub turns { return sql('SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM turn') }
sub fresh { sql('ALTER SEQUENCE turn RESTART'); return }

# A serialization failure with another session.
subtest 'serialization failure' => sub {
	$session->query_safe('SELECT pg_advisory_lock(1)');
	my $id = insert_task($node,
		request => q{SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT nextval('turn');
		SELECT n FROM account;
		INSERT INTO effect VALUES ('serial'); SELECT pg_advisory_xact_lock(1);
		UPDATE account SET n = n + 10 WHERE id = 1});
	wait_until($node, "SELECT count(*) = 1 $executors AND wait_event = 'advisory'");
	$session->query_safe('UPDATE account SET n = n + 1; SELECT pg_advisory_unlock(1)');
	wait_for_state($node, $id, 'DONE');
	is(turns(), 2, 'a serialization failure: it ran twice');
	is_row($node, $id,
		{
			attempt => 1, failed => 0, 'planned IS NULL' => 'true', 'error IS NULL' => 'true',
			'sqlstate IS NULL' => 'true'
		},
		'a serialization failure: no attempt or failure is counted');
	is(sql('SELECT n FROM account WHERE id = 1') . ' ' . sql('SELECT count(*) FROM effect'), '11 1',
		'a serialization failure: one effect');
	is(sql("SELECT count(DISTINCT pid) $executors"), 1,
		'a serialization failure: in the same process');
};

my $id;

# A deadlock with another session, whose deadlock_timeout is longer.  The second run waits until
# that session has ended its transaction: otherwise it could be in its way again.
subtest 'deadlock' => sub {
	fresh();
	$id = insert_task($node,
		request => q{SET deadlock_timeout = '10 ms'; SELECT hold('run ' || nextval('turn'));
		INSERT INTO effect VALUES ('deadlock');
		UPDATE account SET n = 100 WHERE id = 1; SELECT hold('deadlock'); UPDATE account SET n = 200
		WHERE id = 2});
	open_gate($node, 'run 1');
	# it has updated the first row when it holds again
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE relation = 'account'::regclass AND mode = 'RowExclusiveLock'
		AND wait_event = 'PgSleep'});
	$session->query_safe(q{BEGIN; SET deadlock_timeout = '1 h'; UPDATE account SET n = 2
		WHERE id = 2});
	$session->query_until(qr/sent/, "\\echo sent\nUPDATE account SET n = 1 WHERE id = 1;\n");
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'UPDATE account%'
		AND wait_event_type = 'Lock'});
	open_gate($node, 'deadlock');
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'UPDATE account%'
		AND state LIKE 'idle in%'});
	$session->query_safe('COMMIT');
	open_gate($node, 'run 2');
	wait_for_state($node, $id, 'DONE');
	is(turns(), 2, 'a deadlock: it ran twice');
	is_row($node, $id,
		{ attempt => 1, failed => 0, 'error IS NULL' => 'true' },
		'a deadlock: no attempt or failure is counted');
	is(sql(q{SELECT string_agg(n::text, ' ' ORDER BY id) FROM account}), '100 200',
		'a deadlock: the task has updated last');
	is(sql(q{SELECT count(*) FROM effect WHERE what = 'deadlock'}), 1, 'a deadlock: one effect');
};

# Five retries in the process; then the run has failed, and "retry" applies.
subtest 'the number of retries in the process' => sub {
	for my $code (qw(40001 40P01))
	{
		fresh();
		$id = run_task($node, request => "SELECT fail_until(100, '$code')");
		is(task($node, $id, 'state, attempt, failed, sqlstate, error') . ' ' . turns(),
			"FAIL|1|1|$code|not yet 6", "$code: FAIL after five retries in the process");
		fresh();
		$id = run_task($node, request => "SELECT fail_until(6, '$code')");
		is_row($node, $id,
			{ state => 'DONE', attempt => 1, failed => 0, response => 'at last' },
			"$code: the fifth retry may succeed");
		fresh();
		$id = run_task($node, retry => 1, delay => '10 ms',
			request => "SELECT fail_until(100, '$code')");
		is(task($node, $id, 'state, attempt, failed') . ' ' . turns(), 'FAIL|2|2 12',
			"$code: five retries in each attempt");
	}
	for my $code (qw(40000 40002 40003 P0001))
	{
		fresh();
		$id = run_task($node, request => "SELECT fail_until(100, '$code')");
		is(task($node, $id, 'state, sqlstate') . ' ' . turns(), "FAIL|$code 1",
			"$code: is no conflict");
	}
	# A conflict that the request itself catches is not retried.
	fresh();
	$id = run_task($node,
		request => q{DO $$ BEGIN PERFORM fail_until(100, '40001'); EXCEPTION WHEN OTHERS THEN NULL;
		END $$});
	is(task($node, $id, 'state') . ' ' . turns(), 'DONE 1',
		'a conflict that the request catches is not retried');
};

# A request that has committed by itself is not retried in the process.
subtest 'a request that has committed is not retried' => sub {
	for my $request ("DO \$\$ BEGIN INSERT INTO effect VALUES ('commits'); COMMIT; "
		. "PERFORM fail_until(100, '40001'); END \$\$",
		"INSERT INTO effect VALUES ('commits'); COMMIT; SELECT fail_until(100, '40P01')",
		"BEGIN; INSERT INTO effect VALUES ('commits'); COMMIT; SELECT fail_until(100, '40001')")
	{
		fresh();
		sql(q{DELETE FROM effect WHERE what = 'commits'});
		$id = run_task($node, request => $request);
		is(task($node, $id,
			'state, failed, notice LIKE \'%INFO:  the request has committed by itself%\''),
			'FAIL|1|t',
			"$request: failed");
		is(turns() . ' ' . sql(q{SELECT count(*) FROM effect WHERE what = 'commits'}), '1 1',
			"$request: it ran once");
	}
};

# The second run in the process has a session as clean as the first, and its outcome contains
# nothing of the first.
subtest 'the retry has a reset session' => sub {
	my %soil = (
		'a prepared statement' => q{PREPARE p AS SELECT 1},
		'a cursor' => q{DECLARE c CURSOR WITH HOLD FOR SELECT 1},
		'a temporary table' => q{CREATE TEMP TABLE t (a int)},
		'a setting' => q{SET work_mem = '1MB'},
		'an advisory lock' => q{SELECT pg_advisory_lock(7)},
		'a role' => q{SET ROLE pg_monitor});
	for my $what (sort keys %soil)
	{
		fresh();
		$id = run_task($node,
			request => "SELECT current_user, current_setting('work_mem'), (SELECT count(*) "
			. "FROM pg_locks "
			. "WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
			(SELECT count(*) FROM pg_cursors "
			. "WHERE name = 'c'), current_setting('pg_task.id'); $soil{$what}; RESET ROLE;
			DO \$\$ BEGIN RAISE NOTICE 'once'; END \$\$; SELECT fail_until(3, '40001')");
		is(task($node, $id,
			q{state, attempt, failed, error IS NULL, split_part(response, E'\n', 2), notice}),
			join('|', 'DONE', 1, 0, 't', join("\t", 'postgres', '4MB', 0, 0, $id), 'NOTICE:  once'),
			"the retry does not see $what");
	}
	# the session is reset after the commit
	wait_until($node, q{SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND pid IN
		(SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task executor')});
	pass('no advisory lock is left');
};

# The timeout covers all runs in the process.  A task that is deleted or stopped meanwhile is not
# retried.
subtest 'the timeout covers all retries' => sub {
	fresh();
	$id = run_task($node, timeout => '0.6 s',
		request => q{SELECT pg_sleep(0.25); SELECT fail_until(100, '40001')});
	is_row($node, $id, { state => 'FAIL', sqlstate => 'TK001', failed => 1 },
		'the runs together exceed the timeout');
};

# A repeating task that is retried: its next run is planned when the retries are over, from the
# first planned time.
sub repeats
{
	my ($name, $wanted, %column) = @_;
	fresh();
	my $task = insert_task($node, repeat => '1 hour', delay => '10 ms', backoff => 1, %column);
	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $task");
	is(task($node, $task, 'state, failed'), $wanted, "$name: ended");
	is(sql("SELECT count(*) FROM task WHERE parent = $task"), 1, "$name: one next run");
	is(sql("SELECT new.state, new.failed, new.crashed, new.attempt, new.planned IS NULL, new.error "
		. "IS NULL, new.retry = old.retry AND new.delay = old.delay AND new.backoff = old.backoff
		FROM task AS new JOIN task AS old ON old.id = new.parent WHERE old.id = $task"),
		'PLAN|0|0|0|t|t|t', "$name: the next run starts with a new row");
	return $task;
}

subtest 'the next run of a retried task' => sub {
	# years ago, and half an hour away from the next run
	my $planned = sql(q{SELECT now() - 30 * '1 min'::interval - 50000 * '1 hour'::interval});
	my $next = 'FROM task AS new JOIN task AS old ON old.id = new.parent WHERE old.id =';
	for my $case ([ 'used up', 'FAIL|3', 100 ], [ 'DONE at last', 'DONE|2', 3 ])
	{
		my ($name, $wanted, $n) = @$case;
		my $task = repeats("drift, $name", $wanted, retry => 2, dt => $planned,
			request => "SELECT fail_until($n, 'UU001')");
		is(sql("SELECT old.planned = '$planned', extract(epoch FROM new.dt - old.planned) % 3600 = 0,
			new.dt - old.stop BETWEEN '0' AND '1 h' $next $task"), 't|t|t',
			"drift, $name: from the first planned time");
		$task = repeats("no drift, $name", $wanted, retry => 2, drift => 'false',
			request => "SELECT fail_until($n, 'UU001')");
		is(sql("SELECT new.dt - old.stop = '1 h' $next $task"), 't',
			"no drift, $name: from the end of the last run");
	}
	fresh();
	$id = insert_task($node, repeat => '1 s', retry => 1, delay => '10 min',
		request => q{SELECT fail_until(2, 'UU001')});
	wait_until($node, "SELECT state = 'PLAN' AND failed = 1 FROM task WHERE id = $id");
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(count_of($node, "parent = $id"), 0, 'while it waits for a retry, no next run is planned');
	sql("UPDATE task SET repeat = '1 hour', dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is(sql("SELECT new.dt - old.planned = '1 h' $next $id"), 't',
		'planned by hand: the next run counts from the first planned time');
};

# A waiting retry blocks neither its queue nor an executor, keeps its key, survives a crash, and
# its row is deleted when it is DONE.
subtest 'a waiting retry' => sub {
	fresh();
	$id = insert_task($node, queue => 'narrow', max => 1, key => 'k', retry => 2, delay => '10 min',
		keep => '0', request => q{SELECT fail_until(2, 'UU001')});
	wait_until($node, "SELECT state = 'PLAN' AND failed = 1 FROM task WHERE id = $id");
	is(task($node, run_task($node, queue => 'narrow', max => 1, request => 'SELECT 1'), 'state'),
		'DONE', 'a waiting retry does not count in its queue');
	my ($rc, $out, $err) = $node->psql('postgres',
		q{INSERT INTO task (queue, key, request) VALUES ('narrow', 'k', 'SELECT 1')});
	like($err, qr/duplicate key/, 'a waiting retry keeps its key');
	$session->quit;
	crash($node);
	wait_for_table($node);
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is_row($node, $id,
		{ state => 'PLAN', failed => 1, attempt => 1, crashed => 0, sqlstate => 'UU001' },
		'a waiting retry is unchanged after a crash');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_until($node, "SELECT count(*) = 0 FROM task WHERE id = $id");
	pass('the row is deleted when the retry is DONE');
	fresh();
	$id = run_task($node, keep => '0', retry => 1, delay => '10 ms',
		request => q{SELECT fail_until(100, 'UU001')});
	is(task($node, $id, 'state, failed'), 'FAIL|2', 'the row of a failed task is not deleted');
};

done_testing();
