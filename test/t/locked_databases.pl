# Databases that are locked by their owner (while being renamed) delay no other database: neither
# by schedulers that cannot connect, nor by tasks that executors have left there.  A TAP test
# because it needs several databases and few worker slots.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# Three slots for schedulers, and two for executors.  No worker of autovacuum waits for a database.
my $node = new_node('main',
	conf => "max_worker_processes = 8\npg_task.max_executors = 2\nmax_prepared_transactions = 3\n"
	  . 'autovacuum = off');
my @theirs = map { "theirs$_" } 1 .. 4;

sub as_owner
{
	my ($db, $sql) = @_;

	return sql_in($db, $sql, user => 'owner');
}

# This many processes wait for the lock on a database: all are schedulers, no other process tries
# to enter.
sub connecting
{
	return q{SELECT count(*) = } . shift() . q{ FROM pg_locks
		WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND NOT granted};
}

sql('CREATE ROLE owner LOGIN CREATEDB');
sql("CREATE DATABASE $_ OWNER owner") for @theirs;
wait_for_table($node, db => $_) for @theirs;

my @session;

# Executors of a database that is being renamed free their slots.
subtest 'executors leave a database that is renamed' => sub {
	@session = ('postgres', on_error_stop => 1, extra_params => [ '-U', 'owner' ]);
	my $owner = open_session($node, @session);
	my $sleeps = q{INSERT INTO task (request) VALUES ('SELECT pg_sleep(1000)') RETURNING id};
	my @ids = map { as_owner('theirs1', $sleeps) } 1 .. 2;
	wait_for_running($node, 1, id => $_, event => 'PgSleep') for @ids;
	# when the scheduler is gone; RENAME waits for five seconds only
	my $other = open_session($node, 'postgres');
	$other->query_until(qr/ready/, "\\echo ready\n" . q{DO $$ BEGIN
			WHILE (SELECT count(*) FILTER (WHERE query LIKE 'ALTER DATABASE theirs1 %') = 0
					OR count(*) FILTER (WHERE backend_type = 'pg_task scheduler'
						AND datname = 'theirs1') > 0 FROM pg_stat_activity) LOOP
				PERFORM pg_sleep(0.01);
				PERFORM pg_stat_clear_snapshot();
			END LOOP;
			PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE backend_type = 'pg_task executor';
		END $$;} . "\n");
	$owner->query_safe('BEGIN');
	end_sessions($node);
	$owner->query_safe('ALTER DATABASE theirs1 RENAME TO other1');
	$other->quit;
	my $id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'executors that cannot connect free their slots');
	$owner->query_safe('ROLLBACK');
	$owner->quit;
	wait_until($node, 'SELECT bool_and(attempt = 2) FROM task', db => 'theirs1');
	pass('and their tasks run again');
	sql_in('theirs1', 'DELETE FROM task');
	wait_for_running($node, 0);
};

# Tasks that are due again and again from now on, at this interval in seconds: whenever a database
# is locked, one of them will be due soon.
sub plan_series
{
	my ($db, $interval) = @_;

	as_owner($db, "INSERT INTO task (request, dt) SELECT 'SELECT 1', now() + n * interval '1 s'
		FROM generate_series($interval, 600, $interval) AS n");
}

# Waits until a task of a series has run after a moment; then the others are of no use.
sub wait_for_run_since
{
	my ($db, $moment) = @_;

	wait_until($node, "SELECT EXISTS (SELECT FROM task WHERE state = 'DONE' AND start > '$moment')",
		db => $db);
	sql_in($db, 'DELETE FROM task');
}

# Without a hold, a scheduler that is started in a database that is locked waits for it.
subtest 'schedulers that wait for a locked database' => sub {
	plan_series($_, 5) for @theirs;
	as_owner('postgres',
		"BEGIN; ALTER DATABASE theirs$_ RENAME TO other$_; PREPARE TRANSACTION '$_'")
	  for 1 .. 3;
	wait_until($node, connecting(3));
	my $id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'schedulers that cannot connect free their slots');
	my $moment = sql('SELECT clock_timestamp()');
	sql("ROLLBACK PREPARED '$_'") for 1 .. 3;
	wait_for_run_since($_, $moment) for @theirs;
	pass('and come back when they can');
};

done_testing();
