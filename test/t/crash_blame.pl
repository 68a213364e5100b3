# A task that crashes the server is identified; other tasks are not blamed for it, and run.  A TAP
# test because it crashes the server in several ways.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# Nothing here waits for the period.
my $node = new_node('main', conf => "pg_task.period = '1 h'\npg_task.max_executors = 5\n"
	. 'max_prepared_transactions = 1');

# Waits until this number of tasks wait at a gate.
sub wait_for_held { return wait_for_running($node, $_[0], event => 'PgSleep') }

# Checks the state of a task and its counters.
sub is_counted
{
	my ($id, $state, $attempt, $failed, $crashed, $name) = @_;

	return is_row($node, $id,
		{ state => $state, attempt => $attempt, failed => $failed, crashed => $crashed }, $name);
}

# The query for the scheduler of a database.
sub scheduler_of
{
	my ($db) = @_;

	return "SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = '$db'";
}

sub power_loss
{
	my (@databases) = @_;

	kill_server($node);
	$node->start;
	wait_for_schedulers($node, 'postgres', @databases);
}

make_gates($node);
sql(q{
	-- when this number of tasks of the queue innocent run
	CREATE FUNCTION die(beside int DEFAULT 0) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		WHILE (SELECT count(*) FROM pg_stat_activity
			WHERE application_name LIKE 'pg_task innocent %') < beside LOOP
			PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
		END LOOP;
		COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID';
		PERFORM pg_sleep(60);
	END $$;
	CREATE TABLE effect (task bigint)});

# The task crashes the server twice, and no more.  Tasks that run beside it, and waiting ones, end
# normally.
subtest 'a task that crashes the server fails' => sub {
	my @innocent = map { insert_task($node, queue => 'innocent',
		request => q{INSERT INTO effect VALUES (current_setting('pg_task.id')::bigint);
		SELECT hold('first')}) } 1 .. 2;
	wait_for_held(2);
	my @waiting = map { insert_task($node, queue => 'narrow', max => 1, dt => 'infinity',
		request => 'SELECT 1') } 1 .. 3;
	my $poison = insert_task($node, queue => 'poison', request => 'SELECT die(2)', repeat => '1 s',
		retry => 5, dt => 'infinity');
	start_crash($node, $poison);
	wait_until($node, "SELECT state = 'FAIL' FROM task WHERE id = $poison");
	is_counted($poison, 'FAIL', 2, 0, 2, 'a task that crashes the server is FAIL');
	is(task($node, $poison, 'error, sqlstate, response'),
		'the server crashed while the task ran (2 times)|57P02|FATAL:  the server crashed while '
		. 'the task ran (2 times)', 'the row has the error');
	is(sql("SELECT count(*) FROM task WHERE parent = $poison"), 0, 'the task does not repeat');
	sql("UPDATE task SET dt = now() WHERE queue = 'narrow'");
	wait_for_state($node, $_, 'DONE') for @waiting;
	pass('waiting tasks run');
	wait_for_held(2);
	open_gate($node, 'first');
	wait_for_state($node, $_, 'DONE') for @innocent;
	is_counted($_, 'DONE', 3, 0, 0, 'a task that ran at the same time is no suspect') for @innocent;
	is(sql('SELECT count(*), count(DISTINCT task) FROM effect'), '2|2', 'its effect is there once');
};

my $long;

# A process other than an executor dies: no task is a suspect, however often.
subtest 'other processes and shutdowns blame no task' => sub {
	$long = insert_task($node, request => q{SELECT hold('second')});
	wait_for_held(1);
	for my $n (2 .. 4)
	{
		my $type = $n == 4 ? 'pg_task scheduler' : 'walwriter';
		my $pid = poll_for(sub {
			return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
		});
		kill 'KILL', $pid;
		wait_until($node, "SELECT attempt = $n AND state = 'WORK' FROM task WHERE id = $long");
	}
	is_counted($long, 'WORK', 4, 0, 0, 'another process dies: no task is a suspect');
	for my $mode (qw(immediate immediate fast))
	{
		$node->stop($mode);
		$node->start;
		wait_for_held(1);
	}
	is_counted($long, 'WORK', 7, 0, 0, 'the server is stopped: no task is a suspect');
};

