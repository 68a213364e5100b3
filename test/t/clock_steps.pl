# The wall clock is set back and forward by an hour: intervals keep their length, and times in rows
# are compared with the clock as it is.  A TAP test because the server runs with a library that
# shifts its clock.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my %clock = make_clock();
my $node = new_node('main', start => 0, conf => q{
pg_task.database = 'postgres, other'
pg_task.period = '300 ms'
pg_task.max_executors = 2
max_worker_processes = 8
});
{
	local @ENV{ keys %clock } = values %clock;
	$node->start;
}
sql('CREATE DATABASE other');
wait_for_table($node);
wait_for_table($node, db => 'other');

# Soon by the true clock, and not an hour later.
sub runs_soon
{
	my ($name, %column) = @_;
	my $id = insert_task($node, request => 'SELECT 1', %column);

	return becomes_true("SELECT state = 'DONE' FROM task WHERE id = $id", $name, db => $column{db});
}

make_gates($node);
sql('CREATE ROLE tenant LOGIN; GRANT INSERT, SELECT ON task TO tenant');
my $line = q{INSERT INTO task (queue, request)
	SELECT 'line', 'SELECT count(*) FROM generate_series(1, 20000)' FROM generate_series(1, 20000)};
my $tenant = q{SET ROLE tenant; INSERT INTO task (queue, request) VALUES ('tenant', 'SELECT 1')};

# Tasks that wait and run while the clock is set.
sub prepare
{
	run_task($node, queue => 'pause', max => -300, request => 'SELECT 1');
	sql($line);
	wait_until($node, q{SELECT count(*) > 20 FROM task WHERE queue = 'line' AND state = 'DONE'});
}

# What must go on after that.
sub check
{
	my ($step) = @_;

	sql($tenant);
	becomes_true(q{SELECT bool_and(state = 'DONE') FROM task WHERE queue = 'tenant'},
		"$step: another role gets an executor");
	runs_soon("$step: another database gets one", db => 'other');
	sql(q{DELETE FROM task WHERE queue = 'line' AND state = 'PLAN'});
	runs_soon("$step: a new task that is not to wait for long runs", active => '1 min');
	runs_soon("$step: a queue with a pause between starts goes on", queue => 'pause', max => -300);
	sql(q{SET session_replication_role = 'replica';
		INSERT INTO task (queue, request) VALUES ('unseen', 'SELECT 1')});
	becomes_true(q{SELECT bool_and(state = 'DONE') FROM task WHERE queue = 'unseen'},
		"$step: a row without a hint is found");
	is(count_of($node, q{state IN ('GONE', 'FAIL')}), 0, "$step: no task was GONE or FAIL");
}

# An executor that has to wait for a processor while it starts the timer of a task.
subtest 'a timeout that passes while its timer is started' => sub {
	set_clock(0, 700);
	sql(q{INSERT INTO task (queue, request, timeout) SELECT 'timer', 'SELECT pg_sleep(0.02)',
		n * interval '100 us' + interval '1 ms' FROM generate_series(1, 60) AS n});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	set_clock(0);
	is(sql(q{SELECT DISTINCT sqlstate, error FROM task WHERE queue = 'timer' AND state = 'FAIL'}),
		'TK001|canceling task due to timeout', 'it ends the task, and not the process');
	sql(q{DELETE FROM task WHERE queue = 'timer'});
};

# A row inserted as by replication is found only by the periodic scan.
sql('ALTER TABLE task ENABLE TRIGGER zz_pg_task_bound');

prepare();
set_clock(-3600);
check('back');

# The time that a task sets for its own next run is not over.
my $own = insert_task($node, request => q{UPDATE task SET dt = clock_timestamp() + interval '10 min'
	WHERE id = current_setting('pg_task.id')::bigint});
becomes_true("SELECT state = 'PLAN' AND attempt > 0 FROM task WHERE id = $own",
	'back: a task plans its next run');
run_task($node, request => 'SELECT 1');
is(task($node, $own, 'attempt, dt > clock_timestamp()'), '1|t', 'back: it runs when that is due');

# A timeout that was running when the clock was set back. Another timer ends in between.
sql(q{DELETE FROM task WHERE state IN ('DONE', 'PLAN')});
set_clock(0);
my $id = insert_task($node, timeout => '1500 ms', request => q{SET statement_timeout = '30 s';
	SELECT pg_sleep(3600)});
wait_until($node, "SELECT state <> 'PLAN' FROM task WHERE id = $id");
set_clock(-3600);
becomes_true("SELECT state = 'FAIL' AND error ~ 'due to timeout' FROM task WHERE id = $id",
	'back: a running task is cancelled at its timeout');
sql(q{DELETE FROM task});

# The start of a scheduler that is throttled, because the previous one exited early.
set_clock(0);
for (1 .. 2)
{
	my @old = sort { $a <=> $b } backends($node, 'scheduler');
	terminate($node, @old);
	set_clock(-3600) if $_ == 2;
	becomes_true(qq{SELECT count(*) = 2 FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler'
		AND pid <> ALL (ARRAY[@{[join ', ', @old]}])}, 'back: a throttled scheduler starts');
}

# Forward: tasks planned before the new time are due; running tasks keep their timeout.
set_clock(0);
$id = insert_task($node, timeout => '10 min', request => q{SET statement_timeout = '10 min';
	SELECT hold('ahead'); SELECT 1; SELECT 2});
