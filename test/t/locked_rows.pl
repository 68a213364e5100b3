# A session has locked very many rows that are due: other tasks start, including those behind the
# locked rows in the same group.  A TAP test because sessions must hold locks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 2");

sql(q{CREATE ROLE tenant LOGIN; CREATE ROLE other LOGIN;
	GRANT SELECT, INSERT, UPDATE ON task TO tenant, other});
make_gates($node);

# Insert rows for a role that are due, and lock them ("queue" is an expression over n).  Both
# executors are kept busy meanwhile, so that none of the rows is running when it is locked: its
# executor would wait for the lock, too.
sub lock_rows
{
	my ($count, $queue, $gate) = @_;
	my $session = open_session($node, 'postgres');

	sql(qq{SET ROLE tenant;
		INSERT INTO task (queue, request)
		SELECT 'held', 'SELECT hold(''$gate'')' FROM generate_series(1, 2)});
	wait_until($node, qq{SELECT count(*) = 2 FROM pg_stat_activity
		WHERE query = 'SELECT hold(''$gate'')' AND clock_timestamp() - query_start > '0.1 s'});
	sql(qq{SET ROLE tenant;
		INSERT INTO task (queue, request)
		SELECT $queue, 'SELECT 1' FROM generate_series(1, $count) AS n});
	$session->query_safe(q{BEGIN;
		SELECT count(*) FROM (SELECT FROM task
			WHERE role = 'tenant' AND state = 'PLAN' FOR UPDATE) AS x});
	open_gate($node, $gate);
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'});
	is(count_of($node, q{role = 'tenant' AND state = 'PLAN'}), $count, 'all rows are locked');
	return $session;
}

# How long a new task of a role waits to start.
sub runs_soon
{
	my ($role, $queue, $name) = @_;
	my $id = sql(qq{SET ROLE $role;
		INSERT INTO task (queue, request) VALUES ('$queue', 'SELECT 2') RETURNING id});

	wait_for_state($node, $id, 'DONE');
	note('waited ' . task($node, $id, 'start - dt'));
	return is(task($node, $id, q{start - dt < '30 s'}), 't', $name);
}

subtest 'locked rows that are due' => sub {
	for my $case ([ 30000, q{'one'}, 'one queue' ], [ 2000, q{'many' || n}, 'many queues' ])
	{
		my ($count, $queue, $name) = @$case;

		my $session = lock_rows($count, $queue, $name);
		runs_soon('other', 'default', "$name: a task of another role starts") for 1 .. 3;
		my $id = sql(q{SET ROLE tenant;
			INSERT INTO task (queue, request) VALUES ('one', 'SELECT 2') RETURNING id});
		wait_until($node, "SELECT state = 'DONE' FROM task WHERE id = $id");
		note('behind: waited ' . task($node, $id, 'start - dt'));
		is(count_of($node, q{role = 'tenant' AND state = 'PLAN'}), $count,
			"$name: a task behind the locked rows starts");
		my $before = count_of($node, q{role = 'tenant' AND state = 'DONE'});
		$session->query_safe('COMMIT');
		$session->quit;
		wait_until($node, qq{SELECT count(*) >= $before + 200 FROM task
			WHERE role = 'tenant' AND state = 'DONE'});
		pass("$name: the rows run when they are unlocked");
		sql(q{DELETE FROM task WHERE state = 'PLAN'});
		wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	}
};

# The locked rows of each role are tried again by each scan, and leave time for its other tasks.
subtest 'locked rows of many roles' => sub {
	my $count = 100;

	apply_conf($node, "pg_task.period = '50 ms'", 'pg_task.max_executors = 2');
	sql(join ';', map { "CREATE ROLE many$_ LOGIN" } 1 .. $count);
	insert_rule('shut', paused => 'true');
	sql(qq{INSERT INTO task (queue, role, request)
		SELECT 'shut', 'many' || 1 + n % $count, 'SELECT 1'
		FROM generate_series(0, 50 * $count - 1) AS n});
	my $session = open_session($node, 'postgres');
	$session->query_safe(q{BEGIN;
		SELECT count(*) FROM (SELECT FROM task WHERE queue = 'shut' FOR UPDATE) AS x});
	sql(q{UPDATE task_queue SET paused = false WHERE queue = 'shut'});
	wait_until($node, qq{SELECT missed >= 16 * $count FROM pg_stat_task_scheduler()});
	sql(qq{INSERT INTO task (queue, role, request)
		SELECT 'open', 'many' || n, 'SELECT 1' FROM generate_series(1, $count) AS n});
	wait_until($node,
		qq{SELECT count(*) = $count FROM task WHERE queue = 'open' AND state = 'DONE'});
	is(count_of($node, q{queue = 'shut' AND state = 'PLAN'}), 50 * $count,
		'other tasks of all roles start');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node, q{SELECT count(*) >= 200 FROM task WHERE queue = 'shut' AND state = 'DONE'});
	pass('the rows run when they are unlocked');
	# a DELETE beside claims would lock rows that run, whose outcomes would wait for it
	sql(q{UPDATE task_queue SET paused = true WHERE queue = 'shut'});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'});
	sql(q{DELETE FROM task WHERE state = 'PLAN'});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
};

is(count_of($node, q{state <> 'DONE' OR attempt <> 1}), 0, 'each task ran once');

$node->stop;
done_testing();
