# A task is stopped through its row: STOP, DELETE, TRUNCATE, a new plan, pg_task_cancel.  Whatever
# it is doing, it ends soon, has no effect, and affects no other task.  A TAP test because it
# watches processes and stops servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;
use Time::HiRes qw(time);

# With a period of an hour nothing is found by the periodic scan.
my $node = new_node('main',
	conf => "pg_task.period = '1 h'\npg_task.max_executors = 4\nmax_prepared_transactions = 2");

make_gates($node);
sql('CREATE TABLE effect (what text)');
my $session = open_session($node, 'postgres');

# How many of these tasks run.  A task that is DONE may be shown for a moment more.
sub running_of
{
	my $sum = 0;

	$sum += sql('SELECT count(*) ' . running(id => $_)) for @_;
	return $sum;
}

sub effects { return sql(qq{SELECT count(*) FROM effect WHERE what = '$_[0]'}) }

# A task that has an effect and then sleeps for long; returns when it sleeps.
sub start_task
{
	my ($what, %column) = @_;
	my $id = insert_task($node,
		request => "INSERT INTO effect VALUES ('$what'); SELECT pg_sleep(600)", %column);

	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	return $id;
}

# Waits until no task runs; returns how long that took.
sub wait_for_end
{
	my ($begin) = @_;

	wait_for_running($node, 0);
	return time - ($begin // time);
}

# What the row of a stopped run contains.
my $stopped = q{state, attempt, failed, sqlstate, error, split_part(response, E'\n', 1),
	stop >= start, pid > 0};
my $wanted =
	'STOP|1|0|TK002|canceling task due to user request|ERROR:  canceling task due to user '
		. 'request|t|t';

my %way;

# Each way to stop a running and a waiting task.
subtest 'each way to stop a task' => sub {
	%way = (
		'STOP' => q{UPDATE task SET state = 'STOP' WHERE id = %d},
		'pg_task_cancel' => q{SELECT pg_task_cancel(%d)},
		'DELETE' => q{DELETE FROM task WHERE id = %d},
		'TRUNCATE' => q{TRUNCATE task},
		'planned for later' => q{UPDATE task SET state = 'PLAN', dt = 'infinity' WHERE id = %d},
		'DONE' => q{UPDATE task SET state = 'DONE' WHERE id = %d},
		'GONE' => q{UPDATE task SET state = 'GONE' WHERE id = %d});
	my $slowest = 0;
	for my $way (sort keys %way)
	{
		my $id = start_task($way, repeat => '1 hour', retry => 3, delay => '10 ms');
		my $begin = time;
		my $row = sql(sprintf("$way{$way}; SELECT * FROM task WHERE id = %d", $id, $id));
		my $seconds = wait_for_end($begin);

		$slowest = $seconds if $seconds > $slowest;
		is(effects($way), 0, "$way: no effect");
		is(count_of($node, "parent = $id"), 0, "$way: it does not repeat");
		if ($way =~ /STOP|cancel/) { is(task($node, $id, $stopped), $wanted,
			"$way: the row says what happened") }
		elsif ($way =~ /DELETE|TRUNCATE/) { is(count_of($node, "id = $id"), 0, "$way: no row") }
		else { is(task($node, $id, '*'), $row, "$way: the row is as it was set") }

		$id = insert_task($node, max => 0, queue => 'never',
			request => "INSERT INTO effect VALUES ('$way')");
		sql(sprintf($way{$way}, $id));
		sql("UPDATE task SET max = 1 WHERE id = $id");
		run_task($node, queue => 'witness', request => 'SELECT 1');
		is(effects($way), 0, "$way: a waiting task does not start");
		is(task($node, $id, 'state, attempt, start IS NULL'), "STOP|0|t",
			"$way: its row has no start") if $way =~ /STOP|cancel/;
	}
	cmp_ok($slowest, '<', 50, 'the slowest run ended soon');
	diag("the slowest took $slowest s");
};

# A stopped task may be planned again, even before its run has ended; then it runs as any other.
subtest 'a stopped task is planned again' => sub {
	my $id = start_task('anew');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	wait_for_end();
	sql("UPDATE task SET state = 'PLAN', request = 'SELECT 1' WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is_row($node, $id,
		{
			attempt => 2, failed => 0, 'error IS NULL' => 'true', 'sqlstate IS NULL' => 'true',
			response => '1'
		},
		'a stopped task that is planned again runs');
	$id = start_task('at once');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id; UPDATE task "
		. "SET state = 'PLAN', request = 'INSERT INTO effect VALUES (''second'')' WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is(effects('at once') . effects('second') . task($node, $id, 'attempt, error IS NULL'), '012|t',
		'a task that is planned again before its run has ended runs');
	$id = start_task('again');
	sql("UPDATE task SET state = 'PLAN' WHERE id = $id");
	wait_until($node, "SELECT attempt = 2 AND state = 'WORK' FROM task WHERE id = $id");
	sql("DELETE FROM task WHERE id = $id");
	wait_for_end();
	is(effects('again'), 0, 'a task planned for now while it runs is run again');
	# The next task of a queue with max = 1 starts at once.
	$id = start_task('narrow', queue => 'narrow', max => 1);
	my $next = insert_task($node, queue => 'narrow', max => 1, request => 'SELECT 1');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	wait_for_state($node, $next, 'DONE');
	is(task($node, $next, 'start >= (SELECT stop FROM task WHERE id = ' . $id . ')'), 't',
		'the next task of its queue starts when it has ended');
};

