# Many failures in one executor affect no other task and leak no memory.  A TAP test because it
# reads the memory use of a process.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# statistics of the table would take memory when a statement is planned
my $node = new_node('main', conf => "pg_task.max_executors = 1\nautovacuum = off");

# Bytes in use in the idle executor, as it reports in the log.
sub memory
{
	my ($pid) = backends($node, 'executor');
	wait_until($node, "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid");
	my $position = log_position($node);

	sql("SELECT pg_log_backend_memory_contexts($pid)");
	wait_for_log_line($node, qr/Grand total: .* (\d+) used/, $position);
	return log_since($node, $position) =~ /Grand total: .* (\d+) used/ ? $1 : undef;
}

sql(q{
	CREATE TABLE kept (task bigint);
	CREATE TABLE positive (n int CHECK (n > 0));
	CREATE FUNCTION nested(depth int) RETURNS int LANGUAGE plpgsql AS $$
	DECLARE
		c CURSOR FOR SELECT generate_series(1, 100);
		n int;
	BEGIN
		c := NULL;
		OPEN c;
		FETCH c INTO n;
		IF depth = 0 THEN
			INSERT INTO kept VALUES (-1);
			RETURN n / 0;
		END IF;
		BEGIN
			RETURN nested(depth - 1);
		EXCEPTION WHEN division_by_zero THEN
			RAISE EXCEPTION 'at depth %', depth USING ERRCODE = 'UU00' || depth,
			DETAIL = repeat('x', 1000);
		END;
	END $$});

sub insert_many
{
	my ($n) = @_;

	sql(qq{INSERT INTO task (request) SELECT CASE n % 10
		WHEN 0
		THEN 'INSERT INTO kept VALUES (current_setting(''pg_task.id'')::bigint) RETURNING task'
		WHEN 1 THEN 'DO \$\$ BEGIN RAISE EXCEPTION ''uncaught''; END \$\$'
		WHEN 2 THEN 'DO \$\$ BEGIN PERFORM 1 / 0; END \$\$'
		WHEN 3 THEN 'DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM 1 / (50 - i); END LOOP; END \$\$'
		WHEN 4 THEN 'SELECT nested(2)'
		WHEN 5
		THEN
		'DO \$\$ DECLARE r record; BEGIN FOR r IN SELECT n, 1 / (n - 3) FROM generate_series(1, 9)
		AS n LOOP NULL; END LOOP; END \$\$'
		WHEN 6 THEN 'INSERT INTO kept VALUES (-2); SELECT missing'
		WHEN 7 THEN 'DECLARE c CURSOR FOR SELECT 1 / 0; FETCH c'
		WHEN 8 THEN 'INSERT INTO positive VALUES (1), (0)'
		ELSE 'SELECT FROM' END FROM generate_series(1, $n) AS n});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
}

insert_many(300);
my $before = memory();
insert_many(1000);
my $after = memory();
cmp_ok($after, '<', $before + 32768, "a thousand later it uses as much: $before, $after bytes");
is(sql(q{SELECT count(*), count(DISTINCT pid) FROM task}), '1300|1', 'one executor ran all tasks');
is(sql(q{SELECT state, count(*), bool_and(response = id::text) FROM task WHERE state = 'DONE'
	GROUP BY 1}),
	'DONE|130|t', 'the tasks without an error are DONE');
is(sql(q{SELECT count(*), count(DISTINCT task), min(task) > 0 FROM kept}), '130|130|t',
	'only the tasks that are DONE had an effect');
is(sql(q{SELECT string_agg(concat_ws(' ', sqlstate, error, count), E'\n' ORDER BY sqlstate, error)
	FROM (SELECT sqlstate, error, count(*) FROM task WHERE state = 'FAIL' GROUP BY 1, 2) AS x}),
	join("\n", '22012 division by zero 520',
	'23514 new row for relation "positive" violates check constraint "positive_n_check" 130',
		'42601 syntax error at end of input 130', '42703 column "missing" does not exist 130',
		'P0001 uncaught 130', 'UU001 at depth 1 130'),
	'each failure has its own error');
like(sql(q{SELECT response FROM task WHERE sqlstate = 'UU001' LIMIT 1}),
	qr/^ERROR:\ \ at\ depth\ 1\nDETAIL:\ \ x{1000}\nCONTEXT:\ \ PL\/pgSQL
		\ function\ nested\(integer\)\ line\ \d+\ at\ RAISE/x,
	'with detail and context');

my $id = run_task($node, request => 'SELECT 42');
is(task($node, $id, 'response'), '42', 'the next task runs');

# Long texts are cut at the limit, between characters, with a line that reports it.
subtest 'long texts' => sub {
	sql(q{ALTER ROLE postgres SET pg_task.response_limit = '1 kB'});
	terminate($node, backends($node, 'executor'));
	$id = run_task($node, request => q{SELECT repeat(U&'\20ac', 1000)});
	is(task($node, $id,
		q{state, split_part(response, E'\n', 1) = repeat(U&'\20ac', 341), split_part(response,
		E'\n',
		2)}),
		'DONE|t|(1977 bytes cut)', 'a response that is too long');
	$id = run_task($node, request => q{SELECT repeat('x', 1024)});
	is(task($node, $id, q{state, response = repeat('x', 1024)}), 'DONE|t',
		'a response that just fits');
	$id = run_task($node, request => q{DO $$ BEGIN RAISE EXCEPTION '%', repeat('x', 5000); END $$});
	is(task($node, $id,
		q{state, length(error) < 1100, length(response) < 1100, error LIKE '%bytes cut)',
		response LIKE 'ERROR:  xx%bytes cut)'}),
		'FAIL|t|t|t|t', 'an error that is too long');
};

# Codes like those with which pg_task tells itself something mean nothing when a user raises them.
subtest 'codes of the class PT' => sub {
	my $id = run_task($node,
		request => q{DO $$ BEGIN RAISE 'mine' USING ERRCODE = 'PT001'; END $$});

	is(task($node, $id, 'state, attempt, sqlstate'), 'FAIL|1|PT001', 'in a request');
	sql(q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
			AS $$ BEGIN RAISE 'mine' USING ERRCODE = 'PT001'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW WHEN (NEW.queue = 'refused')
			EXECUTE FUNCTION refuse()});
	insert_task($node, queue => 'refused', request => 'SELECT 1', dt => '2020-01-01');
	$id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'in a trigger: another task runs');
	sql('DROP FUNCTION refuse CASCADE; TRUNCATE task');
};

done_testing();
