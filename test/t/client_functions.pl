# Functions that return facts about the client get a description of no client in a task: they
# return that, and do not crash the server.  The log shows the role of a task.  A TAP test because
# it reads the log, and because it checks that the server does not crash.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => q{
	log_line_prefix = '%m [%p] %q<%u@%d %h %r> '
	logging_collector = on
	log_destination = 'stderr,csvlog,jsonlog'
	log_connections = on
	log_disconnections = on
	log_truncate_on_rotation = off
	client_connection_check_interval = '10 ms'
	pg_task.idle_timeout = '1 h'
});

# Columns of the row of a task when it has run.
sub outcome
{
	my ($columns, $request, %column) = @_;

	return task($node, run_task($node, request => $request, %column), $columns);
}

# The log in a format comes to match: another process writes it.
sub log_has
{
	my ($suffix, $regexp, $what) = @_;

	ok(poll_for(sub {
		return join('', map { slurp_file($_) } glob $node->data_dir . "/log/*.$suffix") =~ $regexp;
	}), $what);
	return;
}

# The last line of a task's response, and what a session over a Unix-domain socket returns.
sub same_as_session
{
	my ($request, $what) = @_;
	my $outcome = outcome(q{state, substring(response FROM '[^\n]*$')}, $request);

	is($outcome, 'DONE|' . sql($request), $what);
	return;
}

sql(q{CREATE EXTENSION sslinfo; CREATE ROLE bob LOGIN; GRANT ALL ON task TO bob});
my $server = sql('SELECT pg_postmaster_start_time()');

subtest 'no client' => sub {
	same_as_session(q{SELECT json_build_array(ssl_is_used(), ssl_client_cert_present(),
		ssl_version(), ssl_cipher(), ssl_client_serial(), ssl_client_dn(), ssl_issuer_dn(),
		ssl_client_dn_field('CN'), ssl_issuer_field('CN'),
		(SELECT count(*) FROM ssl_extension_info()))}, 'sslinfo: as without SSL');
	same_as_session(q{SELECT json_build_array(inet_client_addr(), inet_client_port(),
		inet_server_addr(), inet_server_port())}, 'addresses: NULL');
	is(outcome('response', q{SELECT count(*) FROM (SELECT pid FROM pg_stat_ssl
			UNION ALL SELECT pid FROM pg_stat_gssapi) AS s WHERE pid = pg_backend_pid()}),
		'0', 'the views of encrypted connections have no row');
	for my $setting (map { "tcp_$_" }
		qw(keepalives_idle keepalives_interval keepalives_count user_timeout))
	{
		same_as_session("SET $setting = 7; SHOW $setting", "$setting: set and shown");
	}
	if ($node->pg_version >= 16)
	{
		is(outcome('state, response', 'SELECT system_user IS NULL'), 'DONE|t', 'system_user: NULL');
	}
	is(outcome('response', q{SELECT coalesce(client_addr::text, client_port::text, client_hostname,
			'none') FROM pg_stat_activity WHERE pid = pg_backend_pid()}),
		'none', 'pg_stat_activity: no client');
	is(outcome('state', 'SELECT pg_sleep(0.1)'), 'DONE',
		'client_connection_check_interval does not end the task');
	is(outcome('state, sqlstate', 'COPY pg_class FROM STDIN'), 'FAIL|0A000',
		'COPY FROM STDIN is refused');
};

# Parallel workers inherit the client description of their leader.
subtest 'parallel workers' => sub {
	sql('CREATE TABLE many AS SELECT n FROM generate_series(1, 20000) AS n; ANALYZE many');
	my $outcome = outcome('state, response', q{
		SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
		SET min_parallel_table_scan_size = 0;
		EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT count(*) FROM many WHERE n > 0;
		SELECT count(*) FROM many WHERE n > 0 AND inet_client_addr() IS NULL});
	like($outcome, qr/^DONE\|.*Workers Launched: [1-9].*20000$/s, 'a parallel query runs');
};

# The scheduler fires the owner's triggers, and they may call these functions, too.
subtest 'triggers in the scheduler' => sub {
	sql(q{
		CREATE TABLE seen (state text, ssl bool);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
		BEGIN
			INSERT INTO seen VALUES (NEW.state, ssl_is_used());
			RETURN NULL;
		END $$;
		CREATE TRIGGER see AFTER UPDATE ON task FOR EACH ROW EXECUTE FUNCTION see()});
	run_task($node, request => 'SELECT 1');
	is(sql(q{SELECT string_agg(DISTINCT state || ' ' || ssl, ', ') FROM seen}),
		'DONE false, WORK false', 'triggers on the task table');
	sql('DROP TRIGGER see ON task');
};

# The log: user, database, and host.
subtest 'the log' => sub {
	run_task($node, request => 'SELECT 1/0 AS by_bob', role => 'bob');
	log_has('log', qr/<bob\@postgres \[local\] \[local\]> ERROR:  division by zero/,
		'a line of the log');
	log_has('csv', qr/,"bob","postgres",\d+,"\[local\]",.*division by zero/, 'as CSV');
	log_has('json',
		qr/"user":"bob","dbname":"postgres",.*"remote_host":"\[local\]".*division by zero/,
		'as JSON');

	terminate($node, backends($node, 'executor'));
	is(outcome('response', 'SELECT 2'), '2', 'an executor that is terminated exits normally');
	is(sql('SELECT pg_postmaster_start_time()'), $server, 'the server has not restarted');
	is(count_of($node, 'crashed > 0'), 0, 'no process has crashed');
};

done_testing();
