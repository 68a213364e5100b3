# After very many tasks the tables and the memory of the processes are as they were after a few.  A
# TAP test because it measures the memory of processes.  PG_TASK_TEST_FAILURES and
# PG_TASK_TEST_REQUESTS are the numbers of tasks; a full run has 100000 and 1000000.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $failures = $ENV{PG_TASK_TEST_FAILURES} // 6_000;
my $requests = $ENV{PG_TASK_TEST_REQUESTS} // 20_000;
my $warm = 2_000;    # tasks, to fill the caches
my $slack = 1_536;   # kB, for the allocator of the C library: see endure,
my $each = 1 / 64;   # and per task, because the server keeps dropped tables in memory for a while

my $node = new_node('main', conf => q{
	pg_task.max_executors = 1
	pg_task.synchronous_commit = off
	shared_buffers = 32MB
	temp_buffers = 800kB
	autovacuum_naptime = 1s
	log_statement = none
	log_min_messages = fatal});

# The private memory of a process, without files, in kB.
sub memory
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/smaps_rollup") =~ /^Anonymous:\s+(\d+) kB/m ? $1
		: die "no memory of $pid";
}

sub wait_for_tasks { wait_until($node,
	q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))}) }

# Runs many tasks: a query inserts those with the numbers from one to another.  A part of them at a
# time, because waiting for a condition has a timeout.
sub run_many
{
	my ($insert, $from, $to, $part) = @_;

	$part //= 1_000;
	for (my $first = $from; $first <= $to; $first += $part)
	{
		my $last = $first + $part - 1 < $to ? $first + $part - 1 : $to;

		sql($insert =~ s/FIRST/$first/gr =~ s/LAST/$last/gr);
		wait_for_tasks();
	}
}

# The same in two parts: some tasks to warm up, then all others.  After the second part the
# processes are the same, and no larger.  In both, autovacuum has them prepare the table and plan
# again.  The memory for that is free afterwards, but the allocator may not find it in one piece the
# next time.  With MALLOC_MMAP_THRESHOLD_=65536, the scheduler goes up and down by 450 kB.
sub endure
{
	my ($name, $insert, $total) = @_;
	my (@pids, @before);

	run_many($insert, 1, $warm / 2);
	sql('VACUUM ANALYZE task');
	run_many($insert, $warm / 2 + 1, $warm);
	@pids = map { backends($node, $_) } qw(executor scheduler);
	@before = map { memory($_) } @pids;
	my $began = time;
	run_many($insert, $warm + 1, $total);
	my $took = time - $began || 1;
	is(join(',', map { backends($node, $_) } qw(executor scheduler)), join(',', @pids),
		"$name: by the same processes");
	for my $i (0, 1)
	{
		my $process = (qw(executor scheduler))[$i];
		my $now = memory($pids[$i]);

		cmp_ok($now, '<=', $before[$i] + $slack + $each * ($total - $warm),
			"$name: the $process has not grown");
		note("$name: $process $before[$i] kB after $warm tasks, $now kB after $total");
	}
	note(sprintf "%s: %d per s", $name, ($total - $warm) / $took);
}

# Uncaught exceptions ------------------------------------------------------------------------------

