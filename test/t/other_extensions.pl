# What other extensions see of a task and do to it: a statement of the kind that an engine may carry to other servers
# is in a transaction block, what must be alone still is; an error may be rewritten on its way to the log; and
# what is committed on another server before our own commit is there even if that fails. A TAP test, for it loads
# a library of its own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('neighbour');
my $node = new_node('main', conf => "shared_preload_libraries = 'pg_task, $library'\npg_task.max_executors = 2");

sub sql { return $node->safe_psql('postgres', @_) }

sql(qq{
	CREATE FUNCTION is_in_block() RETURNS bool VOLATILE LANGUAGE c AS '$library';
	CREATE FUNCTION must_be_alone() RETURNS void LANGUAGE c AS '$library';
	CREATE FUNCTION fail_commits(int) RETURNS void LANGUAGE c AS '$library';
	CREATE TABLE place (what text, block bool);
	CREATE SEQUENCE runs;
	CREATE MATERIALIZED VIEW watched AS SELECT is_in_block() AS block;
	CREATE UNIQUE INDEX ON watched (block);
	CREATE FUNCTION note(what text) RETURNS bool LANGUAGE sql AS 'INSERT INTO place VALUES (what, is_in_block()) RETURNING true';
	CREATE PROCEDURE commit_once() LANGUAGE plpgsql AS \$\$
		BEGIN INSERT INTO place VALUES ('call', is_in_block()); COMMIT; END \$\$});

# These are in a block. Each leaves in a table what it saw.
my $version = $node->pg_version;
my @in_block = (
	[ 'SELECT', q{SELECT note('SELECT')} ],
	[ 'WITH', q{WITH x AS (INSERT INTO place VALUES ('WITH', is_in_block()) RETURNING 1) SELECT * FROM x} ],
	[ 'VALUES', q{VALUES (note('VALUES'))} ],
	[ 'INSERT', q{INSERT INTO place VALUES ('INSERT', is_in_block())} ],
	[ 'UPDATE', q{UPDATE place SET block = is_in_block() WHERE what = 'UPDATE'}, q{INSERT INTO place VALUES ('UPDATE')} ],
	[ 'DELETE', q{DELETE FROM place WHERE what = 'DELETE' AND note('DELETE')}, q{INSERT INTO place VALUES ('DELETE')} ],
	[ 'MERGE', q{MERGE INTO place USING (VALUES (1)) AS v ON false WHEN NOT MATCHED THEN INSERT VALUES ('MERGE', is_in_block())} ],
	[ 'EXPLAIN', q{EXPLAIN (ANALYZE) INSERT INTO place VALUES ('EXPLAIN', is_in_block())} ],
	[ 'COPY TO', q{COPY (SELECT note('COPY TO')) TO STDOUT} ],
	[ 'CREATE TABLE AS', q{CREATE TABLE made AS SELECT note('CREATE TABLE AS')} ],
	[ 'SELECT INTO', q{SELECT note('SELECT INTO') INTO chosen} ],
	[ 'CREATE VIEW', q{CREATE MATERIALIZED VIEW kept AS SELECT is_in_block() AS block}, '', 'SELECT block FROM kept' ],
	[ 'REFRESH', 'REFRESH MATERIALIZED VIEW watched', '', 'SELECT block FROM watched' ],
	[ 'REFRESH CONCURRENTLY', 'REFRESH MATERIALIZED VIEW CONCURRENTLY watched', '', 'SELECT block FROM watched' ],
	[ 'two statements', q{SELECT 1; SELECT note('two statements')} ]);
