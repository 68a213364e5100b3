# What a session with an old snapshot costs the scheduler: the entries of dead rows stay in the
# indexes.  A TAP test because that session stays.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = 10\npg_task.batch = 64\nautovacuum = off");

# How often the scheduler has looked for tasks that expire; and has run its loop.
sub looks
{
	return sql(q{SELECT idx_scan FROM pg_stat_user_indexes
		WHERE indexrelname = 'task_active_idx'});
}
sub iterations { return sql('SELECT iterations FROM pg_stat_task_scheduler()') }

# The index of running tasks is read from its beginning, every period, to find suspects and orphans.
# That must not become a large part of what the scheduler does.
subtest 'dead entries in the index of running tasks' => sub {
	my $tasks = 50000;
	my $rounds = 400;
	my $session = open_session($node, 'postgres');

	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM task');
	sql("INSERT INTO task (request) SELECT 'SELECT 1' FROM generate_series(1, $tasks)");
	wait_until($node, "SELECT count(*) >= $_ * $tasks / 5 FROM task WHERE state = 'DONE'")
	  for 1 .. 5;

	my ($looks, $iterations) = (looks(), iterations());
	wait_until($node, "SELECT iterations > $iterations + $rounds FROM pg_stat_task_scheduler()");
	cmp_ok(looks() - $looks, '<', $rounds / 4, 'it is read more rarely than every period');
	note(looks() - $looks, ' looks');

	# what a hint reports does not wait for that
	my $id = insert_task($node, queue => 'none', max => 0, active => '1 ms', request => 'SELECT 1');
	wait_for_state($node, $id, 'GONE');
	$session->quit;
};

done_testing();
