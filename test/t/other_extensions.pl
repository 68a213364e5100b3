# How tasks and other extensions interact: a statement that an engine may send to other servers is
# in a transaction block, and one that must be alone is not; an extension may rewrite an error
# before it is logged; what is committed on another server before our commit stays there even if
# our commit fails; another library may take most callbacks.  A TAP test because it loads libraries
# of its own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('neighbour');
my $node = new_node('main', conf => "shared_preload_libraries = 'pg_task, $library'");

# Columns of the row of a task when it has run.
sub outcome
{
	my ($columns, $request) = @_;

	return task($node, run_task($node, request => $request), $columns);
}

sql(qq{
	CREATE FUNCTION is_in_block() RETURNS bool VOLATILE LANGUAGE c AS '$library';
	CREATE FUNCTION must_be_alone() RETURNS void LANGUAGE c AS '$library';
	CREATE FUNCTION fail_commits(int) RETURNS void LANGUAGE c AS '$library';
	CREATE TABLE place (what text, block bool);
	CREATE SEQUENCE runs;
	INSERT INTO place VALUES ('UPDATE'), ('DELETE');
	CREATE MATERIALIZED VIEW watched AS SELECT is_in_block() AS block;
	CREATE MATERIALIZED VIEW seen AS SELECT is_in_block() AS block;
	CREATE UNIQUE INDEX ON seen (block);
	CREATE FUNCTION note(what text) RETURNS bool LANGUAGE sql
		AS 'INSERT INTO place VALUES (what, is_in_block()) RETURNING true';
	CREATE PROCEDURE commit_once() LANGUAGE plpgsql AS \$\$
		BEGIN INSERT INTO place VALUES ('call', is_in_block()); COMMIT; END \$\$});

# These statements run in a block.  Each records in a table what it saw.
subtest 'statements in a transaction block' => sub {
	my $version = $node->pg_version;
	my @in_block = (
		[ 'SELECT', q{SELECT note('SELECT')} ],
		[ 'WITH', q{WITH x AS (INSERT INTO place VALUES ('WITH', is_in_block()) RETURNING 1)
			SELECT * FROM x} ],
		[ 'VALUES', q{VALUES (note('VALUES'))} ],
		[ 'INSERT', q{INSERT INTO place VALUES ('INSERT', is_in_block())} ],
		[ 'UPDATE', q{UPDATE place SET block = is_in_block() WHERE what = 'UPDATE'} ],
		[ 'DELETE',
		q{DELETE FROM place WHERE what = 'DELETE' AND block IS NULL AND note('DELETE')} ],
		[ 'MERGE', q{MERGE INTO place USING (VALUES (1)) AS v ON false
			WHEN NOT MATCHED THEN INSERT VALUES ('MERGE', is_in_block())} ],
		[ 'EXPLAIN', q{EXPLAIN (ANALYZE) INSERT INTO place VALUES ('EXPLAIN', is_in_block())} ],
		[ 'COPY TO', q{COPY (SELECT note('COPY TO')) TO STDOUT} ],
		[ 'CREATE TABLE AS', q{CREATE TABLE made AS SELECT note('CREATE TABLE AS')} ],
		[ 'SELECT INTO', q{SELECT note('SELECT INTO') INTO chosen} ],
		[ 'CREATE VIEW', 'CREATE MATERIALIZED VIEW kept AS SELECT is_in_block() AS block', 'kept' ],
		[ 'REFRESH', 'REFRESH MATERIALIZED VIEW watched', 'watched' ],
		[ 'REFRESH CONCURRENTLY', 'REFRESH MATERIALIZED VIEW CONCURRENTLY seen', 'seen' ],
		[ 'two statements', q{SELECT 1; SELECT note('two statements')} ]);
	for my $case (@in_block)
	{
		my ($what, $request, $view) = @$case;
		my $from = $view // "place WHERE what = '$what'";

		is(outcome('state, error IS NULL', $request), 'DONE|t', "$what: done");
		is(sql("SELECT bool_and(block) FROM $from"), 't', "$what: in a block");
	}
};

