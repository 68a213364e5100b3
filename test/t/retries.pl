# A task that fails is retried: how often, when, and what its row shows meanwhile; and conflicts
# with other transactions, which do not count as failures.  A TAP test because of settings of roles
# and databases, conflicting sessions, and processes that exit.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# With a period of an hour, only the planned time can start a second run.
my $node = new_node('main', conf => "pg_task.period = '1 h'\npg_task.max_executors = 4");

make_gates($node);
sql(q{
	CREATE TABLE effect (what text, attempt int);
	CREATE TABLE run (task bigint, start timestamptz);
	CREATE SEQUENCE turn;
	CREATE ROLE patient LOGIN; CREATE ROLE hasty LOGIN;
	ALTER ROLE patient SET pg_task.retry = 2; ALTER ROLE patient SET pg_task.delay = '150 ms';
	ALTER ROLE patient SET pg_task.backoff = 1;
	GRANT ALL ON effect, run TO PUBLIC; GRANT ALL ON SEQUENCE turn TO PUBLIC;
	-- fails until its n-th call; sequences remember what is rolled back
	CREATE FUNCTION fail_until(n int) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		IF nextval('turn') < n THEN RAISE EXCEPTION 'not yet' USING ERRCODE = 'UU001'; END IF;
		RETURN 'at last';
	END $$});

# Restarts the count of runs, runs a task until it is DONE or FAIL, and returns its id.
sub run_out { sql('ALTER SEQUENCE turn RESTART'); return run_task($node, @_) }

# How often: this many runs after the first.
subtest 'the number of runs' => sub {
	for my $retry (0, 1, 3)
	{
		my $id = run_out(retry => $retry, delay => '10 ms', backoff => 1,
			request => 'INSERT INTO effect VALUES (1, 1); SELECT fail_until(100)');
		is(task($node, $id, 'state, failed, attempt, sqlstate, error'),
			'FAIL|' . ($retry + 1) . '|' . ($retry + 1) . '|UU001|not yet',
			"retry $retry: " . ($retry + 1) . ' runs');
		is(sql('SELECT last_value FROM turn'), $retry + 1,
			"retry $retry: the request ran that many times");
	}
	my $id = run_out(request => 'SELECT fail_until(100)');
	is_row($node, $id,
		{ state => 'FAIL', failed => 1, attempt => 1, 'planned IS NULL' => 'true' },
		'without "retry" the task is not retried');
	is(sql('SELECT count(*) FROM effect'), 0, 'failed runs have no effect');
};

# DONE after a retry: the row has the outcome of the last run, and no error.
subtest 'DONE after a retry' => sub {
	my $id = run_out(retry => 5, delay => '10 ms', backoff => 1,
		request => q{INSERT INTO effect VALUES ('x', 3); SELECT fail_until(3)});
	is(task($node, $id, 'state, failed, attempt, sqlstate IS NULL, error IS NULL, response'),
		'DONE|2|3|t|t|INSERT 0 1' . "\n" . 'at last', 'DONE after two retries');
	is(task($node, $id, 'planned IS NULL OR planned <= dt'), 't',
		'DONE after two retries: planned before it was due');
	is(sql('SELECT count(*) FROM effect'), 1, 'DONE after two retries: one effect');
};

# While it waits for the retry, the row shows the last run, and the first planned time.  If a user
# plans it again, it runs at once.
subtest 'the row of a waiting retry' => sub {
	sql('ALTER SEQUENCE turn RESTART');
	my ($dt) = split /\|/, sql(q{INSERT INTO task (retry, delay, timeout, request)
		VALUES (1, '10 min', '1 min',
		'DO $$ BEGIN RAISE NOTICE ''psst''; END $$; SELECT fail_until(2)')
		RETURNING dt});
	my $id = sql('SELECT max(id) FROM task');
	wait_until($node, "SELECT state = 'PLAN' AND attempt = 1 FROM task WHERE id = $id");
	is(task($node, $id, 'failed, sqlstate, error, planned'), "1|UU001|not yet|$dt",
		'waiting: the row has the error and the first dt');
	is(task($node, $id,
		q{notice, split_part(response, E'\n', 1), start >= planned, stop >= start, pid > 0}),
		'NOTICE:  psst|ERROR:  not yet|t|t|t', 'waiting: the row has all of the last run');
	is(task($node, $id, q{dt - stop BETWEEN '10 min' AND '11 min'}), 't',
		'it waits: for its delay');
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(task($node, $id, 'state, attempt'), 'PLAN|1', 'it waits');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt, failed'), '2|1', 'planned by hand for now, it is tried at once');
};

