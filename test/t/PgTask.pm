# What the TAP tests share: a server with pg_task in it, tasks and their rows, and ways to wait
# for a condition.
#
#   use FindBin;
#   use lib $FindBin::RealBin;
#   use PgTask;
#   use Test::More;
#
#   my $node = new_node('main', conf => 'pg_task.max_executors = 2');
#
#   subtest 'a retry' => sub {
#       my $id = insert_task($node, request => 'SELECT 1/0', retry => 1);
#       wait_for_state($node, $id, 'FAIL');
#       is_row($node, $id, { attempt => 2, sqlstate => '22012' }, 'it has run twice');
#   };
#   done_testing();
#
# A server is the first argument of every function but those under "SQL", which use
# the first one that new_node has made, unless the option node names another.

package PgTask;

use strict;
use warnings;
use Carp;
use Exporter 'import';
use FindBin;
use IPC::Run ();
use JSON::PP ();
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(
	new_node copy_server set_conf apply_conf end_sessions build_module crash kill_server
	make_clock set_clock
	run_psql sql sql_as sql_in error_of sqlstate_of notices_of literal open_session
	file_of psql_command run_installed
	manual_page verbs_of blocks_of named_blocks
	insert_task insert_rule run_task start_crash task is_row count_of start_delay
	make_gates open_gate
	backends terminate running time_of server_time
	log_position log_since
	wait_until wait_for_table wait_for_state wait_for_running wait_for_backends wait_for_schedulers
	wait_for_exit wait_for_log_line poll_for becomes_true);

# PostgreSQL::Test stops its servers in an END block, which a signal would skip.
$SIG{TERM} = $SIG{INT} = sub {
	$SIG{TERM} = $SIG{INT} = 'IGNORE';
	die "ended by a signal\n";
};

# The database of all functions, unless the option db names another.
my $default_db = 'postgres';

# The server of sql and its like.
my $main_node;

# Servers ------------------------------------------------------------------------------------------

