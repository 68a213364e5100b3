# What a task may do to the table that it stands in, and what an id may be: a task that drops a
# column of ours fails, once, rather than be run again and again; id 0 is an id. A TAP test, for it
# wants runs.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => 'max_parallel_workers_per_gather = 2');

sub sql { return $node->safe_psql('postgres', @_) }

make_gates($node);
sql('CREATE SEQUENCE runs');

# In its own transaction: all is rolled back, and it says so.
for my $change ('DROP COLUMN notice', 'ALTER COLUMN notice TYPE varchar',
	'RENAME COLUMN notice TO remark')
{
	my $id = run_task($node, request => "SELECT nextval('runs'); ALTER TABLE task $change");
	is(task($node, $id, 'state, sqlstate, error, attempt'),
		'FAIL|27000|the task has changed a column of the task table|1', "$change: it has failed");
	is(sql(q{SELECT format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = 'task'::regclass AND attname = 'notice'}), 'text', "$change: rolled back");
}
is(sql(q{SELECT last_value FROM runs}), 3, 'each ran once');

# Committed by itself: it has failed all the same, once, when the column is there again.
my $id = run_task($node, request => q{SELECT nextval('runs'); COMMIT;
	ALTER TABLE task DROP COLUMN notice; COMMIT; SELECT 1});
is(task($node, $id, 'state, attempt'), 'FAIL|1', 'committed: it has failed');
is(sql(q{SELECT last_value FROM runs}), 4, 'committed: it ran once');

# By somebody else: the task is run again, and is DONE.
$id = insert_task($node, request => q{SELECT nextval('runs'), hold('gate')});
my $executors = q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type = 'pg_task executor' AND};
wait_until($node, "$executors wait_event = 'PgSleep'");
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN; ALTER TABLE task DROP COLUMN notice');
open_gate($node, 'gate');
wait_until($node, "$executors wait_event_type = 'Lock'");
$session->query_safe('COMMIT');
$session->quit;
wait_for_state($node, $id, 'DONE');
is(task($node, $id, 'attempt'), 2, 'changed by another: it is run again');

# An id of 0, and a negative one, in the process and in a parallel worker of it.
my $parallel = q{SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
	SET min_parallel_table_scan_size = 0;
	SELECT string_agg(DISTINCT current_setting('pg_task.id'), ' ') FROM pg_class};
for my $number (0, -7)
{
	insert_task($node, id => $number,
		request => "INSERT INTO task (dt, request) VALUES ('infinity', 'SELECT 1'); $parallel");
	wait_for_state($node, $number, 'DONE');
	like(task($node, $number, 'response'), qr/^$number$/m, "id $number: pg_task.id");
	is(count_of($node, "parent = $number"), 1, "id $number: parent");
}
is(sql(q{SELECT current_setting('pg_task.id')}), '', 'outside a task it is empty');

done_testing();