# Tasks that fail in several ways, each followed by one that must not.  All leave a trace, which
# must be gone after a failure.
sql(q{
	CREATE TABLE trace (n int);
	CREATE FUNCTION nested(n int, depth int) RETURNS int LANGUAGE plpgsql AS $$
	DECLARE
		c refcursor;
		x int := n;
	BEGIN
		OPEN c FOR SELECT generate_series(1, 1000);
		FETCH c INTO x;
		IF depth = 0 THEN RETURN x / (x - 1); END IF;
		RETURN nested(n, depth - 1) + x;
	END $$;
	CREATE TABLE way (kind int, request text, sqlstate text);
	INSERT INTO way VALUES
	(0, 'DO $do$ BEGIN INSERT INTO trace VALUES (%1$s); RAISE EXCEPTION ''failure %1$s''; END $do$',
	'P0001'),
	(1,
	'DO $do$ DECLARE c CURSOR FOR SELECT generate_series(1, 1000) AS n; x int; BEGIN INSERT INTO
	trace VALUES (%1$s);
		OPEN c; FETCH c INTO x; FETCH c INTO x; x := x / (x - 2); END $do$', '22012'),
	(2, 'DO $do$ DECLARE r record; BEGIN INSERT INTO trace VALUES (%1$s);
		FOR r IN SELECT n FROM generate_series(1, 1000) AS n LOOP IF r.n = 500 THEN RAISE ''at %%'',
		r.n; END IF; END LOOP; END $do$', 'P0001'),
	(3,
	'DO $do$ DECLARE x int := %1$s; BEGIN INSERT INTO trace VALUES (x); BEGIN BEGIN BEGIN x := x +
	1; x := ''x%1$s''; END; END;
		EXCEPTION WHEN division_by_zero THEN NULL; END; END $do$', '22P02'),
	(4,
	'DO $do$ BEGIN INSERT INTO trace VALUES (%1$s); FOR i IN 1..100 LOOP BEGIN PERFORM 1 / (i - 50);
		EXCEPTION WHEN division_by_zero THEN RAISE EXCEPTION ''in the handler of %1$s: %%'',
		SQLERRM; END; END LOOP; END $do$', 'P0001'),
	(5, 'INSERT INTO trace VALUES (%1$s); SELECT nested(%1$s, 5)', '22012'),
	(6,
	'DO $do$ DECLARE a int[]; BEGIN INSERT INTO trace VALUES (%1$s); FOR i IN 1..50 LOOP a[i] := i;
	END LOOP;
		FOREACH a SLICE 1 IN ARRAY a LOOP EXECUTE format(''SELECT no_such_%%s'', a[1]); END LOOP;
		END $do$', '42703'),
	(7,
	'DO $do$ BEGIN INSERT INTO trace VALUES (%1$s); CREATE TEMP TABLE t%1$s (a int); INSERT INTO
	t%1$s SELECT generate_series(1, 10);
		ASSERT (SELECT count(*) FROM t%1$s) = 0, ''not empty''; END $do$', 'P0004'),
	(8,
	'BEGIN; INSERT INTO trace VALUES (%1$s); SAVEPOINT s; DECLARE c CURSOR FOR SELECT 1/(n - 5) FROM
	generate_series(1, 10) AS n; FETCH 9 FROM c; COMMIT', '22012'),
	(9,
	'DO $do$ BEGIN INSERT INTO trace VALUES (%1$s); RAISE NOTICE ''before %1$s''; PERFORM
	set_config(''work_mem'', ''1MB'', false);
		PERFORM pg_advisory_lock(%1$s); RAISE no_data_found; END $do$', 'P0002'),
	(10, 'DO $do$ BEGIN INSERT INTO trace VALUES (%1$s); SELEC %1$s; END $do$', '42601'),
	(11,
	'SELECT 1; INSERT INTO trace VALUES (%1$s); DO $do$ BEGIN PERFORM no_such_function(%1$s); END
	$do$', '42883')});

subtest 'many failures' => sub {
	endure('failures', q{
		INSERT INTO task (id, request)
		SELECT n, CASE WHEN n % 2 = 0 THEN format('INSERT INTO trace VALUES (%1$s); SELECT %1$s', n)
		ELSE format(way.request, n) END
		  FROM generate_series(FIRST, LAST) AS n JOIN way ON kind = n / 2 % 12
		 ORDER BY n}, $failures);
	is(sql(q{SELECT count(*) FROM task WHERE id % 2 = 0 AND (state, response, attempt, notice,
		sqlstate) IS DISTINCT FROM
		('DONE', E'INSERT 0 1\n' || id, 1, NULL, NULL)}), 0,
		'the tasks between the failures are DONE');
	is(sql(q{SELECT count(*) FROM task JOIN way ON kind = id / 2 % 12 WHERE id % 2 = 1
		AND (state, task.sqlstate, attempt) IS DISTINCT FROM
		('FAIL', way.sqlstate, 1)}), 0, 'the failures have the expected SQLSTATE');
	is(sql(q{SELECT count(*) FROM task WHERE id % 24 = 1 AND error IS DISTINCT
		FROM 'failure ' || id}),
		0, 'each failure has its own message');
	is(sql(q{SELECT count(*) FROM task WHERE id % 24 = 19 AND notice IS DISTINCT
		FROM 'NOTICE:  before ' || id}), 0, 'each failure has its own notices');
	is(sql(q{SELECT count(*), count(DISTINCT n), min(n % 2), max(n % 2) FROM trace}),
		join('|', int($failures / 2), int($failures / 2), 0, 0),
		'the effects are those of the tasks that are DONE');
	sql('TRUNCATE task; TRUNCATE trace');
};

# Different requests -------------------------------------------------------------------------------

# No two requests are equal; most create something that a session caches.  A remaining row is a
# failed task.
sql(q{
	TRUNCATE way;
	INSERT INTO way (kind, request) VALUES
	(0, 'SELECT %1$s AS column_%1$s'),
	(1,
	'SELECT n + %1$s AS a, ''text %1$s'' AS b FROM generate_series(1, 10) AS n WHERE n <> %1$s ORDER
	BY 1 DESC'),
	(2,
	'DO $do$ DECLARE v%1$s int := %1$s; BEGIN FOR i IN 1..3 LOOP v%1$s := v%1$s + i; END LOOP; RAISE
	NOTICE ''%%'', v%1$s; END $do$'),
	(3, 'CREATE TEMP TABLE t%1$s (a%1$s int); INSERT INTO t%1$s VALUES (%1$s); TABLE t%1$s'),
	(4, 'PREPARE p%1$s AS SELECT relname FROM pg_class WHERE oid = $1 + %1$s; EXECUTE p%1$s(1)'),
	(5,
	'BEGIN; DECLARE c%1$s CURSOR WITH HOLD FOR SELECT generate_series(1, 100); COMMIT; FETCH 3 FROM
	c%1$s'),
	(6,
	'SELECT pg_advisory_lock(%1$s); SET search_path = public, pg_catalog; SET statement_timeout =
	%1$s'),
	(7, 'WITH a%1$s AS (INSERT INTO trace VALUES (%1$s) RETURNING n) SELECT * FROM a%1$s'),
	(8, 'COPY (SELECT repeat(''x'', %1$s %% 1000)) TO STDOUT'),
	(9, 'SELECT format(''%%s'', %1$s), now(), ARRAY[%1$s], ROW(%1$s)'),
	(10,
	'BEGIN; INSERT INTO trace VALUES (%1$s); SAVEPOINT s%1$s; INSERT INTO trace VALUES (%1$s);
	ROLLBACK TO s%1$s; RELEASE s%1$s; COMMIT'),
	(11,
	'EXPLAIN SELECT * FROM pg_class AS c%1$s JOIN pg_attribute AS a%1$s ON attrelid = oid WHERE
	relname = ''n%1$s''')});

subtest 'many different requests' => sub {
	endure('requests', q{
		INSERT INTO task (request, keep, queue, format)
		SELECT format(way.request, n), '0', 'queue ' || n % 7, (ARRAY['text', 'csv',
		'json'])[1 + n % 3]
		  FROM generate_series(FIRST, LAST) AS n JOIN way ON kind = n % 12}, $requests);
	is(sql('SELECT count(*) FROM task'), 0, 'all tasks are done');
};

# A session caches something for each name and function that it has ever used.  A limit must hold
# here, if necessary by a new process.  Each task reports the size of its process at the end, in
# kB.
my $most = 64 * 1024;
my %caches = (
	names => [300,
		q(DO $do$ BEGIN FOR i IN 1..1000 LOOP PERFORM to_regclass('no_such_' || %1$s || '_' || i);
		END LOOP; END $do$; SELECT taken())],
	functions => [100, q(DO $do$ DECLARE x int; BEGIN FOR i IN 1..50 LOOP
		EXECUTE
		'CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN RETURN %1$s; END
		$f$';
		EXECUTE 'SELECT pg_temp.f()' INTO x; DROP FUNCTION pg_temp.f; END LOOP; END $do$;
		SELECT taken())]);

sql(q{CREATE FUNCTION taken() RETURNS int LANGUAGE sql
	AS $$ SELECT (regexp_match(pg_read_file('/proc/self/smaps_rollup'),
	'Anonymous: +(\d+)'))[1]::int $$});

subtest 'caches of names and functions' => sub {
	for my $name (sort keys %caches)
	{
		my ($count, $request) = @{ $caches{$name} };

		sql('TRUNCATE task');
		terminate($node, backends($node, 'executor'));
		run_many("INSERT INTO task (id, request) SELECT n, format(r, n) "
			. "FROM generate_series(FIRST, LAST) AS n, (VALUES (\$r\$$request\$r\$)) AS v (r)", 1,
			$count, 50);
		is(sql(q{SELECT count(*) FROM task WHERE state = 'DONE' AND response ~ '^DO\n\d+$'}),
			$count,
			"$name: all are done");
		my $taken = sql('SELECT max(substring(response, 4)::int) FROM task');

		cmp_ok($taken, '<=', $most, "$name: the executor is below the limit");
		note("$name: $taken kB");
	}
};

done_testing();
