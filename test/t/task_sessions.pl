# The session of a task has what a client session of its role would have: the preloaded libraries,
# lines in the server's log, entries in the statistics, and the connection limits of role and
# database.  Idle executors leave a database that is no longer served.  A TAP test because it reads
# the log and preloads libraries.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;
use Time::HiRes 'time';

my $node = new_node('main', conf => q{
	shared_preload_libraries = 'pg_task, pg_stat_statements'
	pg_task.period = '200 ms'
	pg_task.idle_timeout = '1 h'
	pg_task.max_executors = 8
	max_worker_processes = 24
	log_statement = none
	log_line_prefix = '%p '});

# What the process of a task has logged since a position in the log, when it has come to rest: some
# lines are written after the commit.
sub log_of
{
	my ($id, $position) = @_;
	my $pid = task($node, $id, 'pid');

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity
		WHERE pid = $pid AND state <> 'idle')");
	return join '', grep { /^\Q$pid\E / .. !/^(?:\Q$pid\E |\t)/ }
	  split /^/, log_since($node, $position);
}

# Runs a request as a role, and returns what its process has logged.
sub logged
{
	my ($role, $request) = @_;
	my $position = log_position($node);
	my $id = run_task($node, role => $role, request => $request);

	return log_of($id, $position);
}

sql('CREATE EXTENSION pg_stat_statements');
sql("CREATE ROLE $_ LOGIN")
  for qw(plain explained broken modifies timed lasts silent single locked);
make_gates($node);
sql('CREATE TABLE mark (a int); GRANT ALL ON mark TO PUBLIC');

subtest 'libraries that are preloaded for a role' => sub {
	sql(q{ALTER ROLE explained SET session_preload_libraries = 'auto_explain'});
	sql(q{LOAD 'auto_explain'; ALTER ROLE explained SET auto_explain.log_min_duration = 0});
	like(logged('explained', q{SELECT 'with a plan'}),
		qr/LOG:  duration: [\d.]+ ms  plan:\n\tQuery Text: SELECT 'with a plan'\n\tResult/,
		'auto_explain has the plan of a request');
	unlike(logged('plain', q{SELECT 'with a plan'}), qr/ plan:/,
		'the plan is logged for that role only');

	my ($position, $begin) = (log_position($node), time);
	sql(q{ALTER ROLE broken SET session_preload_libraries = 'missing_library'});
	my $id = insert_task($node, role => 'broken', request => 'SELECT 1');
	wait_for_log_line($node, qr/could not access file "missing_library"/, $position);
	is(task($node, $id, 'state, attempt'), 'PLAN|0',
		'without its library no task of a role starts');
	is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE',
		'tasks of other roles start');

	# Each try is a process.  The first pause is a second, the next one twice as long.
	my $tries = sub { return () = log_since($node,
		$position) =~ /could not access file "missing_library"/g };
	poll_for(sub { $tries->() >= 3 }) or die 'no third attempt';
	cmp_ok(time - $begin, '>', 2.9, 'the pauses between the attempts grow');
	sql('ALTER ROLE broken RESET session_preload_libraries');
	wait_for_state($node, $id, 'DONE');
};

