# Whatever settings of the server a database, a role or postgresql.conf has: tasks behave the same
# in essence, the table is created once and stays unchanged, and no process of pg_task exits.
# There is a role for each setting, a database for each that cannot be combined with others, and one
# for as many as can; those are in postgresql.conf, too.  Each gets the same tasks, then all are
# checked.
# A TAP test because of these databases, roles and files.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main',
	conf => "max_worker_processes = 120\nmax_connections = 60\npg_task.max_executors = 12\n"
	  . "pg_task.idle_timeout = '200 ms'\nlog_statement = none\nlog_lock_waits = on\nfsync = off\n"
	  # CREATE DATABASE would end the workers of autovacuum, with a FATAL in the log
	  . "jit = on\nautovacuum = off");
my $version = sql('SHOW server_version_num');

# Each setting, and its effect besides leaving everything as it is: R, a task that writes fails; S,
# a long statement of a task is cancelled; T, a long transaction of a task ends its process.
my @settings = (
	['DateStyle', 'SQL, DMY'], ['DateStyle', 'German'], ['IntervalStyle', 'sql_standard'],
	['IntervalStyle', 'postgres_verbose'], ['IntervalStyle', 'iso_8601'], ['TimeZone',
		'Asia/Kathmandu'],
	['bytea_output', 'escape'], ['extra_float_digits', '-5'], ['standard_conforming_strings',
		'off'],
	['default_transaction_isolation', 'serializable'], ['default_transaction_isolation',
		'repeatable read'],
	['default_transaction_read_only', 'on', 'R'], ['default_transaction_deferrable', 'on'],
	['transaction_timeout', '5s', 'T', 170000], ['idle_in_transaction_session_timeout', '5ms'],
	['idle_session_timeout', '5ms'], ['statement_timeout', '5s', 'S'], ['lock_timeout', '2s'],
	['log_statement', 'all'], ['log_min_duration_statement', '0'], ['log_error_verbosity',
		'verbose'],
	['log_min_error_statement', 'panic'], ['client_min_messages', 'error'], ['plan_cache_mode',
		'force_custom_plan'],
	['plan_cache_mode', 'force_generic_plan'], ['default_table_access_method', 'heap'],
	['default_toast_compression', 'lz4'], ['quote_all_identifiers', 'on'], ['row_security', 'off'],
	['lc_messages', 'C'], ['transform_null_equals', 'on'], ['xmloption', 'document'],
		['array_nulls', 'off'],
	['enable_indexscan', 'off'], ['enable_nestloop', 'off'], ['jit_above_cost', '0'],
		['default_tablespace', 'elsewhere'],
	['session_replication_role', 'replica'], ['client_encoding', 'LATIN1'], ['synchronous_commit',
		'off'],
	['synchronous_commit', 'remote_apply'], ['exit_on_error', 'on'], ['search_path',
		'pg_catalog'],
	['max_parallel_workers_per_gather', '0'], [$version >= 160000
		? 'debug_parallel_query' : 'force_parallel_mode', 'on'],
	['restrict_nonsystem_relation_kind', 'view,foreign-table', '', 170000],
		['escape_string_warning', 'off'],
	['timezone_abbreviations', 'Australia'], ['check_function_bodies', 'off'], ['work_mem', '64kB'],
	['random_page_cost', '1000'], ['track_activities', 'off']);
# From 19 on, strings conform to the standard always.
@settings = grep { $_->[0] !~ /^(standard_conforming_strings|escape_string_warning)$/ } @settings
  if $version >= 190000;
