# The order in which tasks start, and fairness between roles and queues, with a single executor.  A
# TAP test because of that setting.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# With fsync on, a claim takes as long as in production.  Nothing waits for the period.
my $node = new_node('main',
	conf => "pg_task.max_executors = 1\nfsync = on\npg_task.period = '1 h'");

# Tasks arrive while one task runs; then they run, and record their names.
make_gates($node);
sql(q{
	CREATE SEQUENCE turn;
	GRANT USAGE ON turn TO PUBLIC;
	CREATE TABLE ran (turn int DEFAULT nextval('turn'), name text);
	GRANT INSERT ON ran TO PUBLIC;
	CREATE FUNCTION run(text) RETURNS void LANGUAGE sql
	AS 'INSERT INTO public.ran (name) VALUES ($1)'});

sub order_of
{
	my ($gate, $insert) = @_;

	sql("TRUNCATE task; TRUNCATE ran");
	my $first = insert_task($node, queue => 'first', request => "SELECT hold('$gate')");
	wait_for_running($node, 1, id => $first, event => 'PgSleep');
	sql($insert);
	open_gate($node, $gate);
	wait_until($node,
		q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK') AND dt <= now()
		AND max IS DISTINCT FROM 0)});
	return sql(q{SELECT string_agg(name, ' ' ORDER BY turn) FROM ran});
}

subtest 'max, priority, dt, id' => sub {
	is(order_of('max', q{INSERT INTO task (queue, max, request)
		SELECT 'q', m, format('SELECT run(%L)', coalesce(m::text, 'any'))
		  FROM unnest(ARRAY[1, -5, 3, NULL, 0, 100, -10]) AS m}),
		'any 100 3 1 -5 -10', 'the larger max first, none before all, a pause after all');
	is(order_of('between', q{INSERT INTO task (queue, max, priority, request, dt) VALUES
		('one', 1, 0, 'SELECT run(''b'')', '2020-01-02'),
		('two', NULL, 0, 'SELECT run(''c'')', '2020-01-03'),
		('three', 3, 0, 'SELECT run(''a'')', '2020-01-01'),
		('four', 7, 5, 'SELECT run(''d'')', '2019-01-01'),
		('four', 2, -5, 'SELECT run(''e'')', '2019-01-01')}),
		'a b c d e', 'between queues max says nothing: their first tasks are in order');
	is(order_of('priority', q{INSERT INTO task (max, priority, request, dt) VALUES
		(1, 0, 'SELECT run(''b'')', now()), (1, -1, 'SELECT run(''a'')', now()),
		(1, 5, 'SELECT run(''c'')', '2019-07-01'),
		(2, 9, 'SELECT run(''larger'')', now())}), 'larger a b c', 'then the lower priority');
	is(order_of('dt',
		q{INSERT INTO task (priority, request, dt) VALUES (0, 'SELECT run(''c'')', now()),
		(0, 'SELECT run(''b'')', now() - interval '1 s'), (0, 'SELECT run(''a'')', '-infinity'),
		(0, 'SELECT run(''never'')', 'infinity')}), 'a b c', 'then the earlier time');
	is(order_of('id',
		q{INSERT INTO task (id, queue, request, dt) VALUES (1003, 'a', 'SELECT run(''c'')',
		'2020-01-01'),
		(-5, 'b', 'SELECT run(''a'')', '2020-01-01'),
		(1002, 'c', 'SELECT run(''b'')', '2020-01-01')}),
		'a b c', 'then the lower id');
	is(order_of('many', q{INSERT INTO task (queue, priority, dt, request)
		SELECT 'q' || n % 7, n % 3, timestamptz '2020-01-01' - n * interval '1 s',
		format('SELECT run(%L)', n)
		  FROM generate_series(1, 700) AS n}),
		sql(q{SELECT string_agg(n::text, ' ' ORDER BY n % 3, -n) FROM generate_series(1, 700)
		AS n}),
		'the order holds over many queues');
};

