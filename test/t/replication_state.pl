# A task leaves no replication slot, replication origin or base backup to the next task of its
# process.  In a client's session the error, or the end of the session, resets these.  A TAP test
# because it needs another session, and because it matters which process runs a task.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 1 },
	conf => "pg_task.max_executors = 1\npg_task.idle_timeout = '1 h'");
my $slots = q{SELECT count(*), count(active_pid) FROM pg_replication_slots};
my $create = q{SELECT pg_create_physical_replication_slot('brief', true, true)};
my $pid;

subtest 'temporary slots are dropped' => sub {
	my $id = run_task($node, request => $create);
	$pid = task($node, $id, 'pid');
	is(task($node, $id, 'state'), 'DONE', 'a task creates one');
	wait_until($node, $slots, expected => '0|0');
	pass('it is dropped after the task');
	$id = run_task($node, request => $create);
	is(task($node, $id, 'state, pid'), "DONE|$pid",
		'the next task, in the same process, creates the same');
	$id = run_task($node, request => "$create; SELECT 1/0");
	is(task($node, $id, 'state'), 'FAIL', 'a task fails after it has created one');
	wait_until($node, $slots, expected => '0|0');
	pass('it is dropped');
};

subtest 'a slot that a task was using when it failed is released' => sub {
	sql(q{SELECT pg_create_physical_replication_slot('lasting', true)});
	my $id = run_task($node, request => q{SELECT pg_replication_slot_advance('lasting', '0/1')});
	like(task($node, $id, 'error'), qr/^cannot advance replication slot/, 'the task fails');
	wait_until($node, $slots, expected => '1|0');
	sql(q{SELECT pg_drop_replication_slot('lasting')});
	pass('another session can drop the slot');
	is(task($node, $id, 'pid'), $pid, 'the executor is the same');
};

# Nothing resets these but the end of the session.
sub is_ended_with_process
{
	my ($change, $look) = @_;
	my $id = run_task($node, request => $change);
	my $next = run_task($node, request => $look);

	is(task($node, $id, 'state'), 'DONE', 'a task begins it');
	is(task($node, $next, 'state'), 'DONE', 'the next task succeeds');
	unlike(task($node, $next, 'response'), qr/^t$/, 'it does not have it');
	isnt(task($node, $next, 'pid'), task($node, $id, 'pid'), 'it has another process');
	return;
}

subtest 'a replication origin of the session' => sub {
	sql(q{SELECT pg_replication_origin_create('far')});
	is_ended_with_process(q{SELECT pg_replication_origin_session_setup('far')},
		'SELECT pg_replication_origin_session_is_setup()');
};

subtest 'a base backup' => sub {
	my $begin = q{SELECT pg_backup_start('brief', true)};
	is_ended_with_process($begin, $begin);
};

$node->stop;
done_testing();