for my $case (@in_block)
{
	my ($what, $request, $before, $check) = @$case;

	sql($before) if $before;
	my $id = run_task($node, request => $request);
	is(task($node, $id, "state, coalesce(error, '')") . ' '
		  . sql($check // "SELECT bool_and(block) FROM place WHERE what = '$what' AND block IS NOT NULL"),
		'DONE| t', "$what: in a block");
}

# These are not: they may commit, or must be alone.
for my $case ([ 'CALL', 'CALL commit_once()' ], [ 'DO', q{DO $$BEGIN INSERT INTO place VALUES ('call', is_in_block()); COMMIT; END$$} ])
{
	sql(q{DELETE FROM place WHERE what = 'call'});
	my $id = run_task($node, request => $case->[1]);
	is(task($node, $id, 'state') . ' ' . sql(q{SELECT block FROM place WHERE what = 'call'}), 'DONE f', "$case->[0]: not in a block");
}
for my $request ('VACUUM place', 'ANALYZE place', 'CREATE INDEX CONCURRENTLY ON place (what)', 'REINDEX TABLE CONCURRENTLY place',
	'DECLARE c CURSOR WITH HOLD FOR SELECT 1', 'CLUSTER', q{SET LOCAL work_mem = '1 MB'})
{
	is(task($node, run_task($node, request => $request), "state, coalesce(error, '')"), 'DONE|', "$request: as ever");
}
for my $case ([ 'DECLARE c CURSOR FOR SELECT 1', 'DECLARE CURSOR can only be used in transaction blocks' ],
	[ 'LOCK TABLE place', 'LOCK TABLE can only be used in transaction blocks' ],
	[ 'SAVEPOINT s', 'SAVEPOINT can only be used in transaction blocks' ])
{
	is(task($node, run_task($node, request => $case->[0]), 'state, sqlstate, error'), "FAIL|25P01|$case->[1]", "$case->[0]: refused");
}

# A function that cannot run in a block runs, without one, as it does in a session; once, as far as its effects go.
my $position = log_position($node);
my $id = run_task($node, request => q{SELECT must_be_alone(), nextval('runs')});
is(task($node, $id, "state, attempt, failed, coalesce(error, '')") . ' ' . sql('SELECT last_value FROM runs'), 'DONE|1|0| 1',
	'a function that must be alone is');
unlike(log_since($node, $position), qr/must_be_alone\(\) cannot run/, 'the log has no error of it');
is(task($node, run_task($node, request => 'SELECT 1; SELECT must_be_alone()'), 'state, sqlstate'), 'FAIL|25001', 'beside another statement it is refused');
sql('ALTER SEQUENCE runs RESTART');
$id = run_task($node, request => q{SELECT nextval('runs'); SELECT must_be_alone()});
is(task($node, $id, 'state') . ' ' . sql('SELECT last_value FROM runs'), 'FAIL 1', 'and not tried again');

# What a trigger refuses at the end is rolled back.
sql(q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not done'; END$$;
	CREATE TRIGGER refuse AFTER UPDATE ON task FOR EACH ROW WHEN (NEW.state = 'DONE') EXECUTE FUNCTION refuse()});
$id = run_task($node, request => q{INSERT INTO place VALUES ('refused')});
is(task($node, $id, 'state, error') . ' ' . sql(q{SELECT count(*) FROM place WHERE what = 'refused'}), 'FAIL|not done 0', 'DONE is refused: nothing stays');
sql('DROP TRIGGER refuse ON task');

# An error that becomes a deadlock on its way to the log is one: the run is begun anew.
sql(q{
	ALTER SEQUENCE runs RESTART;
	CREATE FUNCTION collide(until int) RETURNS bigint LANGUAGE plpgsql AS $$
	DECLARE
		n bigint := nextval('runs');
	BEGIN
		IF n < until THEN RAISE EXCEPTION 'another server says no' USING ERRCODE = 'XX123'; END IF;
		RETURN n;
	END $$});
$id = run_task($node, request => 'SELECT collide(3)');
is(task($node, $id, 'state, attempt, failed, response'), 'DONE|1|0|3', 'a rewritten deadlock: begun anew');
$id = run_task($node, request => 'SELECT collide(100)');
is(task($node, $id, 'state, sqlstate, error'), 'FAIL|40P01|a deadlock that spans several servers', 'a rewritten error is the one that is kept');
sql(q{ALTER SYSTEM SET log_min_messages = 'fatal'; SELECT pg_reload_conf()});
$id = undef;
wait_until($node, q{SELECT current_setting('log_min_messages') = 'fatal'});
$id = run_task($node, request => 'SELECT collide(1000)', retry => 0);
is(task($node, $id, 'state, sqlstate, error'), 'FAIL|XX123|another server says no', 'what is not logged is not rewritten');
sql(q{ALTER SYSTEM RESET log_min_messages; SELECT pg_reload_conf()});

# postgres_fdw commits on the other server just before the commit here: when that fails, the other has its effect.
my $host = $node->host;
my $port = $node->port;
sql(qq{
	CREATE EXTENSION postgres_fdw;
	CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres');
	CREATE USER MAPPING FOR CURRENT_USER SERVER other;
	CREATE SEQUENCE turns;
	CREATE TABLE there (n int);
	CREATE TABLE here (n int);
	CREATE FOREIGN TABLE far (n int) SERVER other OPTIONS (table_name 'there')});
$id = run_task($node, request => q{INSERT INTO far VALUES (1); INSERT INTO here VALUES (1); SELECT fail_commits((nextval('turns') = 1)::int)});
is(task($node, $id, 'state, sqlstate'), 'DONE|', 'a commit fails: begun anew') or diag task($node, $id, '*');
is(sql('SELECT (SELECT count(*) FROM here), (SELECT count(*) FROM there)'), '1|2', 'one effect here, and two there');

done_testing();