# What a task has become is not overwritten.
subtest 'a task that has ended keeps its state' => sub {
	sql('TRUNCATE task');
	insert_task($node, request => 'SELECT 1', state => $_, sqlstate => $_) for qw(DONE FAIL GONE STOP);
	my $wait = insert_task($node, request => 'SELECT 1', dt => 'infinity', sqlstate => 'PLAN');
	my $states = q{SELECT string_agg(concat_ws(' ', sqlstate, state, priority), ', ' ORDER BY id)
		FROM task};
	my $notice = "NOTICE:  a task that has ended keeps its state\n"
		. 'HINT:  STOP is for tasks that are PLAN or WORK.';

	is(notices_of('postgres', q{WITH u AS (UPDATE task SET state = 'STOP', priority = 7
			WHERE sqlstate <> 'PLAN' RETURNING state)
			SELECT count(*) FROM u WHERE state = 'STOP'}), $notice, 'one notice for a statement');
	is(sql($states), 'DONE DONE 7, FAIL FAIL 7, GONE GONE 7, STOP STOP 7, PLAN PLAN 0',
		'all else of the UPDATE is written');
	is(notices_of('postgres', "UPDATE task SET state = 'STOP' WHERE id = $wait"), '',
		'no notice of one that waits');
	sql("UPDATE task SET state = 'FAIL' WHERE state = 'DONE'");
	like(sql($states), qr/^DONE FAIL 7, .* PLAN STOP 0$/, 'the owner sets other states');
	sql('TRUNCATE task');
};

# Only a commit stops a task.  Two tasks run; whatever is rolled back has no effect on them.
subtest 'only a commit stops a task' => sub {
	my ($one, $two) = map { start_task($_) } qw(one two);
	for my $undone ("BEGIN; UPDATE task SET state = 'STOP' WHERE id = $one; ROLLBACK",
		"BEGIN; DELETE FROM task; ROLLBACK", "BEGIN; TRUNCATE task; ROLLBACK",
		"BEGIN; SELECT pg_task_cancel($one); ROLLBACK",
		"BEGIN; SAVEPOINT s; UPDATE task SET state = 'STOP' WHERE id = $one; ROLLBACK TO s; COMMIT",
		"BEGIN; SAVEPOINT s; DELETE FROM task; ROLLBACK TO s; INSERT INTO effect "
		. "VALUES ('other'); COMMIT",
		"DO \$\$ BEGIN UPDATE task SET state = 'STOP' WHERE id = $one; RAISE division_by_zero; "
		. "EXCEPTION WHEN division_by_zero THEN NULL; END \$\$",
		"BEGIN; UPDATE task SET state = 'STOP' WHERE id = $one; PREPARE TRANSACTION 'p'; ROLLBACK "
		. "PREPARED 'p'",
		"BEGIN; UPDATE task SET state = 'STOP' WHERE id = $one; UPDATE task SET state = 'WORK' "
		. "WHERE id = $one; COMMIT")
	{
		$node->psql('postgres', $undone);
		run_task($node, queue => 'witness', request => 'SELECT 1');
		is(running_of($one, $two), 2, "nothing is stopped by $undone");
	}
	$session->query_safe(qq{BEGIN; SAVEPOINT s; UPDATE task SET state = 'STOP' WHERE id = $one;
		ROLLBACK TO s;
		SAVEPOINT t; UPDATE task SET state = 'STOP' WHERE id = $two; RELEASE t});
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(running_of($one, $two), 2, 'an open transaction stops nothing');
	$session->query_safe('COMMIT');
	wait_for_running($node, 1);
	is(task($node, $two, $stopped), $wanted, 'the task whose STOP was committed is stopped');
	is(task($node, $one, 'state'), 'WORK', 'the task whose STOP was rolled back is not');
	sql("BEGIN; UPDATE task SET state = 'STOP' WHERE id = $one; PREPARE TRANSACTION 'p'");
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(running_of($one), 1, 'a prepared transaction stops nothing');
	sql(q{COMMIT PREPARED 'p'});
	wait_for_end();
	is(task($node, $one, 'state') . effects('one') . effects('two'), 'STOP00',
		'COMMIT PREPARED stops the task');
};

