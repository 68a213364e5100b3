# Databases that are locked by their owner (while being renamed) delay no other database: neither
# by schedulers that cannot connect, nor by tasks that executors have left there.  A TAP test
# because it needs several databases and few worker slots.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# three slots for schedulers, and two for executors
my $node = new_node('main',
	conf => "max_worker_processes = 8\npg_task.max_executors = 2\nmax_prepared_transactions = 3\n");
my @theirs = map { "theirs$_" } 1 .. 4;

sub as_owner
{
	my ($db, $sql) = @_;

	return $node->safe_psql($db, $sql, extra_params => [ '-U', 'owner' ]);
}

sub has_no_scheduler
{
	my ($db) = @_;

	wait_until($node, qq{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '$db'
		AND backend_type = 'pg_task scheduler'});
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
	wait_for_state($node, $_, 'WORK', db => 'theirs1') for @ids;
	$owner->query_until(qr/begun/,
		"BEGIN;\n\\echo begun\nALTER DATABASE theirs1 RENAME TO other1;\n\\echo renamed\n");
	has_no_scheduler('theirs1');
	terminate($node, backends($node, 'executor'));
	$owner->query_until(qr/renamed/, '');
	my $id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'executors that cannot connect free their slots');
	$owner->query_safe('ROLLBACK');
	$owner->quit;
	wait_until($node, 'SELECT bool_and(attempt = 2) FROM task', db => 'theirs1');
	pass('and their tasks run again');
	$node->safe_psql('theirs1', 'DELETE FROM task');
};

my $later;

# Without a hold, a scheduler that is started in a database that is locked waits for it.
subtest 'schedulers that wait for a locked database' => sub {
	$later = q{INSERT INTO task (request, dt) VALUES ('SELECT 1', now() + interval '%d s')};
	# long enough ahead that nothing of it is due before all are renamed, for which schedulers leave
	as_owner($_, sprintf($later, 6)) for @theirs;
	as_owner('postgres',
		"BEGIN; ALTER DATABASE theirs$_ RENAME TO other$_; PREPARE TRANSACTION '$_'")
	  for 1 .. 3;
	wait_until($node, connecting(3));
	my $id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'schedulers that cannot connect free their slots');
	sql("ROLLBACK PREPARED '$_'") for 1 .. 3;
	wait_until($node, q{SELECT state = 'DONE' FROM task}, db => $_) for @theirs;
	pass('and come back when they can');
};

# A hold outlives a subtransaction that has renamed another database and is rolled back.
subtest 'a hold outlives a savepoint' => sub {
	as_owner('theirs1', sprintf($later, 5));
	my $owner = open_session($node, @session);
	$owner->query_safe('BEGIN');
	$owner->query_safe('ALTER DATABASE theirs1 RENAME TO other1');
	$owner->query_safe('SAVEPOINT a');
	$owner->query_safe('ALTER DATABASE theirs2 RENAME TO other2');
	$owner->query_safe('ROLLBACK TO a');
	as_owner('theirs3', sprintf($later, 3));
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE state = 'DONE'}, db => 'theirs3');
	is(sql(connecting(0)), 't', 'a hold outlives the abort of another hold');
	$owner->query_safe('ROLLBACK');
	$owner->quit;
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE state = 'DONE'}, db => 'theirs1');
};

done_testing();
