# Every function of the extension, called where what it needs is missing: a server that has not
# preloaded the library, one that has but whose database has no extension, a standby, single-user
# mode, the server that pg_upgrade starts.  Each call returns, or fails with an error of its own;
# none crashes the server.  The functions are taken from the catalog.  A TAP test because it starts
# servers in all these ways.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 1 });

# Two plausible values for arguments of each type.
my %values = (
	oid => [ '10', '0' ],
	int4 => [ '1', '-5' ],
	int8 => [ '1', '4000000000' ],
	bool => [ 'true', 'false' ],
	text => [ q{'default'}, q{'* * * * *'} ],
	name => [ q{'postgres'}, q{'app'} ],
	interval => [ q{'10 ms'}, q{'1 day'} ],
	timestamptz => [ 'now()', q{'infinity'} ],
	jsonb => [ q{'{}'}, q{'[1]'} ],
	float8 => [ '1', '-1' ],
	xid => [ q{'3'}, q{'1000'} ],
	_int8 => [ q{'{1}'}, q{'{1,2,3}'} ],
	_text => [ q{'{q}'}, q{'{a,b,NULL}'} ]);

# The functions of the extension: name, kind, whether a trigger, how C knows it, types, definition.
sub functions
{
	return map { [ split /\|/ ] } split /\n/, sql(q{
		SELECT p.proname, p.prokind, p.prorettype = 'trigger'::regtype, p.prosrc, p.proretset,
			(SELECT string_agg(t.typname, ',' ORDER BY n)
			 FROM unnest(p.proargtypes) WITH ORDINALITY AS a (oid, n) JOIN pg_type AS t USING (oid))
		FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'pg_task' AND d.deptype = 'e' AND p.prolang =
			(SELECT oid FROM pg_language WHERE lanname = 'c')
			AND p.prorettype <> 'language_handler'::regtype
		ORDER BY p.oid});
}

