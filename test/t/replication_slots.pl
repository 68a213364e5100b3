# A task leaves no replication slot behind: a temporary one is dropped, and one that it was using
# when it failed is released.  In a client's session the end of the session, or the error, does
# that. A TAP test because it needs another session and the process of the task.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 1 },
	conf => "pg_task.max_executors = 1\npg_task.idle_timeout = '1 h'");
my $slots = q{SELECT count(*), count(active_pid) FROM pg_replication_slots};

my $id = run_task($node,
	request => q{SELECT pg_create_physical_replication_slot('brief', true, true)});
my $pid = task($node, $id, 'pid');
is(task($node, $id, 'state'), 'DONE', 'a task creates a temporary slot');
wait_until($node, $slots, expected => '0|0');
pass('the slot is dropped after the task');
$id = run_task($node, request => $slots);
is(task($node, $id, 'state, response, pid'), "DONE|count::int8\tcount::int8\n0\t0|$pid",
	'the next task, in the same process, sees none');

$id = run_task($node,
	request => q{SELECT pg_create_physical_replication_slot('brief', true, true); SELECT 1/0});
is(task($node, $id, 'state'), 'FAIL', 'a task fails after it created a temporary slot');
wait_until($node, $slots, expected => '0|0');
pass('the slot is dropped');

sql(q{SELECT pg_create_physical_replication_slot('lasting', true)});
$id = run_task($node, request => q{SELECT pg_replication_slot_advance('lasting', '0/1')});
like(task($node, $id, 'error'), qr/^cannot advance replication slot/,
	'a task fails while it uses a slot');
wait_until($node, $slots, expected => '1|0');
sql(q{SELECT pg_drop_replication_slot('lasting')});
pass('another session can drop the slot');
is(task($node, $id, 'pid'), $pid, 'the executor is the same');

$node->stop;
done_testing();