@settings = grep { ($_->[3] // 0) <= $version } @settings;
# these cannot be combined with others
my %alone = map { $_ => 1 } qw(default_transaction_read_only transaction_timeout
  idle_session_timeout statement_timeout
  exit_on_error default_tablespace log_statement log_min_duration_statement
  client_encoding track_activities
  idle_in_transaction_session_timeout default_transaction_isolation
  enable_nestloop search_path lock_timeout);
# that of roles alone: to compile all that a scheduler asks of the catalogs takes half a minute
my %of_roles = (jit_above_cost => 1);

# The settings of each database, by their numbers: of those that can be combined, the first value of
# each name, then the second, and so on.
my (@sets, @shared, %values);
for my $number (0 .. $#settings)
{
	my $name = $settings[$number][0];

	if ($alone{$name}) { push @sets, [$number] }
	elsif (!$of_roles{$name}) { push @{ $shared[ $values{$name}++ ] }, $number }
}
push @sets, @shared;

# The tests' own sessions run without these settings.
$ENV{PGOPTIONS} = join ' ',
	map { "-c $_" } qw(client_min_messages=warning standard_conforming_strings=on search_path=public
  statement_timeout=0 lock_timeout=0 idle_session_timeout=0 idle_in_transaction_session_timeout=0
  exit_on_error=off
  default_transaction_read_only=off default_transaction_deferrable=off
  session_replication_role=origin row_security=on transform_null_equals=off
  client_encoding=UTF8 enable_nestloop=on),
  $version >= 170000 ? 'transaction_timeout=0' : ();

# The tasks of one database, or of one role: "name" is part of their queue, "role" runs them.
sub plan_tasks
{
	my ($db, $name, $role, $effect) = @_;
	my $long = 'SELECT length(' . literal('x' x 9000) . ')';
	my $tasks = qq{
		BEGIN;
		INSERT INTO task (queue, role, request) VALUES ('$name plain', '$role',
			'SELECT 40 + 2 AS x, NULL AS y, \$\$\xc3\xa9\$\$ AS z');
		INSERT INTO task (queue, role, request) VALUES ('$name long', '$role',
			'@{[ $long =~ s/'/''/gr ]}');
		INSERT INTO task (queue, role, request, max) SELECT '$name limit', '$role',
			'SELECT pg_sleep(0.02)', 1 FROM generate_series(1, 3);
		INSERT INTO task (queue, role, request, repeat) VALUES ('$name repeat', '$role', 'SELECT 1',
			'1 day 1 hour');
		INSERT INTO task (queue, role, request, retry, delay) VALUES ('$name retry', '$role',
			'SELECT 1/0', 1, '10 ms');
		INSERT INTO task (queue, role, request, dt, active) VALUES ('$name gone', '$role',
			'SELECT 1', now() - interval '1 hour', '1 s');
		INSERT INTO task (queue, role, request, key, dt) VALUES ('$name key', '$role', 'SELECT 1',
			'k', 'infinity') ON CONFLICT DO NOTHING;
		INSERT INTO task (queue, role, request, key, dt) VALUES ('$name key', '$role', 'SELECT 1',
			'k', 'infinity') ON CONFLICT DO NOTHING;
		INSERT INTO task (queue, role, request) VALUES ('$name write', '$role',
			'CREATE TEMP TABLE mine (a int); INSERT INTO public.written VALUES (\$\$$name\$\$)');
		INSERT INTO task (queue, role, request, dt) VALUES ('$name stop', '$role', 'SELECT 1',
			'infinity');
		UPDATE task SET state = 'STOP' WHERE queue = '$name stop';
		COMMIT;};

	$tasks .= "INSERT INTO task (queue, role, request)
		VALUES ('$name slow', '$role', 'SELECT pg_sleep(600)')" if $effect =~ /S|T/;
	sql_in($db, $tasks);
}

# Their outcomes: a line for each queue.
my $outcome = q{SELECT string_agg(line, E'\n' ORDER BY line) FROM (
	SELECT split_part(queue, ' ', 2) || ' ' || string_agg(state || attempt || coalesce(sqlstate,
		'') ||
		CASE WHEN queue ~ '(plain|long)$' THEN '=' || encode(convert_to(response, 'UTF8'),
			'base64') ELSE '' END, ',' ORDER BY id) AS line
	FROM public.task WHERE queue LIKE 'NAME %' GROUP BY queue) AS x};

sub named { my ($sql, $name) = @_; return $sql =~ s/NAME/$name/gr }

# The result of a query on the tasks of some names, one after another, when all have ended.  It
# fails when none has ended for a minute.
my $settle = q{SET default_transaction_isolation = 'read committed';
	DO $$ DECLARE
		left_before bigint;
		left_now bigint;
		steps int := 0;
	BEGIN
		WHILE steps < 6000 LOOP
			SELECT count(*) INTO left_now FROM public.task WHERE state = 'WORK' OR state = 'PLAN'
				AND dt < now() + interval '1 hour';
			EXIT WHEN left_now = 0;
			steps := CASE WHEN left_now < left_before THEN 0 ELSE steps + 1 END;
			left_before := left_now;
			PERFORM pg_sleep(0.01);
		END LOOP;
		IF left_now > 0 THEN RAISE 'the tasks do not end'; END IF;
	END $$;};
sub results
{
	my ($db, @queries) = @_;

	return split /^--$/m, sql_in($db, $settle . join("; SELECT '--';", @queries));
}

# One row for each: the result must be that without any setting, except for the effect of the
# setting.
sub expected
{
	my ($normal, $effect) = @_;

	$normal =~ s/^write DONE1$/write FAIL125006/m if $effect eq 'R';
	$normal =~ s/^stop/slow FAIL157014\nstop/m if $effect eq 'S';
	$normal =~ s/^stop/slow FAIL125P04\nstop/m if $effect eq 'T';
	return $normal;
}

# Databases: all are created first, with their settings, so that their schedulers start with them,
# and only once.
set_conf($node, 'pg_task.database = postgres');
wait_for_schedulers($node, 'postgres');
my $elsewhere = $node->basedir . '/elsewhere';
mkdir $elsewhere;
sql("CREATE TABLESPACE elsewhere LOCATION '$elsewhere'");
sql('CREATE DATABASE model IS_TEMPLATE true; ALTER DATABASE model SET pg_task.schema_name = public');
sql_in('model',
	'CREATE TABLE written (what text); GRANT ALL ON written TO PUBLIC;
	GRANT ALL ON SCHEMA public TO PUBLIC');
my @databases = ('without', 'roles', map { "set$_" } 0 .. $#sets);
my $make = join "\n", map { "CREATE DATABASE $_ TEMPLATE model;" } @databases;
for my $set (0 .. $#sets)
{
	$make .= "ALTER DATABASE set$set SET $settings[$_][0] = "
	  . ($settings[$_][0] =~ /^(DateStyle|restrict_\w+)$/
		? "'$settings[$_][1]'" : literal($settings[$_][1])) . ";\n" for @{ $sets[$set] };
}
$make .= join "\n", map { "CREATE ROLE role$_ LOGIN SUPERUSER; ALTER ROLE role$_
	SET $settings[$_][0] = "
	  . literal($settings[$_][1]) . ';' } 0 .. $#settings;
$make .= "ALTER DATABASE $_ SET pg_task.schema_name = public;" for @databases;
sql($make);
set_conf($node, q(pg_task.database = '*'));
for my $db (@databases)
{
	poll_for(sub {
		return sql_in($db, "SELECT to_regclass('public.task_key_idx') IS NOT NULL") eq 't';
	}) or die "database $db has no task table";
}
plan_tasks('without', 'without', 'postgres', '');
plan_tasks("set$_", "set$_", 'postgres', $settings[ $sets[$_][0] ][2] // '') for 0 .. $#sets;
plan_tasks('roles', "role$_", "role$_", $settings[$_][2] // '') for 0 .. $#settings;

# Tasks of a queue that ran at the same time, and the indexes of the table.
my $limits = q{SELECT count(*) FROM public.task AS a JOIN public.task AS b ON a.id < b.id
	AND a.queue = b.queue
	AND (a.start, a.stop) OVERLAPS (b.start, b.stop) WHERE a.queue LIKE '% limit'};
my $indexes = q{SELECT count(*) FROM pg_index WHERE indrelid = 'public.task'::regclass};
my ($normal) = results('without', named($outcome, 'without'));
my @usual = ('gone GONE0TK003', 'key PLAN0', 'limit DONE1,DONE1,DONE1', 'long DONE1=.*',
	'plain DONE1=.*', 'repeat DONE1,PLAN0', 'retry FAIL222012', 'stop STOP0', 'write DONE1');
like($normal, qr/^@{[ join '\n', @usual ]}$/s,
	'without any setting');

subtest 'settings of databases and roles' => sub {
	my @roles = results('roles', map { named($outcome, "role$_") } 0 .. $#settings);
	for my $number (0 .. $#settings)
	{
		my ($name, $value, $effect) = @{ $settings[$number] };

		is($roles[$number] =~ s/\A\n|\n\z//gr, expected($normal, $effect // ''),
			"role: $name = $value");
	}
	for my $set (0 .. $#sets)
	{
		my ($got, $more) = results("set$set", named($outcome, "set$set"), "$limits; $indexes");

		is($got =~ s/\n\z//r, expected($normal, $settings[ $sets[$set][0] ][2] // ''),
			'database: ' . join(', ', map { "$_->[0] = $_->[1]" } @settings[ @{ $sets[$set] } ]));
		is($more =~ s/\A\n//r, "0\n8", 'the limit holds, and the indexes exist');
	}
	is(join(',', results('roles', "$limits; $indexes")), "0\n8", 'the limits of all roles hold');
	unlike(slurp($node->logfile), qr/FATAL(?!.*transaction timeout)(?!.*division by zero)/,
		'no process has exited because of a setting');
};

# postgresql.conf: all that can be combined, the last of each name, applied by a reload while the
# schedulers run.
subtest 'postgresql.conf' => sub {
	my %file = map { $_->[0] => $_->[1] } grep { !$alone{ $_->[0] } } @settings;
	set_conf($node, map { "$_ = " . literal($file{$_}) } sort keys %file);
	plan_tasks('without', 'file', 'postgres', '');
	my ($got, $more) = results('without', named($outcome, 'file'), $indexes);
	is($got =~ s/\n\z//r, $normal, 'postgresql.conf: ' . join(', ', sort keys %file));
	is($more =~ s/\A\n//r, 8, 'and no index more');
};

# transaction_timeout applies to the task, not to writing its outcome, which waits for a lock.
if ($version >= 170000)
{
	my $session = open_session($node, 'without', on_error_stop => 1);

	sql(q{CREATE ROLE patient LOGIN SUPERUSER;
		ALTER ROLE patient SET transaction_timeout = '3s'});
	for my $case (['SELECT 1/0', 'FAIL22012'], ['SELECT 2', 'DONE'])
	{
		my ($request, $end) = @$case;

		# the session locks the row at once while the request waits for a lock of the session's
		my $id = insert_task($node, db => 'without', role => 'patient', dt => 'infinity',
			request => "SELECT pg_advisory_xact_lock(1); $request");
		$session->query_until(qr/begun/, qq{SELECT pg_advisory_lock(1);
			\\echo begun
			BEGIN;
			DO \$\$ BEGIN
				WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'
					AND NOT granted) LOOP
					PERFORM pg_sleep(0.01);
				END LOOP;
			END \$\$;
			SELECT FROM task WHERE id = $id FOR UPDATE;
			SELECT pg_advisory_unlock(1);
		});
		sql_in('without', "UPDATE task SET dt = now() WHERE id = $id");
		wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity
			WHERE backend_type = 'pg_task executor'
			AND usename = 'patient' AND wait_event_type = 'Lock'
				AND xact_start < now() - interval '3500 ms'});
		$session->query_safe('COMMIT');
		wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id",
			db => 'without');
		is(task($node, $id, "state || coalesce(sqlstate, '') || CASE attempt WHEN 1
			THEN '' ELSE ' again' END", db => 'without'),
			$end, "transaction_timeout: an outcome that waits for a lock: $end");
	}
	$session->quit;
}

sub slurp { local (@ARGV, $/) = (shift); return <> }

done_testing();
