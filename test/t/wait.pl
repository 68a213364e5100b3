# Waiting for the end of tasks: pg_task_wait and pg_task_wait_for.  A TAP test because sessions wait
# while others end the tasks.
#
# A waiter whose wake-up is lost looks again after a minute, so every wait here must take less.  The
# function is over in ten seconds: where tasks may need longer, it is asked again.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => join "\n", 'pg_task.max_executors = 4',
	'max_connections = 150', 'max_prepared_transactions = 2', '');

make_gates($node);
sql(q{
	CREATE ROLE ann LOGIN;
	CREATE ROLE bob LOGIN;
	CREATE ROLE eve LOGIN;
	CREATE ROLE mute;
	REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
	GRANT CONNECT ON DATABASE postgres TO ann, bob, eve;
	GRANT SELECT (id, state) ON task TO ann;
	GRANT INSERT ON task TO ann;
	GRANT SELECT ON task TO bob;
	CREATE TABLE waited (name text, id bigint, state text, age interval);
	CREATE PROCEDURE wait_and_note(name text, ids bigint[]) LANGUAGE plpgsql AS $$
	DECLARE
		begun timestamptz;
	BEGIN
		CALL pg_task_wait_for(ids);
		INSERT INTO waited SELECT wait_and_note.name, i.id, t.state
			FROM unnest(ids) AS i (id) LEFT JOIN task AS t ON t.id = i;
	END $$;
	CREATE PROCEDURE wait_again(name text, waited_for bigint) LANGUAGE plpgsql AS $$
	DECLARE
		state text;
	BEGIN
		LOOP
			SELECT w.state INTO state FROM pg_task_wait(ARRAY[waited_for]) AS w;
			EXIT WHEN (state IN ('PLAN', 'WORK')) IS NOT TRUE;
		END LOOP;
		INSERT INTO waited VALUES (name, waited_for, state);
	END $$});

# The waiting sessions that sleep.
my $sleeping = q{FROM pg_stat_activity WHERE query LIKE '%wait%' AND state = 'active'
	AND wait_event IN ('PgTaskWait', 'Extension') AND backend_type = 'client backend'};

sub wait_for_sleepers
{
	wait_until($node, "SELECT count(*) $sleeping", expected => $_[0]);
}

# A session that executes this.
sub start_session
{
	my ($sql) = @_;
	my $session = open_session($node, 'postgres', on_error_stop => 0);

	start($session, $sql);
	return $session;
}

sub start
{
	my ($session, $sql) = @_;

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
}

# What waiters have noted, when there are so many rows of it.
sub noted
{
	my ($count) = @_;

	wait_until($node, 'SELECT count(*) FROM waited', expected => $count);
	return sql(q{WITH gone AS (DELETE FROM waited RETURNING *)
		SELECT string_agg(coalesce(state, 'NULL'), ',' ORDER BY name, id) FROM gone});
}

