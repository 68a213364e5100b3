# A task leaves nothing behind for the next task in its process.  The tests come in pairs: one task
# changes the session, the next one inspects it; a third one has inspected it before, with the same
# result.  In one session of psql the same inspection after the same change sees a difference, which
# proves that it would find what is left.  A TAP test because it matters which process runs a task.
use strict;
use warnings;
use File::Copy;
use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 1\nmax_prepared_transactions = 2");
my $major = substr(sql('SHOW server_version_num'), 0, 2);

sql(q{
	CREATE ROLE plain LOGIN;
	CREATE TABLE made (a int PRIMARY KEY);
	CREATE SCHEMA aside;
	CREATE TABLE aside.made (a int);
	GRANT USAGE ON SCHEMA aside TO plain;
	CREATE SEQUENCE counter;
	CREATE SEQUENCE cached CACHE 100;
	CREATE FUNCTION now_of(text) RETURNS text LANGUAGE sql AS $$ SELECT current_setting($1,
	true) $$;
	CREATE TABLE guarded (a int);
	INSERT INTO guarded VALUES (1), (2);
	GRANT SELECT ON guarded TO plain;
	ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
	CREATE POLICY first ON guarded USING (a = 1);
	CREATE FUNCTION count_guarded() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN count(*)
	FROM guarded; END $$;
	CREATE TABLE referring (a int REFERENCES made DEFERRABLE);
	CREATE PROCEDURE soils() LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE brief (a int);
	SET work_mem = '1MB'; COMMIT; PERFORM pg_advisory_lock(3); END $$;
	CREATE EXTENSION dblink;
	CREATE EXTENSION postgres_fdw});
my $here = 'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres';
sql("CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '" . $node->host
	. "', port '" . $node->port . "', dbname 'postgres');
	CREATE USER MAPPING FOR CURRENT_USER SERVER far; "
	. "CREATE FOREIGN TABLE there (a int) SERVER far OPTIONS (table_name 'made')");
my $seeded = (split /\n/, sql('SELECT setseed(0.5); SELECT random()'))[-1];

my $temporary = q{SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()};
my $advisory = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
	AND pid = pg_backend_pid()};
my $roles = q{SELECT current_user, session_user, current_setting('is_superuser')};