subtest 'lines in the log' => sub {
	my $context = qr/\n\d+ CONTEXT:  pg_task \d+ of queue "default" in database "postgres" as role/;

	sql(q{ALTER ROLE modifies SET log_statement = 'mod'});
	like(logged('modifies', 'INSERT INTO mark VALUES (1)'),
		qr/^\d+ LOG:  statement: INSERT INTO mark VALUES \(1\)$context "modifies", attempt 1$/m,
		'log_statement');
	is(logged('modifies', 'SELECT 1'), '', 'log_statement: no other statements');
	is(() = logged('modifies', 'SELECT 1; DELETE FROM mark; DELETE FROM mark') =~ /statement:/g, 1,
		'log_statement: a request is one line');

	sql('ALTER ROLE timed SET log_min_duration_statement = 0');
	like(logged('timed', q{SELECT 'fast'}),
		qr/^\d+ LOG:  duration: [\d.]+ ms  statement: SELECT 'fast'$context "timed", attempt 1$/m,
		'log_min_duration_statement');
	like(logged('timed', q{SELECT 'slow', pg_sleep(0.2)}),
		qr/^\d+ LOG:  duration: (?:[2-9]\d\d|\d{4,})\.\d+ ms /m,
		'log_min_duration_statement: the duration is right');
	sql(q{ALTER ROLE timed SET log_min_duration_statement = '1 h'});
	is(logged('timed', q{SELECT 'fast'}), '', 'log_min_duration_statement: no faster statement');

	sql(q{ALTER ROLE lasts SET log_statement = 'all'; ALTER ROLE lasts SET log_duration = on});
	like(logged('lasts', 'SELECT 3'), qr/LOG:  statement: SELECT 3.*LOG:  duration: [\d.]+ ms$/ms,
		'log_duration');
	like(logged('lasts', 'VACUUM mark'), qr/LOG:  statement: VACUUM mark.*LOG:  duration: /s,
		'log_duration: of a request that commits by itself');

	like(logged('plain', q{SELECT 1/0}),
		qr/ERROR:  division by zero$context "plain", attempt 1\n\d+ STATEMENT:  SELECT 1\/0$/m,
		'log_min_error_statement');
	my $id = run_task($node, role => 'plain', queue => 'nested',
		request => q{DO 'BEGIN PERFORM 1/0; END'});
	wait_for_log_line($node,
		qr/CONTEXT:  SQL statement "SELECT 1\/0"\n\tPL\/pgSQL function inline_code_block line 1 at PERFORM
\tpg_task $id of queue "nested" in database "postgres" as role "plain", attempt 1\n/);
	like(task($node, $id, 'response'), qr/at PERFORM$/, 'the context in the row is without the task');
	my $labels = '{"trace": "' . '\u00e4' x 100 . '"}';
	$id = run_task($node, role => 'plain', request => 'SELECT 1/0', meta => $labels);
	wait_for_log_line($node,
		qr/pg_task $id of .*, attempt 1, meta \{"trace": "(?:\xc3\xa4){94}\n/);
	unlike(task($node, $id, 'response'), qr/meta/, 'nor its labels');
	$id = run_task($node, role => 'plain', request => 'SELECT 1/0');
	wait_for_log_line($node, qr/pg_task $id of .*, attempt 1\n/);
	sql('ALTER ROLE silent SET log_min_error_statement = panic');
	unlike(logged('silent', q{SELECT 1/0}), qr/STATEMENT/,
		'log_min_error_statement: no lower severity');
	is(task($node, run_task($node, role => 'lasts', request => 'SELECT 4'), 'response, notice'),
		'4|',
		'the row has none of these messages');
};

subtest 'statistics' => sub {
	my $id = insert_task($node, role => 'plain',
		request => q{SELECT count(*) AS counted FROM mark; SELECT hold('statistics') AS held});
	my $activity = q{FROM pg_stat_activity
		WHERE backend_type = 'pg_task executor' AND query ~ ' AS held'};
	my $statements = q{FROM pg_stat_statements AS s JOIN pg_roles AS r ON r.oid = s.userid
		WHERE query ~};

	wait_until($node, "SELECT count(*) = 1 $activity AND wait_event = 'PgSleep'");
	is(sql("SELECT usename, datname, application_name $activity"),
		"plain|postgres|pg_task default $id", 'pg_stat_activity');
	my $query_id = sql("SELECT query_id $activity");
	open_gate($node, 'statistics');
	wait_for_state($node, $id, 'DONE');
	is(sql("SELECT queryid, rolname, calls, toplevel $statements '^SELECT hold.* AS held'"),
		"$query_id|plain|1|t", 'query_id is that of the running statement');
	is(sql("SELECT rolname, calls, toplevel $statements ' AS counted'"), 'plain|1|t',
		'pg_stat_statements counts each statement');
};

subtest 'connection limits' => sub {
	sql('ALTER ROLE single CONNECTION LIMIT 1; ALTER ROLE locked CONNECTION LIMIT 0');
	my @single =
	  map { insert_task($node, role => 'single', request => q{SELECT hold('single')}) } 1 .. 3;
	my $locked = insert_task($node, role => 'locked', request => 'SELECT 1');
	# the others may have been claimed as well, until the first one has run for some milliseconds
	wait_for_running($node, 1, id => $single[0], event => 'PgSleep');
	run_task($node, role => 'plain', request => 'SELECT 1') for 1 .. 3;
	is(count_of($node, q{role = 'single' AND state = 'WORK'}), 1,
		'the limit of a role: one task at a time');
	is(task($node, $locked, 'state, attempt'), 'PLAN|0', 'the limit of a role is 0: no task');
	open_gate($node, 'single');
	wait_for_state($node, $_, 'DONE') for @single;
	sql('ALTER ROLE locked CONNECTION LIMIT 1');
	wait_for_state($node, $locked, 'DONE');

	sql('CREATE DATABASE small CONNECTION LIMIT 1');
	wait_for_table($node, db => 'small');
	make_gates($node, db => 'small');
	my @small =
	  map { insert_task($node, db => 'small', role => $_, request => q{SELECT hold('small')}) }
	  qw(plain plain timed);
	# not the first one, if it was refused because sessions of this test were connected
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'WORK'}, db => 'small');
	run_task($node, db => 'small', request => 'SELECT 1') for 1 .. 3;
	is(count_of($node, q{state = 'WORK'}, db => 'small'), 1,
		'of a database: one task at a time, but for a superuser');
	sql(join ';', map { "CREATE ROLE many_$_ LOGIN" } 1 .. 20);
	push @small,
	  map { insert_task($node, db => 'small', role => "many_$_", request => 'SELECT 1') } 1 .. 20;
	run_task($node, db => 'small', request => 'SELECT 1') for 1 .. 3;
	is(count_of($node, q{state = 'WORK'}, db => 'small'), 1,
		'and roles that wait for it do not keep a superuser waiting');
	open_gate($node, 'small', db => 'small');
	wait_for_state($node, $_, 'DONE', db => 'small') for @small;

	sql('ALTER DATABASE small CONNECTION LIMIT 0');
	my $late = insert_task($node, db => 'small', role => 'timed', request => 'SELECT 1');
	run_task($node, db => 'small', request => 'SELECT 1') for 1 .. 3;
	is(task($node, $late, 'state', db => 'small'), 'PLAN', 'the limit of a database is 0: no task');
	sql('ALTER DATABASE small CONNECTION LIMIT -1');
	wait_for_state($node, $late, 'DONE', db => 'small');
};