# Creates a server with test/pg_task.conf, and starts it; its task table exists, and so does the
# queue table, which the scheduler makes a moment later.  Its schedulers do not look by themselves:
# a test that needs no look waits in vain for what no commit and no process has reported.  Options:
#   period pg_task.period, if the test needs such looks; default: an hour
#   conf   lines for postgresql.conf
#   init   a hash for PostgreSQL::Test::Cluster's init, such as { allows_streaming => 1 }
#   start  0: do not start it
#   install_path  the folder above the programs of the server, if it is a copy
# PostgreSQL::Test sets restart_after_crash to off; here it is on, which is the default.  It allows
# ten connections, but the process of a session that has ended may count for a while.  JIT is off:
# to compile what runs once takes longer than to run it.
sub new_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		$opt{install_path} ? (install_path => $opt{install_path}) : ());

	$main_node //= $node;
	my %init = %{ $opt{init} || {} };

	{
		# see test/bin/initdb
		local $ENV{PATH} = "$FindBin::RealBin/../bin:$ENV{PATH}";
		local $ENV{PG_TASK_DATA_FOLDERS} = $PostgreSQL::Test::Utils::tmp_check;

		$node->init(%init,
			extra => [ '--encoding=UTF8', '--locale=C.UTF-8', @{ $init{extra} || [] } ]);
	}
	$node->append_conf('postgresql.conf', slurp_file("$FindBin::RealBin/../pg_task.conf"));
	$node->append_conf('postgresql.conf', "restart_after_crash = on\nmax_connections = 50\n"
		  . "jit = off\npg_task.period = '" . ($opt{period} // '1 h') . "'");
	$node->append_conf('postgresql.conf', $opt{conf}) if defined $opt{conf};
	if ($opt{start} // 1)
	{
		$node->start;
		wait_until($node, q{SELECT to_regclass('task') IS NOT NULL
			AND to_regclass('task_queue') IS NOT NULL});
	}
	return $node;
}

# Copies the programs and files of the server under test into a folder: a server finds its files
# from where it lies itself.  Returns the folders of the copy: bin, lib, share, include.
sub copy_server
{
	my ($folder) = @_;
	my @dirs = map { my $dir = qx(pg_config --$_); chomp $dir; $dir }
	  qw(bindir pkglibdir sharedir includedir-server);
	my $root = $dirs[0];

	$root =~ s{/[^/]*$}{} until !grep { index("$_/", "$root/") != 0 } @dirs;
	for my $dir (@dirs)
	{
		my $copy = $folder . substr($dir, length $root);

		next if -e $copy;
		system_or_bail('mkdir', '-p', $copy);
		system_or_bail('cp', '-a', "$dir/.", $copy);
	}
	return map { $folder . substr($_, length $root) } @dirs;
}

# Adds lines to postgresql.conf and reloads it.  The caller must wait until they are in force.
sub set_conf
{
	my ($node, @lines) = @_;

	$node->append_conf('postgresql.conf', join("\n", @lines));
	$node->reload;
}

# As set_conf, and waits until each scheduler is one that was started with the new settings.
sub apply_conf
{
	my ($node, @lines) = @_;
	my ($loaded, $count) = split /\|/, $node->safe_psql($default_db, q{
		SELECT pg_conf_load_time(), count(*) FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler'});

	set_conf($node, @lines);
	wait_until($node, qq{
		SELECT pg_conf_load_time() > '$loaded' AND count(*) >= $count AND count(*) > 0
		AND bool_and(backend_start > pg_conf_load_time())
		FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'});
}

# Simulates a power failure and restarts the server.
sub crash
{
	my ($node) = @_;

	$node->stop('immediate');
	$node->start;
}

# The state of a process, as a letter; empty if it is gone.
sub process_state
{
	my ($pid) = @_;
	my $stat = eval { slurp_file("/proc/$pid/stat") } // '';

	return $stat =~ /\) (\w)/ ? $1 : '';
}

# Power failure: all processes of the server die at once, by SIGKILL.  The postmaster is stopped
# meanwhile, so that it does not notice.  The server can be started again.
sub kill_server
{
	my ($node) = @_;
	my ($pid) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');

	# when it has stopped it starts no process any more
	kill 'STOP', $pid;
	poll_for(sub { process_state($pid) eq 'T' }) or croak "process $pid does not stop";
	# the list may lack some while others end
	poll_for(sub {
		my @children = grep { process_state($_) !~ /^Z?$/ }
		  split ' ', slurp_file("/proc/$pid/task/$pid/children");

		kill 'KILL', @children;
		return !@children;
	}) or croak "processes of $pid do not end";
	kill 'KILL', $pid;
	poll_for(sub { process_state($pid) =~ /^Z?$/ }) or croak "process $pid does not end";
	$node->{_pid} = undef;
	# an orphaned process may stay a zombie forever, and so may its file locks
	unlink $node->data_dir . '/postmaster.pid', $node->host . '/.s.PGSQL.' . $node->port . '.lock';
}

# The processor time that a process has taken, in seconds: with 4 fields that of its children that
# have ended, too; with 2 its own.
sub time_of
{
	my ($pid, $fields) = @_;
	my $stat = eval { slurp_file("/proc/$pid/stat") } // return 0;
	my @value = split ' ', $stat =~ s/.*\) //sr;
	my $sum = 0;

	$sum += $value[$_] for 11 .. 10 + $fields;
	return $sum / 100;
}

# That of all processes of a server.
sub server_time
{
	my ($node) = @_;
	my ($pid) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');
	my $sum = time_of($pid, 4);

	$sum += time_of($_, 2) for split ' ', slurp_file("/proc/$pid/task/$pid/children");
	return $sum;
}

# Compiles test/modules/<name>.c for the server under test; returns the path of the library.
# Options of the compiler may follow the name.
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

# A clock for servers: set_clock sets it so many seconds ahead of the true one, and lets so many
# microseconds (default 0) pass each time that a process reads the clock that nobody sets.  make_clock
# returns the environment in which a server must be started to go by it.
my $clock;

sub make_clock
{
	# the folder is that of all tests, which run beside each other
	my $shim = "$PostgreSQL::Test::Utils::tmp_check/clock_shim_$$.so";

	$clock = "$PostgreSQL::Test::Utils::tmp_check/clock_offset_$$";
	system_or_bail('cc', '-shared', '-fPIC', '-o', $shim, "$FindBin::RealBin/clock_shim.c");
	set_clock(0);
	return (LD_PRELOAD => $shim, CLOCK_SHIM_FILE => $clock);
}

sub set_clock
{
	my ($seconds, $tick) = @_;

	# servers have mapped the file: keep it, and change its content
	open my $handle, -e $clock ? '+<' : '+>', $clock or die $!;
	syswrite $handle, pack('qq', int($seconds * 1_000_000), $tick // 0) or die $!;
	close $handle;
	return;
}

# SQL ----------------------------------------------------------------------------------------------

# What psql says, or IPC::Run, if the server does not let a session in, because it starts, stops or
# recovers from a crash.
my $not_let_in = qr/^ack\ Broken\ pipe
	|psql:\ error:\ connection\ to\ server\ [^\n]*failed:\ (?:FATAL:\ \ the\ database\ system\ is\b
		|server\ closed\ the\ connection|could\ not\ (?:send|receive)\ )/x;

# A psql stays for the next query of its server, database and role, which saves most of the time of
# a short query.
my %kept;

# Those of a parent process, which must not end with this one.
my @inherited;

# Queries for which it matters what their session has been before.
my $own_session = qr/(?:^|\s)\\
	|(?:^|;)\s*(?:SET|RESET|SHOW|PREPARE|LISTEN|NOTIFY|DECLARE|LOAD|DISCARD|COPY)\b
	|(?:^|;)\s*(?:BEGIN|START)\b(?!.*\b(?:COMMIT|ROLLBACK|END)\b[\s;]*$)
	|\bTEMP(?:ORARY)?\b|set_config|pg_backend_pid|pg_conf_load_time|advisory/xis;

# Those that kept sessions are in the way of, or would not heed: defaults of new sessions, roles
# that come again, and counts that a session reports at its end.
my $no_session = qr/\b(?:ALTER|CREATE|DROP)\s+(?:DATABASE|SYSTEM)\b|\bDROP\s+(?:ROLE|USER)\b
	|\bALTER\s+(?:ROLE|USER)\b.*\b(?:SET|RESET|LIMIT|RENAME)\b|\b(?:ALTER|DROP)\s+EXTENSION\b
	|pg_reload_conf|pg_stat_(?!activity|task)|pg_statio|client\ backend/xis;

# Ends these sessions of a server.
sub end_sessions
{
	my ($node) = @_;
	my $sessions = delete $kept{ $node->port } or return;

	for my $session (values %$sessions)
	{
		if ($session->{owner} != $$)
		{
			push @inherited, $session;
			next;
		}
		# a process that was started later may hold its standard input open
		${ $session->{in} } = "\\q\n";
		eval { $session->{psql}->finish };
	}
	return;
}

# As run_psql, but not again.  Some are kept at a time: a server has few connections.
sub kept_psql
{
	my ($node, $db, $query, @extra) = @_;
	my $name = join ' ', $db, @extra;
	my $session = $kept{ $node->port }{$name};

	# a backend may have gone, with a word to nobody
	if ($session
		&& ($session->{owner} != $$ || process_state($session->{backend}) =~ /^Z?$/))
	{
		undef $session;
		end_sessions($node);
	}
	if (!$session)
	{
		end_sessions($node) if keys %{ $kept{ $node->port } } > 5;
		my ($in, $out, $err) = ('', '', '');
		my $timer = IPC::Run::timeout(300);
		my @command = ('psql', '-XAtq', '-d', $node->connstr($db), '-f', '-', @extra);

		$session = { owner => $$, in => \$in, out => \$out, err => \$err, timer => $timer };
		$session->{psql} = IPC::Run::start(\@command, '<', \$in, '>', \$out, '2>', \$err, $timer);
		my @result = talk($session, 'SELECT pg_catalog.pg_backend_pid()');
		return @result if $result[0] != 0;
		$session->{backend} = $result[1];
		$kept{ $node->port }{$name} = $session;
	}
	my @result = talk($session, $query);

	delete $kept{ $node->port }{$name} if !$session->{psql}->pumpable;
	return @result;
}

# Has a query run, and returns as run_psql does.
sub talk
{
	my ($session, $query) = @_;
	my ($psql, $in, $out, $err) = @$session{qw(psql in out err)};
	my $end = '-- end of output --';
	# of several statements, those after an error do not run: psql ends
	my $stop = $query =~ /;\s*\S/ ? 'on' : 'off';

	($$out, $$err) = ('', '');
	$$in .= "\\set ON_ERROR_STOP $stop\n$query"
	  . ($query =~ /;\s*\z/ ? "\n" : "\n;\n") . "\\echo '$end' :ERROR\n\\warn '$end'\n";
	$session->{timer}->start;
	my $alive = eval {
		$psql->pump until $$out =~ /^\Q$end\E \w+\n\z/m && $$err =~ /^\Q$end\E\n\z/m;
		1;
	};
	my $problem = $@;

	if (!$alive)
	{
		my $rc = eval { $psql->finish; $psql->result(0) } || 2;

		chomp($$out, $$err);
		return ($rc, $$out, $$err eq '' ? $problem : $$err);
	}
	$$out =~ s/\n?^\Q$end\E (\w+)\n\z//m;
	my $failed = $1 eq 'true';
	$$err =~ s/\n?^\Q$end\E\n\z//m;
	return ($failed ? 3 : 0, $$out, $$err);
}

# Runs psql with a query, in a database, and returns its exit code and what it prints.  It is run
# again as long as the server does not let it in: nothing of the query has run then.  Extra
# parameters of psql may follow.
sub run_psql
{
	my ($node, $db, $query, @extra) = @_;
	my $keep = $query !~ $own_session;
	my @result;

	end_sessions($node) if $query =~ $no_session;
	poll_for(sub {
		@result = eval {
			$keep
			  ? kept_psql($node, $db, $query, @extra)
			  : $node->psql($db, $query, extra_params => \@extra);
		};
		my $problem = @result ? $result[2] : $@;

		return 1 if (@result && $result[0] != 2) || $problem !~ $not_let_in;
		# of a long query psql may have read a part
		return !@result && length($query) > 4096;
	});
	croak $@ if !@result;
	return @result;
}

# The same, if it must succeed: returns the output.
sub query
{
	my ($node, $db, $query, @extra) = @_;
	my ($rc, $out, $err) = run_psql($node, $db // $default_db, $query, @extra);

	note($err) if $err ne '';
	croak "psql has failed ($rc): $err\nwhile running: " . substr($query, 0, 2000) if $rc != 0;
	return $out;
}

# Runs SQL, and returns its output; dies if it fails.  Options: db, user, node.
sub sql
{
	my ($query, %opt) = @_;

	return query($opt{node} // $main_node, $opt{db}, $query,
		$opt{user} ? ('-U', $opt{user}) : ());
}

# A psql that stays, with the options of PostgreSQL::Test's background_psql.  Its limit of time is
# that of each query, and of the pause before the next one; by default it would be that of the
# session.
sub open_session
{
	my ($node, $db, %opt) = @_;
	my $session = $node->background_psql($db, timeout => 300, %opt);

	$session->set_query_timer_restart;
	return $session;
}

# sql_as('role', 'SELECT ...'): the same, as a role.
sub sql_as
{
	my ($user, $query, %opt) = @_;

	return sql($query, %opt, user => $user);
}

# sql_in('database', 'SELECT ...'): the same, in a database.
sub sql_in
{
	my ($db, $query, %opt) = @_;

	return sql($query, %opt, db => $db);
}

# error_of('role', 'SELECT ...'): what psql prints when SQL fails as this role; empty if it does not
# fail.  Options as for sql.
sub error_of
{
	my ($user, $query, %opt) = @_;
	my $node = $opt{node} // $main_node;
	my $format = $opt{sqlstate} ? 'verbose' : 'default';
	my ($rc, $out, $err) = run_psql($node, $opt{db} // $default_db, $query,
		'-U', $user, '-v', "VERBOSITY=$format");

	return $rc == 0 ? '' : $err;
}

# The same for the SQLSTATE alone.
sub sqlstate_of
{
	my ($user, $query, %opt) = @_;
	my $error = error_of($user, $query, %opt, sqlstate => 1);

	return $error =~ /(?:ERROR|FATAL):  (\w{5}):/ ? $1 : $error;
}

# notices_of('role', 'SELECT ...'): what psql prints besides the output of SQL that succeeds as this
# role.  Options as for sql.
sub notices_of
{
	my ($user, $query, %opt) = @_;
	my $node = $opt{node} // $main_node;
	my ($rc, $out, $err) = run_psql($node, $opt{db} // $default_db, $query, '-U', $user);

	croak $err if $rc != 0;
	return $err =~ s/^psql:<stdin>:\d+: //mgr;
}

# A file with this text.
sub file_of
{
	my ($text) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/text';

	append_to_file($file, $text);
	return $file;
}

# The command that runs SQL in a session of its own, and stops at an error.  Extra parameters of
# psql may follow.
sub psql_command
{
	my ($node, $db, $text, @extra) = @_;

	return [ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), @extra,
		'-f', file_of($text) ];
}

# Runs a file for psql that is installed with the extension, with these variables; "user": as whom.
# Returns its exit code, its result and its errors.
sub run_installed
{
	my ($node, $db, $name, %variable) = @_;
	my ($out, $err) = ('', '');
	my $user = delete $variable{user} // 'postgres';
	my $folder = qx(pg_config --sharedir) =~ s/\s*\z//r . '/extension';

	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr($db), '-U', $user,
		(map { ('-v', "$_=$variable{$_}") } sort keys %variable), '-f', "$folder/$name" ],
		'>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

# The text of a page in docs/.
sub manual_page
{
	my ($page) = @_;

	return slurp_file("$FindBin::RealBin/../../docs/$page");
}

# The statements in the last column of its table "Verb by verb".
sub verbs_of
{
	my ($page) = @_;
	my ($verbs) = manual_page($page) =~ /^## Verb by verb\n(.*?)^## /ms;

	return map { grep { /^[A-Z]+ / } (split / \| /, $_, 2)[1] =~ /`([^`]+)`/g }
	  grep { /^\|/ } split /\n/, $verbs;
}

# Its blocks of SQL: their heading, their sql, and what the last comment of each kind before them
# says, as <!-- database: by_id -->.
sub blocks_of
{
	my ($page) = @_;
	my ($heading, $sql, %said, @blocks) = ('');

	for my $line (split /^/, manual_page($page))
	{
		if (defined $sql)
		{
			$sql .= $line unless $line =~ /^```$/;
			next unless $line =~ /^```$/;
			push @blocks, { %said, heading => $heading, sql => $sql };
			undef $sql;
		}
		elsif ($line =~ /^#+ (.*)/) { $heading = $1; }
		elsif ($line =~ /^<!-- (\w+): (\w+) -->/) { $said{$1} = $2; }
		elsif ($line =~ /^```sql$/) { $sql = ''; }
	}
	return @blocks;
}

# Those that have a name of their own, <!-- block: name -->: a hash.
sub named_blocks
{
	my ($page) = @_;
	my %sql;

	$sql{ $_->{block} } //= $_->{sql} for grep { exists $_->{block} } blocks_of($page);
	return %sql;
}

# A value as an SQL literal.
sub literal
{
	my ($value) = @_;

	return 'NULL' unless defined $value;
	$value =~ s/'/''/g;
	return $value =~ s/\\/\\\\/g ? " E'$value'" : "'$value'";
}

# Tasks --------------------------------------------------------------------------------------------

# insert_task($node, request => 'SELECT 1', max => 2, ...): inserts a row, returns its id.  db is
# the database.
sub insert_task
{
	my ($node, %column) = @_;
	my $db = delete $column{db} // $default_db;
	my @names = sort keys %column;

	return query($node, $db,
			'INSERT INTO task (' . join(', ', map { qq("$_") } @names) . ') VALUES ('
		  . join(', ', map { literal($column{$_}) } @names)
		  . ') RETURNING id');
}

# insert_rule('mail', max => 2, ...): inserts a row for a queue into the queue table.
sub insert_rule
{
	my ($queue, %column) = @_;
	my @names = sort keys %column;

	sql('INSERT INTO task_queue (queue, ' . join(', ', @names) . ') VALUES (' . literal($queue)
		. ', ' . join(', ', map { literal($column{$_}) } @names) . ')');
}

# As insert_task, and waits until it is DONE or FAIL.  Not for a task that is deleted or does not
# end.
sub run_task
{
	my ($node, %column) = @_;
	my $id = insert_task($node, %column);

	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id",
		db => $column{db});
	return $id;
}

# Plans tasks for now that crash the server: that may end psql before it has the answer.
sub start_crash
{
	my ($node, @ids) = @_;

	run_psql($node, $default_db,
		'UPDATE task SET dt = now() WHERE id IN (' . join(', ', @ids) . ')');
	return;
}

# The text of a column of a task, or of any expression over its columns.  NULL is an empty string.
sub task
{
	my ($node, $id, $column, %opt) = @_;

	return query($node, $opt{db}, "SELECT $column FROM task WHERE id = $id");
}

# is_row($node, $id, { state => 'FAIL', attempt => 2 }, $name): one check, that the columns of a
# task have these values; undef is NULL.  A key may be any expression over the columns.
# Options: db.
sub is_row
{
	my ($node, $id, $expected, $name, %opt) = @_;
	my @columns = sort keys %$expected;
	my $list = join ', ', map { "($_)::text" } @columns;
	my $values = JSON::PP->new->decode(task($node, $id, "json_build_array($list)", %opt) || '[]');
	my %found;

	@found{@columns} = @$values;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_deeply(\%found, $expected, $name);
}

# The number of tasks that meet a condition.
sub count_of
{
	my ($node, $condition, %opt) = @_;

	return query($node, $opt{db}, "SELECT count(*) FROM task WHERE $condition");
}

# How long a task waits now until it starts, in seconds: the longest of five.  Tests add a multiple
# of it to the bound of a time, because the machine may have other work.
sub start_delay
{
	my ($node, %opt) = @_;
	my @ids = map { run_task($node, request => 'SELECT 1', %opt) } 1 .. 5;

	return query($node, $opt{db},
		'SELECT max(extract(epoch FROM start - dt)) FROM task WHERE id IN ('
		  . join(', ', @ids) . ')');
}

# Gates: a task whose request is SELECT hold('name') runs until open_gate. Any role may call it.
sub make_gates
{
	my ($node, %opt) = @_;

	query($node, $opt{db}, q{
		CREATE TABLE gate (name text);
		GRANT SELECT ON gate TO PUBLIC;
		CREATE FUNCTION hold(gate_name text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM public.gate WHERE name = gate_name) LOOP
				PERFORM pg_sleep(0.05);
			END LOOP;
		END $$});
}

sub open_gate
{
	my ($node, $name, %opt) = @_;

	query($node, $opt{db}, 'INSERT INTO gate VALUES (' . literal($name) . ')');
}

# Processes ----------------------------------------------------------------------------------------

# The pids of pg_task's processes of a kind: 'supervisor', 'scheduler' or 'executor'.
sub backends
{
	my ($node, $kind) = @_;

	return split /\n/, query($node, $default_db,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task $kind' ORDER BY pid");
}

sub terminate
{
	my ($node, @pids) = @_;

	query($node, $default_db, "SELECT pg_terminate_backend($_)") for @pids;
}

# The FROM and WHERE of a query on pg_stat_activity: the executors that are running a task.
# Options: id, of the task; db; user, the role of the task; event, what it waits for, such as
# 'PgSleep'.
sub running
{
	my (%opt) = @_;
	my $name = defined $opt{id} ? "pg_task % $opt{id}" : 'pg_task %';
	my %is = (datname => $opt{db}, usename => $opt{user}, wait_event => $opt{event});

	return join ' AND ', "FROM pg_stat_activity WHERE backend_type = 'pg_task executor'",
	  "application_name LIKE '$name'",
	  map { "$_ = " . literal($is{$_}) } grep { defined $is{$_} } sort keys %is;
}

# The server's log ---------------------------------------------------------------------------------

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

# Waiting ------------------------------------------------------------------------------------------
#
# Each of these but poll_for and becomes_true dies when it has waited for PG_TEST_TIMEOUT_DEFAULT
# seconds.

# Prints what may say why a test waits in vain: the tasks, those that have not ended first, the
# processes of pg_task, and the end of the server's log.
sub describe
{
	my ($node, $db) = @_;

	for my $query (
		q{SELECT now(), id, queue, state, attempt, dt, start, stop, pid, role, sqlstate,
			left(error, 60),
			left(request, 60) FROM task
			ORDER BY state NOT IN ('WORK', 'PLAN'), dt > now(), id DESC LIMIT 20},
		q{SELECT backend_type, pid, datname, usename, application_name, state, wait_event,
			backend_start
			FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%' ORDER BY 1, 2},
		q{SELECT datname, pid, state, executors, busy, wanted, wants_since, missed, held, error,
			error_at FROM pg_stat_task_scheduler()})
	{
		my $late;
		my ($rc, $out, $err) = eval { $node->psql($db, $query, timeout => 10, timed_out => \$late,
			extra_params => [ '-P', 'tuples_only=off', '-P', 'null=-' ]) };

		diag($_) for grep { defined && $_ ne '' } $out, $err, $late ? "no answer to $query" : undef;
	}
	my @log = grep { !/LOG:  statement:/ } split /\n/, slurp_file($node->logfile);
	splice @log, 0, -40 if @log > 40;
	diag($_) for @log;
	return;
}

# Looks again and again, with pauses that grow, until a query returns the expected text.  Returns
# whether it has, and the output of the last look, with that of errors.  One psql stays from look to
# look, since its start takes a hundred times as long as a short query.  Options: db, user, node,
# and seconds, as for poll_for.
sub look_until
{
	my ($query, $expected, %opt) = @_;
	my $node = $opt{node} // $main_node;
	my $result;

	my $found = poll_for(sub {
		my ($rc, $out, $err) = eval {
			run_psql($node, $opt{db} // $default_db, $query, $opt{user} ? ('-U', $opt{user}) : ());
		};

		$result = defined $rc ? $out . $err : $@;
		return defined $rc && $rc == 0 && $result eq $expected;
	}, $opt{seconds});

	return ($found, $result);
}

# Waits until a query returns the expected text (default 't').  If it never does, the test is over,
# because all later checks would fail, too: prints the state of the tasks, and dies.  Options: db,
# expected, seconds.
sub wait_until
{
	my ($node, $query, %opt) = @_;
	my $expected = $opt{expected} // 't';
	my ($found, $result) = look_until($query, $expected, %opt, node => $node);

	return if $found;
	diag("expected '$expected', found '$result'");
	describe($node, $opt{db} // $default_db);
	croak "waited in vain for: $query";
}

sub wait_for_table
{
	my ($node, %opt) = @_;

	wait_until($node, "SELECT to_regclass(" . literal($opt{table} // 'task') . ") IS NOT NULL",
		%opt);
}

sub wait_for_state
{
	my ($node, $id, $state, %opt) = @_;

	wait_until($node, "SELECT state FROM task WHERE id = $id", %opt, expected => $state);
}

# Waits until this number of tasks run.  Options as for running.
sub wait_for_running
{
	my ($node, $count, %opt) = @_;

	wait_until($node, 'SELECT count(*) ' . running(%opt), expected => $count);
}

# Waits until this number of them run.
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

	wait_until($node,
		q{SELECT coalesce(array_agg(datname::text ORDER BY datname COLLATE "C"), '{}') =
		ARRAY(SELECT unnest(ARRAY[} . join(', ', map { literal($_) } @databases)
		. q{]::text[]) COLLATE "C"
		ORDER BY 1) FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'});
}

# Waits until no process has this pid.  The server has taken note of its end then, so its worker
# slot is free.
sub wait_for_exit
{
	my ($node, $pid) = @_;

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)");
	poll_for(sub { !kill 0, $pid }) or croak "process $pid does not end";
	return;
}

sub wait_for_log_line
{
	my ($node, $regexp, $position) = @_;

	return 1 if poll_for(sub { log_since($node, $position // 0) =~ $regexp });
	describe($node, $default_db);
	croak "waited in vain for $regexp in the log";
}

# Calls a function until it returns something true, and returns that; after this many seconds
# (default PG_TEST_TIMEOUT_DEFAULT), something false.  For what wait_until cannot ask the server.
sub poll_for
{
	my ($condition, $seconds) = @_;
	my $begin = clock_gettime(CLOCK_MONOTONIC);
	my $end = $begin + ($seconds // $PostgreSQL::Test::Utils::timeout_default);
	my $result;

	until ($result = $condition->())
	{
		my $now = clock_gettime(CLOCK_MONOTONIC);
		last if $now > $end;
		# what takes long is looked at less often: other tests need the processor
		usleep(1e6 * max(0.01, min(0.2, ($now - $begin) / 8)));
	}
	return $result;
}

# A check: this query comes to return true.  Not on the first look, perhaps: the scheduler may
# prepare the table again meanwhile, as after an ANALYZE of autovacuum.  Options as for sql.
sub becomes_true
{
	my ($query, $name, %opt) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok((look_until($query, 't', %opt))[0], $name);
}

1;