# Each pair: the request that changes the session, and the one that inspects it.  Options:
#   fresh   the change cannot be reset, so the next task has a new process
#   unseen  psql does not see the change either, or not in this way
#   columns other columns of the task that makes the change
my @pairs = (
	# Settings.
	["SET work_mem = '1MB'", 'SHOW work_mem'],
	["SET work_mem = '1MB'; SELECT 1/0", 'SHOW work_mem', unseen => 1],
	["SET work_mem = '1MB'; COMMIT; SELECT 1/0", 'SHOW work_mem'],
	["BEGIN; SET work_mem = '1MB'; COMMIT", 'SHOW work_mem'],
	["SET LOCAL work_mem = '1MB'", 'SHOW work_mem', unseen => 1],
	["SELECT set_config('work_mem', '1MB', false)", 'SHOW work_mem'],
	["DO \$\$ BEGIN PERFORM set_config('work_mem', '1MB', false); END \$\$", 'SHOW work_mem'],
	["SET my.thing = 'x'", "SELECT coalesce(current_setting('my.thing', true), '')"],
	["SELECT set_config('my.other', 'x', false)", "SELECT coalesce(now_of('my.other'), '')"],
	['SET search_path = aside', 'SELECT current_schemas(true)'],
	["SET search_path = aside; SELECT count(*) FROM made", "SELECT 'made'::regclass::oid"],
	["SET TimeZone = 'Asia/Tokyo'", "SELECT '2024-01-01 00:00+00'::timestamptz"],
	["SET DateStyle = 'German'", "SELECT '2024-01-02'::date"],
	["SET IntervalStyle = 'sql_standard'", "SELECT '1 day 2 hours'::interval"],
	["SET bytea_output = 'escape'", "SELECT '\\x00ff'::bytea"],
	['SET extra_float_digits = 0', "SELECT 0.1::float8 + 0.2"],
	['SET standard_conforming_strings = off; SET escape_string_warning = off', "SELECT 'a\\nb'"],
	['SET client_min_messages = error', "DO \$\$ BEGIN RAISE NOTICE 'x'; END \$\$"],
	["SET client_encoding = latin1",
	"DO \$\$ BEGIN RAISE NOTICE 'größer'; END \$\$; SHOW client_encoding"],
	['SET application_name = mine',
	"SELECT current_setting('application_name') ~ '^(pg_task|session_reset)'"],
	['SET session_replication_role = replica', 'SHOW session_replication_role'],
	['SET default_transaction_read_only = on', 'CREATE TABLE aside.x (a int); DROP TABLE aside.x'],
	["SET default_transaction_isolation = 'serializable'", 'SHOW transaction_isolation'],
	['SET default_transaction_deferrable = on', 'SHOW transaction_deferrable'],
	['SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY',
	'SHOW transaction_isolation; SHOW transaction_read_only'],
	["SET statement_timeout = '50ms'", 'SELECT pg_sleep(0.1)'],
	# it counts until the outcome is written
	["SET transaction_timeout = '2s'", 'SELECT pg_sleep(2.1)', from => 17],
	['SELECT 1', 'SELECT pg_sleep(0.1)', columns => { timeout => '50 ms' }, unseen => 1],
	["SET row_security = off", 'SHOW row_security'],
	["SET lc_numeric = 'C'; SET lc_monetary = 'C'; SET default_tablespace = 'pg_default'",
	'SHOW lc_numeric; SHOW lc_monetary; SHOW default_tablespace'],
	["SET plpgsql.extra_errors = 'all'", 'SHOW plpgsql.extra_errors'],
	['SET pg_task.format = json', 'SELECT 1', unseen => 1],
	['SET pg_task.format = json', 'SHOW pg_task.format'],
	["SET pg_task.response_limit = 64", "SELECT repeat('x', 100)", unseen => 1],
	["SET pg_task.timeout = '50ms'", 'SELECT pg_sleep(0.1)', unseen => 1],
	['DISCARD ALL',
	"SELECT current_setting('pg_task.id', true) ~ '^[0-9]*\$', "
	. "current_setting('application_name') ~ "
	. "'^(pg_task|session_reset)'", unseen => 1],
	# every setting that can be toggled
	["DO \$\$ DECLARE s record; BEGIN
		FOR s IN SELECT name, vartype, setting, enumvals FROM pg_settings "
		. "WHERE context IN ('user', 'superuser') AND vartype IN ('bool', 'enum')
				AND name NOT IN ('exit_on_error', 'transaction_read_only', "
				. "'transaction_deferrable', "
				. "'transaction_isolation', 'backtrace_on_internal_error')
				AND name !~ '^debug_|^log_|^trace_|jit' LOOP
			BEGIN PERFORM set_config(s.name, CASE WHEN s.vartype = 'enum' THEN (SELECT min(v) "
			. "FROM unnest(s.enumvals) AS v WHERE v <> s.setting)
				WHEN s.setting = 'on' THEN 'off' ELSE 'on' END, false);
			EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END \$\$",
		"SELECT md5(string_agg(concat(name, setting, source), ',' ORDER BY name COLLATE \"C\")) "
		. "FROM pg_settings WHERE name NOT IN ('application_name', 'pg_task.id')"],

	# Roles.
	['SET ROLE plain', $roles],
	['SET ROLE plain; SELECT 1/0', $roles, unseen => 1],
	['SET ROLE plain; COMMIT; SELECT 1/0', $roles],
	["SELECT set_config('role', 'plain', false)", $roles],
	['SET LOCAL ROLE plain', $roles, unseen => 1],
	['SET SESSION AUTHORIZATION plain', $roles],
	["SELECT set_config('session_authorization', 'plain', false)", $roles],
	['SET SESSION AUTHORIZATION plain; SET ROLE plain; SELECT 1/0', $roles, unseen => 1],
	['SET SESSION AUTHORIZATION plain; COMMIT; SELECT 1/0', $roles],
	['SET ROLE plain; SELECT count_guarded()', 'SELECT count_guarded()'],

	# Transactions.
	['SET TRANSACTION READ ONLY',
		'SHOW transaction_read_only; CREATE TABLE aside.x (a int); DROP TABLE aside.x',
		unseen => 1],
	['SET TRANSACTION ISOLATION LEVEL SERIALIZABLE', 'SHOW transaction_isolation', unseen => 1],
	['BEGIN; INSERT INTO made VALUES (1)', 'SELECT count(*) FROM made'],
	['BEGIN; SELECT 1/0', 'SELECT 1'],
	['BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY',
	'SHOW transaction_isolation; SHOW transaction_read_only'],
	['BEGIN; SAVEPOINT a; INSERT INTO made VALUES (1); SAVEPOINT b', 'SELECT count(*) FROM made'],
	['BEGIN; COMMIT AND CHAIN; INSERT INTO made VALUES (1)', 'SELECT count(*) FROM made'],
	['INSERT INTO made VALUES (1); SELECT 1/0', 'SELECT count(*) FROM made', unseen => 1],
	['SET CONSTRAINTS ALL DEFERRED', 'INSERT INTO referring VALUES (1); SELECT 1', unseen => 1],
	['BEGIN; SET CONSTRAINTS ALL DEFERRED', 'INSERT INTO referring VALUES (1); SELECT 1'],

	# Temporary objects.
	['CREATE TEMP TABLE brief (a int)', $temporary],
	['CREATE TEMP TABLE made (b int)', 'SELECT count(b) FROM made'],
	['CREATE TEMP TABLE brief (a int); COMMIT; SELECT 1/0', $temporary],
	['SELECT 1 AS a INTO TEMP brief', $temporary],
	['CREATE TEMP VIEW brief AS SELECT 1 AS a', $temporary],
	['CREATE TEMP SEQUENCE brief', $temporary],
	['CREATE FUNCTION pg_temp.brief() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$',
	"SELECT to_regprocedure('pg_temp.brief()') IS NULL"],
	['CREATE TYPE pg_temp.brief AS (a int)', "SELECT to_regtype('pg_temp.brief') IS NULL"],
	['CREATE TEMP TABLE brief (a int) ON COMMIT DELETE ROWS; INSERT INTO brief VALUES (1)',
	$temporary],
	["DO 'BEGIN CREATE TEMP TABLE brief (a int); COMMIT; END'", $temporary],
	['CREATE TEMP TABLE brief (a int) ON COMMIT DROP', $temporary, unseen => 1],

	# What a session caches.
	['PREPARE p AS SELECT 1', 'SELECT count(*) FROM pg_prepared_statements'],
	['PREPARE p AS SELECT 1; SELECT 1/0', 'EXECUTE p'],
	['DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 1000)',
	'SELECT count(*) FROM pg_cursors'],
	['BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT', 'FETCH c'],
	['BEGIN; DECLARE c CURSOR FOR SELECT 1', 'FETCH c'],
	['SELECT pg_advisory_lock(1), pg_advisory_lock(1), pg_advisory_lock_shared(2, 3)', $advisory],
	['SELECT pg_advisory_lock(1); SELECT 1/0', $advisory],
	['CALL soils()', "$temporary; $advisory; SHOW work_mem"],
	['LISTEN channel', 'SELECT count(*) FROM pg_listening_channels()'],
	["SELECT nextval('counter')", "SELECT currval('counter')"],
	["SELECT nextval('counter')", 'SELECT lastval()'],
	["SELECT nextval('cached')", "SELECT nextval('cached') % 100"],
	['SELECT setseed(0.5)', "SELECT random() = $seeded"],
	['SELECT pg_cancel_backend(pg_backend_pid())', 'SELECT pg_sleep(0.1)', unseen => 1],
	["CREATE FUNCTION pg_temp.deep(n int) RETURNS int LANGUAGE plpgsql "
	. "AS 'BEGIN RETURN pg_temp.deep(n + 1); END'; SELECT pg_temp.deep(1)", 'SELECT 1',
	unseen => 1],

	# What only a new process can get rid of.
	["SELECT dblink_connect('far', '$here')", 'SELECT dblink_get_connections()', fresh => 1],
	["LOAD 'auto_explain'",
	"SELECT count(*) FROM pg_settings WHERE name = 'auto_explain.log_min_duration'", fresh => 1],
	["LOAD 'auto_explain'; SELECT 1/0",
	"SELECT count(*) FROM pg_settings WHERE name = 'auto_explain.log_min_duration'", fresh => 1],
	['SELECT count(*) FROM there', 'SELECT count(*) FROM postgres_fdw_get_connections()',
	fresh => 1],
);
@pairs = grep { my (undef, undef, %known) = @$_; ($known{from} // 0) <= $major } @pairs;

# Libraries from another folder than the server's own.
my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
my $folder = $node->basedir;
copy("$libdir/$_.so", "$folder/$_.so") or die "$folder/$_.so: $!" for qw(auto_explain dblink);
sql(qq{
	CREATE FUNCTION far_connect(text, text) RETURNS text STRICT LANGUAGE c
	AS '$folder/dblink', 'dblink_connect';
	CREATE FUNCTION far_connections() RETURNS text[] LANGUAGE c
	AS '$folder/dblink', 'dblink_get_connections'});
push @pairs,
	["LOAD '$folder/auto_explain'",
		"SELECT count(*) FROM pg_settings WHERE name = 'auto_explain.log_min_duration'",
		fresh => 1],
  ["SELECT far_connect('far', '$here')", 'SELECT far_connections()', fresh => 1];

# Languages with state of their own, if they are installed.
if (sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'plperl'}))
{
	sql('CREATE EXTENSION plperl');
	push @pairs,
		['DO LANGUAGE plperl $$ $_SHARED{thing} = 1 $$',
		'DO LANGUAGE plperl $$ elog(NOTICE, exists $_SHARED{thing} ? "there" : "not there") $$',
		fresh => 1];
}
else
{
	note('PL/Perl is not installed');
}

# The state, the code, the response and the notices of tasks, and their processes.
sub outcomes
{
	my $sql = '';
	my @outcomes;

	for (@_)
	{
		my %column = %$_;
		my @names = sort keys %column;

		$sql .= 'INSERT INTO task (' . join(', ', @names) . ') VALUES (' . join(', ',
			map { PgTask::literal($column{$_}) } @names) . ") RETURNING id;\n";
	}
	my @ids = grep { /^\d/ } split /\n/, sql("BEGIN; $sql COMMIT");
	wait_until($node,
		q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK') AND dt <= now())});
	for my $line (split /\n/,
		sql("SELECT pid, encode(convert_to(concat_ws(E'\\n', state || coalesce(' ' || sqlstate, "
		. "''), "
		. "response, notice), 'UTF8'), 'hex'), attempt
			FROM task WHERE id BETWEEN $ids[0] AND $ids[-1] ORDER BY id"))
	{
		my ($pid, $outcome, $attempt) = split /\|/, $line;

		push @outcomes, { pid => $pid, outcome => pack('H*', $outcome), attempt => $attempt };
	}
	return @outcomes;
}

sub psql
{
	my $output = '';

	IPC::Run::run([ 'psql', '-XAtq', '-F', "\t", '-d', $node->connstr('postgres'),
		map { ('-c', $_) } @_ ], '<', \'', '>&', \$output);
	return $output;
}

# All at once, so that they run in the same process, one after another.
subtest 'one task after another' => sub {
	my @ran = outcomes(map { my ($soil, $look, %known) = @$_; ({ request => $look },
		{ request => $soil, %{ $known{columns} || {} } }, { request => $look }) } @pairs);
	my %unsoiled;
	for (@pairs)
	{
		my ($soil, $look, %known) = @$_;
		my ($before, $soiled, $after) = splice @ran, 0, 3;
		my $name = (length $soil > 100 ? substr($soil, 0, 100) . '...' : $soil) =~ s/\s+/ /gr;

		is($after->{outcome}, $before->{outcome}, "$name / $look");
		if ($known{fresh})
		{
			isnt($after->{pid}, $soiled->{pid}, "$name: a new process");
		}
		else
		{
			is($after->{pid}, $soiled->{pid}, "$name: the same process");
		}
		is("$soiled->{attempt} $after->{attempt}", '1 1', "$name: each has run once");
		next if $known{unseen};
		$unsoiled{$look} //= psql($look);
		isnt(psql($soil, $look), $unsoiled{$look}, "$name: psql sees the difference");
	}
};

# The same for tasks that were assigned to an executor already, behind a task that makes it exit.
subtest 'tasks that were claimed already' => sub {
	for (grep { my (undef, undef, %known) = @$_; $known{fresh} } @pairs)
	{
		my ($soil, $look) = @$_;
		my @line = outcomes(({ request => $look }) x 200, { request => $soil },
			({ request => $look }) x 50);
		my @before = splice @line, 0, 200;
		my $soiled = shift @line;

		is(scalar(grep { $_->{outcome} ne $before[0]{outcome} } @before, @line), 0,
			"$soil: no later task sees it");
		is(scalar(grep { $_->{pid} == $soiled->{pid} } @line), 0,
			"$soil: no later task has its process");
		is(scalar(grep { $_->{attempt} != 1 } @before, $soiled, @line), 0,
			"$soil: each task has run once");
	}
};

# When all tasks have ended, the executor has no transaction, no snapshot and no locks.
subtest 'no transaction, snapshot or lock is left' => sub {
	run_task($node, request => 'SELECT count(*) FROM made');
	wait_until($node,
		q{SELECT (count(*), count(xact_start), count(backend_xmin), min(state)) = (1, 0, 0, 'idle')
		AND NOT EXISTS (SELECT FROM pg_locks WHERE pid = min(a.pid)) FROM pg_stat_activity AS a
		WHERE backend_type = 'pg_task executor'});
	pass('the executor is idle');
};

# Changed settings of roles and databases apply to the next task, even if it is assigned already;
# and the same when they are reset.
subtest 'changed settings of roles and databases' => sub {
	my @changes = (
		["ALTER ROLE CURRENT_USER SET work_mem = '5MB'", '5MB'],
		["ALTER DATABASE postgres SET work_mem = '6MB'", '5MB'],
		["ALTER ROLE CURRENT_USER IN DATABASE postgres SET work_mem = '7MB'", '7MB'],
		['ALTER ROLE CURRENT_USER IN DATABASE postgres RESET work_mem', '5MB'],
		['ALTER ROLE CURRENT_USER RESET ALL', '6MB'],
		["ALTER ROLE ALL SET work_mem = '8MB'", '6MB'],
		['ALTER DATABASE postgres RESET ALL', '8MB'],
		["DO 'BEGIN ALTER ROLE ALL SET work_mem = ''9MB''; END'", '9MB'],
		["BEGIN; ALTER ROLE ALL SET work_mem = '10MB'; ROLLBACK", '9MB'],
		["BEGIN; ALTER ROLE ALL SET work_mem = '11MB'; PREPARE TRANSACTION 'later'", '9MB'],
		["ROLLBACK PREPARED 'later'", '9MB'],
		['ALTER ROLE ALL RESET work_mem', '4MB']);
	my @shown = outcomes(({ request => 'SHOW work_mem' }) x 200,
		map { ({ request => $_->[0] }, ({ request => 'SHOW work_mem' }) x 10) } @changes);
	splice @shown, 0, 200;
	for (@changes)
	{
		my ($changed, @after) = splice @shown, 0, 11;

		is(join(',', map { $_->{outcome} =~ s/DONE\n//r } @after), join(',', ($_->[1]) x 10),
			"claimed behind $_->[0]");
		is(join(',', map { $_->{attempt} } $changed, @after), join(',', (1) x 11),
			'each task has run once');
	}
	for my $megabytes (12 .. 16)
	{
		sql("ALTER ROLE CURRENT_USER SET work_mem = '${megabytes}MB'");
		my ($shown) = outcomes({ request => 'SHOW work_mem' });
		is($shown->{outcome}, "DONE\n${megabytes}MB", 'changed by another session');
	}
	sql('ALTER ROLE CURRENT_USER RESET ALL');
};

# Whatever the settings of a role, the outcome is written and the next run planned.
subtest 'a role with strange settings' => sub {
	sql(q{
		CREATE ROLE strange LOGIN;
		ALTER ROLE strange SET default_transaction_read_only = on;
		ALTER ROLE strange SET default_transaction_deferrable = on;
		ALTER ROLE strange SET default_transaction_isolation = 'serializable';
		ALTER ROLE strange SET search_path = '';
		ALTER ROLE strange SET session_replication_role = replica;
		ALTER ROLE strange SET DateStyle = 'SQL, DMY';
		ALTER ROLE strange SET IntervalStyle = 'sql_standard';
		ALTER ROLE strange SET TimeZone = 'Asia/Kathmandu';
		ALTER ROLE strange SET bytea_output = 'escape';
		ALTER ROLE strange SET client_encoding = 'latin1';
		ALTER ROLE strange SET row_security = off;
		ALTER ROLE strange SET array_nulls = off;
		ALTER ROLE strange SET transform_null_equals = on;
		ALTER ROLE strange SET quote_all_identifiers = on;
		ALTER ROLE strange SET plan_cache_mode = force_generic_plan;
		ALTER ROLE strange SET enable_indexscan = off;
		ALTER ROLE strange SET force_parallel = on}
		=~ s/force_parallel/$major >= 16 ? 'debug_parallel_query' : 'force_parallel_mode'/er);
	my ($fine, $writes, $raises,
		$failed) = outcomes(map { { role => 'strange',
		%$_ } } { request => "SELECT 'größer', 1 + 1" },
		{ request => 'CREATE TABLE public.x (a int)' },
		{ request => "DO \$\$ BEGIN RAISE NOTICE 'größer'; END \$\$" },
		{ request => "SELECT '日本'::int" });
	is($fine->{outcome}, "DONE\n?column?::text\t?column?::int4\ngrößer\t2",
		'strange settings: a result');
	is($writes->{outcome},
		"FAIL 25006\nERROR:  cannot execute CREATE TABLE in a read-only transaction",
		'strange settings: read only');
	is($raises->{outcome}, "DONE\nDO\nNOTICE:  größer", 'strange settings: a notice');
	like($failed->{outcome},
		qr/^FAIL\ 22P02\nERROR:\ \ invalid\ input\ syntax\ for\ type\ integer:\ "日本"
			\nLINE\ 1:\ SELECT\ '日本'::int/x,
		'strange settings: an error');
	outcomes({ role => 'strange', request => 'SELECT 1', dt => '2024-01-31 12:00+00',
		repeat => '100 years', queue => 'again' });
	is(sql(q{SELECT state, dt AT TIME ZONE 'UTC', repeat FROM task WHERE queue = 'again'
		ORDER BY id}),
		"DONE|2024-01-31 12:00:00|100 years\nPLAN|2124-01-31 12:00:00|100 years",
		'strange settings: it repeats');
	sql(q{DELETE FROM task WHERE queue = 'again'});
	insert_task($node, role => 'strange', request => 'SELECT 1', keep => '0', queue => 'again');
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE queue = 'again')});

	my $id = run_task($node, role => 'strange', request => q{SELECT current_setting('pg_task.id')});
	is(task($node, $id, 'response'), $id,
		'strange settings: it knows its id, wherever it is asked for');
};

# The row is locked for longer than the role's lock_timeout: the outcome still waits for the lock.
subtest 'lock_timeout and the outcome' => sub {
	make_gates($node);
	sql(q{CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET lock_timeout = '20ms'});
	my $id = insert_task($node, role => 'hasty', request => q{SELECT hold('hasty')});
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'hasty' AND query ~ 'hold'});
	my $session = open_session($node, 'postgres');
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	open_gate($node, 'hasty');
	wait_until($node,
		q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = 'hasty'
		AND wait_event_type IS DISTINCT FROM 'Lock')});
	# ten times the lock_timeout
	wait_until($node, q{SELECT bool_or(clock_timestamp() - waitstart > '0.2 s') FROM pg_locks
		JOIN pg_stat_activity USING (pid) WHERE usename = 'hasty' AND NOT granted});
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt'), 1, 'a lock_timeout of the role is not for the outcome');
};

# A temporary object whose definition is so long that it is toasted in the catalog.
subtest 'a temporary object with a long definition' => sub {
	my $long = join ' + ',
		map { "length('" . join('', map { chr(97 + int rand 26) } 1 .. 40) . "')" } 1 .. 300;
	for my $request ("CREATE TEMP TABLE brief (a int DEFAULT $long)",
		"CREATE TEMP TABLE brief (a int, CHECK (a < $long)); COMMIT; SELECT 1")
	{
		is(task($node, run_task($node, request => $request, role => 'plain'),
			'concat(state, error)'),
			'DONE', substr($request, 0, 44) . ': dropped');
	}
	is(task($node, run_task($node, request => $temporary, role => 'plain'), 'response'), 0,
		'no temporary object is left');
};

done_testing();