# A run that ends while an open transaction has stopped it: its outcome waits for that transaction.
subtest 'the run ends while the STOP is uncommitted' => sub {
	for my $end ('COMMIT', 'ROLLBACK')
	{
		my $task = insert_task($node,
			request => "INSERT INTO effect VALUES ('open $end'); SELECT hold('open $end')");
		wait_for_running($node, 1, id => $task, event => 'PgSleep');
		$session->query_safe("BEGIN; UPDATE task SET state = 'STOP' WHERE id = $task");
		open_gate($node, "open $end");
		wait_for_running($node, 1, id => $task, event => 'transactionid');
		$session->query_safe($end);
		wait_for_end();
		is(task($node, $task, 'state') . effects("open $end"), $end eq 'COMMIT' ? 'STOP0' : 'DONE1',
			"the run ends before $end");
	}
	$session->quit;
};

# Stops a process of pg_task that has nothing to do.
sub freeze
{
	my ($kind) = @_;
	my $pid = poll_for(sub {
		my @pids = backends($node, $kind);

		return @pids == 1 && sql("SELECT pid FROM pg_stat_activity WHERE pid = $pids[0]
			AND state = 'idle' AND wait_event_type = 'Extension'");
	});

	die "no $kind is idle\n" if !$pid;
	kill 'STOP', $pid;
	poll_for(sub { PgTask::process_state($pid) eq 'T' }) or die "process $pid does not stop\n";
	return $pid;
}

# Claimed, but not begun: the executor itself skips it.  Seven tasks are given to an executor that
# is stopped; the scheduler is stopped before it could reclaim the six behind the first.  If the
# machine is too busy the tasks of the queue seem to be too long for that, so this may take several
# tries.
sub in_line
{
	my $gate = "line $_[0]";
	# the scheduler has seen that tasks of this queue are short
	sql(qq{INSERT INTO task (queue, request) SELECT '$gate', 'SELECT 1'
		FROM generate_series(1, 50)});
	wait_until($node, qq{SELECT count(*) = 0 FROM task WHERE queue = '$gate' AND state <> 'DONE'});
	my $executor = freeze('executor');
	sql(qq{BEGIN; DELETE FROM task; INSERT INTO task (queue, request)
		VALUES ('$gate', 'SELECT hold(''$gate'')');
		INSERT INTO task (queue, key, request)
		SELECT '$gate', n, format('INSERT INTO effect VALUES (''line %s'')', n)
		FROM generate_series(1, 6) AS n; COMMIT});
	wait_until($node, q{SELECT count(*) > 0 FROM task WHERE state = 'WORK'});
	my $scheduler = freeze('scheduler');
	my $claimed = count_of($node, q{state = 'WORK'});
	kill 'CONT', $executor;
	if ($claimed == 7)
	{
		wait_for_running($node, 1, event => 'PgSleep');
		return $scheduler;
	}
	kill 'CONT', $scheduler;
	open_gate($node, $gate);
	wait_until($node, q{SELECT count(*) = 7 FROM task WHERE state = 'DONE'});
	return;
}

subtest 'claimed tasks that have not begun' => sub {
	apply_conf($node, 'pg_task.role_executors = 1');
	my $scheduler;
	for (1 .. 60)
	{
		sql(q{DELETE FROM effect});
		$scheduler = in_line($_) and last;
	}
	ok($scheduler, 'there are claimed tasks that have not begun') or die "no claimed tasks\n";
	my %line = map { split /\|/ } split /\n/,
		sql(q{SELECT key, id FROM task WHERE key IS NOT NULL});
	sql(sprintf($way{'STOP'}, $line{1}) . ';' . sprintf($way{'DELETE'}, $line{2}) . ';'
		. sprintf($way{'planned for later'}, $line{3}) . ';' . sprintf($way{'DONE'}, $line{4}));
	sql(sprintf($way{'pg_task_cancel'}, $line{5}));
	is(sql('SELECT count(*) ' . running()), 1,
		'stopping claimed tasks does not cancel the running one');
	open_gate($node,
		sql(q{SELECT substring(query FROM 'line \d+') FROM pg_stat_activity
		WHERE query LIKE '%hold(''line%' AND backend_type = 'pg_task executor'}));
	wait_for_end();
	wait_until($node, "SELECT state = 'DONE' FROM task WHERE id = $line{6}");
	kill 'CONT', $scheduler;
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(sql(q{SELECT string_agg(what, ',') FROM effect}), 'line 6',
		'claimed: only the task that was not stopped ran');
	is(sql(q{SELECT string_agg(key || ' ' || state || ' ' || failed, ', ' ORDER BY key) FROM task
		WHERE key IS NOT NULL}),
		'1 STOP 0, 3 PLAN 0, 4 DONE 0, 5 STOP 0, 6 DONE 0',
		'claimed: the rows are as they were set');
	is(count_of($node, q{sqlstate = 'TK002' AND state <> 'STOP' OR failed > 0 OR state = 'WORK'}),
		0,
		'claimed: no other task was cancelled');
	apply_conf($node, 'pg_task.role_executors = 0');
};

# What docs/running.md says of a request that catches each cancel, from the role of the task.
subtest 'a task that does not end' => sub {
	sql(q{CREATE ROLE member LOGIN; GRANT SELECT, INSERT, UPDATE ON task TO member;
		CREATE SEQUENCE cancels; GRANT USAGE ON SEQUENCE cancels TO member});
	my ($block) = manual_page('running.md') =~ /^### A task that does not end\n.*?^```sql\n(.*?)^```/ms;
	my $deaf = insert_task($node, role => 'member', timeout => '1 s',
		request => q{DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(600);
		EXCEPTION WHEN query_canceled THEN PERFORM nextval('cancels'); END; END LOOP; END $$});
	my ($cancel, $end) = split /(?<=;)\n/, $block =~ s/\b42\b/$deaf/gr;

	wait_until($node, 'SELECT last_value > 3 FROM cancels');
	ok(1, 'it has caught its timeout, again and again');
	is(sql_as('member', $cancel), 't', 'it is stopped');
	my $why = sql_as('member', "SELECT pg_task_why($deaf)");
	like($why, qr/^STOP, but its run in pid \d+ has not ended yet$/, 'and has not ended');
	is(sql_as('member', $end), 't', 'its process is ended');
	wait_for_running($node, 0, id => $deaf);
	wait_until($node, "SELECT pg_task_why($deaf) LIKE 'it has ended: STOP%'");
	is(task($node, $deaf, 'state, attempt'), 'STOP|1', 'it stays STOP, and has run once');
};

# STOP survives a crash of the server, for a task that was running (and ignores cancels) and for
# one that was waiting.
subtest 'STOP survives the end of the server' => sub {
	for my $end ('immediate', 'fast')
	{
		sql('DELETE FROM task');
		my $deaf = insert_task($node, repeat => '1 s',
			request => q{INSERT INTO effect VALUES ('deaf');
			DO $$ BEGIN FOR i IN 1 .. 100000 LOOP BEGIN PERFORM pg_sleep(600);
			EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$});
		wait_for_running($node, 1, id => $deaf, event => 'PgSleep');
		my $waits = insert_task($node, queue => 'never', max => 0,
			request => q{INSERT INTO effect VALUES ('deaf')});
		sql("UPDATE task SET state = 'STOP', max = NULL WHERE id IN ($deaf, $waits)");
		$node->stop($end);
		$node->start;
		wait_for_table($node);
		run_task($node, queue => 'witness', request => 'SELECT 1');
		is(sql("SELECT string_agg(state || attempt || failed || crashed, ',' ORDER BY id) "
			. "FROM task WHERE id IN ($deaf, $waits)"), 'STOP100,STOP000',
			"$end: the tasks stay STOP");
		is(effects('deaf') . count_of($node, 'parent IS NOT NULL'), '00',
			"$end: no effect, no repeat");
	}
};

done_testing();
