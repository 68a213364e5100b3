# Queues that take turns, and priorities that age.  A TAP test because both need a server with one
# executor.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 1});

make_gates($node);
sql(q{
	CREATE TABLE ran (number bigserial, name text);
	INSERT INTO task_queue (queue, fair) VALUES ('customer.%', true)});

# Plans tasks in one transaction, after another one has occupied the executor; returns the names in
# the order in which they ran.
my $rounds = 0;

sub order_of
{
	my ($rows, $count) = @_;
	my $gate = 'gate' . ++$rounds;

	sql('TRUNCATE ran');
	my $id = insert_task($node, request => "SELECT hold('$gate')", priority => -1000);
	wait_for_running($node, 1, id => $id);
	sql("INSERT INTO task (queue, priority, dt, request)
		SELECT queue, priority, dt,
			format('INSERT INTO ran (name) VALUES (%L)', name)
		FROM ($rows) AS r (queue, priority, dt, name)");
	open_gate($node, $gate);
	wait_until($node, "SELECT count(*) = $count FROM ran");
	return sql(q{SELECT string_agg(name, ' ' ORDER BY number) FROM ran});
}

my $customers = q{
	SELECT 'customer.' || name, 0, now(), name
	FROM (SELECT 'a' FROM generate_series(1, 8) UNION ALL
		SELECT 'b' FROM generate_series(1, 2) UNION ALL
		SELECT 'c' FROM generate_series(1, 3)) AS r (name)};

is(order_of($customers, 13), 'a b c a b c a c a a a a a', 'the queues take turns');
like(order_of($customers, 13), qr/^[abc] [abc] [abc] /, 'and again');
is(order_of(q{
	SELECT 'customer.d', 0, now(), 'd' FROM generate_series(1, 4) UNION ALL
	SELECT 'customer.e', 0, now(), 'e' FROM generate_series(1, 2) UNION ALL
	SELECT 'customer.f', -1, now(), 'urgent' UNION ALL
	SELECT 'another', 0, now() - interval '1 hour', 'before' UNION ALL
	SELECT 'customer.d', -1, now(), 'urgent d'}, 9),
	'urgent urgent d before e d e d d d', 'priority comes before turns');

# Short tasks that were claimed together with a long one wait behind it, and are reclaimed: that was
# no turn of their queues.
subtest 'tasks that are reclaimed' => sub {
	sql('TRUNCATE ran');
	run_task($node, request => 'SELECT 1') for 1 .. 20;
	sql(q{INSERT INTO task (queue, priority, request)
		SELECT 'default', -1000, 'SELECT hold(''reclaimed'')' UNION ALL
		SELECT 'customer.r' || i, 0, format('INSERT INTO ran (name) VALUES (%s)', i)
		FROM generate_series(1, 20) AS i});
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'WORK'});
	wait_until($node, q{SELECT count(*) = 20 FROM task WHERE state = 'PLAN'});
	open_gate($node, 'reclaimed');
	wait_until($node, 'SELECT count(*) = 20 FROM ran');
	is(sql(q{SELECT string_agg(name, ' ' ORDER BY number) FROM ran}), join(' ', 1 .. 20),
		'they come before queues that have had no turn either');
};

sql(q{UPDATE task_queue SET fair = NULL});
is(order_of(q{
	SELECT 'customer.g', 0, now(), 'g' FROM generate_series(1, 4) UNION ALL
	SELECT 'customer.h', 0, now() - interval '1 s', 'h' FROM generate_series(1, 2)}, 6),
	'h h g g g g', 'without turns dt decides');

my ($pid) = backends($node, 'scheduler');
set_conf($node, 'pg_task.aging = 1h');
wait_for_exit($node, $pid);
is(order_of(q{
	SELECT 'q', 0, now(), 'new' UNION ALL
	SELECT 'q', 3, now() - interval '210 min', 'old' UNION ALL
	SELECT 'q', 3, now() - interval '150 min', 'young' UNION ALL
	SELECT 'q', -1, now() - interval '5 s', 'urgent' UNION ALL
	SELECT 'q', 2147483647, now() - interval '5 s', 'last' UNION ALL
	SELECT 'q', -2147483648, now() - interval '5 s', 'first'}, 6),
	'first urgent old new young last', 'what has waited so long is one priority better');
is(order_of(q{
	SELECT 'one', 0, now(), 'new' UNION ALL
	SELECT 'two', 3, now() - interval '210 min', 'old' UNION ALL
	SELECT 'three', 3, now() - interval '150 min', 'young'}, 3), 'old new young', 'between queues, too');

done_testing();
