# A trigger of the owner sleeps in the scheduler's own statements: other databases do not wait for
# it, and in the same database the rows for which it is not slow are processed.  A TAP test because
# it needs processes of several databases.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 2\npg_task.period = '200 ms'");

# A database whose owner's trigger sleeps in the claim of tasks that meet this condition.
sub slow_database
{
	my ($db, $condition, $body) = @_;

	sql("CREATE DATABASE $db");
	wait_for_table($node, db => $db);
	make_gates($node, db => $db);
	sql_in($db, "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
		\$\$ BEGIN $body RETURN NEW; END \$\$");
	sql_in($db, "CREATE TRIGGER slow BEFORE UPDATE ON task FOR EACH ROW
		WHEN (NEW.state = 'WORK' AND $condition) EXECUTE FUNCTION slow()");
	return;
}

# Waits until the scheduler of a database has been sleeping in its trigger for a while.
sub wait_for_trigger
{
	my ($db) = @_;

	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '$db'
		AND backend_type = 'pg_task scheduler' AND wait_event = 'PgSleep'
		AND xact_start < clock_timestamp() - interval '500 ms'");
	return;
}

slow_database('sleepy', "NEW.queue = 'slow'", 'PERFORM pg_sleep(1000);');
slow_database('suspect', "NEW.queue = 'slow'", 'PERFORM pg_sleep(1000);');
slow_database('deaf', "NEW.queue = 'slow'", q{
	LOOP BEGIN PERFORM pg_sleep(1000); EXCEPTION WHEN query_canceled THEN END; END LOOP;});
make_gates($node);

my ($position, $slow, $other, $scheduler);

# Both executors are busy, so these databases request one; as soon as they get it their triggers
# sleep.
subtest 'both executors are busy' => sub {
	insert_task($node, request => "SELECT hold('first')") for 1 .. 2;
	wait_for_running($node, 2, db => 'postgres', event => 'PgSleep');
	$position = log_position($node);
	$slow = insert_task($node, db => 'sleepy', queue => 'slow', request => 'SELECT 1');
	my $stubborn = insert_task($node, db => 'deaf', queue => 'slow', request => 'SELECT 1');
	($other) = map { insert_task($node, db => 'sleepy', request => 'SELECT 1') } 1 .. 3;
	($scheduler) = sql(q{SELECT pid FROM pg_stat_activity WHERE datname = 'deaf'
		AND backend_type = 'pg_task scheduler'});
	open_gate($node, 'first');
	wait_for_trigger($_) for qw(sleepy deaf);
	pass('the triggers of both databases sleep');
};

# Other databases get the executors reserved for the sleeping ones, and keep them.
subtest 'other databases' => sub {
	# in one session, because the triggers are cancelled after 10 s
	my @ids = split /\n/, sql(join "\n", map { q{
		INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id \gset
		CALL pg_task_wait_for(ARRAY[:id], '60 s');
		\echo :id
		} } 1 .. 10);
	is(count_of($node, "id IN (@{[ join ',', @ids ]}) AND state = 'DONE'"), 10,
		'another database goes on while both triggers sleep');
	is(task($node, $slow, 'state', db => 'sleepy'), 'PLAN',
		'the row of a slow trigger is not claimed');
	cmp_ok(sql("SELECT count(DISTINCT pid) FROM task WHERE id IN (@{[ join ',', @ids ]})"), '<=', 2,
		'the executors of the other database stay');
};

# The rows of the same batch are tried one by one; the slow one is refused for a while, with a
# message.
subtest 'other rows' => sub {
	wait_for_state($node, $other, 'DONE', db => 'sleepy');
	wait_for_log_line($node, qr/canceling statement due to statement timeout.*"sleepy"/s,
		$position);
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE state = 'DONE'}, db => 'sleepy');
	is(task($node, $slow, 'state', db => 'sleepy'), 'PLAN',
		'other rows of the same database run');
};

# A suspect that cannot be claimed for this reason does not delay suspects of other databases.
subtest 'suspects of other databases' => sub {
	sql_in('suspect',
		q{INSERT INTO task (queue, request, crashed) VALUES ('slow', 'SELECT 1', 1)});
	wait_for_trigger('suspect');
	my $suspect = sql(q{INSERT INTO task (request, crashed) VALUES ('SELECT 1', 1) RETURNING id});
	wait_for_state($node, $suspect, 'DONE');
	is(sql_in('suspect', 'SELECT state FROM task'), 'PLAN',
		'a suspect of a crash runs while another database has claimed one for long');
};

# A trigger that ignores the cancel ends its scheduler, and no other.
subtest 'a trigger that ignores the cancel' => sub {
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $scheduler");
	is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE', 'and others go on');
};

done_testing();