# Lists of arguments for these types: all NULL, all given in two ways, and one NULL each.
sub argument_lists
{
	my @types = split /,/, $_[0] // '';
	my @given = map { my $n = $_; [ map { $values{$_}[$n] // die "a value of type $_?" } @types ] }
	  0, 1;
	my @lists = ([ map { 'NULL' } @types ], @given);

	for my $i (0 .. $#types)
	{
		push @lists, [ @{ $given[0] } ];
		$lists[-1][$i] = 'NULL';
	}
	return map { my $list = $_;
		join ', ', map { "$list->[$_]::" . ($types[$_] =~ s/^_(.*)/$1\[\]/r) } 0 .. $#types } @lists;
}

# Statements that call a function that is no trigger: by itself, and in a function.
sub calls
{
	my ($name, $kind, $arguments) = @_;
	my $call = "$name($arguments)";
	my $inner = $kind eq 'p' ? "CALL $call" : "PERFORM * FROM $call";

	return ($kind eq 'p' ? "CALL $call" : "SELECT * FROM $call",
		"DO \$\$ BEGIN $inner; END \$\$",
		"DO \$\$ BEGIN $inner; EXCEPTION WHEN query_canceled THEN RAISE; END \$\$");
}

# Statements that fire a trigger function in all ways there are, on a table with the columns of a
# task table and on another one; and that call it as if it were no trigger.
sub firings
{
	my ($name, $symbol) = @_;
	my @statements;

	for my $table ('like_task', 'other')
	{
		for my $when (
			'BEFORE INSERT OR UPDATE OR DELETE ON % FOR EACH ROW',
			'AFTER INSERT OR UPDATE OR DELETE ON % FOR EACH ROW',
			'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON % FOR EACH STATEMENT',
			'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON % FOR EACH STATEMENT')
		{
			push @statements,
			  'CREATE TRIGGER fires ' . ($when =~ s/%/$table/r) . " EXECUTE FUNCTION $name()",
			  $table eq 'other'
			  ? 'INSERT INTO other VALUES (1), (NULL)'
			  : q{INSERT INTO like_task (request) VALUES ('SELECT 1')},
			  $table eq 'other' ? 'UPDATE other SET a = a + 1' : q{UPDATE like_task SET dt = now()},
			  "DELETE FROM $table", "TRUNCATE $table", "DROP TRIGGER fires ON $table";
		}
		push @statements, "INSERT INTO $table DEFAULT VALUES";
	}
	return (@statements, "SELECT pg_temp.bare_$symbol(1)");
}

# What is done with the task table itself, as a role that sees its own rows only.
my @table_use = (
	'SET SESSION AUTHORIZATION app',
	q{INSERT INTO task (request, dt) VALUES ('SELECT 2', 'infinity')},
	q{INSERT INTO task (request, dt, after, cron, queue)
		VALUES ('SELECT 2', 'infinity', '{1}', '* * * * *', 'q')},
	'UPDATE task SET priority = 3', q{UPDATE task SET state = 'STOP'}, 'SELECT count(*) FROM task',
	'DELETE FROM task', 'RESET SESSION AUTHORIZATION',
	q{INSERT INTO task_queue (queue, max) VALUES ('q', 1) ON CONFLICT DO NOTHING},
	'UPDATE task_queue SET max = 2', 'DELETE FROM task_queue',
	q{BEGIN; INSERT INTO task (request, after) VALUES ('SELECT 3', '{1}'); SAVEPOINT s;
		DELETE FROM task; ROLLBACK TO s; TRUNCATE task; ROLLBACK},
	q{ALTER ROLE app SET pg_task.timeout = '1 min'}, q{ALTER ROLE app RESET ALL},
	q{CREATE DATABASE made TEMPLATE template0}, 'DROP DATABASE made');

# All statements, one list for each session.  "loads": with LOAD before.
sub sessions
{
	my ($loads) = @_;
	my @sessions;

	for (functions())
	{
		my ($name, $kind, $is_trigger, $symbol, $set, $types) = @$_;
		my @statements = $loads ? q{LOAD 'pg_task'} : ();

		push @statements, q{SET statement_timeout = '200 ms'};
		push @statements, "CREATE FUNCTION pg_temp.bare_$symbol(int) RETURNS int LANGUAGE c"
		  . " AS '\$libdir/pg_task', '$symbol'", firings($name, $symbol)
		  if $is_trigger eq 't';
		push @statements, map { calls($name, $kind, $_) } argument_lists($types)
		  if $is_trigger ne 't';
		push @sessions, \@statements;
	}
	return (@sessions, [ $loads ? q{LOAD 'pg_task'} : (), @table_use ]);
}

# Errors that say what is wrong with a call: of the state, of arguments, rights, triggers; a
# timeout; a read-only transaction; names that are not there.
my $said = qr/^(?:55000|22...|23...|25001|25006|25P0.|28000|39P01|3[BDF]...|0A000|42...|57014
	|55P0.)$/x;

# Checks what psql has said: no crash, no internal error, a hint where something is missing.
sub check_answers
{
	my ($what, $output, $count) = @_;
	my @internal = grep { $_ !~ $said } $output =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5}):/g;
	my @blocks = split /^(?=(?:psql\S*\s+)?(?:ERROR|WARNING|NOTICE):)/m, $output;
	my @no_hint = grep { /ERROR:\s+55000: .*not running/ && !/^HINT:/m } @blocks;

	is(scalar(() = $output =~ /^answered$/mg), $count, "$what: each statement is answered");
	is_deeply(\@internal, [], "$what: errors say what is wrong");
	is_deeply(\@no_hint, [], "$what: and what is missing");
}

# The sessions as they were found on the first server, with the extension.
my %sessions = map { $_ => [ sessions($_) ] } 0, 1;

# Runs all sessions on a server that accepts connections.
sub run_sessions
{
	my ($what, $server, $db, $loads) = @_;
	my $position = log_position($server);
	my @sessions = @{ $sessions{$loads} };
	my $script = join '', map { "\\c\n" . join('',
		map { "$_;\n\\echo answered\n" } @$_) } @sessions;
	my $count = 0;
	my ($rc, $out, $err);

	$count += @$_ for @sessions;
	($rc, $out, $err) = $server->psql($db, $script, on_error_stop => 0,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	check_answers($what, "$out\n$err", $count);
	unlike(log_since($server, $position), qr/was terminated by signal|PANIC:|TRAP:/,
		"$what: the server goes on");
	return "$out\n$err";
}

my $definitions = sql(q{
	SELECT string_agg(pg_get_functiondef(p.oid) || CASE WHEN p.prorettype = 'language_handler'::regtype
		THEN format('; CREATE LANGUAGE %I HANDLER pg_catalog.%1$I', p.proname) ELSE '' END,
		';' || chr(10) ORDER BY p.oid)
	FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'pg_task' AND d.deptype = 'e'});

sql(q{
	CREATE ROLE app LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task, task_queue TO app;
	CREATE TABLE like_task (LIKE task INCLUDING ALL);
	CREATE TABLE other (a int);
	INSERT INTO task (request, dt) SELECT 'SELECT 1', 'infinity' FROM generate_series(1, 3);
	INSERT INTO task_queue (queue, max) VALUES ('default', 5);
	CREATE DATABASE bare;
	ALTER DATABASE bare SET pg_task.enabled = off});

subtest 'a server that runs tasks' => sub {
	run_sessions('as ever', $node, 'postgres', 0);
};

subtest 'the extension is missing' => sub {
	sql_in('bare', "SET client_min_messages = error; DROP EXTENSION IF EXISTS pg_task CASCADE;"
		. " $definitions; CREATE TABLE other (a int); CREATE TABLE like_task (request text)");
	run_sessions('no extension', $node, 'bare', 0);
};

subtest 'a standby' => sub {
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	run_sessions('standby', $standby, 'postgres', 0);
	$standby->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$standby->restart;
	run_sessions('standby without the library', $standby, 'postgres', 1);
	$standby->stop;
};

subtest 'the library is not preloaded' => sub {
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$node->restart;
	for my $loads (0, 1)
	{
		my $answers = run_sessions($loads ? 'after LOAD' : 'not preloaded', $node, 'postgres',
			$loads);

		like($answers, qr/55000: pg_task is not running on this server\n.*HINT:/s, 'it says so');
	}
	is(sql('SELECT level, problem FROM pg_task_health()'),
		'critical|pg_task serves no database of this server', 'pg_task_health says so');
	# the setting is not defined there, so nobody has checked it
	is(sql(q{SET pg_task.meta = '{"a":1}';
		INSERT INTO task (request) VALUES ('SELECT 1') RETURNING meta}), '{"a": 1}',
		'an INSERT has the labels of the session');
	is(sqlstate_of('postgres', q{SET pg_task.meta = 'no JSON';
		INSERT INTO task (request) VALUES ('SELECT 1')}), '22P02', '... or is refused');
	for my $call (q{SELECT pg_task_wait('{1}')}, q{CALL pg_task_wait_for('{1}')},
		'CALL pg_task_drain()')
	{
		like(error_of('app', $call), qr/pg_task is not running on this server\nHINT:  Add pg_task to/,
			"$call by anybody");
	}
};

# In single-user mode each line is a statement.
sub run_single
{
	my ($what) = @_;
	my @statements = map { my $s = $_; $s =~ s/\s+/ /g; $s } map { @$_ } @{ $sessions{0} };
	# their timeout is not for the answer
	my $input = join "\n", (map { ($_, 'ROLLBACK', 'RESET statement_timeout',
		q{SELECT 'answered' AS answered}, q{SET statement_timeout = '200 ms'}) } @statements), '';
	my ($out, $err);

	IPC::Run::run([ 'postgres', '--single', '-F', '-c', 'log_error_verbosity=verbose',
			'-c', 'log_destination=stderr', '-c', 'logging_collector=off', '-c',
				'exit_on_error=off',
			'-D', $node->data_dir, 'postgres' ], '<', \$input, '>', \$out, '2>', \$err);
	my $status = $?;
	is($status, 0, "$what: it ends in order");
	is(scalar(() = $out =~ /answered = "answered"/g), scalar @statements,
		"$what: each statement is answered");
	my @internal = grep { $_ !~ $said } $err =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5}):/g;
	is_deeply(\@internal, [], "$what: errors say what is wrong");
}

subtest 'single-user mode' => sub {
	$node->stop;
	run_single('not preloaded');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_task'");
	run_single('preloaded');
};

subtest 'the server that pg_upgrade starts' => sub {
	is(system('pg_ctl', '-s', '-w', '-D', $node->data_dir, '-l', $node->logfile,
			'-o', "-b -p " . $node->port . " -k " . $node->host, 'start'), 0, 'it starts');
	run_sessions('binary upgrade', $node, 'postgres', 1);
	is(system('pg_ctl', '-s', '-w', '-D', $node->data_dir, 'stop'), 0, 'it stops');
};

# The rows are as they were, and run.
subtest 'with all that is needed again' => sub {
	$node->start;
	wait_until($node, q{SELECT relid IS NOT NULL FROM pg_stat_task_scheduler()
		WHERE datname = 'postgres'});
	sql(q{SELECT pg_task_change_owner('postgres')});
	is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE', 'a task runs');
};

done_testing();