wait_for_running($node, 1, id => $id, event => 'PgSleep');
my $later = sql(q{INSERT INTO task (dt, request) VALUES (now() + interval '50 min', 'SELECT 1')
	RETURNING id});
set_clock(3600);
becomes_true("SELECT state = 'DONE' FROM task WHERE id = $later",
	'ahead: a task of the hour that was skipped is due');
open_gate($node, 'ahead');
becomes_true("SELECT state = 'DONE' FROM task WHERE id = $id",
	'ahead: a running task keeps its timeout');
set_clock(0);
sql(q{DELETE FROM task});
prepare();
set_clock(3600);
check('ahead');

# Times in rows are those of the wall clock.  Two executors may begin in the same microsecond.
is(sql(q{SELECT count(DISTINCT (pid, start)) = count(*) AND min(stop - start) >= '0' FROM task
	WHERE start > now() - interval '30 min'}), 't', 'times in rows are those of the wall clock');

$node->stop;

# Tasks that repeat by cron: planned in half an hour, running, expiring and tried again while the
# clock is set.  The expression matches once in each hour.
my $repeats = new_node('repeats', start => 0, conf => q{
pg_task.database = 'postgres'
pg_task.period = '300 ms'
pg_task.max_executors = 4
});
set_clock(0);
{
	local @ENV{ keys %clock } = values %clock;
	$repeats->start;
}
wait_for_table($repeats);
# pg_sleep would follow the clock
my $gate = open_session($repeats, 'postgres');

# The states of the runs of a queue, one letter each: D D P.
sub states_of
{
	my ($queue) = @_;

	return sql("SELECT string_agg(left(state, 1), ' ' ORDER BY id) FROM task
		WHERE queue = '$queue'", node => $repeats);
}

sub insert_tasks
{
	my $cron = sql(q{SELECT to_char(now() AT TIME ZONE 'UTC' + interval '30 min',
		'"0 "FMMI" * * * *"')}, node => $repeats);
	my %column = (request => 'SELECT 1', cron => $cron, timezone => 'UTC');
	my %now = (%column, dt => 'infinity');

	for my $missed (qw(one none all))
	{
		insert_task($repeats, %column, queue => "planned $missed", missed => $missed);
		insert_task($repeats, %now, queue => "running $missed", missed => $missed,
			request => 'SELECT pg_advisory_xact_lock_shared(1)');
	}
	insert_task($repeats, %column, queue => 'expiring', active => '2 hours');
	insert_task($repeats, %now, queue => 'retried', request => 'SELECT 1/0', retry => 1,
		delay => '10 minutes', active => '2 hours');
	insert_task($repeats, %now, queue => 'retried later', request => 'SELECT 1/0', retry => 1,
		delay => '10 minutes');
	sql(q{UPDATE task SET dt = now() WHERE dt = 'infinity'}, node => $repeats);
	wait_until($repeats, q{SELECT count(*) = 2 FROM task WHERE planned IS NOT NULL});
	# they have begun: what a run has missed is counted from there
	wait_until($repeats, q{SELECT count(*) = 3 FROM pg_stat_activity
		WHERE backend_type = 'pg_task executor' AND wait_event = 'advisory'});
}

for my $case ([ 'an hour back', -3600, 0 ], [ 'a day back', -86400, 0 ],
	[ 'an hour ahead', 3600, 1 ], [ 'a day ahead', 86400, 24 ])
{
	my ($step, $seconds, $matches) = @$case;
	my $late = $matches > 0 ? 'D P' : 'P';
	my $after_gap = $matches == 0 ? 'P' : $matches == 1 ? 'F P' : 'G P';
	my %expected = (
		'planned one' => $late,
		'planned none' => $late,
		'planned all' => 'D ' x $matches . 'P',
		'running one' => $matches > 0 ? 'D D P' : 'D P',
		'running none' => 'D P',
		'running all' => 'D ' x $matches . 'D P',
		'expiring' => $matches == 24 ? 'G P' : $late,
		'retried' => $after_gap,
		'retried later' => $matches > 0 ? 'F P' : 'P');

	subtest "tasks by cron, $step" => sub {
		$gate->query_safe('SELECT pg_advisory_lock(1)');
		insert_tasks();
		set_clock($seconds);
		$gate->query_safe('SELECT pg_advisory_unlock(1)');
		for my $queue (sort keys %expected)
		{
			is(poll_for(sub { states_of($queue) eq $expected{$queue} }) && $expected{$queue}
				  || states_of($queue), $expected{$queue}, $queue);
		}
		is(sql(q{SELECT count(*) FROM task WHERE state = 'PLAN' AND dt < now()}, node => $repeats),
			0, 'nothing is due any more');
		is(sql(q{SELECT count(*) - count(DISTINCT (queue, coalesce(planned, dt))) FROM task},
				node => $repeats), 0, 'no time has two runs');
		set_clock(0);
		run_task($repeats, request => 'SELECT 1', queue => 'settle') for 1 .. 2;
		is(states_of($_), $expected{$_}, "$_: as before when the clock is right again")
		  for sort keys %expected;
		sql('TRUNCATE task', node => $repeats);
	};
}

$gate->quit;
$repeats->stop;
done_testing();