# There is no crash report: every running task is a suspect.  Suspects run one at a time, others
# run beside them.
subtest 'without a crash report all running tasks are suspects' => sub {
	my @suspect = ($long, map { insert_task($node, request => q{SELECT hold('second')}) } 1 .. 3);
	wait_for_held(4);
	power_loss();
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'WORK' AND crashed = 1});
	is(sql(q{SELECT count(*) FROM task WHERE crashed = 1 AND state = 'PLAN'
		AND sqlstate = '57P02' AND error = 'the server crashed while the task ran'}), 3,
		'after a power loss suspects run one at a time');
	is(task($node, run_task($node, request => 'SELECT 42'), 'response'), 42,
		'other tasks run at the same time');
	wait_for_held(1);
	is(sql(q{SELECT count(*) FROM task WHERE crashed = 1 AND state = 'WORK'}), 1,
		'still one suspect runs');
	open_gate($node, 'second');
	wait_for_state($node, $_, 'DONE') for @suspect;
	is(sql('SELECT count(*) FROM task WHERE id IN (' . join(', ', @suspect)
		. ') AND crashed = 1 AND failed = 0'), 4, 'all suspects are DONE in the end');
};

# A task that kills the whole server, so that there is no crash report.
subtest 'a suspect that crashes the server again fails' => sub {
	my $bad = insert_task($node, queue => 'bad', request => q{SELECT hold('third')});
	wait_for_held(1);
	power_loss();
	wait_for_held(1);
	my $fresh = insert_task($node, queue => 'fresh', request => q{SELECT hold('third')});
	wait_for_held(2);
	power_loss();
	wait_for_state($node, $bad, 'FAIL');
	is_counted($bad, 'FAIL', 2, 0, 2, 'a suspect in two crashes without a crash report is FAIL');
	wait_for_held(1);
	is_counted($fresh, 'WORK', 2, 0, 1, 'a suspect in the second crash only is not FAIL');
	open_gate($node, 'third');
	wait_for_state($node, $fresh, 'DONE');
};

# Suspects of all databases of the server run one at a time.
subtest 'suspects of all databases run one at a time' => sub {
	sql('CREATE DATABASE other');
	wait_for_table($node, db => 'other');
	make_gates($node, db => 'other');
	my @here = map { insert_task($node, request => q{SELECT hold('fourth')}) } 1 .. 2;
	my @there = map { insert_task($node, db => 'other',
		request => q{SELECT hold('fourth')}) } 1 .. 2;
	wait_for_held(4);
	power_loss('other');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE request LIKE '%fourth%'
		AND crashed = 1},
		db => $_) for qw(postgres other);
	wait_for_held(1);
	my $at_work = sub { return sql(q{SELECT count(*) FROM task
		WHERE state = 'WORK'}) + sql_in('other',
		q{SELECT count(*) FROM task WHERE state = 'WORK'}) };
	is($at_work->(), 1, 'one suspect of all databases runs');
	my ($first, $next) = sql(q{SELECT count(*) FROM task WHERE state = 'WORK'}) ? ('postgres',
		'other')
		: ('other', 'postgres');
	open_gate($node, 'fourth', db => $first);
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'WORK'}, db => $next);
	is($at_work->(), 1, 'then one suspect of the other database runs');
	open_gate($node, 'fourth', db => $next);
	wait_until($node, q{SELECT bool_and(state = 'DONE') FROM task WHERE request LIKE '%fourth%'},
		db => $_) for qw(postgres other);
};

my $beside;

