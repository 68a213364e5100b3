# A request that runs again and again is planned once, and runs as if it were planned each time.  A
# TAP test because plans are kept in a process, and because pg_stat_statements counts them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	shared_preload_libraries = 'pg_task, pg_stat_statements'
	pg_stat_statements.track_planning = on
	pg_task.max_executors = 1});

sql(q{
	CREATE EXTENSION pg_stat_statements;
	CREATE ROLE app LOGIN;
	GRANT INSERT, SELECT ON task TO app;
	CREATE SCHEMA early;
	CREATE SCHEMA late;
	GRANT USAGE ON SCHEMA early, late TO app;
	ALTER ROLE app SET search_path = early, late, public;
	CREATE TABLE effect (what text);
	CREATE SEQUENCE calls;
	CREATE FUNCTION late.job() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN ''first''; END';
	CREATE FUNCTION late.inlined() RETURNS text STABLE LANGUAGE sql AS 'SELECT ''first''::text';
	CREATE FUNCTION late.counted() RETURNS bigint IMMUTABLE LANGUAGE plpgsql
		AS 'BEGIN RETURN nextval(''public.calls''); END';
	CREATE TYPE late.pair AS (a int, b int);
	CREATE FUNCTION late.pair() RETURNS late.pair LANGUAGE plpgsql AS 'BEGIN RETURN (1, 2); END';
	CREATE FUNCTION late.defaulted(bigint DEFAULT late.counted()) RETURNS bigint LANGUAGE plpgsql
		AS 'BEGIN RETURN $1; END';
	CREATE FUNCTION late.hidden() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT late.counted()';
	GRANT USAGE ON SEQUENCE calls TO app;
	CREATE OPERATOR late.<~> (FUNCTION = int8pl, LEFTARG = bigint, RIGHTARG = bigint);
	CREATE FUNCTION late.place(text) RETURNS point LANGUAGE plpgsql
		AS 'BEGIN RETURN point(length($1), 0); END';
	CREATE ROLE members;
	GRANT members TO app;
	CREATE SCHEMA theirs;
	GRANT USAGE ON SCHEMA theirs TO members;
	CREATE FUNCTION theirs.job() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN ''third''; END'});


# Runs a request as app, in the one process that runs all, and returns what it returned.
sub outcome
{
	my ($request, %column) = @_;
	my $id = run_task($node, role => 'app', request => $request, %column);

	return task($node, $id, "state || ' ' || coalesce(sqlstate, response)");
}

# Runs it so often that its plan is kept, if it may be.
sub outcomes { return join ', ', map { outcome($_[0]) } 1 .. 3 }

# Runs a request six times: is it planned each time?  Constants are shown as parameters.
sub planned
{
	my ($request, $shown) = @_;

	sql('SELECT pg_stat_statements_reset()');
	outcome($request) for 1 .. 6;
	return sql("SELECT calls, CASE WHEN plans = calls THEN 'each time' WHEN plans < calls
		THEN 'less often' END FROM pg_stat_statements WHERE query = " . literal($shown));
}

subtest 'what is kept, and what is not' => sub {
	my @cases = (
		[ 'SELECT pg_typeof(pg_task_input())', 'less often', 'a call of functions' ],
		[ 'SELECT late.job()', 'less often', q{a call of a user's function} ],
		[ 'SELECT count(*) FROM pg_class', 'each time', 'what reads tables' ],
		[ 'SELECT (SELECT max(oid) FROM pg_class) IS NULL', 'each time', 'a table in a subquery' ],
		[ 'SELECT late.counted()', 'each time', 'what the planner may call' ],
		[ 'SELECT late.defaulted()', 'each time', 'what the planner may give arguments to' ],
		[ 'SELECT late.pair()', 'each time', 'a row type' ],
		[ 'SELECT (NULL::effect).*', 'each time', 'the row type of a table',
			'SELECT ($1::effect).*' ],
		[ q{SELECT left(repeat('x', 1000000), 3)}, 'each time', 'a large plan',
			'SELECT left(repeat($1, $2), $3)' ],
		[ 'SELECT late.inlined()', 'each time', 'what the planner may replace by its text' ]);

	for my $case (@cases)
	{
		my ($request, $expected, $name, $shown) = @$case;

		is(planned($request, $shown // $request), "6|$expected", $name);
	}
};

subtest 'what is read by the clock' => sub {
	for my $word ('now', 'today')
	{
		my $request = "SELECT '$word'::timestamptz >= date_trunc('day', now()), "
		  . "'$word'::timestamptz";
		my @seen = map { outcome($request) } 1 .. 3;

		isnt($seen[1], $seen[2], "the time is that of the run") if $word eq 'now';
		like($seen[2], qr/^DONE .*\nt/s, "it is of today");
	}
};

subtest 'functions that the planner may call' => sub {
	for my $function ('counted', 'hidden', 'defaulted')
	{
		my @seen = map { outcome("SELECT late.$function()") } 1 .. 4;

		isnt($seen[2], $seen[3], "$function is called each time");
	}
};

# Each changes what the request means.
subtest 'changes between two runs' => sub {
	my @cases = (
		[ 'SELECT job()', 'DONE first', q{CREATE OR REPLACE FUNCTION late.job() RETURNS text
			LANGUAGE plpgsql AS 'BEGIN RETURN ''second''; END'}, 'DONE second', 'another body' ],
		[ 'SELECT job()', 'DONE second', q{CREATE FUNCTION early.job() RETURNS text
			LANGUAGE plpgsql AS 'BEGIN RETURN ''early''; END'}, 'DONE early',
			'a function in an earlier schema' ],
		[ 'SELECT job()', 'DONE early', 'REVOKE USAGE ON SCHEMA early FROM app', 'DONE second',
			'a schema that may not be used any more' ],
		[ 'SELECT late.job()', 'DONE second', 'REVOKE EXECUTE ON FUNCTION late.job() FROM PUBLIC',
			'FAIL 42501', 'a function that may not be called any more' ],
		[ 'SELECT inlined()', 'DONE first', q{CREATE OR REPLACE FUNCTION late.inlined()
			RETURNS text STABLE LANGUAGE sql AS 'SELECT ''second''::text'}, 'DONE second',
			'another text' ],
		[ 'SELECT pg_typeof(inlined())', 'DONE text', 'DROP FUNCTION late.inlined();
			CREATE FUNCTION late.inlined() RETURNS int STABLE LANGUAGE sql AS $$SELECT 1$$',
			'DONE integer', 'another type' ],
		[ 'SELECT count(*) FROM effect', 'FAIL 42501', q{GRANT SELECT, INSERT ON effect TO app},
			'DONE 0', 'a table' ],
		[ 'SELECT count(*) FROM effect', 'DONE 0', q{INSERT INTO effect VALUES ('x')}, 'DONE 1',
			'rows' ],
		[ 'SELECT inlined() * 2', 'DONE 2', 'DROP FUNCTION late.inlined()', 'FAIL 42883',
			'a function that is gone' ],
		[ 'SELECT ROW(1, 2)::late.pair', 'DONE (1,2)',
			'ALTER TYPE late.pair ALTER ATTRIBUTE b TYPE text', 'DONE (1,2)',
				'the type of a column' ],
		[ 'SELECT 1 <~> 2', 'DONE 3', 'CREATE OPERATOR late.<~>
			(FUNCTION = int4mul, LEFTARG = int, RIGHTARG = int)', 'DONE 2',
			'an operator that fits better' ],
		[ q{SELECT repeat('(1,2)', 1)::point}, 'DONE (1,2)', 'CREATE CAST (text AS point)
			WITH FUNCTION late.place(text)', 'DONE (5,0)', 'a cast' ],
		[ 'SELECT theirs.job()', 'DONE third', 'REVOKE members FROM app', 'FAIL 42501',
			'a schema that may be used as a member of a role' ],
		[ q{SELECT current_setting('TimeZone')}, undef,
			q{ALTER ROLE app SET TimeZone = 'Asia/Tokyo'},
			'DONE Asia/Tokyo', 'a setting' ],
		[ q{SELECT length('a\\b')}, 'DONE 3',
			'ALTER ROLE app SET standard_conforming_strings = off',
			'DONE 2', 'how a text is read' ]);

	for my $case (@cases)
	{
		my ($request, $before, $change, $after, $name) = @$case;

		next if $change =~ /conforming/ && sql('SHOW server_version_num') >= 190000;
		my $seen = outcomes($request);
		is($seen, join(', ', ($before) x 3), "before: $name") if defined $before;
		sql($change);
		is(outcome($request), $after, $name);
	}
};

subtest 'changes by the task itself' => sub {
	sql('GRANT CREATE ON SCHEMA early TO app; GRANT USAGE ON SCHEMA early TO app;
		DROP FUNCTION early.job(); GRANT EXECUTE ON FUNCTION late.job() TO app');
	is(outcomes('SELECT job()'), 'DONE second, DONE second, DONE second', 'before');
	outcome(q{CREATE FUNCTION early.job() RETURNS text LANGUAGE sql AS $$SELECT 'mine'$$});
	is(outcome('SELECT job()'), 'DONE mine', 'a function that a task has made');
	outcome('SET search_path = late');
	is(outcome('SELECT job()'), 'DONE mine', 'a setting of the task before');
};

# More requests than can be kept, in a batch and alone.
subtest 'many requests' => sub {
	for my $batch (1, 64)
	{
		set_conf($node, "pg_task.batch = $batch");
		sql(q{INSERT INTO task (role, request, queue, input)
			SELECT 'app', 'SELECT pg_task_input(), ' || i % 40, 'many', to_jsonb(i)
			FROM generate_series(1, 2000) AS i});
		wait_until($node, q{SELECT count(*) = 2000 FROM task WHERE queue = 'many'
			AND state = 'DONE'});
		is(sql(q{SELECT count(*) FROM task WHERE queue = 'many' AND response LIKE
			E'%\n' || input::text || E'\t' || (input::int % 40)}), 2000,
			"batch of $batch: each task has its own response");
		sql(q{DELETE FROM task WHERE queue = 'many'});
	}
};

done_testing();
