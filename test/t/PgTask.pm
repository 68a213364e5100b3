# What the TAP tests share: a server with pg_task in it, and ways to wait for a condition.
#
#   use FindBin;
#   use lib $FindBin::RealBin;
#   use PgTask;
#   use Test::More;
#
#   my $node = new_node('main', conf => "pg_task.max_executors = 2");
#   my $id = insert_task($node, request => 'SELECT 1');
#   wait_for_state($node, $id, 'DONE');
#   is(task($node, $id, 'response'), '1');
#   done_testing();

package PgTask;

use strict;
use warnings;
use Carp;
use Exporter 'import';
use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(new_node set_conf wait_until wait_for_table insert_task run_task task wait_for_state
  make_gates open_gate backends wait_for_backends wait_for_schedulers terminate crash wait_for_log_line
  log_position log_since count_of build_module);

# Version 15 does not stop its servers when a signal ends the test: it stops them in an END block.
$SIG{TERM} = $SIG{INT} = sub {
	$SIG{TERM} = $SIG{INT} = 'IGNORE';
	die "ended by a signal\n";
};

# The database of the helpers, unless the option db names another.
my $default_db = 'postgres';

# Creates a server with test/pg_task.conf, and starts it; its task table exists.  Options:
#   conf   lines for postgresql.conf
#   init   a hash for PostgreSQL::Test::Cluster's init, such as { allows_streaming => 1 }
#   start  0: do not start it
# PostgreSQL::Test sets restart_after_crash to off; here it is on, which is the default.
sub new_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %init = %{ $opt{init} || {} };

	$node->init(%init,
		extra => [ '--encoding=UTF8', '--locale=C.UTF-8', @{ $init{extra} || [] } ]);
	$node->append_conf('postgresql.conf', slurp_file("$FindBin::RealBin/../pg_task.conf"));
	$node->append_conf('postgresql.conf', 'restart_after_crash = on');
	$node->append_conf('postgresql.conf', $opt{conf}) if defined $opt{conf};
	if ($opt{start} // 1)
	{
		$node->start;
		wait_for_table($node);
	}
	return $node;
}