# When: delay * backoff^(failed - 1) after the end, plus up to a tenth and six minutes.  Planned by
# hand each time, it fails again.
sub delays
{
	my ($name, $delay, $backoff, @wanted) = @_;
	my $task = insert_task($node, retry => 100, delay => $delay, backoff => $backoff,
		request => 'SELECT 1/0');
	my $failed = 0;

	for my $wanted (@wanted)
	{
		$failed++;
		wait_until($node, "SELECT state = 'PLAN' AND failed = $failed FROM task WHERE id = $task");
		# exact to milliseconds: dt is that long after stop
		is(task($node, $task,
			qq{dt - stop BETWEEN interval '$wanted' - interval '1 ms'
			AND interval '$wanted' + interval '1 ms'
				+ least(interval '$wanted' * 0.1, interval '6 min')}), 't',
			"$name: $wanted after failure $failed") or diag(task($node, $task, 'dt - stop'));
		sql("UPDATE task SET dt = now() WHERE id = $task");
	}
	sql("DELETE FROM task WHERE id = $task");
	return;
}

subtest 'the delay' => sub {
	delays('doubled', '10 min', 2, '10 min', '20 min', '40 min');
	delays('constant', '5 min', 1, ('5 min') x 3);
	delays('halved', '8 min', 0.5, '8 min', '4 min', '2 min');
	delays('an hour', '1 h', 2, ('1 h') x 3);
	delays('nearly an hour', '59 min', 2, '59 min', '1 h', '1 h');
	delays('more than an hour', '25 h', 2, ('25 h') x 3);
	delays('decreasing', '4 h', 0.5, '4 h', '2 h', '1 h', '30 min');
	delays('days', '100 days', 3e38, ('100 days') x 3);
	# "delay" is at most some 100 years, and the rest at most an hour, whatever the backoff
	for my $huge ([ '2000000 years', 3e38, '36525 days' ], [ '1 min', 1e30, '1 h' ])
	{
		my $task = insert_task($node, retry => 2147483647, delay => $huge->[0],
			backoff => $huge->[1],
			request => 'SELECT 1/0');
		for my $failed (1 .. 3)
		{
			wait_until($node,
				"SELECT state = 'PLAN' AND failed = $failed FROM task WHERE id = $task");
			is(task($node, $task, qq{dt - stop BETWEEN '$huge->[2]'
				AND interval '$huge->[2]' + interval '7 min'}), 't',
				"delay $huge->[0], backoff $huge->[1]: at most $huge->[2], failure $failed")
			  unless $failed == 1 && $huge->[0] =~ /^1 min/;
			sql("UPDATE task SET dt = now() WHERE id = $task");
		}
		sql("DELETE FROM task WHERE id = $task");
	}
	my $id = run_out(retry => 3, delay => '0', backoff => 2, request => 'SELECT fail_until(4)');
	is(task($node, $id, q{state, failed, stop - planned < '30 s'}), 'DONE|3|t', 'no delay at all');
	$id = run_out(retry => 3, delay => '0.2 s', backoff => 0, request => 'SELECT fail_until(4)');
	is(task($node, $id, q{state, failed}), 'DONE|3', 'no delay after the first retry');
};

# Retries are spread out: a hundred tasks that fail at once are not retried at once.
subtest 'jitter' => sub {
	sql(q{INSERT INTO task (queue, retry, delay, request) SELECT 'spread', 1, '30 min', 'SELECT 1/0'
		FROM generate_series(1, 100)});
	wait_until($node, q{SELECT count(*) = 100 FROM task WHERE queue = 'spread' AND failed = 1});
	cmp_ok(sql(q{SELECT extract(epoch FROM max(dt - stop) - min(dt - stop)) FROM task
		WHERE queue = 'spread'}), '>', 60, 'jitter spreads the retries');
	cmp_ok(sql(q{SELECT count(DISTINCT date_trunc('second', dt - stop)) FROM task
		WHERE queue = 'spread'}), '>', 20, 'the retries are spread over a tenth of the delay');
	sql(q{DELETE FROM task WHERE queue = 'spread'});
};

# The settings, for roles and databases; the column takes precedence.
subtest 'settings' => sub {
	my $id = run_out(role => 'patient', request => 'SELECT fail_until(100)');
	is_row($node, $id,
		{ state => 'FAIL', failed => 3, attempt => 3 },
		'pg_task.retry of the role');
	is(task($node, $id, q{dt - planned BETWEEN '0.3 s' AND '30 s'}), 't',
		'pg_task.delay of the role');
	$id = run_out(role => 'patient', retry => 0, request => 'SELECT fail_until(100)');
	is(task($node, $id, q{state, failed}), 'FAIL|1', 'the column wins: no retry');
	$id = insert_task($node, role => 'patient', delay => '20 min', backoff => 3,
		request => 'SELECT 1/0');
	wait_until($node,
		"SELECT failed = 1 AND dt - stop BETWEEN '20 min' AND '22 min' FROM task WHERE id = $id");
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_until($node,
		"SELECT failed = 2 AND dt - stop BETWEEN '1 h' AND '66 min' FROM task WHERE id = $id");
	pass('the column wins: delay, backoff');
	sql(q{ALTER DATABASE postgres SET pg_task.retry = 1; ALTER DATABASE postgres
		SET pg_task.delay = '20 ms'});
	$id = run_out(role => 'hasty', request => 'SELECT fail_until(100)');
	is(task($node, $id, q{state, failed}), 'FAIL|2', 'pg_task.retry of the database');
	$id = run_out(role => 'patient', request => 'SELECT fail_until(100)');
	is(task($node, $id, q{state, failed}), 'FAIL|3',
		'the setting of the role wins over that of the database');
	sql(q{ALTER DATABASE postgres RESET pg_task.retry; ALTER DATABASE postgres
		RESET pg_task.delay});
};