# These do not: they may commit, or must be alone.
subtest 'statements outside a block' => sub {
	my $block = q{DO $$BEGIN INSERT INTO place VALUES ('call', is_in_block()); COMMIT; END$$};
	for my $request ('CALL commit_once()', $block)
	{
		sql(q{DELETE FROM place WHERE what = 'call'});
		is(outcome('state', $request), 'DONE', "$request: done");
		is(sql(q{SELECT block FROM place WHERE what = 'call'}), 'f', "$request: not in a block");
	}
	for my $request (
		'VACUUM place', 'ANALYZE place', 'CREATE INDEX CONCURRENTLY ON place (what)',
		'REINDEX TABLE CONCURRENTLY place', 'DECLARE c CURSOR WITH HOLD FOR SELECT 1', 'CLUSTER',
		q{SET LOCAL work_mem = '1 MB'})
	{
		is(outcome('state, error IS NULL', $request), 'DONE|t', "$request: as ever");
	}
	for my $case (
		[ 'DECLARE CURSOR', 'DECLARE c CURSOR FOR SELECT 1' ],
		[ 'LOCK TABLE', 'LOCK TABLE place' ],
		[ 'SAVEPOINT', 'SAVEPOINT s' ])
	{
		my ($what, $request) = @$case;

		is(outcome('state, sqlstate, error', $request),
			"FAIL|25P01|$what can only be used in transaction blocks", "$request: refused");
	}
};

# A function that cannot run in a block runs without one, as in a session; its effects happen once.
subtest 'a function that refuses a block' => sub {
	my $position = log_position($node);
	is(outcome('state, attempt, failed, error IS NULL', q{SELECT must_be_alone(), nextval('runs')}),
		'DONE|1|0|t', 'a function that refuses a block runs without one');
	is(sql('SELECT last_value FROM runs'), '1', 'what follows it runs once');
	unlike(log_since($node, $position), qr/must_be_alone\(\) cannot run/,
		'the log has no error');
	sql('ALTER SEQUENCE runs RESTART');
	is(outcome('state, sqlstate', q{SELECT nextval('runs'); SELECT must_be_alone()}),
		'FAIL|25001', 'beside another statement the function is refused');
	is(sql('SELECT last_value FROM runs'), '1', 'the run is not repeated');
	sql(q{CREATE FUNCTION refuse_block() RETURNS void LANGUAGE plpgsql AS $$BEGIN
		IF is_in_block() THEN RAISE 'not in a block' USING ERRCODE = '0A000'; END IF; END$$});
	is(outcome('state, sqlstate', 'SELECT refuse_block()'), 'FAIL|0A000', 'by another code');
	is(outcome('state', 'DO $$BEGIN PERFORM refuse_block(); END$$'), 'DONE', 'DO helps');
};

# A run that a deferred trigger rejects at the end is rolled back.
subtest 'a deferred trigger rejects the run' => sub {
	sql(q{
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
			AS $$BEGIN RAISE EXCEPTION 'not done'; END$$;
		CREATE TRIGGER refuse AFTER UPDATE ON task FOR EACH ROW
			WHEN (NEW.state = 'DONE') EXECUTE FUNCTION refuse()});
	is(outcome('state, error', q{INSERT INTO place VALUES ('refused')}),
		'FAIL|not done', 'DONE is refused');
	is(sql(q{SELECT count(*) FROM place WHERE what = 'refused'}), '0',
		'the effects of the task are rolled back');
	sql('DROP TRIGGER refuse ON task');
};

# An error that an extension rewrites to a deadlock before it is logged counts as a deadlock: the
# run is retried.
subtest 'an error that an extension rewrites' => sub {
	sql(q{
		ALTER SEQUENCE runs RESTART;
		CREATE FUNCTION collide(until int) RETURNS bigint LANGUAGE plpgsql AS $$
		DECLARE
			n bigint := nextval('runs');
		BEGIN
			IF n < until THEN RAISE EXCEPTION 'another server says no' USING ERRCODE = 'XX123';
			END IF;
			RETURN n;
		END $$});
	is(outcome('state, attempt, failed, response', 'SELECT collide(3)'),
		'DONE|1|0|3', 'an error rewritten to a deadlock is retried');
	is(outcome('state, sqlstate, error', 'SELECT collide(100)'),
		'FAIL|40P01|a deadlock that spans several servers',
		'the row has the rewritten error');
	sql(q{ALTER SYSTEM SET log_min_messages = 'fatal'; SELECT pg_reload_conf()});
	wait_until($node, q{SELECT current_setting('log_min_messages') = 'fatal'});
	terminate($node, backends($node, 'executor'));
	is(outcome('state, sqlstate, error', 'SELECT collide(1000)'),
		'FAIL|XX123|another server says no', 'an error that is not logged is not rewritten');
	sql(q{ALTER SYSTEM RESET log_min_messages; SELECT pg_reload_conf()});
};