# A row that is inserted late, or planned again, is still run in its place in the order.
subtest 'rows that are inserted late' => sub {
	is(order_of('late',
		q{INSERT INTO task (request, dt) SELECT format('SELECT run(%L)', n), '2020-01-01'
		FROM generate_series(1, 5) AS n;
		UPDATE task SET dt = '2019-01-01' WHERE request LIKE '%5%'; UPDATE task SET priority = 1
		WHERE request LIKE '%1%';
		UPDATE task SET dt = 'infinity' WHERE request LIKE '%3%';
		DELETE FROM task WHERE request LIKE '%2%';
		UPDATE task SET state = 'STOP' WHERE request LIKE '%4%';
		INSERT INTO task (request, priority)
		VALUES ('SELECT run(''6'')', -1)}),
		'6 5 1', 'rows changed while they waited');
};

# Roles alternate on the only executor, although the first has enough work for it.
subtest 'roles alternate' => sub {
	sql('TRUNCATE task');
	sql('CREATE ROLE ada LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE cyd LOGIN;
		INSERT INTO task (role, request) SELECT role, $$SELECT session_user FROM pg_sleep(0.02)$$
		FROM unnest(ARRAY[$$ada$$, $$bob$$, $$cyd$$]) AS role, generate_series(1, 150)');
	wait_until($node, q{SELECT count(DISTINCT role) = 3 FROM task WHERE state = 'DONE'});
	cmp_ok(count_of($node, q{role = 'ada' AND stop < (SELECT max(start) FROM (
		SELECT min(start) AS start FROM task GROUP BY role) AS first)}), '<', 150,
		'three roles ran before the first had finished');
	sql('DELETE FROM task WHERE state = \'PLAN\'');
};

# However often they alternate, each task runs as its own role, and keeps its position in its
# queue.
subtest 'each task runs as its own role' => sub {
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'});
	sql(q{TRUNCATE task; INSERT INTO task (queue, max, role, request)
		SELECT 'shared', 1, (ARRAY['ada', 'bob', 'cyd'])[1 + n % 3],
		'SELECT session_user FROM pg_sleep(0.003)' FROM generate_series(1, 200) AS n});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'});
	is(sql(q{SELECT DISTINCT role, response FROM task ORDER BY 1}), "ada|ada\nbob|bob\ncyd|cyd",
		'each task ran as its own role');
	is(sql(q{SELECT pid, string_agg(DISTINCT role, ',') FROM task
		GROUP BY pid HAVING count(DISTINCT role) > 1}), '', 'no process worked for two');
};

sub plan_many
{
	sql_in($_[0],
		q{INSERT INTO task (request) SELECT 'SELECT pg_sleep(0.1)' FROM generate_series(1, 400)});
}

# Databases alternate, too: one that comes later with little work gets it done.
subtest 'databases alternate' => sub {
	sql("CREATE DATABASE $_") for qw(one two);
	wait_for_table($node, db => $_) for qw(one two);
	plan_many($_) for qw(postgres one);
	wait_until($node, q{SELECT count(*) >= 5 FROM task WHERE state = 'DONE'}, db => $_)
		for qw(postgres one postgres one);
	run_task($node, db => 'two', request => 'SELECT 1');
	my $start = sql_in('two', q{SELECT start FROM task});
	my $before = "request = 'SELECT pg_sleep(0.1)' AND stop < '$start'";
	cmp_ok(count_of($node, $before), '<', 400, 'before the first had finished');
	cmp_ok(count_of($node, $before, db => 'one'), '<', 400, 'before the second had finished');
};

# An idle executor of one database makes way for another database at once.
subtest 'an idle executor of another database' => sub {
	for my $db (qw(postgres one))
	{
		sql_in($db, q{DELETE FROM task WHERE state = 'PLAN'});
		wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'}, db => $db);
	}
	for my $db (qw(two one postgres two))
	{
		my $id = run_task($node, db => $db, request => 'SELECT 1');
		is(task($node, $id, q{start - dt < '30 s'}, db => $db), 't', "$db has the one executor");
	}
};

done_testing();