# What counts as a failure: a timeout, a FATAL of its own, a deferred trigger, its own row, a
# syntax error, an open transaction.
subtest 'what counts as a failure' => sub {
	sql(q{CREATE TABLE late (a int); CREATE FUNCTION too_late() RETURNS trigger LANGUAGE plpgsql
		AS $$
		BEGIN PERFORM fail_until(3); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW
		EXECUTE FUNCTION too_late()});
	for my $way (
		[ 'a timeout', q{SELECT pg_sleep(60) FROM task WHERE attempt < 3
			AND id = current_setting('pg_task.id')::bigint}, 'DONE', 'TK001', timeout => '100 ms' ],
		[ 'a FATAL', 'SET exit_on_error = on; SELECT fail_until(3)', 'DONE', 'UU001' ],
		[ 'a deferred trigger', 'INSERT INTO late VALUES (1)', 'DONE', 'UU001' ],
		[ 'its own row',
		q{UPDATE task SET attempt = 7 WHERE id = current_setting('pg_task.id')::bigint}, 'FAIL',
		'27000' ],
		[ 'a syntax error', 'SELEC', 'FAIL', '42601' ],
		[ 'an open transaction', 'BEGIN; SELECT 1', 'FAIL', '25001' ])
	{
		my ($name, $request, $state, $sqlstate, %column) = @$way;
		sql('ALTER SEQUENCE turn RESTART');
		my $task = insert_task($node, retry => 2, delay => '10 min', backoff => 1,
			request => $request,
			%column);
		wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $task");
		is(task($node, $task,
			'sqlstate, attempt, error IS NOT NULL, response IS NOT NULL, stop IS NOT NULL'),
			"$sqlstate|1|t|t|t", "$name: the task is retried");
		for my $failed (2 .. 3)
		{
			sql("UPDATE task SET dt = now(), timeout = CASE WHEN $failed < 3 THEN timeout END
				WHERE id = $task AND state = 'PLAN'");
			wait_until($node,
				"SELECT attempt = $failed AND state <> 'WORK' FROM task WHERE id = $task");
		}
		is(task($node, $task, 'state, failed'), $state . ($state eq 'DONE' ? '|2' : '|3'),
			"$name: the task ends");
	}
	is(sql('SELECT count(*) FROM late'), 1, 'the deferred trigger: one effect');
	# A role that cannot run the task does not count as a failed run: it is FAIL at once.
	my $id = run_task($node, role => 'nobody_there', retry => 3, delay => '10 ms',
		request => 'SELECT 1');
	is_row($node, $id,
		{ state => 'FAIL', attempt => 0, sqlstate => '42704' },
		'a task of a role that does not exist is not retried');
};

# An interrupted run does not count: it is planned again at once, without a failure.
subtest 'an interrupted run' => sub {
	my $id = insert_task($node, retry => 1, delay => '10 min',
		request => q{INSERT INTO effect VALUES ('interrupted', 1); SELECT hold('interrupted')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	terminate($node, task($node, $id, 'pid'));
	wait_until($node, "SELECT attempt = 2 AND state = 'WORK' FROM task WHERE id = $id");
	is(task($node, $id, 'failed, planned IS NULL'), '0|t', 'an interruption is not a failure');
	open_gate($node, 'interrupted');
	wait_for_state($node, $id, 'DONE');
	is(sql(q{SELECT count(*) FROM effect WHERE what = 'interrupted'}), 1,
		'an interruption: one effect');
	sql('ALTER SEQUENCE turn RESTART');
	$id = insert_task($node, queue => 'suicide', retry => 1, delay => '10 min',
		request => q{SELECT CASE WHEN nextval('turn') < 3
		THEN pg_terminate_backend(pg_backend_pid())
		END});
	wait_for_state($node, $id, 'DONE');
	is_row($node, $id,
		{
			failed => 0, 'attempt > 1' => 'true', 'sqlstate IS NULL' => 'true',
			'error IS NULL' => 'true'
		},
		'a task that terminates its own process was interrupted');
};

done_testing();
