# Rows that wait together are claimed whatever they are: those of which the scheduler can tell all
# by comparing values, and those that it leaves to a statement, because they have other columns or
# are locked.  A TAP test because it needs sessions that hold locks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s', conf => 'pg_task.max_executors = 2');

sql('CREATE EXTENSION amcheck');
insert_rule('held', paused => 'true');
# the scheduler reads the rule before the rows
run_task($node, request => 'SELECT 1');

# Lets the rows go that wait in the queue.
sub let_go { sql(q{UPDATE task_queue SET paused = false}) }

# ... and keeps those back that are inserted from now on.
sub hold
{
	sql(q{UPDATE task_queue SET paused = true});
	run_task($node, request => 'SELECT 1');
	return;
}

sub check_indexes
{
	sql(q{SELECT bt_index_check(c.oid, true) FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
		WHERE indrelid = 'task'::regclass AND indisvalid AND relam = 403});
	return;
}

# What the scheduler must find in a row, and hand on.
my $own = q{SELECT state || attempt || (stop IS NULL) || (pid = pg_backend_pid())
	|| (start BETWEEN dt AND clock_timestamp()) FROM task WHERE id = pg_task_id()};
my $seen = 'WORK1truetruetrue';

subtest 'rows with all kinds of values' => sub {
	my $long = sub { return 'SELECT 1' . ' ' x ($_[0] - 8) };
	my $input = sub { return '{"a": "' . join('', map { chr(97 + $_ % 26) } 1 .. $_[0]) . '"}' };
	my $length = q{SELECT length(pg_task_input() ->> 'a')};
	my @cases = (
		['plain', $seen],
		['urgent', $seen, priority => -1],
		['with a limit', $seen, max => 7],
		['with a key', $seen, key => 'k'],
		['with retries', $seen, retry => 2, delay => '1 s'],
		['planned long ago', $seen, dt => '2000-01-01'],
		['the ring has just room for', 1, request => $long->(1024)],
		['one byte too long', 1, request => $long->(1025)],
		['compressed', 1, request => $long->(100000)],
		['with an input', 10, request => $length, input => $input->(10)],
		['with an input that is too long', 2000, request => $length, input => $input->(2000)],
		['with an input stored elsewhere', 50000, request => $length, input => $input->(50000)],
		['of a flow', 'f', request => 'SELECT pg_task_flow()', flow => 'f', step => 's'],
		['with labels', '{"a": "ä"}', request => 'SHOW pg_task.meta', meta => '{"a":"ä"}'],
		['with labels that are too long beside it', qq(1\n{"a": 1}),
			request => $long->(1000) . '; SHOW pg_task.meta', meta => '{"a":1}'],
		['that notifies', $seen, notify => 'ends'],
		['with a timeout', $seen, timeout => '1 min'],
		['that expires', $seen, active => '1 day'],
		['that is kept', $seen, keep => '1 day'],
		['with a format', '[{"a":1}]', request => 'SELECT 1 AS a', format => 'json'],
		['that repeats', $seen, repeat => '1 day'],
		['by cron', $seen, cron => '@yearly', dt => '2020-01-01']);
	my @ids = map { my ($name, $response, %column) = @$_;
		insert_task($node, queue => 'held', request => $own, %column) } @cases;
	my $removed = insert_task($node, queue => 'held', request => $own, keep => '0');

	let_go();
	wait_for_state($node, $_, 'DONE') for @ids;
	is_row($node, $ids[$_],
		{ 'attempt' => '1', response => $cases[$_][1], 'stop >= start' => 'true' },
		"a row $cases[$_][0]") for 0 .. $#ids;
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE id = $removed)");
	is(task($node, $ids[12], 'flow, step'), 'f|s', 'what it does not write stays');
	check_indexes();
	hold();
};

