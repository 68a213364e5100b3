# A tenant holds a lock that the ends of tasks in his database need: of the table, of their rows, or
# of something that the owner's constraints look at.  The executors wait for it as long as nobody
# else needs them.  When another database or role does, they give their places up: what ran is
# rolled back, and runs again when the lock is gone; what has failed, or has committed by itself, is
# written then.  A TAP test because it needs sessions, two databases and few executors.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 2\npg_task.period = '200 ms'");

sub shop { return sql_in('shop', @_) }

sql('CREATE ROLE other LOGIN; CREATE DATABASE shop');
wait_for_table($node, db => 'shop');
make_gates($node, db => 'shop');
shop(q{
	CREATE TABLE effect (what text);
	GRANT INSERT ON task TO other;
	CREATE UNIQUE INDEX ON task (parent) WHERE queue = 'chain';
	CREATE PROCEDURE commit_and_hold(gate text, tail bool) LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO effect VALUES (gate);
		COMMIT;
		PERFORM hold(gate);
		IF tail THEN INSERT INTO effect VALUES (gate || ' tail'); END IF;
	END $$;
	CREATE PROCEDURE commit_and_notify(gate text) LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO effect VALUES (gate);
		COMMIT;
		PERFORM hold(gate);
		NOTIFY tail;
	END $$});
my $locker = open_session($node, 'shop');
my $listener = open_session($node, 'shop');

sub effects { return shop(qq{SELECT count(*) FROM effect WHERE what = '$_[0]'}) }

# Two tasks, which take all executors, with this request in which %s is the gate.  The lock is taken
# while they run; returns when both wait for it, with their ids.
sub lock_ends
{
	my ($gate, $lock, $request, %column) = @_;
	my @ids = map { insert_task($node, db => 'shop', request => sprintf($request, $gate, $gate),
		%column) } 1 .. 2;

	wait_for_running($node, 2, db => 'shop', event => 'PgSleep');
	$locker->query_safe('BEGIN; ' . ($lock =~ s/IDS/join(', ', @ids)/er));
	open_gate($node, $gate, db => 'shop');
	wait_until($node, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = 'shop'
		AND backend_type = 'pg_task executor' AND wait_event_type = 'Lock'});
	return @ids;
}

# Tasks of the other database are done, although the lock is held.
sub others_run
{
	my ($name, %opt) = @_;
	my $db = $opt{db} // 'postgres';

	sql_in($db, q{INSERT INTO task (queue, role, request)
		SELECT 'others', } . ($opt{role} ? "'$opt{role}'" : 'current_user')
		. q{, 'SELECT 1' FROM generate_series(1, 20)});
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok( poll_for(
			sub { count_of($node, q{queue = 'others' AND state = 'DONE'}, db => $db) == 20 }, 60),
		"$name: others run while the lock is held");
	sql_in($db, q{DELETE FROM task WHERE queue = 'others'});
	return;
}

# The lock is released: the tasks come to this state.
sub release
{
	my ($ids, $state) = @_;

	$locker->query_safe('ROLLBACK');
	wait_for_state($node, $_, $state, db => 'shop') for @$ids;
	return shop('SELECT DISTINCT failed, sqlstate, error FROM task WHERE id IN ('
		  . join(', ', @$ids) . ')');
}

my $insert = q{INSERT INTO effect VALUES ('%s'); SELECT hold('%s')};
my %lock = (
	'the table' => 'LOCK TABLE task',
	'the table against writes' => 'LOCK TABLE task IN SHARE MODE',
	'the rows' => 'SELECT FROM task WHERE id IN (IDS) FOR UPDATE',
	'an uncommitted DELETE' => 'DELETE FROM task WHERE id IN (IDS)',
	'an uncommitted STOP' => q{UPDATE task SET state = 'STOP' WHERE id IN (IDS)});

subtest "locks that keep $_ from ending" => sub {
	my $what = $_;

	for my $name (sort keys %lock)
	{
		my $gate = "$what $name";
		my $request = $what eq 'what succeeds' ? $insert : "$insert; SELECT 1/0";
		my @ids = lock_ends($gate, $lock{$name}, $request);
		others_run($name);
		my ($state, $row) =
			$what eq 'what succeeds' ? ('DONE', '0||') : ('FAIL', '1|22012|division by zero');
		is(release(\@ids, $state), $row, "$name: how the tasks end");
		is(effects($gate), $what eq 'what succeeds' ? 2 : 0, "$name: their effects");
	}
} for 'what succeeds', 'what fails';

