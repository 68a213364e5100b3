# Several roles share one table and few executors: none of them waits for long, and the limit of a
# role holds.  A TAP test because it connects as all of them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => 'pg_task.max_executors = 4');

sql(q{CREATE ROLE large LOGIN; CREATE ROLE other LOGIN; CREATE ROLE small LOGIN;
	CREATE ROLE capped LOGIN;
	GRANT SELECT, INSERT, UPDATE ON task TO large, other, small, capped});
make_gates($node);

# Each task plans another one, until there is enough: however slow this test is, there is work left.
sql(q{CREATE FUNCTION go_on() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_sleep(0.001);
		INSERT INTO task (request) SELECT 'SELECT go_on()'
		WHERE NOT EXISTS (SELECT FROM gate WHERE name = 'enough');
	END $$});

# Two roles with many waiting tasks, and one that comes later with a single task.
subtest 'a role with one task among busy roles' => sub {
	sql_as($_,
		q{INSERT INTO task (request) SELECT 'SELECT go_on()' FROM generate_series(1, 10000)})
		for qw(large other);
	wait_until($node, q{SELECT count(DISTINCT role) = 2 FROM task WHERE state = 'DONE'});
	my $id = sql_as('small', q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id});
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, q{start - dt < '30 s'}), 't',
		'a role with one task does not wait for busy roles');
	note('it waited for ' . task($node, $id, 'start - dt'));
	my $start = task($node, $id, 'start');
	cmp_ok(count_of($node, "role = '$_' AND dt < '$start' AND (stop IS NULL OR stop > '$start')"),
		'>', 9000, "$_ had work left")
		for qw(large other);
};

# Two roles with many waiting tasks share four executors evenly.
subtest 'two busy roles share the executors evenly' => sub {
	wait_until($node,
		q{SELECT string_agg(n::text, ' ') = '2 2' FROM (SELECT count(*) AS n FROM pg_stat_activity
		WHERE backend_type = 'pg_task executor' AND usename IN ('large', 'other') GROUP BY usename)
		AS x});
	pass('two busy roles have two executors each');
	open_gate($node, 'enough');
	wait_until($node, q{WITH d AS (DELETE FROM task WHERE state = 'PLAN')
		SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
};

# The limit of a role holds, as counted by the tasks themselves, and the role cannot lift it.
subtest 'pg_task.role_executors' => sub {
	sql('ALTER ROLE capped SET pg_task.role_executors = 1');
	my ($rc, $out, $err) = $node->psql('postgres',
		'ALTER ROLE capped SET pg_task.role_executors = 4',
		extra_params => [ '-U', 'capped' ]);
	like($err, qr/permission denied/, 'a role cannot change its own limit');
	sql(q{CREATE TABLE at_once (n int); GRANT INSERT ON at_once TO capped});
	my $look = q{INSERT INTO at_once SELECT count(*) FROM pg_stat_activity WHERE usename = 'capped'
		AND backend_type = 'pg_task executor' AND state = 'active'; SELECT pg_sleep(0.02)};
	sql_as('capped',
		qq{INSERT INTO task (request) SELECT \$look\$$look\$look\$ FROM generate_series(1, 20)});
	wait_until($node, q{SELECT count(*) = 20 FROM at_once});
	is(sql('SELECT max(n) FROM at_once'), 1, 'at most the limit runs at once');
};

# When it is reset, more run at once.
subtest 'a reset limit' => sub {
	sql('ALTER ROLE capped RESET pg_task.role_executors');
	sql_as('capped', q{INSERT INTO task (request)
		SELECT 'SELECT hold(''capped'')' FROM generate_series(1, 4)});
	wait_until($node, 'SELECT count(*) > 1 ' . running(user => 'capped'));
	pass('the change takes effect without a restart');
	open_gate($node, 'capped');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
};

# The processor time of the scheduler so far, in ms.
sub scheduler_ms
{
	my ($pid) = backends($node, 'scheduler');
	my ($fields) = slurp_file("/proc/$pid/stat") =~ /.*\) (.*)/;
	my ($user, $system) = (split / /, $fields)[ 11, 12 ];

	return ($user + $system) * 10;
}

# Many roles that have one task each: each executor is for one of them.  What a round of the
# scheduler costs must not grow with the square of their number.
sub ms_for_each
{
	my ($roles) = @_;

	sql('TRUNCATE task');
	my $begun = scheduler_ms();
	sql("INSERT INTO task (role, request) SELECT 'role' || i, 'SELECT 1'
		FROM generate_series(1, $roles) AS i");
	wait_until($node, q{SELECT count(*) >= 40 FROM task WHERE state = 'DONE'});
	my $done = count_of($node, q{state = 'DONE'});
	my $ms = scheduler_ms() - $begun;
	note("$roles roles: $ms ms for $done tasks");
	return $ms / $done;
}

subtest 'very many roles' => sub {
	sql(q{DO $$ BEGIN FOR i IN 1 .. 20000 LOOP EXECUTE 'CREATE ROLE role' || i || ' LOGIN';
		IF i % 500 = 0 THEN COMMIT; END IF; END LOOP; END $$});
	my $few = ms_for_each(300);
	my $many = ms_for_each(20000);
	note("for each task of 300 roles: $few ms; of 20,000: $many ms");
	cmp_ok($many, '<', 20 * ($few > 2 ? $few : 2), 'tasks start');
	sql('TRUNCATE task');
};

done_testing();