# Waits until a query returns the expected text (default 't').  Dies if it never does, with the end
# of the server's log, because all later tests would fail, too.  Options: db, expected.
sub wait_until
{
	my ($node, $query, %opt) = @_;

	# while the server restarts, psql may exit before it gets the query
	for (1 .. 1000)
	{
		my $found = eval { $node->poll_query_until($opt{db} // $default_db, $query, $opt{expected} // 't') };
		return if $found;
		last unless $@ =~ /Broken pipe/;
	}
	my @log = grep { !/LOG:  statement:/ } split /\n/, slurp_file($node->logfile);
	splice @log, 0, -40 if @log > 40;
	diag($_) for @log;
	croak "waited in vain for: $query";
}

sub wait_for_table
{
	my ($node, %opt) = @_;

	wait_until($node, "SELECT to_regclass(" . literal($opt{table} // 'task') . ") IS NOT NULL", %opt);
}

# Adds lines to postgresql.conf and reloads it.  The caller must wait until they are in force.
sub set_conf
{
	my ($node, @lines) = @_;

	$node->append_conf('postgresql.conf', join("\n", @lines));
	$node->reload;
}

# insert_task($node, request => 'SELECT 1', max => 2, ...): inserts a row, returns its id.  db is
# the database.
sub insert_task
{
	my ($node, %column) = @_;
	my $db = delete $column{db} // $default_db;
	my @names = sort keys %column;

	return $node->safe_psql($db,
			'INSERT INTO task (' . join(', ', map { qq("$_") } @names) . ') VALUES ('
		  . join(', ', map { literal($column{$_}) } @names)
		  . ') RETURNING id');
}

# The same, and waits until it is DONE or FAIL.  Not for a task that is deleted or does not end.
sub run_task
{
	my ($node, %column) = @_;
	my $id = insert_task($node, %column);

	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id", db => $column{db});
	return $id;
}

# The text of a column of a task, or of any expression over its columns.  NULL is an empty string.
sub task
{
	my ($node, $id, $column, %opt) = @_;

	return $node->safe_psql($opt{db} // $default_db, "SELECT $column FROM task WHERE id = $id");
}

sub wait_for_state
{
	my ($node, $id, $state, %opt) = @_;

	wait_until($node, "SELECT state FROM task WHERE id = $id", %opt, expected => $state);
}

# Gates: a task whose request is SELECT hold('name') runs until open_gate. Any role may call it.
sub make_gates
{
	my ($node, %opt) = @_;

	$node->safe_psql($opt{db} // $default_db, q{
		CREATE TABLE gate (name text);
		GRANT SELECT ON gate TO PUBLIC;
		CREATE FUNCTION hold(gate_name text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM public.gate WHERE name = gate_name) LOOP
				PERFORM pg_sleep(0.01);
			END LOOP;
		END $$});
}

sub open_gate
{
	my ($node, $name, %opt) = @_;

	$node->safe_psql($opt{db} // $default_db, 'INSERT INTO gate VALUES (' . literal($name) . ')');
}

# The number of tasks that meet a condition.
sub count_of
{
	my ($node, $condition, %opt) = @_;

	return $node->safe_psql($opt{db} // $default_db, "SELECT count(*) FROM task WHERE $condition");
}

# The pids of pg_task's processes of a kind: 'supervisor', 'scheduler' or 'executor'.
sub backends
{
	my ($node, $kind) = @_;

	return split /\n/, $node->safe_psql($default_db,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task $kind' ORDER BY pid");
}

# Waits until there are that many of them.
sub wait_for_backends
{
	my ($node, $kind, $count) = @_;

	wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_task $kind'",
		expected => $count);
}

# Waits until these databases have a scheduler and no others do.
sub wait_for_schedulers
{
	my ($node, @databases) = @_;

	wait_until($node, q{SELECT coalesce(array_agg(datname::text ORDER BY datname COLLATE "C"), '{}') =
		ARRAY(SELECT unnest(ARRAY[} . join(', ', map { literal($_) } @databases) . q{]::text[]) COLLATE "C"
		ORDER BY 1) FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'});
}

sub terminate
{
	my ($node, @pids) = @_;

	$node->safe_psql($default_db, "SELECT pg_terminate_backend($_)") for @pids;
}

# Simulates a power failure and restarts the server.
sub crash
{
	my ($node) = @_;

	$node->stop('immediate');
	$node->start;
}

# log_position before an event, and wait_for_log_line after it, see only what the event has logged.
sub log_position
{
	my ($node) = @_;

	return -s $node->logfile;
}

sub log_since
{
	my ($node, $position) = @_;

	return slurp_file($node->logfile, $position);
}

sub wait_for_log_line
{
	my ($node, $regexp, $position) = @_;

	$position //= 0;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if log_since($node, $position) =~ $regexp;
		select(undef, undef, undef, 0.1);
	}
	croak "waited in vain for $regexp in the log";
}

# Compiles test/modules/<name>.c for the server under test; returns the path of the library.  Options
# of the compiler may follow the name.
sub build_module
{
	my ($name, @options) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . "/$name.so";
	my $include = qx(pg_config --includedir-server);

	chomp $include;
	system('cc', '-shared', '-fPIC', '-O1', '-Wall', @options, '-isystem', $include, '-o', $library,
		"$FindBin::RealBin/../modules/$name.c", '-ldl') == 0
	  or croak "$name could not be compiled";
	return $library;
}

# A value as an SQL literal.
sub literal
{
	my ($value) = @_;

	return 'NULL' unless defined $value;
	$value =~ s/'/''/g;
	return $value =~ s/\\/\\\\/g ? " E'$value'" : "'$value'";
}

1;
