# State that a task leaves in a library, and in the sessions of postgres_fdw and dblink on other
# servers: none is left if the library makes the executor exit or is in pg_task.keep_libraries; all
# is left if the library was preloaded.  A TAP test because it compares processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# The server's base package may not contain all of these extensions.
my ($extensions) = run_command([ 'pg_config', '--sharedir' ]);
for my $name (qw(postgres_fdw dblink hstore))
{
	plan skip_all => "$name is not installed" unless -e "$extensions/extension/$name.control";
}

my $node = new_node('main', conf => q{
	pg_task.period = '200 ms'
	pg_task.role_executors = 1
	pg_task.idle_timeout = '1 h'
	pg_task.keep_libraries = 'postgres_fdw, dblink'});

my $here = sprintf 'host=%s port=%d dbname=postgres', $node->host, $node->port;
sql(qq{
	CREATE EXTENSION postgres_fdw;
	CREATE EXTENSION dblink;
	CREATE EXTENSION hstore;
	CREATE VIEW far_soils AS SELECT set_config('far.thing', 'left', false) AS a;
	CREATE VIEW far_looks AS SELECT coalesce(current_setting('far.thing', true), '') AS a;
	CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw
		OPTIONS (host '${\$node->host}', port '${\$node->port}', dbname 'postgres');
	CREATE USER MAPPING FOR PUBLIC SERVER here OPTIONS (user '${\scalar getpwuid $<}');
	CREATE FOREIGN TABLE soils (a text) SERVER here OPTIONS (table_name 'far_soils');
	CREATE FOREIGN TABLE looks (a text) SERVER here OPTIONS (table_name 'far_looks');
	CREATE ROLE preloads SUPERUSER LOGIN;
	ALTER ROLE preloads SET session_preload_libraries = postgres_fdw, dblink});

my $far = 'SELECT a FROM looks';
my $foreign = 'SELECT count(*) FROM postgres_fdw_get_connections()';
my $named = 'SELECT coalesce(cardinality(dblink_get_connections()), 0)';
my $unnamed = q{SELECT a FROM dblink('SELECT a FROM far_looks') AS t(a text)};
my $soil_unnamed = "SELECT dblink_connect('$here'); SELECT dblink_exec('SET far.thing = ''left''')";
my $open_named = "SELECT dblink_connect(n, '$here') FROM unnest(ARRAY['a', 'b']) AS n";

# What creates state; what shows it; what that returns afterwards, if the library is kept, and if
# it was preloaded.
my @pairs = (
	[ 'SELECT a FROM soils', $far, 'DONE ', 'DONE left' ],
	[ 'SELECT a FROM soils', $foreign, 'DONE 0', 'DONE 1' ],
	[ 'SELECT a FROM soils; SELECT 1/0', $foreign, 'DONE 0', 'DONE 1' ],
	[ $open_named, $named, 'DONE 0', 'DONE 2' ],
	[ "$open_named; SELECT 1/0", $named, 'DONE 0', 'DONE 2' ],
	[ $soil_unnamed, $unnamed, 'FAIL 08003', 'DONE left' ],
	[ "$open_named; $soil_unnamed; SELECT a FROM soils", $unnamed, 'FAIL 08003', 'DONE left' ]);

# The outcome of a task in short form, and its process.
sub outcome
{
	my $id = run_task($node, @_);

	return split /\|/, task($node, $id, q{state || ' ' || coalesce(sqlstate, response), pid});
}

subtest 'state of libraries' => sub {
	for (@pairs)
	{
		my ($soil, $look, @expected) = @$_;

		for my $role (undef, 'preloads')
		{
			my @role = defined $role ? (role => $role) : ();
			my $name = ($role ? 'preloaded' : 'kept') . ": $look";

			my (undef, $soiled) = outcome(request => $soil, @role);
			my ($outcome, $pid) = outcome(request => $look, @role);
			is($outcome, shift @expected, $name);
			is($pid, $soiled, "$name: the same process");
			next unless $role;
			terminate($node, $pid);
			wait_for_exit($node, $pid);
		}
	}
};

# No session of theirs stays on the other server either.
subtest 'no session stays on the other server' => sub {
	outcome(request => "$open_named; $soil_unnamed; SELECT a FROM soils");
	wait_until($node,
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'far|COMMIT TRANSACTION'
		AND backend_type = 'client backend' AND pid <> pg_backend_pid()});
	pass('no connection stays on the other server');
};

# The setting lists libraries by their full names, in the server's folder; all others make the
# executor exit.
sub same_process
{
	my (undef, $pid) = outcome(request => $_[0]);
	my (undef, $next) = outcome(request => 'SELECT 1');

	return $pid == $next;
}

subtest 'pg_task.keep_libraries' => sub {
	ok(!same_process(q{SELECT 'a=>1'::hstore}),
		'an executor exits after a library that is not in the list');
	for (
		[ 'dblink, "hstore"', 1, 'one that is added' ],
		[ 'hstore.so', 1, 'with its suffix' ],
		[ 'hsto, store', 0, 'a part of its name' ],
		[ '', 0, 'none' ])
	{
		my ($list, $kept, $name) = @$_;

		# a scheduler that is about to exit would start executors that exit with it
		apply_conf($node, "pg_task.keep_libraries = '$list'");
		wait_for_backends($node, 'executor', 0);
		is(same_process(q{SELECT 'a=>1'::hstore}) ? 1 : 0, $kept, $name);
	}
	for my $list ('/tmp/hstore', 'hstore,', '"hstore')
	{
		my $position = log_position($node);

		set_conf($node, "pg_task.keep_libraries = '$list'");
		wait_for_log_line($node,
			qr/invalid value for parameter "pg_task.keep_libraries": "\Q$list\E"/,
			$position);
		is(sql('SHOW pg_task.keep_libraries'), '', "refused: $list");
	}
};

done_testing();