# Every way in which a task ends wakes those who wait, in a function and in a procedure.
subtest 'ends' => sub {
	my @session = map { start_session('SELECT 1') } 1 .. 2;
	my $planned = { request => 'SELECT 1', dt => 'infinity' };
	my $hold = sub { return { request => "SELECT hold('$_[0]')$_[1]", %{ $_[2] // {} } } };
	my $open = sub { open_gate($node, $_[1]) };
	my $update = sub { my ($set) = @_; return sub { sql("UPDATE task SET $set WHERE id = $_[0]") } };
	my $twice = '; SELECT pg_terminate_backend(pg_backend_pid())';
	my $other = insert_task($node, %$planned);
	my @ways = (
		[ 'done', 'DONE', $hold->('done', ''), $open ],
		[ 'failed', 'FAIL', $hold->('failed', '; SELECT 1/0'), $open ],
		[ 'retried', 'FAIL', $hold->('retried', '; SELECT 1/0', { retry => 1, delay => '1 ms' }),
			$open ],
		[ 'deleted when done', 'NULL', $hold->('deleted when done', '', { keep => '0' }), $open ],
		[ 'goes on', 'DONE', $hold->('goes on',
			q{; SELECT pg_task_again(input => '1') WHERE pg_task_input() IS NULL}), $open ],
		[ 'interrupted twice', 'FAIL', $hold->('interrupted twice', $twice, { attempt => 99 }),
			$open ],
		[ 'stopped', 'STOP', $planned, $update->("state = 'STOP'") ],
		[ 'cancelled', 'STOP', $hold->('never', ''), sub { sql("SELECT pg_task_cancel($_[0])") } ],
		[ 'deleted', 'NULL', $planned, sub { sql("DELETE FROM task WHERE id = $_[0]") } ],
		[ 'expired', 'GONE', { %$planned, max => 0 },
			$update->("active = '1 ms', dt = now() - interval '1 hour'") ],
		[ 'refused', 'FAIL', { %$planned, role => 'mute' }, $update->('dt = now()') ],
		[ 'given up', 'GONE', { request => 'SELECT 1', after => "{$other}" },
			sub { sql("UPDATE task SET state = 'STOP' WHERE id = $other") } ],
		[ 'prepared', 'STOP', $planned, sub {
			sql("BEGIN; UPDATE task SET state = 'STOP' WHERE id = $_[0]; PREPARE TRANSACTION 'p'");
			sql("COMMIT PREPARED 'p'") } ]);

	for my $way (@ways)
	{
		my ($name, $state, $row, $end) = @$way;
		my $id = insert_task($node, %$row);

		wait_for_running($node, 1, id => $id, event => 'PgSleep') if $row->{request} =~ /hold/;
		start($session[0], "CALL wait_again('function', $id)");
		start($session[1], "CALL wait_and_note('procedure', '{$id}')");
		wait_for_sleepers(2);
		my $begun = time;
		$end->($id, $name);
		is(noted(2), "$state,$state", $name);
		cmp_ok(time - $begun, '<', 50, "$name: the waiters were woken");
	}
	start($session[1], "CALL wait_and_note('procedure', '{" . insert_task($node,
		%$planned) . "}')");
	wait_for_sleepers(1);
	my $begun = time;
	sql('TRUNCATE task');
	is(noted(1), 'NULL', 'truncated');
	cmp_ok(time - $begun, '<', 50, 'truncated: the waiter was woken');
	$_->quit for @session;
};

subtest 'what it returns' => sub {
	my $waits = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	my $done = run_task($node, request => 'SELECT 1');
	my $failed = run_task($node, request => 'SELECT 1/0');
	my $states = sub { return sql("SELECT string_agg(id || ' ' || coalesce(state, 'NULL'), ', ')
		FROM pg_task_wait($_[0])") };

	is($states->("ARRAY[$failed, -1, $done, $failed]"),
		"$failed FAIL, -1 NULL, $done DONE, $failed FAIL", 'the states, in the order of the ids');
	is($states->("ARRAY[$waits, $done], '0'"), "$waits PLAN, $done DONE", 'no time to wait');
	is($states->("ARRAY[$done, $waits, $failed], '10 ms'"),
		"$done DONE, $waits PLAN, $failed FAIL", 'the time is over');
	is($states->($_), '', "none of $_") for q{'{}'}, 'NULL', q{NULL, '1 s'};
	sql($_) for q{CALL pg_task_wait_for('{}')}, q{CALL pg_task_wait_for(NULL)},
	  "CALL pg_task_wait_for(ARRAY[$done, $failed])";
	my ($rc, $out, $err) = $node->psql('postgres',
		"CALL pg_task_wait_for(ARRAY[$done, $waits, $failed], '10 ms')");
	like("$rc $err", qr/^0 .*NOTICE:  the time is over: 2 of 3 tasks/, 'the procedure says so');
	is(sql("WITH many AS (INSERT INTO task (request, state) SELECT 'SELECT 1', 'STOP'
		FROM generate_series(1, 5000) RETURNING id) SELECT count(*) FROM many"), 5000, 'inserted');
	is(sql("SELECT count(*) FILTER (WHERE state = 'STOP') FROM pg_task_wait(
		(SELECT array_agg(id) FROM task WHERE state = 'STOP'))"), 5000, 'many');

	is(sqlstate_of('postgres', "SELECT pg_task_wait('{1, NULL}')"), '22004', 'NULL');
	is(sqlstate_of('postgres', "SELECT pg_task_wait('{1}', '-1 s')"), '22023', 'a negative time');
	is(sqlstate_of('postgres', "SELECT pg_task_wait('{$done}', '10.001 s')"), '22023',
		'more than ten seconds');
	is($states->("ARRAY[$done], '10 s'"), "$done DONE", 'ten seconds');
	is(sqlstate_of('postgres', "SET statement_timeout = '100 ms'; SELECT pg_task_wait('{$waits}')"),
		'57014', 'statement_timeout');
	is(sqlstate_of('postgres', "BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT pg_task_wait('{$waits}')"), '0A000', 'an old snapshot would never see the end');
	is(sqlstate_of('postgres', "BEGIN; CALL pg_task_wait_for('{$waits}')"), '25001',
		'the procedure in a transaction block');
	is(sqlstate_of('postgres', qq{DO \$\$ BEGIN CALL pg_task_wait_for('{$waits}');
		EXCEPTION WHEN division_by_zero THEN END \$\$}), '25001', 'and in a block with EXCEPTION');
	is(sqlstate_of('postgres', "WITH new AS (INSERT INTO task (request) VALUES ('SELECT 1')
		RETURNING id) SELECT pg_task_wait(ARRAY[id]) FROM new"), '55000', 'a task of this statement');
	my $insert = q{INSERT INTO task (id, request) VALUES (-2, 'SELECT 1')};
	is(sqlstate_of('postgres', "BEGIN; $insert; SELECT pg_task_wait('{-2}')"), '55000',
		'a task of the same transaction');
	is(sqlstate_of('postgres', "BEGIN; SAVEPOINT a; $insert; SAVEPOINT b;
		SELECT pg_task_wait('{-2}')"), '55000', 'and of a subtransaction');
	is(sql("SET default_transaction_isolation = 'serializable'; $insert;
		CALL pg_task_wait_for('{-2}'); SELECT state FROM task WHERE id = -2"), 'DONE',
		'the procedure has no old snapshot');
	is(sql(q{DO $$ DECLARE ids bigint[]; BEGIN
			WITH new AS (INSERT INTO task (request) SELECT 'SELECT 7' FROM generate_series(1, 3)
				RETURNING id) SELECT array_agg(id) INTO ids FROM new;
			CALL pg_task_wait_for(ids);
			INSERT INTO waited SELECT response FROM task WHERE id = ANY (ids);
		END $$; DELETE FROM waited RETURNING name}), "7\n7\n7", 'the procedure commits before');
	sql("DELETE FROM task WHERE id = $waits");
};

subtest 'rights' => sub {
	my $id = sql(q{INSERT INTO task (role, request, dt) VALUES ('ann', 'SELECT 1', 'infinity')
		RETURNING id});
	my $state = sub { return sql_as($_[0], "SELECT state FROM pg_task_wait('{$id}', '0')") };

	is($state->('ann'), 'PLAN', 'the columns id and state are enough');
	is($state->('bob'), '', 'a row that is not seen is none');
	is(sqlstate_of('eve', "SELECT pg_task_wait('{$id}', '0')"), '42501', 'SELECT is needed');
	is(sqlstate_of('eve', "CALL pg_task_wait_for('{$id}', '0')"), '42501',
		'for the procedure, too');
	is(sql_as('bob', qq{CREATE TEMP TABLE task AS SELECT ${id}::bigint AS id, 'DONE' AS state;
		SET search_path = pg_temp, public; SELECT state IS NULL FROM pg_task_wait('{$id}')}), 't',
		'it reads the task table');
	sql("DELETE FROM task WHERE id = $id");
};

# What a statement of ours meets shows the caller's calls, not that statement.
subtest 'the context of an error' => sub {
	my $id = sql(q{INSERT INTO task (role, request, dt) VALUES ('ann', 'SELECT 1', 'infinity')
		RETURNING id});

	for my $call ("PERFORM pg_task_wait('{$id}', '0')", "CALL pg_task_wait_for('{$id}', '0')")
	{
		my $error = error_of('eve', "DO \$\$ BEGIN $call; END \$\$");

		my $said = $call =~ s/PERFORM/SELECT/r;

		like($error, qr/denied for table task\nCONTEXT:  SQL statement "\Q$said\E"\nPL.*at (PERFORM|CALL)\n?$/,
			$call);
	}
	is(error_of('eve', "SELECT pg_task_wait('{$id}', '0')") =~ s/.*?ERROR/ERROR/r,
		'ERROR:  permission denied for table task', 'without a function: none');
	sql(q{CREATE FUNCTION failing() RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN 1 / 0; END';
		CREATE POLICY failing ON task AS RESTRICTIVE FOR SELECT TO ann USING (failing())});
	my $error = error_of('ann', "SELECT pg_task_wait('{$id}', '0')");

	like($error, qr/division by zero\nCONTEXT:  .*function failing\(\) line 1 at RETURN\n?$/s,
		'a policy shows itself');
	unlike($error, qr/unnest/, 'and nothing of ours');
	sql("DROP POLICY failing ON task; DELETE FROM task WHERE id = $id");
};

# Nobody reads what the session of a client that is gone returns.
subtest 'a client that is gone' => sub {
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity');

	for my $call ("CALL wait_and_note('gone', '{$id}')", "CALL wait_again('gone', $id)")
	{
		my $position = log_position($node);
		my $session = start_session($call);

		wait_for_sleepers(1);
		my $pid = sql("SELECT pid $sleeping");
		$session->{run}->kill_kill;
		wait_for_exit($node, $pid);
		like(log_since($node, $position), qr/FATAL:  connection to client lost/, $call);
	}
	sql("DELETE FROM task WHERE id = $id");
};

# The table is not locked while the function waits, so DDL goes through, and tasks start after it.
subtest 'DDL while a function waits' => sub {
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	my $session = start_session("CALL wait_again('ddl', $id)");
	my $locks = q{FROM pg_locks WHERE relation = 'task'::regclass};

	wait_for_sleepers(1);
	is(sql("SELECT count(*) $locks AND pid IN (SELECT pid $sleeping)"), 0, 'it holds no lock');
	sql(q{SET lock_timeout = '30 s'; ALTER TABLE task ADD COLUMN color text});
	is(task($node, run_task($node, request => 'SELECT 1', color => 'red'), 'state'), 'DONE',
		'ALTER TABLE, and a task after it');
	wait_for_sleepers(1);
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	is(noted(1), 'STOP', 'it was still waiting');
	$session->quit;
	sql('ALTER TABLE task DROP COLUMN color');
	is(sql("BEGIN; SELECT FROM task LIMIT 0; SELECT FROM pg_task_wait('{$id}');
		SELECT mode $locks AND pid = pg_backend_pid()"), 'AccessShareLock',
		'the lock of the transaction itself stays');
};

# It returns the state after ten seconds; and an error that is caught leaves the transaction whole.
subtest 'the function is over' => sub {
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity');

	is(sql("SELECT state, clock_timestamp() - now() BETWEEN '9.9 s' AND '50 s'
		FROM pg_task_wait('{$id}')"), 'PLAN|t', 'after ten seconds');
	is(sql_as('eve', q{BEGIN; CREATE TEMP TABLE mark (n int); INSERT INTO mark VALUES (1);
		DO $$ BEGIN
			INSERT INTO mark VALUES (2);
			PERFORM pg_task_wait('{1}');
		EXCEPTION WHEN insufficient_privilege THEN
			INSERT INTO mark VALUES (3);
		END $$;
		SELECT string_agg(n::text, ' ' ORDER BY n) FROM mark; COMMIT}), '1 3',
		'an error is caught');
	sql("DELETE FROM task WHERE id = $id");
};

# Waiters leave without a trace, however they end.
subtest 'waiters that leave' => sub {
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	my $call = "CALL wait_and_note('a', '{$id}')";
	my @session = map { start_session($call) } 1 .. 4;

	wait_for_sleepers(4);
	is(sql("SELECT count(*) $sleeping AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL
		OR pid IN (SELECT pid FROM pg_locks WHERE relation = 'task'::regclass))"), 0,
		'they hold no snapshot and no lock');
	my @pids = split /\n/, sql("SELECT pid $sleeping ORDER BY backend_start");
	sql("SELECT pg_terminate_backend($pids[0]), pg_cancel_backend($pids[1])");
	wait_for_exit($node, $pids[0]);
	wait_for_sleepers(2);
	start($session[1], $call);
	wait_for_sleepers(3);
	my $begun = time;
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	is(noted(3), 'STOP,STOP,STOP', 'the others, and who was cancelled and waits again, are woken');
	cmp_ok(time - $begun, '<', 50, 'at once');
	$_->quit for @session[ 1 .. 3 ];
	eval { $session[0]->quit };
};

subtest 'tasks that wait' => sub {
	my $id = run_task($node, request => q{SELECT pg_task_wait(
		ARRAY[nullif(current_setting('pg_task.id'), '')::bigint])});

	is(task($node, $id, 'sqlstate'), '55000', 'not for itself');
	my $gate = insert_task($node, request => q{SELECT hold('task')});
	my @ids = map { insert_task($node, request => $_) } "SELECT state FROM pg_task_wait('{$gate}')",
	  "CALL pg_task_wait_for('{$gate}')";

	wait_for_running($node, 1, id => $_, event => sql('SHOW server_version_num') >= 170000
		? 'PgTaskWait' : 'Extension') for @ids;
	open_gate($node, 'task');
	wait_for_state($node, $_, 'DONE') for @ids;
	is(task($node, $ids[0], 'response'), 'DONE', 'but for another');
};

# A task that ends while a waiter looks at its row with an older snapshot: the waiter sees it
# waiting still, and must look again at once.
subtest 'an end during a look' => sub {
	sql(q{CREATE FUNCTION held() RETURNS bool LANGUAGE sql AS $$
			SELECT pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7); SELECT true $$;
		CREATE POLICY slow ON task AS RESTRICTIVE FOR SELECT TO ann USING (held())});
	for my $wait (q{PERFORM pg_task_wait(ARRAY[i])}, q{CALL pg_task_wait_for(ARRAY[i])})
	{
		my $id = sql(q{INSERT INTO task (role, request, dt) VALUES ('ann', 'SELECT 1', 'infinity')
			RETURNING id});
		my $holder = open_session($node, 'postgres');

		$holder->query_safe('SELECT pg_advisory_lock(7)');
		my $session = start_session(qq{SET ROLE ann; DO \$\$ DECLARE i bigint := $id; BEGIN $wait;
			END \$\$; RESET ROLE; INSERT INTO waited VALUES ('during')});
		wait_until($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory'
			AND NOT granted});
		sql("UPDATE task SET state = 'STOP' WHERE id = $id");
		my $begun = time;
		$holder->quit;
		noted(1);
		cmp_ok(time - $begun, '<', 50, $wait);
		$session->quit;
	}
	sql('DROP POLICY slow ON task');
};

# An error that is caught takes a process out of all lists in which it waits.
subtest 'a policy that catches an error' => sub {
	my $id = sql(q{INSERT INTO task (role, request, dt) VALUES ('bob', 'SELECT 1', 'infinity')
		RETURNING id});

	sql(q{CREATE SEQUENCE looks;
		GRANT USAGE ON SEQUENCE looks TO bob;
		CREATE FUNCTION caught() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
			PERFORM nextval('looks') / 0;
			EXCEPTION WHEN division_by_zero THEN RETURN true; END $$;
		CREATE POLICY caught ON task AS RESTRICTIVE FOR SELECT TO bob USING (caught())});
	sql_as('bob', $_) for "SELECT pg_task_wait('{$id}', '300 ms')",
	  "CALL pg_task_wait_for('{$id}', '300 ms')";
	cmp_ok(sql('SELECT last_value FROM looks'), '<', 20, 'waiters sleep between their looks');
	my $session = start_session(qq{SET ROLE bob; CALL pg_task_wait_for('{$id}'); RESET ROLE;
		INSERT INTO waited VALUES ('caught')});
	wait_for_sleepers(1);
	my $begun = time;
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	noted(1);
	cmp_ok(time - $begun, '<', 50, 'and are woken');
	$session->quit;
	sql('DROP POLICY caught ON task');
};

# The end comes at any moment of the wait's beginning.
subtest 'races' => sub {
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $name = "$dir/function.sql";

	append_to_file($name, q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id \gset
		CALL wait_again('race', :id);
		SELECT 1 / (clock_timestamp() - stop < '5 s' AND state = 'DONE')::int
		FROM task WHERE id = :id;
	});
	append_to_file("$dir/procedure.sql", 'CALL race()');
	sql(q{CREATE PROCEDURE race() LANGUAGE plpgsql AS $$
		DECLARE
			begun timestamptz := clock_timestamp();
			stopped bigint;
			ids bigint[];
		BEGIN
			INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity')
				RETURNING id INTO stopped;
			WITH new AS (
				INSERT INTO task (request, keep)
				SELECT format('UPDATE task SET state = ''STOP'' WHERE id = %s', stopped),
					CASE n WHEN 2 THEN interval '0' END
				FROM generate_series(1, (random() * 2)::int + 1) AS n RETURNING id)
			SELECT array_agg(id ORDER BY random()) || stopped INTO ids FROM new;
			COMMIT;
			CALL pg_task_wait_for(ids[3:4] || ids[1:2]);
			IF clock_timestamp() - begun > '50 s' OR EXISTS (
				SELECT FROM task WHERE id = ANY (ids) AND state NOT IN ('DONE', 'STOP')) THEN
				RAISE 'a wake-up was lost or came too early: %', ids;
			END IF;
		END $$});
	$node->command_ok([ 'pgbench', '-n', '-c', '5', '-t', '400', '-f', "$name\@2", '-f',
		"$dir/procedure.sql", 'postgres' ], '2,000 inserts with a wait');
	sql('DELETE FROM waited');
};

# All wait for all.
subtest 'many waiters' => sub {
	my $dir = PostgreSQL::Test::Utils::tempdir();

	append_to_file("$dir/all.sql", 'CALL wait_for_all()');
	sql(q{CREATE PROCEDURE wait_for_all() LANGUAGE plpgsql AS $$
		DECLARE
			ids bigint[] := ARRAY(SELECT id FROM task WHERE queue = 'many' ORDER BY random());
		BEGIN
			CALL pg_task_wait_for(ids);
			INSERT INTO waited SELECT 'all', count(*), min(state), clock_timestamp() - max(stop)
			FROM task WHERE id = ANY (ids) AND state = 'DONE';
		END $$});
	insert_rule('many', paused => 1);
	sql(q{INSERT INTO task (queue, request) SELECT 'many', 'SELECT 1'
		FROM generate_series(1, 1000)});
	my $bench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '100', '-t', '1', '-f', "$dir/all.sql", '-h',
			$node->host, '-p', $node->port, 'postgres' ],
		'>', \my $out, '2>', \my $err);

	wait_for_sleepers(100);
	my $begun = time;
	sql(q{UPDATE task_queue SET paused = false WHERE queue = 'many'});
	ok($bench->finish, '100 sessions wait for 1,000 tasks') or diag($err);
	cmp_ok(time - $begun, '<', 50, 'and are woken');
	is(sql(q{SELECT count(*), min(id), max(id), min(state), max(state) FROM waited}),
		'100|1000|1000|DONE|DONE', 'each has seen all ends');
	note('from the last end to the last return: ' . sql('SELECT max(age) FROM waited'));
};

done_testing();
