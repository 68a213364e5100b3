# An error while a process looks up the task table leaves the process in a valid state: the next
# lookup, the next change of the table and the next task use no freed memory.  A TAP test because
# it needs an error at a chosen moment, in a process that has already run tasks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 1\npg_task.period = '1 h'");
my $session = open_session($node, 'postgres');
my $executor = q{FROM pg_stat_activity WHERE backend_type = 'pg_task executor'};

# The table is changed while a task runs.  When the task has ended, its executor looks the table up
# again and waits for a lock on a catalog; there it is cancelled.  Returns the id of the task.
sub cancel_look_up
{
	my ($change, %column) = @_;

	$session->query_safe('SELECT pg_advisory_lock(1)');
	my $id = insert_task($node, request => 'SELECT pg_advisory_xact_lock(1)', %column);
	wait_until($node, "SELECT count(*) = 1 $executor AND wait_event = 'advisory'");
	sql($change);
	# the scheduler looks it up again, too, and must not interfere
	wait_until($node,
		q{SELECT count(*) = 0 FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		WHERE a.backend_type = 'pg_task scheduler' AND l.relation = 'task'::regclass});
	$session->query_safe('BEGIN');
	$session->query_safe('LOCK TABLE pg_attribute IN ACCESS EXCLUSIVE MODE');
	$session->query_safe('SELECT pg_advisory_unlock(1)');
	# no other session can connect while the catalog is locked
	poll_for(sub {
		return $session->query_safe("SELECT 'waits' $executor "
			. "AND wait_event = 'relation'") =~ /waits/;
	}) or die 'the executor does not wait for the catalog';
	$session->query_safe("SELECT pg_cancel_backend(pid) $executor");
	$session->query_safe('COMMIT');
	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id");
	return $id;
}

my ($pid, $position);

subtest 'a lookup is cancelled' => sub {
	is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE', 'before: a task runs');
	$pid = sql("SELECT pid $executor");
	$position = log_position($node);
	my $id = cancel_look_up('ALTER TABLE task ADD COLUMN a int');
	is_row($node, $id,
		{
			state => 'FAIL', sqlstate => '57014',
			error => 'canceling statement due to user request'
		},
		'a lookup is cancelled: the task has failed');
	sql('ALTER TABLE task ADD COLUMN b int');
	$id = run_task($node, request => 'SELECT 2');
	is(task($node, $id, 'state, response'), 'DONE|2',
		'the table is changed again: the next task runs');
	is(sql("SELECT pid $executor"), $pid, 'in the same process');
};

# Once more, with a table whose description is longer than what was freed.
subtest 'a longer description' => sub {
	my $id = cancel_look_up('ALTER TABLE task ADD COLUMN ' . ('c' x 60) . ' int');
	sql('ALTER TABLE task DROP COLUMN a');
	for my $n (1 .. 3)
	{
		$id = run_task($node, request => "SELECT $n");
		is(task($node, $id, 'state, response'), "DONE|$n", "and once more: task $n");
	}
	is(sql("SELECT pid $executor"), $pid, 'still in the same process');
};

unlike(log_since($node, $position), qr/was terminated by signal/, 'no process has crashed');
is(count_of($node, "crashed > 0"), 0, 'no task is a suspect');

$session->quit;
done_testing();