# A role at its limit gets its executor of another database, but not while its own is full.
subtest 'connection limits of a role and a database' => sub {
	my $pids = q{SELECT count(DISTINCT pid) FROM task WHERE id IN };

	sql('ALTER DATABASE small CONNECTION LIMIT 1');
	sql_in('small', 'TRUNCATE gate');
	my $busy = insert_task($node, db => 'small', role => 'plain',
		request => q{SELECT hold('full')});
	wait_for_running($node, 1, id => $busy, db => 'small', event => 'PgSleep');
	run_task($node, role => 'single', request => 'SELECT 1');
	my $waiting = insert_task($node, db => 'small', role => 'single', request => 'SELECT 1');
	ok(poll_for(sub {
		my @ids = map { run_task($node, role => 'single',
			request => 'SELECT pg_sleep(0.5)') } 1 .. 4;

		return sql($pids . '(' . join(', ', @ids) . ')') == 1;
	}), 'tasks of the role keep their executor elsewhere');
	is(task($node, $waiting, 'state', db => 'small'), 'PLAN', 'which would be of no use');
	open_gate($node, 'full', db => 'small');
	wait_for_state($node, $waiting, 'DONE', db => 'small');
};

subtest 'a database that is served no more' => sub {
	my $executors = q{SELECT count(*) FROM pg_stat_activity WHERE datname = 'closing'};

	sql('CREATE DATABASE closing');
	wait_for_table($node, db => 'closing');
	make_gates($node, db => 'closing');
	run_task($node, db => 'closing', role => 'plain', request => 'SELECT 1');
	my $id = insert_task($node, db => 'closing', request => q{SELECT hold('closing')});
	wait_for_running($node, 1, id => $id, db => 'closing', event => 'PgSleep');
	my $session = open_session($node, 'closing');
	sql('ALTER DATABASE closing ALLOW_CONNECTIONS false');
	wait_until($node, "$executors AND backend_type <> 'client backend'", expected => 1);
	pass('its idle executors leave');
	$session->query_safe(q{INSERT INTO gate VALUES ('closing')});
	wait_until($node, "$executors AND backend_type <> 'client backend'", expected => 0);
	is($session->query_safe("SELECT state FROM task WHERE id = $id"), 'DONE',
		'a running task ends');
	$session->quit;
	sql('ALTER DATABASE closing ALLOW_CONNECTIONS true');
	run_task($node, db => 'closing', role => 'plain', request => 'SELECT 1');

	set_conf($node, q{pg_task.database = 'postgres, small'});
	end_sessions($node);
	wait_until($node, $executors, expected => 0);
	pass('likewise where it is not in pg_task.database');
};

done_testing();