# What holds the tasks up cannot be seen in their rows: they run again, but after a pause.
subtest 'a unique index' => sub {
	my @ids = lock_ends('chain', q{INSERT INTO task (queue, parent, dt, request)
		SELECT 'chain', unnest(ARRAY[IDS]), 'infinity', 'SELECT 1'},
		$insert, queue => 'chain', repeat => '1 h');
	for (1 .. 3)
	{
		others_run("a unique index, $_");
		wait_until($node, "SELECT sum(attempt) >= 2 + $_ FROM task WHERE id IN ("
			. join(', ', @ids) . ')', db => 'shop');
	}
	is(shop('SELECT bool_and(attempt - 1 <= extract(epoch FROM clock_timestamp() - dt)) FROM task
		WHERE id IN (' . join(', ', @ids) . ')'), 't', 'a task runs again once in a second at most');
	is(release(\@ids, 'DONE'), '0||', 'how the tasks end');
	is(effects('chain'), 2, 'their effects');
	is(shop(q{SELECT count(*) FROM task WHERE queue = 'chain' AND state = 'PLAN'}), 2,
		'each has one next run');
};

subtest 'a request that commits by itself' => sub {
	for my $name (sort keys %lock)
	{
		my $gate = "commits, $name";
		my @ids = lock_ends($gate, $lock{$name}, q{BEGIN; INSERT INTO effect VALUES ('%s');
			DO $$BEGIN PERFORM hold('%s'); END$$; COMMIT});
		others_run($name);
		is(release(\@ids, 'DONE'), '0||', "$name: how the tasks end");
		is(effects($gate), 2, "$name: their effects");
		is(shop('SELECT DISTINCT attempt FROM task WHERE id IN (' . join(', ', @ids) . ')'), 1,
			"$name: they have run once");
	}
	# the end is not written without what was to be committed with it
	$listener->query_safe('LISTEN tail');
	my @ids = lock_ends('tail', $lock{'the rows'}, q{CALL commit_and_hold('%s', true)});
	others_run('with a tail');
	release(\@ids, 'DONE');
	is(effects('tail tail'), 2, 'what comes after its COMMIT is there once');
	@ids = lock_ends('notify', $lock{'the rows'}, q{CALL commit_and_notify('%s')});
	others_run('with a NOTIFY');
	release(\@ids, 'DONE');
	is(scalar(() = $listener->query_safe('SELECT') =~ /notification "tail"/g), 2,
		'its NOTIFY is sent, which has no transaction id');
};

subtest 'another role of the same database' => sub {
	my @ids = lock_ends('role', $lock{'the rows'}, $insert);
	others_run('another role', db => 'shop', role => 'other');
	is(release(\@ids, 'DONE'), '0||', 'how the tasks end');
	is(effects('role'), 2, 'their effects');
};

subtest 'a limit of the role' => sub {
	sql('ALTER SYSTEM SET pg_task.role_executors = 1');
	apply_conf($node);
	for my $name ('the table', 'the rows')
	{
		my $id = insert_task($node, db => 'shop', request => sprintf($insert, ("limit $name") x 2));
		wait_for_running($node, 1, db => 'shop', event => 'PgSleep');
		$locker->query_safe('BEGIN; ' . ($lock{$name} =~ s/IDS/$id/r));
		open_gate($node, "limit $name", db => 'shop');
		wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'shop'
			AND backend_type = 'pg_task executor' AND wait_event_type = 'Lock'});
		others_run($name);
		release([$id], 'DONE');
		is(effects("limit $name"), 1, "$name: its effect");
	}
	sql('ALTER SYSTEM RESET pg_task.role_executors');
	apply_conf($node);
};

# Nobody else needs the executors: they wait, and nothing runs twice.
subtest 'nobody needs the executors' => sub {
	my @ids = lock_ends('alone', $lock{'the table'}, $insert);
	wait_for_log_line($node, qr/ERROR:  canceling statement due to lock timeout/);
	is(release(\@ids, 'DONE') . shop('SELECT max(attempt) FROM task WHERE id IN ('
		. join(', ', @ids) . ')'), '0||1', 'the tasks have run once');
};

$_->quit for $locker, $listener;
done_testing();