# A parallel worker of the task crashes, not its executor.
subtest 'a parallel worker crashes' => sub {
	sql(q{
		CREATE TABLE big AS SELECT n FROM generate_series(1, 100000) AS n;
		ALTER TABLE big SET (parallel_workers = 2);
		CREATE FUNCTION suicide(n int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS $$
		BEGIN
			IF n % 1000 = 1 THEN
				PERFORM pg_sleep(0.01);
			END IF;
			RETURN n;
		END $$});
	my $helped = insert_task($node,
		request => q{SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
		SET min_parallel_table_scan_size = 0;
		SET parallel_leader_participation = off; SET max_parallel_workers_per_gather = 2;
		SELECT sum(suicide(n)) FROM big, generate_series(1, 100)});
	$beside = insert_task($node, request => q{SELECT hold('fifth')});
	for my $n (1 .. 2)
	{
		# one that has begun with its part of the plan: the other may be about to start
		my $worker;
		poll_for(sub {
			return $worker = sql(qq{SELECT min(pid) FROM pg_stat_activity
				WHERE backend_type = 'parallel worker' AND wait_event = 'PgSleep'
				AND (SELECT state = 'WORK' AND attempt = $n FROM task WHERE id = $helped)});
		}) or die 'no parallel worker';
		kill 'KILL', $worker;
		wait_until($node, "SELECT crashed = $n FROM task WHERE id = $helped");
	}
	wait_for_state($node, $helped, 'FAIL');
	is_counted($helped, 'FAIL', 2, 0, 2, 'a parallel worker that dies makes its task a suspect');
	wait_for_held(1);
	is(sql("SELECT crashed FROM task WHERE id = $beside"), 0, 'no other task is a suspect');
};

# A failed start of the server in between does not lose the suspects.
subtest 'a failed start keeps the suspects' => sub {
	my $blamed = insert_task($node, request => q{SELECT hold('sixth')});
	wait_for_held(2);
	set_conf($node, 'restart_after_crash = off');
	wait_until($node, 'SHOW restart_after_crash', expected => 'off');
	my $dir = $node->data_dir;
	kill 'KILL', task($node, $blamed, 'pid');
	poll_for(sub { !-e "$dir/postmaster.pid" }) or die 'the postmaster does not exit';
	$node->{_pid} = undef;
	rename "$dir/pg_wal", "$dir/pg_wal.away" or die;
	is($node->start(fail_ok => 1), 0, 'the server cannot start');
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', "$dir/pg_wal");
	rename "$dir/pg_wal.away", "$dir/pg_wal" or die;
	$node->start;
	wait_until($node, "SELECT crashed = 1 FROM task WHERE id = $blamed");
	is(sql("SELECT crashed FROM task WHERE id = $beside"), 0,
		'the suspect is known after the failed start');
	set_conf($node, 'restart_after_crash = on');
};

# pg_task.max_crashes sets how many crashes fail a task.
subtest 'pg_task.max_crashes' => sub {
	set_conf($node, 'pg_task.max_crashes = 1');
	wait_until($node, 'SHOW pg_task.max_crashes', expected => 1);
	wait_for_schedulers($node, 'other', 'postgres');
	my $poison = insert_task($node, request => 'SELECT die()', dt => 'infinity');
	start_crash($node, $poison);
	wait_until($node, "SELECT state = 'FAIL' FROM task WHERE id = $poison");
	is_counted($poison, 'FAIL', 1, 0, 1, 'pg_task.max_crashes');
};

# A power loss, and then the clock is set: a run begins at a time before it, or far ahead.  Its
# executor ends and its row is locked, so the scheduler is replaced before it could write the row.
subtest 'a run begun after a power loss is no suspect, whatever the clock was' => sub {
	my %clock = make_clock();

	open_gate($node, $_) for qw(fifth sixth);
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	my $suspect = insert_task($node, request => q{SELECT hold('seventh')});
	wait_for_held(1);
	{
		local @ENV{ keys %clock } = values %clock;
		power_loss('other');
	}
	wait_for_state($node, $suspect, 'FAIL');
	my $session = open_session($node, 'postgres');
	for my $seconds (-3600, 3600)
	{
		set_clock($seconds);
		my $id = insert_task($node, request => q{SELECT hold('seventh')});
		wait_for_held(1);
		set_clock(0);
		run_task($node, request => 'SELECT 1');
		$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
		terminate($node, task($node, $id, 'pid'));
		wait_until($node, q{SELECT busy = 0 FROM pg_stat_task_scheduler()
			WHERE datname = 'postgres'});
		my $scheduler = scheduler_of('postgres');
		my $old = sql($scheduler);
		terminate($node, $old);
		wait_until($node, "SELECT pid <> $old FROM ($scheduler) AS s");
		$session->query_safe('COMMIT');
		wait_until($node, "SELECT state <> 'WORK' OR attempt = 2 FROM task WHERE id = $id");
		is(task($node, $id, 'crashed'), 0, "$seconds seconds: it is no suspect");
		open_gate($node, 'seventh');
		sql("UPDATE task SET dt = now() WHERE id = $id AND state = 'PLAN'");
		wait_for_state($node, $id, 'DONE');
		sql(q{DELETE FROM gate WHERE name = 'seventh'});
	}
	$session->quit;
};

# The crash report names the run, but the clock is set, and another database claims, before the
# scheduler can look.  The clock is that of the server since the subtest above.
subtest 'a run that the crash report names is a suspect, whatever the clock was' => sub {
	my $other = scheduler_of('other');

	set_clock(3600);
	my $id = insert_task($node, request => q{SELECT hold('eighth')});
	wait_for_held(1);
	sql("BEGIN; LOCK TABLE task; PREPARE TRANSACTION 'late'");
	my ($old, $pid) = map { sql($_) } $other, q{SELECT pid FROM pg_stat_activity
		WHERE wait_event = 'PgSleep'};
	kill 'KILL', $pid;
	wait_until($node, "SELECT pid <> $old FROM ($other) AS s");
	run_task($node, db => 'other', request => 'SELECT 1');
	set_clock(0);
	run_task($node, db => 'other', request => 'SELECT 2');
	sql("ROLLBACK PREPARED 'late'");
	wait_for_state($node, $id, 'FAIL');
	is_counted($id, 'FAIL', 1, 0, 1, 'it is a suspect');
};

done_testing();
