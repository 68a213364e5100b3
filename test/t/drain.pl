# pg_task_drain: waits until nothing is due.  A TAP test because tasks run meanwhile.
#
# What one look has missed, the next one finds a second later, so no wait here depends on the
# scheduler's periodic scan.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => 'pg_task.max_executors = 2');

make_gates($node);
sql(q{CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN;
	GRANT SELECT, INSERT ON task TO ann, bob});

# The counts: DONE, failed, and due when the time was over.
sub is_drained
{
	my ($arguments, $expected, $name, %opt) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql_as($opt{role} // 'postgres', "CALL pg_task_drain($arguments)"), $expected, $name);
	return;
}

sub insert { return insert_task($node, queue => 'q', request => 'SELECT 1', @_) }

subtest 'nothing' => sub {
	is_drained('', '0|0|0', 'no row');
	insert(dt => '2100-01-01');
	insert(dt => 'infinity');
	insert(cron => '@yearly');
	insert(cron => '@reboot');
	insert(repeat => '1 day', dt => '2100-01-01');
	insert(state => 'STOP');
	insert(after => '{' . insert(dt => 'infinity') . '}');
	is_drained(q{'q'}, '0|0|0', 'what is for later does not count');
	sql(q{DELETE FROM task});
};

subtest 'all that follows' => sub {
	insert(request => 'SELECT 1') for 1 .. 20;
	insert(request => 'SELECT 1 / (attempt - 1) FROM task WHERE id = pg_task_id()', retry => 1,
		delay => '200 ms');
	insert(request => 'SELECT 1/0');
	is_drained(q{'q'}, '21|1|0', 'a retry is waited for');
	sql(q{DELETE FROM task});
	insert(request => q{INSERT INTO task (queue, request) VALUES ('q', $$
		INSERT INTO task (queue, request) VALUES ('q', 'SELECT pg_sleep(0.2)')$$)});
	is_drained(q{'q'}, '3|0|0', 'and what tasks insert');
	sql(q{DELETE FROM task});
	my $first = insert(request => 'SELECT pg_sleep(0.3)');
	my $later = insert(dt => '2100-01-01');
	my $next = insert(after => "{$first}");
	insert(after => "{$next}");
	insert(after => "{$first, $later}");
	insert(after => "{$first, $later}", rule => 'any');
	is_drained('NULL', '4|0|0', 'and what waits for them');
	sql(q{DELETE FROM task});
	insert(request => q{SELECT pg_task_again(now() + '1 day') WHERE pg_task_input() IS NULL});
	is_drained(q{'q'}, '0|0|0', 'one that goes on tomorrow does not count any more');
	is(count_of($node, q{state = 'PLAN' AND attempt = 1}), 1, '... and has run');
	sql(q{DELETE FROM task});
};

subtest 'tasks that repeat' => sub {
	insert(repeat => '10 ms');
	is(sql(q{CALL pg_task_drain('q')}) =~ /^\d+\|0\|0$/, 1, 'it is over, although there is always one');
	cmp_ok(count_of($node, q{state = 'DONE'}), '>', 0, 'what was due has run');
	sql(q{UPDATE task SET state = 'STOP' WHERE state IN ('PLAN', 'WORK')});
	sql(q{DELETE FROM task});
	insert(cron => '@yearly');
	sql(q{UPDATE task SET dt = now()});
	is_drained(q{'q'}, '1|0|0', 'one whose time was moved runs');
	is(count_of($node, q{state = 'PLAN' AND dt > now()}), 1, '... and is planned again');
	sql(q{DELETE FROM task});
};

subtest 'queues, and time' => sub {
	insert_rule('paused', paused => 'true');
	insert(queue => 'paused');
	insert();
	is_drained(q{'q'}, '1|0|0', 'another queue does not count');
	is_drained(q{NULL, '100 ms'}, '1|0|1', 'the time is over');
	is_drained(q{'paused', '0'}, '0|0|1', 'it only looks');
	my $id = insert(request => q{SELECT hold('gate')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	is_drained(q{'q', '100 ms'}, '1|0|1', 'what runs counts');
	sql("SELECT pg_task_cancel($id)");
	is_drained(q{'q'}, '1|0|0', 'what was stopped does not');
	$id = insert(queue => 'paused', request => q{CALL pg_task_drain('paused', '1 ms')});
	sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'paused' AND state = 'PLAN' AND id <> } . $id);
	sql(q{DELETE FROM task_queue});
	is_drained(q{'paused'}, '1|0|0', 'a task does not wait for itself');
	sql(q{DELETE FROM task});
};

subtest 'rows put off, or deleted' => sub {
	for my $change (q{UPDATE task SET dt = 'infinity'}, q{DELETE FROM task})
	{
		insert(max => 0);
		my $session = open_session($node, 'postgres');

		$session->query_until(qr/begun/, "\\echo begun\nCALL pg_task_drain('q');\n");
		wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND query LIKE 'CALL%'
			AND wait_event IN ('PgTaskWait', 'Extension')});
		sql($change);
		like($session->query_safe('SELECT 7'), qr/0\|0\|0\n7/, $change);
		$session->quit;
	}
	sql(q{DELETE FROM task});
};

subtest 'who may' => sub {
	insert(role => 'ann', queue => 'ann', max => 0);
	insert(role => 'bob', queue => 'bob');
	is_drained('', '1|0|0', 'a role waits for what it sees', role => 'bob');
	is_drained(q{NULL, '1 ms'}, '0|0|1', 'and for no more', role => 'ann');
	is(sqlstate_of('eve', 'CALL pg_task_drain()'), '42501', 'a privilege is needed');
	is(sqlstate_of('postgres', 'BEGIN; CALL pg_task_drain()'), '25001', 'not in a transaction block');
	is(sqlstate_of('postgres', q{CALL pg_task_drain(NULL, '-1 s')}), '22023', 'a negative timeout');
	is(sql_as('bob', q{
		CREATE TEMP TABLE task AS SELECT 1 AS id, 'PLAN' AS state;
		CREATE FUNCTION pg_temp.pg_task_remaining(text, timestamptz) RETURNS int LANGUAGE sql
			AS 'SELECT 1/0';
		SET search_path = pg_temp, public;
		CALL pg_task_drain('bob')}), '1|0|0', 'nothing in the search_path takes its place');
};

done_testing();