# The scheduler hands on several at a time: it wakes up less often than there are tasks.  On a busy
# machine they take longer.
subtest 'short tasks' => sub {
	my $iterations = sub { return sql('SELECT iterations FROM pg_stat_task_scheduler()') };
	my $wakes;

	for (1 .. 20)
	{
		my $before = $iterations->();

		sql(q{INSERT INTO task (queue, request)
			SELECT 'short', 'SELECT 1' FROM generate_series(1, 200)});
		wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE queue = 'short'
			AND state <> 'DONE')});
		$wakes = $iterations->() - $before;
		last if $wakes < 100;
	}
	cmp_ok($wakes, '<', 100, '200 share their claims');
};

subtest 'a row that has run before' => sub {
	my $id = run_task($node, request => $own);

	sql("UPDATE task SET state = 'PLAN' WHERE id = $id");
	wait_until($node, "SELECT state = 'DONE' AND attempt = 2 FROM task WHERE id = $id");
	is(task($node, $id, 'response'), 'WORK2truetruetrue', 'has no end while it runs');
};

# The scheduler does not wait for anybody, and no lock that allows a change keeps it from the row.
subtest 'locked rows' => sub {
	my $session = open_session($node, 'postgres');
	my $missed = sql('SELECT missed FROM pg_stat_task_scheduler()');
	my ($locked, $stopped, $moved, $removed, $named, $free) =
	  map { insert_task($node, queue => 'held', request => $own) } 1 .. 6;

	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $locked FOR UPDATE;
		SELECT FROM task WHERE id = $named FOR KEY SHARE;
		UPDATE task SET state = 'STOP' WHERE id = $stopped;
		UPDATE task SET queue = 'elsewhere', dt = 'infinity' WHERE id = $moved;
		DELETE FROM task WHERE id = $removed");
	let_go();
	wait_for_state($node, $_, 'DONE') for $named, $free;
	wait_until($node, "SELECT missed >= $missed + 4 FROM pg_stat_task_scheduler()");
	is(sql("SELECT string_agg(state || attempt, ' ' ORDER BY id) FROM task
		WHERE id IN ($locked, $stopped, $moved, $removed)"), 'PLAN0 PLAN0 PLAN0 PLAN0',
		'those that are locked or changed wait');
	$session->query_safe('COMMIT');
	wait_for_state($node, $locked, 'DONE');
	is_row($node, $locked, { attempt => 1, response => $seen }, 'one that was locked runs');
	run_task($node, queue => 'held', request => 'SELECT 1');
	is(sql("SELECT string_agg(state || attempt, ' ' ORDER BY id) FROM task
		WHERE id IN ($stopped, $moved, $removed)"), 'STOP0 PLAN0', 'those that were changed do not');
	check_indexes();
	$session->quit;
	hold();
};

# A claim is one transaction, of those rows that are left to the statement as well.
subtest 'a row that refuses its claim' => sub {
	my @ids = map { insert_task($node, queue => 'held', request => $own, %$_) }
	  {}, { timeout => '1 min' }, { key => 'no' }, { timeout => '1 min', key => 'no2' }, {};

	sql(q{ALTER TABLE task ADD CONSTRAINT refuses CHECK (key NOT LIKE 'no%' OR state = 'PLAN')});
	let_go();
	wait_for_state($node, $_, 'DONE') for @ids[0, 1, 4];
	is(task($node, $_, 'state, attempt'), 'PLAN|0', 'it waits') for @ids[2, 3];
	sql('ALTER TABLE task DROP CONSTRAINT refuses');
	wait_for_state($node, $_, 'DONE') for @ids;
	is(task($node, $_, 'attempt, response'), "1|$seen", 'then it runs') for @ids;
	check_indexes();
};

# The server refuses to write a column that is always an identity, so nothing else writes it,
# either.
subtest 'a column that is refused' => sub {
	my $position = log_position($node);

	sql('TRUNCATE task; ALTER TABLE task ALTER pid SET NOT NULL,
		ALTER pid ADD GENERATED ALWAYS AS IDENTITY');
	my $id = insert_task($node, request => $own);
	wait_for_log_line($node, qr/column "pid" can only be updated to DEFAULT/, $position);
	is(task($node, $id, 'state, attempt'), 'PLAN|0', 'the row waits');
	sql('ALTER TABLE task ALTER pid DROP IDENTITY, ALTER pid DROP NOT NULL');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'response'), $seen, 'then it runs');
};

done_testing();