# postgres_fdw commits on the other server just before the commit here: if that fails, the effect
# on the other server stays.
subtest 'postgres_fdw commits first' => sub {
	my $host = $node->host;
	my $port = $node->port;
	sql(qq{
		CREATE EXTENSION postgres_fdw;
		CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw
			OPTIONS (host '$host', port '$port', dbname 'postgres');
		CREATE USER MAPPING FOR CURRENT_USER SERVER other;
		CREATE SEQUENCE turns;
		CREATE TABLE there (n int);
		CREATE TABLE here (n int);
		CREATE FOREIGN TABLE far (n int) SERVER other OPTIONS (table_name 'there')});
	is(outcome('state, error IS NULL', q{INSERT INTO far VALUES (1); INSERT INTO here VALUES (1);
			SELECT fail_commits((nextval('turns') = 1)::int)}),
		'DONE|t', 'a commit that fails is retried');
	is(sql('SELECT (SELECT count(*) FROM here), (SELECT count(*) FROM there)'),
		'1|2', 'one effect on this server, two on the other');
};

subtest 'pg_stat_statements and auto_explain' => sub {
	my $other = new_node('statements', conf => q{
		shared_preload_libraries = 'pg_task, pg_stat_statements, auto_explain'
		auto_explain.log_min_duration = 0});

	sql('CREATE EXTENSION pg_stat_statements; CREATE ROLE app LOGIN', node => $other);
	run_task($other, request => 'SELECT 1 AS counted; SELECT 2 AS counted', role => 'app');
	is(sql(q{SELECT rolname, toplevel, calls FROM pg_stat_statements JOIN pg_roles AS r
			ON r.oid = userid WHERE query = 'SELECT $1 AS counted'}, node => $other), 'app|t|2',
		'statements of a request are counted for its role');
	wait_for_log_line($other, qr/duration: .* plan:\n.*Query Text: .*SELECT 2 AS counted/);
	pass('and explained');
};

# The server has ten relcache callbacks for each process, and uses two.  The library leaves one.
subtest 'a library that takes seven relcache callbacks' => sub {
	my $taker = build_module('callback_slots');
	my $other = new_node('slots', conf => qq{
		shared_preload_libraries = '$taker, pg_task'
		pg_task.idle_timeout = 1s});
	my %in = (node => $other);

	sql(q{
		CREATE ROLE app LOGIN;
		GRANT INSERT, SELECT, UPDATE, DELETE ON task TO app;
		INSERT INTO task_queue (queue, max, rate, per) VALUES ('narrow%', 1, 100, '1 s')}, %in);
	run_task($other, request => q{INSERT INTO task (queue, request)
			SELECT 'narrow', 'SELECT 1' FROM generate_series(1, 5)}, role => $_)
	  for 'app', sql('SELECT current_user');
	wait_until($other, q{SELECT count(*) = 12 AND bool_and(state = 'DONE') FROM task});
	sql_as('app', q{INSERT INTO task (request) SELECT 'SELECT 2' FROM generate_series(1, 50)}, %in);
	sql_as('app', q{WITH one AS (INSERT INTO task (request) VALUES ('SELECT 3') RETURNING id)
		SELECT pg_task_why(id) FROM one}, %in);
	wait_until($other, q{SELECT count(*) = 63 AND bool_and(state = 'DONE') FROM task});
	wait_for_backends($other, 'executor', 0);
	is(task($other, run_task($other, request => 'SELECT 4'), 'state'), 'DONE', 'all tasks run');
	unlike(log_since($other, 0), qr/out of \w+_callback_list slots/,
		'no process lacks a callback');
};

done_testing();
